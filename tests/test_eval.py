"""Evaluating one shape with a worker that answers from a script; files checked against the CUDA-L2 column names."""

import csv
import json
import shlex
from pathlib import Path

import pytest
from fabricated_finals import CONFIG, row

from cudal2.bench.judge import evaluate as module
from cudal2.bench.judge.evaluate import evaluate, reproduce_command, to_dict, write
from cudal2.bench.judge.judge import Judgement
from cudal2.bench.rounds import RoundLimits
from cudal2.build.artifact import BuiltKernel
from cudal2.cli import arguments
from cudal2.cli.main import parser
from cudal2.errors import EnvironmentProblemError, NothingValidError, WrongResultError
from cudal2.problem import Problem
from cudal2.records.finals import group_finals
from cudal2.records.measurement import Measurement, Status
from cudal2.records.speedup_csv import csv_text
from cudal2.settings import BenchSettings

PROBLEM = Problem(256, 512, 128)
BUILT = BuiltKernel("name", "digest", Path("kernel.cubin"), 168, 0, 200_000, 384, 0.5, Path("log"))
HEADER = (
    "mnk,torch.matmul,cuBLAS-tn,cuBLAS-nn,cuBLAS-max,cuBLASLt-heuristic-tn,cuBLASLt-heuristic-nn,"
    "cuBLASLt-heuristic-max,cuBLASLt-auto-tuning-tn,cuBLASLt-auto-tuning-nn,cuBLASLt-auto-tuning-max"
)
BASELINES_US = {
    "torch": 8.0, "cublas_tn": 6.0, "cublas_nn": 7.0, "cublaslt_heuristic_tn": 5.0, "cublaslt_heuristic_nn": 4.5,
    "cublaslt_auto_tn": 4.0, "cublaslt_auto_nn": 5.0,
}  # fmt: skip


def configs(count):
    return [CONFIG.__class__(**{**CONFIG.__dict__, "stages": 3 + index}) for index in range(count)]


class ScriptedWorker:
    """Answers ``measure`` by configuration and PDL flag: a time, or a status with its reason."""

    def __init__(self, answers):
        self.answers, self.final = answers, None

    def measure(self, problem, candidates, settings, pdl=False, reference=True):
        assert not reference
        for config, _ in candidates:
            answer = self.answers[config.stages]
            good = isinstance(answer, float)
            yield Measurement(
                problem, "sm90_ws", config, Status.CORRECT if good else answer, "" if good else "because", pdl=pdl,
                times_us=(answer / (2 if pdl else 1),) * 3 if good else (),
            )  # fmt: skip


@pytest.fixture
def finals(monkeypatch):
    """Stands in for the judge: remembers the request and answers with constant times."""
    requests = []

    def run_final(worker, request):
        requests.append(request)
        rows = []
        for pdl in request.pdl:
            for config, _ in request.candidates:
                rows.append(row(PROBLEM.mnk, "sm90_ws", [2.0 if pdl else 3.0] * 3, config=config, pdl=pdl))
            rows += [row(PROBLEM.mnk, name, [time_us] * 3, pdl=pdl) for name, time_us in BASELINES_US.items()]
        selection = [row(PROBLEM.mnk, "sm90_ws", [4.0], config=CONFIG, utc="1999-01-01T00:00:00+00:00")]
        return Judgement(request, tuple(rows), tuple(selection))

    monkeypatch.setattr(module, "run_final", run_final)
    return requests


def run(answers, **options):
    candidates = [(config, BUILT) for config in configs(len(answers))]
    return evaluate(
        ScriptedWorker(dict(zip(range(3, 9), answers, strict=False))), PROBLEM, candidates, BenchSettings(), **options
    )


def test_the_fastest_right_ones_meet_every_baseline(finals):
    evaluation = run([5.0, Status.TIMEOUT, 2.0, 3.0, 4.0])
    assert [config.stages for config, _ in finals[0].candidates] == [5, 6, 7]
    assert finals[0].pdl == (False, True)
    assert [row.status for row in evaluation.set_aside] == [Status.TIMEOUT] * 2
    off, on = evaluation.finals
    assert off.against("cublaslt_auto").ratio == pytest.approx(4 / 3)
    assert on.against("cublaslt_auto").ratio == pytest.approx(2.0)


def test_every_check_and_the_final_are_steps(finals):
    steps = []
    run([5.0, 2.0], on_step=steps.append)
    assert len(steps) == 2 * 2 + 1 and steps[-1] == "final"


def test_a_wrong_kernel_ends_it_before_any_final(finals):
    with pytest.raises(WrongResultError, match=r"256_512_128: .* is wrong: because") as caught:
        run([2.0, Status.CORRECTNESS])
    assert caught.value.exit_code == 1 and finals == []


