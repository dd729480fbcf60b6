"""The commands that need measurements, on a made-up recording: train, search, table, record publish, report."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cudal2.cli import main as cli
from cudal2.cli import output
from cudal2.cli import search as search_command
from cudal2.records.recording import Recording
from cudal2.records.shards import RecordLog
from cudal2.table import KernelTable

ROOT = Path(__file__).parents[1]
SETTINGS = "steps: 128\nn_envs: 16\nn_steps: 4\nbatch_size: 32\nn_epochs: 2\nhidden: 16\ncheckpoint_every: 64\n"


@pytest.fixture(scope="module")
def recording(tiny_recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "made_up_fp32_tn.parquet"
    Recording.publish(tiny_recording.measurements(), path, [tiny_recording.fingerprint], tiny_recording.space)
    return path


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(SETTINGS)
    return path


def test_search_says_what_it_measured_and_merges_the_winners(run, recording: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    arguments = ["search", "--recording", recording, "--strategy", "exhaustive", "--table", table, "--json"]
    code, stdout, _ = run(*arguments)
    rows = json.loads(stdout)
    loaded = Recording.load(recording)
    assert code == 0 and len(rows) == len(loaded.problems) == len(KernelTable.load(table))
    assert sum(row["measured"] for row in rows) == sum(len(loaded.times(problem)) for problem in loaded.problems)
    best = {row["mnk"]: row["median_us"] for row in rows}
    for problem in loaded.problems:
        assert best[problem.mnk] == pytest.approx(min(time for time, _ in loaded.times(problem).values() if time > 0))


def test_the_reference_is_of_the_rounds_of_the_best(run) -> None:
    # A long shape of the shipped recording: its reference drifts with the clocks from candidate to candidate.
    (row,) = json.loads(run("search", "--backend", "replay", "--mnk", "4096_4096_16384", "--budget", "64", "--json")[1])
    assert row["speedup"] == pytest.approx(row["cublaslt_auto_us"] / row["median_us"])


def test_a_budget_is_kept_and_a_seed_repeats(run, recording: Path) -> None:
    arguments = ["search", "--recording", recording, "--strategy", "random", "--budget", "5", "--json", "--seed"]
    first, again, other = (json.loads(run(*arguments, seed)[1]) for seed in ("1", "1", "2"))
    assert first == again != other
    assert all(row["measured"] == 5 for row in first)


def test_a_beam_begins_with_the_best_of_the_family_that_it_searches(run) -> None:
    # The best of this shape in the shipped finals is of another family.
    finals = ROOT / "cudal2" / "data" / "finals"
    begin = ["search", "--backend", "replay", "--strategy", "beam", "--from", finals, "--budget", "3", "--shapes"]
    code, _, stderr = run(*begin, "64_4096_64", "64_64_16384")
    assert code == 0 and "--from: records of" in stderr
    rows = search_command._starts([finals], "sm90_ws")
    assert rows and {config.family for configs in rows.values() for config in configs} == {"sm90_ws"}


def test_a_shape_that_was_not_recorded(run, recording: Path) -> None:
    code, _, stderr = run("search", "--recording", recording, "--mnk", "8_8_8")
    assert code == 2 and "8_8_8" in stderr.splitlines()[-1]


def test_a_broken_recording(run, recording: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(recording.read_bytes()[:2000])
    code, _, stderr = run("search", "--recording", broken)
    assert code == 2 and str(broken) in stderr.splitlines()[-1]


def test_training_leaves_a_table_that_the_other_commands_read(
    run, recording: Path, settings: Path, tmp_path: Path
) -> None:
    pytest.importorskip("stable_baselines3")
    folder = tmp_path / "run"
    train = ["train", "--recording", recording, "--settings", settings, "--run-dir", folder]
    code, stdout, stderr = run(*train, "--json")
    said = json.loads(stdout)
    assert code == 0 and said["steps"] == 128 and said["tables"] == [str(folder / "table.json")]
    assert "backend: replay" in stderr and "steps/s" in stderr

    code, shown, _ = run("table", "show", "--table", folder / "table.json")
    assert code == 0 and all(row["mnk"] in shown for row in said["best"])

    code, _, stderr = run(*train)
    assert code == 2 and "--resume" in stderr.splitlines()[-1]
    code, stdout, _ = run(*train, "--resume", "--steps", "192", "--json")
    assert code == 0 and json.loads(stdout)["steps"] == 192
    _, printed, _ = run(*train, "--resume", "--steps", "256")
    assert printed == run("table", "show", "--table", folder / "table.json")[1]

    code, stdout, _ = run(
        "search", "--recording", recording, "--strategy", "policy", "--run-dir", folder, "--budget", 3
    )
    assert code == 0 and "64_64_64" in stdout

    pytest.importorskip("matplotlib")
    assert run("report", "--run", folder)[0] == 0
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_ctrl_c_leaves_a_run_that_resumes(recording: Path, settings: Path, tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "cudal2.train", "--recording", str(recording), "--settings", str(settings)]
    command += ["--run-dir", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, "--steps", "10000000"], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment
    )
    deadline = time.monotonic() + 60.0
    while not any(folder.glob("checkpoints/*.pt")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130 and "interrupted" in stderr.decode().splitlines()[-1]
    assert len(KernelTable.load(folder / "table.json"))
    assert cli.main(["train", *command[3:], "--resume", "--steps", "64"]) == 0


def test_lookup_is_exact_then_near_then_nothing(run, recording: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    run("search", "--recording", recording, "--strategy", "analytic", "--budget", "8", "--table", table)
    lookup = ["table", "lookup", "--table", table, "--json", "--mnk"]
    assert json.loads(run(*lookup, "1024_512_256")[1])["exact"]
    near = json.loads(run(*lookup, "1000_512_256")[1])
    assert not near["exact"] and near["mnk"] == "1024_512_256" and near["evidence"] == "transferred"
    assert run(*lookup, "16384_16384_16384")[0] == 3


def test_merging_keeps_the_better_entry(run, recording: Path, tmp_path: Path) -> None:
    poor, good, merged = (tmp_path / name for name in ("poor.json", "good.json", "merged.json"))
    run("search", "--recording", recording, "--strategy", "random", "--budget", "1", "--table", poor)
    run("search", "--recording", recording, "--strategy", "exhaustive", "--table", good)
    assert run("table", "merge", poor, good, "--out", merged)[0] == 0
    assert KernelTable.load(merged).entries == KernelTable.load(good).entries


@pytest.mark.parametrize("damage", ["", "{", '{"header": {}, "entries": {}}'])
def test_a_corrupt_table_is_one_line(run, damage: str, tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    table.write_text(damage)
    code, _, stderr = run("table", "show", "--table", table)
    assert code == 2 and len(stderr.splitlines()) == 1 and str(table) in stderr


def test_publish_writes_what_the_shards_hold(run, tiny_recording: Recording, tmp_path: Path) -> None:
    with RecordLog(tmp_path / "shards", tiny_recording.fingerprint) as log:
        log.append(tiny_recording.measurements())
    out = tmp_path / "published.parquet"
    code, _, stderr = run("record", "publish", tmp_path / "shards", "--out", out)
    assert code == 0 and "6 problems" in stderr
    np.testing.assert_array_equal(Recording.load(out).times_us, tiny_recording.times_us)
    made = ["table", "make", tmp_path / "shards", "--evidence", "exhaustive", "--out", tmp_path / "table.json"]
    assert run(*made)[0] == 0 and KernelTable.load(tmp_path / "table.json").entries[0].evidence == "exhaustive"


def test_publish_of_an_empty_directory(run, tmp_path: Path) -> None:
    code, _, stderr = run("record", "publish", tmp_path, "--out", tmp_path / "a.parquet")
    assert code == 2 and "no records" in stderr.splitlines()[-1]


@pytest.mark.parametrize("command", ["search --strategy policy", "train --resume"])
def test_a_folder_without_a_run_is_spoken_of_in_flags_that_the_command_has(
    run, command: str, recording: Path, settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *flags = command.split()
    rest = ["--settings", settings] if name == "train" else []
    code, _, stderr = run(name, *flags, "--recording", recording, "--run-dir", tmp_path / "none", *rest)
    said = stderr.splitlines()[-1]
    assert code == 2 and "none holds no checkpoint: " in said
    with pytest.raises(SystemExit):
        cli.main([name, "--help"])
    assert set(re.findall(r"--[a-z-]+", said)) <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))


@pytest.mark.parametrize("time_us", [2.076514, 1.00045, 0.99995, 12.34449999])
def test_a_time_out_of_a_table_is_printed_as_the_one_that_was_measured(time_us: float, capsys) -> None:
    output.print_table(("median_us",), [(time_us,), (round(time_us, 4),)])
    _, measured, kept = capsys.readouterr().out.split()
    assert measured == kept
