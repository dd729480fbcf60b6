"""How many launches a replay has: a short graph tells the time of one, and a replay lasts at least as long as asked."""

from __future__ import annotations

import math
from typing import Protocol

from cudal2.bench.inputs import BufferSets
from cudal2.bench.timing import ROUGH_OVERHEAD_US, SIZING_MARGIN, Contestant, Finish, Stopwatch, TimedGraph

#: Length, at most, of the short graph that tells the time that sizes the long one.
_SIZING_MS = 0.5
#: The same where only a guess says how many launches that are: who is slower than that takes longer.
_SHORTEST_MS = 0.35
#: Who takes so many times as long as guessed gets a graph of so much fewer launches.
_SLOW, _FEWER = 2.5, 4
#: A replay longer than this is one graph several times over, so that captures do not cost more than timing.
_GRAPH_MS = 2.0


class GraphMaker(Protocol):
    """The part of a :class:`Stopwatch` that sizes and captures."""

    @property
    def sets(self) -> BufferSets:
        """Buffers that the launches rotate over."""

    def probe_us(self, contestant: Contestant) -> float:
        """Time of one launch, with what surrounds it."""

    def graph(self, contestant: Contestant, launches: int, repeats: int = 1, warm: bool = True) -> TimedGraph:
        """Captures so many launches, to be run so many times per replay."""


def sized_graph(
    stopwatch: GraphMaker, contestant: Contestant, replay_ms: float, time_us: float | None = None
) -> TimedGraph:
    """A graph whose replay lasts at least ``replay_ms``, run once untimed; ``time_us`` is a launch's, where known."""
    time_us = time_us or sizing_us(stopwatch, contestant)
    return stopwatch.graph(contestant, *replay_launches(time_us, replay_ms, stopwatch.sets.count))


def sizing_us(stopwatch: GraphMaker, contestant: Contestant) -> float:
    """Microseconds per launch of a short graph."""
    sizing = sizing_graph(stopwatch, contestant, stopwatch.probe_us(contestant))
    try:
        return sizing.time_us()
    finally:
        sizing.close()


def sizing_graph(stopwatch: GraphMaker, contestant: Contestant, likely_us: float) -> TimedGraph:
    """A short graph, which tells a launch's time: by itself, a small kernel looks several times as slow."""
    return stopwatch.graph(contestant, launches_for(likely_us, _SIZING_MS), warm=False)


def replay_launches(time_us: float, replay_ms: float, sets: int) -> tuple[int, int]:
    """Launches to capture and how often to run them, for a replay of at least ``replay_ms`` over so many sets."""
    launches = launches_for(time_us, SIZING_MARGIN * replay_ms)
    return split_launches(launches, launches_for(time_us, _GRAPH_MS), sets)


def split_launches(launches: int, enough: int, sets: int) -> tuple[int, int]:
    """Launches to capture and how often to run them: at least ``launches`` in all, and as few more as can be.

    A graph that is run several times holds whole rotations: no set comes again sooner than in one long graph.

    Args:
        launches: Launches of a replay, at least.
        enough: Launches that make a graph long enough to hide its own submission.
        sets: Buffer sets of one rotation.
    """
    least = math.ceil(enough / sets) * sets
    if launches < 2 * least:
        return launches, 1
    # Graphs of up to twice the least length: 5.25 ms are two of 2.6, not three of 2.
    most = math.ceil(launches / least)
    repeats = range(most, max(1, most // 2), -1)
    splits = ((max(least, math.ceil(launches / count / sets) * sets), count) for count in repeats)
    return min(splits, key=lambda split: split[0] * split[1])


def launches_for(time_us: float, replay_ms: float) -> int:
    """Launches whose run takes at least ``replay_ms``."""
    return max(1, math.ceil(replay_ms * 1e3 / time_us))


class LateGraph:
    """A graph whose size a short one tells: that one is captured at once, the other when it is first begun.

    Args:
        stopwatch: Times on the buffers the contestant was made for.
        contestant: What is launched, one of ours.
        replay_ms: Device time of one replay, at least.
        likely_us: About what a launch takes.
    """

    def __init__(self, stopwatch: Stopwatch, contestant: Contestant, replay_ms: float, likely_us: float) -> None:
        """Captures the short graph, and one for who is slow: host work alone."""
        self._stopwatch = stopwatch
        self._contestant = contestant
        self._replay_ms = replay_ms
        self._likely_us = likely_us
        self._timed: TimedGraph | None = None
        self._finish: Finish | None = None
        launches = launches_for(likely_us, _SHORTEST_MS)
        counts = dict.fromkeys((launches, math.ceil(launches / _FEWER)))
        self._sizings = [stopwatch.graph(contestant, count, warm=False) for count in counts]

    def start(self, rough_us: float = 0.0) -> None:
        """Enqueues the short graph; ``rough_us`` is what one launch by itself took, if that is known."""
        slow = rough_us > _SLOW * self._likely_us + ROUGH_OVERHEAD_US
        self._finish = self._sizings[-1 if slow else 0].begin()

    @property
    def timed(self) -> TimedGraph:
        """The graph itself; waits for the short one."""
        if self._timed is None:
            if self._finish is None:
                self.start()
            assert self._finish is not None
            size = replay_launches(self._finish(), self._replay_ms, self._stopwatch.sets.count)
            self._timed = TimedGraph(self._stopwatch, self._contestant, *size)
        return self._timed

    def begin(self) -> Finish:
        """Enqueues one timed replay and does not wait, but for its size the first time."""
        return self.timed.begin()

    def close(self) -> None:
        """Gives all graphs back; no replay may be under way."""
        for graph in (*self._sizings, *([self._timed] if self._timed is not None else [])):
            graph.close()
