"""An analytic time model of the ``sm90_ws`` kernel, extended to the other families.

It ranks configurations; its microseconds are estimates and never leave this package as measurements. Constants are
round figures for an H200, not fitted to any recording, so that ranking a recording by it is a fair baseline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudal2.arch import SM90, Arch
from cudal2.floor import terms_us
from cudal2.problem import Problem
from cudal2.space.config import PROMOTION_BYTES, STORE_BUFFERS, KernelConfig
from cudal2.space.refit import off_sectors
from cudal2.space.sm90_ws.padding import copies
from cudal2.space.waves import waves_of

Floats = NDArray[np.float64]
Columns = Mapping[str, NDArray[Any]]

#: Sustained SM clock under a GEMM, cycles per microsecond.
CLOCK_PER_US = 1_600.0
#: Device memory and L2-to-SM rates, bytes per microsecond over the whole chip. TMA loads 11.3e6 on 16384_8192_8192
#: (``cudal2/data/counters``, 34.4 GB in 3,046 us); rows that start inside sectors take about twice the requests.
HBM_BYTES_PER_US = 4.3e6
L2_BYTES_PER_US, OFF_SECTORS_L2_BYTES_PER_US = 11e6, 6.5e6
#: Clusters of 0, 1, 2, ... 16 CTAs that run at once where a CTA fills an SM, by cudaOccupancyMaxActiveClusters (one
#: H200, 2026-12-01): pairs fill all SMs, larger clusters stop at the ends of GPCs. With two CTAs per SM twice as many.
CLUSTERS_AT_ONCE = np.array([1, 132, 66, 39, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7, 7, 7, 7], np.float64)
#: One TMA load from L2 until its barrier flips, cycles: of an idle chip, and under load (three stages of 128 x 192, of
#: which one is in use, take 1.1 to 1.2 times what four do: 16384_8192_8192, ``cudal2/data/recordings``).
LOAD_LATENCY, LOADED_LATENCY = 1_000.0, 1_700.0
#: Launch, tensor-map fetch and barrier set-up before the first load; microseconds.
PROLOGUE_US = 2.0
#: Bytes per cycle that one SM stores from registers, by TMA and directly.
STORE_TMA, STORE_DIRECT = 64.0, 40.0

#: What it takes with stream-K that parts of tiles meet, cycles: 0.4 % of 8192_8192_8192.
STREAM_K_CYCLES = 6_000.0

#: Until all CTAs know that what they copy first is there: a fence, a counter, and the first loads anew; microseconds.
#: And bytes that the copies read and write per microsecond. From 202 rows (``h200_sm90_odd_selections_fp32_tn``).
COPY_US, COPY_BYTES_PER_US = 3.6, 2.4e6

#: Bytes per cycle that one SM copies to shared memory, by a byte of the copies' width: of 2 to 8 that with the least
#: regret on 44 shapes of rows that TMA cannot read (1.12, 1.20 without; H200, 2026-11-30).
COPY_CYCLE_FACTOR = 5.0
#: Width of copies that pass through registers, so that no more than one stage of them is under way, and cycles until
#: the last slice of K knows that it is and has the others' sums: 0.9 us on 53_160_78 and 68_720_59 (H200, 2026-11-30).
STAGED_BYTES, LAST_ADDS_CYCLES = 2, 1_500.0
#: Multiplications that an SM's tensor cores take per cycle from mma.sync (A100 whitepaper: 1,024 fused multiply-adds).
MMA_PER_CYCLE = 1_024.0
#: C of this many bytes pushes operands out of L2 unless its lines are given up first (9 % at 512 MiB, measured); a
#: smaller one gains nothing by it, nor does a kernel by another split of registers, unless it is the one that fits.
C_FILLS_L2 = 256 * 2**20
EVICT_FIRST_GAIN, NO_GAIN = 0.95, 1.01
#: That L2 fetches less for a load, where rows start inside its sectors (1 to 18 % measured) and where memory is what
#: limits (1 to 8 %); elsewhere it gains nothing.
OFF_SECTORS_GAIN, BY_MEMORY_GAIN = 0.93, 0.97

#: What a family without an axis does on it.
ABSENT: dict[str, Any] = {
    "schedule": "coop",
    "consumers": 1,
    "cluster_m": 1,
    "cluster_n": 1,
    "split_k": 1,
    "persistent": False,
    "epilogue": "direct",
    "ctas_per_sm": 4,
    "raster": "m",
    "group": 1,
    "swap_ab": False,
    "split_via": "cluster",
    "producer_registers": 0,
    "store_hint": "normal",
    "store_buffers": STORE_BUFFERS,
    "resident_a": 0,
    "stream_k": False,
    "padded": False,
    "l2_promotion": PROMOTION_BYTES,
}


def predict_us(columns: Columns, problem: Problem, arch: Arch = SM90) -> Floats:
    """Estimated microseconds of configurations given as one array per axis (broadcastable)."""
    tile_m, tile_n, tile_k = (_floats(columns, name) for name in ("tile_m", "tile_n", "tile_k"))
    split, ctas_per_sm = _floats(columns, "split_k"), _floats(columns, "ctas_per_sm")
    cluster_m, cluster_n = _floats(columns, "cluster_m"), _floats(columns, "cluster_n")
    tiles_m = np.ceil(problem.m / (tile_m * cluster_m)) * cluster_m
    tiles_n = np.ceil(problem.n / (tile_n * cluster_n)) * cluster_n
    ctas = tiles_m * tiles_n * split
    resident = np.minimum(ctas, arch.sm_count * ctas_per_sm)
    waves = _waves(columns, ctas, arch)
    steps = np.ceil(np.ceil(problem.k / tile_k) / split)
    # CTAs that share a multiprocessor share its tensor cores and its port to L2.
    sharing = np.minimum(ctas_per_sm, np.maximum(1.0, resident / arch.sm_count))
    step = np.maximum(
        _mma_cycles(columns, tile_m, tile_n, tile_k) * sharing,
        _load_cycles(columns, tile_m, tile_n, tile_k, resident, problem) * sharing,
    )
    step = np.maximum(step, _wait_cycles(columns, np.where(columns["persistent"].astype(bool), waves, 1.0) * steps))
    epilogue = _epilogue_cycles(columns, tile_m, tile_n, split)
    tile_us = (LOAD_LATENCY + steps * step + epilogue) / CLOCK_PER_US
    overlapped = _overlap(columns) * (LOAD_LATENCY + epilogue) / CLOCK_PER_US
    parts_us = np.where(columns["stream_k"], STREAM_K_CYCLES, 0.0) / CLOCK_PER_US
    chip_us = PROLOGUE_US + waves * tile_us - (waves - 1.0) * overlapped + parts_us
    memory_us = _memory_us(columns, problem, (tile_m, tile_n), (tiles_m, tiles_n), resident / split)
    product_us = np.maximum(chip_us, PROLOGUE_US + memory_us) * _variant(columns, problem)
    return np.asarray(product_us + np.where(columns["padded"], COPY_US + sum(copies(problem)) / COPY_BYTES_PER_US, 0.0))


def _waves(columns: Columns, ctas: Floats, arch: Arch) -> Floats:
    """Of CTAs that run at once: of clusters above two fewer fit than a persistent grid has, and the rest runs after."""
    ctas_per_sm = _floats(columns, "ctas_per_sm")
    by_cluster = np.where(columns["split_via"] == "cluster", _floats(columns, "split_k"), 1.0)
    cluster = _floats(columns, "cluster_m") * _floats(columns, "cluster_n") * by_cluster
    launched = np.maximum(1.0, arch.sm_count * ctas_per_sm // cluster)
    fit = np.minimum(launched, ctas_per_sm * CLUSTERS_AT_ONCE[np.minimum(cluster, 16.0).astype(int)])
    persistent = columns["persistent"].astype(bool)
    rounds = np.where(persistent, np.ceil(np.minimum(launched, ctas / cluster) / fit), 1.0)
    wave = np.where(persistent, launched, fit) * cluster
    return np.asarray(waves_of(ctas, wave, columns["stream_k"]) * rounds)


def _variant(columns: Columns, problem: Problem) -> Floats:
    """Factor of what the times above do not tell apart, 1 at the defaults."""
    evicts = EVICT_FIRST_GAIN if 2 * problem.m * problem.n >= C_FILLS_L2 else NO_GAIN
    hint = np.where(columns["store_hint"] == "evict_first", evicts, 1.0)
    fetched = np.where(columns["l2_promotion"] < PROMOTION_BYTES, _fetches_less(problem), 1.0)
    return np.asarray(np.where(columns["producer_registers"] != 0, NO_GAIN, 1.0) * hint * fetched)


def _fetches_less(problem: Problem) -> float:
    """Of TMA, which reads copies where it cannot read the rows."""
    if off_sectors(problem, padded=True):
        return OFF_SECTORS_GAIN
    terms = terms_us(problem.m, problem.n, problem.k)
    return BY_MEMORY_GAIN if terms["hbm"] > terms["tensor"] else NO_GAIN


def _wait_cycles(columns: Columns, steps: Floats) -> Floats:
    """Cycles between loads of a ring that is refilled, of which one stage is in use: 0 stages are as many as fit."""
    stages = _floats(columns, "stages")
    if "copy_bytes" in columns:
        stages = np.where(columns["copy_bytes"] == STAGED_BYTES, 2.0, stages)
    return np.where((stages > 0.0) & (steps > stages), LOADED_LATENCY / np.maximum(1.0, stages - 1.0), 0.0)


def _floats(columns: Columns, name: str) -> Floats:
    return columns[name].astype(np.float64)


def _mma_cycles(columns: Columns, tile_m: Floats, tile_n: Floats, tile_k: Floats) -> Floats:
    """A 64 x n x 16 wgmma takes n/2 cycles, or as long as its operands take from shared memory at 128 B per cycle.

    With mma.sync every warp reads its own fragments of both operands.
    """
    swapped = columns["swap_ab"].astype(bool)
    side_m, side_n = np.where(swapped, tile_n, tile_m), np.where(swapped, tile_m, tile_n)
    by_wgmma = side_m / 64.0 * tile_k / 16.0 * np.maximum(side_n / 2.0, 16.0 + side_n / 4.0)
    if "warps_m" in columns:
        return _mma_sync_cycles(tile_m, tile_n, tile_k, _floats(columns, "warps_m"), _floats(columns, "warps_n"))
    if "variant" in columns:
        below = tile_m / 16.0
        by_mma = _mma_sync_cycles(tile_m, tile_n, tile_k, below, _floats(columns, "warps") / below)
        return np.where(columns["variant"] == "mma", by_mma, by_wgmma)
    return by_wgmma


def _mma_sync_cycles(tile_m: Floats, tile_n: Floats, tile_k: Floats, warps_m: Floats, warps_n: Floats) -> Floats:
    read = 2.0 * tile_k * (tile_m * warps_n + tile_n * warps_m)
    return np.maximum(tile_m * tile_n * tile_k / MMA_PER_CYCLE, read / 128.0)


def _load_cycles(
    columns: Columns, tile_m: Floats, tile_n: Floats, tile_k: Floats, resident: Floats, problem: Problem
) -> Floats:
    """Cycles to bring one stage from L2; a multicast operand is read once per cluster, A that stays hardly ever."""
    rows = np.where(columns["resident_a"] > 0, 0.0, tile_m / _floats(columns, "cluster_n"))
    elements = rows + tile_n / _floats(columns, "cluster_m")
    off = np.where(columns["padded"], off_sectors(problem, padded=True), off_sectors(problem))
    rate = np.where(off, OFF_SECTORS_L2_BYTES_PER_US, L2_BYTES_PER_US) / CLOCK_PER_US
    width = columns["copy_bytes"] * COPY_CYCLE_FACTOR if "copy_bytes" in columns else 64.0
    bytes_per_cycle = np.minimum(np.minimum(64.0, width), rate / np.maximum(1.0, np.minimum(resident, 132.0)))
    return 2.0 * elements * tile_k / bytes_per_cycle


def _epilogue_cycles(columns: Columns, tile_m: Floats, tile_n: Floats, split: Floats) -> Floats:
    rate = np.where(columns["epilogue"] == "tma", STORE_TMA, STORE_DIRECT)
    # Through a workspace sums go to L2 and come back, behind a fence and a ticket.
    by_workspace = 2_500.0 + 8.0 * tile_m * tile_n / 40.0
    if "copy_bytes" in columns:  # the last to come adds all up
        by_workspace = LAST_ADDS_CYCLES + 4.0 * tile_m * tile_n * (split + 1.0) / 64.0
    by_cluster = 1_000.0 + 4.0 * tile_m * tile_n / 32.0
    reduction = np.where(columns["split_via"] == "workspace", by_workspace, by_cluster) * (split > 1.0)
    return np.asarray(300.0 + 2.0 * tile_m * tile_n / split / rate + reduction)


def _overlap(columns: Columns) -> Floats:
    """Share of the fill and the epilogue that hides behind another tile's main loop."""
    pingpong = np.where(columns["schedule"] == "pingpong", 0.9, 0.4)
    persistent = np.where(columns["persistent"].astype(bool), pingpong, 0.0)
    return np.maximum(persistent, np.where(_floats(columns, "ctas_per_sm") > 1.0, 0.5, 0.0))


