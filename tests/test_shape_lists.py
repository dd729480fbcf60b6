"""Shape lists that a rule chose are what the rule chooses, and cover what they are said to cover."""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from cudal2.floor import CLASS_NAMES, floor_class, floor_us
from cudal2.settings import load_shapes

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def choose() -> ModuleType:
    spec = importlib.util.spec_from_file_location("choose_shapes", ROOT / "scripts" / "choose_shapes.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["judge96", "repeat24"])
def test_a_list_is_what_its_rule_chooses(choose: ModuleType, name: str) -> None:
    comment, rule = choose.LISTS[name]
    assert (ROOT / "configs" / "shapes" / f"{name}.yaml").read_text() == choose.text(comment, rule())


def test_the_judged_shapes_cover_the_grid() -> None:
    problems = load_shapes("judge96").problems()
    assert len(set(problems)) == 96
    assert problems[:32] == load_shapes("record32").problems()
    assert set(problems) <= set(load_shapes("grid").problems())
    counts = Counter(floor_class(problem.m, problem.n, problem.k) for problem in problems)
    assert min(counts[name] for name in CLASS_NAMES) >= 9
    work = sorted(math.log2(problem.flops) for problem in problems)
    assert max(after - before for before, after in itertools.pairwise(work)) <= 1.0
    assert work[-1] - work[0] > 21.0
    bounds = [floor_us(problem.m, problem.n, problem.k) for problem in problems]
    assert max(bounds) <= 3_000.0 and sum(bounds) < 30_000.0


def test_runs_are_compared_on_enough_shapes_of_every_class() -> None:
    problems = load_shapes("repeat24").problems()
    assert len(set(problems)) == 24
    assert {floor_class(problem.m, problem.n, problem.k) for problem in problems} == set(CLASS_NAMES)
