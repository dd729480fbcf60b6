"""Launch plans and the parameter struct, byte by byte; no CUDA."""

from __future__ import annotations

import ctypes
import re
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cudal2.launch.plan import (
    EVICT_FIRST,
    EVICT_NORMAL,
    MAP_WORDS,
    MMA_PARAMS,
    MMA_PARAMS_BYTES,
    PARAMS,
    PARAMS_BYTES,
    SPLIT_MMA_PARAMS,
    SPLIT_MMA_PARAMS_BYTES,
    MapSpec,
    ParamSets,
    Words,
    plan_launch,
)  # fmt: skip
from cudal2.launch.tensor_map import DATA_TYPES, modes
from cudal2.paths import kernels_dir
from cudal2.problem import Layout, Problem
from cudal2.space.config import KernelConfig, Sm80MmaConfig, Sm90SmallConfig, Sm90WsConfig

COOP = Sm90WsConfig(128, 256, 64, 4, "coop", 2, 2, 1, 1, "tma", 1, "m", 8, True)
ONE_PER_TILE = replace(COOP, persistent=False)
SPLIT = Sm90WsConfig(64, 96, 128, 4, "coop", 1, 1, 1, 4, "direct", 1, "n", 1, False)
SMALL = Sm90WsConfig(64, 64, 64, 2, "coop", 1, 1, 1, 1, "direct", 1, "m", 1, False)


def test_boxes_of_a_multicast_cluster_are_slices() -> None:
    plan = plan_launch(COOP, Problem(4096, 8192, 512), 132)
    assert plan.a is not None
    assert plan.a == MapSpec(512, 4096, 64, 128)  # one CTA along N: all of A's rows
    assert plan.b == MapSpec(512, 8192, 64, 128)  # two CTAs along M share B's 256 rows
    assert plan.c == MapSpec(8192, 4096, 64, 64)
    assert (plan.a.swizzle_bytes, plan.a.row_bytes) == (128, 1024)


def test_row_major_b_is_boxed_along_n_with_the_widest_swizzle_that_divides_the_tile() -> None:
    problem = Problem(123, 456, 200, layout="nn")
    boxes = {tile_n: plan_launch(replace(SPLIT, tile_n=tile_n), problem, 132).b for tile_n in (64, 96, 160, 208)}
    assert boxes[64] == MapSpec(456, 200, 64, 128)
    assert boxes[96] == MapSpec(456, 200, 32, 128)
    assert boxes[160].swizzle_bytes == 64
    assert boxes[208].swizzle_bytes == 32


def test_a_column_cluster_slices_a_and_row_major_b() -> None:
    along_n = replace(COOP, cluster_m=1, cluster_n=2)
    assert plan_launch(along_n, Problem(4096, 8192, 512), 132).a.box_rows == 64
    along_m = plan_launch(COOP, Problem(4096, 8192, 512, layout="nn"), 132)
    assert along_m.b == MapSpec(8192, 512, 64, 32)


@pytest.mark.parametrize(
    ("config", "mnk", "grid", "cluster", "tiles"),
    [
        (COOP, (4096, 8192, 512), 132, 2, (16, 32)),  # one wave of 66 clusters
        (COOP, (100, 300, 64), 4, 2, (1, 2)),  # fewer clusters than a wave
        (
            ONE_PER_TILE,
            (4096, 8192, 512),
            1024,
            2,
            (16, 32),
        ),
        (SPLIT, (65, 24, 4096), 8, 4, (2, 1)),
    ],
)
def test_grids(
    config: KernelConfig, mnk: tuple[int, int, int], grid: int, cluster: int, tiles: tuple[int, int]
) -> None:
    plan = plan_launch(config, Problem(*mnk), 132)
    assert (plan.grid, plan.cluster) == (grid, cluster)
    assert (plan.scalars["tiles_m"], plan.scalars["tiles_n"]) == tiles
    assert plan.grid % plan.cluster == 0


