"""From a configuration and a problem to what a launch needs: grid, tensor-map geometry, the kernel's parameter struct.

Pure arithmetic; no CUDA. The structs are ``GemmParams`` of ``kernels/include/cudal2/params.cuh``, for kernels that load
through tensor maps, ``WorkspaceParams`` of ``workspace.cuh``, ``PaddedParams`` of ``padded.cuh``, and, for those that
load by address, ``MmaParams`` of ``mma_params.cuh`` and ``SplitMmaParams`` of ``mma_split.cuh``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cudal2.problem import Dtype, Problem
from cudal2.space.config import PROMOTION_BYTES, KernelConfig, Sm80MmaConfig, Sm90SmallConfig, Sm90WsConfig
from cudal2.space.rule import share_k_tiles
from cudal2.space.sm80_mma import geometry as sm80_mma
from cudal2.space.sm90_small import geometry as sm90_small
from cudal2.space.sm90_ws import geometry as sm90_ws

ELEMENT_BYTES = 2
PARAMS_BYTES = 448
WORKSPACE_PARAMS_BYTES = 512
MMA_PARAMS_BYTES, SPLIT_MMA_PARAMS_BYTES = 64, 80
PARAMS_ALIGNMENT = 64
MAP_WORDS = 16
#: Cache policies as ``createpolicy.fractional`` encodes them (CuTe, ``TMA::CacheHintSm90``).
EVICT_NORMAL, EVICT_FIRST = 0x1000000000000000, 0x12F0000000000000

Words: TypeAlias = NDArray[np.uint64]

_SCALARS = ["m", "n", "k", "ldc", "tiles_m", "tiles_n", "raster_n", "group"]
_GEMM_NAMES = ["a", "b", "c", "c_ptr", *_SCALARS, "prefetch", "hint_a", "hint_b"]
_GEMM_FORMATS: list[Any] = [("<u8", MAP_WORDS)] * 3 + ["<u8"] + ["<i4"] * (len(_SCALARS) + 1) + ["<u8"] * 2
_GEMM_OFFSETS = [0, 128, 256, 384, *range(392, 428, 4), 432, 440]
#: ``GemmParams``; the tensor maps are opaque words.
PARAMS: np.dtype[np.void] = np.dtype(
    {"names": _GEMM_NAMES, "formats": _GEMM_FORMATS, "offsets": _GEMM_OFFSETS, "itemsize": PARAMS_BYTES}
)
#: ``WorkspaceParams``: the same, and where slices of K meet.
WORKSPACE_PARAMS: np.dtype[np.void] = np.dtype(
    {
        "names": [*_GEMM_NAMES, "partials", "tickets"],
        "formats": [*_GEMM_FORMATS, "<u8", "<u8"],
        "offsets": [*_GEMM_OFFSETS, 448, 456],
        "itemsize": WORKSPACE_PARAMS_BYTES,
    }
)
#: ``PaddedParams``: the same, operands as they came and where their copies go.
PADDED_PARAMS: np.dtype[np.void] = np.dtype(
    {
        "names": [*_GEMM_NAMES, "partials", "tickets", "a_ptr", "b_ptr", "a_copy", "b_copy", "counters"],
        "formats": [*_GEMM_FORMATS, *["<u8"] * 7],
        "offsets": [*_GEMM_OFFSETS, *range(448, 504, 8)],
        "itemsize": WORKSPACE_PARAMS_BYTES,
    }
)
_MMA_NAMES = ["a_ptr", "b_ptr", "c_ptr", *_SCALARS]
_MMA_FORMATS: list[Any] = ["<u8"] * 3 + ["<i4"] * len(_SCALARS)
_MMA_OFFSETS = [0, 8, 16, *range(24, 56, 4)]
#: ``MmaParams``.
MMA_PARAMS: np.dtype[np.void] = np.dtype(
    {"names": _MMA_NAMES, "formats": _MMA_FORMATS, "offsets": _MMA_OFFSETS, "itemsize": MMA_PARAMS_BYTES}
)
#: ``SplitMmaParams``: the same, and where slices of K meet.
SPLIT_MMA_PARAMS: np.dtype[np.void] = np.dtype(
    {
        "names": [*_MMA_NAMES, "partials", "tickets"],
        "formats": [*_MMA_FORMATS, "<u8", "<u8"],
        "offsets": [*_MMA_OFFSETS, 64, 72],
        "itemsize": SPLIT_MMA_PARAMS_BYTES,
    }
)

_STRUCTS = {
    "GemmParams": PARAMS,
    "WorkspaceParams": WORKSPACE_PARAMS,
    "PaddedParams": PADDED_PARAMS,
    "MmaParams": MMA_PARAMS,
    "SplitMmaParams": SPLIT_MMA_PARAMS,
}


@dataclass(frozen=True)
class MapSpec:
    """Geometry of one tensor map: a row-major matrix without padding, and the box TMA moves at a time.

    Attributes:
        columns: Elements of the contiguous axis.
        rows: Elements of the other axis.
        box_columns: Box along the contiguous axis; its bytes are the swizzle span.
        box_rows: Box along the other axis.
        dtype: Its elements, two bytes each.
        promotion_bytes: What L2 fetches from memory for a load of fewer bytes: 64, 128 or 256.
    """

    columns: int
    rows: int
    box_columns: int
    box_rows: int
    dtype: Dtype = "fp16"
    promotion_bytes: int = PROMOTION_BYTES

    @property
    def row_bytes(self) -> int:
        """Distance between rows."""
        return self.columns * ELEMENT_BYTES

    @property
    def swizzle_bytes(self) -> int:
        """Span of the shared-memory swizzle: 128, 64 or 32."""
        return self.box_columns * ELEMENT_BYTES


@dataclass(frozen=True)
class LaunchPlan:
    """Everything about a launch but the addresses.

    Attributes:
        grid: CTAs along the grid's first axis, which clusters divide.
        block: Threads per CTA.
        cluster: CTAs per cluster along the grid's first axis.
        smem_bytes: Dynamic shared memory per CTA.
        struct: The parameter struct.
        scalars: Its fields that are neither maps nor addresses, by name.
        a: Map of A; ``None`` where the kernel has no use for it, as for the others.
        b: Map of B.
        c: Map of C.
        grid_yz: CTAs along the other two.
        ticket_bytes: Global memory that must be zero before the first launch, and is after each; of one stream, since
            launches that overlap would share it.
        partial_bytes: Global memory behind it, for sums.
        copy_bytes: Global memory behind that, by operand, for copies that its map is of.
        counter_bytes: Of the tickets, those at the start that copies are counted by.
        cluster_y: CTAs per cluster along the grid's second axis.
    """

    grid: int
    block: int
    cluster: int
    smem_bytes: int
    struct: np.dtype[np.void]
    scalars: dict[str, Any]
    a: MapSpec | None = None
    b: MapSpec | None = None
    c: MapSpec | None = None
    grid_yz: tuple[int, int] = (1, 1)
    ticket_bytes: int = 0
    partial_bytes: int = 0
    copy_bytes: Mapping[str, int] = field(default_factory=dict)
    counter_bytes: int = 0
    cluster_y: int = 1

    @property
    def workspace_bytes(self) -> int:
        """Global memory that a launch needs besides the operands."""
        return self.ticket_bytes + self.partial_bytes + sum(self.copy_bytes.values())

    @property
    def places(self) -> dict[str, int]:
        """Where the struct's fields point in the workspace, in bytes from its start."""
        if not self.workspace_bytes:
            return {}
        found = {"counters": 0} if self.counter_bytes else {}
        found |= {"tickets": self.counter_bytes, "partials": self.ticket_bytes}
        at = self.ticket_bytes + self.partial_bytes
        for operand, size in self.copy_bytes.items():
            found[f"{operand}_copy"] = at
            at += size
        return found


