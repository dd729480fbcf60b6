"""The Ampere family from recorded rows to a policy, a table and its page, with made-up times and no GPU."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from fabricated_recording import FINGERPRINT, jitter

from cudal2.cli import main as cli
from cudal2.problem import Problem
from cudal2.records import recording as recordings
from cudal2.records.measurement import Measurement, Status
from cudal2.records.shards import RecordLog
from cudal2.runners.sweep import pending
from cudal2.settings import load_shapes, load_space
from cudal2.space.config import KernelConfig
from cudal2.space.space import SearchSpace
from cudal2.table import KernelTable

ROOT = Path(__file__).parents[1]
SHAPES = ("128_128_256", "123_456_789", "1_4096_4096")


def made_up(problem: Problem, config: KernelConfig) -> Measurement:
    tiles = math.ceil(problem.m / config.tile_m) * math.ceil(problem.n / config.tile_n)
    time_us = 2.0 + math.ceil(tiles / 132) * problem.k * config.tile_m * config.tile_n / 4e6
    time_us *= 1.0 + 0.1 * jitter(problem.mnk, config.name)
    return Measurement(
        problem, config.family, config, Status.CORRECT, times_us=(time_us,) * 5, ref_times_us=(3.0,) * 5, launches=9
    )


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `cudal2 record --shapes ... --space sm80_record` leaves on a GPU."""
    folder = tmp_path_factory.mktemp("recorded")
    space = SearchSpace(settings=load_space("sm80_record"))
    with RecordLog(folder, replace(FINGERPRINT, generator_version="1"), {}) as log:
        for mnk in SHAPES:
            problem = Problem.parse(mnk)
            log.append([made_up(problem, config) for config in pending(space, problem, set())])
    return folder


@pytest.fixture
def shipped(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recording published where those of the package are, and no other."""
    path = tmp_path / "recordings" / "h200_sm80_fp32_tn.parquet"
    path.parent.mkdir()
    monkeypatch.setattr(recordings, "data_dir", lambda: tmp_path)
    assert cli.main(["record", "publish", str(shards), "--space", "sm80_record", "--out", str(path)]) == 0
    return path


def test_the_recorded_space_is_small_enough_to_record_and_holds_every_technique() -> None:
    space = SearchSpace(settings=load_space("sm80_record"))
    problems = load_shapes("sm80_record").problems()
    assert len(set(problems)) == 28 and {problem.alignment_bytes for problem in problems} == {16, 8, 4, 2}
    assert len([p for p in problems if p in set(load_shapes("grid").problems())]) == 16
    assert sum(space.legal_count(problem) for problem in problems) < 3_000
    for problem in problems:
        configs = list(space.enumerate(problem))
        for axis in ("smem_layout", "fragments", "prefetch", "epilogue", "tile_k"):
            assert len({getattr(config, axis) for config in configs}) == 2, (problem.mnk, axis)


def test_search_replays_it_without_being_told_which(shipped: Path, run) -> None:
    code, out, err = run(
        "search", "--arch", "sm80", "--backend", "replay", "--strategy", "hill_climb", "--budget", "16"
    )
    assert code == 0 and f"recording: {shipped.name}, 3 shapes" in err
    assert all(mnk in out for mnk in SHAPES) and "_swizzle_" in out
    code, _, err = run("search", "--arch", "sm80", "--backend", "replay", "--mnk", "64_64_64")
    assert code == 2 and "64_64_64 (fp32 tn) was not recorded" in err


def test_a_policy_learns_from_it_and_leaves_a_table(shipped: Path, tmp_path: Path) -> None:
    settings = tmp_path / "short.yaml"
    values = yaml.safe_load((ROOT / "configs" / "train" / "ppo.yaml").read_text())
    settings.write_text(yaml.safe_dump({**values, "n_envs": 16, "batch_size": 32, "hidden": 32}))
    run_dir = tmp_path / "run"
    arguments = ["train", "--arch", "sm80", "--backend", "replay", "--steps", "256", "--run-dir", str(run_dir)]
    assert cli.main([*arguments, "--settings", str(settings)]) == 0
    table = KernelTable.load(run_dir / "table.json")
    assert {entry.mnk for entry in table.entries} == set(SHAPES) and table.header.device.capability == (9, 0)


def test_a_table_made_of_it_serves_odd_shapes_by_their_neighbour(shipped: Path, tmp_path: Path, run) -> None:
    for arch in ((), ("--arch", "sm80")):
        out = tmp_path / f"table{len(arch)}.json"
        assert run("table", "make", shipped, "--evidence", "exhaustive", "--out", out, *arch)[0] == 0
        table = KernelTable.load(out)
        assert {entry.mnk for entry in table.entries} == set(SHAPES)
        found = table.best(150, 400, 777)
        assert found is not None and found.mnk == "123_456_789"


def test_a_hopper_table_takes_the_odd_shapes_alone(shipped: Path, tmp_path: Path, run) -> None:
    odd, recorded = load_shapes("sm80_odd").shapes, load_shapes("sm80_record").problems()
    assert list(odd[:9]) == [problem.mnk for problem in recorded if problem.alignment_bytes < 16]
    assert all(Problem.parse(mnk).alignment_bytes < 16 for mnk in odd)
    out = tmp_path / "table.json"
    assert run("table", "make", shipped, "--shapes-file", "sm80_odd", "--out", out)[0] == 0
    assert [entry.mnk for entry in KernelTable.load(out).entries] == ["123_456_789"]
    code, _, err = run("table", "make", shipped, "--shapes-file", "repeat24", "--out", out)
    assert code == 3 and "no fp32 tn kernel on the shapes of repeat24" in err


def test_the_ablation_reads_it(shipped: Path) -> None:
    spec = importlib.util.spec_from_file_location("ablation", ROOT / "scripts" / "ablation.py")
    assert spec is not None and spec.loader is not None
    ablation = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ablation)
    page = ablation.table(ablation.relative_times(shipped), shipped)
    assert f"Read from `{shipped.name}`, 3 shapes" in page and "none left" not in page
