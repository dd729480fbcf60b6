"""The sweep behind ``cudal2 record``: complete, resumable, and on time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from fabricated_recording import FINGERPRINT

from cudal2.problem import Problem
from cudal2.records.measurement import Measurement, Status
from cudal2.records.recording import read_records
from cudal2.records.shards import RecordLog
from cudal2.runners.sweep import BATCH, already_done, pending, sweep
from cudal2.settings import SpaceSettings
from cudal2.space.config import KernelConfig
from cudal2.space.space import SearchSpace

PROBLEMS = (Problem(64, 4096, 64), Problem(1024, 2048, 256))


class CountingRunner:
    """Passes everything but odd stages, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Problem, KernelConfig]] = []

    def run(self, problem: Problem, configs: Sequence[KernelConfig]) -> list[Measurement]:
        self.asked += [(problem, config) for config in configs]
        return [self.measure(problem, config) for config in configs]

    @staticmethod
    def measure(problem: Problem, config: KernelConfig) -> Measurement:
        if config.stages % 2:
            return Measurement(problem, config.family, config, Status.RUNTIME, "scripted failure")
        return Measurement(problem, config.family, config, Status.CORRECT, times_us=(1.0,))


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    """Thousands, of which some have odd stages."""
    axes = {"tile_m": (64, 128), "tile_n": (64, 128), "tile_k": (64,), "split_k": (1,), "stages": (2, 3, 4, 5)}
    axes |= {"cluster_m": (1, 2), "cluster_n": (1,), "group": (1, 8), "ctas_per_sm": (1, 2), "l2_prefetch": (0, 64)}
    axes |= {"producer_registers": (0,), "store_hint": ("normal",), "store_buffers": (2,), "l2_promotion": (256,)}
    return SearchSpace(settings=SpaceSettings(axes=axes))


def test_a_sweep_measures_every_legal_configuration_once(space: SearchSpace) -> None:
    runner = CountingRunner()
    work = [(problem, pending(space, problem, set())) for problem in PROBLEMS]
    assert sweep(runner, work)
    assert len(runner.asked) == len(set(runner.asked)) == sum(space.legal_count(problem) for problem in PROBLEMS)


def test_a_stopped_sweep_picks_up_where_it_stopped(space: SearchSpace) -> None:
    whole = list(pending(space, PROBLEMS[1], set(), seed=3))
    rows = [CountingRunner.measure(PROBLEMS[1], config) for config in whole[:100]]
    assert list(pending(space, PROBLEMS[1], already_done(rows, pdl=False), seed=3)) == whole[100:]
    assert list(pending(space, PROBLEMS[1], already_done(rows, pdl=True), seed=3)) == whole
    assert list(pending(space, PROBLEMS[1], set(), seed=4)) != whole


def test_what_is_to_do_is_made_when_it_is_asked_for(space: SearchSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(SearchSpace, "from_flat", lambda self, flat: made.append(flat))
    first = pending(space, PROBLEMS[1], set())[:10]
    assert len(first) == 10 and made == []
    assert len(list(first[2:5])) == len(made) == 3


def test_what_a_machine_could_not_compile_is_still_to_do(space: SearchSpace) -> None:
    one, other = pending(space, PROBLEMS[1], set())[:2]
    rejected = Measurement(PROBLEMS[1], one.family, one, Status.COMPILE, "rejected by NVRTC", detail="log: log.txt")
    unable = Measurement(PROBLEMS[1], other.family, other, Status.COMPILE, "this machine cannot compile")
    assert already_done([rejected, unable], pdl=False) == {(PROBLEMS[1], one)}


def test_the_order_is_shuffled(space: SearchSpace) -> None:
    order = [space.flat(config) for config in pending(space, PROBLEMS[1], set())]
    assert order != sorted(order) and sorted(order) == space.legal_flat(PROBLEMS[1]).tolist()


def test_time_ends_a_sweep_between_batches(space: SearchSpace) -> None:
    runner, seconds = CountingRunner(), iter([0.0, 0.0, 5.0, 10.0])
    work = [(PROBLEMS[1], pending(space, PROBLEMS[1], set()))]
    assert not sweep(runner, work, seconds=10.0, clock=lambda: next(seconds))
    assert len(runner.asked) == 2 * BATCH


def test_what_ships_may_be_the_best_of_each_shape_alone(tmp_path: Path, run) -> None:
    problem = PROBLEMS[0]
    configs = SearchSpace().sample(problem, np.random.default_rng(0), 6, replace=False)
    with RecordLog(tmp_path / "records", FINGERPRINT) as log:
        for at, config in enumerate(configs):
            for pdl in (False, True):
                time_us = float(10 + (at if pdl else -at))
                log.write(Measurement(problem, "sm90_ws", config, Status.CORRECT, times_us=(time_us,), pdl=pdl))
    out = tmp_path / "best.parquet"
    code, _, err = run("record", "publish", tmp_path / "records", "--best", "1", "--out", out)
    assert code == 0 and "1 problems, 4 rows" in err
    assert {row.config for row in read_records(out).measurements} == {configs[0], configs[-1]}
