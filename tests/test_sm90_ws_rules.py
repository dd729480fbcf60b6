"""Every rule of the ``sm90_ws`` space refuses what it should, says why with the numbers, and nothing more."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from cudal2.arch import SM90
from cudal2.problem import Problem
from cudal2.space.config import Sm90WsConfig
from cudal2.space.sm90_ws import geometry
from cudal2.space.sm90_ws.rules import RULES, register_cap
from cudal2.space.sm90_ws.tiling import cluster_ctas
from cudal2.space.space import SearchSpace

BASE = Sm90WsConfig(128, 128, 64, 4, "coop", 2, 1, 1, 1, "tma", 1, "m", 1, False)
SPACE = SearchSpace()
LARGE = Problem(4096, 4096, 4096)
SHORT = Problem(8192, 8192, 128)
RULE_NAMES = [rule.name for rule in RULES]
#: 168 rows of C along wgmma's N, and 128 columns for one consumer.
SWAPPED = {"swap_ab": True, "tile_m": 168, "tile_n": 128, "consumers": 1}
SPLIT = {"split_k": 2, "split_via": "workspace", "epilogue": "direct"}
KEEPS_A = {"resident_a": 2, "persistent": True}
PADDED = {"padded": True}
STREAMS = {"stream_k": True, "persistent": True}
#: 230 tiles, 98 of them in the last wave.
WIDE_STREAMS = {**STREAMS, "tile_m": 256, "tile_n": 192, "stages": 3}

#: Rule, change to a legal configuration, problem, and words of the reason: the numbers and the limit.
REFUSALS = [
    ("alignment", {}, Problem(128, 256, 100), ["k = 100", "200 bytes", "16-byte", "k % 8 == 0", "padded"]),
    ("alignment", {}, Problem(128, 100, 256, layout="nn"), ["n = 100", "200 bytes", "n % 8 == 0"]),
    ("alignment", PADDED, Problem(128, 256, 104), ["rows of 208 bytes", "no copy is needed"]),
    ("alignment", PADDED, Problem(128, 96, 104, layout="nn"), ["rows of 208 and 192 bytes", "no copy is needed"]),
    # Rows of 8,001 elements are copied to lines of 64, 8,064.
    ("padded_bytes", PADDED, Problem(20000, 20000, 8001), ["645120000 bytes", "536870912", "sm80_mma"]),
    ("padded_prefetch", {**PADDED, "l2_prefetch": 2}, Problem(512, 512, 4001), ["previous grid", "L2 prefetch of 2"]),
    ("consumers_split_tile", {"tile_m": 192}, LARGE, ["2 cooperating", "96 of 192", "64 or 128"]),
    ("consumers_split_tile", {"tile_m": 256, "consumers": 3}, LARGE, ["85.3333 of 256", "64 or 128"]),
    ("consumers_split_tile", {"schedule": "pingpong", "consumers": 3}, LARGE, ["ping-pong takes 2", "not 3"]),
    ("consumers_split_tile", {"schedule": "pingpong", "tile_m": 256}, LARGE, ["64 or 128 rows", "256"]),
    ("consumers_split_tile", {"tile_m": 96, "consumers": 1}, LARGE, ["96 of 96 rows", "64 or 128"]),
    ("consumers_split_tile", {**SWAPPED, "tile_n": 96}, LARGE, ["96 of 96 columns", "64 or 128"]),
    ("consumers_split_tile", {**SWAPPED, "schedule": "pingpong"}, LARGE, ["128 columns each", "not 1 with 128"]),
    ("accumulator_registers", {**SWAPPED, "tile_m": 256}, LARGE, ["256 accumulator", "the 255"]),
    ("accumulator_registers", {"tile_m": 256, "tile_n": 256}, LARGE, ["256 accumulator", "32 working", "the 232"]),
    ("accumulator_registers", {"tile_m": 192, "tile_n": 256, "consumers": 3}, LARGE, ["128 accumulator", "the 128"]),
    ("accumulator_registers", {"ctas_per_sm": 2, "tile_n": 256}, LARGE, ["128 accumulator", "the 96"]),
    ("shared_memory", {"stages": 8}, LARGE, ["296192 bytes", "232448"]),
    ("shared_memory", {**KEEPS_A, "tile_n": 256, "stages": 6}, SHORT, ["263424 bytes", "232448"]),
    ("occupancy", {**KEEPS_A, "ctas_per_sm": 2}, SHORT, ["266752 bytes", "233472"]),
    ("occupancy", {"ctas_per_sm": 2}, LARGE, ["2 CTAs", "332288 bytes", "233472"]),
    ("cluster", {"cluster_m": 4, "cluster_n": 2}, LARGE, ["4 x 2", "at most 4"]),
    ("cluster", {"cluster_m": 2, "split_k": 16, "epilogue": "direct"}, LARGE, ["split-K 16", "a cluster 16"]),
    ("multicast_slice", {**SWAPPED, "tile_m": 168, "cluster_n": 2}, LARGE, ["84 rows of A", "128 of B", "of 8"]),
    ("pingpong_persistent", {"schedule": "pingpong"}, LARGE, ["1 tile", "1 of its 2"]),
    ("split_k", {"split_k": 2}, LARGE, ["split-K 2", "direct epilogue", "this is coop, tma, persistent False"]),
    ("split_k", {"split_k": 2, "epilogue": "direct", "persistent": True}, LARGE, ["persistent True"]),
    ("split_via", {"split_via": "workspace"}, LARGE, ["without split-K"]),
    ("workspace_size", {**SPLIT, "split_k": 4}, LARGE, ["268435456 bytes", "33554432", "by cluster"]),
    ("workspace_size", WIDE_STREAMS, Problem(2560, 4416, 4096), ["38535168 bytes", "33554432", "smaller tiles"]),
    ("stream_k", {"stream_k": True}, LARGE, ["needs persistence", "this is persistent False"]),
    ("stream_k", {**SPLIT, **STREAMS}, LARGE, ["no other split of K", "split_k 2"]),
    ("stream_k", {**STREAMS, **KEEPS_A}, SHORT, ["no resident A", "resident_a 2"]),
    ("stream_k", {**STREAMS, "tile_k": 32}, Problem(8192, 8192, 256), ["64 or more", "tile_k 32"]),
    ("stream_k_registers", {**STREAMS, "ctas_per_sm": 3}, LARGE, ["96 registers", "has 72", "fewer than 3 CTAs"]),
    ("stream_k_wave", STREAMS, LARGE, ["last wave has 100 of 132 clusters", "more than the 99 (75%)"]),
    ("stream_k_wave", STREAMS, Problem(2816, 1536, 4096), ["a full one of 132 clusters", "no CTA idle"]),
    ("stream_k_wave", STREAMS, Problem(2688, 1408, 960), ["15 K tiles", "fewer than the 16"]),
    ("producer_registers", {"producer_registers": 24, "consumers": 1}, LARGE, ["24 registers", "2 consumers", "has 1"]),
    ("store_hint", {"store_hint": "evict_first", "epilogue": "direct"}, LARGE, ["by TMA", "direct"]),
    ("shifted", {**SWAPPED, "epilogue": "shifted"}, Problem(4096, 4095, 4096), ["rows of C in a warp", "swapped"]),
    ("shifted_rows", {"epilogue": "shifted"}, LARGE, ["16 bytes", "n % 8 == 0", "n = 4096"]),
    ("store_buffers", {"store_buffers": 4, "epilogue": "direct"}, LARGE, ["4 buffers", "by TMA", "direct"]),
    ("n_major_box", {"tile_n": 120}, Problem(4096, 4096, 4096, layout="nn"), ["boxes of 16 columns", "tile_n = 120"]),
    ("resident_k", {**KEEPS_A, "tile_k": 32}, Problem(8192, 8192, 64), ["64 or more", "K tiles of 32"]),
    ("resident_k", {**KEEPS_A, "split_k": 2, "epilogue": "direct"}, SHORT, ["all of K", "split-K 2"]),
    ("resident_a", {"resident_a": 2}, Problem(4096, 4096, 128), ["run along N", "_a2_m1"]),
    ("resident_a", {**KEEPS_A, "group": 2}, Problem(8192, 8192, 128), ["raster m group 1", "_a2_m2p"]),
    ("resident_depth", KEEPS_A, Problem(8192, 8192, 192), ["2 K tiles of A", "k = 192", "3 of 64"]),
    ("narrow_tile_k", {"tile_k": 16, "tile_n": 80}, Problem(512, 512, 64), ["1024 bytes", "4096", "2560", "split-K 1"]),
    ("narrow_tile_k", {"tile_k": 32, "split_k": 2, "epilogue": "direct"}, Problem(512, 512, 128), ["split-K 2"]),
    ("narrow_depth", {"tile_k": 32}, LARGE, ["tile_k 32", "up to 256", "4096"]),
    ("store_box", {}, Problem(512, 1001, 512), ["n % 8 == 0", "n = 1001"]),
    ("tile_k_padding", {"tile_k": 128, "stages": 2}, Problem(512, 512, 40), ["tile_k 128", "k = 40", "up to 64"]),
    (
        "split_k_depth",
        {"split_k": 4, "epilogue": "direct", "stages": 2},
        Problem(512, 512, 160),
        ["K tiles", "3", "160"],
    ),
    ("size", {}, Problem(2**31 - 8, 2**31 - 8, 4096), ["2147483640_2147483640_4096", "CTAs", "2147483647"]),
    ("stages_depth", {}, Problem(512, 512, 128), ["4 stages", "the 2", "k = 128"]),
    ("stages_depth", {"split_k": 8, "epilogue": "direct"}, Problem(512, 512, 1536), ["4 stages", "the 3"]),
    ("prefetch_depth", {"l2_prefetch": 64, "stages": 2}, Problem(512, 512, 128), ["2 K tiles", "k = 128", "64 is one"]),
    ("raster_single", {"raster": "n"}, Problem(128, 4096, 512), ["1 x 32 cluster tiles", "raster m group 1"]),
    ("group_too_big", {"group": 4}, Problem(512, 4096, 512), ["group 4", "all 4", "along m", "raster n group 1"]),
    ("persistent_single_wave", {"persistent": True}, Problem(1024, 2048, 512), ["128 clusters", "wave of 132"]),
]


@pytest.mark.parametrize(("name", "change", "problem", "words"), REFUSALS)
def test_refuses_with_the_numbers_and_the_limit(
    name: str, change: dict[str, Any], problem: Problem, words: list[str]
) -> None:
    assert SPACE.explain(BASE, LARGE) == []
    reasons = [r for r in SPACE.explain(replace(BASE, **change), problem) if r.startswith(f"{name}: ")]
    assert len(reasons) == 1
    assert "\n" not in reasons[0]
    assert len(reasons[0].split()) >= 8
    for word in words:
        assert word in reasons[0], reasons[0]


@pytest.mark.parametrize(
    ("problem", "met"), [(LARGE, ["K tiles"]), (Problem(2688, 1408, 960), ["wave"]), (Problem(4096, 4096, 960), [])]
)
def test_what_a_last_wave_lacks_for_stream_k_is_named_and_nothing_else(problem: Problem, met: list[str]) -> None:
    (reason,) = [one for one in SPACE.explain(replace(BASE, **STREAMS), problem) if one.startswith("stream_k_wave: ")]
    said = reason.removeprefix("stream_k_wave: ")
    assert {word for word in ("K tiles", "wave") if word not in said} == set(met), said


#: Rule, change, a problem where the limit is just met, and one where it is just missed.
LIMITS = [
    ("alignment", {}, Problem(512, 512, 504), Problem(512, 512, 508)),
    ("alignment", {}, Problem(512, 512, 512, layout="nn"), Problem(512, 508, 512, layout="nn")),
    ("alignment", PADDED, Problem(512, 512, 508), Problem(512, 512, 504)),
    ("alignment", PADDED, Problem(512, 512, 508, layout="nn"), Problem(512, 512, 504, layout="nn")),
    ("alignment", {**PADDED, "epilogue": "direct"}, Problem(512, 508, 512, layout="nn"), Problem(512, 508, 512)),
    # 2^28 elements of copies in all; 4,095 are copied to 4,096, and row-major B of aligned rows is not copied.
    ("padded_bytes", PADDED, Problem(2**15, 2**15, 4095), Problem(2**15 + 1, 2**15, 4095)),
    ("padded_bytes", PADDED, Problem(2**16, 2**15, 4095, layout="nn"), Problem(2**16 + 1, 2**15, 4095, layout="nn")),
    ("store_box", {}, Problem(512, 1000, 512), Problem(512, 1004, 512)),
    ("shifted_rows", {"epilogue": "shifted"}, Problem(512, 1004, 512), Problem(512, 1000, 512)),
    ("store_box", PADDED, Problem(512, 1000, 511), Problem(512, 1004, 511)),
    ("tile_k_padding", {"tile_k": 128, "stages": 2}, Problem(512, 512, 72), Problem(512, 512, 64)),
    (
        "split_k_depth",
        {"split_k": 4, "epilogue": "direct", "stages": 2},
        Problem(512, 512, 200),
        Problem(512, 512, 192),
    ),
    (
        "split_k_depth",
        {"split_k": 4, "epilogue": "direct", "stages": 2, "tile_k": 128},
        Problem(512, 512, 392),
        Problem(512, 512, 384),
    ),
    # 16 MiB of C in fp32, twice.
    ("workspace_size", SPLIT, Problem(2048, 2048, 4096), Problem(2048, 2049, 4096)),
    # 99 and 100 of 132 clusters in the last wave, none of them, and 16 K tiles or 15.
    ("stream_k_wave", STREAMS, Problem(2688, 1408, 4096), Problem(3712, 1024, 4096)),
    ("stream_k_wave", STREAMS, Problem(2688, 1408, 4096), Problem(2816, 1536, 4096)),
    ("stream_k_wave", STREAMS, Problem(2688, 1408, 1024), Problem(2688, 1408, 960)),
    ("narrow_depth", {"tile_k": 32}, Problem(512, 512, 256), Problem(512, 512, 264)),
    ("resident_depth", KEEPS_A, Problem(8192, 8192, 128), Problem(8192, 8192, 136)),
    ("resident_depth", KEEPS_A, Problem(8192, 8192, 72), Problem(8192, 8192, 64)),
    ("stages_depth", {}, Problem(512, 512, 200), Problem(512, 512, 192)),
    ("stages_depth", {"stages": 3}, Problem(512, 512, 136), Problem(512, 512, 128)),
    ("stages_depth", {"persistent": True}, Problem(128 * 265, 128, 72), Problem(128 * 265, 128, 64)),
    ("stages_depth", {"persistent": True}, Problem(128 * 397, 128, 64), Problem(128 * 396, 128, 64)),
    (
        "stages_depth",
        {"persistent": True, "stages": 12, "tile_m": 64, "tile_n": 64, "consumers": 1},
        Problem(64 * (132 * 11 + 1), 64, 8),
        Problem(64 * 132 * 11, 64, 8),
    ),
    ("persistent_single_wave", {"persistent": True}, Problem(128 * 133, 128, 512), Problem(128 * 132, 128, 512)),
    (
        "persistent_single_wave",
        {"persistent": True, "cluster_m": 2},
        Problem(256 * 66 + 1, 128, 512),
        Problem(256 * 66, 128, 512),
    ),
    ("raster_single", {"raster": "n"}, Problem(129, 136, 512), Problem(128, 136, 512)),
    ("group_too_big", {"group": 4}, Problem(513, 512, 512), Problem(512, 512, 512)),
    ("group_too_big", {"group": 4, "raster": "n", "cluster_n": 2}, Problem(512, 1032, 512), Problem(512, 1024, 512)),
    ("prefetch_depth", {"l2_prefetch": 64, "stages": 2}, Problem(512, 512, 136), Problem(512, 512, 128)),
    # 24 MiB hold three times the rows of A and B of a K tile, or not quite.
    ("prefetch_depth", {"l2_prefetch": 64}, Problem(2**15, 2**15, 512), Problem(2**15 + 1, 2**15, 512)),
    ("size", {}, Problem(2**31 - 128, 64, 512), Problem(2**31 - 127, 64, 512)),
]


@pytest.mark.parametrize(("name", "change", "met", "missed"), LIMITS)
def test_the_limit_is_where_it_says(name: str, change: dict[str, Any], met: Problem, missed: Problem) -> None:
    config = replace(BASE, **change)
    assert SPACE.explain(config, met) == []
    assert name in [reason.split(":")[0] for reason in SPACE.explain(config, missed)]


def test_every_rule_has_a_refusal_case() -> None:
    assert {case[0] for case in REFUSALS} == set(RULE_NAMES)


def test_a_ragged_multicast_slice_is_refused() -> None:
    rule = next(rule for rule in RULES if rule.name == "multicast_slice")
    ragged = replace(BASE, tile_n=24, cluster_m=2)
    assert not rule.allows(ragged, LARGE, SM90)
    assert "12 of B" in rule.reason(ragged, LARGE, SM90)
    assert rule.allows(ragged, replace(LARGE, layout="nn"), SM90), "nn slices B along K"
    assert not rule.allows(replace(ragged, tile_k=8), replace(LARGE, layout="nn"), SM90)
    assert not rule.allows(replace(BASE, tile_m=72, cluster_n=2), LARGE, SM90)


def test_no_rule_is_made_redundant_by_those_before_it() -> None:
    problems = [
        Problem(64, 4096, 64),
        Problem(8192, 8192, 192),
        Problem(129, 136, 8),
        Problem(64, 96, 100),
        Problem(64, 100, 4104),
        Problem(20000, 20000, 8001),
        Problem(2**31 - 8, 2**31 - 8, 4096),
        Problem(512, 512, 512, layout="nn"),
    ]
    removed = dict.fromkeys(RULE_NAMES, 0)
    for problem in problems:
        for name, count in SPACE.removed_by_rule(problem).items():
            removed[name] += count
    assert [name for name, count in removed.items() if count == 0] == []


@pytest.mark.parametrize(
    ("consumers", "ctas_per_sm", "registers"),
    [(1, 1, 255), (2, 1, 232), (3, 1, 128), (1, 2, 168), (2, 2, 96), (3, 2, 72)],
)
def test_register_cap(consumers: int, ctas_per_sm: int, registers: int) -> None:
    config = replace(BASE, consumers=consumers, ctas_per_sm=ctas_per_sm)
    assert int(register_cap(config, SM90)) == registers
    if not geometry.uses_setmaxnreg(config):
        assert registers * geometry.threads(config) * ctas_per_sm <= SM90.registers_per_sm


def test_legal_configurations_keep_the_hardware_limits() -> None:
    """Measured by ``geometry`` alone, not by the rules."""
    rng = np.random.default_rng(3)
    for problem in (LARGE, Problem(1000, 520, 3000, "fp16", "nn")):
        for config in SPACE.sample(problem, rng, 300):
            assert geometry.smem_bytes(config) <= 232_448
            assert config.ctas_per_sm * (geometry.smem_bytes(config) + 1024) <= 233_472
            assert geometry.accumulator_registers(config, problem.acc) + 32 <= int(register_cap(config, SM90))
            assert geometry.consumer_rows(config) in (64, 128)
            assert geometry.cluster_size(config) <= 16
            assert 0 < geometry.grid_ctas(config, problem.m, problem.n, SM90.sm_count) < 2**31


def test_clusters_are_as_large_as_geometry_says() -> None:
    for split_k, via in product((1, 2, 8), ("cluster", "workspace")):
        config = replace(BASE, cluster_m=2, split_k=split_k, split_via=via)
        assert int(cluster_ctas(config)) == geometry.cluster_size(config), config


def test_fp16_accumulators_take_half_the_registers() -> None:
    wide = replace(BASE, tile_m=256, tile_n=256, stages=2, epilogue="direct")
    assert SPACE.explain(wide, replace(LARGE, acc="fp16")) == []
    assert SPACE.explain(wide, LARGE) != []