def plan_launch(config: KernelConfig, problem: Problem, sm_count: int) -> LaunchPlan:
    """The launch of a legal configuration on a problem."""
    if isinstance(config, Sm80MmaConfig):
        return _plan_sm80_mma(config, problem, sm_count)
    if isinstance(config, Sm90SmallConfig):
        return _plan_sm90_small(config, problem)
    assert isinstance(config, Sm90WsConfig), config.family
    return _plan_sm90_ws(config, problem, sm_count)


def _plan_sm90_ws(config: Sm90WsConfig, problem: Problem, sm_count: int) -> LaunchPlan:
    m, n, k = problem.m, problem.n, problem.k
    tiles = sm90_ws.cluster_tiles(config, m, n)
    ticket_bytes, partial_bytes = sm90_ws.workspace_bytes(config, m, n, sm_count)
    counter_bytes = sm90_ws.COUNTER_BYTES if config.padded else 0
    copy_bytes = _copy_bytes(problem) if config.padded else {}
    copying = sm90_ws.copying_ctas(config, sum(copy_bytes.values()), sm_count)
    a, b = _operand_specs(config, problem)
    return LaunchPlan(
        grid=max(sm90_ws.grid_ctas(config, m, n, sm_count), copying),
        block=sm90_ws.threads(config),
        cluster=sm90_ws.cluster_size(config),
        smem_bytes=sm90_ws.smem_bytes(config),
        struct=_STRUCTS[sm90_ws.params(config)],
        ticket_bytes=counter_bytes + ticket_bytes,
        partial_bytes=partial_bytes,
        counter_bytes=counter_bytes,
        copy_bytes=copy_bytes,
        scalars=_scalars(problem, tiles, config.raster, config.group)
        | {"prefetch": sm90_ws.prefetch_tiles(config, m, n, k)}
        | _hints(*tiles),
        a=a,
        b=b,
        c=MapSpec(n, m, *sm90_ws.store_box(config), problem.dtype) if config.epilogue == "tma" else None,
    )


