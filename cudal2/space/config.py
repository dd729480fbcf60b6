"""``KernelConfig``: one complete choice of kernel, compile-time and run-time axes together; one class per family."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any, ClassVar, Literal, get_args, get_type_hints

from cudal2.errors import UsageError

Raster = Literal["m", "n"]
Schedule = Literal["coop", "pingpong"]
Epilogue = Literal["tma", "direct", "shifted"]
SmemLayout = Literal["swizzle", "pad"]
Prefetch = Literal["plain", "staggered"]
SplitVia = Literal["cluster", "workspace"]
StoreHint = Literal["normal", "evict_first"]
MmaEpilogue = Literal["direct", "wide", "shifted"]
Variant = Literal["wgmma", "mma"]
KernelSchedule = Literal["warpspecialized", "pingpong", "cooperative"]
CollectiveEpilogue = Literal["tma", "nosmem"]
TileScheduler = Literal["persistent", "stream_k"]
RasterOrder = Literal["heuristic", "m", "n"]

#: L2 promotion of the tensor maps of A and B by default, and of all kernels before it was an axis.
PROMOTION_BYTES = 256
#: Store buffers of a warp group without the axis: one box is written while another is read.
STORE_BUFFERS = 2


@dataclass(frozen=True, order=True)
class KernelConfig:
    """What every family has: a tile of C per CTA, a ring of stages, a tile order. Only the families are instantiated.

    Attributes:
        tile_m: Rows of C per CTA tile.
        tile_n: Columns of C per CTA tile.
        tile_k: Depth of one pipeline stage, in elements.
        stages: Pipeline stages, which is also the prefetch depth.
    """

    family: ClassVar[str]
    #: Fields that records of earlier versions lack; those configurations had the default.
    added: ClassVar[frozenset[str]] = frozenset()

    tile_m: int
    tile_n: int
    tile_k: int
    stages: int

    @property
    def build_name(self) -> str:
        """Compile-time part of the name; one cubin serves all that share it."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """Canonical name, unique over the family: the build name, then the run-time axes."""
        raise NotImplementedError

    @property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of the sorted JSON form; stable across versions that keep the fields."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; ``family`` included, so that a row describes itself."""
        return {"family": self.family, **asdict(self)}

    @classmethod
    def added_defaults(cls) -> dict[str, Any]:
        """What configurations recorded before a field was :attr:`added` had in it."""
        return {field.name: field.default for field in fields(cls) if field.name in cls.added}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> KernelConfig:
        """The inverse of :meth:`to_dict`, for every family; without one the first family is meant.

        Fields that were added later may be missing.

        Raises:
            UsageError: A field is missing, unknown or of the wrong kind, or the family is not one this version builds.
        """
        values = dict(values)
        family = values.pop("family", Sm90WsConfig.family)
        kind = CONFIGS.get(family) if isinstance(family, str) else None
        if kind is None:
            raise UsageError(f"{str(family)[:40]!r} is no kernel family of this version: {', '.join(CONFIGS)} are")
        names = {field.name for field in fields(kind)}
        values = {**kind.added_defaults(), **values}
        if set(values) != names:
            wrong = sorted(set(values) ^ names)
            raise UsageError(
                f"configuration of family '{family}' has wrong or missing fields {wrong}: made by another version?"
            )
        hints = _hints(kind.family)
        least = {field.name: 0 if field.default == 0 else 1 for field in fields(kind)}
        for name, value in values.items():
            if not _can_hold(hints[name], value, least[name]):
                raise UsageError(f"{name} = {str(value)[:40]!r} can be no value of a configuration")
        return kind(**values)


