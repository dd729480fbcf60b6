"""Strategies at equal budget: how good is the best of the first B measurements, problem by problem."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cudal2.floor import CLASS_NAMES, floor_class
from cudal2.problem import Problem
from cudal2.runners.base import Runner
from cudal2.search.base import Budget, SearchResult, Strategy, search

BUDGETS = (1, 4, 16, 64)


@dataclass(frozen=True)
class BudgetScore:
    """One strategy at one budget over a set of problems.

    Attributes:
        strategy: Its name.
        budget: Unique measurements per problem.
        geomean_ratio: Geometric mean over problems and seeds of t_ref / t_best; a problem without a correct candidate
            counts as exp(-2), the floor of the reward.
        by_class: The same per class of the problem's time floor.
        problems: Problems averaged.
        seeds: Repeats averaged.
    """

    strategy: str
    budget: int
    geomean_ratio: float
    by_class: dict[str, float]
    problems: int
    seeds: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def compare(
    strategies: Mapping[str, Strategy],
    runner: Runner,
    problems: Sequence[Problem] | None = None,
    budgets: Sequence[int] = BUDGETS,
    seeds: Sequence[int] = (0,),
) -> list[BudgetScore]:
    """Runs every strategy on every problem, once per seed with the largest budget; smaller ones are its beginnings.

    Deterministic strategies cost the same repeats and score the same in each.
    """
    scores = []
    for name, strategy in strategies.items():
        results = [
            search(name, strategy, runner, problem, Budget(max(budgets)), seed)
            for problem in problems or runner.problems
            for seed in seeds
        ]
        scores += [score(results, budget) for budget in budgets]
    return scores


def score(results: Sequence[SearchResult], budget: int) -> BudgetScore:
    """Scores results of one strategy, one per problem and seed, by their first ``budget`` measurements."""
    groups: dict[str, list[float]] = {}
    for result in results:
        shape = result.problem
        groups.setdefault(floor_class(shape.m, shape.n, shape.k), []).append(result.best_log_ratio(budget))
    by_class = {name: _geomean(groups[name]) for name in CLASS_NAMES if name in groups}
    everything = _geomean([value for group in groups.values() for value in group])
    problems, seeds = {result.problem for result in results}, {result.seed for result in results}
    return BudgetScore(results[0].strategy, budget, everything, by_class, len(problems), len(seeds))


def _geomean(logs: Sequence[float]) -> float:
    return math.exp(sum(logs) / len(logs))
