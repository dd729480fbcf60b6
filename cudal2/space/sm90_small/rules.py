"""The legality rules of the ``sm90_small`` space: each a named predicate and a sentence that says why not."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudal2.arch import Arch
from cudal2.problem import Problem
from cudal2.space.config import Sm90SmallConfig
from cudal2.space.rule import INT32_MAX, Choice, Rule, ceil_div, lifted, share_k_tiles
from cudal2.space.shared_rules import shared_memory, split_k_depth, tile_k_padding, tma_alignment
from cudal2.space.sm90_small import geometry as geo

#: Columns of a warp by mma.sync: with 128 its fragments of one K step of 64 and its sums take 208 registers.
MMA_COLUMNS = 64
#: Tiles along M and along N: the second and third axis of a grid hold no more.
GRID_YZ = 65_535

_PART_AXES = ("variant", "tile_m", "tile_n", "warps")
_BODY_AXES = (*_PART_AXES, "tile_k", "stages", "split_k")
_part_rows = lifted(geo.part_rows, "variant", "tile_m", "warps")
_part_columns = lifted(geo.part_columns, *_PART_AXES)
_smem = lifted(geo.smem_bytes, *_BODY_AXES)


def _shares_tile(c: Choice, problem: Problem, arch: Arch) -> Any:
    rows, columns = _part_rows(c), _part_columns(c)
    wgmma = np.isin(c.warps, (4, 8)) & (rows % 64 == 0) & (columns % 8 == 0)
    mma = (columns % 16 == 0) & (columns <= MMA_COLUMNS)
    return (columns > 0) & np.where(np.equal(c.variant, "wgmma"), wgmma, mma)


def _shares_tile_reason(c: Sm90SmallConfig, problem: Problem, arch: Arch) -> str:
    needed = (
        "wgmma needs one or two groups of 4 warps, 64 rows and whole 8 columns for each"
        if c.variant == "wgmma"
        else f"mma.sync needs 16 rows and 16, 32, 48 or {MMA_COLUMNS} columns for each"
    )
    return f"{c.warps} warps cannot share a tile of {c.tile_m} x {c.tile_n}: {needed}"


def _boxes(c: Choice, problem: Problem, arch: Arch) -> Any:
    return (problem.layout == "tn") | (_part_columns(c) % 16 == 0)


def _boxes_reason(c: Sm90SmallConfig, problem: Problem, arch: Arch) -> str:
    return (
        f"row-major B is loaded in boxes of 16 columns at least, and a part of {c.tile_m} x {c.tile_n} has "
        f"{geo.part_columns(c)}"
    )


def _stages_fill(c: Choice, problem: Problem, arch: Arch) -> Any:
    return c.stages <= share_k_tiles(c, problem)


def _stages_fill_reason(c: Sm90SmallConfig, problem: Problem, arch: Arch) -> str:
    return f"{c.stages} stages exceed the {int(share_k_tiles(c, problem))} K tiles of a CTA with k = {problem.k}"


def _overlaps(c: Choice, problem: Problem, arch: Arch) -> Any:
    return (c.stages > 1) | (share_k_tiles(c, problem) == 1)


def _overlaps_reason(c: Sm90SmallConfig, problem: Problem, arch: Arch) -> str:
    return f"one stage for {int(share_k_tiles(c, problem))} K tiles: each load would wait for the products before it"


def _addressable(c: Choice, problem: Problem, arch: Arch) -> Any:
    tiles_m, tiles_n = ceil_div(problem.m, c.tile_m), ceil_div(problem.n, c.tile_n)
    depth = ceil_div(problem.k, c.tile_k) * c.tile_k <= INT32_MAX
    return (tiles_m <= GRID_YZ) & (tiles_n <= GRID_YZ) & depth


def _addressable_reason(c: Sm90SmallConfig, problem: Problem, arch: Arch) -> str:
    tiles_m, tiles_n = geo.tiles(c, problem.m, problem.n)
    return f"{problem.mnk} has {tiles_m} x {tiles_n} tiles; a grid holds {GRID_YZ} along each, and k {INT32_MAX}"


RULES: tuple[Rule, ...] = (
    tma_alignment(),
    Rule("warps_share_tile", _PART_AXES, _shares_tile, _shares_tile_reason),
    Rule("b_box", _PART_AXES, _boxes, _boxes_reason),
    shared_memory(_smem, _BODY_AXES),
    tile_k_padding(64),
    split_k_depth(),
    Rule("size", ("tile_m", "tile_n", "tile_k"), _addressable, _addressable_reason, by_size=True),
    Rule("stages_depth", ("tile_k", "split_k", "stages"), _stages_fill, _stages_fill_reason, by_size=True),
    Rule("one_stage", ("tile_k", "split_k", "stages"), _overlaps, _overlaps_reason, by_size=True),
)
