"""Measurements as typed Parquet columns and back: the published form of a recording.

One column per field and per configuration axis, raw repeats as ``list<float32>``, and what the rows have in common
(fingerprint, recorded space, versions) in the file's metadata, so that one file is the whole recording.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cudal2.atomic import write_atomically
from cudal2.errors import Cudal2Error, RecordError, first_line
from cudal2.problem import Problem
from cudal2.records.fingerprint import Fingerprint
from cudal2.records.kinds import UTC_PATTERN
from cudal2.records.measurement import PROTOCOL_VERSION, SCHEMA_VERSION, Measurement, Mode, Status
from cudal2.records.shards import dedupe
from cudal2.settings import Limit, SpaceSettings
from cudal2.space.config import CONFIGS, KernelConfig, Sm90WsConfig

METADATA_KEY = b"cudal2"

_NAME = pa.dictionary(pa.int16(), pa.string())
_TIMES = pa.list_(pa.float32())
_PROBLEM = {"m": pa.int32(), "n": pa.int32(), "k": pa.int32(), "acc": _NAME, "layout": _NAME, "dtype": _NAME}
_ARROW_OF = {int: pa.int32(), bool: pa.bool_()}
_RESULT = {
    "contestant": _NAME,
    "status": _NAME,
    "reason": pa.string(),
    "mode": _NAME,
    "pdl": pa.bool_(),
    "times_us": _TIMES,
    "ref_times_us": _TIMES,
    "process_rounds": pa.list_(pa.int32()),
    "launches": pa.int32(),
    "max_error": pa.float32(),
    "registers": pa.int32(),
    "spill_bytes": pa.int32(),
    "smem_bytes": pa.int32(),
    "sm_clock_mhz": pa.int32(),
    "power_w": pa.float32(),
    "temperature_c": pa.int32(),
    "throttle": pa.int64(),
    "compile_s": pa.float32(),
    "bench_s": pa.float32(),
    "utc": pa.string(),
    "detail": pa.string(),
}


def axis_names(family: str) -> tuple[str, ...]:
    """Columns that hold the configuration: the fields of the family's."""
    return tuple(field.name for field in fields(CONFIGS[family]))


@cache
def schema_of(family: str) -> pa.Schema:
    """Columns of a recording of one kernel family."""
    hints = get_type_hints(CONFIGS[family])
    axes = {name: _ARROW_OF.get(hints[name], _NAME) for name in axis_names(family)}
    return pa.schema({**_PROBLEM, **axes, **_RESULT})


