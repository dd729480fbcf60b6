"""scripts/counters.py: ours beside the library, an example of the guard rules, and the page that ships."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import pytest
from fabricated_recording import FINGERPRINT
from test_counters import profile, write
from test_table import SMALL, row

from cudal2.errors import RecordError
from cudal2.paths import data_dir
from cudal2.problem import Problem
from cudal2.records.counters import ProfileBook
from cudal2.records.recording import read_records
from cudal2.records.shards import RecordLog
from cudal2.report.board import boards

ROOT = Path(__file__).parents[1]
COUNTERS = data_dir() / "counters"
_SPEC = importlib.util.spec_from_file_location("counters", ROOT / "scripts" / "counters.py")
assert _SPEC is not None and _SPEC.loader is not None
script = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(script)


def of(mnk: str, config=SMALL, **values):  # type: ignore[no-untyped-def]
    contestant = "sm90_ws" if config else "cublaslt_heuristic_tn"
    return dataclasses.replace(profile(config, contestant=contestant, **values), problem=Problem.parse(mnk))


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A shape won, with counters of ours and of the library; another with ours alone."""
    with RecordLog(tmp_path / "finals", FINGERPRINT) as log:
        log.append([row("512_512_512", SMALL, [4.0] * 3, [5.0] * 3), row("512_512_1024", SMALL, [4.0] * 3, [5.0] * 3)])
    write(
        tmp_path / "counters",
        of("512_512_512", l2_hit_rate=0.5, tensor_active=0.913),
        of("512_512_512", None, l2_hit_rate=0.62),
        of("512_512_1024", l2_hit_rate=0.95),
    )
    return tmp_path


def run(monkeypatch, *arguments: object) -> int:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("sys.argv", ["counters.py", *map(str, arguments)])
    return int(script.cli.guarded(script.main))


def test_ours_stands_beside_the_library_and_the_rules_say_what_they_took(measured, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    page = measured / "page.md"
    page.write_text(f"above\n{script.BEGIN}\nold\n{script.END}\nbelow\n")
    given = ("--counters", measured / "counters", "--finals", measured / "finals")
    assert run(monkeypatch, *given) == 0
    shown = capsys.readouterr().out.strip()
    (line,) = [line for line in shown.splitlines() if line.startswith("| 512_")]
    assert line == f"| 512_512_512 | 2.2 | {SMALL.name} | 50 / 62 | - / - | - / - | 91 / - | - / - | - / - |"
    assert "fabricated for tests" in shown and "Nsight Compute 2025.3" in shown
    assert "guards default: l2_hit_rate below 0.8: took 1 of 2 kernels, which now take 1.250x" in shown
    assert f"L2 hit rate under 80 %: {SMALL.name} has l2_hit_rate 0.500" in shown.splitlines()[-2]
    assert run(monkeypatch, *given, "--page", page) == 0
    assert page.read_text() == f"above\n{script.BEGIN}\n{shown}\n{script.END}\nbelow\n"


def test_what_cannot_be_shown_is_one_line(measured, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    assert run(monkeypatch, "--counters", measured / "none") == RecordError.exit_code
    assert run(monkeypatch, "--counters", measured / "counters", "--finals", measured / "none") == RecordError.exit_code
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2 and errors[0].endswith("none: no such file or directory")
    assert errors[1].count("error: ") == 1 and errors[1].endswith("none: no such recording")


def test_the_page_says_what_the_counters_that_ship_say() -> None:
    book = ProfileBook.load(COUNTERS)
    page = (ROOT / "docs" / "counters.md").read_text()
    section = page[page.index(script.BEGIN) + len(script.BEGIN) : page.index(script.END)]
    assert section.strip().splitlines() == [*script.table(book), "", *script.example(COUNTERS, data_dir() / "finals")]


def test_counters_ship_of_ours_and_of_the_library_in_every_class_of_shape() -> None:
    book = ProfileBook.load(COUNTERS)
    pairs = script.beside_library(book)
    assert len(pairs) >= 12 and {one.cache_control for one in book.profiles()} == {"all"}
    floors = sorted(script.floor_of(problem) for problem in pairs)
    for low, high in ((0.0, 2.3), (2.3, 10.0), (10.0, 100.0), (100.0, 1e3), (1e3, 1e9)):
        assert sum(low <= floor < high for floor in floors) >= 2, (low, high)
    for ours, theirs in pairs.values():
        assert None not in (ours.counters.l2_hit_rate, theirs.counters.l2_hit_rate, ours.counters.tensor_active)
    finals = read_records(data_dir() / "finals", allow_mixed=True)
    assert book.fingerprint is not None and book.fingerprint.gpu in {one.gpu for one in finals.fingerprints}


def test_where_the_tensor_cores_set_the_floor_counters_and_finals_are_as_near_as_the_page_says() -> None:
    page = (ROOT / "docs" / "counters.md").read_text()
    pairs = script.beside_library(ProfileBook.load(COUNTERS))
    first = script.floor_of(Problem.parse("2048_2048_12288"))
    below = {problem: pair for problem, pair in pairs.items() if script.floor_of(problem) >= first}
    busy = [[f"{100 * one.counters.tensor_active:.0f}" for one in side] for side in zip(*below.values(), strict=True)]
    ours, theirs = (f"{min(side)} to {max(side)} %" for side in busy)
    assert f"busy {ours} of the time and cuBLASLt {theirs}" in page
    standings = [board.standing() for board in boards(read_records(data_dir() / "finals", True).measurements)]
    shapes = [one.by_problem[problem] for one in standings for problem in below if problem in one.by_problem]
    assert len(shapes) == 2 * len(below) and "the times are within 5 % of each other" in page
    assert all(abs(shape.ratio - 1.0) < 0.05 for shape in shapes)
