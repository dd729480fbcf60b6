"""The axes of every family and their values, in the order a policy chooses them; the only place they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from cudal2.errors import UsageError


@dataclass(frozen=True)
class Axis:
    """One field of a configuration and the values it may take, in order.

    Attributes:
        name: Field of the family's :class:`~cudal2.space.config.KernelConfig`.
        values: Candidates; neighbours are adjacent in this order.
        compile_time: Whether another value means another cubin.
        doc: One line for people.
    """

    name: str
    values: tuple[Any, ...]
    compile_time: bool
    doc: str

    def __len__(self) -> int:
        """Number of values."""
        return len(self.values)

    def index(self, value: Any) -> int:
        """Position of a value.

        Raises:
            UsageError: The axis does not hold it.
        """
        try:
            return self.values.index(value)
        except ValueError:
            raise UsageError(f"{self.name} = {value!r} is not on the axis: choose one of {self.listing}") from None

    def neighbours(self, value: Any) -> tuple[Any, ...]:
        """The values one step away, lower first."""
        at = self.index(value)
        return self.values[max(0, at - 1) : at] + self.values[at + 1 : at + 2]

    def down_from(self, value: Any) -> tuple[Any, ...]:
        """The value and all before it, backwards; only the first where the axis does not hold it."""
        return self.values[self.values.index(value) :: -1] if value in self.values else self.values[:1]

    def narrowed(self, values: tuple[Any, ...]) -> Axis:
        """The axis with only these values, in the axis's own order.

        Raises:
            UsageError: A value is not on the axis, or none is given.
        """
        kept = {self.index(value) for value in values}
        if not kept:
            raise UsageError(f"{self.name} is left without values: keep some of {self.listing}")
        return replace(self, values=tuple(self.values[at] for at in sorted(kept)))

    @property
    def listing(self) -> str:
        """The values as text."""
        return ", ".join(str(value) for value in self.values)


#: Steps of 16, and of wgmma's 8 from 80 to 200, where what fills whole waves differs by shape.
_SM90_WS_SIDES = (16, 32, 48, 64, *range(80, 201, 8), 208, 224, 240, 256)

SM90_WS_AXES: tuple[Axis, ...] = (
    Axis("tile_m", _SM90_WS_SIDES, True, "rows of C per CTA tile"),
    Axis("tile_n", _SM90_WS_SIDES, True, "columns of C per CTA tile"),
    Axis("swap_ab", (False, True), True, "which side of the tile is wgmma's, of 64 rows: that of M, or that of N"),
    Axis("tile_k", (16, 32, 64, 128), True, "depth of one pipeline stage, elements; below 64 the swizzle's span"),
    Axis("schedule", ("coop", "pingpong"), True, "consumers share one tile, or take turns on their own"),
    Axis("consumers", (1, 2, 3), True, "consumer warp groups"),
    Axis("cluster_m", (1, 2, 4), True, "CTAs along M that share B by multicast"),
    Axis("cluster_n", (1, 2, 4), True, "CTAs along N that share A by multicast"),
    Axis("split_k", (1, 2, 3, 4, 5, 6, 7, 8, 16), True, "CTAs that split K"),
    Axis("split_via", ("cluster", "workspace"), True, "their sums meet in distributed shared memory, or in global"),
    Axis("stages", (2, 3, 4, 5, 6, 7, 8, 10, 12), True, "pipeline stages, the prefetch depth"),
    Axis(
        "stream_k",
        (False, True),
        True,
        "whether idle CTAs take parts along K of the tiles of a last wave that is not full",
    ),
    Axis(
        "epilogue",
        ("tma", "direct", "shifted"),
        True,
        "stmatrix and TMA store, or stores from registers, or those by 16 bytes to rows that TMA cannot store",
    ),
    Axis("store_hint", ("normal", "evict_first"), True, "whether L2 gives up first what TMA stores"),
    Axis("store_buffers", (2, 3, 4), True, "boxes in shared memory that a warp group's TMA stores go through"),
    Axis("resident_a", (0, 1, 2, 4), True, "K tiles of A that stay in shared memory from tile to tile, or none"),
    Axis("ctas_per_sm", (1, 2, 3, 4), True, "CTAs that fit one multiprocessor"),
    Axis("producer_registers", (0, 24), True, "left to a producer thread by setmaxnreg; 0: the family's choice"),
    Axis("padded", (False, True), True, "whether operands are copied first into rows that TMA can read"),
    Axis("raster", ("m", "n"), False, "axis along which consecutive tiles run inside a raster group"),
    Axis("group", (1, 2, 4, 8, 16), False, "tiles per raster group"),
    Axis("persistent", (False, True), False, "one CTA per tile, or one wave of CTAs that loop over tiles"),
    Axis("l2_prefetch", (0, 2, 64), False, "K tiles fetched into L2 while the previous grid still runs"),
    Axis("l2_promotion", (256, 128), False, "bytes that L2 fetches for a load of fewer"),
)

SM90_SMALL_AXES: tuple[Axis, ...] = (
    Axis("variant", ("wgmma", "mma"), True, "warp groups of 64 rows by wgmma, or warps of 16 rows by mma.sync"),
    Axis("tile_m", (16, 32, 64, 128), True, "rows of C per CTA tile"),
    Axis("tile_n", (8, 16, 24, 32, 48, 64, 96, 128), True, "columns of C per CTA tile"),
    Axis("tile_k", (64, 128, 256), True, "depth of one K tile, elements; one barrier counts it in"),
    Axis("warps", (1, 2, 4, 8), True, "warps of a CTA, which all multiply"),
    Axis("split_k", (1, 2, 3, 4, 5, 6, 7, 8, 16), True, "CTAs that split K and send each other partial sums"),
    Axis("stages", (1, 2, 3, 4, 6, 8), True, "K tiles in shared memory"),
    Axis("l2_prefetch", (0, 64), False, "K tiles fetched into L2 while the previous grid still runs"),
    Axis("l2_promotion", (256, 128), False, "bytes that L2 fetches for a load of fewer"),
)

SM80_MMA_AXES: tuple[Axis, ...] = (
    Axis("copy_bytes", (16, 8, 4, 2), True, "width of one copy to shared memory, what the rows' alignment allows"),
    Axis("tile_m", (16, 32, 64, 96, 128, 192, 256), True, "rows of C per CTA tile"),
    Axis("tile_n", (16, 32, 64, 96, 128, 160, 192, 256), True, "columns of C per CTA tile"),
    Axis("tile_k", (16, 32, 64, 128), True, "depth of one pipeline stage, elements"),
    Axis("warps_m", (1, 2, 4), True, "warps of a CTA along M"),
    Axis("warps_n", (1, 2, 4), True, "warps of a CTA along N"),
    Axis("stages", (2, 3, 4, 5, 6), True, "pipeline stages; all but one are prefetched"),
    Axis("smem_layout", ("swizzle", "pad"), True, "chunks of a row permuted, or rows one chunk longer"),
    Axis("fragments", (1, 2), True, "register buffers for fragments: 2 load ahead of the products"),
    Axis(
        "prefetch", ("plain", "staggered"), True, "copies of a stage together, or those of B behind the first products"
    ),
    Axis(
        "epilogue",
        ("direct", "wide", "shifted"),
        True,
        "predicated stores from registers, or through shared memory 16 bytes at a time, aligned or shifted rows",
    ),
    Axis("ctas_per_sm", (1, 2, 3, 4), True, "CTAs that fit one multiprocessor"),
    Axis("split_k", (1, 2, 3, 4, 6, 8, 16), True, "CTAs that split K, whose sums meet in a workspace"),
    Axis("raster", ("m", "n"), False, "axis along which consecutive tiles run inside a raster group"),
    Axis("group", (1, 2, 4, 8, 16), False, "tiles per raster group"),
)

SM90_COLLECTIVE_AXES: tuple[Axis, ...] = (
    Axis("tile_m", (64, 128, 256), True, "rows of C per CTA tile"),
    Axis("tile_n", (16, 32, 64, 96, 128, 160, 192, 256), True, "columns of C per CTA tile"),
    Axis("tile_k", (64, 128), True, "depth of one pipeline stage, elements"),
    Axis(
        "schedule",
        ("warpspecialized", "pingpong", "cooperative"),
        True,
        "KernelTmaWarpSpecialized, ...Pingpong, ...Cooperative",
    ),
    Axis("cluster_m", (1, 2, 4), True, "CTAs along M that share B by multicast"),
    Axis("cluster_n", (1, 2), True, "CTAs along N that share A by multicast"),
    Axis("stages", (0, 2, 3, 4, 5, 6, 8), True, "pipeline stages; 0 is as many as fit (StageCountAutoCarveout)"),
    Axis("epilogue", ("tma", "nosmem"), True, "TmaWarpSpecialized through shared memory, or NoSmemWarpSpecialized"),
    Axis("scheduler", ("persistent", "stream_k"), True, "PersistentScheduler or StreamKScheduler"),
    Axis("split_k", (1, 2, 3, 4, 6, 8, 16), False, "splits of the stream-K scheduler; 1 is stream-K itself"),
    Axis("raster", ("heuristic", "m", "n"), False, "order of tiles: CUTLASS's choice, along M, along N"),
    Axis("max_swizzle", (1, 2, 4, 8), False, "tiles of a raster group, at most"),
)
