"""Runs of the bench scripts: how they are kept, and what of them the README shows."""

import argparse
import ast
import importlib.util
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from cudal2.cli.benchmark import add_output, command, finish
from cudal2.errors import RecordError
from cudal2.problem import Problem
from cudal2.records.benchmark import Benchmark, load_benchmarks, processor
from cudal2.report.speed import BARS, search_markdown, shipped_benchmarks, speed_markdown

SCRIPTS = Path(__file__).parents[1] / "scripts"
BUILD = {
    "warm_wall_s": 0.7, "warm_wall_max_s": 0.9, "plain_wall_s": 1.2, "kernels": 224, "wall_s": 20.04, "jobs": 16,
    "failed": 0,
}  # fmt: skip
SCORES = [
    {"strategy": name, "budget": budget, "geomean_ratio": ratio}
    for name, ratios in {"random": (0.5, 0.75), "policy": (1.0, 1.25)}.items()
    for budget, ratio in zip((1, 16), ratios, strict=True)
]


def benchmark(name, figures):
    return Benchmark(name, f"python scripts/bench_{name}.py", "2000-01-02T03:04:05+00:00", "Test, 1 core", "0", figures)


def test_a_run_is_kept_with_command_date_and_machine_and_printed_as_asked(tmp_path, monkeypatch, capsys):
    parser = argparse.ArgumentParser()
    add_output(parser)
    out = tmp_path / "new" / "build.json"
    monkeypatch.setattr(
        "sys.argv", ["/somewhere/scripts/bench_build.py", "--json", "--kernels", "3", "--out", str(out)]
    )
    finish("build", {"kernels": 3}, "three", parser.parse_args(["--json", "--out", str(out)]))
    assert json.loads(capsys.readouterr().out) == {"kernels": 3}
    (kept,) = load_benchmarks(out.parent).values()
    assert kept.name == "build" and kept.figures == {"kernels": 3} and kept.machine == processor()
    assert kept.command == "python scripts/bench_build.py --kernels 3"
    finish("build", {"kernels": 3}, "three", parser.parse_args([]))
    assert capsys.readouterr().out == "three\n"


def test_a_recorded_command_names_no_place_of_the_machine():
    argv = ["scripts/bench_x.py", "--out", "/a/b.json", "--cache-dir=/c", "--records", "/d", "--steps", "4", "--json"]
    assert command(argv) == "python scripts/bench_x.py --steps 4"


def test_a_damaged_record_is_named_and_none_at_all_is_fine(tmp_path):
    assert load_benchmarks(tmp_path / "absent") == {}
    undated = [json.dumps({**asdict(benchmark("build", {})), "utc": utc}) for utc in ("", "x", "2026-13-01", None, 5)]
    for text in ("{", '{"name": "build"}', *undated):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(RecordError, match=r"bad\.json is no benchmark record"):
            load_benchmarks(tmp_path)


def test_a_benchmark_that_was_not_run_has_no_row():
    assert speed_markdown({}) == search_markdown({}) == ""
    text = speed_markdown({"build": benchmark("build", BUILD)})
    assert (
        "| 0.70 s, at most 0.90 s (1.20 s without the precompiled header) | `python scripts/bench_build.py` |" in text
    )
    assert "| 224 in 20.0 s on 16 | `python scripts/bench_build.py` | 2000-01-02, Test, 1 core |" in text
    assert "steps/s" not in text and "GPU-hour" not in text
    failed = speed_markdown({"build": benchmark("build", {**BUILD, "failed": 2})})
    assert "224 in 20.0 s on 16, 2 failed" in failed and "missed" not in failed
    slow = speed_markdown({"build": benchmark("build", {**BUILD, "wall_s": 61.0})})
    assert slow.count("missed") == 1 and "| **missed:** 224 in 61.0 s on 16 |" in slow


def test_a_run_that_was_cut_short_keeps_what_it_has_and_is_shown_as_far_as_it_goes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench_judge.py"])
    monkeypatch.syspath_prepend(SCRIPTS)
    script = importlib.import_module("bench_judge")
    found = script.Found(argparse.Namespace(out=tmp_path / "judge.json", json=False), "Test, 1 GPU")
    found.add(overhead_ms=4.0, overhead_max_ms=4.5, steps=[{"shape": "64_64_64", "overhead_ms": 4.0}])
    kept = load_benchmarks(tmp_path)
    text = speed_markdown(kept)
    assert "4.0 ms, at most 4.5, 1 shapes" in text and "full judgement" not in text
    assert "a search step's overhead: 4.0 ms" in script.text(found.figures) and "alone" not in script.text(
        found.figures
    )
    found.add(judged=1, together_s=2.5, each_s=2.5)
    found.add(alone_s={"64_64_64": 4.2}, alone_median_s=4.2)
    assert "2.5 s each for 1 shapes together" in speed_markdown(load_benchmarks(tmp_path))
    assert "64_64_64 4.20" in script.text(found.figures)


def test_the_search_table_has_a_row_per_strategy_and_says_what_could_be_found():
    figures = {"shapes": 8, "folds": 4, "scores": SCORES, "optimum": {"geomean_ratio": 1.5}}
    text = search_markdown({"search": benchmark("search", figures)})
    assert "| strategy | B = 1 | B = 16 |" in text
    assert "| policy | 1.000 | 1.250 |" in text and "| random | 0.500 | 0.750 |" in text
    assert "8 recorded shapes" in text and "What there is to find: 1.500." in text


def test_every_shipped_record_reads_and_its_command_is_a_script_of_this_tree():
    shipped = load_benchmarks(shipped_benchmarks())
    assert {"replay", "search"} <= set(shipped)
    for run in shipped.values():
        assert (SCRIPTS.parent / run.command.split()[1]).is_file()
    for bar in BARS:
        if bar.benchmark in shipped:
            assert bar.reached(shipped[bar.benchmark].figures)
    assert search_markdown(shipped)


@pytest.mark.parametrize("script", ["bench_replay", "bench_search"])
def test_a_script_that_cannot_run_says_why_in_one_line(script, tmp_path):
    command = [sys.executable, SCRIPTS / f"{script}.py", "--recording", "no.parquet"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("error: no.parquet") and ran.stderr.count("\n") == 1


def test_every_script_does_something_when_it_is_run():
    for path in SCRIPTS.glob("*.py"):
        last = ast.parse(path.read_text()).body[-1]
        assert isinstance(last, ast.If) and ast.unparse(last.test) == "__name__ == '__main__'", path.name
        assert "guarded(main)" in ast.unparse(last.body[-1]), path.name


@pytest.mark.parametrize("part", ["device_gaps", "graph_costs"])
def test_a_part_of_a_script_names_the_script(part, tmp_path):
    assert f"from {part} import " in (SCRIPTS / "step_breakdown.py").read_text()
    ran = subprocess.run([sys.executable, SCRIPTS / f"{part}.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert ran.stderr.startswith(f"error: scripts/{part}.py is a part of scripts/step_breakdown.py")


def test_the_search_benchmark_asks_what_was_made_of_other_shapes():
    spec = importlib.util.spec_from_file_location("bench_search", SCRIPTS / "bench_search.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    asked = []

    def made_from(seen):
        return lambda session, rng: asked.append((session.problem, seen))

    problems = tuple(Problem(64 * size, 64, 64) for size in range(1, 8))
    strategy = module.held_out(SimpleNamespace(problems=problems), 3, made_from)
    for problem in problems:
        strategy(SimpleNamespace(problem=problem), None)
    assert [problem for problem, _ in asked] == list(problems)
    assert all(problem not in seen and len(seen) >= 4 for problem, seen in asked)
