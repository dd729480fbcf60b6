"""What a configuration implies: constants, threads, registers, shared memory, boxes, grid. Derived, never searched.

``kernels/include/cudal2/sm90_ws.cuh`` derives the same values and asserts that they agree.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cudal2.problem import Acc, Dtype, Layout
from cudal2.space.config import Sm90WsConfig
from cudal2.space.rule import ceil_div

ELEMENT_BYTES = 2
WARP_GROUP = 128
ALIGN_SLACK_BYTES = 1_024
BARRIER_BYTES = 256
#: Operands that a grid may fetch into L2 ahead of its start: half of an H200's L2, the previous grid has the rest.
PREFETCH_BYTES = 24 * 2**20
#: Registers of a producer and of a consumer thread after setmaxnreg, by number of consumer warp groups. With three, a
#: producer of 32 spilled up to 120 bytes (n-major B in clusters), and no consumer uses more than 152 (see rules).
SETMAXNREG = {2: (40, 232), 3: (56, 152)}
#: Other registers of a producer thread, by number of consumer warp groups, and what they leave a consumer thread.
OTHER_SETMAXNREG = {(2, 24): 240}
#: Parts of a tile of the last wave, at most (``ws_work.cuh``).
STREAM_K_PARTS = 8
#: Bytes to which the tickets of a workspace are rounded up, so that partial sums behind them lie on whole lines.
TICKET_ALIGNMENT = 256
#: What a grid that copies its operands first counts them by, in the workspace before the tickets.
COUNTER_BYTES = 256
#: Rows that a tensor map can describe are multiples of it (CUDA driver API, cuTensorMapEncodeTiled).
TMA_ROW_BYTES = 16
#: Elements of a line of L2: rows of a copy begin on lines.
PADDED_COLUMNS = 64
#: What a thread copies of a piece that its CTA claims (``padded.cuh``).
COPY_THREAD_BYTES = 128


def uses_setmaxnreg(config: Sm90WsConfig) -> bool:
    """Whether registers move from the producer to the consumers: only where one CTA owns the register file."""
    return config.consumers in SETMAXNREG and config.ctas_per_sm == 1


def producer_threads(config: Sm90WsConfig) -> int:
    """A whole warp group where setmaxnreg needs one, else a single warp."""
    return WARP_GROUP if uses_setmaxnreg(config) else 32


def threads(config: Sm90WsConfig) -> int:
    """Threads of one CTA."""
    return config.consumers * WARP_GROUP + producer_threads(config)


def wgmma_sides(config: Sm90WsConfig) -> tuple[int, int]:
    """The tile along M and along N of wgmma, which are those of C only where the operands are not swapped."""
    return (config.tile_n, config.tile_m) if config.swap_ab else (config.tile_m, config.tile_n)


def consumer_rows(config: Sm90WsConfig) -> int:
    """Rows of wgmma that one consumer warp group accumulates: rows of C, or columns if swapped."""
    side_m, _ = wgmma_sides(config)
    return side_m if config.schedule == "pingpong" else side_m // config.consumers


def accumulator_registers(config: Sm90WsConfig, acc: Acc) -> int:
    """Accumulator registers per consumer thread."""
    elements = consumer_rows(config) * wgmma_sides(config)[1] // WARP_GROUP
    return elements if acc == "fp32" else elements // 2


def cluster_split(config: Sm90WsConfig) -> int:
    """Slices of K in a cluster."""
    return config.split_k if config.split_via == "cluster" else 1


def workspace_split(config: Sm90WsConfig) -> int:
    """Slices of K that meet in a workspace."""
    return config.split_k if config.split_via == "workspace" else 1


def uses_workspace(config: Sm90WsConfig) -> bool:
    """Whether sums meet in global memory."""
    return config.split_via == "workspace" or config.stream_k


def params(config: Sm90WsConfig) -> str:
    """The kernel's parameter struct."""
    if config.padded:
        return "PaddedParams"
    return "WorkspaceParams" if uses_workspace(config) else "GemmParams"


def stage_bytes(config: Sm90WsConfig) -> int:
    """Bytes of A and B of one K tile, which is also what a full barrier expects that counts both."""
    return (config.tile_m + config.tile_n) * config.tile_k * ELEMENT_BYTES


