"""scripts/bench_repeat.py and bench_judge.py around a scripted judge: what agrees, what is kept, what goes on."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from fabricated_finals import CONFIG, final_rows, row
from test_finals_run import FINGERPRINT, ScriptedPool
from test_judge import ProcessSession, requests_for

from cudal2.bench.judge.judge import Judgement
from cudal2.errors import NothingValidError
from cudal2.problem import Problem
from cudal2.records.finals import Comparison
from cudal2.records.measurement import Measurement, Status
from cudal2.records.shards import RecordLog, read_shards
from cudal2.report.speed import BARS
from cudal2.runners import finals as finals_module

SCRIPTS = Path(__file__).parents[1] / "scripts"
MNKS = ("64_64_64", "128_64_64")


def script(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, name, module)  # its dataclasses look their module up
        spec.loader.exec_module(module)
    return module


@pytest.fixture
def repeat(monkeypatch, tmp_path):
    """The script with the GPU, the compilers and the judge replaced; a judgement is 1 % faster than the one before."""
    module = script("bench_repeat")
    module.requests = []

    def judge(worker, requests, on_selected):
        for request in requests:
            module.requests.append(request)
            ours = 1.0 - 0.01 * len(module.requests)
            rows = final_rows(request.problem.mnk, ours, {"cublaslt_auto": 2.0}, drift=0.001)
            yield Judgement(request, tuple(rows))

    def fingerprint_of(families):
        assert set(families) == {CONFIG.family}, "the version in the records is that of the kernels that run"
        return FINGERPRINT

    runner = SimpleNamespace(worker=None, toolchain=None, fingerprint=fingerprint_of)
    monkeypatch.setattr(module, "require_gpu", lambda device: None)
    monkeypatch.setattr(module, "LocalRunner", lambda *_, **__: contextlib.nullcontext(runner))
    monkeypatch.setattr(module, "BuildPool", lambda *_: contextlib.nullcontext(ScriptedPool()))
    monkeypatch.setattr(finals_module, "judge", judge)
    with RecordLog(tmp_path / "recorded", FINGERPRINT) as log:
        log.append([row(mnk, "sm90_ws", [3.0], config=CONFIG) for mnk in MNKS])
    (tmp_path / "two.yaml").write_text(f"shapes: {list(MNKS)}")
    monkeypatch.chdir(tmp_path)
    return module


def run(module, monkeypatch, *arguments):
    given = ["--recording", "recorded", "--shapes-file", "two.yaml", *map(str, arguments)]
    monkeypatch.setattr(sys, "argv", ["scripts/bench_repeat.py", *given])
    module.main()


def test_every_run_is_kept_apart_and_compared(repeat, monkeypatch, tmp_path, capsys):
    run(repeat, monkeypatch, "--out", "repeat.json")
    assert len(repeat.requests) == 3 * len(MNKS)
    assert all([config for config, _ in request.candidates] == [CONFIG] for request in repeat.requests)
    kept = json.loads((tmp_path / "repeat.json").read_text())
    assert "--records" not in kept["command"] and kept["machine"] == FINGERPRINT.gpu
    column = kept["figures"]["columns"]["offline/fp32/off"]
    assert (column["shapes"], column["pairs"], column["agree"], column["reversed"]) == (2, 6, 0, 0)
    # The second shape's judgements are the second and the sixth of six.
    assert column["largest_disagreement"] == pytest.approx(0.98 / 0.94 - 1.0, abs=1e-3)
    assert column["largest_at"] == "128_64_64"
    assert [len(one["ratios"]) for one in kept["figures"]["shapes"]] == [3, 3]
    assert all(len(read_shards(tmp_path / "runs" / "repeat" / f"run{n}").measurements) == 4 for n in (1, 2, 3))
    assert "0 of 6 pairs of runs agree" in capsys.readouterr().out
    run(repeat, monkeypatch)
    assert len(repeat.requests) == 6, "what a run has judged is not judged again"


def test_a_runs_sessions_may_be_of_the_kernels_of_other_families(repeat, monkeypatch, tmp_path, capsys):
    run(repeat, monkeypatch)
    first = next((tmp_path / "runs" / "repeat" / "run1").glob("*.jsonl"))
    ours = read_shards(first)
    other = dataclasses.replace(FINGERPRINT, generator_version="of-another-family")
    with RecordLog(first.parent, other) as log:
        log.append(dataclasses.replace(one, problem=Problem(64, 64, 192)) for one in ours.measurements[:2])
    capsys.readouterr()
    run(repeat, monkeypatch)
    assert "6 pairs of runs" in capsys.readouterr().out and len(repeat.requests) == 6


def test_agreement_goes_both_ways():
    wide, narrow = Comparison(1.0, 0.9, 1.1), Comparison(1.05, 1.04, 1.06)
    same, lost = Comparison(1.05, 1.03, 1.07), Comparison(0.9, 0.85, 0.95)
    at = ("offline/fp32/on", "64_64_64")
    column = script("bench_repeat").agreement([{at: one} for one in (wide, narrow, same, lost)])["columns"][at[0]]
    assert column["pairs"] == 6
    assert column["agree"] == 1, "narrow and same; wide holds narrow's ratio, but not the other way round"
    assert column["overlap"] == 4 and column["reversed"] == 2
    assert column["largest_disagreement"] == pytest.approx(1.05 / 0.9 - 1.0, abs=1e-4)


def test_a_shape_that_was_not_recorded_is_named(repeat, monkeypatch, tmp_path):
    (tmp_path / "two.yaml").write_text('shapes: ["64_64_64", "64_64_128"]')
    with pytest.raises(NothingValidError, match="nothing for 64_64_128"):
        run(repeat, monkeypatch)
    assert not repeat.requests


def test_a_step_costs_what_is_beside_its_kernels():
    module = script("bench_judge")
    problem = Problem(64, 64, 64)
    steps = Measurement(
        problem, "sm90_ws", CONFIG, Status.CORRECT, times_us=(2.0, 2.0), ref_times_us=(4.0, 4.0), launches=1000
    )
    # Two replays of 1,000 launches of 2 us, and two of the reference's 525 of 4 us.
    assert module.kernel_ms(steps, 525) == pytest.approx(4.0 + 4.2)
    runner = SimpleNamespace(
        space=SimpleNamespace(sample=lambda *_: [CONFIG] * 4),
        build=lambda wanted: None,
        settings=None,
        worker=SimpleNamespace(prepare=lambda problem, settings: SimpleNamespace(reference_launches=1)),
        run=lambda problem, configs: [dataclasses.replace(steps, times_us=(1e-3, 1e-3), ref_times_us=(2e3,))] * 4,
    )
    step = module.search_steps(runner, problem, 4)
    assert step["correct"] == 4 and step["overhead_ms"] == pytest.approx(step["each_ms"] - 2.0, abs=0.11)


@pytest.mark.timeout(120)
def test_a_profile_is_of_every_job_but_a_processes_first(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    module = importlib.import_module("bench_judge")
    with module.ProfilingWorker(0, session=ProcessSession) as worker:
        module.profile_judgements(worker, requests_for(64, 160))
    said = capsys.readouterr().err
    heads = [line.split(":")[0] for line in said.splitlines() if "s under the profiler" in line]
    assert heads == ["select of 16_24_160", "figure of 16_24_160", "figure of 16_24_160"]
    assert said.count("Ordered by: internal time") == said.count("Ordered by: cumulative time") == 3


def test_the_readme_says_what_was_reached():
    figures = {
        "judge": {
            "each_s": 2.46, "judged": 6, "alone_s": {"64_64_64": 2.9, "128_64_64": 3.1}, "alone_median_s": 3.0,
            "overhead_ms": 4.2, "overhead_max_ms": 4.8, "steps": [{}, {}],
        },
        "repeat": {
            "columns": {
                "offline/fp32/on": {
                    "shapes": 24, "pairs": 72, "agree": 70, "largest_disagreement": 0.0123, "reversed": 0,
                }
            }
        },
    }  # fmt: skip
    said = [bar.reached(figures[bar.benchmark]) for bar in BARS if bar.benchmark in figures]
    assert said == [
        "2.5 s each for 6 shapes together; alone, process starts included, 3.0 s, at most 3.1 s",
        "4.2 ms, at most 4.8, 2 shapes",
        "offline/fp32/on: 70 of 72 pairs over 24 shapes, at most 1.2% apart, 0 verdicts reversed",
    ]
