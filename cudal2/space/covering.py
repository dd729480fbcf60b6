"""A few legal configurations that between them take every value of every axis: the corners to test a family at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudal2.problem import Problem
from cudal2.space.config import KernelConfig
from cudal2.space.space import SearchSpace

#: Axis name and value.
Value = tuple[str, Any]
#: Legal configurations among which the best is looked for first; the others matter for rare values only.
_SAMPLE = 10_000


def covering(
    space: SearchSpace, problems: Sequence[Problem], at_least: int = 1, seed: int = 0
) -> tuple[list[tuple[Problem, KernelConfig]], list[Value]]:
    """Greedy cover of the axes' values over some problems.

    Args:
        space: What is legal.
        problems: In order; one adds what those before it left open.
        at_least: Configurations for each problem that has so many, whatever they add.
        seed: Settles which of equally good configurations is taken.

    Returns:
        The choice, and the values that are legal on none of the problems.
    """
    rng = np.random.default_rng(seed)
    uncovered = [np.ones(len(axis), np.int64) for axis in space.axes]
    chosen: list[tuple[Problem, KernelConfig]] = []
    for problem in problems:
        legal = rng.permutation(space.legal_flat(problem))
        taken = _take(legal[:_SAMPLE], space, uncovered, at_least)
        taken += _take(legal, space, uncovered, 0)
        chosen += [(problem, space.from_flat(flat)) for flat in taken]
    never = [
        (axis.name, value)
        for axis, left in zip(space.axes, uncovered, strict=True)
        for value, is_open in zip(axis.values, left, strict=True)
        if is_open
    ]
    return chosen, never


def _take(flats: NDArray[Any], space: SearchSpace, uncovered: list[NDArray[Any]], at_least: int) -> list[int]:
    """The best of the configurations until none adds anything, but so many at least; marks what they cover."""
    # An axis that is covered adds nothing: few are left when all that is legal comes to be looked through.
    axes = [(left, space.stride(axis.name)) for axis, left in zip(space.axes, uncovered, strict=True) if left.any()]
    digits = [(left, flats // stride % len(left)) for left, stride in axes]
    taken: list[int] = []
    while (digits or at_least) and len(taken) < len(flats):
        gain = np.zeros(len(flats), np.int64)
        for left, digit in digits:
            gain += left[digit]
        gain[taken] = -1
        best = int(np.argmax(gain))
        if not gain[best] and len(taken) >= at_least:
            break
        for left, digit in digits:
            left[digit[best]] = 0
        taken.append(best)
    return [int(flats[at]) for at in taken]
