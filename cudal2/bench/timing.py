"""The only stopwatch: graphs of launches over rotating buffers, replayed interleaved, timed by device events.

Protocol v1, offline mode. Who competes is the caller's choice; right or wrong is ``correctness``'s.
"""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from cudal2 import floor
from cudal2.bench import native
from cudal2.bench.inputs import BufferSets
from cudal2.launch.driver import Graph
from cudal2.problem import Problem
from cudal2.settings import BenchSettings

#: How often over an idle device's L2 is read: the host must have submitted a graph before the last pass ends.
FLUSH_PASSES = 2
#: Launches of a graph that the host may take another pass to submit: some 30 us of an H200's host, a pass takes 50.
_LAUNCHES_PER_PASS = 1_000
#: Clocks move between sizing and timing; without it, one replay in six fell up to 2 % short.
SIZING_MARGIN = 1.05
#: What launching one kernel from Python between two events may add; graphs, which rank, are free of it.
ROUGH_OVERHEAD_US = 10.0


class Contestant(Protocol):
    """Anything that computes the problem on the buffer sets it was made for: our kernels and every baseline.

    Attributes:
        name: ``sm90_ws``, ``cublaslt_auto``, ...
        detail: What exactly was run, for the record.
    """

    @property
    def name(self) -> str:
        """Name in records."""

    @property
    def detail(self) -> str:
        """Free text for records."""

    def launch(self, set_index: int, stream: int) -> None:
        """Enqueues C = A B of one set on the stream (a handle); never synchronises or allocates."""


#: Waits for a replay that is under way and gives its microseconds per launch.
Finish = Callable[[], float]


class Timed(Protocol):
    """Something that can be run for its time per launch."""

    def begin(self) -> Finish:
        """Enqueues one replay and does not wait."""


class Stopwatch:
    """Times contestants on one buffer set rotation, on torch's current stream.

    Args:
        sets: Buffers the contestants launch on.
        flush_bytes: What is read through L2 before every timed replay, twice or more where the device was idle.

    The flush makes every replay start from the same cold L2, and its run time hides the host's graph submission: the
    first event is never recorded on an idle device. Reading leaves no dirty lines for the kernel to write back.
    """

    def __init__(self, sets: BufferSets, flush_bytes: int) -> None:
        """Uses the stream that is current now for everything."""
        self.sets = sets
        self._stream = torch.cuda.current_stream()
        if self._stream.cuda_stream == 0:
            raise ValueError("the legacy default stream cannot be captured: make another one current")
        self._flush = _flush_buffer(flush_bytes, self._stream.device)
        self._sink = torch.empty((), dtype=torch.float32, device=self._stream.device)

    @property
    def stream(self) -> int:
        """Handle of the stream everything runs on."""
        return int(self._stream.cuda_stream)

    def flush(self, passes: int = 1) -> None:
        """Enqueues passes through the L2 as fast as memory is read, which torch adds floats at, and not integers."""
        for _ in range(passes):
            torch.sum(self._flush, dim=0, out=self._sink)

    def begin(self, enqueue: Callable[[], None], launches: int = 0) -> Finish:
        """Puts what ``enqueue`` launches on the stream, from poisoned outputs and a cold L2, and does not wait.

        Args:
            enqueue: Launches; the device must not wait for the host in between.
            launches: Of the graph that it submits first.

        Returns:
            Waits, and gives the device milliseconds.
        """
        passes = FLUSH_PASSES + launches // _LAUNCHES_PER_PASS if self._stream.query() else 1
        self.sets.poison()
        self.flush(passes)
        start, end = _event(), _event()
        start.record(self._stream)
        enqueue()
        end.record(self._stream)

        def finish() -> float:
            end.synchronize()
            return float(start.elapsed_time(end))

        return finish

    def time_ms(self, enqueue: Callable[[], None], launches: int = 0) -> float:
        """:meth:`begin`, waited for."""
        return self.begin(enqueue, launches)()

    def probe_us(self, contestant: Contestant) -> float:
        """Time of one launch from Python, with what events and submission add to a short one."""
        return self.time_ms(lambda: contestant.launch(0, self.stream)) * 1e3

    def rough(self, contestant: Contestant) -> Rough:
        """The contestant, each launch of which is timed as well as that can be done from Python."""
        return Rough(contestant, self._stream)

    def graph(self, contestant: Contestant, launches: int, repeats: int = 1, warm: bool = True) -> TimedGraph:
        """Captures ``launches`` launches that rotate over the sets.

        Args:
            contestant: What is launched.
            launches: Launches in the graph; with repeats a multiple of the sets, so that the rotation goes on.
            repeats: How often a timed replay runs the graph.
            warm: Whether the graph runs once untimed.
        """
        timed = TimedGraph(self, contestant, launches, repeats)
        timed.capture()
        if warm:
            timed.run_once()
        return timed

    def enqueue(self, contestant: Contestant, launches: int) -> None:
        """Launches that rotate over the sets: by native code where the contestant and this machine have it.

        A library's must have been launched on this stream before, from Python.
        """
        count, library = self.sets.count, native.library()
        submitter = contestant.submitter(self.stream) if isinstance(contestant, native.NativeContestant) else None
        if submitter is not None and library is not None:
            library.enqueue(submitter, launches, count, self.stream)
            return
        for launch in range(launches):
            contestant.launch(launch % count, self.stream)


