"""Every rule of the ``sm90_small`` space refuses what it should, says why with the numbers, and nothing more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cudal2.arch import SM90
from cudal2.problem import Problem
from cudal2.settings import load_space
from cudal2.space.config import Sm90SmallConfig
from cudal2.space.sm90_small import geometry
from cudal2.space.sm90_small.rules import RULES
from cudal2.space.space import SearchSpace

C = Sm90SmallConfig
BASE = C(64, 64, 64, 4, "wgmma", 4, 1)
MMA = C(32, 32, 64, 4, "mma", 4, 1)
SPACE = SearchSpace(family="sm90_small")
SMALL = Problem(256, 512, 1024)

REFUSALS = [
    (BASE, "alignment", {}, Problem(64, 64, 100), ["k = 100", "200 bytes", "sm80_mma"]),
    (BASE, "alignment", {}, Problem(64, 100, 256, layout="nn"), ["n = 100", "200 bytes"]),
    (BASE, "warps_share_tile", {"tile_m": 32}, SMALL, ["4 warps", "32 x 64", "64 rows"]),
    (BASE, "warps_share_tile", {"warps": 8, "tile_n": 24}, SMALL, ["8 warps", "64 x 24", "whole 8 columns"]),
    (BASE, "warps_share_tile", {"warps": 2}, SMALL, ["groups of 4 warps"]),
    (MMA, "warps_share_tile", {"tile_n": 16}, SMALL, ["4 warps", "32 x 16", "16 rows", "16, 32, 48 or 64 columns"]),
    (MMA, "warps_share_tile", {"tile_m": 16, "tile_n": 128, "warps": 1}, SMALL, ["1 warps", "16 x 128"]),
    (BASE, "b_box", {"tile_n": 24}, Problem(256, 512, 1024, layout="nn"), ["64 x 24", "16 columns", "has 24"]),
    (BASE, "shared_memory", {"tile_m": 128, "tile_n": 128, "tile_k": 256}, SMALL, ["524544 bytes", "232448"]),
    (BASE, "tile_k_padding", {"tile_k": 128, "stages": 1}, Problem(64, 64, 64), ["tile_k 128", "k = 64"]),
    (BASE, "split_k_depth", {"split_k": 8, "stages": 1}, Problem(64, 64, 448), ["split-K 8", "7 K tiles", "k = 448"]),
    (BASE, "size", {}, Problem(64 * 65_536, 64, 256), ["65536 x 1 tiles", "65535"]),
    (BASE, "stages_depth", {"split_k": 3}, Problem(64, 64, 576), ["4 stages", "3 K tiles", "k = 576"]),
    (BASE, "one_stage", {"stages": 1}, Problem(64, 64, 65), ["one stage for 2 K tiles"]),
]  # fmt: skip


@pytest.mark.parametrize(("base", "name", "change", "problem", "words"), REFUSALS)
def test_refuses_with_the_numbers_and_the_limit(
    base: Sm90SmallConfig, name: str, change: dict[str, Any], problem: Problem, words: list[str]
) -> None:
    assert SPACE.explain(base, SMALL) == []
    reasons = [r for r in SPACE.explain(replace(base, **change), problem) if r.startswith(f"{name}: ")]
    assert len(reasons) == 1 and "\n" not in reasons[0]
    for word in words:
        assert word in reasons[0], reasons[0]


#: Configuration, rule, a problem where the limit is just met, and one where it is just missed.
LIMITS = [
    (BASE, "alignment", Problem(64, 100, 256), Problem(64, 100, 260)),
    (BASE, "alignment", Problem(64, 104, 256, layout="nn"), Problem(64, 100, 256, layout="nn")),
    (replace(BASE, tile_k=128, stages=1), "tile_k_padding", Problem(64, 64, 72), Problem(64, 64, 64)),
    (replace(BASE, split_k=8, stages=1), "split_k_depth", Problem(64, 64, 456), Problem(64, 64, 448)),
    (replace(BASE, split_k=3), "stages_depth", Problem(64, 64, 584), Problem(64, 64, 576)),
    (replace(BASE, stages=1), "one_stage", Problem(64, 64, 64), Problem(64, 64, 72)),
    (BASE, "size", Problem(64, 64 * 65_535, 256), Problem(64, 64 * 65_535 + 1, 256)),
    (BASE, "size", Problem(64, 64, 2**31 - 64), Problem(64, 64, 2**31 - 56)),
]


@pytest.mark.parametrize(("config", "name", "met", "missed"), LIMITS)
def test_the_limit_is_where_it_says(config: Sm90SmallConfig, name: str, met: Problem, missed: Problem) -> None:
    assert SPACE.explain(config, met) == []
    assert name in [reason.split(":")[0] for reason in SPACE.explain(config, missed)]


def test_every_rule_has_a_refusal_case() -> None:
    assert {case[1] for case in REFUSALS} == {rule.name for rule in RULES}


@pytest.mark.parametrize("mnk", ["64_64_64", "64_4096_64", "256_256_256", "1_8_8", "64_64_16384", "1000_104_88"])
def test_every_small_shape_has_legal_kernels_within_the_hardware(mnk: str) -> None:
    for layout in ("tn", "nn"):
        problem = Problem.parse(mnk, layout=layout)  # type: ignore[arg-type]
        assert SPACE.legal_count(problem) > 100
        for config in SPACE.sample(problem, np.random.default_rng(1), 50):
            assert isinstance(config, C) and SPACE.explain(config, problem) == []
            assert geometry.smem_bytes(config) <= SM90.smem_bytes_per_block
            assert geometry.threads(config) * 255 <= SM90.registers_per_sm
            parts = config.warps if config.variant == "mma" else config.warps // 4
            assert geometry.part_rows(config) * geometry.part_columns(config) * parts == config.tile_m * config.tile_n
            # A barrier counts at most 2^20 - 1 bytes.
            assert max(geometry.stage_bytes(config), geometry.received_bytes(config)) < 2**20
            boxes = (config.tile_m, config.tile_n, config.tile_k, geometry.b_box_columns(config, problem.layout))
            assert max(boxes) <= 256


def test_sums_travel_in_whole_quads_of_every_thread() -> None:
    split = replace(BASE, split_k=6)  # 8 quads a thread, shares of 2: the sixth slice's place is there and stays empty
    assert geometry.received_bytes(split) == 6 * 2 * 128 * 16
    assert geometry.received_bytes(replace(split, warps=8)) == 6 * 1 * 256 * 16
    assert geometry.received_bytes(replace(MMA, split_k=2)) == 2 * 1 * 128 * 16
    assert geometry.received_bytes(BASE) == 0


def test_the_recorded_subspace_is_a_few_hundred_configurations() -> None:
    space = SearchSpace(SM90, load_space("sm90_small_record"))
    assert SearchSpace(SM90, load_space("sm90_small")).digest == SPACE.digest
    for mnk in ("64_64_64", "64_4096_64", "256_256_256", "512_512_512", "64_64_16384", "128_256_8192"):
        for layout in ("tn", "nn"):
            problem = Problem.parse(mnk, layout=layout)  # type: ignore[arg-type]
            assert 20 <= space.legal_count(problem) <= 600
            assert {config.variant for config in space.enumerate(problem)} == {"wgmma", "mma"}  # type: ignore[attr-defined]
