"""The ``sm90_ws`` kernel itself, compiled for the CPU: every thread of a cluster a fiber, every instruction emulated.

Proves without a GPU that boxes, swizzles, descriptors and accumulators agree on where every element is, that barriers
count what arrives and every stage gets the bytes it waits for, that clusters share and split as they should, that
nothing is overwritten before it has been read, that nothing outside C is written nor outside operands read where the
grid copies them, and that where A stays a CTA's first tile is fetched into L2. Either loads land as soon as they are
issued, and products and stores read as late as something waits for them, or the other way round; then the loads issued
last land first.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace
from pathlib import Path

import emulated
import numpy as np
import pytest
from emulated import EMULATION, GUARD, elements
from numpy.typing import NDArray

from cudal2.codegen import render
from cudal2.launch.plan import MAP_WORDS, MapSpec, ParamSets, Words, plan_launch
from cudal2.paths import kernels_dir
from cudal2.problem import Acc, Dtype, Layout, Problem
from cudal2.space.config import Sm90WsConfig
from cudal2.space.sm90_ws import geometry

HOPPER = Path(__file__).parent / "emulation_sm90"
NAN = 0x7FFF  # in fp16 and in bf16
UNTOUCHED = 0x54D0
SM_COUNT = 4  # persistent CTAs get several tiles
#: What the kernel includes of other people's; one header stands for all.
STANDS_FOR = (
    "cudal2/gpu_scope.cuh", "cudal2/hopper.cuh", "cudal2/l2.cuh", "cudal2/unaligned.cuh", "cuda_fp16.h",
    "cute/arch/cluster_sm90.hpp",
    "cute/arch/copy_sm90.hpp", "cute/arch/copy_sm90_tma.hpp", "cute/arch/mma_sm90_gmma.hpp",
    "cute/arch/mma_sm90_gmma_ext.hpp", "cute/numeric/integer_sequence.hpp", "cutlass/arch/barrier.h",
    "cutlass/arch/reg_reconfig.h",
)  # fmt: skip

pytestmark = emulated.needs_compiler


def plain(tile: tuple[int, int, int], stages: int, schedule: str, consumers: int, **change: object) -> Sm90WsConfig:
    """One CTA to a cluster, TMA stores, one wave of CTAs, and what is changed of that."""
    config = Sm90WsConfig(*tile, stages, schedule, consumers, 1, 1, 1, "tma", 1, "m", 2, True)  # type: ignore[arg-type]
    return replace(config, **change)  # type: ignore[arg-type]


def swapped(tile: tuple[int, int, int], stages: int, schedule: str, consumers: int, **change: object) -> Sm90WsConfig:
    """The same with swapped operands."""
    return plain(tile, stages, schedule, consumers, swap_ab=True, **change)


ONE = {"persistent": False}
SPLIT = {"epilogue": "direct", "persistent": False}
WORKSPACE = {**SPLIT, "split_via": "workspace"}
KEEPS_A = {"group": 1}
STREAMS = {"stream_k": True}
PADDED = {"padded": True, "epilogue": "direct"}
DIRECT = {"epilogue": "direct"}
CASES: tuple[tuple[Sm90WsConfig, Acc, Layout, tuple[str, ...]], ...] = (
    (plain((64, 80, 64), 2, "coop", 1), "fp32", "nn", ("150_200_136",)),
    (plain((128, 32, 64), 3, "coop", 2, cluster_m=2), "fp32", "tn", ("300_72_200",)),
    (plain((64, 96, 64), 2, "pingpong", 2, cluster_n=2), "fp16", "nn", ("200_400_136",)),
    (plain((128, 48, 128), 2, "coop", 1, split_k=2, **SPLIT), "fp32", "tn", ("130_100_392",)),
    (swapped((96, 64, 64), 3, "coop", 1), "fp32", "tn", ("200_136_200", "1_8_8")),
    (swapped((168, 128, 64), 2, "coop", 1, **ONE), "fp16", "nn", ("170_200_136",)),
    (swapped((88, 128, 64), 2, "coop", 2, **ONE), "fp32", "nn", ("100_264_72",)),
    (swapped((176, 64, 64), 2, "pingpong", 2), "fp32", "nn", ("600_136_200",)),
    (swapped((48, 128, 64), 3, "pingpong", 2, cluster_m=2), "fp16", "tn", ("400_200_136",)),
    (swapped((16, 192, 64), 2, "coop", 3, cluster_n=2, **ONE), "fp32", "nn", ("20_392_200",)),
    (swapped((32, 128, 128), 2, "coop", 2, cluster_m=2, cluster_n=2, **ONE), "fp32", "tn", ("70_264_264",)),
    (swapped((32, 64, 64), 3, "coop", 1, cluster_m=4, **ONE), "fp32", "nn", ("130_72_136",)),
    (swapped((80, 64, 64), 2, "coop", 1, epilogue="direct"), "fp32", "tn", ("130_72_72", "90_67_136")),
    (swapped((88, 128, 64), 2, "coop", 1, epilogue="direct", **ONE), "fp16", "tn", ("100_136_72",)),
    (swapped((48, 128, 64), 2, "coop", 2, split_k=3, **SPLIT), "fp32", "nn", ("60_136_456",)),
    (swapped((16, 64, 128), 2, "coop", 1, split_k=2, cluster_n=2, **SPLIT), "fp32", "tn", ("20_130_392",)),
    (plain((128, 32, 64), 2, "coop", 2, split_k=3, **WORKSPACE), "fp32", "tn", ("130_60_392",)),
    (plain((128, 16, 64), 2, "coop", 1, split_k=16, **WORKSPACE), "fp16", "tn", ("60_20_1160",)),
    (plain((64, 48, 64), 2, "coop", 1, split_k=2, cluster_m=2, **WORKSPACE), "fp32", "nn", ("130_40_200",)),
    (swapped((48, 128, 64), 2, "coop", 2, split_k=2, cluster_n=2, **WORKSPACE), "fp32", "tn", ("50_264_200",)),
    (swapped((16, 64, 64), 2, "coop", 1, split_k=4, cluster_m=2, cluster_n=2, **WORKSPACE),
     "fp16", "nn", ("20_72_264",)),
    (plain((128, 96, 32), 3, "coop", 2, cluster_m=2), "fp32", "tn", ("300_72_104", "20_24_24")),
    (plain((64, 64, 16), 4, "pingpong", 2), "fp16", "nn", ("150_136_72",)),
    (plain((128, 64, 32), 2, "coop", 1, cluster_n=2), "fp32", "nn", ("130_136_40",)),
    (swapped((96, 128, 16), 4, "coop", 2, **ONE), "fp32", "tn", ("100_136_40", "96_128_16")),
    (swapped((80, 64, 32), 2, "coop", 1, cluster_m=2, **ONE), "fp16", "nn", ("170_72_72",)),
    (plain((128, 32, 64), 3, "coop", 2, cluster_m=2, store_hint="evict_first"), "fp32", "tn", ("300_72_200",)),
    (swapped((96, 128, 64), 3, "coop", 2, store_hint="evict_first", producer_registers=24),
     "fp32", "tn", ("100_136_200",)),
    (plain((64, 104, 64), 2, "coop", 1, store_buffers=3), "fp32", "tn", ("150_200_136", "70_96_72", "64_312_64")),
    (plain((64, 88, 64), 2, "pingpong", 2, store_buffers=4, store_hint="evict_first"), "fp16", "tn", ("300_400_136",)),
    (plain((128, 136, 64), 2, "coop", 2, cluster_n=2), "fp32", "tn", ("130_400_72",)),
    (swapped((200, 128, 64), 2, "coop", 2, store_buffers=4, **ONE), "fp32", "nn", ("210_136_72",)),
    (plain((64, 80, 64), 3, "coop", 1, resident_a=2, **KEEPS_A), "fp32", "nn", ("300_200_104", "150_648_128")),
    (plain((64, 32, 64), 4, "pingpong", 2, resident_a=4, **KEEPS_A), "fp32", "tn", ("260_136_200", "130_304_256")),
    (plain((64, 64, 128), 2, "pingpong", 2, cluster_n=2, resident_a=1, **KEEPS_A), "fp16", "nn", ("400_400_104",)),
    (plain((128, 32, 64), 2, "coop", 2, cluster_m=2, resident_a=1, epilogue="direct", **KEEPS_A),
     "fp32", "tn", ("700_200_64",)),
    (swapped((96, 64, 64), 3, "pingpong", 2, resident_a=2, **KEEPS_A), "fp32", "tn", ("500_200_128",)),
    (swapped((32, 64, 64), 2, "coop", 1, cluster_m=2, cluster_n=2, resident_a=2, **KEEPS_A),
     "fp32", "nn", ("300_520_72",)),
    (plain((64, 32, 64), 2, "coop", 1, resident_a=4, l2_prefetch=64, **KEEPS_A),
     "fp32", "tn", ("460_136_200", "130_304_256")),
    (plain((128, 32, 64), 3, "pingpong", 2, cluster_m=2, resident_a=4, l2_prefetch=2, **KEEPS_A),
     "fp32", "nn", ("900_104_200",)),
    (plain((64, 32, 64), 3, "pingpong", 2, **STREAMS),
     "fp32", "tn", ("200_72_1032", "300_104_1160", "64_160_1096", "440_24_1032")),
    (plain((128, 32, 64), 2, "coop", 2, epilogue="direct", **STREAMS), "fp16", "nn", ("600_88_1056", "130_200_1064")),
    (plain((64, 48, 64), 2, "pingpong", 2, cluster_m=2, **STREAMS), "fp32", "nn", ("330_40_1032",)),
    (plain((64, 32, 64), 2, "coop", 1, cluster_n=2, store_hint="evict_first", **STREAMS),
     "fp16", "tn", ("70_320_1032",)),
    (swapped((16, 128, 64), 2, "coop", 2, **STREAMS), "fp32", "tn", ("70_264_1096",)),
    (swapped((48, 64, 64), 3, "pingpong", 2, **STREAMS), "fp32", "nn", ("270_72_1032",)),
    (plain((64, 32, 64), 3, "coop", 1, **PADDED),
     "fp32", "tn", ("100_72_65", "33_17_1", "70_40_123", "150_33_202", "64_32_124", "1_9_515", "90_31_63")),
    (plain((64, 32, 64), 3, "coop", 1, **PADDED), "fp16", "nn", ("100_73_64", "70_65_67", "80_72_77", "20_1_130")),
    (plain((128, 32, 64), 2, "coop", 2, cluster_m=2, padded=True), "fp32", "tn", ("300_72_201",)),
    (plain((64, 32, 64), 3, "pingpong", 2, **PADDED, **STREAMS), "fp32", "tn", ("200_71_1033",)),
    (swapped((32, 64, 64), 2, "coop", 1, split_k=2, **WORKSPACE, padded=True), "fp32", "tn", ("60_130_391",)),
    (swapped((16, 64, 64), 2, "coop", 1, split_k=2, **SPLIT, padded=True), "fp16", "tn", ("20_130_391",)),
)  # fmt: skip


def compiled(
    config: Sm90WsConfig, folder: Path, acc: Acc, layout: Layout, dtype: Dtype = "fp16", kernels: Path | None = None
) -> ctypes.CDLL:
    """The rendered kernel and its emulation as a library."""
    for name in STANDS_FOR:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('#include "instructions.h"\n')
    places = (HOPPER, EMULATION, (kernels or kernels_dir()) / "include")
    text = render(config, acc, layout, dtype, kernels).text
    instructions = HOPPER / "instructions.h"
    loaded = emulated.library(folder, text, HOPPER / "driver.cc", places, "-fno-gnu-unique", emulation=instructions)
    loaded.run.argtypes = [ctypes.c_void_p, *[ctypes.c_int] * 5]
    for allow in (loaded.may_read, loaded.may_store):
        allow.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    for count in (loaded.fetched_bytes, loaded.stored_elements, loaded.stored_chunks):
        count.restype = ctypes.c_long
    return loaded


def encode(spec: MapSpec, addresses: Words) -> Words:
    """What the emulation reads out of a tensor map."""
    words = np.zeros((len(addresses), MAP_WORDS), np.uint64)
    words[:, 0] = addresses
    words[:, 1:5] = spec.columns, spec.rows, spec.box_columns, spec.box_rows
    return words


def check(library: ctypes.CDLL, config: Sm90WsConfig, problem: Problem, loads_early: bool) -> None:
    """One product of small integers, which fp16 and bf16 hold exactly, against numpy's."""
    rng = np.random.default_rng(problem.m * 7 + problem.n * 3 + problem.k)
    a = rng.integers(-2, 3, (problem.m, problem.k))
    b = rng.integers(-2, 3, (problem.k, problem.n))
    stored = (a, b if problem.layout == "nn" else b.T)
    operands = [elements(np.ascontiguousarray(part), problem.dtype) for part in stored]
    size = problem.m * problem.n
    room = np.full(size + 2 * GUARD + 8, UNTOUCHED, np.uint16)
    c = room[-room.ctypes.data % 16 // 2 :][: size + 2 * GUARD]
    for operand in operands:
        assert operand.ctypes.data % 16 == 0
        library.may_read(operand.ctypes.data, operand.ctypes.data + operand.nbytes)
    library.may_store(c.ctypes.data + 2 * GUARD, c.ctypes.data + 2 * (GUARD + size))
    plan = plan_launch(config, problem, SM_COUNT)
    addresses = (*(operand.ctypes.data for operand in operands), c.ctypes.data + 2 * GUARD)
    workspace = np.zeros(plan.workspace_bytes // 4 + 8, np.uint32)
    begin = -workspace.ctypes.data % 16
    sets = ParamSets(plan, *(np.array([at], np.uint64) for at in addresses), encode, workspace.ctypes.data + begin)
    product = a @ b
    # Slices that meet in a workspace run at the same time, all but one, or none: they must not rely on each other.
    slices = plan.grid // plan.cluster if config.stream_k or config.padded else config.split_k
    at_once = {1, slices - 1, slices} if plan.workspace_bytes else {1}
    for clusters in sorted(at_once - {0}):
        c[GUARD : GUARD + size] = NAN
        workspace[begin // 4 :][plan.ticket_bytes // 4 :] = 0xFFFFFFFF  # sums and copies of an earlier launch
        together = clusters * plan.cluster
        launch = (plan.grid, plan.cluster, plan.smem_bytes, int(loads_early), together)
        error = library.run(sets.structs.ctypes.data, *launch)
        assert error == b"", f"{problem.mnk}, loads early {loads_early}, {clusters} at once: {error.decode()}"
        assert library.fetched_bytes() == bytes_of_first_tiles(config, problem), "not all is fetched into L2"
        check_product(c, product, problem, loads_early)
        tickets = workspace[begin // 4 :][plan.counter_bytes // 4 : plan.ticket_bytes // 4]
        assert not tickets.any(), f"{clusters} at once: tickets are left over"


def bytes_of_first_tiles(config: Sm90WsConfig, problem: Problem) -> int:
    """What is fetched into L2 where A stays: the first tile of each cluster, these taking neighbouring tiles."""
    tiles_m, tiles_n = geometry.cluster_tiles(config, problem.m, problem.n)
    clusters = geometry.grid_ctas(config, problem.m, problem.n, SM_COUNT) // geometry.cluster_size(config)
    first = [divmod(tiles_m * tiles_n * at // clusters, tiles_n) for at in range(clusters)]

    def covered(tiles: set[int], extent: int, side: int) -> int:
        return sum(min(extent, (tile + 1) * side) - tile * side for tile in tiles)

    rows = covered({m for m, _ in first}, problem.m, config.tile_m * config.cluster_m)
    columns = covered({n for _, n in first}, problem.n, config.tile_n * config.cluster_n)
    return (rows + columns) * min(problem.k, config.l2_prefetch * config.tile_k) * geometry.ELEMENT_BYTES


def check_product(c: NDArray[np.uint16], product: NDArray[np.int64], problem: Problem, loads_early: bool) -> None:
    """What is between the guards is the product, and these are untouched."""
    size = problem.m * problem.n
    found = c[GUARD : GUARD + size].reshape(problem.m, problem.n)
    wrong = np.argwhere(found != elements(product, problem.dtype))
    assert not wrong.size, f"{problem.mnk}, loads early {loads_early}: {len(wrong)} wrong, first at {wrong[0].tolist()}"
    assert (np.delete(c, slice(GUARD, GUARD + size)) == UNTOUCHED).all(), f"{problem.mnk}: written outside C"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].build_name}-{case[1]}-{case[2]}")
def test_the_kernel_is_exact_and_stays_inside(case, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    config, acc, layout, shapes = case
    library = compiled(config, tmp_path, acc, layout)
    for mnk in shapes:
        problem = Problem.parse(mnk, acc, layout)
        assert emulated.broken_rules(config, problem) == set()
        for loads_early in (False, True):
            check(library, config, problem, loads_early)


@pytest.mark.parametrize(("cluster_m", "mnk"), [(1, "448_96_1032"), (2, "896_72_1032")])
def test_clusters_beyond_the_parts_of_a_last_wave_have_nothing_to_do(
    cluster_m: int, mnk: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tile is left over, which eight take parts of."""
    monkeypatch.setattr(sys.modules[__name__], "SM_COUNT", 20)
    config, problem = plain((64, 32, 64), 3, "pingpong", 2, cluster_m=cluster_m, **STREAMS), Problem.parse(mnk)
    tiles_m, tiles_n = geometry.cluster_tiles(config, problem.m, problem.n)
    clusters = geometry.grid_ctas(config, problem.m, problem.n, SM_COUNT) // geometry.cluster_size(config)
    left = tiles_m * tiles_n % clusters
    assert left == 1 and geometry.stream_k_parts(left, clusters) == 8 < clusters
    library = compiled(config, tmp_path, "fp32", "tn")
    for loads_early in (False, True):
        check(library, config, problem, loads_early)


PLAIN_FAULTS = CASES[1][0]
SWAPPED_FAULTS = swapped((136, 64, 64), 2, "pingpong", 2, cluster_m=2)
ODD_FAULTS = plain((64, 72, 64), 2, "coop", 1)
WORKSPACE_FAULTS = plain((128, 32, 64), 2, "coop", 2, split_k=3, **WORKSPACE)
STREAMING_FAULTS = plain((64, 32, 64), 4, "pingpong", 2, **STREAMS)
MANY_PARTS_FAULTS = plain((64, 16, 64), 2, "pingpong", 2, **STREAMS)
KEEPING_FAULTS = plain((64, 16, 64), 8, "pingpong", 2, resident_a=5, **KEEPS_A)
PADDED_FAULTS = plain((64, 32, 64), 3, "coop", 1, **PADDED)
#: Configuration, layout, header, what to break by what, and what the emulation must say of it.
FAULTS = {
    "a stage given back before it has been read": (
        PLAIN_FAULTS, "tn", "sm90_ws.cuh", "warpgroup_wait<1>", "warpgroup_wait<2>", "wrong"),
    "the last stage given back before it has been read": (
        PLAIN_FAULTS, "tn", "sm90_ws.cuh",
        "  cute::warpgroup_wait<0>();\n  fence_accumulators(acc);\n  release_stage<G>", "  release_stage<G>", "wrong"),
    "more bytes expected than come": (
        PLAIN_FAULTS, "tn", "sm90_ws.cuh",
        "smem.full(cursor.stage), G::kStageBytes", "smem.full(cursor.stage), G::kStageBytes + 16", "waits for ever"),
    "a peer whose stage is not given back": (
        PLAIN_FAULTS, "nn", "sm90_ws.cuh", "thread < G::kPeers)", "thread < G::kPeers - 1)", "waits for ever"),
    "a multicast to the wrong peer": (
        PLAIN_FAULTS, "nn", "sm90_ws.cuh",
        "mask_b |= 1 << work.peer(i, work.cta_n)", "mask_b |= 1", "waits for ever|wrong|arrivals"),
    "a CTA that leaves its cluster": (
        PLAIN_FAULTS, "tn", "sm90_ws.cuh",
        "if constexpr (G::kMulticast) {\n    cluster_barrier();\n  } else if constexpr (G::kClusterSize > 1) {",
        "if constexpr (false) {", "has ended"),
    "a buffer overwritten before its store has read it": (
        SWAPPED_FAULTS, "tn", "epilogue.cuh", "cute::tma_store_wait<G::kStoreBuffers - 2>();", "", "wrong"),
    "one of three buffers overwritten too early": (
        replace(SWAPPED_FAULTS, tile_m=200, store_buffers=3), "tn", "epilogue.cuh",
        "G::kStoreBuffers - 2>", "G::kStoreBuffers - 1>", "wrong"),
    "three buffers taken for two": (
        replace(SWAPPED_FAULTS, store_buffers=3), "tn", "epilogue.cuh",
        "(turn + 1) % G::kStoreBuffers", "turn ^ 1", "wrong"),
    "a last box that begins too early": (
        ODD_FAULTS, "tn", "ws_store.cuh",
        "box * G::kStoreColumns : kLast;", "box * G::kStoreColumns : kLast - 8;", "wrong"),
    "the transpose stored as it is": (
        SWAPPED_FAULTS, "tn", "epilogue_swapped.cuh", "    stmatrix_trans_x4(", "    stmatrix_x4(", "wrong"),
    "a box swizzled by other rows": (
        SWAPPED_FAULTS, "tn", "epilogue_swapped.cuh",
        "(j + lane / 16) * 8 + lane % 8", "(j + lane / 16) * 8 + lane / 2 % 8", "wrong|conflicts"),
    "boxes that leave the tile": (
        SWAPPED_FAULTS, "tn", "epilogue_swapped.cuh",
        "kLast = G::kTileM - G::kStoreRows", "kLast = G::kTileM", "wrong"),
    "an N-major left operand taken for K-major": (
        SWAPPED_FAULTS, "nn", "sm90_ws.cuh", "kKMajorLeft = !G::kSwapAB || G::kKMajorB", "kKMajorLeft = true", "wrong"),
    "a turn at the tensor cores that nobody gives": (
        SWAPPED_FAULTS, "tn", "sm90_ws.cuh",
        "barrier_arrive(kTurnBarrier + (group ^ 1)", "barrier_arrive(kTurnBarrier + group", "waits for ever|wrong"),
    "a share given up that nobody adds": (
        WORKSPACE_FAULTS, "tn", "workspace.cuh", "return own | before >> kGivenUp;", "return own;", "wrong"),
    "sums added before they are there": (
        WORKSPACE_FAULTS, "tn", "workspace.cuh",
        "if (arrivals(load_acquire(ticket)) == slices) return own;", "return own;", "wrong"),
    "a ticket that is not made ready again": (
        WORKSPACE_FAULTS, "nn", "workspace.cuh", "store_relaxed(ticket, 0);", ";", "left over"),
    "new rows of A before the old have been read": (
        KEEPING_FAULTS, "tn", "sm90_ws.cuh", "if (G::kKeepsA && fetch_a) drain<G>(smem, cursor);", "", "wrong"),
    "new rows of A before the last of the old have been read": (
        KEEPING_FAULTS, "tn", "sm90_ws.cuh", "i < G::kStages; ++i) {\n    EmptyBarrier::wait",
        "i < G::kStages - 1; ++i) {\n    EmptyBarrier::wait", "wrong"),
    "rows of A that stay too long": (
        KEEPING_FAULTS, "nn", "sm90_ws.cuh", "row != kept_row;", "kept_row < 0;", "wrong"),
    "bytes of A that nobody counts": (
        KEEPING_FAULTS, "tn", "sm90_ws.cuh", "(G::kKeepsA && fetch_a ? G::kBytesA : 0)", "0", "wrong|waits for ever"),
    "rows of A that only the other group has waited for": (
        KEEPING_FAULTS, "tn", "sm90_ws.cuh",
        "barrier_sync(kTurnBarrier + group, 2 * kWarpGroup);", ";", "wrong|arrivals"),
    "first tiles of which others fetch a share": (
        replace(KEEPING_FAULTS, l2_prefetch=64), "tn", "sm90_ws.cuh",
        "(G::kKeepsA ? 0 : tile.n)", "tile.n", "not all is fetched"),
    "parts of K that overlap": (
        STREAMING_FAULTS, "tn", "ws_work.cuh", "k.end = last ? k_tiles : k_tiles * rounds * (part + 1)",
        "k.end = last ? k_tiles : 1 + k_tiles * rounds * (part + 1)", "wrong"),
    "a last part that nobody takes": (
        STREAMING_FAULTS, "tn", "ws_work.cuh", "stride = last ? left : tiles;", "stride = tiles;", "wrong|left over"),
    "quads of a share that are not added": (
        MANY_PARTS_FAULTS, "nn", "stream_k.cuh",
        "G::kQuads * (share + 1) / parts, row", "G::kQuads / parts * (share + 1), row", "wrong"),
    "sums of parts added before they are there": (
        MANY_PARTS_FAULTS, "tn", "workspace.cuh",
        "if (arrivals(load_acquire(ticket)) == slices) return own;", "return own;", "wrong"),
    "a ticket of parts that is not made ready again": (
        STREAMING_FAULTS, "tn", "stream_k.cuh", "store_relaxed(ticket, 0);", ";", "left over"),
    "another group's stages taken for those of a part": (
        STREAMING_FAULTS, "tn", "sm90_ws.cuh", "cursor.skip(work.item(turn + 1).k.count())",
        "cursor.skip(work.k.count())", "wrong|waits for ever|arrivals"),
    "copies read before they are there": (
        PADDED_FAULTS, "tn", "padded.cuh", "while (seen != pieces) seen = load_acquire(count);", "", "wrong"),
    "claims that are not begun anew": (
        PADDED_FAULTS, "tn", "padded.cuh", "store_relaxed(counters + kClaimed, 0);", ";", "wrong|waits for ever"),
    "a count of pieces that is not begun anew": (
        PADDED_FAULTS, "tn", "padded.cuh", "store_relaxed(counters + kTurn, turn ^ 1);", ";", "wrong|waits for ever"),
    "the next row taken for the rest of this one": (
        PADDED_FAULTS, "tn", "padded.cuh", "last_lane || left[i] <= int(kChunk) ? high[i] : next", "next", "wrong"),
    "elements read from behind an operand": (
        PADDED_FAULTS, "tn", "padded.cuh", "vector + 1 < copy.vectors", "true", "outside the operands"),
    "what is behind a row copied with it": (
        PADDED_FAULTS, "tn", "padded.cuh", "2 * i + 1 == count ? w[i] & 0xFFFF : 0", "w[i]", "wrong"),
    "a row's chunks shifted by a word too few": (
        PADDED_FAULTS, "tn", "padded.cuh", "by & 2 ? w[i + 1] : w[i]", "w[i]", "wrong"),
    "pieces of the second operand taken for the first's": (
        PADDED_FAULTS, "nn", "padded.cuh", "(of_a ? piece : piece - pieces_a)", "piece", "wrong"),
    "chunks of the wrong row": (
        PADDED_FAULTS, "tn", "padded.cuh", "at -= copy.row_chunks;\n      ++row;", "at -= copy.row_chunks;", "wrong"),
    "tiles of other CTAs": (
        KEEPING_FAULTS, "tn", "ws_work.cuh", "int(all * (first + 1) / stride)", "int(all * first / stride)", "wrong"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_emulation_sees_what_is_broken(fault: str, tmp_path: Path) -> None:
    config, layout, header, old, new, words = FAULTS[fault]
    kernels = emulated.broken_kernels(tmp_path, header, old, new)
    library = compiled(config, tmp_path, "fp32", layout, kernels=kernels)
    with pytest.raises(AssertionError, match=words):
        for loads_early in (False, True):
            k = 1032 if config.stream_k else 327 if config.padded else 264
            check(library, config, Problem(300, 75 if config.padded else 72, k, "fp32", layout), loads_early)