@dataclass(frozen=True, order=True)
class Sm90WsConfig(KernelConfig):
    """One point of the ``sm90_ws`` space; every field is an axis.

    Attributes:
        tile_m: Rows of C per CTA tile.
        tile_n: Columns of C per CTA tile.
        tile_k: Depth of one pipeline stage, in elements.
        stages: Pipeline stages, which is also the prefetch depth.
        schedule: ``coop``: the consumer warp groups share one tile by rows. ``pingpong``: each has its own tile.
        consumers: Consumer warp groups of 128 threads.
        cluster_m: CTAs of a cluster along M; they share B by multicast.
        cluster_n: CTAs of a cluster along N; they share A by multicast.
        split_k: CTAs that split K, each of which adds up a share of the tile.
        epilogue: ``tma``: stmatrix, then TMA store. ``direct``: predicated stores from registers. ``shifted``: the same
            for rows of C that TMA cannot store, moved in registers so that they are stored by 16 bytes all the same.
        ctas_per_sm: CTAs that must fit one multiprocessor.
        raster: Run time. Axis along which consecutive tiles run inside a raster group.
        group: Run time. Tiles per raster group.
        persistent: Run time. Grid of one wave that loops over tiles, against one CTA per tile.
        l2_prefetch: Run time. Most K tiles of a CTA's first tile that are fetched into L2 while the previous grid
            still runs.
        l2_promotion: Run time. Bytes that L2 fetches from memory for a load of fewer, by the tensor maps of A and B.
        swap_ab: The kernel computes the transpose of C: ``tile_n`` is the side of wgmma's 64 rows and of the consumers,
            ``tile_m`` the one that may be any multiple of 8.
        split_via: ``cluster``: CTAs that split K are a cluster, their sums meet in distributed shared memory.
            ``workspace``: they are not, and leave their sums in global memory.
        producer_registers: Registers that setmaxnreg leaves a producer thread, the rest going to the consumers; 0 for
            the family's own choice.
        store_hint: ``evict_first``: TMA stores ask L2 to give up what they wrote before anything else.
        store_buffers: Boxes in shared memory that a consumer warp group's TMA stores go through.
        resident_a: K tiles of A, at least all of K, that stay in shared memory while a CTA's tiles run along N; the
            stages hold B alone then. 0: both come with every stage.
        stream_k: The tiles of the last wave, where it is not full, are split along K for CTAs that would be idle; their
            sums meet in a workspace.
        padded: The kernel first copies operands whose rows TMA cannot read into rows that it can, with zeros behind.
    """

    family: ClassVar[str] = "sm90_ws"
    added: ClassVar[frozenset[str]] = frozenset(
        {
            "l2_prefetch",
            "l2_promotion",
            "swap_ab",
            "split_via",
            "producer_registers",
            "store_hint",
            "store_buffers",
            "resident_a",
            "stream_k",
            "padded",
        }
    )

    schedule: Schedule
    consumers: int
    cluster_m: int
    cluster_n: int
    split_k: int
    epilogue: Epilogue
    ctas_per_sm: int
    raster: Raster = "m"
    group: int = 8
    persistent: bool = True
    l2_prefetch: int = 0
    swap_ab: bool = False
    split_via: SplitVia = "cluster"
    producer_registers: int = 0
    store_hint: StoreHint = "normal"
    resident_a: int = 0
    l2_promotion: int = PROMOTION_BYTES
    stream_k: bool = False
    padded: bool = False
    store_buffers: int = STORE_BUFFERS

    @property
    def build_name(self) -> str:
        """Compile-time part, for example ``128x256x64_s4_coop2_c2x1_k1_tma_o1``.

        Behind it what is not the default of later axes: ``_swap``, ``_workspace``, ``_stream_k``, ``_a2`` (A
        stays), ``_r24``, ``_evict_first``, ``_b4`` (store buffers), ``_padded``.
        """
        return (
            f"{self.tile_m}x{self.tile_n}x{self.tile_k}_s{self.stages}_{self.schedule}{self.consumers}"
            f"_c{self.cluster_m}x{self.cluster_n}_k{self.split_k}_{self.epilogue}_o{self.ctas_per_sm}"
            f"{'_swap' if self.swap_ab else ''}{'_workspace' if self.split_via == 'workspace' else ''}"
            f"{'_stream_k' if self.stream_k else ''}{f'_a{self.resident_a}' if self.resident_a else ''}"
            f"{f'_r{self.producer_registers}' if self.producer_registers else ''}"
            f"{'_evict_first' if self.store_hint == 'evict_first' else ''}"
            f"{f'_b{self.store_buffers}' if self.store_buffers != STORE_BUFFERS else ''}"
            f"{'_padded' if self.padded else ''}"
        )

    @property
    def name(self) -> str:
        """Canonical name, unique over the space: the build name, raster axis, group, then ``p`` if persistent.

        Then, where they are not the default, ``f`` and the depth of the L2 prefetch, ``l`` and the L2 promotion.
        """
        prefetch = f"f{self.l2_prefetch}" if self.l2_prefetch else ""
        order = f"{self.raster}{self.group}{'p' if self.persistent else ''}"
        return f"{self.build_name}_{order}{prefetch}{_promotion(self.l2_promotion)}"


