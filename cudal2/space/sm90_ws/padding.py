"""The rules of ``sm90_ws`` about operands that are copied first into rows that TMA can read."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudal2.arch import Arch
from cudal2.problem import Problem
from cudal2.space.config import Sm90WsConfig
from cudal2.space.rule import Choice, Rule
from cudal2.space.shared_rules import tma_reads, tma_rows
from cudal2.space.sm90_ws import geometry as geo

#: Copies of a launch in global memory; a workspace of this much is what a caller has to spare beside its operands.
PADDED_BYTES = 512 * 2**20


def copies(problem: Problem) -> tuple[int, int]:
    """Bytes that are read of the operands that have to be copied, and bytes of their copies."""
    copied = [(rows, columns) for rows, columns in problem.stored if geo.copy_bytes(rows, columns)]
    read = sum(rows * columns * geo.ELEMENT_BYTES for rows, columns in copied)
    return read, sum(geo.copy_bytes(rows, columns) for rows, columns in copied)


def _reads(c: Choice, problem: Problem, arch: Arch) -> Any:
    return np.not_equal(c.padded, tma_reads(problem))


def _reads_reason(c: Sm90WsConfig, problem: Problem, arch: Arch) -> str:
    if not c.padded:
        return tma_rows(problem, "padded copies them into rows that it reads")
    a, b = problem.row_bytes
    sizes = f"{a}" if a == b else f"{a} and {b}"
    return f"rows of {sizes} bytes are read by TMA as they are: no copy is needed"


def _copies_fit(c: Choice, problem: Problem, arch: Arch) -> Any:
    return np.equal(c.padded, False) | (copies(problem)[1] <= PADDED_BYTES)


#: Which operands there are to copy, and whether there is room; the first of all, since it halves what is left.
PADDING: tuple[Rule, ...] = (
    Rule("alignment", ("padded",), _reads, _reads_reason, by_size=True),
    Rule(
        "padded_bytes",
        ("padded",),
        _copies_fit,
        lambda c, p, a: (
            f"copies of {copies(p)[1]} bytes exceed the {PADDED_BYTES} of a workspace: family sm80_mma does without"
        ),
        by_size=True,
    ),
)

#: Said of sizes, though none decides, so that what is kept of all sizes stays free of run-time axes.
PADDED_PREFETCH = Rule(
    "padded_prefetch",
    ("padded", "l2_prefetch"),
    lambda c, p, a: np.equal(c.padded, False) | np.equal(c.l2_prefetch, 0),
    lambda c, p, a: (
        f"copies are not there yet while the previous grid still runs: an L2 prefetch of {c.l2_prefetch} is for "
        "operands that are not padded"
    ),
    by_size=True,
)
