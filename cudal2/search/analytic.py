"""The order of the analytic model as a strategy, and as a prior over candidates."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudal2.problem import Problem
from cudal2.search.base import SearchSession
from cudal2.space.estimate import ABSENT, Floats, predict_us
from cudal2.space.space import SearchSpace

#: Logarithm of the time ratio that costs a configuration a factor e of prior weight: about how wrong the model is.
PRIOR_TEMPERATURE = 0.1
#: No configuration gets less weight than this beside the best: where the model errs grossly, a search still looks.
PRIOR_LOG_FLOOR = -6.0

#: Configurations estimated at once.
CHUNK = 2**16
#: Configurations handed to the runner at once.
BATCH = 16


def rank(space: SearchSpace, problem: Problem, candidates: NDArray[np.int64]) -> NDArray[np.int64]:
    """The candidates (flat indices), fastest estimate first; ties by index."""
    return candidates[np.argsort(_predicted_us(space, problem, candidates), kind="stable")]


def log_weights(space: SearchSpace, problem: Problem, candidates: NDArray[np.int64]) -> Floats:
    """Logarithm of each candidate's prior weight; the best estimate has 0."""
    log_us = np.log(_predicted_us(space, problem, candidates))
    return np.asarray(np.maximum((log_us.min() - log_us) / PRIOR_TEMPERATURE, PRIOR_LOG_FLOOR))


def _predicted_us(space: SearchSpace, problem: Problem, candidates: NDArray[np.int64]) -> Floats:
    """:func:`predict_us` of flat indices, part by part: all columns of millions at once would take gigabytes."""
    predicted = np.empty(len(candidates))
    for start in range(0, len(candidates), CHUNK):
        part = slice(start, start + CHUNK)
        predicted[part] = predict_us(columns_of(space, candidates[part]), problem, space.arch)
    return predicted


def columns_of(space: SearchSpace, flat: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Axis values of configurations given by flat index, one array per axis, :data:`ABSENT` ones included."""
    digits = np.unravel_index(flat, space.dims)
    present = {axis.name: np.asarray(axis.values)[digit] for axis, digit in zip(space.axes, digits, strict=True)}
    kind = space.family.config
    absent = {name: np.full(flat.shape, getattr(kind, name, value)) for name, value in ABSENT.items()}
    return {**absent, **present}


def analytic_search(session: SearchSession, rng: np.random.Generator) -> None:
    """Measures in the model's order, best estimate first; ``rng`` is not used."""
    session.measure_in_order(rank(session.space, session.problem, session.candidates), BATCH)
