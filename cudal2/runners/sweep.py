"""Measures every legal configuration of a space in an order that no drift can bias, and picks up where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, overload

import numpy as np
from numpy.typing import NDArray

from cudal2.problem import Problem
from cudal2.records.measurement import Measurement, Status
from cudal2.space.config import KernelConfig
from cudal2.space.space import SearchSpace

Done = set[tuple[Problem, KernelConfig]]

#: Configurations handed to the runner at once: enough for its parallel build, little to lose on a stop.
BATCH = 64


def already_done(measurements: Iterable[Measurement], pdl: bool) -> Done:
    """What earlier sessions measured, failures included: a failed candidate is an answer too.

    What did not compile without a compiler's word about it is none: a machine with another compiler may build it.
    """
    return {
        (row.problem, row.config)
        for row in measurements
        if row.config is not None and row.pdl == pdl and (row.status is not Status.COMPILE or row.detail)
    }


class Configurations(Sequence[KernelConfig]):
    """Configurations that are made when they are asked for: a space may hold millions.

    Args:
        space: What they are of.
        flats: Their flat indices, in order.
    """

    def __init__(self, space: SearchSpace, flats: NDArray[np.int64]) -> None:
        self._space, self._flats = space, flats

    def __len__(self) -> int:
        return len(self._flats)

    @overload
    def __getitem__(self, at: int) -> KernelConfig: ...

    @overload
    def __getitem__(self, at: slice) -> Configurations: ...

    def __getitem__(self, at: int | slice) -> KernelConfig | Configurations:
        if isinstance(at, slice):
            return Configurations(self._space, self._flats[at])
        return self._space.from_flat(int(self._flats[at]))


def pending(space: SearchSpace, problem: Problem, done: Done, seed: int = 0) -> Configurations:
    """Legal configurations not measured yet, shuffled; the order of the rest does not depend on ``done``."""
    order = np.random.default_rng((seed, problem.m, problem.n, problem.k)).permutation(space.legal_flat(problem))
    mine = (config for known, config in done if known == problem and space.holds(config))
    return Configurations(space, order[~np.isin(order, [space.flat(config) for config in mine])])


class Measures(Protocol):
    """The part of a runner that a sweep needs."""

    def run(self, problem: Problem, configs: Sequence[KernelConfig]) -> list[Measurement]:
        """One measurement per configuration, in the order asked."""


def sweep(
    runner: Measures,
    work: Sequence[tuple[Problem, Sequence[KernelConfig]]],
    seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Measures batch after batch.

    Args:
        runner: Measures, and keeps the records.
        work: Configurations by problem, in order.
        seconds: Wall time after which no batch begins; ``None`` for no limit.
        clock: Source of monotonic seconds.

    Returns:
        Whether everything was measured.
    """
    started = clock()
    for problem, configs in work:
        for first in range(0, len(configs), BATCH):
            if seconds is not None and clock() - started >= seconds:
                return False
            runner.run(problem, list(configs[first : first + BATCH]))
    return True