class Rough:
    """Launches a contestant on its way through something else, and times the last launch.

    Args:
        contestant: What is launched.
        stream: The stream it is launched on.
    """

    def __init__(self, contestant: Contestant, stream: torch.cuda.Stream) -> None:
        """Times nothing yet."""
        self.name, self.detail = contestant.name, contestant.detail
        self._contestant = contestant
        self._stream = stream
        self._start, self._end = _event(), _event()

    def launch(self, set_index: int, stream: int) -> None:
        """Enqueues one launch."""
        self._start.record(self._stream)
        self._contestant.launch(set_index, stream)
        self._end.record(self._stream)

    def time_us(self) -> float:
        """Microseconds of the last launch, waited for: of a short one mostly what surrounds it."""
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1e3


class TimedGraph:
    """One contestant's launches, captured before they first run; arguments as for :meth:`Stopwatch.graph`.

    Attributes:
        contestant: What is launched.
        launches: Launches of a timed replay.
    """

    def __init__(self, stopwatch: Stopwatch, contestant: Contestant, launches: int, repeats: int = 1) -> None:
        """Captures nothing yet."""
        self.contestant = contestant
        self.launches = launches * repeats
        self._captured = launches
        self._repeats = repeats
        self._stopwatch = stopwatch
        self._graph: Graph | None = None

    def capture(self) -> Graph:
        """The captured launches: host work alone, and none where it is done."""
        if self._graph is None:
            stopwatch, launches = self._stopwatch, self._captured
            self._graph = Graph(stopwatch.stream, lambda: stopwatch.enqueue(self.contestant, launches))
        return self._graph

    @property
    def sets_used(self) -> int:
        """Buffer sets that a replay writes."""
        return min(self.launches, self._stopwatch.sets.count)

    def run_once(self) -> None:
        """Enqueues the graph once, which writes every set that a timed replay writes."""
        self.capture().launch(self._stopwatch.stream)

    def run(self) -> None:
        """Enqueues one timed replay."""
        for _ in range(self._repeats):
            self.run_once()

    def begin(self) -> Finish:
        """Enqueues one timed replay and does not wait."""
        self.capture()
        finish, launches = self._stopwatch.begin(self.run, self._captured), self.launches
        return lambda: finish() * 1e3 / launches

    def time_us(self) -> float:
        """Microseconds per launch of one replay."""
        return self.begin()()

    def lengthen(self, replay_ms: float) -> None:
        """Runs the graph once; where several of it would be shorter than ``replay_ms``, there will be more launches.

        What was sized before the clocks were up falls short of its time later: of the first 1,536 rows of fresh
        processes 13 did, by up to a fifth. The graph runs more often then, or a longer one is captured and runs once,
        whichever is fewer launches.
        """
        once_ms = self._stopwatch.time_ms(self.run_once, self._captured)
        if self._repeats == 1 or self._repeats * once_ms >= replay_ms:
            return
        launches, sets = SIZING_MARGIN * replay_ms / once_ms * self._captured, self._stopwatch.sets.count
        oftener = math.ceil(launches / self._captured)
        longer = math.ceil(launches / self._repeats / sets) * sets
        if self._repeats * longer < oftener * self._captured:
            self.close()
            self._graph, self._captured = None, longer
            self.run_once()
        else:
            self._repeats = oftener
        self.launches = self._captured * self._repeats

    def close(self) -> None:
        """Gives the graph back; no replay may be under way."""
        if self._graph is not None:
            self._graph.destroy()


@functools.lru_cache(maxsize=1)
def _flush_buffer(size: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(max(1, size // 4), dtype=torch.float32, device=device)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def interleave(
    timed: Sequence[Timed],
    rounds: int,
    rng: random.Random,
    first: int | None = None,
    last: int | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[tuple[float, ...]]:
    """Times everyone once per round, in a fresh random order each round; drifting clocks then hit all alike.

    Everything is enqueued before anything is waited for, so that the device never stands still between two replays.

    Args:
        timed: Contestants.
        rounds: Rounds.
        rng: Source of the orders.
        first: Index that runs first in the first round, so that others can be captured while the device is busy.
        last: Index that runs last in the last round, so that its outputs can be checked afterwards.
        meanwhile: Called once all is enqueued: the host has nothing else to do while the device works.

    Returns:
        Microseconds per launch, one tuple per contestant in round order.
    """
    under_way: list[list[Finish]] = [[] for _ in timed]
    for round_index in range(rounds):
        order = list(range(len(timed)))
        rng.shuffle(order)
        if first is not None and round_index == 0:
            order.remove(first)
            order.insert(0, first)
        if last is not None and round_index == rounds - 1:
            order.remove(last)
            order.append(last)
        for index in order:
            under_way[index].append(timed[index].begin())
    meanwhile()
    return [tuple(finish() for finish in row) for row in under_way]


def soak_s(problem: Problem, settings: BenchSettings) -> float:
    """Seconds under load before anything is chosen by its time: none where the chip stays cool in a final, too."""
    return settings.search_soak_s if floor.heats(problem.m, problem.n, problem.k) else 0.0


def keep_busy(timed: Sequence[Timed], seconds: float, now: Callable[[], float] = time.monotonic) -> None:
    """Replays everyone in turn for so long and keeps no time: power and clocks settle under load.

    The last turn is still under way when it returns, so that the device does not stand still before what follows.

    Args:
        timed: Contestants.
        seconds: Wall time after which no turn begins; with 0 there is none.
        now: Wall clock, seconds.
    """
    until = now() + seconds
    under_way: list[Finish] = []
    while now() < until:
        begun = [one.begin() for one in timed]
        for finish in under_way:
            finish()
        under_way = begun


def too_fast(problem: Problem, time_us: float, fraction: float) -> str:
    """Why a time cannot be believed, in one line; empty if it can."""
    limit = floor.physical_us(problem.m, problem.n, problem.k)
    if time_us >= fraction * limit:
        return ""
    return f"{time_us:.3f} us is under {fraction:g} of the {limit:.3f} us the hardware needs at burst rates"
