"""``cudal2 record --plan``: two kernel families by one worker, recorded apart, picked up where it stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_local_runner import TOOLCHAIN, FakePool, Session

from cudal2.arch import SM90
from cudal2.bench import worker as bench_worker
from cudal2.bench.worker import Worker
from cudal2.problem import Problem
from cudal2.records.shards import read_shards
from cudal2.runners.plan import in_passes, read_plan, write_plan
from cudal2.space.config import KernelConfig
from cudal2.space.space import SearchSpace

PROBLEMS = [Problem(512, 512, 512), Problem(128, 256, 512)]


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("cudal2.cli.record.require_gpu", lambda device: None)
    monkeypatch.setattr("cudal2.cli.runners.gpu_arch", lambda device: SM90)
    monkeypatch.setattr("cudal2.build.cache.resolve_toolchain", lambda *_: TOOLCHAIN)
    monkeypatch.setattr("cudal2.runners.local.BuildPool", lambda *_: FakePool())

    def fake_worker(device: int, deadline_s: float) -> Worker:
        return Worker(device, deadline_s, session=Session)

    monkeypatch.setattr(bench_worker, "Worker", fake_worker)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    spaces = [SearchSpace(family=family) for family in ("sm90_ws", "sm90_small")]
    lists: dict[Problem, list[KernelConfig]] = {}
    for problem in PROBLEMS:
        lists[problem] = [space.from_flat(int(space.legal_flat(problem)[at])) for space in spaces for at in (0, 1)]
    write_plan(tmp_path / "plan.jsonl", in_passes(lists, first=3))
    return tmp_path / "plan.jsonl"


def test_both_families_are_measured_once_and_recorded_apart(gpu: Any, plan: Path, tmp_path: Path, run) -> None:
    command = ("record", "--plan", plan, "--pdl", "on", "--reference", "off", "--out", tmp_path / "out")
    code, _, err = run(*command, "--part", "1/2")
    assert code == 0 and "4 measurements to make, 0 made before" in err and "complete" in err
    code, _, err = run(*command)
    assert code == 0 and "4 measurements to make, 4 made before" in err
    for family in ("sm90_ws", "sm90_small"):
        rows = read_shards(tmp_path / "out" / family).measurements
        wanted = {(problem, one) for problem, configs in read_plan(plan) for one in configs if one.family == family}
        assert len(rows) == 4 and {(row.problem, row.config) for row in rows} == wanted
        assert all(row.ok and row.pdl and not row.ref_times_us for row in rows)


def test_records_of_another_generator_are_not_added_to(gpu: Any, plan: Path, tmp_path: Path, run, monkeypatch) -> None:
    command = ("record", "--plan", plan, "--out", tmp_path / "out")
    assert run(*command, "--part", "1/2")[0] == 0
    before = sorted((tmp_path / "out").rglob("*.jsonl"))
    monkeypatch.setattr("cudal2.runners.local.generator_version", lambda *_: "0123456789abcdef")
    code, _, err = run(*command)
    assert code == 2 and "holds records of another environment (generator_version: " in err
    assert sorted((tmp_path / "out").rglob("*.jsonl")) == before
