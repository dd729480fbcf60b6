"""Which measured shapes a shape takes its kernel from: near ones whose tiles fall into whole waves here, too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from cudal2.problem import Problem
from cudal2.space.config import KernelConfig
from cudal2.space.refit import RETILE_COST, log_waste, resplit, retiled, with_axes
from cudal2.space.space import SearchSpace
from cudal2.table.entry import Entry, Header

#: A neighbour may differ by this factor in each size; beyond it nothing measured speaks for the shape.
NEAREST_FACTOR = 4.0
#: A doubling of all distances is worth this much logarithm of time lost to waves and tiles that are not whole.
DISTANCE_COST = 0.4
#: Rows of a matrix that a tensor map can describe start on multiples of it (CUDA driver API, cuTensorMapEncodeTiled).
TMA_ROW_BYTES = 16


def neighbours(
    entries: Iterable[Entry], header: Header, problem: Problem, space_of: Callable[[KernelConfig], SearchSpace]
) -> list[Entry]:
    """Entries within reach, the most promising first, that of the shape itself before all.

    Kernels are ordered by distance and by what they would lose here that they did not lose there. Whether a library
    serves the shape is for the nearest entry to say. Shapes whose rows TMA cannot read are neighbours of one another
    alone, and none of one with narrower rows: other kernels and other library routines run there.

    Args:
        entries: Those of the table.
        header: The table's.
        problem: What to run.
        space_of: The space of a configuration's family on the device.
    """
    near: list[tuple[float, Entry]] = []
    for entry in entries:
        if _within_reach(entry, problem):
            there = header.problem(entry.m, entry.n, entry.k)
            if _alike(there, problem):
                near.append((_distance(there, problem), entry))
    near.sort(key=lambda item: item[0])
    if near and near[0][1].config is None:
        return [near[0][1]]

    def cost(item: tuple[float, Entry]) -> tuple[bool, float]:
        distance, entry = item
        if entry.config is None:
            return True, distance
        there = header.problem(entry.m, entry.n, entry.k)
        return False, DISTANCE_COST * distance + _more_waste(entry.config, there, problem, space_of(entry.config))

    return [entry for _, entry in sorted(near, key=cost)]


def tma_reads(problem: Problem) -> bool:
    """Whether tensor maps can describe A and B."""
    return problem.alignment_bytes == TMA_ROW_BYTES


def _alike(there: Problem, problem: Problem) -> bool:
    """Narrower copies cost our kernels more than the library: what wins with 8 bytes a copy loses with 4 or 2."""
    return tma_reads(there) == tma_reads(problem) and there.alignment_bytes <= problem.alignment_bytes


def _within_reach(entry: Entry, problem: Problem) -> bool:
    pairs = ((entry.m, problem.m), (entry.n, problem.n), (entry.k, problem.k))
    return all(mine <= NEAREST_FACTOR * theirs and theirs <= NEAREST_FACTOR * mine for mine, theirs in pairs)


def _distance(one: Problem, other: Problem) -> float:
    """Euclidean, of the logarithms of the sizes."""
    return math.dist(*([math.log(size) for size in (shape.m, shape.n, shape.k)] for shape in (one, other)))


def _more_waste(config: KernelConfig, source: Problem, problem: Problem, space: SearchSpace) -> float:
    """What it loses to waves and tiles that are not whole, beyond what it lost where it was chosen."""
    moved = tile = retiled(config, source, problem, space)
    if hasattr(tile, "split_k"):
        moved = with_axes(tile, split_k=resplit(tile, source, problem, space)[0])
    changed = RETILE_COST * abs(math.log(tile.tile_m * tile.tile_n / (config.tile_m * config.tile_n)))
    return changed + max(0.0, log_waste(moved, problem, space.arch) - log_waste(config, source, space.arch))
