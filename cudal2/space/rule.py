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
WARP = 32
#: Schedulers of a multiprocessor; each has a quarter of the registers for the warps it is dealt.
PARTITIONS = 4


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


def tile_k_padding(unit: int) -> Rule:
    """A K tile is no deeper than k in whole units of what one product takes.

    Args:
        unit: Depth of it, in elements.
    """

    def rounded(problem: Problem) -> int:
        return int(ceil_div(problem.k, unit)) * unit

    return Rule(
        "tile_k_padding",
        ("tile_k",),
        lambda c, p, a: c.tile_k <= rounded(p),
        lambda c, p, a: f"tile_k {c.tile_k} exceeds k = {p.k} rounded up to {rounded(p)}: the rest would be zeros",
        by_size=True,
    )


def tma_alignment() -> Rule:
    """Rows of both operands begin on the 16-byte boundaries that tensor maps need."""

    def aligned(choice: Choice, problem: Problem, arch: Arch) -> bool:
        return problem.k % 8 == 0 and (problem.layout == "tn" or problem.n % 8 == 0)

    def reason(config: Any, problem: Problem, arch: Arch) -> str:
        name, extent = ("k", problem.k) if problem.k % 8 else ("n", problem.n)
        needed = f"TMA needs 16-byte row strides, so {name} % 8 == 0; family sm80_mma does without"
        return f"{name} = {extent} gives rows of {2 * extent} bytes; {needed}"

    return Rule("alignment", (), aligned, reason, by_size=True)


def lifted(derive: Callable[[Any], int], *names: str) -> Callable[[Choice], Any]:
    """A function of one configuration, made elementwise over the axes it reads; each value is derived once."""

    @cache
    def derived(*values: Any) -> int:
        return derive(SimpleNamespace(**dict(zip(names, values, strict=True))))

    elementwise = np.frompyfunc(derived, len(names), 1)

    def over(choice: Choice) -> Any:
        return np.asarray(elementwise(*(getattr(choice, name) for name in names))).astype(np.int64)

    return over
