"""``Recording``: a published set of measurements, indexed by (problem, configuration) for replay.

Everything in it was measured: a cell without a row stays empty, and nothing is interpolated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cudal2.arch import ARCHS, SM90, arch_of
from cudal2.errors import RecordError, UsageError
from cudal2.paths import data_dir
from cudal2.problem import Problem
from cudal2.records.columns import Cells, list_medians, mapped, numbers, or_missing
from cudal2.records.finals import REFERENCE, names_of
from cudal2.records.fingerprint import Fingerprint
from cudal2.records.measurement import Measurement, Mode, Status
from cudal2.records.parquet import RecordingMetadata, axis_names, measurement_at, read_table, to_table, write_parquet
from cudal2.records.shards import Shards, is_shard, read_shards
from cudal2.settings import SpaceSettings
from cudal2.space.config import CONFIGS, KernelConfig, Sm90WsConfig
from cudal2.space.masks import is_in
from cudal2.space.space import SearchSpace

logger = logging.getLogger(__name__)

#: Status code of a cell; 0 is "not recorded".
STATUS_CODES = {status: code for code, status in enumerate(Status, start=1)}


class Recording:
    """Measurements of one mode and one PDL setting, indexed by problem and by flat index of the recorded space.

    Attributes:
        problems: Recorded problems, sorted.
        space: The recorded space, rebuilt from the file's own axes and limits.
        metadata: Fingerprints, space and versions.
        mode: Protocol mode of the rows.
        pdl: Whether our launches carried the programmatic-dependent-launch attribute.
        cells: [problem, flat]: position in the arrays below, -1 (their last element) where nothing was recorded.
        times_us: float32: median time of each cell, NaN where the candidate failed; NaN at -1.
        ref_times_us: float32: median of the reference in the same rounds, NaN where there is none; NaN at -1.
        costs_s: float32: build plus measurement, what a live search would have paid; 0 at -1.
        statuses: uint8: :data:`STATUS_CODES`; 0 at -1.
    """

    def __init__(
        self, table: pa.Table, metadata: RecordingMetadata, mode: Mode = "offline", pdl: bool | None = None
    ) -> None:
        self.metadata = metadata
        self.mode: Mode = mode
        self.space = _recorded_space(metadata)
        self._table = table
        self._rows, self.pdl = _select(table, mode, pdl)
        codes, self.problems = _problem_codes(table)
        self._index = {problem: index for index, problem in enumerate(self.problems)}
        self._baseline_rows = _baseline_rows(table, codes, mode)
        self._fill(codes)

    @classmethod
    def load(cls, path: Path, mode: Mode = "offline", pdl: bool | None = None, allow_mixed: bool = False) -> Recording:
        """Reads a published file, or the shards of a run's directory.

        Args:
            path: A ``.parquet`` file, a directory of shards or one shard.
            mode: Which protocol mode to replay.
            pdl: Which PDL setting to replay; by default the one with more rows, and with PDL if they are as many.
            allow_mixed: Accept shards whose fingerprints differ.

        Raises:
            RecordError: The file is unreadable, of another schema, mixed, or holds nothing for this mode.
        """
        path = Path(path)
        if path.is_dir() or is_shard(path):
            shards = read_shards(path, allow_mixed)
            return cls.from_measurements(shards.measurements, shards.fingerprints, mode=mode, pdl=pdl)
        table, metadata = read_table(path)
        try:
            return cls(table, metadata, mode, pdl)
        except (RecordError, UsageError) as error:
            raise RecordError(f"{path}: {error}") from error

    @classmethod
    def from_measurements(
        cls,
        measurements: Iterable[Measurement],
        fingerprints: Iterable[Fingerprint],
        space: SearchSpace | None = None,
        mode: Mode = "offline",
        pdl: bool | None = None,
    ) -> Recording:
        """A recording in memory; arguments as :meth:`publish` and :meth:`load`."""
        rows = list(measurements)
        metadata = describe(rows, fingerprints, space)
        return cls(to_table(rows, metadata), metadata, mode, pdl)

    @staticmethod
    def publish(
        measurements: Iterable[Measurement],
        path: Path,
        fingerprints: Iterable[Fingerprint],
        space: SearchSpace | None = None,
    ) -> None:
        """Writes the published form.

        Args:
            measurements: Any rows, baselines and failures included; repeats are merged by
                :func:`~cudal2.records.shards.dedupe`.
            path: The ``.parquet`` file to write.
            fingerprints: Environments of the rows.
            space: The space that was recorded; by default the axis values that occur.
        """
        rows = list(measurements)
        write_parquet(rows, path, describe(rows, fingerprints, space))

    @property
    def fingerprint(self) -> Fingerprint:
        """The environments of the rows as one, which names everything that differs.

        Raises:
            RecordError: They are of several devices.
        """
        return reduce(Fingerprint.joined, self.metadata.fingerprints)

    @property
    def axes(self) -> Mapping[str, tuple[Any, ...]]:
        """Values of every axis of the recorded space."""
        return {axis.name: axis.values for axis in self.space.axes}

    def problem_index(self, problem: Problem) -> int:
        """Row of :attr:`cells`.

        Raises:
            RecordError: The problem was not recorded.
        """
        if problem not in self._index:
            kinds = sorted({f"{other.precision} {other.layout}" for other in self.problems})
            raise RecordError(
                f"{problem.mnk} ({problem.precision} {problem.layout}) was not recorded; this recording holds "
                f"{len(self.problems)} problems of {', '.join(kinds)}, for example {self.problems[0].mnk}"
            )
        return self._index[problem]

    def times(self, problem: Problem) -> dict[int, tuple[float, Status]]:
        """Recorded cells of one problem: flat index -> (median time or NaN, status)."""
        order = list(Status)
        pairs = zip(*self.cells.row(self.problem_index(problem)), strict=True)
        return {int(flat): (float(self.times_us[cell]), order[self.statuses[cell] - 1]) for flat, cell in pairs}

    def recorded(self, problem: Problem) -> NDArray[np.int64]:
        """Flat indices of the configurations that were recorded, ascending."""
        return self.cells.row(self.problem_index(problem))[0]

    def missing(self, problem: Problem) -> int:
        """Legal configurations without a row; 0 means the recording of this problem is complete."""
        return int(np.count_nonzero(~is_in(self.space.legal_flat(problem), self.recorded(problem))))

    def reference_us(self, problem: Problem) -> float:
        """cuBLASLt-AutoTuning on this problem: the median over the interleaved references of all rows.

        Raises:
            RecordError: No row carries a reference.
        """
        refs = self.ref_times_us[self.cells.row(self.problem_index(problem))[1]]
        refs = refs[~np.isnan(refs)]
        if refs.size:
            return float(np.median(refs))
        names = names_of(REFERENCE)
        baselines = [row.median_us for name, row in self.baselines(problem).items() if name in names and row.ok]
        if not baselines:
            raise RecordError(f"{problem.mnk}: no {REFERENCE} reference was recorded; record it with baselines")
        return min(baselines)

    def measurement(self, problem: Problem, flat: int) -> Measurement | None:
        """The row of one cell, or ``None`` if it was not recorded."""
        cell = int(self.cells[self.problem_index(problem), flat])
        return self._row(int(self._rows[cell])) if cell >= 0 else None

    def baselines(self, problem: Problem) -> dict[str, Measurement]:
        """Baseline rows of one problem by contestant."""
        rows = (self._row(row) for row in self._baseline_rows.get(self.problem_index(problem), ()))
        return {row.contestant: row for row in rows}

    def measurements(self) -> Iterator[Measurement]:
        """Every row of the file, baselines and other modes included."""
        return (self._row(row) for row in range(self._table.num_rows))

    def _row(self, row: int) -> Measurement:
        return measurement_at(self._table, row, self.metadata.family)

    def _fill(self, codes: NDArray[np.int64]) -> None:
        table, rows, size = self._table, self._rows, self.space.total
        flats = np.ravel_multi_index(tuple(_positions(table, rows, self.axes)), self.space.dims)
        self.cells = Cells((len(self.problems), size), codes[rows], flats)
        self.times_us = or_missing(list_medians(table, "times_us")[rows], np.nan)
        self.ref_times_us = or_missing(list_medians(table, "ref_times_us")[rows], np.nan)
        self.costs_s = or_missing((numbers(table, "compile_s") + numbers(table, "bench_s"))[rows], 0.0)
        code_of = {status.value: code for status, code in STATUS_CODES.items()}
        self.statuses = np.append(mapped(table, "status", code_of)[rows], 0).astype(np.uint8)


def describe(
    rows: list[Measurement], fingerprints: Iterable[Fingerprint], space: SearchSpace | None
) -> RecordingMetadata:
    """Metadata of rows; without a space, the axis values that occur stand for it.

    Raises:
        RecordError: There is no fingerprint or no row of ours.
    """
    fingerprints = tuple(fingerprints)
    configs = [row.config for row in rows if row.config is not None]
    if not fingerprints or not configs:
        raise RecordError("nothing to publish: no fingerprint or no measured configuration")
    if space is None:
        space = _occurring(configs, fingerprints[0])
    axes = {axis.name: axis.values for axis in space.axes}
    return RecordingMetadata(
        fingerprints, space.arch.name, replace(space.settings, axes=axes, family=space.family.name)
    )


def _occurring(configs: list[KernelConfig], fingerprint: Fingerprint) -> SearchSpace:
    """The axis values that occur, of the family of the rows."""
    families = sorted({config.family for config in configs})
    if len(families) > 1:
        raise RecordError(
            f"a recording holds one kernel family, and these rows are of {' and '.join(families)}: "
            "record and publish each from a directory of its own"
        )
    values = {name: tuple({getattr(config, name) for config in configs}) for name in axis_names(families[0])}
    arch = arch_of(fingerprint.capability) or SM90
    return SearchSpace(arch, SpaceSettings(values, name="occurring", family=families[0]))


def read_records(path: Path, allow_mixed: bool = False) -> Shards:
    """Every row of a published file, a directory of shards or one shard, whatever its mode and PDL setting.

    Raises:
        RecordError: As :func:`~cudal2.records.shards.read_shards` and :func:`~cudal2.records.parquet.read_table`.
    """
    path = Path(path)
    if path.is_dir() or is_shard(path):
        return read_shards(path, allow_mixed)
    table, metadata = read_table(path)
    try:
        rows = tuple(measurement_at(table, row, metadata.family) for row in range(table.num_rows))
    except (UsageError, ValueError) as error:
        raise RecordError(f"{path}: {error}: the file is damaged") from error
    return Shards(metadata.fingerprints, rows)


def bundled_recording(precision: str = "fp32", family: str = Sm90WsConfig.family) -> Path:
    """The recording shipped for one precision and kernel family: ``data/recordings/*_<family>_*<precision>*``.

    The first family of an architecture may go by the architecture's name: ``sm90`` for ``sm90_ws``.

    Raises:
        RecordError: None is shipped.
    """
    arch = family.partition("_")[0]
    names = [family, arch] if family == next(name for name in CONFIGS if name.startswith(arch)) else [family]
    others = [f"_{name}_" for name in CONFIGS if name != family]
    folder = data_dir() / "recordings"
    paths = [path for name in names for path in sorted(folder.glob(f"*_{name}_*{precision}*.parquet"))]
    paths = [path for path in paths if not any(other in path.name for other in others)]
    if not paths:
        raise RecordError(
            f"no {precision} recording of {family} ships with this package: name one, or `cudal2 record` one on a GPU"
        )
    return paths[0]


def _recorded_space(metadata: RecordingMetadata) -> SearchSpace:
    if metadata.arch not in ARCHS:
        raise RecordError(f"recorded for architecture '{metadata.arch}', which this version does not know")
    arch = replace(ARCHS[metadata.arch], sm_count=metadata.fingerprints[0].sm_count)
    return SearchSpace(arch, metadata.space)


def _select(table: pa.Table, mode: Mode, pdl: bool | None) -> tuple[NDArray[np.int64], bool]:
    """Row numbers of our kernels in this mode, and the PDL setting they share."""
    ours = ~_is_baseline(table) & (mapped(table, "mode", {mode: 1}) == 1)
    pdls = numbers(table, "pdl") != 0
    with_pdl = int(np.count_nonzero(ours & pdls))
    chosen = 2 * with_pdl >= np.count_nonzero(ours) if pdl is None else pdl
    if pdl is None and 0 < with_pdl < np.count_nonzero(ours):
        logger.info(
            "the recording holds rows with and without PDL: replaying those %s", "with" if chosen else "without"
        )
    rows = np.flatnonzero(ours & (pdls == chosen))
    if not rows.size:
        raise RecordError(f"no kernel of mode '{mode}', pdl {'any' if pdl is None else pdl}, is in this recording")
    return rows, bool(chosen)


def _is_baseline(table: pa.Table) -> NDArray[np.bool_]:
    return np.asarray(table.column("tile_m").is_null(), np.bool_)


def _problem_codes(table: pa.Table) -> tuple[NDArray[np.int64], tuple[Problem, ...]]:
    """Index into the sorted problems for each row."""
    names = ("m", "n", "k", "acc", "layout", "dtype")
    rows = list(zip(*(table.column(name).to_pylist() for name in names), strict=True))
    problems = {values: Problem(*values) for values in set(rows)}
    ordered = sorted(problems.values())
    index = {values: ordered.index(problem) for values, problem in problems.items()}
    return np.fromiter((index[row] for row in rows), np.int64, len(rows)), tuple(ordered)


def _baseline_rows(table: pa.Table, codes: NDArray[np.int64], mode: Mode) -> dict[int, list[int]]:
    rows: dict[int, list[int]] = {}
    for row in np.flatnonzero(_is_baseline(table) & (mapped(table, "mode", {mode: 1}) == 1)):
        rows.setdefault(int(codes[row]), []).append(int(row))
    return rows


def _positions(
    table: pa.Table, rows: NDArray[np.int64], axes: Mapping[str, tuple[Any, ...]]
) -> Iterator[NDArray[np.int64]]:
    """Index of each row's value on each axis."""
    for name, values in axes.items():
        position = mapped(table, name, {value: index for index, value in enumerate(values)})[rows]
        if (position < 0).any():
            raise RecordError(f"a row's '{name}' is none of the file's own {list(values)}: the file is damaged")
        yield position
