"""Launch plans and the parameter struct, byte by byte; no CUDA."""

from __future__ import annotations

import ctypes
import re
import struct
from dataclasses import replace

import numpy as np
import pytest

from cudal2.launch.plan import MAP_WORDS, PARAMS, PARAMS_BYTES, MapSpec, ParamSets, plan_launch
from cudal2.paths import kernels_dir
from cudal2.problem import Problem
from cudal2.space.config import KernelConfig

COOP = KernelConfig(128, 256, 64, 4, "coop", 2, 2, 1, 1, "tma", 1, "m", 8, True)
ONE_PER_TILE = replace(COOP, persistent=False)
SPLIT = KernelConfig(64, 96, 128, 4, "coop", 1, 1, 1, 4, "direct", 1, "n", 1, False)


def test_boxes_of_a_multicast_cluster_are_slices() -> None:
    plan = plan_launch(COOP, Problem(4096, 8192, 512), 132)
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


def test_the_struct_is_the_one_the_kernel_declares() -> None:
    header = (kernels_dir() / "include" / "cudal2" / "params.cuh").read_text()
    body = re.search(r"struct alignas\(64\) GemmParams \{(.*?)\};", header, re.DOTALL)
    assert body is not None
    declared = []
    for line in body[1].splitlines():
        match = re.match(r"\s*(TensorMap|void\*|int32_t) ([\w, ]+);", line)
        if match:
            declared += [(match[1], name.strip()) for name in match[2].split(",")]
    sizes = {"TensorMap": 128, "void*": 8, "int32_t": 4}
    offset = 0
    for kind, name in declared:
        assert PARAMS.fields is not None
        dtype, at = PARAMS.fields[name][:2]
        assert (at, dtype.itemsize) == (offset, sizes[kind]), name
        offset += sizes[kind]
    assert [name for _, name in declared] == list(PARAMS.names or ())
    assert f"sizeof(GemmParams) == {PARAMS_BYTES}" in header and PARAMS.itemsize == PARAMS_BYTES


def test_packed_structs_and_their_pointers() -> None:
    plan = plan_launch(SPLIT, Problem(65, 24, 4096), 132)
    count = 3
    a, b = (np.arange(count * MAP_WORDS, dtype=np.uint64).reshape(count, MAP_WORDS) + base for base in (1000, 2000))
    c_pointers = np.array([0x7F0000000000, 0x7F0000001000, 0x7F0000002000], np.uint64)
    sets = ParamSets(plan, a, b, None, c_pointers)
    base = sets.structs.ctypes.data
    assert base % 64 == 0
    raw = sets.structs.tobytes()[2 * PARAMS_BYTES :]
    assert struct.unpack_from("<16Q", raw, 0) == tuple(range(1032, 1048))
    assert struct.unpack_from("<16Q", raw, 128) == tuple(range(2032, 2048))
    assert raw[256:384] == bytes(128)  # no map of C for the direct epilogue
    assert struct.unpack_from("<Q8i", raw, 384) == (0x7F0000002000, 65, 24, 4096, 24, 2, 1, 1, 1)
    assert raw[424:] == bytes(24)
    pointer = ctypes.c_uint64.from_address(sets.kernel_params(2)).value
    assert pointer == base + 2 * PARAMS_BYTES
