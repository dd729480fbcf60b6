"""Append-only JSONL shards: how measurements reach the disk while a run goes on, and how they are read back.

A shard is one process's file. Its first line is the session header with the fingerprint, every other line one
row of one kind: a measurement, or what else is recorded with the environment it holds for. A process killed at any
moment loses at most the line it was writing. A shard that is done may be packed by gzip and is read as it was.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import reduce
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

from cudal2.closing import Closing
from cudal2.errors import EnvironmentProblemError, RecordError, UsageError
from cudal2.problem import Problem
from cudal2.records.fingerprint import Fingerprint
from cudal2.records.measurement import SCHEMA_VERSION, Measurement, Status

logger = logging.getLogger(__name__)

Row = TypeVar("Row")
MeasurementKey = tuple[Problem, str, str, str, bool]


class RecordLog(Closing):
    """One process's shard in ``directory``; a new file per session, so a torn tail is never appended to.

    Args:
        directory: Where the shards of a run live; made if absent.
        fingerprint: Environment of every measurement of this session.
        session: Soft facts worth keeping (seed, host clocks, command line); not part of the fingerprint.

    Raises:
        EnvironmentProblemError: The directory cannot be written.
    """

    def __init__(self, directory: Path, fingerprint: Fingerprint, session: dict[str, Any] | None = None) -> None:
        utc = datetime.now(timezone.utc)
        self.session_id = uuid.uuid4().hex[:12]
        self.path = Path(directory) / f"{utc:%Y%m%dT%H%M%S.%f}-{self.session_id}.jsonl"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except OSError as error:
            raise EnvironmentProblemError(f"cannot write records to {directory}: {error.strerror}") from error
        header = {
            "kind": "session",
            "schema": SCHEMA_VERSION,
            "session_id": self.session_id,
            "utc": utc.isoformat(timespec="seconds"),
            "fingerprint_sha256": fingerprint.sha256,
            "fingerprint": fingerprint.to_dict(),
            "session": session or {},
        }
        self._write(header)
        os.fsync(self._fd)

    def write(self, measurement: Measurement) -> None:
        """Writes one line unbuffered: it outlives this process; only a crash of the machine can still lose it."""
        self.write_row("measurement", measurement.to_dict())

    def write_row(self, kind: str, values: dict[str, Any]) -> None:
        """The same for a row of another kind; plain values, read back by :func:`read_rows`."""
        self._write({"kind": kind, **values})

    def sync(self) -> None:
        """Makes what was written outlive the machine; costs milliseconds, so once per batch."""
        os.fsync(self._fd)

    def append(self, measurements: Iterable[Measurement]) -> None:
        """Writes a batch, each row as it comes, and syncs."""
        for measurement in measurements:
            self.write(measurement)
        self.sync()

    def close(self) -> None:
        """Closes the shard; closing twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, row: dict[str, Any]) -> None:
        line = memoryview((json.dumps(row, allow_nan=False, separators=(",", ":")) + "\n").encode())
        while line:
            line = line[os.write(self._fd, line) :]


@dataclass(frozen=True)
class Rows(Generic[Row]):
    """What a directory of shards holds, of whatever kind.

    Attributes:
        fingerprints: Every distinct one, in order of appearance.
        rows: All rows in order.
        torn_lines: Last lines that were cut off and dropped.
    """

    fingerprints: tuple[Fingerprint, ...]
    rows: tuple[Row, ...]
    torn_lines: int = 0


@dataclass(frozen=True)
class Shards:
    """What a directory of measurements holds.

    Attributes:
        fingerprints: Every distinct one, in order of appearance; exactly one unless mixing was allowed.
        measurements: All rows in order, repeats included.
        torn_lines: Last lines that were cut off and dropped.
    """

    fingerprints: tuple[Fingerprint, ...]
    measurements: tuple[Measurement, ...]
    torn_lines: int = 0

    @property
    def fingerprint(self) -> Fingerprint:
        """All of them as one, which names everything that differs.

        Raises:
            RecordError: Every session died before its header was complete, or they are of several devices.
        """
        if not self.fingerprints:
            raise RecordError("no session header survived in these shards: there is nothing to read")
        return reduce(Fingerprint.joined, self.fingerprints)


def is_shard(path: Path) -> bool:
    """Whether a file is one by its name: ``*.jsonl``, or packed ``*.jsonl.gz``."""
    return path.name.endswith((".jsonl", ".jsonl.gz"))


def shard_files(directory: Path) -> list[Path]:
    """Every shard of a directory, oldest first, or the one such file; empty if there is none."""
    return [directory] if directory.is_file() else sorted(filter(is_shard, directory.glob("*.jsonl*")))


def read_shards(directory: Path, allow_mixed: bool = False) -> Shards:
    """Reads every shard of a directory (or one such file), oldest first.

    Args:
        directory: A directory of shards, or one shard.
        allow_mixed: Accept sessions whose fingerprints differ.

    Raises:
        RecordError: No shard, a broken line that is not the last, an unknown schema, or fingerprints that differ.
    """
    found = read_rows(directory, "measurement", Measurement.from_dict, allow_mixed)
    return Shards(found.fingerprints, found.rows, found.torn_lines)


