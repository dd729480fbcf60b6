"""Which measured shape a shape takes its kernel from: a near one whose kernel promises to be fast here, too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from cudal2.problem import Problem
from cudal2.space.config import KernelConfig, Sm90WsConfig
from cudal2.space.estimate import estimate_us
from cudal2.space.refit import RETILE_COST, bases, log_waste, off_sectors, refit, resplit, retiled, suited, with_split
from cudal2.space.shared_rules import tma_reads, tma_stores
from cudal2.space.sm90_ws.geometry import ELEMENT_BYTES
from cudal2.space.sm90_ws.padding import copies
from cudal2.space.space import SearchSpace
from cudal2.table.entry import Entry, Header

#: A neighbour may differ by this factor in each size; beyond it nothing measured speaks for the shape.
NEAREST_FACTOR = 4.0
#: So many rows or columns of C are one tile, and fewer are too: the same loads, grid and launch. Of 390 shapes off the
#: grid, each served by the table less its own entry, 8.3 % behind the best measured with 32, 8.8 % with 64 (2026-12).
TILE_SIDE = 32
#: A doubling of all distances is worth this much logarithm of time, and a logarithm of time lost to waves and tiles
#: that are not whole, or of another tile, that much beside the estimate. Chosen for the least regret on 91 shapes off
#: the grid, by a model fitted to 20,471 rows, 14 and more on each of these: 12 % to expect, 20 % without the estimate.
#: That has learnt since what L2 gives, how late loads come and how many clusters fit: ``scripts/neighbours.py``, which
#: looks up what was measured, said 8.9 % behind on 30 of these shapes before, and 5.5 % on 34 after.
DISTANCE_COST, WASTE_COST = 0.1, 0.25
#: As far as a factor e in one size: other kernels are best, and the library's share is another.
OFF_SECTORS_DISTANCE = 1.0
#: As far again: one of the two is copied first, which takes time that tiles and waves do not.
PADDED_DISTANCE = 1.0
#: Multiplications of each element that is copied, in the mean, and K, from which kernels measured on rows that TMA
#: reads are worth it for rows that are copied first: of 51 padded kernels (docs/off_grid.md) 39 of the 45 that are not
#: lost have as much, and none of the six that are.
COPY_USES, COPY_K = 140.0, 100
#: K up to which kernels of ``sm80_mma`` serve narrower rows of A and B than their own. Of 171 shapes with rows that
#: TMA cannot read or store, each served by the table less its own entry, with every kernel that was served measured,
#: this made 1.432x cuBLASLt, and 1.424x where C had to be small, too; with B as [K,N], on 41, 1.209x and 1.200x
#: (``scripts/neighbours.py --table``, 2026-12-01).
NARROW_K = 160
#: So many of the most promising are refitted.
REFITTED = 8


def neighbours(
    entries: Iterable[Entry], header: Header, problem: Problem, space_of: Callable[[KernelConfig], SearchSpace]
) -> tuple[Entry | None, list[str]]:
    """The entry of the neighbour that serves a shape, with its kernel refitted, and in words who was passed over.

    Whether ``torch.matmul`` does is for the nearest to say of those whose rows TMA can read too, or cannot either: for
    the others the library runs other routines. Kernels are ordered by what the analytic model gives them here, by
    distance, and by what they would lose here that they did not lose there; the first few are refitted and ordered so
    again. Kernels that can copy operands first serve whatever the rows are, if there is work enough for what is copied;
    of the others, those for rows that TMA cannot read serve one another alone, and none serves narrower rows than its
    own, but of a short K.

    Args:
        entries: Those of the table, less the shape's own.
        header: The table's.
        problem: What to run.
        space_of: The space of a configuration's family on the device.
    """
    shapes = [(entry, header.problem(entry.m, entry.n, entry.k)) for entry in entries]
    near = [pair for pair in shapes if _within_reach(pair[1], problem) and _serves(*pair, problem)]
    near.sort(key=lambda item: _distance(item[1], problem))
    library = next((replace(entry, evidence="transferred") for entry, _ in near if entry.config is None), None)
    deciding = next((entry for entry, there in near if tma_reads(there) == tma_reads(problem)), None)
    if deciding is not None and deciding.config is None:
        return library, []
    guessed: list[tuple[float, Entry, KernelConfig, Problem]] = []
    for entry, there in near:
        if entry.config is not None:
            space = space_of(entry.config)
            moved = _moved(entry.config, there, problem, space)
            guessed.append((_cost(there, entry.config, moved, problem, space), entry, entry.config, there))
    guessed.sort(key=lambda guess: guess[0])
    notes: list[str] = []
    fitted: list[tuple[float, Entry]] = []
    for _, entry, config, there in guessed:
        space = space_of(config)
        found = refit(config, there, problem, space)
        if found is None:
            notes.append(passed_over(entry, config, problem, space))
            continue
        taken = replace(entry, config=found, evidence="transferred")
        fitted.append((_cost(there, config, found, problem, space), taken))
        if len(fitted) == REFITTED:
            break
    return (min(fitted, key=lambda pair: pair[0])[1] if fitted else library), notes


def passed_over(entry: Entry, config: KernelConfig, problem: Problem, space: SearchSpace) -> str:
    """In words, why an entry's kernel cannot serve a shape."""
    reasons = space.explain(suited(config, problem), problem)
    return f"{entry.mnk} passed over: {reasons[0] if reasons else 'nothing like it is legal'}"


