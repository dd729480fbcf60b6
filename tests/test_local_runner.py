"""The GPU runner with a fake compiler and a real worker process around a fake session."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cudal2.bench.device import DeviceInfo
from cudal2.bench.jobs import Candidate, Prepared
from cudal2.bench.worker import Worker
from cudal2.build.artifact import BuildResult, BuiltKernel, CompileFailure
from cudal2.build.cache import BuildCache
from cudal2.build.pool import Request
from cudal2.build.toolchain import Toolchain
from cudal2.codegen import build_key
from cudal2.problem import Problem
from cudal2.records.measurement import Measurement, Status
from cudal2.records.shards import read_shards
from cudal2.runners.local import LocalRunner
from cudal2.settings import BenchSettings
from cudal2.space.config import KernelConfig, Sm90WsConfig
from cudal2.space.space import SearchSpace

PROBLEM = Problem(512, 512, 512)
GOOD = Sm90WsConfig(128, 128, 64, 4, "coop", 2, 1, 1, 1, "tma", 1, "m", 1, False)
ILLEGAL = replace(GOOD, consumers=3)
NO_BUILD = replace(GOOD, tile_n=64)
HANGS = replace(GOOD, stages=3)
TOOLCHAIN = Toolchain("sm_90a", "13.0", (), (), "fake", "this is a test")


class Session:
    def __init__(self, device_index: int) -> None:
        self.info = DeviceInfo("FAKE", (9, 0), 132, 141 * 2**30, 60 * 2**20, "1", "13.0", "130000", "0")

    def fault(self) -> None:
        return None

    def prepare(self, problem: Problem, settings: BenchSettings, reference: bool) -> Prepared:
        return Prepared(12.5, "algorithm 7")

    def measure(
        self, candidate: Candidate, settings: BenchSettings, reference: bool, upcoming: Sequence[Candidate]
    ) -> Measurement:
        if candidate.config == HANGS:
            os._exit(9)
        refs = (12.0, 13.0) if reference else ()
        return candidate.row(Status.CORRECT, times_us=(10.0, 11.0), ref_times_us=refs, launches=200)


class FakePool:
    """Compiles nothing; fails where it is told to."""

    def __init__(self) -> None:
        self.requests: list[KernelConfig] = []

    def build(self, requests: Sequence[Request]) -> dict[str, BuildResult]:
        self.requests += [config for config, *_ in requests]
        return {build_key(*request): self._result(*request) for request in requests}

    def _result(self, config: KernelConfig, *signature: Any) -> BuildResult:
        name = build_key(config, *signature)
        if config == NO_BUILD:
            return CompileFailure(name, "0" * 64, "ptxas: too many registers", Path("/cache/x/log.txt"), 0.4)
        return BuiltKernel(name, "0" * 64, Path("x.cubin"), 168, 0, 66_816, 384, 0.5, Path("log.txt"))

    def close(self) -> None:
        pass


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalRunner]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    pool = FakePool()
    monkeypatch.setattr("cudal2.runners.local.BuildPool", lambda *arguments: pool)
    cache = BuildCache(tmp_path / "cache")
    worker = Worker(0, 5.0, Session)
    with LocalRunner(SearchSpace(), [PROBLEM], cache=cache, toolchain=TOOLCHAIN, worker=worker) as made:
        made.pool = pool  # type: ignore[attr-defined]
        yield made


def test_every_configuration_gets_its_row_in_the_order_asked(runner: LocalRunner) -> None:
    rows = runner.run(PROBLEM, [HANGS, ILLEGAL, GOOD, NO_BUILD])
    assert [row.config for row in rows] == [HANGS, ILLEGAL, GOOD, NO_BUILD]
    died, illegal, good, no_build = rows
    assert (died.status, died.reason) == (Status.RUNTIME, "the worker process ended with exit code 9")
    assert illegal.status is Status.CONSTRAINTS and illegal.reason.startswith("consumers_split_tile: ")
    assert good.ok and good.speedup == pytest.approx(12.5 / 10.5) and good.registers == 168
    assert (good.compile_s, no_build.compile_s) == (0.5, 0.4)
    assert no_build.status is Status.COMPILE and no_build.detail == "log: /cache/x/log.txt"
    assert runner.cost_s > 0.0


def test_what_the_rules_forbid_is_never_built(runner: LocalRunner) -> None:
    runner.run(PROBLEM, [ILLEGAL, GOOD])
    assert runner.pool.requests == [GOOD]  # type: ignore[attr-defined]


def test_failures_that_need_no_gpu_start_no_worker(runner: LocalRunner) -> None:
    runner.run(PROBLEM, [ILLEGAL, NO_BUILD])
    assert runner.worker.pid is None


def test_the_reference_is_asked_once(runner: LocalRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runner.reference_us(PROBLEM) == 12.5
    monkeypatch.setattr(runner.worker, "prepare", None)
    assert runner.reference_us(PROBLEM) == 12.5


def test_allowed_is_the_space(runner: LocalRunner) -> None:
    assert runner.allowed(PROBLEM).tolist() == runner.space.legal_flat(PROBLEM).tolist() != []
    assert runner.problems == (PROBLEM,)


def test_rows_reach_the_records_with_the_devices_fingerprint(runner: LocalRunner, tmp_path: Path) -> None:
    seen: list[Measurement] = []
    runner._on_done = seen.append
    log = runner.record_to(tmp_path / "records", {"seed": 0})
    rows = runner.run(PROBLEM, [GOOD, ILLEGAL, HANGS])
    shards = read_shards(tmp_path / "records")
    assert shards.fingerprints[0].gpu == "FAKE" and shards.fingerprints[0].memory_gib == 141
    assert sorted(row.config or GOOD for row in shards.measurements) == sorted([GOOD, ILLEGAL, HANGS])
    assert len(seen) == 3 and set(seen) == set(rows)
    assert log.path.exists()


def test_an_interrupted_run_keeps_what_was_measured(runner: LocalRunner, tmp_path: Path) -> None:
    runner.record_to(tmp_path / "records")
    stream = runner.stream(PROBLEM, [GOOD, replace(GOOD, stages=5)])
    next(stream)
    stream.close()  # what a Ctrl-C in the consumer does
    assert [row.config for row in read_shards(tmp_path / "records").measurements] == [GOOD]


def test_every_row_is_on_disk_before_the_next_is_made(runner: LocalRunner, tmp_path: Path) -> None:
    """A SIGKILL of this process at any moment costs at most the measurement being made."""
    runner.record_to(tmp_path / "records")
    made = 0
    for _ in runner.stream(PROBLEM, [ILLEGAL, GOOD, replace(GOOD, stages=5), HANGS]):
        made += 1
        assert len(read_shards(tmp_path / "records").measurements) == made
