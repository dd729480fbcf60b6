"""scripts/judge.py around a scripted runner: it plans from records, judges, and goes on where it stopped."""

import contextlib
import dataclasses
import importlib.util
import sys
import types
from pathlib import Path

import pytest
from fabricated_finals import CONFIG, final_rows, row
from test_finals_run import FINGERPRINT, ScriptedPool, staged

from cudal2.bench.baselines import contestants
from cudal2.bench.judge.judge import Judgement
from cudal2.errors import NothingValidError, RecordError, UsageError
from cudal2.problem import Problem
from cudal2.records.shards import RecordLog, read_shards
from cudal2.runners import finals as finals_module
from cudal2.runners.plan import write_plan
from cudal2.space.config import Sm90WsConfig

OTHER_DRIVER = dataclasses.replace(FINGERPRINT, driver="2")
#: Legal on both of these shapes; CONFIG, of large tiles, is on neither.
LEGAL = Sm90WsConfig(64, 64, 64, 2, "coop", 1, 1, 1, 1, "tma", 1, "m", 1, False)
SMALL, OTHER = Problem(64, 64, 512), Problem(128, 64, 512)
SCRIPT = Path(__file__).parents[1] / "scripts" / "judge.py"


@pytest.fixture
def judge(monkeypatch):
    """The script as a module, with the GPU, the compilers and the judge replaced."""
    spec = importlib.util.spec_from_file_location("judge_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.requests = []

    def judge(worker, requests, on_selected):
        for request in requests:
            module.requests.append(request)
            yield Judgement(request, tuple(final_rows(request.problem.mnk, 1.0, {"cublaslt_auto": 2.0})))

    runner = types.SimpleNamespace(worker=None, toolchain=None, fingerprint=lambda families: FINGERPRINT)
    monkeypatch.setattr(module, "require_gpu", lambda device: None)
    monkeypatch.setattr(module, "LocalRunner", lambda *_, **__: contextlib.nullcontext(runner))
    monkeypatch.setattr(module, "BuildPool", lambda *_: contextlib.nullcontext(ScriptedPool()))
    monkeypatch.setattr(finals_module, "judge", judge)
    return module


def run(module, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["judge.py", *map(str, arguments)])
    module.main()


def test_judges_the_best_of_each_shape_once(judge, monkeypatch, tmp_path, capsys):
    with RecordLog(tmp_path / "records", FINGERPRINT) as log:
        log.append([row(mnk, "sm90_ws", [3.0], config=CONFIG) for mnk in ("64_64_64", "128_64_64")])
        log.append([row("64_64_64", "sm90_ws", [2.0], config=staged(3))])
    out = tmp_path / "finals"
    run(judge, monkeypatch, tmp_path / "records", "--out", out, "--top", "1")
    chosen = {request.problem.mnk: [config for config, _ in request.candidates] for request in judge.requests}
    assert chosen == {"64_64_64": [staged(3)], "128_64_64": [CONFIG]}
    assert len(read_shards(out).measurements) == 4
    said = capsys.readouterr().err
    assert "64_64_64 offline/fp32/off: 2.000 [1.980, 2.020] win 1.000 us" in said
    assert "2 judged, 0 failed, 0 left" in said
    run(judge, monkeypatch, tmp_path / "records", "--out", out, "--top", "1")
    assert len(judge.requests) == 2, "what has a final is not judged again"
    assert len(list(out.glob("*.jsonl"))) == 1, "and leaves no empty shard"


def test_a_plan_adds_candidates_to_the_records_and_needs_none(judge, monkeypatch, tmp_path):
    with RecordLog(tmp_path / "records", FINGERPRINT) as log:
        log.append([row("64_64_64", "sm90_ws", [3.0], config=CONFIG)])
    plan = tmp_path / "plan.jsonl"
    two, three = (dataclasses.replace(LEGAL, stages=stages) for stages in (2, 3))
    write_plan(plan, [(SMALL, (two, three)), (OTHER, (three,)), (SMALL, (three,))])
    run(judge, monkeypatch, tmp_path / "records", "--plan", plan, "--out", tmp_path / "both")
    run(judge, monkeypatch, "--plan", plan, "--out", tmp_path / "alone")
    chosen = [(request.problem.mnk, [config for config, _ in request.candidates]) for request in judge.requests]
    both = [("64_64_64", [CONFIG]), ("64_64_512", [two, three]), ("128_64_512", [three])]
    assert chosen == [*both, *both[1:]]
    with pytest.raises(UsageError, match="needs RECORDS or --plan FILE"):
        run(judge, monkeypatch, "--out", tmp_path / "none")


def test_what_is_illegal_in_a_plan_is_named_and_not_judged(judge, monkeypatch, tmp_path, capsys):
    resident = dataclasses.replace(LEGAL, persistent=True, resident_a=2)
    write_plan(tmp_path / "plan.jsonl", [(SMALL, (LEGAL, resident)), (OTHER, (resident,))])
    run(judge, monkeypatch, "--plan", tmp_path / "plan.jsonl", "--out", tmp_path / "finals")
    (request,) = judge.requests
    assert request.problem == SMALL and [config for config, _ in request.candidates] == [LEGAL]
    said = capsys.readouterr().err
    assert said.count(f"{resident.name} is illegal for ") == 2 and "128_64_512 and left out: " in said


@pytest.mark.parametrize(
    "problem, config, flags, message",
    [
        (SMALL, CONFIG, (), "neither RECORDS nor --plan has a configuration that is right and legal"),
        (SMALL, LEGAL, ("--acc", "fp16"), "are of --acc fp32 --dtype fp16; give that, or --take-over"),
        (dataclasses.replace(SMALL, acc="fp16"), LEGAL, (), "are of --acc fp16 --dtype fp16"),
        (SMALL, LEGAL, ("--dtype", "bf16"), "are of --acc fp32 --dtype fp16"),
        (SMALL, LEGAL, ("--shapes-file", "smoke"), "has a shape of --shapes-file smoke"),
    ],
)
def test_a_plan_without_a_final_in_it_is_nothing_valid(judge, monkeypatch, tmp_path, problem, config, flags, message):
    write_plan(tmp_path / "plan.jsonl", [(problem, (config,))])
    with pytest.raises(NothingValidError, match=message):
        run(judge, monkeypatch, "--plan", tmp_path / "plan.jsonl", "--out", tmp_path / "finals", *flags)
    assert not judge.requests and not (tmp_path / "finals").exists()


def test_a_plan_is_read_before_a_gpu_is_asked_for(judge, monkeypatch, tmp_path):
    monkeypatch.setattr(judge, "require_gpu", lambda device: pytest.fail("asked for a GPU"))
    with pytest.raises(UsageError, match="cannot read plan"):
        run(judge, monkeypatch, "--plan", tmp_path / "none.jsonl", "--out", tmp_path / "finals")


def test_fp16_takes_legal_candidates_over_from_fp32_records_its_own_first(judge, monkeypatch, tmp_path):
    two, three, four = (
        Sm90WsConfig(64, 64, 64, stages, "coop", 1, 1, 1, 1, "tma", 1, "m", 1, False) for stages in (2, 3, 4)
    )
    with RecordLog(tmp_path / "records", FINGERPRINT) as log:
        log.append([row(mnk, "sm90_ws", [3.0], config=two) for mnk in ("64_64_512", "128_64_512")])
        log.append([row("64_64_512", "sm90_ws", [2.0], config=three), row("128_64_512", "sm90_ws", [4.0], config=four)])
        log.append([row("128_64_512", "sm90_ws", [1.0], config=four, acc="fp16")])
        log.append([row("64_64_64", "sm90_ws", [1.0], config=CONFIG)])
    arguments = (tmp_path / "records", "--acc", "fp16", "--top", "1")
    run(judge, monkeypatch, *arguments, "--out", tmp_path / "own")
    assert [request.problem.mnk for request in judge.requests] == ["128_64_512"]
    judge.requests.clear()
    run(judge, monkeypatch, *arguments, "--take-over", "--out", tmp_path / "taken")
    chosen = {request.problem: [config for config, _ in request.candidates] for request in judge.requests}
    assert chosen == {Problem(64, 64, 512, "fp16"): [three], Problem(128, 64, 512, "fp16"): [four, two]}


def test_bf16_takes_candidates_over_from_fp16_records(judge, monkeypatch, tmp_path):
    config = Sm90WsConfig(64, 64, 64, 2, "coop", 1, 1, 1, 1, "tma", 1, "m", 1, False)
    with RecordLog(tmp_path / "records", FINGERPRINT) as log:
        log.append([row("256_256_512", "sm90_ws", [3.0], config=config)])
    run(judge, monkeypatch, tmp_path / "records", "--dtype", "bf16", "--take-over", "--out", tmp_path / "finals")
    assert [request.problem for request in judge.requests] == [Problem(256, 256, 512, dtype="bf16")]
    with pytest.raises(UsageError, match="no tensor core adds products of bf16 in fp16"):
        run(judge, monkeypatch, tmp_path / "records", "--dtype", "bf16", "--acc", "fp16", "--out", tmp_path / "none")


def test_optional_contestants_are_asked_for_in_every_final(judge, monkeypatch, tmp_path):
    with RecordLog(tmp_path / "records", FINGERPRINT) as log:
        log.append([row("64_64_64", "sm90_ws", [3.0], config=CONFIG)])
    monkeypatch.setattr(contestants.importlib.util, "find_spec", lambda name: object())
    run(judge, monkeypatch, tmp_path / "records", "--out", tmp_path / "finals", "--with", "quack,triton")
    assert [request.optional for request in judge.requests] == [("quack", "triton")]
    with pytest.raises(UsageError, match="--with cutlass: unknown"):
        run(judge, monkeypatch, tmp_path / "records", "--out", tmp_path / "finals", "--with", "cutlass")


def test_several_records_are_judged_together_and_shapes_without_any_are_named(judge, monkeypatch, tmp_path, capsys):
    for name, mnk, fingerprint in (("old", "64_64_64", FINGERPRINT), ("new", "128_64_64", OTHER_DRIVER)):
        with RecordLog(tmp_path / name, fingerprint) as log:
            log.append([row(mnk, "sm90_ws", [3.0], config=CONFIG)])
    shapes = tmp_path / "shapes.yaml"
    shapes.write_text('shapes: ["64_64_64", "128_64_64", "64_64_128"]')
    run(judge, monkeypatch, tmp_path / "old", tmp_path / "new", "--out", tmp_path / "out", "--shapes-file", shapes)
    assert [request.problem.mnk for request in judge.requests] == ["64_64_64", "128_64_64"]
    assert "1 shapes have no records: 64_64_128" in capsys.readouterr().err


def test_records_that_are_not_there_are_one_error(judge, monkeypatch, tmp_path):
    with pytest.raises(RecordError):
        run(judge, monkeypatch, tmp_path / "nothing", "--out", tmp_path / "finals")
    assert not (tmp_path / "finals").exists()


@pytest.mark.parametrize("flags", [("--top", "0"), ("--minutes", "nan"), ("--minutes", "-1"), ("--device", "-1")])
def test_numbers_that_mean_nothing_are_refused(judge, monkeypatch, tmp_path, flags):
    with pytest.raises(UsageError):
        run(judge, monkeypatch, tmp_path, "--out", tmp_path / "finals", *flags)