def test_no_candidate_that_runs_is_exit_code_three(finals):
    with pytest.raises(NothingValidError, match="1 x timeout: because; 1 x launch: because") as caught:
        run([Status.TIMEOUT, Status.LAUNCH], pdl=(False,))
    assert caught.value.exit_code == 3 and finals == []


def test_a_kernel_wrong_only_in_the_final_is_still_wrong(monkeypatch, finals):
    bad = row(PROBLEM.mnk, "sm90_ws", (), config=CONFIG, reason="after timing")
    for found in ({"rows": (bad,)}, {"selection": (bad,)}):
        monkeypatch.setattr(module, "run_final", lambda worker, request, found=found: Judgement(request, **found))
        with pytest.raises(WrongResultError, match="after timing"):
            run([2.0])


def test_csv_has_the_cuda_l2_columns_as_speedups(finals):
    off, _ = run([2.0]).finals
    header, line = csv_text([off]).splitlines()
    assert header == HEADER
    cells = dict(zip(header.split(","), line.split(","), strict=True))
    assert cells["mnk"] == "256_512_128"
    assert float(cells["torch.matmul"]) == pytest.approx(8 / 3, abs=1e-4)
    assert (cells["cuBLAS-tn"], cells["cuBLAS-nn"], cells["cuBLAS-max"]) == ("2.0000", "2.3333", "2.0000")
    assert float(cells["cuBLASLt-heuristic-max"]) == pytest.approx(1.5)
    assert cells["cuBLASLt-auto-tuning-max"] == cells["cuBLASLt-auto-tuning-tn"] == "1.3333"


def test_a_baseline_without_a_time_leaves_its_cell_empty():
    rows = [row(PROBLEM.mnk, "sm90_ws", [2.0], config=CONFIG), row(PROBLEM.mnk, "cublas_nn", [3.0])]
    (final,) = group_finals(rows)
    (line,) = csv.DictReader(csv_text([final]).splitlines())
    assert line["cuBLAS-max"] == line["cuBLAS-nn"] == "1.5000"
    assert line["torch.matmul"] == line["cuBLAS-tn"] == line["cuBLASLt-auto-tuning-max"] == ""


def test_json_holds_the_raw_rounds_and_the_intervals(finals):
    evaluation = run([2.0, Status.TIMEOUT])
    values = json.loads(json.dumps(to_dict(evaluation, {"gpu": "test"}, "the command")))
    assert values["reproduce"] == "the command" and values["selection"][0]["times_us"] == [4.0]
    assert values["protocol"] == 1 and values["environment"] == {"gpu": "test"}
    speedup = values["columns"]["pdl_on"]["speedups"]["cublaslt_auto"]
    assert speedup["ratio"] == pytest.approx(2.0) and speedup["low"] <= speedup["ratio"] <= speedup["high"]
    assert speedup["verdict"] == "win"
    assert values["columns"]["pdl_off"]["ours"]["tflops"] == pytest.approx(PROBLEM.flops / 3.0 / 1e6)
    restored = [Measurement.from_dict(values) for values in values["rows"]]
    assert tuple(restored) == evaluation.rows
    assert values["set_aside"][0]["reason"] == "because"


def test_the_command_that_reproduces_names_everything_that_matters(finals):
    limits = RoundLimits(1000, warmup_s=1.5, benchmark_s=2.0)
    evaluation = run([2.0, 3.0], pdl=(True,), limits=limits)
    words = shlex.split(reproduce_command(evaluation, ["--bench", "my settings.yaml"]))
    assert words[:4] == ["python", "-m", "cudal2", "eval"]
    again = parser().parse_args(words[3:])
    assert (again.mnk, again.acc_precise, again.layout, again.pdl) == ("256_512_128", "fp32", "tn", "on")
    assert (again.warmup_seconds, again.benchmark_seconds, again.bench) == (1.5, 2.0, "my settings.yaml")
    assert [arguments.config(name) for name in again.config] == configs(2)
    both = shlex.split(reproduce_command(run([2.0])))
    assert both[both.index("--pdl") + 1] == "both" and "--bench" not in both


def test_files_are_never_overwritten(finals, tmp_path):
    evaluation = run([2.0])
    first = write(evaluation, tmp_path / "results", {})
    before = {path: path.read_text() for path in first}
    second = write(evaluation, tmp_path / "results", {})
    names = [
        "256_512_128_fp32_offline.json",
        "256_512_128_fp32_offline_pdl_off.csv",
        "256_512_128_fp32_offline_pdl_on.csv",
    ]
    assert [path.name for path in first] == names
    assert second[0].name == "256_512_128_fp32_offline.2.json"
    assert {path: path.read_text() for path in first} == before and not set(first) & set(second)


def test_a_directory_that_cannot_be_written_is_one_line(finals, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblemError, match="choose another --base_dir"):
        write(run([2.0]), tmp_path / "file", {})
