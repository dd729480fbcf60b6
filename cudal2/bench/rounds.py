"""Shuffled, interleaved rounds: every contestant once per round, in a new order each time, clocks read after each.

Order of measurement is worth more than most optimisations: timed one after the other, whoever comes second runs on the
chip the first one heated. Pure control flow over callables, so that it is tested without a GPU.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from cudal2.bench.timing import Finish

Clocks = TypeVar("Clocks")
#: Fewest rounds a figure may rest on, however little time there is.
MIN_ROUNDS = 3


@dataclass(frozen=True)
class RoundLimits:
    """How long to go on.

    Attributes:
        rounds: Rounds that count.
        parts: Replays of each contestant in a round that counts, in new orders each; their mean is the round's time.
        warmup_s: Wall seconds of rounds that do not count, before the others; 0 still runs one.
        benchmark_s: Wall seconds after which no round begins once ``MIN_ROUNDS`` are done; ``None`` for no limit.
        seed: Seed of the orders.
    """

    rounds: int
    warmup_s: float = 0.0
    benchmark_s: float | None = None
    seed: int = 0
    parts: int = 1


def shuffled_order(names: Sequence[str], seed: int, index: int, warmup: bool = False) -> list[str]:
    """Order number ``index``: the same seed gives the same orders, whatever the caller drew before."""
    rng = np.random.default_rng((seed, index, int(warmup)))
    return [names[position] for position in rng.permutation(len(names))]


def level_medians(times: Sequence[Sequence[float]]) -> list[float]:
    """Median time of each contestant, with every round brought to the level of the median round.

    Clocks that move between rounds move all contestants of a round alike. Medians of the times as they are may be of
    different rounds, and then say more of the clocks than of who is faster.

    Args:
        times: Microseconds by contestant, then by round; all took part in all.

    Returns:
        Microseconds, in the order of the contestants.
    """
    if not times:
        return []
    logs = np.log(np.asarray(times, np.float64))
    levels = logs.mean(axis=0)
    return [float(value) for value in np.exp(np.median(logs - levels, axis=1) + np.median(levels))]


def _in_order(names: Iterable[str], contestants: Mapping[str, Callable[[], Finish]]) -> Iterator[tuple[str, float]]:
    """Each one's time, the next replay under way by then."""
    waiting: tuple[str, Finish] | None = None
    for name in names:
        begun = name, contestants[name]()
        if waiting is not None:
            yield waiting[0], waiting[1]()
        waiting = begun
    if waiting is not None:
        yield waiting[0], waiting[1]()


def run_rounds(
    contestants: Mapping[str, Callable[[], Finish]],
    limits: RoundLimits,
    read_clocks: Callable[[], Clocks],
    now: Callable[[], float] = time.monotonic,
    warmup: Mapping[str, Callable[[], object]] | None = None,
) -> tuple[dict[str, list[float]], list[Clocks]]:
    """Runs each contestant's timed replay in every round, once or in as many parts as the limits say.

    Within a round each replay is begun before the one before it is waited for: the device does not stand still.

    Args:
        contestants: Name to a call that begins a replay and returns one that waits for its microseconds per launch.
        limits: How long.
        read_clocks: Called after every round that counts.
        now: Wall clock, seconds.
        warmup: What runs in the rounds that do not count, by name; the replays themselves, waited for, by default.

    Returns:
        Times by name in round order, and the clocks of each round.
    """
    names = sorted(contestants)
    start, index = now(), 0
    while index == 0 or now() - start < limits.warmup_s:
        for name in shuffled_order(names, limits.seed, index, warmup=True):
            if warmup is not None:
                warmup[name]()
            else:
                contestants[name]()()
        index += 1
    times: dict[str, list[float]] = {name: [] for name in names}
    clocks: list[Clocks] = []
    start = now()
    for index in range(limits.rounds):
        if limits.benchmark_s is not None and index >= MIN_ROUNDS and now() - start >= limits.benchmark_s:
            break
        spent = dict.fromkeys(names, 0.0)
        parts = range(index * limits.parts, (index + 1) * limits.parts)
        orders = (shuffled_order(names, limits.seed, part) for part in parts)
        for name, time_us in _in_order(itertools.chain.from_iterable(orders), contestants):
            spent[name] += time_us
        for name in names:
            times[name].append(spent[name] / limits.parts)
        clocks.append(read_clocks())
    return times, clocks