@dataclass(frozen=True, order=True)
class Sm80MmaConfig(KernelConfig):
    """One point of the ``sm80_mma`` space; every field is an axis.

    Attributes:
        tile_m: Rows of C per CTA tile.
        tile_n: Columns of C per CTA tile.
        tile_k: Depth of one pipeline stage, in elements.
        stages: Pipeline stages; all but one are prefetched.
        warps_m: Warps of a CTA along M.
        warps_n: Warps of a CTA along N.
        smem_layout: ``swizzle``: 16-byte chunks of a row are permuted. ``pad``: every row is one chunk longer.
        fragments: Register buffers for fragments: 1, or 2 to load the next step's while this one's are multiplied.
        prefetch: ``plain``: a stage's copies are issued together. ``staggered``: those of B behind the first products.
        epilogue: ``direct``: predicated stores from registers. ``wide``: through shared memory, 16 bytes a thread.
            ``shifted``: the same where rows of C begin inside 16 bytes of memory.
        copy_bytes: Width of one copy to shared memory: what the alignment of the operands' rows allows.
        ctas_per_sm: CTAs that must fit one multiprocessor.
        raster: Run time. Axis along which consecutive tiles run inside a raster group.
        group: Run time. Tiles per raster group.
        split_k: CTAs that split K, whose sums meet in a workspace in global memory.
    """

    family: ClassVar[str] = "sm80_mma"
    added: ClassVar[frozenset[str]] = frozenset({"split_k"})
    #: Where sums meet, which is no axis here: there are no clusters.
    split_via: ClassVar[SplitVia] = "workspace"

    warps_m: int
    warps_n: int
    smem_layout: SmemLayout
    fragments: int
    prefetch: Prefetch
    epilogue: MmaEpilogue
    copy_bytes: int
    ctas_per_sm: int
    raster: Raster = "m"
    group: int = 8
    split_k: int = 1

    @property
    def build_name(self) -> str:
        """Compile-time part, for example ``128x128x32_s4_w2x2_swizzle_f2_plain_wide_b16_o2``; ``_k4`` if K is split."""
        return (
            f"{self.tile_m}x{self.tile_n}x{self.tile_k}_s{self.stages}_w{self.warps_m}x{self.warps_n}"
            f"_{self.smem_layout}_f{self.fragments}_{self.prefetch}_{self.epilogue}_b{self.copy_bytes}_o{self.ctas_per_sm}"
            f"{f'_k{self.split_k}' if self.split_k > 1 else ''}"
        )

    @property
    def name(self) -> str:
        """Canonical name, unique over the family: the build name, then raster axis and group."""
        return f"{self.build_name}_{self.raster}{self.group}"


