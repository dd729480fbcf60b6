"""From a configuration and a problem to what a launch needs: grid, tensor-map geometry, the kernel's parameter struct.

Pure arithmetic; no CUDA. The struct is ``GemmParams`` of ``kernels/include/cudal2/params.cuh``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cudal2.problem import Problem
from cudal2.space import geometry
from cudal2.space.config import KernelConfig

PARAMS_BYTES = 448
PARAMS_ALIGNMENT = 64
MAP_WORDS = 16

Words: TypeAlias = NDArray[np.uint64]

#: ``GemmParams``; the tensor maps are opaque words.
PARAMS = np.dtype(
    {
        "names": ["a", "b", "c", "c_ptr", "m", "n", "k", "ldc", "tiles_m", "tiles_n", "raster_n", "group"],
        "formats": [("<u8", MAP_WORDS)] * 3 + ["<u8"] + ["<i4"] * 8,
        "offsets": [0, 128, 256, 384, 392, 396, 400, 404, 408, 412, 416, 420],
        "itemsize": PARAMS_BYTES,
    }
)


@dataclass(frozen=True)
class MapSpec:
    """Geometry of one tensor map: a row-major fp16 matrix without padding, and the box TMA moves at a time.

    Attributes:
        columns: Elements of the contiguous axis.
        rows: Elements of the other axis.
        box_columns: Box along the contiguous axis; its bytes are the swizzle span.
        box_rows: Box along the other axis.
    """

    columns: int
    rows: int
    box_columns: int
    box_rows: int

    @property
    def row_bytes(self) -> int:
        """Distance between rows."""
        return self.columns * geometry.ELEMENT_BYTES

    @property
    def swizzle_bytes(self) -> int:
        """Span of the shared-memory swizzle: 128, 64 or 32."""
        return self.box_columns * geometry.ELEMENT_BYTES


@dataclass(frozen=True)
class LaunchPlan:
    """Everything about a launch but the addresses.

    Attributes:
        grid: CTAs, one-dimensional.
        block: Threads per CTA.
        cluster: CTAs per cluster, one-dimensional.
        smem_bytes: Dynamic shared memory per CTA.
        a: Map of A.
        b: Map of B.
        c: Map of C; ``None`` where the epilogue stores from registers.
        scalars: Fields of the parameter struct by name.
    """

    grid: int
    block: int
    cluster: int
    smem_bytes: int
    a: MapSpec
    b: MapSpec
    c: MapSpec | None
    scalars: dict[str, int]


def plan_launch(config: KernelConfig, problem: Problem, sm_count: int) -> LaunchPlan:
    """The launch of a legal configuration on a problem."""
    m, n, k = problem.m, problem.n, problem.k
    tiles_m, tiles_n = geometry.cluster_tiles(config, m, n)
    return LaunchPlan(
        grid=geometry.grid_ctas(config, m, n, sm_count),
        block=geometry.threads(config),
        cluster=geometry.cluster_size(config),
        smem_bytes=geometry.smem_bytes(config),
        a=MapSpec(k, m, 64, config.tile_m // config.cluster_n),
        b=_b_spec(config, problem),
        c=MapSpec(n, m, geometry.store_columns(config), 64) if config.epilogue == "tma" else None,
        scalars={
            "m": m,
            "n": n,
            "k": k,
            "ldc": n,
            "tiles_m": tiles_m,
            "tiles_n": tiles_n,
            "raster_n": int(config.raster == "n"),
            "group": config.group,
        },
    )


def _b_spec(config: KernelConfig, problem: Problem) -> MapSpec:
    columns = geometry.b_box_columns(config, problem.layout)
    if problem.layout == "tn":
        return MapSpec(problem.k, problem.n, columns, config.tile_n // config.cluster_m)
    return MapSpec(problem.n, problem.k, columns, config.tile_k // config.cluster_m)


class ParamSets:
    """Parameter structs of one launch for several buffer sets, and the pointers ``cuLaunchKernelEx`` takes.

    Args:
        plan: The launch.
        a: Encoded maps of A, one row of ``MAP_WORDS`` per set.
        b: The same of B.
        c: The same of C; ``None`` where the epilogue needs none.
        c_pointers: Address of C in each set.
    """

    def __init__(self, plan: LaunchPlan, a: Words, b: Words, c: Words | None, c_pointers: Words) -> None:
        """Packs all structs at once."""
        self.structs = _aligned_structs(len(c_pointers))
        self.structs["a"], self.structs["b"] = a, b
        if c is not None:
            self.structs["c"] = c
        self.structs["c_ptr"] = c_pointers
        for name, value in plan.scalars.items():
            self.structs[name] = value
        base = self.structs.ctypes.data
        self._slots = base + PARAMS_BYTES * np.arange(len(c_pointers), dtype=np.uint64)
        self._slots_base = int(self._slots.ctypes.data)

    @classmethod
    def blank(cls, plan: LaunchPlan) -> ParamSets:
        """One struct without addresses and maps, which are for the caller to fill in place."""
        empty = np.zeros((1, MAP_WORDS), np.uint64)
        return cls(plan, empty, empty, None, empty[:, 0])

    def field(self, name: str) -> int:
        """Address of a field of the first struct."""
        return int(self.structs.ctypes.data + PARAMS.fields[name][1])  # type: ignore[index]

    def kernel_params(self, index: int) -> int:
        """Address of the one-element ``void* kernelParams[]`` of a set."""
        return self._slots_base + 8 * index


def _aligned_structs(count: int) -> NDArray[Any]:
    raw = np.zeros(count * PARAMS_BYTES + PARAMS_ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % PARAMS_ALIGNMENT
    return raw[offset : offset + count * PARAMS_BYTES].view(PARAMS)