def store_box(config: Sm90WsConfig) -> tuple[int, int]:
    """Columns and rows of one TMA store box.

    The widest of 64, 32, 16 columns that divides the tile, 64 if none does, by the 64 rows of a block; the last box of
    a tile may overlap the one before. If the operands are swapped a block is 64 columns wide, and its boxes share the
    rows of the tile: at most 64 each, in whole swizzle atoms of 8.
    """
    columns = next((width for width in (64, 32, 16) if config.tile_n % width == 0), 64)
    boxes = -(-config.tile_m // 64)
    return columns, -(-config.tile_m // (8 * boxes)) * 8 if config.swap_ab else 64


def epilogue_bytes(config: Sm90WsConfig) -> int:
    """Staging buffers of the TMA-store epilogue: some boxes for each consumer warp group."""
    if config.epilogue != "tma":
        return 0
    columns, rows = store_box(config)
    return config.consumers * config.store_buffers * rows * columns * ELEMENT_BYTES


def partial_bytes(config: Sm90WsConfig) -> int:
    """fp32 partial tile that split-K exposes to its cluster; it reuses the stages."""
    return 4 * config.tile_m * config.tile_n if cluster_split(config) > 1 else 0


def ring_bytes(config: Sm90WsConfig) -> int:
    """All stages, of both operands or of B alone, and then the A that stays."""
    if not config.resident_a:
        return config.stages * stage_bytes(config)
    rows = config.resident_a * config.tile_m + config.stages * config.tile_n
    return rows * config.tile_k * ELEMENT_BYTES


def smem_bytes(config: Sm90WsConfig) -> int:
    """Dynamic shared memory of one CTA."""
    body = max(ring_bytes(config), partial_bytes(config))
    return ALIGN_SLACK_BYTES + body + epilogue_bytes(config) + BARRIER_BYTES


def k_box_columns(config: Sm90WsConfig) -> int:
    """Elements of K in one TMA box of A, and of B where it is K-major; their bytes are the swizzle span."""
    return min(64, config.tile_k)


def b_box_columns(config: Sm90WsConfig, layout: Layout) -> int:
    """Elements along the contiguous axis of B's TMA box; its bytes are the swizzle span (128, 64 or 32)."""
    if layout == "tn":
        return k_box_columns(config)
    return next(width for width in (64, 32, 16) if config.tile_n % width == 0)


def cluster_size(config: Sm90WsConfig) -> int:
    """CTAs of one cluster."""
    return config.cluster_m * config.cluster_n * cluster_split(config)


def cluster_tiles(config: Sm90WsConfig, m: int, n: int) -> tuple[int, int]:
    """Cluster tiles along M and N."""
    return ceil_div(m, config.tile_m * config.cluster_m), ceil_div(n, config.tile_n * config.cluster_n)


def workspace_bytes(config: Sm90WsConfig, m: int, n: int, sm_count: int) -> tuple[int, int]:
    """Global memory of the tickets, 4 bytes each, and of partial sums; zeros if unused.

    Slices of K have a ticket for each tile and leave sums of each. With stream-K only the last wave's tiles have parts,
    and a ticket for each warp group that adds up a share of them.
    """
    tiles_m, tiles_n = cluster_tiles(config, m, n)
    tiles, groups, parts = tiles_m * tiles_n * config.cluster_m * config.cluster_n, 1, workspace_split(config)
    if config.stream_k:
        ctas = grid_ctas(config, m, n, sm_count)
        tiles %= ctas
        groups = 1 if config.schedule == "pingpong" else config.consumers
        parts = int(stream_k_parts(tiles, ctas))
    elif config.split_via != "workspace":
        return 0, 0
    ticket_bytes = ceil_div(4 * tiles * groups, TICKET_ALIGNMENT) * TICKET_ALIGNMENT
    return ticket_bytes, 4 * tiles * parts * config.tile_m * config.tile_n


def padded_columns(columns: int) -> int:
    """Elements of a row of a copy: those of the operand, and zeros to the end of the line."""
    padded: int = ceil_div(columns, PADDED_COLUMNS) * PADDED_COLUMNS
    return padded


def copy_bytes(rows: int, columns: int) -> int:
    """Global memory of an operand's copy; 0 where TMA can read its rows as they are."""
    if columns * ELEMENT_BYTES % TMA_ROW_BYTES == 0:
        return 0
    return rows * padded_columns(columns) * ELEMENT_BYTES


def stream_k_parts(tiles: Any, clusters: Any) -> Any:
    """Parts along K of each tile of the last wave, elementwise: as many as there are clusters for each, at least two.

    Args:
        tiles: Of the last wave, fewer than ``clusters``.
        clusters: In the grid.
    """
    return np.clip(clusters // np.maximum(1, tiles), 2, STREAM_K_PARTS)


def prefetch_tiles(config: Sm90WsConfig, m: int, n: int, k: int) -> int:
    """K tiles of its first tile that a CTA fetches into L2 ahead; the axis asks, its share of K and the L2 limit."""
    share: int = ceil_div(ceil_div(k, config.tile_k), config.split_k)
    step_bytes = (m + n) * config.tile_k * ELEMENT_BYTES * config.split_k
    return min(config.l2_prefetch, share, max(1, PREFETCH_BYTES // step_bytes))


def grid_ctas(config: Sm90WsConfig, m: int, n: int, sm_count: int) -> int:
    """CTAs to launch: one per tile (and K slice), or one wave of whole clusters if persistent."""
    tiles_m, tiles_n = cluster_tiles(config, m, n)
    clusters = tiles_m * tiles_n * workspace_split(config)
    if config.persistent:
        clusters = min(clusters, sm_count * config.ctas_per_sm // cluster_size(config))
    return clusters * cluster_size(config)


def copying_ctas(config: Sm90WsConfig, copied_bytes: int, sm_count: int) -> int:
    """CTAs that operands to be copied have work for, one wave at most; those without a tile end then.

    None where slices of K are a cluster: one without a tile would wait for its own sums.
    """
    if config.persistent or cluster_split(config) > 1:
        return 0
    pieces = ceil_div(copied_bytes, COPY_THREAD_BYTES * threads(config))
    clusters = min(ceil_div(pieces, cluster_size(config)), sm_count * config.ctas_per_sm // cluster_size(config))
    return int(clusters) * cluster_size(config)


def constants(config: Sm90WsConfig, acc: Acc, layout: Layout, dtype: Dtype) -> dict[str, Any]:
    """Everything the template may ask for; run-time axes are left out, so that they share cubins."""
    producer_registers, consumer_registers = setmaxnreg(config)
    return {
        "build_name": config.build_name,
        "acc": acc,
        "layout": layout,
        "dtype": dtype,
        "tile_m": config.tile_m,
        "tile_n": config.tile_n,
        "tile_k": config.tile_k,
        "stages": config.stages,
        "pingpong": config.schedule == "pingpong",
        "consumers": config.consumers,
        "cluster_m": config.cluster_m,
        "cluster_n": config.cluster_n,
        "split_k": cluster_split(config),
        "workspace_split_k": workspace_split(config),
        "resident_a": config.resident_a,
        "stream_k": config.stream_k,
        "params": params(config),
        "epilogue_tma": config.epilogue == "tma",
        "epilogue_shifted": config.epilogue == "shifted",
        "store_evict_first": config.store_hint == "evict_first",
        "store_buffers": config.store_buffers,
        "ctas_per_sm": config.ctas_per_sm,
        "swap_ab": config.swap_ab,
        "bf16": dtype == "bf16",
        "acc_fp16": acc == "fp16",
        "b_k_major": layout == "tn",
        "threads": threads(config),
        "smem_bytes": smem_bytes(config),
        "setmaxnreg_producer": producer_registers,
        "setmaxnreg_consumer": consumer_registers,
    }


def setmaxnreg(config: Sm90WsConfig) -> tuple[int, int]:
    """Registers of a producer and a consumer thread after setmaxnreg; zeros where the template leaves it out."""
    if not uses_setmaxnreg(config):
        return 0, 0
    key = (config.consumers, config.producer_registers)
    return (key[1], OTHER_SETMAXNREG[key]) if key in OTHER_SETMAXNREG else SETMAXNREG[config.consumers]


def register_pool(config: Sm90WsConfig) -> int:
    """Registers of one CTA that setmaxnreg hands out; 0 where it is not used."""
    producer_registers, consumer_registers = setmaxnreg(config)
    return WARP_GROUP * (producer_registers + config.consumers * consumer_registers)
