"""Operands that give a wrong kernel away: exact 0/1 sums, and rows in which a narrow accumulator loses what it holds.

Models of the faults they must reveal are in ``tests/test_correctness.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from cudal2.bench.inputs import TORCH_DTYPES
from cudal2.problem import Problem

#: Rows cycle through these. ``ends``: +2048 first in K, -2048 last, 1/32 between. ``inside``: +2048 somewhere, -2048 at
#: its mirror image, +-1/32 elsewhere.
_ROW_KINDS = ("ends", "normal", "inside", "uniform", "inside", "normal", "ends", "normal")
_BIG = 2048.0
_SMALL = 1.0 / 32.0
#: Multiples of 1/64 from a half to one: products with 2048 and 1/32 are multiples of 2**-11.
_B_STEPS = 64
#: Up to this depth the sums of the small terms stay under 2048, so that every partial sum fits 24 bits.
_SMALL_TERMS_MAX = 2**16
#: Largest sums that fp16 and bf16 count to by ones are 2048 and 256; densities aim at half of them.
_FP16_COUNT = 1024.0
_BF16_COUNT = 128.0


@dataclass(frozen=True)
class Operands:
    """A and B of a check.

    Attributes:
        a: [m, k].
        b: [k, n], not as stored.
        exact_rows: Rows of A whose sums an fp32 accumulator gets exactly, in any order; ``None`` if no row promises it.
    """

    a: torch.Tensor
    b: torch.Tensor
    exact_rows: torch.Tensor | None = None


def zero_one(problem: Problem, generator: torch.Generator) -> Operands:
    """Zeros and ones; every sum is exact, and dense enough that a missing K tile shows.

    bf16 rounds sums above 256 to even ones, then to fours and so on, which would hide a missing product: there they
    stay below.
    """
    count = _BF16_COUNT if problem.dtype == "bf16" else _FP16_COUNT
    narrow = problem.dtype == "bf16" or problem.acc == "fp16"
    density = min(0.5, math.sqrt(count / problem.k)) if narrow else 0.5
    return Operands(
        _empty(problem, (problem.m, problem.k), generator).bernoulli_(density, generator=generator),
        _empty(problem, (problem.k, problem.n), generator).bernoulli_(density, generator=generator),
    )


def revealing(problem: Problem, generator: torch.Generator) -> Operands:
    """Data on which fp32 accumulation is exact or nearly so, and narrower accumulation or partial sums are far off.

    All of it but N(0,1) and uniform rows is exact in bf16's 8 bits too.
    For an fp16 accumulator there is nothing to unmask: N(0,1) on both sides.
    """
    a = _empty(problem, (problem.m, problem.k), generator).normal_(generator=generator)
    if problem.acc == "fp16":
        return Operands(a, _empty(problem, (problem.k, problem.n), generator).normal_(generator=generator))
    rows = {kind: _rows_of(kind, problem.m, generator.device) for kind in set(_ROW_KINDS)}
    a[rows["uniform"]] = torch.rand((len(rows["uniform"]), problem.k), generator=generator, device=generator.device).to(
        a.dtype
    )
    cancelling = torch.cat([rows["ends"], rows["inside"]])
    a[rows["ends"]] = _SMALL
    a[rows["inside"]] = torch.sign(a[rows["inside"]]) * _SMALL
    _cancel(a, cancelling, _places(problem.k, len(rows["ends"]), len(rows["inside"]), generator))
    exact = torch.zeros(problem.m, dtype=torch.bool, device=generator.device)
    exact[cancelling] = True
    return Operands(a, _mirrored_b(problem, generator), exact)


def _empty(problem: Problem, shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    return torch.empty(shape, dtype=TORCH_DTYPES[problem.dtype], device=generator.device)


def _rows_of(kind: str, count: int, device: torch.device) -> torch.Tensor:
    """On the host: each operation that a GPU has not run before takes it some 10 ms."""
    rows = [row for row in range(count) if _ROW_KINDS[row % len(_ROW_KINDS)] == kind]
    return torch.tensor(rows, dtype=torch.int64, device=device)


def _places(k: int, ends: int, inside: int, generator: torch.Generator) -> torch.Tensor:
    """Where in K each cancelling row has its +2048; the -2048 is at the mirrored place."""
    random = torch.randint(0, max(1, k // 4), (inside,), generator=generator, device=generator.device)
    return torch.cat([random.new_zeros(ends), random])


def _cancel(a: torch.Tensor, rows: torch.Tensor, places: torch.Tensor) -> None:
    k = a.shape[1]
    if k > _SMALL_TERMS_MAX:
        a[rows, _SMALL_TERMS_MAX // 2 : k - _SMALL_TERMS_MAX // 2] = 0.0
    if k > 1:
        a[rows, places] = _BIG
        a[rows, k - 1 - places] = -_BIG


def _mirrored_b(problem: Problem, generator: torch.Generator) -> torch.Tensor:
    """Magnitudes of a half to one; signs random but for every fourth column; row k-1-j equals row j."""
    k, n = problem.k, problem.n
    shape = ((k + 1) // 2, n)
    steps = torch.randint(_B_STEPS // 2, _B_STEPS + 1, shape, generator=generator, device=generator.device)
    signs = 1 - 2 * torch.randint(0, 2, shape, generator=generator, device=generator.device)
    signs[:, ::4] = 1
    upper = (steps * signs).to(TORCH_DTYPES[problem.dtype]) / _B_STEPS
    return torch.cat([upper, upper[: k // 2].flip(0)])