@pytest.mark.parametrize(
    ("file", "name", "struct_of", "size"),
    [("params", "GemmParams", PARAMS, PARAMS_BYTES), ("mma_params", "MmaParams", MMA_PARAMS, MMA_PARAMS_BYTES)],
)
def test_the_struct_is_the_one_the_kernel_declares(file: str, name: str, struct_of: np.dtype, size: int) -> None:
    header = (kernels_dir() / "include" / "cudal2" / f"{file}.cuh").read_text()
    body = re.search(rf"struct alignas\(\d+\) {name} \{{(.*?)\}};", header, re.DOTALL)
    assert body is not None
    declared = []
    for line in body[1].splitlines():
        match = re.match(r"\s*(TensorMap|(?:const )?void\*|int32_t|uint64_t) ([\w, ]+);", line)
        if match:
            declared += [(match[1], name.strip()) for name in match[2].split(",")]
    sizes = {"TensorMap": 128, "void*": 8, "const void*": 8, "int32_t": 4, "uint64_t": 8}
    offset = 0
    for kind, field in declared:
        assert struct_of.fields is not None
        dtype, at = struct_of.fields[field][:2]
        offset += -offset % min(sizes[kind], 8)
        assert (at, dtype.itemsize) == (offset, sizes[kind]), field
        offset += sizes[kind]
    assert [field for _, field in declared] == list(struct_of.names or ())
    assert f"sizeof({name}) == {size}" in header and struct_of.itemsize == size


def test_a_small_kernel_has_a_grid_of_slices_and_tiles() -> None:
    config = Sm90SmallConfig(64, 48, 128, 2, "wgmma", 4, 3, 64)
    plan = plan_launch(config, Problem(130, 100, 1000), 132)
    assert (plan.grid, plan.grid_yz, plan.cluster, plan.block) == (3, (3, 3), 3, 128)
    assert plan.a == MapSpec(1000, 130, 64, 64) and plan.b == MapSpec(1000, 100, 64, 48) and plan.c is None
    assert plan.scalars["prefetch"] == 3, "K tiles of the largest share"
    assert plan_launch(replace(config, l2_prefetch=0), Problem(130, 100, 1000), 132).scalars["prefetch"] == 0
    row_major = plan_launch(config, Problem(130, 104, 1000, layout="nn"), 132)
    assert row_major.b == MapSpec(104, 1000, 16, 128), "boxes as wide as divide the tile, and 128 rows of K"
    halves = replace(config, tile_n=96, warps=8)
    assert plan_launch(halves, Problem(130, 104, 1000, layout="nn"), 132).b == MapSpec(104, 1000, 16, 128)
    assert plan_launch(COOP, Problem(4096, 8192, 512), 132).grid_yz == (1, 1)


def test_a_kernel_that_loads_by_address_gets_addresses_and_no_maps() -> None:
    config = Sm80MmaConfig(32, 64, 32, 3, 1, 2, "swizzle", 2, "plain", "wide", 2, 4, "n", 4)
    plan = plan_launch(config, Problem(123, 457, 789), 132)
    assert (plan.grid, plan.block, plan.cluster, plan.a, plan.b, plan.c) == (4 * 8, 64, 1, None, None, None)
    assert plan.smem_bytes == 3 * (32 + 64) * 32 * 2
    a, b, c = (np.array([base, base + 4096], np.uint64) for base in (1 << 40, 2 << 40, 3 << 40))
    sets = ParamSets(plan, a, b, c, lambda spec, addresses: pytest.fail("no map is needed"))
    raw = sets.structs.tobytes()[MMA_PARAMS_BYTES:]
    assert struct.unpack_from("<3Q8i", raw) == (
        (1 << 40) + 4096, (2 << 40) + 4096, (3 << 40) + 4096, 123, 457, 789, 457, 4, 8, 1, 4,
    )  # fmt: skip
    pointer = ctypes.c_uint64.from_address(sets.kernel_params(1)).value
    assert pointer == sets.structs.ctypes.data + MMA_PARAMS_BYTES


