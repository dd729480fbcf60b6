"""The legality rules of the ``sm90_collective`` space: what CUTLASS asserts, each as a predicate and a sentence.

Of configurations that CUTLASS turns into the same launch, one is legal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cudal2.arch import Arch
from cudal2.problem import Problem
from cudal2.space.config import Sm90CollectiveConfig
from cudal2.space.rule import INT32_MAX, Choice, Rule, lifted
from cudal2.space.shared_rules import (
    MULTICAST_CTAS,
    multicast_slice,
    shared_memory,
    split_k_depth,
    tile_k_padding,
    tma_alignment,
    tma_stores,
)
from cudal2.space.sm90_collective import geometry as geo

#: Accumulators of a thread: with more there is nothing left of 240 registers for the epilogue.
ACCUMULATORS = 192
#: Tiles along the shorter side that a swizzle takes (CUTLASS, ``get_log_swizzle_size``).
SWIZZLE_TILES = {1: 1, 2: 2, 4: 3, 8: 6}
#: Tiles along N: the second axis of a grid holds no more.
GRID_Y = 65_535

_BODY_AXES = ("tile_m", "tile_n", "tile_k", "stages", "schedule", "epilogue")
_TILING = ("tile_m", "tile_n", "cluster_m", "cluster_n")
_smem = lifted(geo.least_smem_bytes, *_BODY_AXES)
_swizzle_tiles = lifted(lambda c: SWIZZLE_TILES.get(c.max_swizzle, INT32_MAX), "max_swizzle")


def _is(choice: Choice, field: str, value: str) -> Any:
    return np.equal(getattr(choice, field), value)


def _rows(c: Choice, problem: Problem, arch: Arch) -> Any:
    return ~_is(c, "schedule", "cooperative") | np.equal(c.tile_m % 128, 0)


def _accumulators(c: Choice, problem: Problem) -> Any:
    elements = c.tile_m * c.tile_n // geo.WARP_GROUP // np.where(_is(c, "schedule", "cooperative"), 2, 1)
    return elements if problem.acc == "fp32" else elements // 2


def _fits_registers(c: Choice, problem: Problem, arch: Arch) -> Any:
    return _accumulators(c, problem) <= ACCUMULATORS


def _fits_registers_reason(c: Sm90CollectiveConfig, problem: Problem, arch: Arch) -> str:
    return f"{int(_accumulators(c, problem))} accumulator registers per thread exceed {ACCUMULATORS}"


def _addressable(c: Choice, problem: Problem, arch: Arch) -> Any:
    tiles_m, tiles_n = geo.tiles(c, problem.m, problem.n)
    sizes = (tiles_m * c.tile_m <= INT32_MAX) & (tiles_n * c.tile_n <= INT32_MAX)
    # The tiles are counted in 32 bits, and the largest swizzle rounds each side up.
    in_grid = (tiles_n <= GRID_Y) | ~_is(c, "schedule", "warpspecialized")
    return sizes & in_grid & ((tiles_m + 8) * (tiles_n + 8) <= INT32_MAX)


def _addressable_reason(c: Sm90CollectiveConfig, problem: Problem, arch: Arch) -> str:
    tiles_m, tiles_n = geo.tiles(c, problem.m, problem.n)
    return (
        f"{problem.mnk} has {tiles_m} x {tiles_n} tiles; CUTLASS counts them and their elements up to {INT32_MAX}, "
        f"a grid that is not persistent {GRID_Y} along n"
    )


def _swizzles(c: Choice, problem: Problem, arch: Arch) -> Any:
    tiles_m, tiles_n = geo.tiles(c, problem.m, problem.n)
    return _swizzle_tiles(c) <= np.maximum(1, np.minimum(tiles_m, tiles_n))


def _swizzles_reason(c: Sm90CollectiveConfig, problem: Problem, arch: Arch) -> str:
    tiles_m, tiles_n = geo.tiles(c, problem.m, problem.n)
    return (
        f"a swizzle of {c.max_swizzle} needs {SWIZZLE_TILES[c.max_swizzle]} tiles along both sides, of "
        f"{tiles_m} x {tiles_n}: CUTLASS takes a smaller one"
    )


def _rasters(c: Choice, problem: Problem, arch: Arch) -> Any:
    tiles_m, tiles_n = geo.tiles(c, problem.m, problem.n)
    return _is(c, "raster", "heuristic") | ((tiles_m > 1) & (tiles_n > 1))


def _orders(c: Choice, problem: Problem, arch: Arch) -> Any:
    plain = _is(c, "raster", "heuristic") & np.equal(c.max_swizzle, 1)
    return ~_is(c, "schedule", "warpspecialized") | plain


RULES: tuple[Rule, ...] = (
    tma_alignment(),
    Rule(
        "schedule_rows",
        ("tile_m", "schedule"),
        _rows,
        lambda c, p, a: f"the cooperative schedule gives each of two warp groups 64 rows at least, and has {c.tile_m}",
    ),
    Rule("accumulator_registers", ("tile_m", "tile_n", "schedule"), _fits_registers, _fits_registers_reason),
    shared_memory(_smem, _BODY_AXES),
    Rule(
        "cluster",
        ("cluster_m", "cluster_n"),
        lambda c, p, a: c.cluster_m * c.cluster_n <= MULTICAST_CTAS,
        lambda c, p, a: f"a cluster of {c.cluster_m} x {c.cluster_n} CTAs: multicast takes at most {MULTICAST_CTAS}",
    ),
    multicast_slice(),
    Rule(
        "store_alignment",
        ("epilogue",),
        lambda c, p, a: _is(c, "epilogue", "nosmem") | tma_stores(p),
        lambda c, p, a: f"a TMA store needs n % 8 == 0, and n = {p.n}; the nosmem epilogue does without",
        by_size=True,
    ),
    Rule(
        "stream_k_schedule",
        ("schedule", "scheduler"),
        lambda c, p, a: _is(c, "scheduler", "persistent") | _is(c, "schedule", "cooperative"),
        lambda c, p, a: f"CUTLASS has its stream-K scheduler for the cooperative schedule only, not for {c.schedule}",
    ),
    Rule(
        "split_k_scheduler",
        ("scheduler", "split_k"),
        lambda c, p, a: _is(c, "scheduler", "stream_k") | np.equal(c.split_k, 1),
        lambda c, p, a: f"split-K {c.split_k} needs the stream-K scheduler; the persistent one does not split",
    ),
    Rule(
        "tile_order",
        ("schedule", "raster", "max_swizzle"),
        _orders,
        lambda c, p, a: (
            f"the warpspecialized schedule has no tile scheduler for raster {c.raster} and swizzle {c.max_swizzle}"
        ),
    ),
    tile_k_padding(64),
    split_k_depth(),
    Rule("size", (*_TILING, "schedule"), _addressable, _addressable_reason, by_size=True),
    Rule("swizzle_tiles", (*_TILING, "max_swizzle"), _swizzles, _swizzles_reason, by_size=True),
    Rule(
        "raster_single",
        (*_TILING, "raster"),
        _rasters,
        lambda c, p, a: f"tiles of {p.mnk} are one line: raster {c.raster} runs in the order of heuristic",
        by_size=True,
    ),
)
