"""What a configuration implies: CUTLASS's types, threads, shared memory, grid. Derived, never searched.

CUTLASS derives them again; ``kernels/include/cudal2/sm90_collective.cuh`` asserts that threads agree and that shared
memory suffices, and the host half of a kernel says what its grid is.
"""

from __future__ import annotations

from typing import Any

from cudal2.arch import SM90
from cudal2.problem import Acc, Dtype, Layout
from cudal2.space.config import Sm90CollectiveConfig
from cudal2.space.rule import ceil_div

ELEMENT_BYTES = 2
WARP_GROUP = 128
#: Barriers of all stages and of the epilogue, with the padding between the parts.
BARRIER_BYTES = 1_024
#: Columns of one epilogue subtile, and how many of them wait to be stored (CUTLASS, ``sm90_builder.inl``).
EPILOGUE_COLUMNS, EPILOGUE_BUFFERS = 32, 2
#: Registers that one CTA's setmaxnreg hands out, 40 x 128 + 232 x 256 (CUTLASS, both persistent kernels).
REGISTER_POOL = 64_512

_SCHEDULES = {
    "warpspecialized": ("KernelTmaWarpSpecialized", "gemm_universal.hpp"),
    "pingpong": ("KernelTmaWarpSpecializedPingpong", "sm90_gemm_tma_warpspecialized_pingpong.hpp"),
    "cooperative": ("KernelTmaWarpSpecializedCooperative", "sm90_gemm_tma_warpspecialized_cooperative.hpp"),
}


def consumers(config: Sm90CollectiveConfig) -> int:
    """Warp groups that multiply."""
    return 1 if config.schedule == "warpspecialized" else 2


def threads(config: Sm90CollectiveConfig) -> int:
    """Threads of one CTA: a producer warp group and the consumers."""
    return (1 + consumers(config)) * WARP_GROUP


def sharers(config: Sm90CollectiveConfig) -> int:
    """Consumer warp groups that share one tile."""
    return 2 if config.schedule == "cooperative" else 1


def stage_bytes(config: Sm90CollectiveConfig) -> int:
    """Bytes of A and B in one stage."""
    return (config.tile_m + config.tile_n) * config.tile_k * ELEMENT_BYTES


def epilogue_bytes(config: Sm90CollectiveConfig) -> int:
    """Subtiles of C that wait to be stored, 64 rows for each warp group that shares the tile."""
    if config.epilogue == "nosmem":
        return 0
    return EPILOGUE_BUFFERS * 64 * sharers(config) * EPILOGUE_COLUMNS * ELEMENT_BYTES


def least_smem_bytes(config: Sm90CollectiveConfig) -> int:
    """Dynamic shared memory with the stages asked for, or with the two that CUTLASS needs at least."""
    return max(2, config.stages) * stage_bytes(config) + epilogue_bytes(config) + BARRIER_BYTES


def smem_bytes(config: Sm90CollectiveConfig) -> int:
    """Dynamic shared memory of one CTA, all there is where CUTLASS counts the stages; an upper bound."""
    return least_smem_bytes(config) if config.stages else SM90.smem_bytes_per_block


def cluster_size(config: Sm90CollectiveConfig) -> int:
    """CTAs of one cluster."""
    return config.cluster_m * config.cluster_n


def tiles(config: Sm90CollectiveConfig, m: int, n: int) -> tuple[int, int]:
    """Tiles along M and N, in whole clusters."""
    tiles_m, tiles_n = ceil_div(m, config.tile_m), ceil_div(n, config.tile_n)
    return ceil_div(tiles_m, config.cluster_m) * config.cluster_m, ceil_div(
        tiles_n, config.cluster_n
    ) * config.cluster_n


def grid_ctas(config: Sm90CollectiveConfig, m: int, n: int, sm_count: int) -> int:
    """CTAs of one wave where the kernel is persistent, and at most a CTA per tile; CUTLASS may launch fewer."""
    tiles_m, tiles_n = tiles(config, m, n)
    if config.schedule == "warpspecialized":
        return tiles_m * tiles_n
    wave = max(1, sm_count // cluster_size(config)) * cluster_size(config)
    return wave if config.scheduler == "stream_k" else min(tiles_m * tiles_n, wave)


def constants(config: Sm90CollectiveConfig, acc: Acc, layout: Layout, dtype: Dtype) -> dict[str, Any]:
    """Everything the template may ask for; run-time axes are left out, so that they share cubins."""
    schedule, kernel_header = _SCHEDULES[config.schedule]
    store = "TmaWarpSpecializedCooperative" if config.schedule == "cooperative" else "TmaWarpSpecialized"
    element = "bfloat16_t" if dtype == "bf16" else "half_t"
    return {
        "build_name": config.build_name,
        "acc": acc,
        "layout": layout,
        "dtype": dtype,
        "tile_m": config.tile_m,
        "tile_n": config.tile_n,
        "tile_k": config.tile_k,
        "stages": config.stages,
        "cluster_m": config.cluster_m,
        "cluster_n": config.cluster_n,
        "persistent": config.schedule != "warpspecialized",
        "stream_k": config.scheduler == "stream_k",
        "b_k_major": layout == "tn",
        "tma_store": config.epilogue == "tma",
        "threads": threads(config),
        "smem_bytes": smem_bytes(config),
        "schedule": schedule,
        "kernel_header": kernel_header,
        "epilogue": store if config.epilogue == "tma" else "NoSmemWarpSpecialized",
        "element": element,
        "accumulator": "float" if acc == "fp32" else "cutlass::half_t",
        # With its waits for the previous grid, stream-K of CUTLASS 4.2 does not compile; ours stand around it.
        "gdc": "" if config.scheduler == "stream_k" else "#define CUTLASS_ENABLE_GDC_FOR_SM90",
    }


def register_pool(config: Sm90CollectiveConfig) -> int:
    """Registers of one CTA that setmaxnreg hands out; the kernel that is not persistent has none."""
    return 0 if config.schedule == "warpspecialized" else REGISTER_POOL