def _copy_bytes(problem: Problem) -> dict[str, int]:
    """Of the operands that TMA cannot read as they are."""
    sizes = {operand: sm90_ws.copy_bytes(*stored) for operand, stored in zip("ab", problem.stored, strict=True)}
    return {operand: size for operand, size in sizes.items() if size}


def _hints(tiles_m: int, tiles_n: int) -> dict[str, int]:
    """An operand that one row or column of tiles reads, and nobody again, need not stay in L2."""
    return {
        "hint_a": EVICT_FIRST if tiles_n == 1 < tiles_m else EVICT_NORMAL,
        "hint_b": EVICT_FIRST if tiles_m == 1 < tiles_n else EVICT_NORMAL,
    }


def _operand_specs(config: Sm90WsConfig, problem: Problem) -> tuple[MapSpec, MapSpec]:
    """Maps of A and B, or of their copies."""
    kind = problem.dtype, config.l2_promotion
    rows_a, rows_b = config.tile_m // config.cluster_n, config.tile_n if problem.layout == "tn" else config.tile_k
    (m, k), (rows, columns) = problem.stored
    a = MapSpec(k, m, sm90_ws.k_box_columns(config), rows_a, *kind)
    b = MapSpec(columns, rows, sm90_ws.b_box_columns(config, problem.layout), rows_b // config.cluster_m, *kind)
    return _readable(a), _readable(b)


def _readable(spec: MapSpec) -> MapSpec:
    """Of the operand's copy, where TMA cannot read its rows."""
    if not sm90_ws.copy_bytes(spec.rows, spec.columns):
        return spec
    return replace(spec, columns=sm90_ws.padded_columns(spec.columns))


def _plan_sm90_small(config: Sm90SmallConfig, problem: Problem) -> LaunchPlan:
    (m, k), (rows, columns) = problem.stored
    tiles = sm90_small.tiles(config, m, problem.n)
    box = sm90_small.b_box_columns(config, problem.layout), config.tile_n if problem.layout == "tn" else config.tile_k
    prefetch = min(config.l2_prefetch, share_k_tiles(config, problem))
    return LaunchPlan(
        grid=config.split_k,
        grid_yz=tiles,
        block=sm90_small.threads(config),
        cluster=sm90_small.cluster_size(config),
        smem_bytes=sm90_small.smem_bytes(config),
        struct=PARAMS,
        scalars=_scalars(problem, tiles, "m", 1) | {"prefetch": prefetch} | _hints(*tiles),
        a=MapSpec(k, m, 64, config.tile_m, problem.dtype, config.l2_promotion),
        b=MapSpec(columns, rows, *box, problem.dtype, config.l2_promotion),
    )


def _plan_sm80_mma(config: Sm80MmaConfig, problem: Problem, sm_count: int) -> LaunchPlan:
    m, n = problem.m, problem.n
    ticket_bytes, partial_bytes = sm80_mma.workspace_bytes(config, m, n)
    return LaunchPlan(
        grid=sm80_mma.grid_ctas(config, m, n, sm_count),
        block=sm80_mma.threads(config),
        cluster=sm80_mma.cluster_size(config),
        smem_bytes=sm80_mma.smem_bytes(config),
        struct=_STRUCTS[sm80_mma.params(config)],
        ticket_bytes=ticket_bytes,
        partial_bytes=partial_bytes,
        scalars=_scalars(problem, sm80_mma.tiles(config, m, n), config.raster, config.group),
    )


def _scalars(problem: Problem, tiles: tuple[int, int], raster: str, group: int) -> dict[str, int]:
    sizes = {"m": problem.m, "n": problem.n, "k": problem.k, "ldc": problem.n}
    return {**sizes, "tiles_m": tiles[0], "tiles_n": tiles[1], "raster_n": int(raster == "n"), "group": group}


class ParamSets:
    """Parameter structs of one launch for several buffer sets, and the pointers ``cuLaunchKernelEx`` takes.

    Args:
        plan: The launch.
        a: Address of A in each set.
        b: Address of B in each set.
        c: Address of C in each set.
        encode: Makes tensor maps, one row of ``MAP_WORDS`` per address; asked only for those the plan has.
        workspace: Address of the plan's workspace, which all sets share; 0 where it has none.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        a: Words,
        b: Words,
        c: Words,
        encode: Callable[[MapSpec, Words], Words],
        workspace: int = 0,
    ) -> None:
        """Packs all structs at once."""
        self.structs = _aligned_structs(plan.struct, len(c))
        places = plan.places
        for name, spec, addresses in (("a", plan.a, a), ("b", plan.b, b), ("c", plan.c, c)):
            if f"{name}_ptr" in (plan.struct.names or ()):
                self.structs[f"{name}_ptr"] = addresses
            if spec is not None:
                copy = places.get(f"{name}_copy")
                at = addresses if copy is None else np.full_like(addresses, workspace + copy)
                self.structs[name] = encode(spec, at)
        for name, value in plan.scalars.items():
            self.structs[name] = value
        for name, place in places.items():
            self.structs[name] = workspace + place
        base = self.structs.ctypes.data
        self._slots = base + plan.struct.itemsize * np.arange(len(c), dtype=np.uint64)
        self._slots_base = int(self._slots.ctypes.data)

    @classmethod
    def blank(
        cls, plan: LaunchPlan, workspace: int = 0, encode: Callable[[MapSpec, Words], Words] | None = None
    ) -> ParamSets:
        """One struct without addresses of operands and their maps, which are for the caller to fill in place.

        Args:
            plan: The launch.
            workspace: Address of its workspace.
            encode: Makes the maps of copies, which are always in the same place.
        """
        nowhere = np.zeros(1, np.uint64)
        maps = np.zeros((1, MAP_WORDS), np.uint64)

        def placed(spec: MapSpec, at: Words) -> Words:
            return encode(spec, at) if encode is not None and at[0] else maps

        return cls(plan, nowhere, nowhere, nowhere, placed, workspace)

    def field(self, name: str) -> int:
        """Address of a field of the first struct; 0 where the struct has none of this name."""
        fields: Mapping[str, Any] = self.structs.dtype.fields or {}
        return int(self.structs.ctypes.data + fields[name][1]) if name in fields else 0

    def kernel_params(self, index: int) -> int:
        """Address of the one-element ``void* kernelParams[]`` of a set."""
        return self._slots_base + 8 * index


def _aligned_structs(struct: np.dtype[np.void], count: int) -> NDArray[Any]:
    size = count * struct.itemsize
    raw = np.zeros(size + PARAMS_ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % PARAMS_ALIGNMENT
    return raw[offset : offset + size].view(struct)
