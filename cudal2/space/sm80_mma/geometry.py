"""What a configuration implies: constants, threads, shared memory, grid. Derived, never searched.

``kernels/include/cudal2/sm80_mma.cuh`` derives the same values and asserts that they agree.
"""

from __future__ import annotations

from typing import Any

from cudal2.problem import Acc, Dtype, Layout
from cudal2.space.config import Sm80MmaConfig
from cudal2.space.rule import ceil_div

ELEMENT_BYTES = 2
WARP = 32
#: What a lane hands to ldmatrix, the unit of the swizzle, and the padding of a row.
CHUNK_BYTES = 16
#: Bytes to which the tickets of a workspace are rounded up, so that partial sums behind them lie on whole lines.
TICKET_ALIGNMENT = 256
#: Rows, columns and depth of the blocks a warp works in: ldmatrix.x4 and a pair of mma.m16n8k16.
BLOCK = 16


def threads(config: Sm80MmaConfig) -> int:
    """Threads of one CTA."""
    return WARP * config.warps_m * config.warps_n


def stage_bytes(config: Sm80MmaConfig) -> int:
    """Bytes of A and B in one stage; padding is as for the layout of B that has more rows in it."""
    elements = (config.tile_m + config.tile_n) * config.tile_k
    rows = config.tile_m + max(config.tile_n, config.tile_k) if config.smem_layout == "pad" else 0
    return elements * ELEMENT_BYTES + rows * CHUNK_BYTES


def store_bytes(config: Sm80MmaConfig) -> int:
    """The tile of C on its way through shared memory, rows padded; it reuses the stages."""
    return 0 if config.epilogue == "direct" else config.tile_m * (config.tile_n * ELEMENT_BYTES + CHUNK_BYTES)


def smem_bytes(config: Sm80MmaConfig) -> int:
    """Dynamic shared memory of one CTA."""
    return max(config.stages * stage_bytes(config), store_bytes(config))


def tiles(config: Sm80MmaConfig, m: int, n: int) -> tuple[int, int]:
    """CTA tiles along M and N."""
    return ceil_div(m, config.tile_m), ceil_div(n, config.tile_n)


def cluster_size(config: Sm80MmaConfig) -> int:
    """CTAs of one cluster: there are none."""
    return 1


def grid_ctas(config: Sm80MmaConfig, m: int, n: int, sm_count: int) -> int:
    """CTAs to launch: one per tile and slice of K."""
    tiles_m, tiles_n = tiles(config, m, n)
    return tiles_m * tiles_n * config.split_k


def params(config: Sm80MmaConfig) -> str:
    """The struct that the kernel takes."""
    return "SplitMmaParams" if config.split_k > 1 else "MmaParams"


def workspace_bytes(config: Sm80MmaConfig, m: int, n: int) -> tuple[int, int]:
    """Global memory where slices of K meet: a ticket for each tile, and behind them fp32 sums of each slice."""
    if config.split_k == 1:
        return 0, 0
    tiles_m, tiles_n = tiles(config, m, n)
    tickets = ceil_div(4 * tiles_m * tiles_n, TICKET_ALIGNMENT) * TICKET_ALIGNMENT
    return tickets, 4 * tiles_m * tiles_n * config.split_k * config.tile_m * config.tile_n


def constants(config: Sm80MmaConfig, acc: Acc, layout: Layout, dtype: Dtype) -> dict[str, Any]:
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
        "warps_m": config.warps_m,
        "warps_n": config.warps_n,
        "swizzle": config.smem_layout == "swizzle",
        "fragments": config.fragments,
        "staggered": config.prefetch == "staggered",
        "epilogue_wide": config.epilogue == "wide",
        "epilogue_shifted": config.epilogue == "shifted",
        "copy_bytes": config.copy_bytes,
        "ctas_per_sm": config.ctas_per_sm,
        "split_k": config.split_k,
        "params": params(config),
        "bf16": dtype == "bf16",
        "acc_fp16": acc == "fp16",
        "b_k_major": layout == "tn",
        "threads": threads(config),
        "smem_bytes": smem_bytes(config),
    }


def register_pool(config: Sm80MmaConfig) -> int:
    """Registers that move between warps: none do."""
    return 0
