"""The legality rules of the ``sm90_ws`` space: each a named predicate over a few axes and a sentence that says why not.

A predicate is written once. It takes a configuration, or as many configurations as its axes have combinations: then the
fields are arrays that broadcast against each other. ``geometry`` stays the one place where sizes are derived.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cudal2.arch import Arch
from cudal2.problem import Problem
from cudal2.space.config import STORE_BUFFERS, Sm90WsConfig
from cudal2.space.raster import raster_rules
from cudal2.space.rule import INT32_MAX, Choice, Rule, ceil_div, lifted, share_k_tiles
from cudal2.space.shared_rules import (
    MULTICAST_CTAS,
    WARP,
    multicast_slice,
    occupancy,
    register_share,
    shared_memory,
    split_k_depth,
    tile_k_padding,
    tma_stores,
)
from cudal2.space.sm90_ws import geometry as geo
from cudal2.space.sm90_ws.padding import PADDED_PREFETCH, PADDING
from cudal2.space.sm90_ws.splitting import SPLITTING, SPLITTING_BY_SIZE
from cudal2.space.sm90_ws.tiling import TILING, cluster_ctas, cluster_split, clusters, ctas, tiles_m, tiles_n, wave

#: Registers a consumer thread needs beside its accumulators: addresses, descriptors, barrier phases. Measured over
#: 1,200 compiles (NVRTC 13.0): with 32 to spare up to 17 words spill (split-K 2; with copies and four CTAs per SM 46),
#: with 31 393, with less none compiles.
WORKING_REGISTERS = 32
#: Direct stores of 128 rows keep more addresses: with 40 to spare 256x192 fp32 spills 1316 bytes, 128x256 fp16 2432.
DIRECT_WORKING_REGISTERS = 48
#: Registers at entry with three consumers, and all that ptxas grants the operands of one wgmma, whatever setmaxnreg
#: adds later: 192x224 (112 accumulators) does not compile (C7602, "register target of 138 or higher").
THREE_CONSUMERS_CAP = 128
#: Registers of a consumer thread that stream-K adds parts in: with 56 and 72 up to 88 bytes spill, with 96 none.
STREAM_K_REGISTERS = 96
#: The lesser of the two prefetch depths; a deeper one that finds no more to fetch is the same.
SHALLOW_PREFETCH = 2

#: Columns of the narrowest box of row-major B: one swizzle span.
N_MAJOR_COLUMNS = 16
#: Depth of a K tile that fills a swizzle row of 128 bytes. Longer K than NARROW_K gains nothing from shallower ones.
WHOLE_ROW = 64
NARROW_K = 256

_BODY_AXES = (
    "tile_m", "tile_n", "tile_k", "stages", "consumers", "split_k", "split_via", "epilogue", "swap_ab", "resident_a",
    "store_buffers",
)  # fmt: skip
_smem = lifted(geo.smem_bytes, *_BODY_AXES)
_threads = lifted(geo.threads, "consumers", "ctas_per_sm")
_setmaxnreg = lifted(lambda config: geo.setmaxnreg(config)[1], "consumers", "ctas_per_sm", "producer_registers")


def register_cap(choice: Choice, arch: Arch) -> Any:
    """Registers one consumer thread may use, after setmaxnreg where it is used."""
    share = register_share(choice.ctas_per_sm * _threads(choice) // WARP, arch)
    moved = _setmaxnreg(choice)
    capped = np.where(np.equal(choice.consumers, 3), THREE_CONSUMERS_CAP, moved)
    return np.where(moved, capped, share)


def _wgmma_m(choice: Choice) -> Any:
    """The side of the tile that wgmma's rows and the consumers divide."""
    return np.where(choice.swap_ab, choice.tile_n, choice.tile_m)