def test_slices_of_k_that_load_by_address_meet_in_a_workspace() -> None:
    config = Sm80MmaConfig(32, 64, 32, 3, 1, 2, "swizzle", 2, "plain", "wide", 2, 4, "n", 4, split_k=6)
    plan = plan_launch(config, Problem(123, 457, 789), 132)
    assert (plan.grid, plan.cluster, plan.struct) == (4 * 8 * 6, 1, SPLIT_MMA_PARAMS)
    assert (plan.ticket_bytes, plan.partial_bytes) == (256, 4 * 4 * 8 * 6 * 32 * 64), "tickets end on a line"
    a, b, c = (np.array([base], np.uint64) for base in (1 << 40, 2 << 40, 3 << 40))
    sets = ParamSets(plan, a, b, c, lambda spec, addresses: pytest.fail("no map is needed"), workspace=4 << 40)
    raw = sets.structs.tobytes()
    assert len(raw) == SPLIT_MMA_PARAMS_BYTES
    assert struct.unpack_from("<2Q", raw, MMA_PARAMS_BYTES) == ((4 << 40) + 256, 4 << 40)
    header = (kernels_dir() / "include" / "cudal2" / "mma_split.cuh").read_text()
    assert "SplitMmaParams : MmaParams" in header and f"sizeof(SplitMmaParams) == {SPLIT_MMA_PARAMS_BYTES}" in header
    assert header.index("float4* partials;") < header.index("uint32_t* tickets;")
    assert plan_launch(replace(config, split_k=1), Problem(123, 457, 789), 132).workspace_bytes == 0


def test_maps_carry_the_type_of_the_elements() -> None:
    plans = [plan_launch(COOP, Problem(256, 512, 128, dtype=dtype), 132) for dtype in ("fp16", "bf16")]
    for fp16, bf16 in zip((plans[0].a, plans[0].b, plans[0].c), (plans[1].a, plans[1].b, plans[1].c), strict=True):
        assert fp16 is not None and bf16 is not None and fp16 != bf16
        assert (fp16.dtype, bf16.dtype, replace(bf16, dtype="fp16")) == ("fp16", "bf16", fp16)
    assert replace(plans[0], a=None, b=None, c=None) == replace(plans[1], a=None, b=None, c=None)


@pytest.mark.parametrize("config", [COOP, SPLIT, Sm90SmallConfig(64, 48, 128, 2, "wgmma", 4, 3, 64)], ids=str)
@pytest.mark.parametrize("layout", ["tn", "nn"])
def test_what_l2_fetches_is_in_the_maps_of_a_and_b_and_in_nothing_else(config: KernelConfig, layout: Layout) -> None:
    problem = Problem(256, 512, 1032, layout=layout)
    plans = [plan_launch(replace(config, l2_promotion=promotion), problem, 132) for promotion in (256, 128)]
    # CU_TENSOR_MAP_L2_PROMOTION_L2_128B and _256B (CUDA driver API, CUtensorMapL2promotion).
    for plan, coded, promotion in zip(plans, (3, 2), (256, 128), strict=True):
        assert plan.a is not None and plan.b is not None
        assert [modes(spec)[2] for spec in (plan.a, plan.b)] == [coded, coded]
        assert [spec.promotion_bytes for spec in (plan.a, plan.b)] == [promotion, promotion]
        assert plan.c is None or (modes(plan.c)[2], plan.c.promotion_bytes) == (3, 256)
    assert plan_launch(config, problem, 132) == plans[0]
    same = [
        replace(plan, a=replace(plan.a, promotion_bytes=256), b=replace(plan.b, promotion_bytes=256))
        for plan in plans
        if plan.a and plan.b
    ]
    assert same[0] == same[1] and plans[0].a != plans[1].a and plans[0].b != plans[1].b


