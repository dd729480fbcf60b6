"""cuBLASLt-AutoTuning: the fastest of all algorithms the library offers, found the way everything else here is timed.

Every answer is screened by short graphs over the cold rotating buffers; the best few right ones of each layout are
timed again, interleaved; the medians decide.
"""

from __future__ import annotations

import logging
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cudal2.bench.baselines import Baseline, BothLayouts, LibraryCall
from cudal2.bench.timing import Stopwatch, interleave, launches_for

logger = logging.getLogger(__name__)

#: A screening graph runs this long: enough to rank, short enough for two hundred algorithms.
_SCREEN_MS = 0.25
_SCREEN_REPLAYS = 3
_KEPT_PER_LAYOUT = 3
#: An algorithm this much slower than the best so far in its first launches is not screened further.
_HOPELESS = 1.5
#: What launching a few kernels from Python between two events may add per launch; graphs, which rank, are free of it.
_ROUGH_OVERHEAD_US = 10.0

Verify = Callable[[Baseline], str]


@dataclass(frozen=True)
class Tuned:
    """The best algorithm of one layout.

    Attributes:
        call: Named ``cublaslt_auto_tn`` or ``_nn``.
        median_us: Its time in the last comparison, to choose between layouts.
    """

    call: LibraryCall
    median_us: float


def screen(
    calls: Sequence[LibraryCall],
    time_call: Callable[[LibraryCall, float], float | None],
    is_right: Callable[[LibraryCall], bool],
    keep: int = _KEPT_PER_LAYOUT,
) -> list[LibraryCall]:
    """The ``keep`` fastest right ones of ``calls``, best first.

    Whoever takes the lead is checked at once: a wrong algorithm must not make the right ones look hopeless.

    Args:
        calls: What to try, in the library's order.
        time_call: Gives microseconds, or ``None`` for a call that failed or is beyond the limit it is given.
        is_right: Whether a call's result is right; asked at most once per call.
        keep: How many to return.
    """
    timed: list[tuple[float, int]] = []
    verdicts: dict[int, bool] = {}
    best_us = math.inf
    for rank, call in enumerate(calls):
        time_us = time_call(call, _HOPELESS * best_us)
        if time_us is None:
            continue
        if time_us < best_us:
            verdicts[rank] = is_right(call)
            if not verdicts[rank]:
                continue
            best_us = time_us
        timed.append((time_us, rank))
    kept: list[LibraryCall] = []
    for _, rank in sorted(timed):
        if len(kept) < keep and (verdicts[rank] if rank in verdicts else is_right(calls[rank])):
            kept.append(calls[rank])
    return kept


class AutoTuner:
    """Chooses on one rotation of buffers.

    Args:
        stopwatch: Times on the same buffers the contestants will use.
        buffers: Those buffers in both layouts.
        errors: Exceptions that mean "this algorithm does not run".
        verify: Says in one line why a call's result is wrong; empty if it is right.
        replay_ms: Length of a graph in the last comparison.
        rounds: Rounds of the last comparison.
        seed: Seed of its orders.
    """

    def __init__(
        self,
        stopwatch: Stopwatch,
        buffers: BothLayouts,
        errors: tuple[type[Exception], ...],
        verify: Verify,
        replay_ms: float,
        rounds: int,
        seed: int = 0,
    ) -> None:
        self._stopwatch = stopwatch
        self._buffers = buffers
        self._errors = errors
        self._verify = verify
        self._replay_ms = replay_ms
        self._rounds = rounds
        self._rng = random.Random(seed)
        self._screened: dict[str, float] = {}

    def choose(self, calls: Sequence[LibraryCall]) -> dict[str, Tuned]:
        """The winner of each layout among ``calls``, by layout; a layout in which nothing is right is left out."""
        finalists: list[LibraryCall] = []
        for layout in dict.fromkeys(call.layout for call in calls):
            finalists += screen([call for call in calls if call.layout == layout], self._screen_us, self._is_right)
        medians = self._compare(finalists)
        chosen: dict[str, Tuned] = {}
        for call, median_us in sorted(zip(finalists, medians, strict=True), key=lambda pair: pair[1]):
            tuned = Tuned(call.renamed(f"cublaslt_auto_{call.layout}", f"of={len(calls)}"), median_us)
            chosen.setdefault(call.layout, tuned)
        return chosen

    def _is_right(self, call: LibraryCall) -> bool:
        try:
            reason = self._verify(call)
        except self._errors as error:
            reason = str(error)
        if reason:
            logger.warning("%s is wrong and left out: %s", call.detail, reason)
        return not reason

    def _screen_us(self, call: LibraryCall, limit_us: float) -> float | None:
        contestant = call.on(self._buffers)
        try:
            # The first launch loads the library's kernel; only the next ones tell its time.
            contestant.launch(0, self._stopwatch.stream)
            rough_limit_us = limit_us + _ROUGH_OVERHEAD_US
            rough_us = self._stopwatch.estimate_us(contestant, rough_limit_us)
            if rough_us > rough_limit_us:
                return None
            graph = self._stopwatch.graph(contestant, launches_for(rough_us, _SCREEN_MS))
            try:
                time_us = min(graph.time_us() for _ in range(_SCREEN_REPLAYS))
            finally:
                graph.close()
        except self._errors as error:
            logger.info("%s does not run: %s", call.detail, error)
            return None
        self._screened[call.detail] = time_us
        return time_us

    def _compare(self, calls: Sequence[LibraryCall]) -> list[float]:
        graphs = []
        try:
            for call in calls:
                launches = launches_for(self._screened[call.detail], self._replay_ms)
                graphs.append(self._stopwatch.graph(call.on(self._buffers), launches))
            return [statistics.median(times) for times in interleave(graphs, self._rounds, self._rng)]
        finally:
            for graph in graphs:
                graph.close()