def _consumer_rows(choice: Choice) -> Any:
    side = _wgmma_m(choice)
    return np.where(np.equal(choice.schedule, "pingpong"), side, side // choice.consumers)


def _accumulators(choice: Choice, problem: Problem) -> Any:
    side_n = np.where(choice.swap_ab, choice.tile_m, choice.tile_n)
    elements = _consumer_rows(choice) * side_n // geo.WARP_GROUP
    return elements if problem.acc == "fp32" else elements // 2


def _working_registers(choice: Choice) -> Any:
    crowded = np.equal(choice.epilogue, "direct") & np.equal(_consumer_rows(choice), 128)
    return np.where(crowded, DIRECT_WORKING_REGISTERS, WORKING_REGISTERS)


def _k_steps(choice: Choice, problem: Problem, arch: Arch) -> Any:
    """Pipeline stages one CTA fills in its life: its share of K, times its tiles."""
    steps = share_k_tiles(choice, problem)
    # More rounds than there are stages change nothing, and their product with the steps could overflow.
    rounds = np.minimum(64, ceil_div(clusters(choice, problem), wave(choice, arch)))
    return np.where(choice.persistent, steps * rounds, steps)


def _splits_tile(c: Choice, problem: Problem, arch: Arch) -> Any:
    whole = np.equal(_wgmma_m(c) % c.consumers, 0) | np.equal(c.schedule, "pingpong")
    two = np.equal(c.consumers, 2) | np.equal(c.schedule, "coop")
    return whole & two & np.isin(_consumer_rows(c), (64, 128))


def _splits_tile_reason(c: Sm90WsConfig, problem: Problem, arch: Arch) -> str:
    side, noun = geo.wgmma_sides(c)[0], "columns" if c.swap_ab else "rows"
    if c.schedule == "pingpong":
        return f"ping-pong takes 2 consumer warp groups with 64 or 128 {noun} each, not {c.consumers} with {side}"
    share = f"{side / c.consumers:g} of {side}"
    return f"{c.consumers} cooperating consumers take {share} {noun} each; wgmma needs 64 or 128"


def _alternates(c: Choice, problem: Problem, arch: Arch) -> Any:
    return np.equal(c.schedule, "coop") | np.equal(c.persistent, True)


def _fits_registers(c: Choice, problem: Problem, arch: Arch) -> Any:
    return _accumulators(c, problem) + _working_registers(c) <= register_cap(c, arch)


def _fits_registers_reason(c: Sm90WsConfig, problem: Problem, arch: Arch) -> str:
    needed, working, cap = int(_accumulators(c, problem)), int(_working_registers(c)), int(register_cap(c, arch))
    return f"{needed} accumulator and {working} working registers per thread exceed the {cap} it has"


def _forms_cluster(c: Choice, problem: Problem, arch: Arch) -> Any:
    return (c.cluster_m * c.cluster_n <= MULTICAST_CTAS) & (cluster_ctas(c) <= arch.cluster_size_max)


def _forms_cluster_reason(c: Sm90WsConfig, problem: Problem, arch: Arch) -> str:
    return (
        f"a cluster of {c.cluster_m} x {c.cluster_n} CTAs with split-K {int(cluster_split(c))}: "
        f"multicast takes at most {MULTICAST_CTAS} CTAs, a cluster {arch.cluster_size_max}"
    )


def _narrow_whole(c: Choice, problem: Problem, arch: Arch) -> Any:
    unit = geo.ALIGN_SLACK_BYTES // geo.ELEMENT_BYTES
    aligned = np.equal(c.tile_m * c.tile_k % unit, 0) & np.equal(c.tile_n * c.tile_k % unit, 0)
    return (c.tile_k >= WHOLE_ROW) | (aligned & np.equal(c.split_k, 1))


def _narrow_whole_reason(c: Sm90WsConfig, problem: Problem, arch: Arch) -> str:
    return (
        f"tile_k {c.tile_k} needs tiles of {geo.ALIGN_SLACK_BYTES} bytes or a multiple and no split-K; this has "
        f"{geo.ELEMENT_BYTES * c.tile_m * c.tile_k} and {geo.ELEMENT_BYTES * c.tile_n * c.tile_k}, split-K {c.split_k}"
    )


def _registers_move(c: Choice, problem: Problem, arch: Arch) -> Any:
    pairs = list(geo.OTHER_SETMAXNREG)
    named = sum((np.equal(c.consumers, one) & np.equal(c.producer_registers, left) for one, left in pairs), np.False_)
    return np.equal(c.producer_registers, 0) | (named & np.equal(c.ctas_per_sm, 1))


def _has_all_of_k(c: Choice, problem: Problem, arch: Arch) -> Any:
    return np.equal(c.resident_a, 0) | ((c.tile_k >= WHOLE_ROW) & np.equal(c.split_k, 1))


def _runs_along_n(c: Choice, problem: Problem, arch: Arch) -> Any:
    along_n = np.equal(c.persistent, True) & np.equal(c.raster, "m") & np.equal(c.group, 1)
    return np.equal(c.resident_a, 0) | along_n


def _holds_all_of_a(c: Choice, problem: Problem, arch: Arch) -> Any:
    k_tiles = ceil_div(problem.k, c.tile_k)
    return np.equal(c.resident_a, 0) | ((k_tiles <= c.resident_a) & (c.resident_a < 2 * k_tiles))


def _stores_boxes(c: Choice, problem: Problem, arch: Arch) -> Any:
    return np.not_equal(c.epilogue, "tma") | tma_stores(problem)


def _addressable(c: Choice, problem: Problem, arch: Arch) -> Any:
    rows = tiles_m(c, problem) * c.tile_m * c.cluster_m <= INT32_MAX
    columns = tiles_n(c, problem) * c.tile_n * c.cluster_n <= INT32_MAX
    depth = ceil_div(problem.k, c.tile_k) * c.tile_k <= INT32_MAX
    return rows & columns & depth & (ctas(c, problem) <= INT32_MAX)


def _addressable_reason(c: Sm90WsConfig, problem: Problem, arch: Arch) -> str:
    launched = int(ctas(c, problem))
    return (
        f"{problem.mnk} padded to whole tiles, or its {launched} CTAs, "
        f"exceed the {INT32_MAX} of a 32-bit tile coordinate"
    )


def _persistence_matters(c: Choice, problem: Problem, arch: Arch) -> Any:
    return np.equal(c.persistent, False) | (clusters(c, problem) > wave(c, arch))


def _persistence_matters_reason(c: Sm90WsConfig, problem: Problem, arch: Arch) -> str:
    found, full = int(clusters(c, problem)), int(wave(c, arch))
    return f"{found} clusters fit one wave of {full}: persistent launches the same grid as not persistent"


def _stages_fill(c: Choice, problem: Problem, arch: Arch) -> Any:
    return c.stages <= np.maximum(2, _k_steps(c, problem, arch))


def _prefetch_steps(c: Choice, problem: Problem) -> Any:
    """K tiles that a CTA could fetch ahead."""
    step_bytes = (problem.m + problem.n) * c.tile_k * geo.ELEMENT_BYTES * c.split_k
    return np.minimum(share_k_tiles(c, problem), np.maximum(1, geo.PREFETCH_BYTES // step_bytes))


def _prefetch_matters(c: Choice, problem: Problem, arch: Arch) -> Any:
    return (c.l2_prefetch <= SHALLOW_PREFETCH) | (_prefetch_steps(c, problem) > SHALLOW_PREFETCH)


RULES: tuple[Rule, ...] = (
    *PADDING,
    Rule(
        "consumers_split_tile",
        ("tile_m", "tile_n", "schedule", "consumers", "swap_ab"),
        _splits_tile,
        _splits_tile_reason,
    ),
    Rule(
        "accumulator_registers",
        ("tile_m", "tile_n", "schedule", "consumers", "epilogue", "ctas_per_sm", "producer_registers", "swap_ab"),
        _fits_registers,
        _fits_registers_reason,
    ),
    Rule(
        "stream_k_registers",
        ("consumers", "ctas_per_sm", "producer_registers", "stream_k"),
        lambda c, p, a: np.equal(c.stream_k, False) | (register_cap(c, a) >= STREAM_K_REGISTERS),
        lambda c, p, a: (
            f"stream-K adds parts in {STREAM_K_REGISTERS} registers of a thread, which has {int(register_cap(c, a))}: "
            f"fewer than {c.ctas_per_sm} CTAs per SM"
        ),
    ),
    # Before those of shared memory, which depends on most axes: these forbid what they would have to look at.
    Rule(
        "pingpong_persistent",
        ("schedule", "persistent"),
        _alternates,
        lambda c, p, a: (
            "ping-pong without persistence gives a CTA 1 tile and so leaves 1 of its 2 consumer warp groups idle"
        ),
    ),
    *SPLITTING,
    Rule(
        "shifted",
        ("epilogue", "swap_ab"),
        lambda c, p, a: np.not_equal(c.epilogue, "shifted") | np.equal(c.swap_ab, False),
        lambda c, p, a: (
            "shifted stores have rows of C in a warp, swapped operands its columns: the direct epilogue does those"
        ),
    ),
    Rule(
        "store_hint",
        ("epilogue", "store_hint"),
        lambda c, p, a: np.equal(c.store_hint, "normal") | np.equal(c.epilogue, "tma"),
        lambda c, p, a: f"evict-first stores go by TMA; the epilogue is {c.epilogue}",
    ),
    Rule(
        "store_buffers",
        ("tile_k", "epilogue", "store_buffers"),
        lambda c, p, a: (
            np.equal(c.store_buffers, STORE_BUFFERS) | (np.equal(c.epilogue, "tma") & (c.tile_k >= WHOLE_ROW))
        ),
        lambda c, p, a: (
            f"{c.store_buffers} buffers are for boxes that go by TMA, of K tiles of {WHOLE_ROW} or more; "
            f"the epilogue is {c.epilogue}, the K tile {c.tile_k}"
        ),
    ),
    Rule(
        "resident_k",
        ("tile_k", "split_k", "resident_a"),
        _has_all_of_k,
        lambda c, p, a: (
            f"A stays where a CTA has all of K, in K tiles of {WHOLE_ROW} or more; "
            f"this has K tiles of {c.tile_k}, split-K {c.split_k}"
        ),
    ),
    Rule("narrow_tile_k", ("tile_m", "tile_n", "tile_k", "split_k"), _narrow_whole, _narrow_whole_reason),
    Rule(
        "producer_registers",
        ("consumers", "ctas_per_sm", "producer_registers"),
        _registers_move,
        lambda c, p, a: (
            f"a producer of {c.producer_registers} registers needs 2 consumers and one CTA per SM; "
            f"this has {c.consumers} and {c.ctas_per_sm}"
        ),
    ),
    shared_memory(_smem, _BODY_AXES),
    occupancy(_smem, _threads, _BODY_AXES),
    Rule(
        "n_major_box",
        ("tile_n",),
        lambda c, p, a: (p.layout == "tn") | np.equal(c.tile_n % N_MAJOR_COLUMNS, 0),
        lambda c, p, a: f"row-major B comes in boxes of {N_MAJOR_COLUMNS} columns or more; tile_n = {c.tile_n}",
    ),
    multicast_slice(", so the bytes a stage waits for never add up"),
    Rule("cluster", ("cluster_m", "cluster_n", "split_k", "split_via"), _forms_cluster, _forms_cluster_reason),
    # By size: first what looks at few configurations, or leaves few.
    Rule(
        "narrow_depth",
        ("tile_k",),
        lambda c, p, a: (c.tile_k >= WHOLE_ROW) | (p.k <= NARROW_K),
        lambda c, p, a: f"tile_k {c.tile_k} is for k up to {NARROW_K}: {p.k} has as many barriers as it needs with 64",
        by_size=True,
    ),
    tile_k_padding(WHOLE_ROW),
    Rule(
        "resident_depth",
        ("tile_k", "resident_a"),
        _holds_all_of_a,
        lambda c, p, a: (
            f"{c.resident_a} K tiles of A that stay are not the least that hold k = {p.k}, which has "
            f"{int(ceil_div(p.k, c.tile_k))} of {c.tile_k}"
        ),
        by_size=True,
    ),
    Rule(
        "store_box",
        ("epilogue",),
        _stores_boxes,
        lambda c, p, a: f"a TMA store needs rows of C on {geo.TMA_ROW_BYTES} bytes, so n % 8 == 0; n = {p.n}",
        by_size=True,
    ),
    Rule(
        "shifted_rows",
        ("epilogue",),
        lambda c, p, a: np.not_equal(c.epilogue, "shifted") | (not tma_stores(p)),
        lambda c, p, a: (
            f"rows of C begin on {geo.TMA_ROW_BYTES} bytes where n % 8 == 0, and none is shifted; n = {p.n}"
        ),
        by_size=True,
    ),
    split_k_depth(),
    Rule(
        "stages_depth",
        (*TILING, "tile_k", "split_k", "split_via", "stages", "ctas_per_sm", "persistent"),
        _stages_fill,
        lambda c, p, a: (
            f"{c.stages} stages exceed the {int(np.maximum(2, _k_steps(c, p, a)))} a CTA can fill with k = {p.k}"
        ),
        by_size=True,
    ),
    *SPLITTING_BY_SIZE,
    Rule(
        "persistent_single_wave",
        (*TILING, "split_k", "split_via", "ctas_per_sm", "persistent"),
        _persistence_matters,
        _persistence_matters_reason,
        by_size=True,
    ),
    Rule("size", (*TILING, "tile_k", "split_k"), _addressable, _addressable_reason, by_size=True),
    # Tile orders are many, and few rules read them: last, when the others have left less to multiply.
    Rule(
        "resident_a",
        ("resident_a", "raster", "group", "persistent"),
        _runs_along_n,
        lambda c, p, a: f"A stays where a persistent CTA's tiles run along N (raster m group 1); this is {c.name}",
    ),
    *raster_rules(lambda c, p: (tiles_m(c, p), tiles_n(c, p)), TILING, "cluster tiles"),
    Rule(
        "prefetch_depth",
        ("tile_k", "split_k", "l2_prefetch"),
        _prefetch_matters,
        lambda c, p, a: (
            f"a CTA has {int(_prefetch_steps(c, p))} K tiles of k = {p.k} to fetch ahead: an L2 prefetch of "
            f"{c.l2_prefetch} is one of {SHALLOW_PREFETCH}"
        ),
        by_size=True,
    ),
    PADDED_PREFETCH,
)
