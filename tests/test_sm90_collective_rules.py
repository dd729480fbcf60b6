"""Every rule of the ``sm90_collective`` space refuses what CUTLASS would, with the numbers, and nothing more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cudal2.arch import SM90
from cudal2.cli import arguments
from cudal2.problem import Problem
from cudal2.settings import load_shapes, load_space
from cudal2.space.config import Sm90CollectiveConfig
from cudal2.space.sm90_collective import geometry
from cudal2.space.sm90_collective.rules import RULES
from cudal2.space.space import SearchSpace

BASE = Sm90CollectiveConfig(128, 128, 64)
ONE_TILE = replace(BASE, schedule="warpspecialized")
SPACE = SearchSpace(family="sm90_collective")
LARGE = Problem(4096, 4096, 4096)
NN = Problem(4096, 4096, 4096, layout="nn")

REFUSALS = [
    (BASE, "alignment", {}, Problem(64, 64, 100), ["k = 100", "200 bytes", "sm80_mma"]),
    (BASE, "schedule_rows", {"tile_m": 64}, LARGE, ["two warp groups 64 rows", "has 64"]),
    (BASE, "accumulator_registers", {"tile_m": 256, "tile_n": 256}, LARGE, ["256 accumulator registers", "192"]),
    (BASE, "accumulator_registers", {"schedule": "pingpong", "tile_n": 256}, LARGE, ["256 accumulator registers"]),
    (BASE, "shared_memory", {"stages": 8}, LARGE, ["279552 bytes", "232448"]),
    (BASE, "cluster", {"cluster_m": 4, "cluster_n": 2}, LARGE, ["4 x 2", "at most 4"]),
    (BASE, "multicast_slice", {"tile_n": 16, "cluster_m": 4}, LARGE, ["4 of B", "multiples of 8"]),
    (BASE, "store_alignment", {}, Problem(64, 100, 256), ["n % 8 == 0", "n = 100", "nosmem"]),
    (BASE, "stream_k_schedule", {"scheduler": "stream_k", "schedule": "pingpong"}, LARGE, ["not for pingpong"]),
    (BASE, "split_k_scheduler", {"split_k": 4}, LARGE, ["split-K 4", "stream-K scheduler"]),
    (ONE_TILE, "tile_order", {"raster": "m"}, LARGE, ["warpspecialized", "raster m", "swizzle 1"]),
    (ONE_TILE, "tile_order", {"max_swizzle": 2}, LARGE, ["raster heuristic", "swizzle 2"]),
    (BASE, "tile_k_padding", {"tile_k": 128}, Problem(64, 64, 64), ["tile_k 128", "k = 64"]),
    (BASE, "split_k_depth", {"scheduler": "stream_k", "split_k": 8}, Problem(64, 64, 448), ["split-K 8", "7 K tiles"]),
    (BASE, "size", {}, Problem(2**31 - 8, 64, 64), ["2147483640_64_64", "2147483647"]),
    (ONE_TILE, "size", {}, Problem(64, 2**24, 64), ["131072 tiles", "65535 along n"]),
    (BASE, "swizzle_tiles", {"max_swizzle": 8}, Problem(640, 4096, 64), ["swizzle of 8", "6 tiles", "5 x 32"]),
    (BASE, "raster_single", {"raster": "n"}, Problem(128, 4096, 64), ["128_4096_64", "one line", "raster n"]),
]  # fmt: skip


@pytest.mark.parametrize(("base", "name", "change", "problem", "words"), REFUSALS)
def test_refuses_with_the_numbers_and_the_limit(
    base: Sm90CollectiveConfig, name: str, change: dict[str, Any], problem: Problem, words: list[str]
) -> None:
    assert SPACE.explain(base, LARGE) == []
    reasons = [r for r in SPACE.explain(replace(base, **change), problem) if r.startswith(f"{name}: ")]
    assert len(reasons) == 1 and "\n" not in reasons[0]
    for word in words:
        assert word in reasons[0], reasons[0]


def test_every_rule_refuses_something() -> None:
    assert {name for _, name, *_ in REFUSALS} == {rule.name for rule in RULES}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"tile_m": 256, "tile_n": 192}, LARGE),
        ({"schedule": "pingpong", "tile_m": 64, "tile_n": 256}, LARGE),
        ({"stages": 6}, LARGE),
        ({"cluster_m": 4}, LARGE),
        ({"cluster_m": 2, "cluster_n": 2}, LARGE),
        ({"tile_n": 16, "cluster_m": 4}, NN),
        ({"epilogue": "nosmem"}, Problem(64, 101, 256)),
        ({"scheduler": "stream_k", "split_k": 6}, Problem(64, 64, 384)),
        ({"max_swizzle": 8}, Problem(768, 4096, 64)),
        ({"tile_m": 256, "tile_n": 256}, Problem(4096, 4096, 4096, "fp16")),
    ],
)
def test_allows_what_just_meets_the_limit(change: dict[str, Any], problem: Problem) -> None:
    assert SPACE.explain(replace(BASE, **change), problem) == []


def test_legal_configurations_fit_the_multiprocessor_and_their_names_read_back() -> None:
    for problem in (LARGE, Problem(64, 104, 1000, "fp16", "nn"), Problem(1, 24, 8)):
        for config in list(SPACE.enumerate(problem))[:: 997 if problem is LARGE else 97]:
            assert geometry.smem_bytes(config) <= SM90.smem_bytes_per_block
            assert geometry.threads(config) <= SM90.threads_per_block
            assert 0 < geometry.grid_ctas(config, problem.m, problem.n, SM90.sm_count) < 2**31
            assert arguments.config(config.name) == config


def test_the_space_to_search_is_small_for_every_shape_of_the_grid() -> None:
    space = SearchSpace(SM90, load_space("sm90_collective"))
    built = set()
    for problem in load_shapes("grid").problems()[::37]:
        configs = list(space.enumerate(problem))
        built |= {config.build_name for config in configs}
        assert 20 <= len(configs) <= 60
    assert len(built) == 31
