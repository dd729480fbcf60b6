"""``eval_one_file.sh``: a thin script whose exit codes can be relied on, from any directory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cudal2.cli.backend import gpu_problem

SCRIPT = Path(__file__).parents[1] / "eval_one_file.sh"


def evaluate(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", str(SCRIPT), *arguments], cwd=cwd, capture_output=True, text=True, timeout=60)


BAD_INPUT = {
    "no shape": ([], "--mnk"),
    "malformed shape": (["--mnk", "64x64x64"], "64_4096_64"),
    "zero size": (["--mnk", "64_0_64"], "from 1 to"),
    "unknown flag": (["--mnk", "64_64_64", "--turbo"], "--turbo"),
    "flag without a value": (["--mnk"], "--mnk"),
    "unknown accumulator": (["--mnk", "64_64_64", "--acc_precise", "fp64"], "fp64"),
    "another GPU": (["--mnk", "64_64_64", "--device_type", "v100"], "h100, h200"),
    "unknown GPU": (["--mnk", "64_64_64", "--device_type", "b9000"], "b9000"),
    "unknown mode": (["--mnk", "64_64_64", "--mode", "online"], "online"),
    "negative seconds": (["--mnk", "64_64_64", "--benchmark_seconds=-1"], "seconds"),
    "not seconds": (["--mnk", "64_64_64", "--warmup_seconds", "long"], "long"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_one_line_and_2(name: str, tmp_path: Path) -> None:
    arguments, wanted = BAD_INPUT[name]
    result = evaluate(*arguments, cwd=tmp_path)
    assert result.returncode == 2 and not result.stdout
    assert len(result.stderr.splitlines()) == 1 and wanted in result.stderr


@pytest.mark.skipif(gpu_problem() is None, reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_and_touches_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "results" / "benchmark_result.json"
    kept.parent.mkdir()
    kept.write_text("mine")
    result = evaluate("--mnk", "64_64_64", "--base_dir", str(kept.parent), cwd=tmp_path)
    assert result.returncode == 2 and "needs a GPU" in result.stderr
    assert kept.read_text() == "mine" and os.listdir(kept.parent) == [kept.name]


def test_help_lists_the_flags_of_cuda_l2(tmp_path: Path) -> None:
    result = evaluate("--help", cwd=tmp_path)
    flags = ("mnk", "acc_precise", "device_type", "warmup_seconds", "benchmark_seconds", "base_dir", "gpu_device_id")
    assert result.returncode == 0
    assert all(f"--{flag}" in result.stdout for flag in (*flags, "mode", "target_qps"))


def test_the_script_is_thin() -> None:
    lines = [line for line in SCRIPT.read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 5 and lines[0] == "set -euo pipefail" and not any(" rm " in f" {line} " for line in lines)
    assert lines[-1] == 'exec python3 -m cudal2 eval "$@"'
