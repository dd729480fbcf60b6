"""Attempts to make the report flatter than the measurements: each is refused, or changes nothing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fabricated_finals import CONFIG, final_rows, grid_finals, row
from fabricated_recording import FINGERPRINT

from cudal2.cli import main as cli
from cudal2.errors import RecordError
from cudal2.paths import data_dir
from cudal2.records import finals
from cudal2.records.finals import Final, latest_finals
from cudal2.records.measurement import Measurement
from cudal2.records.recording import read_records
from cudal2.records.shards import RecordLog
from cudal2.report import notes, readme, summary
from cudal2.report.board import boards
from cudal2.report.page import page
from cudal2.report.serving import figures, load_latencies, server_boards
from cudal2.report.spread import judge

AUTO = ("offline/fp32/off", "cublaslt_auto")
WON, LOST = final_rows("64_64_64", 1.0, {"cublaslt_auto": 2.0}), final_rows("64_64_128", 2.0, {"cublaslt_auto": 1.0})


def auto(rows: list[Measurement]) -> dict[str, Any]:
    board, baseline = AUTO
    return summary.summarise(rows)[board][baseline]


def written(folder: Path, *sessions: tuple[dict[str, Any], list[Measurement]]) -> Path:
    for changes, rows in sessions:
        with RecordLog(folder, replace(FINGERPRINT, **changes)) as log:
            log.append(rows)
    return folder


def unserved(mnk: str) -> list[Measurement]:
    return [*final_rows(mnk, None, {"cublaslt_auto": 2.0}), row(mnk, "sm90_ws", (), config=CONFIG, reason="NaN")]


def test_a_shape_only_the_library_solved_is_no_win() -> None:
    assert auto(WON)["win"] == 1.0
    found = auto(WON + unserved("64_64_256") + unserved("64_64_512") + unserved("4096_4096_4096"))
    assert (found["n"], found["win"]) == (1, 0.25)
    assert found["by_class"]["<2.3us"]["win"] == pytest.approx(1 / 3)
    nothing = found["by_class"]["0.1-1ms"]
    assert (nothing["n"], nothing["geomean"], nothing["win"], nothing["unserved"]) == (0, None, 0.0, 1)


def test_a_later_failure_is_not_covered_up_by_an_earlier_win() -> None:
    later = [replace(one, utc="2001-01-01T00:00:00+00:00") for one in unserved("64_64_64")]
    for rows in (WON + LOST + later, later + LOST + WON):
        assert (auto(rows)["n"], auto(rows)["win"]) == (1, 0.0)


def test_the_latest_final_counts_and_not_the_luckiest() -> None:
    lucky = final_rows("64_64_64", 0.5, {"cublaslt_auto": 2.0}, utc="1999-01-01T00:00:00+00:00")
    assert auto(WON + lucky) == auto(lucky + WON) == auto(WON)


def test_what_a_shape_said_before_it_was_judged_again_stands_in_every_form(tmp_path: Path, capsys) -> None:
    first = final_rows("64_64_64", 4.0, {"cublaslt_auto": 2.0}, utc="1999-01-01T00:00:00+00:00")
    said = "1 shape judged more than once: the newest final counts."
    for rows, shown in ((WON + LOST + first, True), (WON + LOST, False)):
        folder = written(tmp_path / f"again-{shown}", ({}, rows))
        found = summary.load_finals(folder)
        forms = [readme.results_markdown(found), page(found, {}, "")]
        for form in ((), ("--losses",), ("--json",)):
            assert cli.main(["report", "--finals", str(folder), *form]) == 0
            forms.append(capsys.readouterr().err)
        for text in forms:
            assert (said in text) == shown
            assert ("offline/fp32/off 0.500, 0 / 0 / 2." in text) == shown
    assert auto(WON + LOST + first) == auto(WON + LOST)


def test_what_was_judged_again_is_found_in_one_grouping(monkeypatch: pytest.MonkeyPatch) -> None:
    first = final_rows("64_64_64", 4.0, {"cublaslt_auto": 2.0}, utc="1999-01-01T00:00:00+00:00")
    groupings = []
    group = finals.group_finals
    for module in (finals, notes):
        monkeypatch.setattr(module, "group_finals", lambda rows: groupings.append(1) or group(rows))
    assert notes.judged_again(WON + first) and len(groupings) == 1


def test_one_lucky_round_moves_no_median() -> None:
    lucky = [replace(one, times_us=(0.01, *one.times_us[1:])) if one.config else one for one in LOST]
    assert auto(lucky)["geomean"] == auto(LOST)["geomean"]


def test_duplicates_count_once(tmp_path: Path) -> None:
    folder = written(tmp_path / "finals", ({}, WON + LOST))
    (shard,) = folder.glob("*.jsonl")
    once = summary.summarise(summary.load_finals(folder).measurements)
    shutil.copy(shard, folder / f"copy-of-{shard.name}")
    assert summary.summarise(summary.load_finals(folder).measurements) == once


def test_a_search_is_no_final() -> None:
    searched = [row("64_64_256", "sm90_ws", [0.001] * 9, config=CONFIG)]
    assert auto(WON + searched) == auto(WON)


@pytest.mark.parametrize("changes", [{"sm_count": 114}, {"memory_gib": 80}, {"capability": (9, 1)}, {"protocol": 2}])
def test_other_gpus_and_protocols_are_not_averaged_with_ours(tmp_path: Path, changes: dict[str, Any], capsys) -> None:
    folder = written(tmp_path / "finals", ({}, LOST), (changes, WON))
    with pytest.raises(RecordError, match="folder of its own"):
        summary.load_finals(folder)
    assert cli.main(["report", "--finals", str(folder)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_another_driver_may_stand_beside_ours(tmp_path: Path) -> None:
    folder = written(tmp_path / "finals", ({}, LOST), ({"driver": "1", "generator_version": "x"}, WON))
    assert auto(list(summary.load_finals(folder).measurements))["n"] == 2


def test_rounds_that_were_dropped_are_noticed(tmp_path: Path) -> None:
    picked = [replace(one, times_us=one.times_us[:5]) if one.config else one for one in LOST]
    with pytest.raises(RecordError, match="5 rounds of ours, 9 of cublaslt_auto"):
        summary.summarise(picked)
    assert cli.main(["report", "--finals", str(written(tmp_path / "finals", ({}, picked)))]) == 2


def test_accumulators_modes_and_launch_settings_are_never_mixed() -> None:
    other = final_rows("64_64_64", 0.1, {"cublaslt_auto": 2.0}, acc="fp16")
    other += final_rows("64_64_64", 0.1, {"cublaslt_auto": 2.0}, pdl=True)
    assert auto(LOST + other) == auto(LOST)
    assert len(summary.summarise(LOST + other)) == 3


def hidden_losses() -> list[Measurement]:
    """Eight tiny shapes 40 % faster, two of the largest at two thirds: means above 1, most of the time lost."""
    tiny = [final_rows(f"64_64_{64 * step}", 2.0, {"cublaslt_auto": 2.8}) for step in range(1, 9)]
    large = [final_rows(f"{size}_8192_8192", 3000.0, {"cublaslt_auto": 2000.0}) for size in (8192, 16384)]
    return [one for rows in (*tiny, *large) for one in rows]


def test_losses_that_a_mean_hides_are_in_the_headline_of_every_form(tmp_path: Path, capsys) -> None:
    found = auto(hidden_losses())
    assert found["geomean"] > 1.2 and found["mean"] > 1.25, "or this test is about nothing"
    assert (found["lost"], found["slower_5pct"], found["min"]) == (2, 0.2, pytest.approx(2 / 3))
    assert found["total_theirs_us"] / found["total_ours_us"] < 0.7
    folder = written(tmp_path / "finals", ({}, hidden_losses()))
    shards = summary.load_finals(folder)

    (headline,) = (line for line in readme.results_markdown(shards).splitlines() if line.startswith("| off"))
    cells = [cell.strip() for cell in headline.strip("|").split("|")]
    assert cells[3:9] == ["1.207", "1.253", "8 / 0 / 2", "20%", "20%", "0.667"] and cells[-1] == "0.667"

    assert cli.main(["report", "--finals", str(folder)]) == 0
    title, head, first, *_ = capsys.readouterr().out.splitlines()
    shown = dict(zip(head.split(), first.split(), strict=True))
    assert title.startswith("offline/fp32/off: 10 shapes, 0 unserved")
    assert [shown[name] for name in ("geomean", "worst", "lost", "lost%", ">5%slower", "total")] == [
        "1.207", "0.667", "2", "20%", "20%", "0.669"
    ]  # fmt: skip

    text = page(shards, {}, "command")
    overview = text[text.index('id="table-overview"') : text.index('id="notes"')]
    assert ">1.207<" in overview and ">0.667<" in overview and ">20%<" in overview
    assert text.index("16384_8192_8192") < text.index('id="shapes-offline-fp32-off"'), "the worst come first"


def mixed(**changes: Any) -> Final:
    """A final put together by hand from rows of two leaderboards."""
    ours = final_rows("64_64_64", 1.0, {})
    theirs = final_rows("64_64_64", None, {"cublaslt_auto": 2.0})
    return Final(ours[0].problem, "offline", False, ours[0].utc, (*ours, replace(theirs[0], **changes)))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"problem": final_rows("64_64_64", 1.0, {}, acc="fp16")[0].problem}, "accumulator fp32 against fp16"),
        ({"problem": final_rows("64_64_128", 1.0, {})[0].problem}, "sizes 64_64_64 against 64_64_128"),
        ({"mode": "server"}, "mode offline against server"),
        ({"pdl": True}, "PDL False against True"),
    ],
)
def test_a_speedup_across_leaderboards_is_refused(changes: dict[str, Any], why: str) -> None:
    assert judge(mixed(), "cublaslt_auto") is not None
    with pytest.raises(RecordError, match=why):
        judge(mixed(**changes), "cublaslt_auto")


@pytest.mark.parametrize("flag", ["allow_fp16_accumulation", "allow_fp16_reduced_precision_reduction"])
def test_a_torch_that_sums_in_fp16_is_no_rival_of_fp32(flag: str, tmp_path: Path) -> None:
    honest, loose = (final_rows("64_64_64", 1.0, {"torch": 2.0}, detail=f"{flag}={on}") for on in (False, True))
    assert summary.summarise(honest)["offline/fp32/off"]["torch"]["n"] == 1
    with pytest.raises(RecordError, match=f"{flag}=True|fp32 sums"):
        summary.summarise(loose)
    assert cli.main(["report", "--finals", str(written(tmp_path / "finals", ({}, loose)))]) == 2
    fp16 = final_rows("64_64_64", 1.0, {"torch": 2.0}, acc="fp16", detail=f"{flag}=True")
    assert summary.summarise(fp16)["offline/fp16/off"]["torch"]["n"] == 1


def test_optional_contestants_count_on_the_shapes_they_were_entered_on() -> None:
    rows = final_rows("64_64_64", 1.0, {"cublaslt_auto": 2.0, "quack": 4.0, "foreign:fast": 0.5})
    rows += final_rows("64_64_128", 1.0, {"cublaslt_auto": 2.0, "quack": 1.0})
    rows += [*final_rows("64_64_256", 1.0, {"cublaslt_auto": 2.0}), row("64_64_256", "quack", (), reason="no")]
    (board,) = boards(rows)
    found = {one.baseline: (one.overall.n, one.entered, one.overall.geomean) for one in board.standings}
    assert found == {
        "cublaslt_auto": (3, 3, pytest.approx(2.0)),
        "quack": (2, 3, pytest.approx(2.0)),
        "foreign:fast": (1, 1, pytest.approx(0.5)),
    }
    (quack,) = (one for one in board.standings if one.baseline == "quack")
    assert quack.overall.ours_us == 2.0, "totals are over the same shapes on both sides"
    # In our place, against the reference: half as fast, twice as fast, and one shape failed.
    quack, foreign = (one.overall for one in board.rivals)
    assert (quack.n, quack.win, quack.loss, quack.unserved, quack.worst) == (2, 1, 1, 1, pytest.approx(0.5))
    assert (foreign.n, foreign.win, foreign.worst) == (1, 1, pytest.approx(4.0))


def test_foreign_kernels_have_their_figures_where_none_of_ours_ran(tmp_path: Path, capsys) -> None:
    rows = final_rows("64_64_64", None, {"cublaslt_auto": 2.0, "foreign:fast": 1.0})
    (board,) = boards(rows)
    assert board.standings == () and [one.baseline for one in board.rivals] == ["foreign:fast"]
    folder = written(tmp_path / "finals", ({}, rows))
    assert cli.main(["report", "--finals", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "1 unserved" in out and "foreign:fast       1    2.000" in out
    text = page(summary.load_finals(folder), {}, "command")
    assert 'id="rivals-offline-fp32-off"' in text and "No kernel of ours has a time on this leaderboard" in text


def test_the_readme_does_not_grow_with_the_shapes(tmp_path: Path) -> None:
    few, many = (
        readme.results_markdown(summary.load_finals(written(tmp_path / str(count), ({}, grid_finals(count)))))
        for count in (12, 96)
    )
    assert len(many.splitlines()) == len(few.splitlines())
    bullet = next(line for line in many.splitlines() if line.startswith("- PDL off:"))
    assert bullet.count("PDL o") == 2, "both columns in a line"
    assert bullet.count("_") <= 2 * 2 * 5 * 2, "five lost shapes and five unserved ones by name, the rest counted"
    assert " more" in bullet and "No kernel of ours ran on:" in bullet


def test_the_readme_says_what_its_summary_leaves_out() -> None:
    """Who found the winners, and what makes the difference in server mode."""
    newest = latest_finals(summary.load_finals().measurements)
    chosen = [
        (final.problem, final.ours.config) for final in newest.values() if final.problem.acc == "fp32" and final.ours
    ]
    rows = read_records(data_dir() / "searched" / "h200_sm90_fp32_tn.parquet").measurements
    proposed = {(one.problem, one.config) for one in rows}
    assert sum(one in proposed for one in chosen) < 0.1 * len(chosen)
    standings = [board.standing() for board in server_boards(load_latencies().rows)]
    assert standings and all(
        one is not None and abs(figures(one.shapes)["device"].ratio - 1.0) < 0.05 for one in standings
    )
    text = " ".join((Path(__file__).parents[1] / "README.md").read_text().split())
    assert "The policy proposed few of the winners below" in text
    assert "the submission makes the difference, device times are 3 % less to 5 % more" in text
