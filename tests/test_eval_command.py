"""``cudal2 eval`` around the judge: exit codes, files, what it prints; the judge itself is scripted, no GPU needed."""

from __future__ import annotations

import csv
import errno
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fabricated_finals import CONFIG, final_rows
from fabricated_recording import FINGERPRINT

import cudal2.bench.judge.evaluate as judged
import cudal2.runners.local as local
from cudal2.arch import SM90
from cudal2.bench.baselines import contestants
from cudal2.bench.judge.evaluate import Evaluation
from cudal2.bench.rounds import RoundLimits
from cudal2.cli import eval as command
from cudal2.cli import main as cli
from cudal2.errors import NothingValidError, WrongResultError
from cudal2.problem import Problem
from cudal2.settings import BenchSettings
from cudal2.space.config import KernelConfig

SHAPE = "256_256_256"
BASELINES = {"torch": 4.0, "cublas_tn": 3.0, "cublas_nn": 5.0, "cublaslt_auto_tn": 2.4, "cublaslt_auto_nn": 2.6}


class FakeRunner:
    """A GPU that is not there."""

    def __init__(self, *_: object, **__: object) -> None:
        self.worker, self.cache, self.toolchain = SimpleNamespace(), None, None

    def __enter__(self) -> FakeRunner:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def fingerprint(self, families=()):
        return FINGERPRINT


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What the command asked of the judge."""
    seen: dict[str, object] = {}

    def built(configs: list[KernelConfig], problem: Problem, runner: object):
        return [(config, None) for config in configs]

    def evaluate(
        worker: object, problem: Problem, candidates: Sequence, settings: BenchSettings, pdl, limits, on_step, optional,
        foreign,
    ):  # fmt: skip
        configs = [config for config, _ in candidates]
        seen.update(problem=problem, configs=configs, pdl=pdl, limits=limits, optional=optional)
        rows = final_rows(problem.mnk, 2.0, BASELINES, pdl=False) + final_rows(problem.mnk, 1.5, BASELINES, pdl=True)
        return Evaluation(problem, tuple(rows), (), settings, limits)

    monkeypatch.setattr(command, "require_gpu", lambda device: None)
    monkeypatch.setattr(command, "gpu_arch", lambda device: SM90)
    monkeypatch.setattr(command, "built", built)
    monkeypatch.setattr(local, "LocalRunner", FakeRunner)
    monkeypatch.setattr(judged, "evaluate", evaluate)
    return seen


def call(tmp_path: Path, *arguments: str) -> int:
    return cli.main(["eval", "--mnk", SHAPE, "--base_dir", str(tmp_path / "results"), *arguments])


def test_it_writes_json_and_the_columns_of_cuda_l2(asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(tmp_path, "--warmup_seconds", "1", "--benchmark_seconds", "2", "--gpu_device_id", "1") == 0
    assert asked["pdl"] == (False, True) and asked["problem"] == Problem.parse(SHAPE)
    assert isinstance(asked["limits"], RoundLimits)
    assert (asked["limits"].warmup_s, asked["limits"].benchmark_s) == (1.0, 2.0)
    written = {path.name: path.read_text() for path in (tmp_path / "results").iterdir()}
    values = json.loads(written["256_256_256_fp32_offline.json"])
    assert values["environment"]["gpu"] == FINGERPRINT.gpu
    command = values["reproduce"]
    assert command.startswith(f"python -m cudal2 eval --mnk {SHAPE} ") and f"--config {CONFIG.name}" in command
    assert command.endswith("--warmup_seconds 1 --benchmark_seconds 2 --gpu_device_id 1")
    assert f"reproduce: {command}" in capsys.readouterr().err
    row = next(csv.DictReader(written["256_256_256_fp32_offline_pdl_off.csv"].splitlines()))
    assert row["mnk"] == SHAPE and float(row["torch.matmul"]) == pytest.approx(2.0)
    assert float(row["cuBLASLt-auto-tuning-max"]) == pytest.approx(1.2)
    assert row["cuBLASLt-heuristic-tn"] == ""


def test_running_twice_keeps_both(asked, tmp_path: Path) -> None:
    assert call(tmp_path) == call(tmp_path) == 0
    assert len(list((tmp_path / "results").glob("*.json"))) == 2


def test_stdout_is_one_json_value_when_asked(asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["problem"]["m"] == 256


def test_the_printed_table_puts_losses_in_words(asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(tmp_path)
    out = capsys.readouterr().out
    assert CONFIG.name in out and "win" in out and "2.400" in out


def test_named_configurations_come_before_the_table(asked, tmp_path: Path) -> None:
    legal = replace(CONFIG, group=1, persistent=False)
    assert call(tmp_path, "--config", legal.name) == 0
    assert asked["configs"] == [legal]


@pytest.mark.parametrize(
    ("error", "code"), [(WrongResultError("wrong on purpose"), 1), (NothingValidError("nothing ran"), 3)]
)
def test_exit_codes(asked, error: Exception, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(*_: object) -> None:
        raise error

    monkeypatch.setattr(judged, "evaluate", evaluate)
    assert call(tmp_path) == code
    assert not (tmp_path / "results").exists()


def test_an_illegal_configuration_is_refused_before_the_gpu(asked, tmp_path: Path) -> None:
    assert cli.main(["eval", "--mnk", "64_64_60", "--config", CONFIG.name]) == 2
    assert not asked


def test_a_place_that_cannot_be_written(asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results").write_text("a file")
    assert call(tmp_path) == 2
    assert "--base_dir" in capsys.readouterr().err.splitlines()[-1]


def test_optional_contestants_are_passed_on_and_repeated_in_the_command(
    asked, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = {"quack": object()}
    monkeypatch.setattr(contestants.importlib.util, "find_spec", lambda name: installed.get(name))
    assert call(tmp_path, "--with", "quack") == 0
    assert asked["optional"] == ("quack",)
    assert " --with quack" in capsys.readouterr().err
    assert call(tmp_path, "--with", "quack,triton") == 2
    assert capsys.readouterr().err == "error: --with triton needs a package: run `pip install triton`\n"
    assert call(tmp_path, "--with", "quack", "--mode", "server") == 2
    assert capsys.readouterr().err.startswith("error: --with is for --mode offline")
    assert call(tmp_path, "--with", "quak") == 2
    assert capsys.readouterr().err.startswith("error: --with quak: unknown; use quack or triton")


def test_a_full_disk_leaves_no_half_of_a_result(asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    class Full(io.TextIOWrapper):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    real = Path.open

    def open_full(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        return Full(io.FileIO(path, mode)) if mode == "x" else real(path, mode, *arguments, **options)

    monkeypatch.setattr(Path, "open", open_full)
    assert call(tmp_path) == 2
    assert "No space left" in capsys.readouterr().err
    assert not list((tmp_path / "results").iterdir())
