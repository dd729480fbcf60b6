"""A foreign kernel as one more contestant: in the rounds of a final, in what ``eval`` says, and in its exit code."""

from __future__ import annotations

import dataclasses
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace

import host_platform
import pytest
from fabricated_finals import final_rows
from host_platform import HostPlatform
from test_judge import BUILT, CONFIG, SETTINGS, host_libraries, judged, session_for  # noqa: F401 - a fixture

import cudal2.bench.foreign.trial as trial_module
import cudal2.bench.judge.foreign as entrant_module
from cudal2.bench.judge.evaluate import Evaluation, evaluate, refuse_failed_foreign, reproduce_command, to_dict
from cudal2.bench.judge.final import Failure
from cudal2.bench.judge.foreign import check_foreign, refuse_foreign
from cudal2.bench.judge.request import FinalRequest
from cudal2.build.foreign import ForeignBuildError, ForeignKernel
from cudal2.cli import foreign as command
from cudal2.cli import main as cli
from cudal2.errors import NothingValidError, UsageError, WrongResultError
from cudal2.problem import Problem
from cudal2.records.finals import group_finals
from cudal2.records.measurement import Measurement, Status

PROBLEM = Problem(16, 24, 64)
NAME = "foreign:cheats"
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")


@pytest.fixture
def brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes a library that runs on the host, and a session whose platform is the host."""
    monkeypatch.setenv(host_platform.LEAK, str(tmp_path / "leaked"))
    monkeypatch.setattr(trial_module, "_CLOCK_SLACK_MS", 60.0)
    monkeypatch.setattr(trial_module, "_CACHE_RATIO", 8.0)
    folders = iter(range(100))

    def platform(device: object, flush_bytes: int, torch_too: bool) -> HostPlatform:
        folder = tmp_path / f"platform-{next(folders)}"
        folder.mkdir()
        return HostPlatform(folder)

    monkeypatch.setattr(entrant_module, "CudaPlatform", platform)

    def make(entry: str) -> ForeignKernel:
        library = host_platform.build(tmp_path, entry)
        return ForeignKernel(NAME, entry, library, tmp_path / "log", 0.1, 1 << 16, False, "a kernel")

    return make


def session() -> SimpleNamespace:
    made = session_for(PROBLEM)
    made.info = SimpleNamespace(l2_bytes=1 << 10)
    return made


def request(kernel: ForeignKernel, candidates=((CONFIG, BUILT),)) -> FinalRequest:
    settings = dataclasses.replace(SETTINGS, final_replay_ms=1.0)
    return pickle.loads(pickle.dumps(FinalRequest(PROBLEM, candidates, settings, (False, True), foreign=kernel)))


@needs_gcc
def test_it_is_timed_in_the_rounds_of_the_others_and_set_against_each(brought) -> None:
    asked = request(brought("honest"))
    rows = judged(session(), asked)
    assert {row.status for row in rows} == {Status.CORRECT}, [row.reason for row in rows]
    off, on = group_finals(rows)
    (mine,) = off.foreign
    assert mine.contestant == NAME and len(mine.times_us) == len(off.ours.times_us) and on.foreign
    assert "a kernel; measure=graph; " in mine.detail and off.ours.contestant == "sm90_ws"
    values = to_dict(Evaluation(PROBLEM, tuple(rows), (), SETTINGS, asked.rounds), {})["columns"]["pdl_off"]
    assert NAME not in values["baselines"]
    against = values["foreign"][NAME]["speedups"]
    assert {"ours", "torch", "cublaslt_auto_tn", "cublas_nn"} <= set(against) and NAME not in against
    ratio = off.ours.median_us / mine.median_us
    assert against["ours"]["ratio"] == pytest.approx(ratio, rel=0.9) and against["ours"]["verdict"] == "loss"


@needs_gcc
def test_one_that_fails_in_the_rounds_costs_nobody_else(brought) -> None:
    rows = judged(session(), request(brought("idle_when_timed"), candidates=()))
    (mine,) = [row for row in rows if row.contestant == NAME]
    assert mine.status is Status.CORRECTNESS and "when it said it was done" in mine.reason
    assert all(row.ok for row in rows if row is not mine) and len(rows) == 8
    with pytest.raises(WrongResultError, match="16_24_64: foreign:cheats: when it said it was done"):
        refuse_failed_foreign(rows)


@needs_gcc
@pytest.mark.parametrize(
    ("entry", "error", "code"),
    [
        ("zeros", WrongResultError, 1),
        ("does_not_load", ForeignBuildError, 2),
        ("refuses", NothingValidError, 3),
        ("exits", NothingValidError, 3),
    ],
)
def test_a_check_that_fails_ends_it_before_anything_is_timed(entry, error, code, brought) -> None:
    class Worker:
        def call(self, job, *arguments, deadline_s):
            assert job is check_foreign
            return job(session(), *arguments)

        def measure(self, *_, **__):
            raise AssertionError("timed")

    with pytest.raises(error) as caught:
        evaluate(Worker(), PROBLEM, [(CONFIG, BUILT)], SETTINGS, foreign=brought(entry))
    assert caught.value.exit_code == code and "\n" not in str(caught.value)
    assert str(caught.value).startswith("16_24_64: foreign:cheats: ")


def test_a_pass_is_no_failure_and_a_quarantine_is_one() -> None:
    refuse_foreign(PROBLEM, NAME, None)
    with pytest.raises(NothingValidError, match="16_24_64: foreign:x: two clocks"):
        refuse_foreign(PROBLEM, "foreign:x", Failure(Status.QUARANTINED, "two clocks"))


SHAPE = ["eval", "--mnk", "64_64_64"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--entry", "gemm"], "--entry goes with --source"),
        (["--legacy-cuda-l2"], "--legacy-cuda-l2 goes with --source"),
        (["--nvcc-flags=-lx"], "--nvcc-flags goes with --source"),
        (["--source", "{}"], "--source needs --entry NAME"),
        (["--source", "{}", "--entry", "not a name"], "is no name of a function"),
        (["--source", "{}", "--entry", "gemm", "--nvcc-flags='"], "--nvcc-flags: No closing quotation"),
        (["--source", "none.cu", "--entry", "gemm"], "--source none.cu cannot be read"),
        (["--source", "{}", "--entry", "f", "--mode", "server", "--target_qps", "9"], "--source is for --mode offline"),
        (["--source", "none.cu", "--legacy-cuda-l2"], "--source none.cu cannot be read"),
        (["--source", "{}", "--legacy-cuda-l2", "--acc_precise", "fp16"], "holds no cuda_l2_<device>_fp16"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_2(arguments, reason, tmp_path, capsys) -> None:
    source = tmp_path / "kernel.cu"
    source.write_text("void cuda_l2_h100_fp32(int);")
    assert cli.main([*SHAPE, *(argument.format(source) for argument in arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and reason in line


@needs_nvcc
@pytest.mark.parametrize(
    ("text", "reason"), [("int x = ;", "does not compile"), ("int y;", "entry 'gemm' is not in it")]
)
def test_a_source_that_does_not_build_is_one_line_with_its_log(text, reason, tmp_path, capsys) -> None:
    source = tmp_path / "kernel.cu"
    source.write_text(text)
    assert cli.main([*SHAPE, "--source", str(source), "--entry", "gemm"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line and Path(line.rpartition("log: ")[2]).is_file()


def test_cuda_l2s_entry_is_read_out_of_its_source(tmp_path: Path) -> None:
    source = tmp_path / "kernel.cu"
    source.write_text("void cuda_l2_h100_fp32(torch::Tensor a) {}\nvoid cuda_l2_h100_fp16 (torch::Tensor a) {}")
    given = SimpleNamespace(source=source, legacy_cuda_l2=True)
    assert command._cuda_l2_entry(given, PROBLEM) == "cuda_l2_h100_fp32"
    assert command._cuda_l2_entry(given, Problem(8, 8, 8, "fp16")) == "cuda_l2_h100_fp16"
    source.write_text("cuda_l2_a_fp32(); cuda_l2_b_fp32();")
    with pytest.raises(UsageError, match="holds cuda_l2_a_fp32, cuda_l2_b_fp32: name its function"):
        command._cuda_l2_entry(given, PROBLEM)


def test_the_command_that_repeats_it_brings_it_again(tmp_path: Path) -> None:
    given = SimpleNamespace(
        source=tmp_path / "k.cu", entry="gemm", legacy_cuda_l2=True, nvcc_flags="-DX='a b' -lcuda"
    )  # fmt: skip
    words = command.options(given)
    assert words == [
        "--source", str(tmp_path / "k.cu"), "--entry", "gemm", "--legacy-cuda-l2", "--nvcc-flags=-DX='a b' -lcuda",
    ]  # fmt: skip
    evaluation = Evaluation(PROBLEM, (), (), SETTINGS, FinalRequest(PROBLEM, (), SETTINGS).rounds)
    assert "--legacy-cuda-l2" in reproduce_command(evaluation, words)
    assert command.options(SimpleNamespace(source=None)) == []


def test_the_printed_comparison_names_everyone(capsys: pytest.CaptureFixture[str]) -> None:
    rows = final_rows("64_64_64", 2.0, {"torch": 4.0, "cublaslt_auto_tn": 1.0, NAME: 2.0}, pdl=False)
    command.print_comparison(group_finals(rows))
    out = capsys.readouterr().out
    assert "foreign:cheats" in out and "torch" in out and "0.500" in out and "2.000" in out
    assert all(isinstance(row, Measurement) for row in rows)
