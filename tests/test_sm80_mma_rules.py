"""Every rule of the ``sm80_mma`` space refuses what it should, says why with the numbers, and nothing more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cudal2.arch import SM80, SM86, SM90
from cudal2.problem import Problem
from cudal2.space.config import Sm80MmaConfig
from cudal2.space.sm80_mma import geometry
from cudal2.space.sm80_mma.rules import RULES, register_cap
from cudal2.space.space import SearchSpace

BASE = Sm80MmaConfig(128, 128, 32, 4, 2, 2, "swizzle", 2, "plain", "wide", 16, 2, "m", 1)
SPACE = SearchSpace(family="sm80_mma")
LARGE = Problem(4096, 4096, 4096)

REFUSALS = [
    ("copy_width", {}, Problem(512, 512, 100), ["k = 100", "8 bytes at a time", "not 16"]),
    ("copy_width", {}, Problem(512, 101, 512, layout="nn"), ["n = 101", "2 bytes at a time"]),
    ("copy_width", {"copy_bytes": 4}, LARGE, ["16 bytes at a time", "not 4"]),
    ("warps_split_tile", {"tile_m": 16}, LARGE, ["2 x 2 warps", "8 x 64 of 16 x 128", "16 x 16"]),
    ("warps_split_tile", {"tile_n": 32, "warps_n": 4}, LARGE, ["64 x 8 of 128 x 32"]),
    ("fragment_buffers", {"tile_k": 16}, LARGE, ["tile_k 16 is one step", "needs two"]),
    ("chunks_per_thread", {"tile_m": 192, "tile_k": 64, "warps_n": 1, "stages": 2}, LARGE, ["40 chunks", "32"]),
    ("registers", {"tile_m": 256, "ctas_per_sm": 1}, LARGE, ["256 accumulator", "96 fragment", "the 255"]),
    ("registers", {"copy_bytes": 2}, Problem(4096, 4096, 4097), ["128 accumulator", "64 staging", "the 255"]),
    ("registers", {"ctas_per_sm": 4, "stages": 2}, LARGE, ["128 accumulator", "40 working", "the 128"]),
    ("shared_memory", {"tile_k": 64, "stages": 6, "tile_m": 256, "warps_m": 4}, LARGE, ["294912 bytes", "232448"]),
    ("occupancy", {"stages": 6, "ctas_per_sm": 3}, LARGE, ["3 CTAs", "297984 bytes", "233472"]),
    ("tile_k_padding", {"stages": 2}, Problem(512, 512, 16), ["tile_k 32", "k = 16", "up to 16"]),
    ("size", {}, Problem(2**31 - 8, 2**31 - 8, 4096), ["2147483640_2147483640_4096", "CTAs", "2147483647"]),
    ("stages_depth", {}, Problem(512, 512, 64), ["4 stages prefetch 3", "k = 64 has 2"]),
    ("stages_depth", {"split_k": 4}, Problem(512, 512, 256), ["4 stages prefetch 3", "a slice of k = 256", "most 2"]),
    ("split_k_depth", {"split_k": 6, "stages": 2}, Problem(512, 512, 160), ["split-K 6", "5 K tiles of 32"]),
    ("shifted_rows", {"epilogue": "shifted"}, LARGE, ["16 bytes", "n % 8 == 0", "n = 4096"]),
    ("workspace_size", {"split_k": 2}, LARGE, ["134217728 bytes", "33554432 that L2 keeps"]),
    ("raster_single", {"raster": "n"}, Problem(128, 4096, 512), ["1 x 32 tiles", "raster m group 1"]),
    ("group_too_big", {"group": 4}, Problem(512, 4096, 512), ["group 4", "all 4", "along m", "raster n group 1"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "problem", "words"), REFUSALS)
def test_refuses_with_the_numbers_and_the_limit(
    name: str, change: dict[str, Any], problem: Problem, words: list[str]
) -> None:
    assert SPACE.explain(BASE, LARGE) == []
    reasons = [r for r in SPACE.explain(replace(BASE, **change), problem) if r.startswith(f"{name}: ")]
    assert len(reasons) == 1 and "\n" not in reasons[0]
    for word in words:
        assert word in reasons[0], reasons[0]


#: Rule, change, a problem where the limit is just met, and one where it is just missed.
LIMITS = [
    ("copy_width", {}, Problem(512, 512, 504), Problem(512, 512, 508)),
    ("copy_width", {"copy_bytes": 2, "tile_n": 64}, Problem(512, 512, 511), Problem(512, 512, 510)),
    ("copy_width", {"copy_bytes": 4}, Problem(512, 510, 512, layout="nn"), Problem(512, 512, 512, layout="nn")),
    ("tile_k_padding", {"stages": 2, "copy_bytes": 2, "tile_n": 64}, Problem(512, 512, 17), Problem(512, 512, 15)),
    ("stages_depth", {}, Problem(512, 512, 72), Problem(512, 512, 64)),
    ("stages_depth", {"split_k": 4}, Problem(512, 512, 264), Problem(512, 512, 256)),
    ("split_k_depth", {"split_k": 6, "stages": 2}, Problem(512, 512, 168), Problem(512, 512, 160)),
    ("shifted_rows", {"epilogue": "shifted"}, Problem(512, 513, 512), Problem(512, 520, 512)),
    ("workspace_size", {"split_k": 2}, Problem(2048, 2048, 512), Problem(2048, 2049, 512)),
    ("raster_single", {"raster": "n"}, Problem(129, 136, 512), Problem(128, 136, 512)),
    ("group_too_big", {"group": 4}, Problem(513, 512, 512), Problem(512, 512, 512)),
    ("size", {}, Problem(2**31 - 128, 64, 512), Problem(2**31 - 127, 64, 512)),
    ("size", {}, Problem(64, 64, 2**31 - 64), Problem(64, 64, 2**31 - 56)),
]


@pytest.mark.parametrize(("name", "change", "met", "missed"), LIMITS)
def test_the_limit_is_where_it_says(name: str, change: dict[str, Any], met: Problem, missed: Problem) -> None:
    config = replace(BASE, **change)
    assert SPACE.explain(config, met) == []
    assert name in [reason.split(":")[0] for reason in SPACE.explain(config, missed)]


def test_every_rule_has_a_refusal_case() -> None:
    assert {case[0] for case in REFUSALS} == {rule.name for rule in RULES}


@pytest.mark.parametrize("arch", [SM90, SM80, SM86], ids=lambda arch: arch.name)
@pytest.mark.parametrize("mnk", ["123_456_789", "1_1_1", "1_4096_4096", "4097_33_129", "64_64_7", "4096_4096_4096"])
def test_every_shape_has_legal_kernels_within_the_hardware(arch, mnk: str) -> None:  # type: ignore[no-untyped-def]
    space = SearchSpace(arch, family="sm80_mma")
    for layout in ("tn", "nn"):
        problem = Problem.parse(mnk, layout=layout)  # type: ignore[arg-type]
        assert space.legal_count(problem) > 100
        for config in space.sample(problem, np.random.default_rng(1), 50):
            assert isinstance(config, Sm80MmaConfig) and space.explain(config, problem) == []
            assert config.copy_bytes == problem.alignment_bytes
            assert geometry.smem_bytes(config) <= arch.smem_bytes_per_block
            assert config.ctas_per_sm * (geometry.smem_bytes(config) + 1024) <= arch.smem_bytes_per_sm
            threads = config.ctas_per_sm * geometry.threads(config)
            assert threads <= arch.threads_per_sm and threads * int(register_cap(config, arch)) <= arch.registers_per_sm
            assert geometry.grid_ctas(config, problem.m, problem.n, arch.sm_count) < 2**31


def test_ampere_has_less_shared_memory_than_hopper() -> None:
    deep = replace(BASE, stages=6, tile_k=64, ctas_per_sm=1)
    assert SPACE.explain(deep, LARGE) == []
    assert "shared_memory" in SearchSpace(SM80).explain(deep, LARGE)[0]
    assert "shared_memory" in SearchSpace(SM86).explain(replace(deep, stages=4), LARGE)[0]
