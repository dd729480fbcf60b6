"""What a configuration implies: constants, threads, shared memory, boxes, grid. Derived, never searched.

``kernels/include/cudal2/sm90_small.cuh`` derives the same values and asserts that they agree.
"""

from __future__ import annotations

from typing import Any

from cudal2.problem import Acc, Dtype, Layout
from cudal2.space.config import Sm90SmallConfig
from cudal2.space.rule import ceil_div

ELEMENT_BYTES = 2
WARP = 32
#: Warps of a warp group, which issues one wgmma.
GROUP_WARPS = 4
BARRIER_BYTES = 256
#: Columns of a block of partial sums: one thread has four of its 16 x 8, a quad.
QUAD_COLUMNS, QUAD_BYTES = 8, 16


def threads(config: Sm90SmallConfig) -> int:
    """Threads of one CTA."""
    return WARP * config.warps


def part_rows(config: Sm90SmallConfig) -> int:
    """Rows of C that a warp group, or with mma.sync a warp, accumulates."""
    if config.variant == "mma":
        return 16
    return 64 if config.warps > GROUP_WARPS else config.tile_m


def part_columns(config: Sm90SmallConfig) -> int:
    """Columns of C that it accumulates: parts lie below each other first; 0 where they cannot share the tile."""
    parts = config.warps if config.variant == "mma" else config.warps // GROUP_WARPS
    rows, rest = divmod(config.tile_m, part_rows(config))
    if rest or not rows or not parts or parts % rows or config.tile_n % (parts // rows):
        return 0
    return config.tile_n // (parts // rows)


def stage_bytes(config: Sm90SmallConfig) -> int:
    """Bytes of A and B in one stage, which is also what its full barrier expects."""
    return (config.tile_m + config.tile_n) * config.tile_k * ELEMENT_BYTES


def received_bytes(config: Sm90SmallConfig) -> int:
    """Partial sums that a slice of K gets from all slices, its own included: whole quads of every thread."""
    if config.split_k == 1:
        return 0
    rows = part_rows(config) // (16 if config.variant == "mma" else 64)
    quads = rows * part_columns(config) // QUAD_COLUMNS
    share = int(ceil_div(quads, config.split_k))
    return config.split_k * share * threads(config) * QUAD_BYTES


def smem_bytes(config: Sm90SmallConfig) -> int:
    """Dynamic shared memory of one CTA."""
    return config.stages * stage_bytes(config) + received_bytes(config) + BARRIER_BYTES


def b_box_columns(config: Sm90SmallConfig, layout: Layout) -> int:
    """Elements along the contiguous axis of B's TMA box; its bytes are the swizzle span (128, 64 or 32)."""
    if layout == "tn":
        return 64
    return next((width for width in (64, 32) if part_columns(config) % width == 0), 16)


def cluster_size(config: Sm90SmallConfig) -> int:
    """CTAs of one cluster: the slices of K."""
    return config.split_k


def tiles(config: Sm90SmallConfig, m: int, n: int) -> tuple[int, int]:
    """Tiles along M and N."""
    return ceil_div(m, config.tile_m), ceil_div(n, config.tile_n)


def grid_ctas(config: Sm90SmallConfig, m: int, n: int, sm_count: int) -> int:
    """CTAs to launch: one per tile and slice of K."""
    tiles_m, tiles_n = tiles(config, m, n)
    return tiles_m * tiles_n * config.split_k


def constants(config: Sm90SmallConfig, acc: Acc, layout: Layout, dtype: Dtype) -> dict[str, Any]:
    """Everything the template may ask for; run-time axes are left out, so that they share cubins."""
    return {
        "build_name": config.build_name,
        "acc": acc,
        "layout": layout,
        "dtype": dtype,
        "tile_m": config.tile_m,
        "tile_n": config.tile_n,
        "tile_k": config.tile_k,
        "stages": config.stages,
        "wgmma": config.variant == "wgmma",
        "warps": config.warps,
        "split_k": config.split_k,
        "bf16": dtype == "bf16",
        "acc_fp16": acc == "fp16",
        "b_k_major": layout == "tn",
        "threads": threads(config),
        "smem_bytes": smem_bytes(config),
    }


def register_pool(config: Sm90SmallConfig) -> int:
    """Registers that move between warps: none do."""
    return 0
