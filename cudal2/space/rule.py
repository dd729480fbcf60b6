"""``Rule``: one condition a legal configuration meets, written once for one configuration and for many at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from cudal2.arch import Arch
from cudal2.problem import Problem

#: A configuration, or one array per axis.
Choice = Any
INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class Rule:
    """One condition a legal configuration meets.

    Attributes:
        name: Stable name, as the commands and records show it.
        axes: The fields the predicate reads.
        allows: Whether it is met; elementwise on arrays.
        reason: One sentence with the numbers and the limit, for a configuration that does not meet it.
        by_size: Whether the answer depends on m, n or k, beyond the accumulator and the layout.
    """

    name: str
    axes: tuple[str, ...]
    allows: Callable[[Choice, Problem, Arch], Any]
    reason: Callable[[Any, Problem, Arch], str]
    by_size: bool = False


def ceil_div(a: Any, b: Any) -> Any:
    """Smallest integer not below a / b; elementwise on arrays."""
    return -(-a // b)


def share_k_tiles(choice: Choice, problem: Problem) -> Any:
    """K tiles of the largest share, where CTAs split K."""
    return ceil_div(ceil_div(problem.k, choice.tile_k), choice.split_k)


def lifted(derive: Callable[[Any], int], *names: str) -> Callable[[Choice], Any]:
    """A function of one configuration, made elementwise over the axes it reads; each value is derived once."""

    @cache
    def derived(*values: Any) -> int:
        return derive(SimpleNamespace(**dict(zip(names, values, strict=True))))

    elementwise = np.frompyfunc(derived, len(names), 1)

    def over(choice: Choice) -> Any:
        return np.asarray(elementwise(*(getattr(choice, name) for name in names))).astype(np.int64)

    return over
