"""``ReplayRunner``: answers from a recording, with no GPU and no torch; it never invents a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cudal2.errors import RecordError, ReplayMissError, UsageError
from cudal2.problem import Problem
from cudal2.records.columns import Cells
from cudal2.records.measurement import Measurement, Status
from cudal2.records.recording import STATUS_CODES, Recording
from cudal2.space.config import KernelConfig
from cudal2.space.masks import is_in
from cudal2.space.space import SearchSpace

OnMissing = Literal["error", "mask"]


class ReplayRunner:
    """Replays a recording behind the :class:`~cudal2.runners.base.Runner` interface.

    Args:
        recording: What was measured.
        space: A space to search instead of the recorded one; usually narrower.
        on_missing: ``error``: every legal configuration may be asked for, and one without a row raises.
            ``mask``: only configurations with a row are allowed.

    Attributes:
        cells: [problem, flat of ``space``]: position in the recording's arrays, -1 where nothing was recorded.
    """

    nondeterministic = False

    def __init__(self, recording: Recording, space: SearchSpace | None = None, on_missing: OnMissing = "error") -> None:
        if on_missing not in get_args(OnMissing):
            raise UsageError(f"on_missing = {on_missing!r}: choose one of {', '.join(get_args(OnMissing))}")
        self.recording = recording
        self.space = space or recording.space
        self.on_missing = on_missing
        self.problems = recording.problems
        self.cost_s = 0.0
        self.cells = recording.cells if space is None else _projected(recording, space)
        self._allowed: dict[Problem, NDArray[np.int64]] = {}
        self._references = np.array([recording.reference_us(problem) for problem in self.problems], np.float32)

    def problem_index(self, problem: Problem) -> int:
        """Position of the problem in :attr:`problems` and in the arrays.

        Raises:
            ReplayMissError: It was not recorded.
        """
        try:
            return self.recording.problem_index(problem)
        except RecordError as error:
            raise ReplayMissError(str(error)) from error

    def allowed(self, problem: Problem) -> NDArray[np.int64]:
        """Legal configurations; with ``mask``, only those that were recorded."""
        if problem not in self._allowed:
            allowed = self.space.legal_flat(problem)
            if self.on_missing == "mask":
                recorded = self.cells.row(self.problem_index(problem))[0]
                allowed = recorded[is_in(recorded, allowed)]
            self._allowed[problem] = allowed
        return self._allowed[problem]

    def reference_us(self, problem: Problem) -> float:
        """cuBLASLt-AutoTuning on the problem, as recorded."""
        return float(self._references[self.problem_index(problem)])

    def run(self, problem: Problem, configs: Sequence[KernelConfig]) -> list[Measurement]:
        """The recorded row of each configuration, failures as they failed.

        Raises:
            ReplayMissError: The problem, or a legal configuration of it, was not recorded.
        """
        return [self._replay(problem, config) for config in configs]

    def _replay(self, problem: Problem, config: KernelConfig) -> Measurement:
        index = self.problem_index(problem)
        try:
            flat = self.recording.space.flat(config)
        except UsageError as error:
            raise self._miss(problem, config.name) from error
        row = self.recording.measurement(problem, flat)
        if row is not None:
            self.cost_s += float(self.recording.costs_s[self.recording.cells[index, flat]])
            return row
        reasons = self.space.explain(config, problem)
        if reasons:
            return Measurement(problem, config.family, config, Status.CONSTRAINTS, "; ".join(reasons))
        raise self._miss(problem, config.name)

    def times_us(self, problem_index: ArrayLike, flat: ArrayLike) -> NDArray[np.float32]:
        """Median times of many cells at once: NaN where the candidate failed or is illegal.

        Args:
            problem_index: Positions in :attr:`problems`.
            flat: Flat indices of :attr:`space`, broadcast against ``problem_index``.

        Raises:
            ReplayMissError: A legal cell was not recorded.
        """
        return np.asarray(self.recording.times_us[self._found(problem_index, flat)])

    def ref_times_us(self, problem_index: ArrayLike, flat: ArrayLike) -> NDArray[np.float32]:
        """The reference beside each cell: of the same rounds where recorded, else the problem's own."""
        refs = self.recording.ref_times_us[self._found(problem_index, flat)]
        return np.where(np.isnan(refs), self._references[np.asarray(problem_index)], refs)

    def statuses(self, problem_index: ArrayLike, flat: ArrayLike) -> NDArray[np.uint8]:
        """Status codes of many cells at once; an illegal configuration without a row reads ``constraints``.

        Raises:
            ReplayMissError: A legal cell was not recorded.
        """
        codes = self.recording.statuses[self._found(problem_index, flat)]
        return np.where(codes == 0, np.uint8(STATUS_CODES[Status.CONSTRAINTS]), codes)

    def charge(self, problem_index: ArrayLike, flat: ArrayLike) -> None:
        """Adds to :attr:`cost_s` what these cells took when recorded; :meth:`run` does so itself."""
        self.cost_s += float(self.recording.costs_s[self._found(problem_index, flat)].sum())

    def _found(self, problem_index: ArrayLike, flat: ArrayLike) -> NDArray[np.int64]:
        """Cells asked for, after making sure that none is legal and unrecorded."""
        indices, flats = np.broadcast_arrays(np.asarray(problem_index), np.asarray(flat))
        cells = np.asarray(self.cells[indices, flats])
        if (cells < 0).any():
            for index, missing in zip(indices[cells < 0], flats[cells < 0], strict=True):
                problem, config = self.problems[index], self.space.from_flat(int(missing))
                if not self.space.explain(config, problem):
                    raise self._miss(problem, config.name)
        return cells

    def _miss(self, problem: Problem, name: str) -> ReplayMissError:
        return ReplayMissError(
            f"{problem.mnk} ({problem.precision}, {problem.layout}): {name} was not recorded; "
            "use on_missing='mask', or record the whole space"
        )


def _projected(recording: Recording, space: SearchSpace) -> Cells:
    """The recording's cells re-indexed by the flat indices of another space."""
    rows, theirs, positions = recording.cells.pairs()
    flats, kept = np.zeros(len(rows), np.int64), np.ones(len(rows), np.bool_)
    digits = np.unravel_index(theirs, recording.space.dims)
    for mine, recorded, digit in zip(space.axes, recording.space.axes, digits, strict=True):
        position = {value: index for index, value in enumerate(mine.values)}
        index = np.array([position.get(value, -1) for value in recorded.values])[digit]
        flats = flats * len(mine) + index
        kept &= index >= 0
    return Cells((len(recording.problems), space.total), rows[kept], flats[kept], positions[kept])
