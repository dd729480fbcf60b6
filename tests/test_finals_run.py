"""A run of finals with a scripted judge: what is chosen, recorded, left out and picked up again."""

import dataclasses
from pathlib import Path

import pytest
from fabricated_finals import CONFIG, final_rows, row

from cudal2.bench.judge.judge import Judgement
from cudal2.build.artifact import BuiltKernel, CompileFailure
from cudal2.codegen import build_key
from cudal2.problem import Problem
from cudal2.records.fingerprint import Fingerprint
from cudal2.records.shards import RecordLog, read_shards
from cudal2.runners import finals as module
from cudal2.runners.finals import BATCH, already_judged, best_configs, run_finals
from cudal2.settings import BenchSettings

FINGERPRINT = Fingerprint("NVIDIA Test", (9, 0), 132, 140, "1", "13.0", "1", "13.0", "0" * 16)
SHAPES = ("64_64_64", "64_64_128", "64_64_256")
SELECTED = "1999-01-01T00:00:00+00:00"


def staged(stages):
    return dataclasses.replace(CONFIG, stages=stages)


class ScriptedPool:
    """Builds everything but what it is told to fail."""

    def __init__(self, failing=()):
        self.failing = failing

    def build(self, requests, on_done=None):
        results = {}
        for config, *signature in requests:
            key = build_key(config, *signature)
            if config in self.failing:
                results[key] = CompileFailure(key, "digest", "spills", None, 0.1)
            else:
                results[key] = BuiltKernel(key, "digest", Path("k.cubin"), 168, 0, 1024, 384, 0.1, Path("log"))
        return results


def scripted(requests, batches):
    """A judge: everyone is selected, then everyone has a figure but one whose process dies."""

    def judge(worker, asked, on_selected):
        batches.append([request.problem.mnk for request in asked])
        for request in asked:
            requests.append(request)
            on_selected([row(request.problem.mnk, "sm90_ws", [1.5], config=staged(3), utc=SELECTED)])
        for request in asked:
            if request.problem.mnk == "64_64_128":
                yield Judgement(request, failure="the worker process died of SIGSEGV")
            else:
                yield Judgement(request, tuple(final_rows(request.problem.mnk, 1.0, {"cublaslt_auto": 2.0})))

    return judge


@pytest.fixture
def batches():
    return []


@pytest.fixture
def judged(monkeypatch, batches):
    requests = []
    monkeypatch.setattr(module, "judge", scripted(requests, batches))
    return requests


def run(tmp_path, plan, pool=None, **options):
    with RecordLog(tmp_path, FINGERPRINT) as log:
        return run_finals(None, pool or ScriptedPool(), plan, BenchSettings(), log, **options)


def test_one_lost_final_costs_one_problem_and_the_rest_is_on_disk(judged, tmp_path):
    plan = [(Problem.parse(mnk), [CONFIG]) for mnk in SHAPES]
    seen = []
    outcome = run(tmp_path, plan, on_final=lambda problem, rows: seen.append(problem.mnk))
    assert [problem.mnk for problem in outcome.judged] == seen == ["64_64_64", "64_64_256"]
    assert outcome.failed == {Problem.parse("64_64_128"): "the worker process died of SIGSEGV"}
    rows = read_shards(tmp_path).measurements
    assert [row.problem.mnk for row in rows if row.utc == SELECTED] == list(SHAPES)
    assert already_judged(rows) == {Problem.parse("64_64_64"), Problem.parse("64_64_256")}


def test_what_does_not_build_is_left_out_and_the_baselines_still_run(judged, tmp_path):
    bad = staged(3)
    run(
        tmp_path, [(Problem.parse("64_64_64"), [bad, CONFIG]), (Problem.parse("64_64_256"), [bad])], ScriptedPool([bad])
    )
    assert [[config for config, _ in request.candidates] for request in judged] == [[CONFIG], []]


def test_time_that_runs_out_leaves_the_rest_named(judged, batches, tmp_path):
    ticks = iter([0.0, 0.0, 10.0])
    plan = [(Problem(64, 64, 64 * k), [CONFIG]) for k in range(3, 6 + BATCH)]
    outcome = run(tmp_path, plan, seconds=5.0, clock=lambda: next(ticks))
    assert [len(batch) for batch in batches] == [BATCH]
    assert list(outcome.left) == [problem for problem, _ in plan[BATCH:]]


def test_ctrl_c_keeps_what_was_paid_for(judged, tmp_path):
    plan = [(Problem(64, 64, 64 * k), [CONFIG]) for k in range(3, 7)]

    def interrupt(problem, rows):
        if problem == plan[1][0]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, plan, on_final=interrupt)
    rows = read_shards(tmp_path).measurements
    assert already_judged(rows) == {problem for problem, _ in plan[:2]}
    assert len([row for row in rows if row.utc == SELECTED]) == len(plan)


def test_the_best_of_each_pdl_setting_compete():
    rows = [row("64_64_64", "sm90_ws", [float(stages)], config=staged(stages)) for stages in (5, 3, 4)]
    rows += [row("64_64_64", "sm90_ws", [9.0 - stages], config=staged(stages), pdl=True) for stages in (5, 3, 4)]
    rows += [row("64_64_64", "sm90_ws", (), config=staged(2), reason="wrong"), row("64_64_64", "torch", [0.1])]
    assert best_configs(rows, 1) == {Problem.parse("64_64_64"): [staged(3), staged(5)]}
    assert best_configs(rows, 2) == {Problem.parse("64_64_64"): [staged(3), staged(4), staged(5)]}


def test_the_best_by_ratio_to_the_reference_compete_where_a_recording_drifted():
    early = dataclasses.replace(row("64_64_64", "sm90_ws", [10.0], config=staged(3)), ref_times_us=(10.0,))
    late = dataclasses.replace(row("64_64_64", "sm90_ws", [11.0], config=staged(4)), ref_times_us=(12.0,))
    assert best_configs([early, late], 1) == {Problem.parse("64_64_64"): [staged(4)]}
    alone = dataclasses.replace(late, ref_times_us=())
    assert best_configs([early, alone], 1) == {Problem.parse("64_64_64"): [staged(3)]}


def test_finals_without_a_kernel_of_ours_are_judged_again():
    rows = [row("64_64_64", "cublaslt_auto", [2.0])]
    assert already_judged(rows) == set()
