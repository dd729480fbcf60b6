"""``cudal2 eval --mode server`` and scripts/judge_server.py around scripted servings: exit codes, files, words."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import shlex
import shutil
import sys
import types
from pathlib import Path

import pytest
from fabricated_finals import CONFIG, row
from fabricated_recording import FINGERPRINT
from test_eval_command import FakeRunner
from test_finals_run import ScriptedPool
from test_latency_records import failed, latency

import cudal2.bench.server.server as served
import cudal2.runners.local as local
import cudal2.runners.servings as servings_module
from cudal2.arch import SM90
from cudal2.bench.server.traffic import Traffic
from cudal2.build.host import COMPILERS
from cudal2.cli import eval_server as command
from cudal2.cli import main as cli
from cudal2.errors import WorkerError
from cudal2.problem import Problem
from cudal2.records.latency import read_latencies
from cudal2.records.measurement import STATES, Measurement, Status
from cudal2.records.shards import RecordLog
from cudal2.runners.servings import FINALISTS, already_served, fit_to_serve

SHAPE = "64_4096_64"
SCRIPT = Path(__file__).parents[1] / "scripts" / "judge_server.py"

pytestmark = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="no C compiler here")


def serving(mnk: str = SHAPE, **changes: object) -> list:
    """Ours soonest by 1.2, cuBLAS' tn refused, in every state."""
    rows = []
    for state in STATES:
        common = {"mnk": mnk, "state": state, **changes}
        rows += [latency(base_us=10.0, **common), latency("cublaslt_auto_tn", 12.0, **common)]
        rows += [latency("torch", 20.0, detail="torch 2; called from Python", **common)]
        rows += [latency("empty", 5.0, **common), failed("cublas_tn", **common)]
    return rows