def _serves(entry: Entry, there: Problem, problem: Problem) -> bool:
    """Whether the alignment of the rows allows it.

    Narrower copies cost the other kernels more than the library: what wins with 8 bytes a copy loses with 4 or 2, but
    where K is short. The library runs other routines where TMA cannot store C either, and so do kernels of
    ``sm80_mma`` that stored other rows by 16 bytes, which matters where C is large.
    """
    alike = tma_reads(there) == tma_reads(problem)
    if isinstance(entry.config, Sm90WsConfig):
        return tma_reads(problem) or _pays_for_copies(there, problem)
    if entry.config is None:
        return alike and tma_stores(there) == tma_stores(problem)
    narrower = there.alignment_bytes > problem.alignment_bytes
    return alike and (not narrower or problem.k <= NARROW_K)


def _pays_for_copies(there: Problem, problem: Problem) -> bool:
    """Whether each element of A and B is used often enough to be copied first, or half as often as where it was."""
    if not tma_reads(there):
        return _uses(problem) >= _uses(there) / 2.0
    return _uses(problem) >= COPY_USES and problem.k >= COPY_K


def _uses(problem: Problem) -> float:
    """Multiplications of an element of A or B that has to be copied, in the mean."""
    read_bytes, _ = copies(problem)
    return problem.m * problem.n * problem.k * ELEMENT_BYTES / read_bytes


def _within_reach(there: Problem, problem: Problem) -> bool:
    pairs = zip(_sizes(there), _sizes(problem), strict=True)
    return all(mine <= NEAREST_FACTOR * theirs and theirs <= NEAREST_FACTOR * mine for mine, theirs in pairs)


def _distance(one: Problem, other: Problem) -> float:
    """Euclidean, of the logarithms of the sizes; rows off the sectors of L2, or copied first, are far from others."""
    sizes = math.dist(*([math.log(size) for size in _sizes(shape)] for shape in (one, other)))
    off = OFF_SECTORS_DISTANCE if off_sectors(one, padded=True) != off_sectors(other, padded=True) else 0.0
    return sizes + off + (PADDED_DISTANCE if tma_reads(one) != tma_reads(other) else 0.0)


def _sizes(problem: Problem) -> tuple[int, int, int]:
    """M, N and K as far as kernels tell them apart."""
    return max(problem.m, TILE_SIDE), max(problem.n, TILE_SIDE), problem.k


def _moved(config: KernelConfig, source: Problem, problem: Problem, space: SearchSpace) -> KernelConfig:
    """Much like what refitting makes of it, in a fraction of the time."""
    tile = retiled(bases(config, source, problem, space)[0], source, problem, space)
    return suited(with_split(tile, resplit(tile, source, problem, space)[0]), problem)


def _cost(source: Problem, config: KernelConfig, moved: KernelConfig, problem: Problem, space: SearchSpace) -> float:
    """Logarithm of the time to expect of a kernel here, up to what all have in common."""
    there, here = log_waste(config, source, space.arch), log_waste(moved, problem, space.arch)
    retile = RETILE_COST * abs(math.log(moved.tile_m * moved.tile_n / (config.tile_m * config.tile_n)))
    near = DISTANCE_COST * _distance(source, problem)
    return math.log(estimate_us(moved, problem, space.arch)) + near + WASTE_COST * (retile + max(0.0, here - there))