@dataclass(frozen=True, order=True)
class Sm90SmallConfig(KernelConfig):
    """One point of the ``sm90_small`` space; every field is an axis.

    Attributes:
        tile_m: Rows of C per CTA tile.
        tile_n: Columns of C per CTA tile.
        tile_k: Depth of one K tile, whose arrival one barrier counts, in elements.
        stages: K tiles in shared memory. With as many as the CTA's share of K has, none is filled twice.
        variant: ``wgmma``: warp groups take 64 rows each. ``mma``: warps take 16 rows each, by ldmatrix and mma.sync.
        warps: Warps of a CTA, which all multiply; four are a warp group.
        split_k: CTAs of a cluster that split K and send each other partial sums through distributed shared memory.
        l2_prefetch: Run time. Most K tiles of a CTA that are fetched into L2 while the previous grid still runs.
        l2_promotion: Run time. Bytes that L2 fetches from memory for a load of fewer, by the tensor maps.
    """

    family: ClassVar[str] = "sm90_small"
    added: ClassVar[frozenset[str]] = frozenset({"l2_promotion"})

    variant: Variant
    warps: int
    split_k: int
    l2_prefetch: int = 0
    l2_promotion: int = PROMOTION_BYTES

    @property
    def build_name(self) -> str:
        """Compile-time part, for example ``64x32x64_s4_wgmma4_k1``; one cubin serves all that share it."""
        return f"{self.tile_m}x{self.tile_n}x{self.tile_k}_s{self.stages}_{self.variant}{self.warps}_k{self.split_k}"

    @property
    def name(self) -> str:
        """Canonical name, unique over the family: the build name, with an L2 prefetch then ``f`` and its depth.

        An L2 promotion that is not the default comes last, as ``l`` and its bytes.
        """
        prefetch = f"f{self.l2_prefetch}" if self.l2_prefetch else ""
        run_time = f"{prefetch}{_promotion(self.l2_promotion)}"
        return f"{self.build_name}_{run_time}" if run_time else self.build_name


@dataclass(frozen=True, order=True)
class Sm90CollectiveConfig(KernelConfig):
    """One point of the ``sm90_collective`` space, in CUTLASS's words; every field is an axis.

    Attributes:
        tile_m: Rows of C per CTA tile.
        tile_n: Columns of C per CTA tile.
        tile_k: Depth of one pipeline stage, in elements.
        stages: ``StageCount``; 0 is ``StageCountAutoCarveout``, as many as fit beside the epilogue.
        schedule: ``KernelTmaWarpSpecialized`` and what follows in its name.
        cluster_m: CTAs of a cluster along M; they share B by multicast.
        cluster_n: CTAs of a cluster along N; they share A by multicast.
        epilogue: ``tma``: ``TmaWarpSpecialized``, or with its cooperative schedule ``...Cooperative``. ``nosmem``:
            ``NoSmemWarpSpecialized``, predicated stores from registers.
        scheduler: ``PersistentScheduler`` or ``StreamKScheduler``.
        split_k: Run time. ``splits`` of the stream-K scheduler; 1 is stream-K itself.
        raster: Run time. ``RasterOrderOptions``.
        max_swizzle: Run time. ``max_swizzle_size``, in tiles.
    """

    family: ClassVar[str] = "sm90_collective"

    stages: int = 0
    schedule: KernelSchedule = "cooperative"
    cluster_m: int = 1
    cluster_n: int = 1
    epilogue: CollectiveEpilogue = "tma"
    scheduler: TileScheduler = "persistent"
    split_k: int = 1
    raster: RasterOrder = "heuristic"
    max_swizzle: int = 1

    @property
    def build_name(self) -> str:
        """Compile-time part, for example ``128x256x64_s0_cooperative_c2x1_tma_persistent``."""
        return (
            f"{self.tile_m}x{self.tile_n}x{self.tile_k}_s{self.stages}_{self.schedule}"
            f"_c{self.cluster_m}x{self.cluster_n}_{self.epilogue}_{self.scheduler}"
        )

    @property
    def name(self) -> str:
        """Canonical name, unique over the family: the build name, splits of K, raster order and swizzle."""
        return f"{self.build_name}_k{self.split_k}_{self.raster}{self.max_swizzle}"


CONFIGS: dict[str, type[KernelConfig]] = {
    kind.family: kind for kind in (Sm90WsConfig, Sm90SmallConfig, Sm80MmaConfig, Sm90CollectiveConfig)
}


@cache
def _hints(family: str) -> dict[str, Any]:
    return get_type_hints(CONFIGS[family])


def _can_hold(kind: Any, value: Any, least: int) -> bool:
    """Whether a field may hold the value at all; which values are on its axis is for the space to say."""
    if texts := get_args(kind):
        return value in texts
    if kind is bool:
        return isinstance(value, bool)
    return type(value) is int and least <= value < 2**31


def _promotion(promotion_bytes: int) -> str:
    """Its part of a name, which the default has none of."""
    return f"l{promotion_bytes}" if promotion_bytes != PROMOTION_BYTES else ""
