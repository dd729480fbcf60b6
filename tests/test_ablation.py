"""The ablation table of kernels/README.md is what the shipped recording says."""

import importlib.util
from dataclasses import replace
from pathlib import Path

from cudal2.problem import Problem
from cudal2.records.recording import bundled_recording
from cudal2.space.config import Sm80MmaConfig, Sm90WsConfig
from cudal2.space.families import FAMILIES

ROOT = Path(__file__).parents[1]
_SPEC = importlib.util.spec_from_file_location("ablation", ROOT / "scripts" / "ablation.py")
assert _SPEC is not None and _SPEC.loader is not None
ablation = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(ablation)

SPLIT = Sm90WsConfig(64, 64, 64, 4, "coop", 1, 1, 1, 4, "direct", 1, "m", 1, False)
WHOLE = Sm90WsConfig(64, 64, 64, 4, "coop", 1, 1, 1, 1, "direct", 1, "m", 1, False)


def test_the_page_holds_the_table_of_the_shipped_recording():
    path = bundled_recording()
    page = (ROOT / "kernels" / "README.md").read_text()
    assert ablation.table(ablation.relative_times(path), path.name) in page


def test_each_family_has_its_place_in_the_page_and_its_own_axes():
    page = (ROOT / "kernels" / "README.md").read_text()
    for family in FAMILIES:
        assert all(page.count(marker) == 1 for marker in ablation.markers(family))
    mma = Sm80MmaConfig(64, 64, 32, 3, 2, 2, "swizzle", 2, "plain", "wide", 16, 2, "m", 1)
    text = ablation.table({Problem(64, 64, 64): {mma: 0.5, replace(mma, smem_layout="pad"): 0.6}}, "x")
    assert "| swizzled shared memory | 20.0 % | 1 | 20 % | 64_64_64" in text
    assert set(ablation.ABLATIONS) == set(FAMILIES)


def test_a_loss_is_best_without_over_best_with():
    times = {Problem(64, 64, 4096): {SPLIT: 0.5, WHOLE: 0.75}, Problem(64, 64, 64): {WHOLE: 1.0}}
    rows = {
        line.split("|")[1].strip(): line for line in ablation.table(times, "x").splitlines() if line.startswith("| ")
    }
    assert "| 22.5 % | 1 | 50 % | 64_64_4096" in rows["split-K"]
    assert rows["tile_k 128"].startswith("| tile_k 128 | 0.0 % | 0 |")
    assert rows["direct stores"].startswith("| direct stores | none left |")
