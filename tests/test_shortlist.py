"""Shortlists for shapes that nobody measured, and the plans that a sweep follows."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fabricated_recording import FINGERPRINT

from cudal2.errors import NothingValidError, UsageError
from cudal2.problem import Problem
from cudal2.records.measurement import Measurement, Status
from cudal2.records.recording import Recording
from cudal2.runners.plan import ByFamily, families_of, in_passes, part_of, read_plan, write_plan
from cudal2.search import shortlist
from cudal2.search.shortlist import Shortlister, analytic_shortlist
from cudal2.search.surrogate import Surrogate, features, log_behind
from cudal2.settings import load_space
from cudal2.space.config import KernelConfig
from cudal2.space.refit import suited
from cudal2.space.space import SearchSpace

WS, SMALL = SearchSpace(), SearchSpace(family="sm90_small")
ROOT = Path(__file__).parent.parent
PROBLEMS = [Problem(m, n, k) for m in (128, 512) for n in (256, 1024) for k in (256, 1024)]
NEW = Problem(256, 512, 512)


def law(config: KernelConfig) -> float:
    """A world where square tiles of 64 are best and deep rings better, whatever the shape."""
    distance = abs(np.log2(config.tile_m / 64)) + abs(np.log2(config.tile_n / 64)) + abs(np.log2(config.stages / 4))
    return 5.0 * float(1.0 + 0.2 * distance)


def rows(problem: Problem, count: int = 60, factor: float = 1.0) -> list[Measurement]:
    configs = WS.sample(problem, np.random.default_rng(problem.m + problem.k), count, replace=False)
    times = [factor * law(config) for config in configs]
    return [
        Measurement(problem, "sm90_ws", config, Status.CORRECT, times_us=(time_us,), pdl=True)
        for config, time_us in zip(configs, times, strict=True)
    ]


@pytest.fixture(scope="module")
def known() -> list[Measurement]:
    return [row for problem in PROBLEMS for row in rows(problem)]


def test_what_is_behind_is_relative_to_the_best_and_older_records_are_moved_onto_newer_ones() -> None:
    old, new = rows(NEW, factor=2.0), rows(NEW)[:20]
    behind = log_behind([old, new])[NEW]
    times = {row.config: law(row.config) for row in old}
    best = min(times.values())
    assert len(behind) == 60 and behind == pytest.approx({c: np.log(us / best) for c, us in times.items()})
    failed = Measurement(NEW, "sm90_ws", old[0].config, Status.COMPILE, "no such luck")
    assert log_behind([[failed]]) == {}


def test_drift_that_the_reference_saw_too_does_not_count() -> None:
    pairs = [(row, 1.0 + 0.3 * (at % 2)) for at, row in enumerate(rows(NEW))]
    drifting = [
        Measurement(
            NEW, "sm90_ws", row.config, Status.CORRECT, times_us=(row.median_us * hot,), ref_times_us=(7.0 * hot,)
        )
        for row, hot in pairs
    ]
    assert log_behind([drifting])[NEW] == pytest.approx(log_behind([rows(NEW)])[NEW])


def test_features_are_finite_for_both_families_and_tell_waves() -> None:
    configs = [*WS.sample(NEW, np.random.default_rng(0), 50), *SMALL.sample(NEW, np.random.default_rng(0), 50)]
    found = features(NEW, configs)
    assert found.shape[0] == 100 and np.isfinite(found).all()
    assert (features(Problem(8192, 512, 512), configs) != found).any(axis=1).all()


def test_stages_that_are_left_to_cutlass_are_as_many_as_fit() -> None:
    space = SearchSpace(family="sm90_collective")
    configs = [replace(one, stages=0) for one in space.sample(NEW, np.random.default_rng(0), 50)]
    with np.errstate(all="raise"):
        found = features(NEW, configs)
    assert np.isfinite(found).all()
    config = replace(configs[0], tile_m=128, tile_n=128, tile_k=64)
    left, named = features(NEW, [config, replace(config, stages=7)])
    assert (left == named).all(), "7 x 32 KiB of the 227 a CTA may have"


@pytest.mark.parametrize("space", [WS, SMALL], ids=lambda space: space.family.name)
def test_features_see_what_l2_fetches_and_how_rows_lie(space: SearchSpace) -> None:
    (config,) = space.sample(NEW, np.random.default_rng(0), 1)
    pair = [replace(config, l2_promotion=promotion) for promotion in (256, 128)]
    one, other = features(NEW, pair)
    *axes, model = np.flatnonzero(one != other)
    assert [(one[at], other[at]) for at in axes] == [(256.0, 128.0)] and model == len(one) - 1, "and the analytic model"
    rows_of_a, rows_of_b = 6, 7  # behind six figures of the sizes

    def starts(problem: Problem) -> list[float]:
        return features(problem, [config])[0, [rows_of_a, rows_of_b]].tolist()

    assert starts(NEW) == [128.0, 128.0]
    assert starts(Problem(256, 520, 504)) == [16.0, 16.0] and starts(Problem(256, 520, 496)) == [32.0, 32.0]
    assert starts(Problem(256, 520, 512, layout="nn")) == [128.0, 16.0]
    assert starts(Problem(256, 520, 511)) == [128.0, 128.0], "copies"
    assert starts(Problem(256, 520, 511, layout="nn")) == [128.0, 16.0], "A's alone is one"


def test_a_shortlist_is_legal_diverse_and_led_by_what_the_records_like(known: list[Measurement]) -> None:
    pytest.importorskip("sklearn")
    shortlister = Shortlister(log_behind([known]))
    found = shortlister.shortlist(NEW, 8)
    assert len(set(found)) == 8 and not any(WS.explain(config, NEW) for config in found)
    drawn = [law(config) for config in WS.sample(NEW, np.random.default_rng(1), 200)]
    assert min(map(law, found)) <= min(drawn) and np.median([law(one) for one in found]) < np.quantile(drawn, 0.05)
    assert len({config.build_name for config in found}) >= 4
    assert found == shortlister.shortlist(NEW, 8)
    assert not set(shortlister.shortlist(NEW, 8, tried=set(found))) & set(found)


def test_what_records_of_aligned_rows_like_is_proposed_for_rows_that_are_copied_first(known: list[Measurement]) -> None:
    pytest.importorskip("sklearn")
    odd = Problem(256, 512, 509)
    found = Shortlister(log_behind([known])).shortlist(odd, 8)
    assert len(set(found)) == 8 and all(config.padded and not WS.explain(config, odd) for config in found)
    padded = [replace(row, problem=odd, config=suited(row.config, odd)) for row in rows(NEW)]
    aligned = Shortlister(log_behind([padded])).shortlist(NEW, 8)
    assert aligned and not any(WS.explain(config, NEW) for config in aligned), "and back"


@pytest.mark.parametrize("space", [WS, SMALL], ids=lambda space: space.family.name)
def test_a_pattern_is_tried_with_every_value_of_the_axes_that_shapes_decide(
    space: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = space.sample(NEW, np.random.default_rng(3), 3, replace=False)
    patterns = [shortlist._pattern(config) for config in configs]
    compared = [axis for axis in space.axes if axis.name in shortlist._COMPARED]
    free = {axis.name for axis in space.axes if axis in compared or not axis.compile_time}
    every = [
        replace(pattern, **dict(zip((axis.name for axis in compared), values, strict=True)))
        for pattern in patterns
        for values in itertools.product(*(axis.values for axis in compared))
    ]
    flats = np.unique([space.flat(config) for config in every])
    assert {axis.name for axis in compared} == set(shortlist._COMPARED) & {axis.name for axis in space.axes}
    for config, pattern in zip(configs, patterns, strict=True):
        assert all((getattr(pattern, axis.name) == axis.values[0]) for axis in space.axes if axis.name in free)
        assert replace(pattern, **{name: getattr(config, name) for name in free}) == config
    found = shortlist._Bank(space, patterns, NEW)._flats
    assert sorted(found) == flats[space.allowed(flats, NEW, by_size=False)].tolist()
    assert not len(shortlist._Bank(space, (), NEW)._flats)
    monkeypatch.setattr(shortlist, "_PATTERNS_AT_ONCE", 1)
    assert sorted(shortlist._Bank(space, patterns, NEW)._flats) == sorted(found)


def test_nothing_to_learn_from_is_said() -> None:
    with pytest.raises(NothingValidError, match="no correct measurement"):
        Surrogate({})


def test_families_without_records_go_by_the_analytic_model() -> None:
    space, odd = SearchSpace(settings=load_space("sm80_record")), Problem(123, 456, 789)
    found = analytic_shortlist(space, odd, 12)
    assert len(set(found)) == 12 and not any(space.explain(config, odd) for config in found)


CONFIGS = WS.sample(NEW, np.random.default_rng(2), 5, replace=False)
LISTS = {problem: CONFIGS for problem in PROBLEMS}


def test_a_plan_covers_every_shape_before_it_goes_deeper_and_survives_its_file(tmp_path: Path) -> None:
    work = in_passes(LISTS, first=2)
    assert {problem for problem, _ in work[: len(LISTS)]} == set(LISTS)
    assert all(len(configs) == 2 for _, configs in work[: len(LISTS)])
    assert [problem for problem, _ in work[: len(LISTS)]] != sorted(LISTS)
    write_plan(tmp_path / "plan.jsonl", work)
    assert read_plan(tmp_path / "plan.jsonl") == work and families_of(work) == ["sm90_ws"]


def test_parts_are_of_shapes_and_make_the_whole() -> None:
    work = in_passes(LISTS, first=2)
    parts = [part_of(work, part, 3) for part in (1, 2, 3)]
    assert sorted(line for part in parts for line in part) == sorted(work)
    shapes = [{problem for problem, _ in part} for part in parts]
    assert sum(map(len, shapes)) == len(set.union(*shapes)) == len(LISTS)


@pytest.mark.parametrize(
    "text", ['{"problem": {}}', "[]", "{", '{"problem": {"m": 1, "n": 1, "k": 1}, "configs": [1]}']
)
def test_a_line_that_is_no_entry_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.jsonl").write_text(text)
    with pytest.raises(UsageError, match="line 1 is no entry of a sweep plan"):
        read_plan(tmp_path / "plan.jsonl")
    with pytest.raises(UsageError, match="cannot read plan"):
        read_plan(tmp_path / "none.jsonl")


@pytest.mark.parametrize("work", [[], [(NEW, ())]])
def test_a_plan_that_names_nothing_is_refused(tmp_path: Path, run, work) -> None:
    write_plan(tmp_path / "plan.jsonl", work)
    for command in (("build",), ("record", "--out", tmp_path / "records")):
        code, _, err = run(*command, "--plan", tmp_path / "plan.jsonl")
        assert code == 2 and err.count("\n") == 1 and "names no configuration" in err


def test_what_is_illegal_on_its_shape_is_named_and_not_built(tmp_path: Path, run) -> None:
    write_plan(tmp_path / "plan.jsonl", [(Problem(64, 64, 7), CONFIGS[:1]), (NEW, [replace(CONFIGS[0], tile_m=100)])])
    code, _, err = run("build", "--plan", tmp_path / "plan.jsonl")
    assert code == 3 and "is illegal for 64_64_7: alignment" in err and "tile_m = 100 is not in this space" in err
    code, _, err = run("build", "--plan", tmp_path / "plan.jsonl", "--arch", "sm80")
    assert code == 2 and "'sm90_ws' does not run on sm80" in err


def test_each_configuration_goes_to_the_runner_of_its_family() -> None:
    asked: dict[str, list[KernelConfig]] = {"sm90_ws": [], "sm90_small": []}

    class Runner:
        def __init__(self, family: str) -> None:
            self.family = family

        def run(self, problem: Problem, configs: Sequence[KernelConfig]) -> list[Measurement]:
            asked[self.family] += configs
            return [Measurement(problem, one.family, one, Status.CORRECT, times_us=(1.0,)) for one in configs]

    small = SMALL.sample(NEW, np.random.default_rng(0), 2, replace=False)
    mixed = [small[0], CONFIGS[0], small[1], CONFIGS[1]]
    found = ByFamily({family: Runner(family) for family in asked}).run(NEW, mixed)
    assert [row.config for row in found] == mixed
    assert asked == {"sm90_ws": CONFIGS[:2], "sm90_small": small}


def test_the_script_writes_a_plan_that_build_reads(tmp_path: Path, known: list[Measurement], run, monkeypatch) -> None:
    pytest.importorskip("sklearn")
    Recording.publish(known, tmp_path / "known.parquet", [FINGERPRINT])
    spec = importlib.util.spec_from_file_location("shortlist", ROOT / "scripts" / "shortlist.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    plan = tmp_path / "plan.jsonl"
    arguments = ["shortlist.py", str(tmp_path / "known.parquet"), "--out", str(plan), "--top", "3", "--first", "2"]
    monkeypatch.setattr("sys.argv", [*arguments, "--shapes", NEW.mnk, PROBLEMS[0].mnk])
    script.main()
    work = read_plan(plan)
    assert {problem: len(configs) for problem, configs in work[:2]} == {NEW: 2, PROBLEMS[0]: 2}
    tried = {row.config for row in known if row.problem == PROBLEMS[0]}
    assert not any(config in tried for problem, configs in work if problem == PROBLEMS[0] for config in configs)
    code, _, err = run("build", "--plan", plan, "--mnk", "64_64_64")
    assert code == 2 and "leave out --mnk" in err


def test_a_plan_needs_a_gpu_and_takes_no_shapes(tmp_path: Path, run) -> None:
    write_plan(tmp_path / "plan.jsonl", in_passes(LISTS, first=2))
    common = ("record", "--plan", tmp_path / "plan.jsonl", "--out", tmp_path / "records")
    code, _, err = run(*common, "--mnk", "64_64_64")
    assert code == 2 and "leave out --mnk" in err
    code, _, err = run(*common, "--limit", "3", "--layout", "nn", "--seed", "1")
    assert code == 2 and "leave out --layout, --limit, --seed" in err
    assert run(*common, "--part", "3/2")[0] == 2
    code, _, err = run("record", "--mnk", "64_64_64", "--part", "1/2", "--out", tmp_path)
    assert code == 2 and "--part and --reference off go with --plan" in err
