"""Nearest neighbours: on a new shape, what was fast on the recorded shapes closest to it comes first. No learning."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cudal2.problem import Problem
from cudal2.runners.replay import ReplayRunner
from cudal2.search.analytic import rank
from cudal2.search.base import SearchSession, Strategy

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
