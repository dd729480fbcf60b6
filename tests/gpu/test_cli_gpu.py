"""The commands that measure, on a real GPU: search, record and its resume, train, and the evaluation script."""

from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path

import pytest

from cudal2.cli import main as cli
from cudal2.records.shards import read_shards
from cudal2.table import KernelTable

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).parents[2] / "eval_one_file.sh"
SHAPE = "64_4096_64"


def run(*arguments: str | Path) -> int:
    return cli.main([str(argument) for argument in arguments])


def test_search_measures_records_and_makes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records, table = tmp_path / "records", tmp_path / "table.json"
    budget = ["--strategy", "random", "--budget", "6", "--seed", "1", "--json"]
    code = run("search", "--backend", "gpu", "--mnk", SHAPE, *budget, "--records", records, "--table", table)
    row = json.loads(capsys.readouterr().out)[0]
    assert code == 0 and row["measured"] == 6 and 0.3 < row["speedup"] < 3.0
    assert len(read_shards(records).measurements) == 6
    assert KernelTable.load(table).lookup(64, 4096, 64) is not None


def test_record_stops_and_goes_on(tmp_path: Path) -> None:
    record = ["record", "--mnk", SHAPE, "--space", "sm90_record", "--out", tmp_path / "shards"]
    assert run(*record, "--limit", "5") == 0
    first = read_shards(tmp_path / "shards").measurements
    assert run(*record, "--limit", "3") == 0
    rows = read_shards(tmp_path / "shards").measurements
    assert len(first) == 5 and len({row.config for row in rows}) == len(rows) == 8
    assert all(row.ref_times_us for row in rows if row.ok) and any(row.ok for row in rows)
    assert run("record", "publish", tmp_path / "shards", "--out", tmp_path / "a.parquet") == 0


def test_training_live_leaves_a_table(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("steps: 8\nn_envs: 4\nn_steps: 2\nbatch_size: 8\nn_epochs: 1\nhidden: 16\n")
    arguments = ["--backend", "gpu", "--shapes", SHAPE, "256_256_256", "--space", "sm90_record"]
    assert run("train", *arguments, "--settings", settings, "--run-dir", tmp_path / "run") == 0
    assert len(KernelTable.load(tmp_path / "run" / "table.json")) >= 1
    assert read_shards(tmp_path / "run" / "records").measurements


def test_the_evaluation_script(tmp_path: Path) -> None:
    flags = ["--mnk", SHAPE, "--acc_precise", "fp32", "--warmup_seconds", "0", "--benchmark_seconds", "1"]
    command = ["bash", str(SCRIPT), *flags, "--base_dir", str(tmp_path / "results"), "--mode", "offline"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stderr
    written = sorted(path.name for path in (tmp_path / "results").iterdir())
    assert written == [f"{SHAPE}_fp32_offline{end}" for end in (".json", "_pdl_off.csv", "_pdl_on.csv")]
    row = next(csv.DictReader((tmp_path / "results" / written[1]).read_text().splitlines()))
    assert all(0.2 < float(value) < 20.0 for name, value in row.items() if name != "mnk")