def _memory_us(
    columns: Columns, problem: Problem, tile: tuple[Floats, Floats], tiles: tuple[Floats, Floats], concurrent: Floats
) -> Floats:
    """Device-memory time: what the tiles of one wave touch, by how the raster folds them, wave after wave."""
    (tile_m, tile_n), (tiles_m, tiles_n) = tile, tiles
    along_m = columns["raster"] == "m"
    fast_side, slow_side = np.where(along_m, tiles_m, tiles_n), np.where(along_m, tiles_n, tiles_m)
    cluster = np.where(along_m, _floats(columns, "cluster_m"), _floats(columns, "cluster_n"))
    width = np.minimum(_floats(columns, "group") * cluster, fast_side)
    length = np.clip(concurrent / width, 1.0, slow_side)
    rows, cols = np.where(along_m, width, length), np.where(along_m, length, width)
    waves = np.maximum(1.0, tiles_m * tiles_n / np.maximum(1.0, concurrent))
    operands = 2.0 * waves * (rows * tile_m + cols * tile_n) * problem.k
    total = np.maximum(operands + 2.0 * problem.m * problem.n, float(problem.bytes_min))
    return total / HBM_BYTES_PER_US


def estimate_us(config: KernelConfig, problem: Problem, arch: Arch = SM90) -> float:
    """:func:`predict_us` of one configuration of any family."""
    values = {name: getattr(config, name, absent) for name, absent in ABSENT.items()} | config.to_dict()
    return float(predict_us({name: np.array(value) for name, value in values.items()}, problem, arch))