def test_what_is_fetched_ahead_is_what_the_axis_the_problem_and_the_l2_allow() -> None:
    deep = replace(SPLIT, l2_prefetch=64)
    steps = -(-4096 // SPLIT.tile_k) // SPLIT.split_k
    assert plan_launch(SPLIT, Problem(64, 64, 4096), 132).scalars["prefetch"] == 0
    assert plan_launch(replace(SPLIT, l2_prefetch=2), Problem(64, 64, 4096), 132).scalars["prefetch"] == 2
    assert plan_launch(deep, Problem(64, 64, 4096), 132).scalars["prefetch"] == min(64, steps)
    assert plan_launch(deep, Problem(2**16, 2**16, 4096), 132).scalars["prefetch"] == 1


@pytest.mark.parametrize(
    ("problem", "streamed"),
    [(Problem(64, 4096, 256), "hint_b"), (Problem(4096, 64, 256), "hint_a"), (Problem(4096, 4096, 256), None)],
    ids=str,
)
def test_an_operand_that_is_read_once_leaves_the_l2_first(problem: Problem, streamed: str | None) -> None:
    scalars = plan_launch(SMALL, problem, 132).scalars
    for name in ("hint_a", "hint_b"):
        assert scalars[name] == (EVICT_FIRST if name == streamed else EVICT_NORMAL)


def test_packed_structs_and_their_pointers() -> None:
    plan = plan_launch(SPLIT, Problem(65, 24, 4096), 132)
    count = 3
    a, b, c = (np.array([base, base + 0x1000, base + 0x2000], np.uint64) for base in (1000, 2000, 0x7F0000000000))

    def encode(spec: MapSpec, addresses: Words) -> Words:
        assert addresses[0] != c[0], "no map of C for the direct epilogue"
        return addresses[0] + np.arange(count * MAP_WORDS, dtype=np.uint64).reshape(count, MAP_WORDS)

    sets = ParamSets(plan, a, b, c, encode)
    base = sets.structs.ctypes.data
    assert base % 64 == 0
    raw = sets.structs.tobytes()[2 * PARAMS_BYTES :]
    assert struct.unpack_from("<16Q", raw, 0) == tuple(range(1032, 1048))
    assert struct.unpack_from("<16Q", raw, 128) == tuple(range(2032, 2048))
    assert raw[256:384] == bytes(128)  # no map of C for the direct epilogue
    assert struct.unpack_from("<Q8i", raw, 384) == (0x7F0000002000, 65, 24, 4096, 24, 2, 1, 1, 1)
    assert struct.unpack_from("<iiQQ", raw, 424) == (0, 0, EVICT_FIRST, EVICT_NORMAL)
    pointer = ctypes.c_uint64.from_address(sets.kernel_params(2)).value
    assert pointer == base + 2 * PARAMS_BYTES


def test_the_driver_calls_the_types_of_maps_by_these_numbers() -> None:
    names = pytest.importorskip("cuda.bindings.driver").CUtensorMapDataType
    prefix = "CU_TENSOR_MAP_DATA_TYPE_"
    assert {"fp16": getattr(names, f"{prefix}FLOAT16"), "bf16": getattr(names, f"{prefix}BFLOAT16")} == DATA_TYPES


@pytest.mark.parametrize(
    ("change", "mnk", "tiles", "parts"),
    [
        ({}, "8192_8192_8192", 4, 8),  # 4,096 are 31 waves and 4
        ({}, "2688_1408_4096", 99, 2),
        ({"schedule": "coop"}, "8192_8192_8192", 2 * 4, 8),  # a ticket for each warp group
        ({"cluster_m": 2}, "8192_8192_8192", 2 * 2, 8),
        ({}, "2816_1536_4096", 0, 0),  # two whole waves
    ],
)
def test_tiles_of_a_shared_last_wave_have_tickets_and_sums(
    change: dict[str, Any], mnk: str, tiles: int, parts: int
) -> None:
    streams = Sm90WsConfig(128, 128, 64, 6, "pingpong", 2, 1, 1, 1, "tma", 1, "m", 8, True, stream_k=True)
    plan = plan_launch(replace(streams, **change), Problem.parse(mnk), 132)
    groups = 2 if change.get("schedule") == "coop" else 1
    assert plan.ticket_bytes == -(-4 * tiles // 256) * 256
    assert plan.partial_bytes == tiles // groups * parts * 4 * 128 * 128
    assert plan.grid == 132 and plan.struct.itemsize == 512
    assert plan_launch(replace(streams, stream_k=False, **change), Problem.parse(mnk), 132).workspace_bytes == 0


def test_slices_that_meet_in_a_workspace_are_no_cluster_and_have_tickets_and_sums() -> None:
    config = replace(SPLIT, cluster_m=2, split_via="workspace")
    plan = plan_launch(config, Problem(200, 24, 4096), 132)
    tiles = 2 * 1 * 2  # of CTAs, in two clusters
    assert (plan.grid, plan.cluster) == (tiles * SPLIT.split_k, 2)
    assert (plan.ticket_bytes, plan.partial_bytes) == (256, 4 * tiles * SPLIT.split_k * SPLIT.tile_m * SPLIT.tile_n)
    assert plan_launch(SPLIT, Problem(200, 24, 4096), 132).workspace_bytes == 0
    address = np.array([1 << 40], np.uint64)
    maps = np.zeros((1, 16), np.uint64)
    sets = ParamSets(plan, address, address, address, lambda spec, addresses: maps, 5 << 30)
    raw = sets.structs.tobytes()
    assert struct.unpack_from("<2Q", raw, 448) == ((5 << 30) + 256, 5 << 30) and len(raw) == 512
    header = (kernels_dir() / "include" / "cudal2" / "workspace.cuh").read_text()
    assert re.search(r"GemmParams \{\s*float4\* partials;.*\n\s*uint32_t\* tickets;", header)


def test_a_shallow_k_tile_has_boxes_as_narrow() -> None:
    config = replace(COOP, tile_k=16)
    plan = plan_launch(config, Problem(4096, 8192, 64), 132)
    assert plan.a is not None and plan.b is not None
    assert (plan.a.box_columns, plan.a.swizzle_bytes, plan.b.box_columns) == (16, 32, 16)


def test_operands_that_tma_cannot_read_are_copied_behind_the_tickets_and_the_maps_are_of_the_copies() -> None:
    config = Sm90WsConfig(64, 64, 64, 4, "coop", 1, 1, 1, 3, "direct", 1, "m", 1, False, padded=True)
    config = replace(config, split_via="workspace")
    plan = plan_launch(config, Problem(100, 200, 130), 132)
    assert plan.copy_bytes == {"a": 100 * 192 * 2, "b": 200 * 192 * 2}
    assert plan.a is not None and plan.b is not None
    assert (plan.a.columns, plan.a.rows, plan.b.columns, plan.b.rows) == (192, 100, 192, 200)
    copies = plan.ticket_bytes + plan.partial_bytes
    places = {"counters": 0, "tickets": 256, "partials": plan.ticket_bytes, "a_copy": copies, "b_copy": copies + 38_400}
    assert plan.places == places and plan.workspace_bytes == copies + 38_400 + 76_800
    seen = []

    def encode(spec: MapSpec, addresses: Words) -> Words:
        seen.append((spec, addresses.tolist()))
        return np.zeros((len(addresses), MAP_WORDS), np.uint64)

    sets = ParamSets(plan, *(np.array([at, at + 16], np.uint64) for at in (0x1000, 0x2000, 0x3000)), encode, 0x100000)
    assert [at for _, at in seen] == [[0x100000 + places[name]] * 2 for name in ("a_copy", "b_copy")]
    assert sets.structs["a_ptr"].tolist() == [0x1000, 0x1010] and sets.structs["c_ptr"].tolist() == [0x3000, 0x3010]
    assert sets.structs["b_copy"].tolist() == [0x100000 + places["b_copy"]] * 2


def test_of_row_major_operands_only_those_are_copied_that_tma_cannot_read() -> None:
    config = Sm90WsConfig(64, 64, 64, 4, "coop", 1, 1, 1, 1, "direct", 1, "m", 1, False, padded=True)
    plan = plan_launch(config, Problem(100, 201, 128, layout="nn"), 132)
    assert plan.copy_bytes == {"b": 128 * 256 * 2} and plan.a is not None and plan.b is not None
    assert (plan.a.columns, plan.b.columns, plan.b.rows) == (128, 256, 128)


@pytest.mark.parametrize(("mnk", "ctas"), [("64_64_63", 1), ("640_64_4095", 132), ("64_640_513", 40)])
def test_as_many_ctas_as_there_are_pieces_to_copy(mnk: str, ctas: int) -> None:
    config = Sm90WsConfig(64, 64, 64, 4, "coop", 1, 1, 1, 1, "direct", 1, "m", 1, False, padded=True)
    assert plan_launch(config, Problem.parse(mnk), 132).grid == ctas
    split = replace(config, split_k=2)  # in a cluster
    tiles = Problem.parse(mnk).m * Problem.parse(mnk).n // 64**2
    assert plan_launch(split, Problem.parse(mnk), 132).grid == 2 * tiles
