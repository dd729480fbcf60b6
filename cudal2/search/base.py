"""What every search strategy, the trained policy included, is compared on: one budget, one session, one result.

A strategy sees a :class:`SearchSession` and nothing else: it cannot read the recording behind the runner.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cudal2.problem import Problem
from cudal2.records.measurement import Measurement
from cudal2.runners.base import Runner
from cudal2.space.config import KernelConfig

#: log(t_ref / t) that a failed candidate is worth; also the floor of the reward.
FAILURE_LOG_RATIO = -2.0


@dataclass
class Budget:
    """Attempted candidates left; a failure costs one, a revisit nothing.

    Attributes:
        limit: Most unique configurations to measure; ``None`` for no limit.
        spent: Unique configurations measured so far.
    """

    limit: int | None = None
    spent: int = 0

    @property
    def left(self) -> float:
        """Measurements that may still be made."""
        return math.inf if self.limit is None else self.limit - self.spent

    @property
    def exhausted(self) -> bool:
        """Whether nothing more may be measured."""
        return self.left <= 0

    def spend(self, count: int) -> None:
        """Charges ``count`` measurements."""
        self.spent += count


@dataclass(frozen=True)
class SearchResult:
    """One search on one problem.

    Attributes:
        problem: What was searched for.
        strategy: Name of the strategy.
        measurements: Every unique measurement, in the order made; its length is the budget spent.
        reference_us: cuBLASLt-AutoTuning on this problem.
        seed: Seed of the strategy's generator.
    """

    problem: Problem
    strategy: str
    measurements: tuple[Measurement, ...]
    reference_us: float
    seed: int = 0

    @property
    def best(self) -> Measurement | None:
        """Correct measurement furthest ahead of the reference, which clocks change with it; the earliest of equals."""
        correct = (row for row in self.measurements if row.ok)
        return max(correct, key=lambda row: log_ratio(row, self.reference_us), default=None)

    def best_log_ratio(self, budget: int) -> float:
        """log(t_ref / t_best) over the first ``budget`` measurements; the floor if none of them is correct."""
        values = [log_ratio(row, self.reference_us) for row in self.measurements[:budget]]
        return max(values, default=FAILURE_LOG_RATIO)

    @property
    def failures(self) -> dict[str, int]:
        """How many candidates failed, by ``status: reason``."""
        return dict(Counter(f"{row.status.value}: {row.reason}" for row in self.measurements if not row.ok))


def log_ratio(measurement: Measurement, reference_us: float) -> float:
    """log(t_ref / t), by the reference of the same interleaved rounds where there is one; failures are the floor."""
    if not measurement.ok:
        return FAILURE_LOG_RATIO
    return math.log(measurement.speedup or reference_us / measurement.median_us)


class SearchSession:
    """One problem being searched: what is legal, what was measured, what is left of the budget.

    Args:
        runner: Where measurements come from.
        problem: What to search for.
        budget: Shared account; unlimited if ``None``.
    """

    def __init__(self, runner: Runner, problem: Problem, budget: Budget | None = None) -> None:
        self.space = runner.space
        self.problem = problem
        self.budget = budget or Budget()
        self._runner = runner
        self._seen: dict[KernelConfig, Measurement] = {}

    @cached_property
    def candidates(self) -> NDArray[np.int64]:
        """Flat indices of the legal configurations the runner can answer for, ascending."""
        return self._runner.allowed(self.problem)

    @property
    def done(self) -> bool:
        """Whether the budget is spent or everything legal was measured."""
        return self.budget.exhausted or len(self._seen) >= len(self.candidates)

    @property
    def reference_us(self) -> float:
        """cuBLASLt-AutoTuning on this problem."""
        return self._runner.reference_us(self.problem)

    def measure(self, configs: Sequence[KernelConfig]) -> list[Measurement]:
        """Measures what is new, in one batch, as far as the budget goes; answers the rest from memory.

        Returns:
            One measurement per configuration in order, up to the first that the budget no longer covers.
        """
        fresh = [config for config in dict.fromkeys(configs) if config not in self._seen]
        fresh = fresh[: int(min(self.budget.left, len(fresh)))]
        if fresh:
            self.budget.spend(len(fresh))
            for config, row in zip(fresh, self._runner.run(self.problem, fresh), strict=True):
                self._seen[config] = row
        answered = []
        for config in configs:
            if config not in self._seen:
                break
            answered.append(self._seen[config])
        return answered

    def measure_flat(self, indices: NDArray[np.int64]) -> list[Measurement]:
        """:meth:`measure` for flat indices of the space."""
        return self.measure([self.space.from_flat(int(index)) for index in indices])

    def measure_in_order(self, order: NDArray[np.int64], batch: int) -> None:
        """Measures flat indices, ``batch`` at once so that the runner can build them in parallel, until done."""
        for start in range(0, len(order), batch):
            if self.done:
                return
            self.measure_flat(order[start : start + batch])

    def result(self, strategy: str, seed: int) -> SearchResult:
        """What was found so far."""
        return SearchResult(self.problem, strategy, tuple(self._seen.values()), self.reference_us, seed)


#: A strategy measures through the session until it is done; it draws from the given generator only.
Strategy = Callable[[SearchSession, np.random.Generator], None]


def search(
    name: str,
    strategy: Strategy,
    runner: Runner,
    problem: Problem,
    budget: Budget | None = None,
    seed: int = 0,
) -> SearchResult:
    """Runs one strategy on one problem and returns what it measured."""
    session = SearchSession(runner, problem, budget)
    strategy(session, np.random.default_rng(seed))
    return session.result(name, seed)
