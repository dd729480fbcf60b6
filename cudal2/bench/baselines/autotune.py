"""cuBLASLt-AutoTuning: the fastest of all algorithms the library offers, found the way everything else here is timed.

Every answer of its heuristic is screened by short graphs over the cold rotating buffers, then further configurations
near the best so far; the best few right ones of each layout are timed again, interleaved; medians decide, of rounds
brought to one level.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from cudal2.bench.baselines.baseline import Baseline, BothLayouts, LibraryCall
from cudal2.bench.rounds import level_medians
from cudal2.bench.sizing import launches_for
from cudal2.bench.timing import ROUGH_OVERHEAD_US, Stopwatch, interleave, keep_busy
from cudal2.errors import WorkerError
from cudal2.problem import Layout

logger = logging.getLogger(__name__)

#: A screening graph runs this long: enough to rank, short enough for two hundred algorithms.
_SCREEN_MS = 0.25
_SCREEN_REPLAYS = 3
_KEPT_PER_LAYOUT = 3
#: Where the last comparison is under load and the screening before it is not, which ranks otherwise.
_KEPT_BEFORE_LOAD = 6
#: An algorithm this much slower than the best so far in its first launch or its first graph is not screened further.
_HOPELESS = 1.25
#: Further configurations tried before the search looks again at who leads.
_STEP = 12
_LEADERS = 3

Verify = Callable[[Baseline], str]
Call = TypeVar("Call", bound=Baseline)


class Further(Protocol):
    """More calls of one layout than the library offers by itself."""

    @property
    def checked(self) -> int:
        """Configurations looked at so far, the illegal ones included."""

    def near(self, leaders: Sequence[LibraryCall]) -> Iterator[LibraryCall]:
        """Calls not given before, nearest to the leaders first."""


@dataclass(frozen=True)
class Exploration:
    """How far tuning goes beyond what a library offers.

    Attributes:
        calls: Most further calls per layout.
        seconds: Wall time after which no further one is begun, per layout.
        clock: Source of monotonic seconds.
    """

    calls: int = 0
    seconds: float = math.inf
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True)
class Tuned:
    """The best algorithm of one layout.

    Attributes:
        call: Named ``cublaslt_auto_tn`` or ``_nn``.
        median_us: Its time in the last comparison, to choose between layouts.
    """

    call: LibraryCall
    median_us: float


class Screening(Generic[Call]):
    """Calls timed one after the other, against the best so far.

    Whoever takes the lead is checked at once: a wrong algorithm must not make the right ones look hopeless.

    Args:
        time_call: Gives microseconds, or ``None`` for a call that failed or is beyond the limit it is given; may call
            what it is given besides while the device is busy.
        is_right: Whether a call's result is right; asked at most once per call.
        load: Launches a call for the first time, which takes the host longer than the device.
    """

    def __init__(
        self,
        time_call: Callable[[Call, float, Callable[[], None]], float | None],
        is_right: Callable[[Call], bool],
        load: Callable[[Call], None] = lambda call: None,
    ) -> None:
        self._time_call = time_call
        self._is_right = is_right
        self._load = load
        self._calls: list[Call] = []
        self._timed: list[tuple[float, int]] = []
        self._verdicts: dict[int, bool] = {}
        self._best_us = math.inf

    def __len__(self) -> int:
        """Calls tried."""
        return len(self._calls)

    def extend(self, calls: Iterable[Call]) -> None:
        """Tries more calls."""
        following = iter(calls)
        call = next(following, None)
        while call is not None:
            upcoming: list[Call | None] = []

            def meanwhile() -> None:
                one = next(following, None)
                upcoming.append(one)  # noqa: B023 - called before the next turn
                if one is not None:
                    self._load(one)

            self._try(call, meanwhile)
            call = upcoming[0] if upcoming else next(following, None)

    def _try(self, call: Call, meanwhile: Callable[[], None]) -> None:
        number = len(self._calls)
        self._calls.append(call)
        time_us = self._time_call(call, _HOPELESS * self._best_us, meanwhile)
        if time_us is None or (time_us < self._best_us and not self._right(number)):
            return
        self._best_us = min(self._best_us, time_us)
        self._timed.append((time_us, number))

    def best(self, count: int) -> list[Call]:
        """The ``count`` fastest right ones so far, best first."""
        right = (number for _, number in sorted(self._timed) if self._right(number))
        return [self._calls[number] for number in itertools.islice(right, count)]

    def _right(self, number: int) -> bool:
        if number not in self._verdicts:
            self._verdicts[number] = self._is_right(self._calls[number])
        return self._verdicts[number]


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
        exploration: How far to go beyond what is offered.
        fault: The error that made the CUDA context useless, if any.
        soak_s: Seconds under load before the last comparison.
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
        exploration: Exploration | None = None,
        fault: Callable[[], str | None] = lambda: None,
        soak_s: float = 0.0,
    ) -> None:
        self._stopwatch = stopwatch
        self._buffers = buffers
        self._errors = errors
        self._verify = verify
        self._replay_ms = replay_ms
        self._rounds = rounds
        self._rng = random.Random(seed)
        self._exploration = exploration or Exploration()
        self._fault = fault
        self._soak_s = soak_s
        self._screened: dict[str, float] = {}
        #: What was launched ahead, and why it could not be: an error itself would keep frames, and they the buffers.
        self._loaded: tuple[Baseline, str] | None = None

    def choose(
        self, calls: Sequence[LibraryCall], further: Mapping[Layout, Further] | None = None
    ) -> dict[Layout, Tuned]:
        """The winner of each layout, by layout; a layout in which nothing is right is left out.

        Args:
            calls: What the library offers.
            further: By layout: what it can be made to do besides.
        """
        finalists: list[LibraryCall] = []
        counts: dict[Layout, str] = {}
        for layout in dict.fromkeys(call.layout for call in calls):
            screening: Screening[LibraryCall] = Screening(self._screen_us, self._is_right, self._load)
            screening.extend(call for call in calls if call.layout == layout)
            first = screening.best(1)
            counts[layout] = self._explore(screening, (further or {}).get(layout))
            best = screening.best(_KEPT_BEFORE_LOAD if self._soak_s else _KEPT_PER_LAYOUT)
            # The best answer of the heuristic always stays: what is enumerated must beat it interleaved.
            finalists += [*best, *(call for call in first if call not in best)]
        medians = self._compare(finalists)
        chosen: dict[Layout, Tuned] = {}
        for call, median_us in sorted(zip(finalists, medians, strict=True), key=lambda pair: pair[1]):
            tuned = Tuned(call.renamed(f"cublaslt_auto_{call.layout}", counts[call.layout]), median_us)
            chosen.setdefault(call.layout, tuned)
        return chosen

    def screened(self, calls: Sequence[Call], count: int) -> list[Call]:
        """The ``count`` fastest right ones, best first; all are launched, and so compiled, before any is timed."""
        screening: Screening[Call] = Screening(self._screen_us, self._is_right, self._load)
        screening.extend([call for call in calls if self._runs(call)])
        return screening.best(count)

    def _explore(self, screening: Screening[LibraryCall], further: Further | None) -> str:
        """Tries further calls around the leaders, looking again at who leads after every few; says how many."""
        if further is None:
            return f"of={len(screening)}"
        offered, limits = len(screening), self._exploration
        most, started = offered + limits.calls, limits.clock()
        in_time = lambda call: limits.clock() - started < limits.seconds  # noqa: E731
        while len(screening) < most:
            step = min(len(screening) + _STEP, most)
            near = itertools.islice(further.near(screening.best(_LEADERS)), step - len(screening))
            screening.extend(itertools.takewhile(in_time, near))
            if len(screening) < step:
                break  # out of time, or of configurations
        return f"of={len(screening)} enumerated={len(screening) - offered} checked={further.checked}"

    def _is_right(self, call: Baseline) -> bool:
        try:
            with self._trial(call):
                reason = self._verify(call)
        except self._errors as error:
            reason = str(error)
        if reason:
            logger.warning("%s is wrong and left out: %s", call.detail, reason)
        return not reason

    def _runs(self, call: Baseline) -> bool:
        try:
            with self._trial(call):
                call.on(self._buffers).launch(0, self._stopwatch.stream)
        except self._errors as error:
            logger.info("%s does not run: %s", call.detail, error)
            return False
        return True

    def _load(self, call: Baseline) -> None:
        """The first launch, which loads the library's kernel; a refusal counts when it is the call's turn."""
        try:
            with self._trial(call):
                call.on(self._buffers).launch(0, self._stopwatch.stream)
        except self._errors as error:
            self._loaded = call, str(error) or type(error).__name__
        else:
            self._loaded = call, ""

    def _screen_us(self, call: Baseline, limit_us: float, meanwhile: Callable[[], None]) -> float | None:
        try:
            with self._trial(call):
                time_us = self._short_us(call, limit_us, meanwhile)
        except self._errors as error:
            logger.info("%s does not run: %s", call.detail, error)
            return None
        if time_us is not None:
            self._screened[call.detail] = time_us
        return time_us

    def _short_us(self, call: Baseline, limit_us: float, meanwhile: Callable[[], None]) -> float | None:
        """Best of a few short graphs; of one if it is beyond the limit, ``None`` if the first launch is or fails."""
        contestant = call.on(self._buffers)
        loaded, self._loaded = self._loaded, None
        if loaded is None or loaded[0] is not call:
            contestant.launch(0, self._stopwatch.stream)  # only the next one tells its time
        elif loaded[1]:
            logger.info("%s does not run: %s", call.detail, loaded[1])
            return None
        # Who keeps up takes about as long as the best; only the first has nothing to go by.
        likely_us = limit_us / _HOPELESS
        if limit_us > ROUGH_OVERHEAD_US:  # below that one launch between two events tells little
            probe_us = self._stopwatch.probe_us(contestant)
            if probe_us > limit_us + ROUGH_OVERHEAD_US:
                return None
            likely_us = likely_us if math.isfinite(limit_us) else probe_us
        graph = self._stopwatch.graph(contestant, launches_for(likely_us, _SCREEN_MS), warm=False)
        try:
            first_us = graph.time_us()
            if first_us > limit_us:
                return first_us
            again = [graph.begin() for _ in range(_SCREEN_REPLAYS - 1)]
            meanwhile()
            return min(first_us, *(finish() for finish in again))
        finally:
            graph.close()

    @contextmanager
    def _trial(self, call: Baseline) -> Iterator[None]:
        """Around a call that may do anything.

        Raises:
            WorkerError: It took the CUDA context with it; nothing can be tuned any more.
        """
        trouble: tuple[type[Exception], ...] = (*self._errors, RuntimeError)
        try:
            yield
        except trouble as error:
            fault = self._fault()
            if fault is None:
                raise
            advice = "enumerated_results: 0 in the file of --bench leaves what is enumerated out"
            names = [call.detail, *([self._loaded[0].detail] if self._loaded is not None else [])]
            raise WorkerError(f"{' or '.join(names)} broke the CUDA context: {fault} ({advice})") from error

    def _compare(self, calls: Sequence[LibraryCall]) -> list[float]:
        graphs = []
        try:
            for call in calls:
                launches = launches_for(self._screened[call.detail], self._replay_ms)
                graphs.append(self._stopwatch.graph(call.on(self._buffers), launches))
            keep_busy(graphs, self._soak_s)
            return level_medians(interleave(graphs, self._rounds, self._rng))
        finally:
            for graph in graphs:
                graph.close()
