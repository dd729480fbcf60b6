"""Greedy first-improvement climb over one-step neighbours, restarted at random when no neighbour is better."""

from __future__ import annotations

import numpy as np

from cudal2.search.base import SearchSession, log_ratio
from cudal2.space.config import KernelConfig


def hill_climb(session: SearchSession, rng: np.random.Generator) -> None:
    """Climbs from random legal starts until the budget is spent or every start was used."""
    for start in rng.permutation(session.candidates):
        if session.done:
            return
        _climb(session, session.space.from_flat(int(start)), rng)


def _climb(session: SearchSession, start: KernelConfig, rng: np.random.Generator) -> None:
    best = _value(session, start)
    current = start
    while best is not None:
        step = _first_better(session, current, best, rng)
        if step is None:
            return
        current, best = step


def _first_better(
    session: SearchSession, current: KernelConfig, best: float, rng: np.random.Generator
) -> tuple[KernelConfig, float] | None:
    neighbours = session.space.neighbours(current, session.candidates)
    for index in rng.permutation(len(neighbours)):
        value = _value(session, neighbours[index])
        if value is None:
            return None
        if value > best:
            return neighbours[index], value
    return None


def _value(session: SearchSession, config: KernelConfig) -> float | None:
    """The configuration's log ratio; ``None`` once the budget is spent."""
    rows = session.measure([config])
    return log_ratio(rows[0], session.reference_us) if rows else None
