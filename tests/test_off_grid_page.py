"""scripts/off_grid.py: finals by kind of rows, and the page that ships, which hides no loss."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import pytest
from fabricated_finals import final_rows
from fabricated_recording import FINGERPRINT

from cudal2.errors import RecordError
from cudal2.paths import data_dir
from cudal2.problem import Problem
from cudal2.records.recording import read_records
from cudal2.records.shards import Shards
from cudal2.report.board import Board
from cudal2.report.spread import Judged
from cudal2.settings import load_shapes
from cudal2.table import KernelTable

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "off_grid.md").read_text()
_SPEC = importlib.util.spec_from_file_location("off_grid", ROOT / "scripts" / "off_grid.py")
assert _SPEC is not None and _SPEC.loader is not None
script = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(script)


@pytest.fixture(scope="module")
def shipped() -> Shards:
    return script.load(data_dir() / "off_grid")


@pytest.fixture(scope="module")
def board(shipped: Shards) -> Board:
    return script.only_board(shipped)


def run(monkeypatch, *arguments: object) -> int:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("sys.argv", ["off_grid.py", *map(str, arguments)])
    return int(script.guarded(script.main))


def words(page: str) -> str:
    return " ".join((ROOT / page).read_text().split())


def line_of(lines: list[str], first: str) -> str:
    (line,) = [line for line in lines if line.startswith(f"| {first} |")]
    return line


def standing_of(board: Board) -> list[Judged]:
    standing = board.standing()
    assert standing is not None
    return list(standing.shapes)


def test_rows_are_told_apart_by_what_tma_and_the_sectors_make_of_them() -> None:
    kinds = {
        "64_64_80": script.WHOLE,
        "65_64_88": script.OFF,
        "65_63_88": script.UNSTORED,
        "64_64_84": script.UNREAD,
        "64_64_81": script.UNREAD,
    }
    assert {mnk: script.kind_of(Problem.parse(mnk)) for mnk in kinds} == kinds
    assert script.kind_of(Problem(64, 72, 80, layout="nn")) == script.OFF
    assert script.kind_of(Problem(64, 65, 80, layout="nn")) == script.UNREAD


def test_wins_losses_and_what_none_of_ours_solved_stand_where_they_belong() -> None:
    rows = [
        *final_rows("512_512_512", 4.0, {"cublaslt_auto_tn": 8.0, "torch": 8.0}, pdl=True),
        *final_rows("512_512_504", 5.0, {"cublaslt_auto_tn": 4.0, "torch": 8.0}, pdl=True),
        *final_rows("128_512_504", 4.0, {"cublaslt_auto_tn": 8.0, "torch": 2.0}, pdl=True),
        *final_rows("512_512_501", None, {"cublaslt_auto_tn": 4.0, "torch": 8.0}, pdl=True),
        *final_rows("128_512_501", 8.0, {"cublaslt_auto_tn": 8.0}, pdl=True),
    ]
    lines = script.section(Shards((FINGERPRINT,), tuple(rows)))
    assert lines[0].startswith("Offline, fp32 accumulation, our PDL on. ") and FINGERPRINT.gpu in lines[0]
    assert (
        line_of(lines, "whole sectors")
        == "| whole sectors | 1 | 2.000 | 1 / 0 / 0 | 2.000 | 2.000 | 1 / 0 / 0 | 2.000 |"
    )
    assert line_of(lines, "off sectors").startswith("| off sectors | 2 | 1.265 | 1 / 0 / 1 | 0.800 |")
    assert line_of(lines, "TMA cannot read") == "| TMA cannot read | 2 | 1.000 | 0 / 1 / 1 | 1.000 | - | - | - |"
    assert line_of(lines, "all").startswith("| all | 5 |") and line_of(lines, "drawn at random").count(" - ") == 6
    (lost,) = [line for line in lines if line.startswith("Lost to ")]
    assert lost.startswith(
        "Lost to cuBLASLt-AutoTuning, worst first: 512_512_504 0.800. None of ours ran on 512_512_501:"
    )
    assert line_of(lines, "512_512_504").endswith(" | 5.00 | 4.00 | 0.800 [0.792, 0.808] | **lost** | 1.600 |")
    assert line_of(lines, "128_512_504").endswith("| won | 0.500 **lost** |")
    assert line_of(lines, "128_512_501").endswith("| tied | - |")
    order = [line.split()[1] for line in lines if line.startswith(("| 512_", "| 128_"))]
    assert order == ["512_512_512", "512_512_504", "128_512_504", "128_512_501"]


def test_what_cannot_be_shown_is_one_line(tmp_path: Path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    assert run(monkeypatch, "--finals", tmp_path) == RecordError.exit_code
    assert "no finals here" in capsys.readouterr().err
    both = [row for pdl in (False, True) for row in final_rows("64_64_64", 1.0, {"cublaslt_auto_tn": 2.0}, pdl=pdl)]
    with pytest.raises(RecordError, match="offline/fp32/off, offline/fp32/on"):
        script.only_board(Shards((FINGERPRINT,), tuple(both)))


def test_the_page_is_what_the_script_makes_of_the_finals_that_ship(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    copy = tmp_path / "off_grid.md"
    copy.write_text(PAGE)
    assert run(monkeypatch, "--page", copy) == 0
    assert copy.read_text() == PAGE, "run `python scripts/off_grid.py --page docs/off_grid.md`"


def test_the_page_shows_every_loss(board: Board) -> None:
    standing = board.standing()
    assert standing is not None and len(standing.shapes) == len(board.finals) == 172 and not board.unserved
    lost = {shape.problem.mnk: shape.ratio for shape in standing.losses}
    said, *_ = (line for line in PAGE.splitlines() if line.startswith("Lost to cuBLASLt-AutoTuning"))
    assert said.endswith(": " + ", ".join(f"{mnk} {ratio:.3f}" for mnk, ratio in lost.items()) + ".")
    shown = {line.split()[1] for line in PAGE.splitlines() if "] | **lost** |" in line}
    assert lost and shown == set(lost)


def test_the_page_says_which_shapes_were_chosen_how(board: Board) -> None:
    problems = {final.problem for final in board.finals}
    names = (script.DRAWN, script.SERVED, script.SERVED_ODD, script.SERVED_K)
    sets = drawn, served, odd, odd_k = [set(load_shapes(name).problems()) for name in names]
    assert set().union(*sets) <= problems and len(set().union(*sets)) == sum(map(len, sets))
    assert not problems & set(load_shapes("grid").problems())
    kinds = Counter(map(script.kind_of, problems - served - odd - odd_k))
    by_chance = Counter(map(script.kind_of, drawn))
    assert by_chance == {script.WHOLE: kinds[script.WHOLE], script.OFF: 7, script.UNSTORED: 2, script.UNREAD: 18}
    assert (
        kinds[script.WHOLE] == 24 and len(served) == 18 and "24 of whole sectors, seven off them, two whose C" in PAGE
    )
    assert Counter(map(script.kind_of, odd)) == {script.UNSTORED: 14, script.UNREAD: 10}
    assert f"Of those off sectors {kinds[script.OFF] - 7} were not drawn: " in PAGE
    assert set(map(script.kind_of, odd_k)) == {script.UNREAD} and f"And so do {len(odd_k)} whose K" in PAGE
    unread = {problem for problem in problems - odd - odd_k if script.kind_of(problem) == script.UNREAD}
    assert len(unread - drawn) == 24 and len(unread & set(load_shapes("sm80_odd").problems())) == 13


def test_what_a_kernel_was_chosen_by_stands_in_no_table(board: Board) -> None:
    table = KernelTable.load(data_dir() / "tables" / "h200_fp32_tn.json")
    entries = {final.problem: table.lookup(*map(int, final.problem.mnk.split("_"))) for final in board.finals}
    assert all(entries.values())
    since = {problem: entry for problem, entry in entries.items() if entry is not None and entry.evidence != "final"}
    paths = [
        path
        for kind in ("odd", "unaligned")
        for path in (data_dir() / "searched").glob(f"h200_*_{kind}_swept_fp32_tn*")
    ]
    swept = [row for path in paths for row in read_records(path).measurements]
    for problem, entry in since.items():
        assert any((row.problem, row.config) == (problem, entry.config) for row in swept), "a search found it since"
    selections = sorted((data_dir() / "searched").glob("*_selections_fp32_tn.parquet"))
    chosen_from = {row.problem for path in selections for row in read_records(path).measurements}
    names = (script.SERVED, script.SERVED_ODD, script.SERVED_K)
    served, odd, odd_k = (set(load_shapes(name).problems()) for name in names)
    assert chosen_from - served == set(entries) - served - odd - odd_k and len(chosen_from & served) == 2


def test_other_pages_say_what_the_finals_say(board: Board) -> None:
    groups = script.groups(board)
    readme, kernels = words("README.md"), words("kernels/README.md")
    names = (script.UNREAD, "drawn, TMA cannot read", "drawn at random", "served unseen")
    unread, thin, drawn, served = (script.spread_of(board, "cublaslt_auto", groups[name]) for name in names)
    chance = f"{thin.geomean:.3f}x on the {thin.n} of them that were drawn at random, "
    chance += f"{thin.win} / {thin.tie} / {thin.lost}"
    counts = f"({unread.win} / {unread.tie} / {unread.lost}, worst {unread.worst:.3f}; {chance})"
    assert f"{unread.geomean:.3f}x on {unread.n} such shapes {counts}" in readme
    for found, words_said in (
        (drawn, "drawn at random of all kinds"),
        (served, "that no measurement had seen, of rows that TMA reads"),
        (
            script.spread_of(board, "cublaslt_auto", groups["served unseen, K not a multiple of 8"]),
            "whose K 8 does not divide",
        ),
    ):
        counts = f"({found.win} / {found.tie} / {found.lost})"
        assert f"{found.geomean:.3f}x on {found.n} {words_said} {counts}" in readme
    off = script.spread_of(board, "cublaslt_auto", groups[script.OFF])
    assert f"K is 8 over 16, {off.geomean:.3f}x on {off.n} ({off.win} / {off.tie} / {off.lost})" in readme
    padded = [one for one in standing_of(board) if one.problem in groups["served unseen"]]
    assert not any(getattr(one.ours.config, "padded", False) for one in padded)
    standing = board.standing()
    assert standing is not None and f"finals of {len(board.finals)} shapes off the grid" in readme
    padded = {one.problem for one in standing.shapes if getattr(one.ours.config, "padded", False)}
    found = script.spread_of(board, "cublaslt_auto", padded)
    assert padded < groups[script.UNREAD] and found.geomean is not None
    assert (
        f"of {unread.n} shapes whose rows TMA cannot read it is ours on {found.n}, there {found.geomean:.3f}x"
        in kernels
    )
    assert f"{found.win} won and {found.lost} lost" in kernels
    lost = ", ".join(f"{one.problem.mnk} {one.ratio:.3f}x" for one in standing.losses if one.problem in padded)
    best = ", ".join(f"{one.problem.mnk} {one.ratio:.3f}x" for one in standing.shapes[:-5:-1])
    assert f"it loses: {lost};" in kernels and f"gain most: {best}." in kernels