def require_environment(directory: Path, fingerprint: Fingerprint) -> None:
    """Makes sure that what is recorded next may be read together with the shards in ``directory``, if any.

    Raises:
        RecordError: They are of another environment, or one is no shard.
    """
    for path in shard_files(directory):
        theirs = _environment(path)
        if theirs is not None and theirs != fingerprint:
            raise RecordError(
                f"{directory} holds records of another environment "
                f"({'; '.join(theirs.differences(fingerprint))}): record into another directory"
            )


def _environment(path: Path) -> Fingerprint | None:
    """A shard's, without reading its rows; ``None`` if its process died before the header was complete."""
    for number, header in islice(_lines(path), 1):
        try:
            return _header_fingerprint(header) if header is not None else None
        except (RecordError, UsageError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"{path}:{number}: {error or type(error).__name__}") from error
    return None


def read_rows(
    directory: Path, kind: str, parse: Callable[[dict[str, Any]], Row], allow_mixed: bool = False
) -> Rows[Row]:
    """As :func:`read_shards`, for rows of one kind.

    Args:
        directory: A directory of shards, or one shard.
        kind: What :meth:`RecordLog.write_row` was told.
        parse: A row from its plain values; what it raises on bad ones names file and line.
        allow_mixed: Accept sessions whose fingerprints differ.

    Raises:
        RecordError: As :func:`read_shards`, or a row of another kind.
    """
    directory = Path(directory)
    paths = shard_files(directory)
    if not paths and not directory.is_dir():
        raise RecordError(f"{directory}: {'no record shard' if directory.exists() else 'no such file or directory'}")
    if not paths:
        raise RecordError(f"{directory}: no records (*.jsonl) here; `cudal2 record` or a run writes them")
    fingerprints: dict[str, Fingerprint] = {}
    rows: list[Row] = []
    torn = 0
    for path in paths:
        shard = _read_shard(path, kind, parse)
        rows.extend(shard.rows)
        torn += shard.torn_lines
        for fingerprint in shard.fingerprints:
            fingerprints.setdefault(fingerprint.sha256, fingerprint)
            if len(fingerprints) > 1 and not allow_mixed:
                first = next(iter(fingerprints.values()))
                raise RecordError(
                    f"{path}: recorded in another environment than the shards before it "
                    f"({'; '.join(first.differences(fingerprint))}): keep them apart, or allow mixing on purpose"
                )
    return Rows(tuple(fingerprints.values()), tuple(rows), torn)


def _read_shard(path: Path, kind: str, parse: Callable[[dict[str, Any]], Row]) -> Rows[Row]:
    """One file; a torn header means the process died before it measured anything."""
    fingerprints: list[Fingerprint] = []
    rows: list[Row] = []
    for number, values in _lines(path):
        if values is None:
            logger.warning("%s:%d: the last line is cut off and was dropped", path, number)
            return Rows(tuple(fingerprints), tuple(rows), torn_lines=1)
        try:
            if number == 1:
                fingerprints.append(_header_fingerprint(values))
            elif values.pop("kind", None) != kind:
                raise RecordError(f"not a {kind} row")
            else:
                rows.append(parse(values))
        except (RecordError, UsageError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"{path}:{number}: {error or type(error).__name__}") from error
    return Rows(tuple(fingerprints), tuple(rows))


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Numbered rows; the row is ``None`` for a last line that has no newline and does not parse."""
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                if line.endswith(b"\n"):
                    what = "no record shard, or one" if number == 1 else "the file was"
                    raise RecordError(
                        f"{path}:{number}: not a JSON line ({error}): {what} damaged after it was written"
                    ) from error
                yield number, None
                return
            if not isinstance(row, dict):
                raise RecordError(f"{path}:{number}: a row must be a JSON object: no cudal2 shard, or a damaged one")
            yield number, row


def opened(path: Path) -> BinaryIO:
    """A file to read from, unpacked if it is packed.

    Raises:
        RecordError: It is packed and damaged.
    """
    if path.suffix != ".gz":
        return path.open("rb")
    try:
        return BytesIO(gzip.decompress(path.read_bytes()))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise RecordError(f"{path}: {error}: the file was damaged after it was packed") from error


def _header_fingerprint(row: dict[str, Any]) -> Fingerprint:
    if row.get("kind") != "session":
        raise RecordError("the first line is not a session header: not a cudal2 shard")
    if row.get("schema") != SCHEMA_VERSION:
        raise RecordError(f"record schema {row.get('schema')!r} is not {SCHEMA_VERSION}, the one this version reads")
    return Fingerprint.from_dict(row["fingerprint"])


def measurement_key(measurement: Measurement) -> MeasurementKey:
    """What makes two rows measurements of the same thing."""
    config = measurement.config.name if measurement.config else ""
    return measurement.problem, measurement.contestant, config, measurement.mode, measurement.pdl


def dedupe(measurements: Iterable[Measurement]) -> list[Measurement]:
    """One row per key, in order of first appearance.

    A kernel that was ever wrong stays wrong; otherwise a pass beats a failure (a neighbour's crash or a busy GPU can
    fail a good candidate once), a final figure beats a search's, more raw repeats beat fewer, and the later row beats
    the earlier.
    """
    kept: dict[MeasurementKey, Measurement] = {}
    for measurement in measurements:
        key = measurement_key(measurement)
        if key not in kept or _weight(measurement) >= _weight(kept[key]):
            kept[key] = measurement
    return list(kept.values())


def _weight(measurement: Measurement) -> tuple[bool, bool, int]:
    is_final = bool(measurement.process_rounds)
    return measurement.status is Status.CORRECTNESS, is_final, len(measurement.times_us)
