"""Nearest neighbours: on a new shape, what was fast on the recorded shapes closest to it comes first. No learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cudal2.problem import Problem
from cudal2.runners.replay import ReplayRunner
from cudal2.search.analytic import rank
from cudal2.search.base import SearchSession, Strategy
from cudal2.space.config import KernelConfig
from cudal2.space.refit import refit
from cudal2.space.space import SearchSpace

#: Recorded shapes that have a say, and the distance (in doublings of a size) that halves the say of the closest.
NEIGHBOURS, SOFTENING = 4, 1.0
#: Configurations handed to the runner at once.
BATCH = 16


def nearest_strategy(runner: ReplayRunner, known: Sequence[Problem]) -> Strategy:
    """The strategy that ranks by the mean log speed-up on the nearest of ``known``; what none of them ran comes last.

    Args:
        runner: The recording; only its rows of ``known`` are read here.
        known: Shapes whose measurements may be used.
    """

    def strategy(session: SearchSession, rng: np.random.Generator) -> None:
        order = rank(session.space, session.problem, session.candidates)
        score = _mean_log_ratio(runner, _nearest(session.problem, known), session.problem, order)
        order = order[np.argsort(-score, kind="stable")]
        session.measure_in_order(order, BATCH)

    return strategy


def refitted(
    best: Mapping[Problem, Sequence[KernelConfig]], problem: Problem, space: SearchSpace, count: int
) -> list[KernelConfig]:
    """What a search of a shape without records may begin with: the best of the nearest shapes, refitted to it.

    Args:
        best: Configurations of the space's family by problem, best first.
        problem: The shape.
        space: What is searched.
        count: How many at most.
    """
    alike = [known for known in best if known.signature == problem.signature]
    found: dict[KernelConfig, None] = {}
    for rank_there in range(max(map(len, best.values()), default=0)):
        for known in _nearest(problem, alike):
            for config in best[known][rank_there : rank_there + 1]:
                moved = refit(config, known, problem, space)
                if moved is not None:
                    found[moved] = None
    return list(found)[:count]


def _nearest(problem: Problem, known: Sequence[Problem]) -> list[Problem]:
    return sorted(known, key=lambda other: (_distance(problem, other), other))[:NEIGHBOURS]


def _distance(one: Problem, other: Problem) -> float:
    """Euclidean, in doublings of each size."""
    sizes = np.array([(one.m, one.n, one.k), (other.m, other.n, other.k)], np.float64)
    return float(np.linalg.norm(np.diff(np.log2(sizes), axis=0)))


def _mean_log_ratio(
    runner: ReplayRunner, neighbours: Sequence[Problem], problem: Problem, flat: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Weighted by nearness, over the neighbours that ran each configuration; -inf where none did."""
    total, weight = np.zeros(len(flat)), np.zeros(len(flat))
    for other in neighbours:
        cells = runner.cells[runner.problem_index(other), flat]
        times, refs = runner.recording.times_us[cells], runner.recording.ref_times_us[cells]
        ran = np.isfinite(times) & np.isfinite(refs)
        share = 1.0 / (SOFTENING + _distance(problem, other))
        total[ran] += share * np.log(refs[ran].astype(np.float64) / times[ran])
        weight[ran] += share
    mean = np.full(len(flat), -np.inf)
    np.divide(total, weight, out=mean, where=weight > 0.0)
    return mean