@dataclass(frozen=True)
class RecordingMetadata:
    """What all rows of a published file have in common.

    Attributes:
        fingerprints: The environments of the rows; one, unless they were mixed on purpose.
        arch: Architecture of the recorded space.
        space: The recorded space, every axis spelt out.
        protocol: Version of the timing protocol.
        schema: Version of the record format.
    """

    fingerprints: tuple[Fingerprint, ...]
    arch: str
    space: SpaceSettings
    protocol: int = PROTOCOL_VERSION
    schema: int = SCHEMA_VERSION

    @property
    def family(self) -> str:
        """The kernel family of the rows."""
        return self.space.family

    def to_json(self) -> str:
        """Sorted text for the file's key-value metadata; the axes keep their order as pairs."""
        limits = [
            {"when": _plain(limit.when), "only": _plain(limit.only), "flops_above": limit.flops_above}
            for limit in self.space.limits
        ]
        values = {
            "schema": self.schema,
            "protocol": self.protocol,
            "fingerprints": [fingerprint.to_dict() for fingerprint in self.fingerprints],
            "arch": self.arch,
            "space": {
                "name": self.space.name,
                "family": self.family,
                "axes": _plain(self.space.axes),
                "limits": limits,
            },
        }
        return json.dumps(values, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> RecordingMetadata:
        """The inverse of :meth:`to_json`.

        Raises:
            RecordError: The schema is not the one this version reads.
        """
        values = json.loads(text)
        if values.get("schema") != SCHEMA_VERSION:
            raise RecordError(
                f"record schema {values.get('schema')!r} is not {SCHEMA_VERSION}: written by another version"
            )
        fingerprints = tuple(Fingerprint.from_dict(fingerprint) for fingerprint in values["fingerprints"])
        if not fingerprints:
            raise RecordError("no fingerprint: nothing says where it was measured")
        space = values["space"]
        limits = tuple(
            Limit(_choices(limit["when"]), _choices(limit["only"]), limit["flops_above"]) for limit in space["limits"]
        )
        family = space.get("family", "") or Sm90WsConfig.family
        if family not in CONFIGS:
            raise RecordError(f"kernel family '{family}' is not one this version knows")
        added = {name: (value,) for name, value in CONFIGS[family].added_defaults().items()}
        settings = SpaceSettings({**added, **_choices(space["axes"])}, limits, space["name"], family)
        return cls(fingerprints, values["arch"], settings, values["protocol"])


def _plain(choices: Mapping[str, tuple[Any, ...]]) -> list[list[Any]]:
    return [[name, list(values)] for name, values in choices.items()]


def _choices(pairs: list[list[Any]]) -> dict[str, tuple[Any, ...]]:
    return {name: tuple(values) for name, values in pairs}


def to_table(measurements: Iterable[Measurement], metadata: RecordingMetadata) -> pa.Table:
    """Deduplicated rows, sorted so that the file does not depend on the order of arrival.

    Raises:
        RecordError: A row is of another kernel family: a file holds one.
    """
    rows = sorted(dedupe(measurements), key=_order)
    other = next((row.config for row in rows if row.config and row.config.family != metadata.family), None)
    if other is not None:
        raise RecordError(f"a recording holds one kernel family: {other.name} is no {metadata.family}")
    schema = schema_of(metadata.family)
    columns: dict[str, list[Any]] = {}
    for name in _PROBLEM:
        columns[name] = [getattr(row.problem, name) for row in rows]
    for name in axis_names(metadata.family):
        columns[name] = [getattr(row.config, name) if row.config else None for row in rows]
    for name in _RESULT:
        columns[name] = [getattr(row, name) for row in rows]
    columns["status"] = [row.status.value for row in rows]
    table = pa.Table.from_arrays([pa.array(columns[field.name], field.type) for field in schema], schema=schema)
    return table.replace_schema_metadata({METADATA_KEY: metadata.to_json()})


def _order(row: Measurement) -> tuple[Problem, str, str, str, bool]:
    return row.problem, row.contestant, row.config.name if row.config else "", row.mode, row.pdl


def write_parquet(measurements: Iterable[Measurement], path: Path, metadata: RecordingMetadata) -> None:
    """Publishes measurements as one zstd Parquet file, written beside ``path`` and renamed into place.

    Raises:
        EnvironmentProblemError: The file cannot be written.
    """
    buffer = pa.BufferOutputStream()
    table = to_table(measurements, metadata)
    pq.write_table(table, buffer, compression="zstd", compression_level=12, write_page_checksum=True)
    write_atomically(Path(path), buffer.getvalue().to_pybytes())


def read_table(path: Path) -> tuple[pa.Table, RecordingMetadata]:
    """Rows and metadata of a published file.

    Raises:
        RecordError: The file is absent, not Parquet, not ours, or of another schema.
    """
    path = Path(path)
    try:
        table = pq.read_table(path, page_checksum_verification=True)
        metadata = RecordingMetadata.from_json((table.schema.metadata or {})[METADATA_KEY])
        table = _with_later_columns(table, metadata.family)
        names = table.schema.names
    except FileNotFoundError as error:
        raise RecordError(f"{path}: no such recording") from error
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from error
    except (pa.ArrowException, OSError) as error:
        raise RecordError(f"{path}: not a readable Parquet file ({first_line(error)})") from error
    except (Cudal2Error, KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise RecordError(f"{path}: not a cudal2 recording (metadata {error!r} missing or broken)") from error
    schema = schema_of(metadata.family)
    wrong = sorted({field.name for field in schema} ^ set(names))
    if wrong:
        raise RecordError(f"{path}: wrong or missing columns {wrong}: made by another version?")
    try:
        table = table.select(schema.names).cast(schema.with_metadata(table.schema.metadata)).combine_chunks()
        table.validate(full=True)  # a damaged dictionary is found by nothing else, but by the first to look a value up
    except (pa.ArrowException, ValueError) as error:
        raise RecordError(f"{path}: a column is of another kind ({first_line(error)})") from error
    _check_rows(path, table, axis_names(metadata.family))
    return table, metadata


def _with_later_columns(table: pa.Table, family: str) -> pa.Table:
    """Columns that a file is too old to have: axes of the family at their defaults, and figures of one process."""
    schema = schema_of(family)
    for name, value in {**CONFIGS[family].added_defaults(), "process_rounds": []}.items():
        if name not in table.schema.names:
            table = table.append_column(name, pa.array([value] * table.num_rows, schema.field(name).type))
    return table


def _check_rows(path: Path, table: pa.Table, axes: tuple[str, ...]) -> None:
    """What a reader takes for granted of every row; whole columns at once.

    Raises:
        RecordError: A value is missing, or a time or time stamp is none.
    """
    optional = {*axes, "max_error", "registers", "spill_bytes", "smem_bytes"}
    optional |= {"sm_clock_mhz", "power_w", "temperature_c", "throttle"}
    empty = next((name for name in table.schema.names if name not in optional and table.column(name).null_count), None)
    if empty is not None:
        raise RecordError(f"{path}: a row has no '{empty}': the file is damaged")
    for name in ("times_us", "ref_times_us"):
        times = pc.list_flatten(table.column(name))
        if times.null_count or not pc.all(pc.and_(pc.is_finite(times), pc.greater(times, 0.0)), min_count=0).as_py():
            raise RecordError(f"{path}: a time in '{name}' is not positive and finite: the file is damaged")
    passed = pc.equal(table.column("status").cast(pa.string()), Status.CORRECT.value)
    timed = pc.greater(pc.list_value_length(table.column("times_us")), 0)
    if not pc.all(pc.equal(passed, timed), min_count=0).as_py():
        raise RecordError(f"{path}: a row is timed but not correct, or correct but not timed: the file is damaged")
    for name, known in (("status", [status.value for status in Status]), ("mode", list(get_args(Mode)))):
        wrong = set(table.column(name).cast(pa.string()).unique().to_pylist()) - set(known)
        if wrong:
            raise RecordError(f"{path}: '{name}' is '{min(wrong)}' in a row, none of {', '.join(known)}")
    _check_utc(path, table.column("utc"))


def _check_utc(path: Path, column: pa.ChunkedArray) -> None:
    """:func:`~cudal2.records.kinds.check_utc` of a whole column: 10,000 rows in a millisecond."""
    known = column.filter(pc.not_equal(column, ""))
    try:
        spelt = pc.all(pc.match_substring_regex(known, UTC_PATTERN), min_count=0).as_py()
        known.cast(pa.timestamp("us", tz="UTC"))
    except pa.ArrowInvalid:
        spelt = False
    if not spelt:
        raise RecordError(f"{path}: a row's 'utc' is no ISO time in UTC: the file is damaged")


def measurement_at(table: pa.Table, row: int, family: str) -> Measurement:
    """One row as a :class:`Measurement`; ``family`` is the file's."""
    values = {name: table.column(name)[row].as_py() for name in table.schema.names}
    problem = Problem(**{name: values.pop(name) for name in _PROBLEM})
    axes = {name: values.pop(name) for name in axis_names(family)}
    values["status"] = Status(values["status"])
    values["times_us"] = tuple(values["times_us"])
    values["ref_times_us"] = tuple(values["ref_times_us"])
    values["process_rounds"] = tuple(values["process_rounds"])
    config = None if axes["tile_m"] is None else KernelConfig.from_dict({"family": family, **axes})
    return Measurement(problem=problem, config=config, **values)