class ScriptedWorker:
    """Checks every candidate with the row it is told."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason

    def measure(self, problem: Problem, candidates: list, settings: object, pdl: bool, reference: bool):
        assert not pdl and not reference
        for number, (config, _) in enumerate(candidates):
            if self.reason:
                yield Measurement(problem, "sm90_ws", config, Status.TIMEOUT, self.reason)
            else:
                yield row(problem.mnk, "sm90_ws", [5.0 - number], config=config)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """What the command asked for, and what it is to be answered."""
    seen = types.SimpleNamespace(requests=[], rows=serving(), worker=ScriptedWorker())

    def run_server(worker: object, request: object) -> list:
        seen.requests.append(request)
        return seen.rows

    class Runner(FakeRunner):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__()
            self.worker = seen.worker

    monkeypatch.setattr(command, "require_gpu", lambda device: None)
    monkeypatch.setattr(command, "gpu_arch", lambda device: SM90)
    monkeypatch.setattr(command, "built", lambda configs, problem, runner: [(config, None) for config in configs])
    monkeypatch.setattr(local, "LocalRunner", Runner)
    monkeypatch.setattr(served, "run_server", run_server)
    return seen


def call(tmp_path: Path, *arguments: str) -> int:
    base = ["eval", "--mode", "server", "--mnk", SHAPE, "--base_dir", str(tmp_path / "results")]
    return cli.main([*base, *arguments])


def test_it_prints_every_contestant_in_every_state_and_writes_json(asked, tmp_path, capsys) -> None:
    assert call(tmp_path, "--target_qps", "500", "--benchmark_seconds", "3", "--warmup_seconds", "1") == 0
    (request,) = asked.requests
    assert request.traffic == Traffic(500.0, STATES, seconds=3.0, warmup_s=1.0)
    assert request.client.is_file() and request.client.suffix == ".so"
    out, err = capsys.readouterr()
    header, *lines = out.splitlines()
    assert header.split()[:5] == ["state", "contestant", "p50_us", "p95_us", "p99_us"]
    assert len(lines) == 15 and sum(line.startswith("loaded") for line in lines) == 5
    line = next(line for line in lines if "cublaslt_auto_tn" in line)
    assert "1.200" in line and "win" in line
    assert any("torch (from Python)" in line and "2.000" in line for line in lines)
    assert any("cublas_tn" in line and "C[0,0] is nan" in line for line in lines)
    (path,) = (tmp_path / "results").iterdir()
    written = json.loads(path.read_text())
    assert path.name == f"{SHAPE}_fp32_server.json" and written["protocol"] and len(written["rows"]) == 15
    assert written["states"]["warm"]["speedups"]["cublaslt_auto"]["p50"]["verdict"] == "win"
    assert written["states"]["warm"]["others"]["cublas_tn"] == {"status": "correctness", "reason": "C[0,0] is nan"}
    assert written["rows"][0]["latency_us"] and "about" in err


def test_the_command_it_prints_asks_for_the_same_again(asked, tmp_path, capsys) -> None:
    assert call(tmp_path, "--state", "warm", "--state", "idle_cold", "--target_qps", "250", "--layout", "tn") == 0
    line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("reproduce: "))
    words = shlex.split(line.removeprefix("reproduce: "))
    assert words[:4] == ["python", "-m", "cudal2", "eval"] and CONFIG.name in words
    again = cli.parser().parse_args(words[3:])
    assert command.traffic(again, 0) == asked.requests[0].traffic


def test_stdout_is_one_json_value_when_asked(asked, tmp_path, capsys) -> None:
    assert call(tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["mode"] == "server"


def test_a_busy_server_is_one_line_of_warning(asked, tmp_path, capsys) -> None:
    asked.rows = [dataclasses.replace(one, target_qps=20_000.0) for one in serving()]
    assert call(tmp_path) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "lower --target_qps" in line]
    assert line.startswith("torch (from Python) serves ")


def test_a_kernel_that_went_wrong_while_it_served_is_written_and_exits_with_1(asked, tmp_path, capsys) -> None:
    asked.rows = [*serving(), failed("sm90_ws", state="warm", config=CONFIG)]
    assert call(tmp_path) == 1
    assert "is wrong" in capsys.readouterr().err.splitlines()[-1]
    assert list((tmp_path / "results").iterdir())


def test_nothing_that_runs_exits_with_3_and_serves_nothing(asked, tmp_path, capsys) -> None:
    asked.worker = ScriptedWorker("no answer within 10 s: hang?")
    assert call(tmp_path) == 3
    assert "hang?" in capsys.readouterr().err and not asked.requests


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target_qps", "0"], "--target_qps 0: give"),
        (["--target_qps", "-1"], "--target_qps -1: give"),
        (["--target_qps", "nan"], "--target_qps nan: give"),
        (["--target_qps", "often"], "invalid float value: 'often'"),
        (["--state", "lukewarm"], "invalid choice: 'lukewarm'"),
        (["--mode", "offline", "--target_qps", "10"], "are for --mode server"),
        (["--mode", "offline", "--state", "warm"], "are for --mode server"),
    ],
)
def test_bad_input_is_one_line(asked, tmp_path, capsys, arguments, message) -> None:
    assert call(tmp_path, *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line and not asked.requests


def test_no_c_compiler_is_one_line_before_the_gpu_is_asked(asked, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert call(tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: no C compiler") and not asked.requests


def test_the_fastest_that_pass_serve() -> None:
    configs = [dataclasses.replace(CONFIG, stages=stages) for stages in (3, 4, 5)]
    fit, checked = fit_to_serve(ScriptedWorker(), Problem.parse(SHAPE), tuple((one, None) for one in configs), None)
    assert [config for config, _ in fit] == configs[:0:-1][:FINALISTS] and len(checked) == 3


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):
    """The script as a module, with the GPU, the compilers and the servings replaced."""
    spec = importlib.util.spec_from_file_location("judge_server_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.requests = []

    def run_server(worker: object, request):
        module.requests.append(request)
        if request.problem.mnk == "64_64_128":
            raise WorkerError("the worker process died of SIGSEGV")
        return serving(request.problem.mnk, target_qps=request.traffic.target_qps)

    runner = types.SimpleNamespace(worker=ScriptedWorker(), toolchain=None, fingerprint=lambda families=(): FINGERPRINT)
    monkeypatch.setattr(module, "require_gpu", lambda device: None)
    monkeypatch.setattr(module, "LocalRunner", lambda *_, **__: contextlib.nullcontext(runner))
    monkeypatch.setattr(module, "BuildPool", lambda *_: contextlib.nullcontext(ScriptedPool()))
    monkeypatch.setattr(servings_module, "run_server", run_server)
    return module


def test_the_script_serves_each_shape_once_and_goes_on(script, monkeypatch, tmp_path, capsys) -> None:
    shapes = tmp_path / "shapes.yaml"
    shapes.write_text('shapes: ["64_64_64", "64_64_128", "64_64_256"]\n')
    with RecordLog(tmp_path / "records", FINGERPRINT) as log:
        log.append([row("64_64_64", "sm90_ws", [3.0], config=CONFIG), row("64_64_64", "sm90_ws", [1.0], pdl=True)])
    common = ["--shapes-file", shapes, "--records", tmp_path / "records", "--out", tmp_path / "out"]

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["judge_server.py", *map(str, (*common, *arguments))])
        script.main()
        return capsys.readouterr().err

    said = run("--target_qps", "800")
    assert [request.problem.mnk for request in script.requests] == ["64_64_64", "64_64_128", "64_64_256"]
    assert [config for config, _ in script.requests[0].candidates] == [CONFIG]
    assert "no configuration of ours is recorded for 64_64_128, 64_64_256" in said
    assert "64_64_64 warm: p50 1.200 [1.200, 1.200] win, p99 1.20, device 1.200" in said
    assert "2 served, 1 failed, 0 left" in said
    assert len(read_latencies(tmp_path / "out").rows) == 30
    run("--target_qps", "800")
    assert [request.problem.mnk for request in script.requests[3:]] == ["64_64_128"]
    assert "0 served, 0 failed, 3 left" in run("--target_qps", "900", "--minutes", "1e-9")


def test_a_shape_served_at_another_rate_or_in_fewer_states_is_not_done() -> None:
    rows = [latency(state=state) for state in STATES]
    assert already_served(rows, Traffic(1000.0)) == {Problem.parse(SHAPE)}
    assert already_served(rows, Traffic(900.0)) == already_served(rows[:2], Traffic(1000.0)) == set()
    assert already_served(rows[:1], Traffic(1000.0, states=(STATES[0],))) == {Problem.parse(SHAPE)}
