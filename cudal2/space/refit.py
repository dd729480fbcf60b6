"""A configuration taken from the shape it was chosen on to another: what follows from the sizes follows these."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from cudal2.arch import Arch
from cudal2.problem import Problem
from cudal2.space.config import STORE_BUFFERS, Epilogue, KernelConfig, MmaEpilogue, Sm80MmaConfig, Sm90WsConfig
from cudal2.space.rule import ceil_div, share_k_tiles
from cudal2.space.shared_rules import tma_reads, tma_stores
from cudal2.space.sm80_mma.geometry import BLOCK
from cudal2.space.sm90_ws.geometry import TMA_ROW_BYTES
from cudal2.space.space import SearchSpace
from cudal2.space.waves import waves_of

#: Elements of C from which rows that begin inside 16 bytes are worth a way through shared memory: the same kernels of
#: ``sm80_mma`` took, with direct stores, 0.98 times as long over 31 shapes of 10^5 to 4 10^5 elements, 1.06 over 19 of
#: up to 10^6, 1.13 over 16 of over 4 10^6, and 0.89 over 97 smaller ones (H200, ``h200_sm80_unaligned_swept_fp32_*``).
SHIFTED_C = 2**18
#: Logarithm of more waste from which the tile gives way, and what a factor between its sides is worth of it.
RETILE_FROM, RETILE_COST = 0.1, 0.2

#: Rows or columns of C that were one tile of wgmma's free side stay one up to so many: two would read the other operand
#: twice. 32 rows by tiles of 16 took 1.4 to 1.6 times as long as by one of 32 on four shapes of layers (H200,
#: ``h200_sm90_layers_swept_fp32_tn``).
ONE_TILE = 64

#: K tiles of a slice from which a kernel that did not split may begin to.
BEGIN_SLICE_TILES = 2
#: Columns of the widest box of N-major B, and of those from which tiles are loaded as fast.
BOX_COLUMNS, NARROW_COLUMNS = 64, 32
#: What L2 reads from memory at a time (CUDA C++ Best Practices Guide, coalesced access), and what it should fetch for a
#: load where rows start inside one.
SECTOR_BYTES, OFF_SECTORS_PROMOTION = 32, 128


def refit(config: KernelConfig, source: Problem, problem: Problem, space: SearchSpace) -> KernelConfig | None:
    """The configuration as suits ``problem``, if anything like it is legal there; on its own shape it stays as it is.

    A tile that wastes more than it did there gives way on one side, one of ``sm80_mma`` that is deeper than K becomes
    shallower, a split of K keeps the number of CTAs, a ring that was as deep as could be is so again, a prefetch of all
    that a CTA had stays one, A that stays is all of A or none, a last wave is shared out where it can be.
    Where rows are off the sectors of L2 and were not, it fetches less for each load.
    The run-time axes go, where they must, from their own value down to their first: smaller groups, plainer orders.

    Args:
        config: Legal on ``source``.
        source: Where it was chosen.
        problem: Where it is to run.
        space: The full space of its family.
    """
    same = source == problem
    for kernel in (config,) if same else _kernels(_shallow(config, problem, space), source, problem, space):
        if space.buildable(kernel, problem):
            fitted = _launched(kernel, source, problem, space)
            if fitted is not None:
                return fitted
    return None


def _shallow(config: KernelConfig, problem: Problem, space: SearchSpace) -> KernelConfig:
    """With a shallower K tile of ``sm80_mma`` where its own would hold whole blocks of zeros."""
    depth = BLOCK * ceil_div(problem.k, BLOCK)
    if not isinstance(config, Sm80MmaConfig) or config.tile_k <= depth:
        return config
    values = (value for value in space.axis("tile_k").values if value <= depth)
    return replace(config, tile_k=max(values, default=config.tile_k))


def suited(config: KernelConfig, problem: Problem) -> KernelConfig:
    """The configuration with what the problem decides and no search chooses: how its rows can be read and written.

    Copies to shared memory are as wide as rows allow. Operands whose rows TMA cannot read are copied first, and nothing
    of them is fetched before. Where TMA cannot store the rows of C, registers do, by 16 bytes where they can, and
    ``sm80_mma`` goes through shared memory for a large C.
    """
    if isinstance(config, Sm80MmaConfig):
        return replace(config, copy_bytes=problem.alignment_bytes, epilogue=_mma_epilogue(config, problem))
    if isinstance(config, Sm90WsConfig):
        if not tma_stores(problem):
            epilogue: Epilogue = "direct" if config.swap_ab or config.split_k > 1 else "shifted"
            config = replace(config, epilogue=epilogue, store_hint="normal", store_buffers=STORE_BUFFERS)
        elif config.epilogue == "shifted":
            # Direct stores are of 16 bytes, and as fast, for light kernels whose columns 16 divides.
            light = config.consumers == 1 and config.tile_n % 16 == 0
            config = replace(config, epilogue="direct" if light else "tma")
        padded = not tma_reads(problem)
        return replace(config, padded=padded, l2_prefetch=0 if padded else config.l2_prefetch)
    return config


def _mma_epilogue(config: Sm80MmaConfig, problem: Problem) -> MmaEpilogue:
    if not tma_stores(problem):
        return "shifted" if problem.m * problem.n > SHIFTED_C else "direct"
    return "wide" if config.epilogue == "shifted" else config.epilogue


def transposed(problem: Problem, config: KernelConfig) -> tuple[Problem, KernelConfig] | None:
    """The same tiles of the transposed product, for families that can swap operands: what B is there, A is here."""
    if not isinstance(config, Sm90WsConfig) or problem.layout != "tn":
        return None
    return replace(problem, m=problem.n, n=problem.m), _turned(config)


def _turned(config: Sm90WsConfig) -> Sm90WsConfig:
    return replace(
        config,
        tile_m=config.tile_n,
        tile_n=config.tile_m,
        cluster_m=config.cluster_n,
        cluster_n=config.cluster_m,
        swap_ab=not config.swap_ab,
        resident_a=0,
        raster="n" if config.raster == "m" else "m",
    )


def unswapped(config: KernelConfig, problem: Problem) -> KernelConfig:
    """The same tile turned where TMA cannot store the rows of C, of which swapped operands have 32 bytes in a warp.

    Stored by 16 bytes the same product takes half to nine tenths of the time (H200, 2026-11-30: 8192_8191_1024 0.60,
    4095_4095_1023 0.68, 3128_3092_996 0.92). Not where C has fewer rows than the tile would, nor where sums of K meet.
    """
    if not isinstance(config, Sm90WsConfig) or tma_stores(problem) or not config.swap_ab:
        return config
    return _turned(config) if config.split_k == 1 and problem.m >= config.tile_n else config


def bases(config: KernelConfig, source: Problem, problem: Problem, space: SearchSpace) -> list[KernelConfig]:
    """What is refitted, best first: the configuration, and before it the same :func:`unswapped` if that differs."""
    turned = unswapped(with_split(config, resplit(config, source, problem, space)[0]), problem)
    return [config] if getattr(turned, "swap_ab", False) == getattr(config, "swap_ab", False) else [turned, config]


def log_waste(config: KernelConfig, problem: Problem, arch: Arch) -> float:
    """Logarithm of what whole waves of whole tiles compute over what the product needs."""
    waves = waves_of(_ctas(config, problem), arch.sm_count, getattr(config, "stream_k", False))
    share = ceil_div(ceil_div(problem.k, config.tile_k), getattr(config, "split_k", 1))
    padded = float(waves) * arch.sm_count * config.tile_m * config.tile_n * share * config.tile_k
    return math.log(padded / (problem.m * problem.n * problem.k))


def resplit(config: KernelConfig, source: Problem, problem: Problem, space: SearchSpace) -> list[int]:
    """Splits of K for another shape, the one that keeps the number of CTAs first; what does not split stays so.

    Kernels of ``sm80_mma`` begin to split, too, where each slice has two K tiles: of 92 pairs of the same kernel with
    one K tile a slice and unsplit (``h200_sm80_odd_swept_fp32_tn``) the split one is 1.08x slower in the mean, with
    more it is faster.
    """
    split = getattr(config, "split_k", 1)
    if source == problem or (split == 1 and not isinstance(config, Sm80MmaConfig)):
        return [split]
    most = ceil_div(problem.k, config.tile_k) // BEGIN_SLICE_TILES if split == 1 else math.inf
    values = [value for value in space.axis("split_k").values if value == 1 or value <= most]
    wanted, tiles = math.log(_ctas(config, source)), _ctas(with_axes(config, split_k=1), problem)
    return sorted(values, key=lambda other: (abs(math.log(tiles * other) - wanted), other))


def retiled(config: KernelConfig, source: Problem, problem: Problem, space: SearchSpace) -> KernelConfig:
    """With the side of its tile that wgmma leaves free fitted to the shape, where the tile as it is wastes more here.

    72 rows by tiles of 64 cost twice what 64 do; by tiles of 80 little more. Few rows that were one tile stay one.
    """
    if not isinstance(config, Sm90WsConfig) or source == problem:
        return config
    side = "tile_m" if config.swap_ab else "tile_n"
    before: int = getattr(config, side)
    there, here = (source.m, problem.m) if config.swap_ab else (source.n, problem.n)
    if there <= before < here <= ONE_TILE:
        return with_axes(config, **{side: min(value for value in space.axis(side).values if value >= here)})
    if log_waste(config, problem, space.arch) - log_waste(config, source, space.arch) < RETILE_FROM:
        return config
    values = [value for value in space.axis(side).values if value <= 2 * before]

    def cost(value: int) -> float:
        waste = log_waste(with_axes(config, **{side: value}), problem, space.arch)
        return waste + RETILE_COST * abs(math.log(value / before))

    return with_axes(config, **{side: min(values, key=cost, default=before)})


def _kernels(config: KernelConfig, source: Problem, problem: Problem, space: SearchSpace) -> Iterator[KernelConfig]:
    """The kernels to try, most alike first."""
    axes = {axis.name: axis.values for axis in space.axes}
    deeper = (replace(config, stages=depth) for depth in axes["stages"] if depth > config.stages)
    full = not space.explain(config, source) and all(space.explain(ring, source) for ring in deeper)
    depths = [depth for depth in axes["stages"] if full or depth <= config.stages]
    forms = []
    for base in bases(config, source, problem, space):
        forms += [base, with_axes(base, stream_k=False)] if getattr(base, "stream_k", False) else [base]
    tiles = dict.fromkeys(tile for form in forms for tile in (retiled(form, source, problem, space), form))
    tiles = dict.fromkeys(_boxed(tile, config, source, problem, space.arch) for tile in tiles)
    for tile in (kept for either in tiles for kept in _keeping(either, problem, space)):
        for split in resplit(tile, source, problem, space):
            for depth in sorted(depths, reverse=True):
                yield _promoted(suited(with_axes(with_split(tile, split), stages=depth), problem), source, problem)


def _promoted(config: KernelConfig, source: Problem, problem: Problem) -> KernelConfig:
    """With the L2 promotion of rows off the sectors where its own were on them."""
    # 1 to 18 % faster on 19 of 21 shapes with K % 16 == 8 (H200, 2026-11-30, PDL).
    if hasattr(config, "l2_promotion") and off_sectors(problem, padded=True) and not off_sectors(source, padded=True):
        return with_axes(config, l2_promotion=OFF_SECTORS_PROMOTION)
    return config


def off_sectors(problem: Problem, padded: bool = False) -> bool:
    """Whether rows of A or B start inside a sector of L2.

    Args:
        problem: Whose rows.
        padded: Whether those that TMA cannot read are copied first; copies are on the sectors.
    """
    row_bytes = (row for row in problem.row_bytes if not (padded and row % TMA_ROW_BYTES))
    return any(row % SECTOR_BYTES for row in row_bytes)


def _boxed(config: KernelConfig, chosen: KernelConfig, source: Problem, problem: Problem, arch: Arch) -> KernelConfig:
    """With whole boxes of 64 columns where N-major B would come in boxes of 16, which nobody chose there.

    Of 19 shapes with such a tile (``h200_sm90_swept_fp32_nn``, 2026-11-30) it took up to twice the best known time (80,
    112, 144, 176 or 208 columns), on few as long; of 71 the nearest whole boxes that waste least took 1.06 times in the
    mean, 1.6 times at most. Tiles of 96 and 160 columns hardly lose.
    """
    measured = source.layout == "nn" and getattr(chosen, "tile_n", 0) == config.tile_n
    if problem.layout == "tn" or measured or not isinstance(config, Sm90WsConfig) or config.swap_ab:
        return config
    if config.tile_n % NARROW_COLUMNS == 0 or config.tile_n < NARROW_COLUMNS:
        return config
    below = config.tile_n // BOX_COLUMNS * BOX_COLUMNS
    near = [with_axes(config, tile_n=columns) for columns in (below + BOX_COLUMNS, below) if columns]
    return min(near, key=lambda one: log_waste(one, problem, arch))


def _keeping(config: KernelConfig, problem: Problem, space: SearchSpace) -> Iterator[KernelConfig]:
    """With the least of A kept that holds all of this K, where any was; then with none."""
    if getattr(config, "resident_a", 0):
        values = space.axis("resident_a").values
        if holding := [value for value in values if value >= ceil_div(problem.k, config.tile_k)]:
            yield with_axes(config, resident_a=min(holding))
        config = with_axes(config, resident_a=0)
    yield config


def _launched(config: KernelConfig, source: Problem, problem: Problem, space: SearchSpace) -> KernelConfig | None:
    """With the closest run-time axes that are legal."""
    axes = {axis.name: axis for axis in space.axes if not axis.compile_time}
    choices = {name: axis.down_from(getattr(config, name)) for name, axis in axes.items()}
    prefetch = getattr(config, "l2_prefetch", 0)
    if prefetch and source != problem and prefetch >= share_k_tiles(config, source):
        choices["l2_prefetch"] = axes["l2_prefetch"].values[::-1]
    variants = (replace(config, **dict(zip(choices, values, strict=True))) for values in product(*choices.values()))
    first = next(variants)
    if not space.explain(first, problem):
        return first
    rest = list(variants)  # judged at once: mostly none of a hundred is legal
    legal = np.flatnonzero(space.allows(rest, problem))
    return rest[legal[0]] if legal.size else None


def with_axes(config: KernelConfig, **values: Any) -> KernelConfig:
    """With other values of axes, which not every family has."""
    return replace(config, **values)


def with_split(config: KernelConfig, split: int) -> KernelConfig:
    """With another split of K, for families that have one."""
    return with_axes(config, split_k=split) if hasattr(config, "split_k") else config


def _ctas(config: KernelConfig, problem: Problem) -> int:
    """CTAs of whole clusters, one for each tile and slice of K."""
    cluster_m, cluster_n = getattr(config, "cluster_m", 1), getattr(config, "cluster_n", 1)
    clusters = ceil_div(problem.m, config.tile_m * cluster_m) * ceil_div(problem.n, config.tile_n * cluster_n)
    ctas: int = clusters * cluster_m * cluster_n * getattr(config, "split_k", 1)
    return ctas
