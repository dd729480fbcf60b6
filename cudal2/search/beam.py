"""Beam search: steps of the best few so far, in batches, from the model's favourites and what earlier records liked.

A step moves one axis by one value and, where that alone is not legal, takes the deepest ring of stages that is: wider
tiles need fewer stages, narrower ones leave room for more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from cudal2.problem import Problem
from cudal2.search.analytic import rank
from cudal2.search.base import SearchSession, Strategy, log_ratio
from cudal2.space.config import KernelConfig
from cudal2.space.masks import is_in

#: Configurations whose neighbours are measured next, configurations handed to the runner at once, model's favourites.
WIDTH, BATCH, FAVOURITES = 4, 12, 8


def beam_search(session: SearchSession, rng: np.random.Generator) -> None:
    """From the analytic model's favourites."""
    _search(session, rng, ())


def beam_from(starts: Mapping[Problem, Sequence[KernelConfig]]) -> Strategy:
    """The strategy that begins with these configurations of each problem, where they are legal, then as without."""

    def strategy(session: SearchSession, rng: np.random.Generator) -> None:
        _search(session, rng, starts.get(session.problem, ()))

    return strategy


def _search(session: SearchSession, rng: np.random.Generator, starts: Sequence[KernelConfig]) -> None:
    order = rank(session.space, session.problem, session.candidates)
    favourites = [session.space.from_flat(int(flat)) for flat in order[:FAVOURITES]]
    values: dict[KernelConfig, float] = {}
    batch = list(dict.fromkeys([*(one for one in starts if _legal(session, one)), *favourites]))
    while batch:
        rows = session.measure(batch)
        values.update(zip(batch, (log_ratio(row, session.reference_us) for row in rows), strict=False))
        if session.done:
            return
        batch = _next_batch(session, values, rng)
    session.measure_in_order(order, BATCH)


def _next_batch(
    session: SearchSession, values: Mapping[KernelConfig, float], rng: np.random.Generator
) -> list[KernelConfig]:
    """Untried steps of the best that have any, a few of each; empty where nobody has one left."""
    best = sorted(values, key=lambda config: -values[config])
    batch: dict[KernelConfig, None] = {}
    beam = 0
    for config in best:
        steps = [step for step in _steps(session, config) if step not in values and step not in batch]
        chosen = rng.permutation(len(steps))[: BATCH // WIDTH]
        batch.update(dict.fromkeys(steps[at] for at in chosen))
        beam += bool(steps)
        if beam == WIDTH:
            break
    return list(batch)


def _steps(session: SearchSession, config: KernelConfig) -> Iterator[KernelConfig]:
    stages = session.space.axis("stages")
    for axis in session.space.axes:
        for value in axis.neighbours(getattr(config, axis.name)):
            moved = replace(config, **{axis.name: value})
            deepest_first = (replace(moved, stages=depth) for depth in reversed(stages.values))
            tries = [moved, *(() if axis is stages else deepest_first)]
            yield from [one for one in tries if _legal(session, one)][:1]


def _legal(session: SearchSession, config: KernelConfig) -> bool:
    space = session.space
    return space.holds(config) and bool(is_in(np.array([space.flat(config)]), session.candidates)[0])
