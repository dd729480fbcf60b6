"""Attempts to make the report flatter than the measurements: each is refused, or changes nothing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fabricated_finals import CONFIG, final_rows, row
from fabricated_recording import FINGERPRINT

from cudal2.cli import main as cli
from cudal2.errors import RecordError
from cudal2.records.measurement import Measurement
from cudal2.records.shards import RecordLog
from cudal2.report import summary

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
    assert found["by_class"]["0.1-1ms"] == {"n": 0, "geomean": None, "win": 0.0}


def test_a_later_failure_is_not_covered_up_by_an_earlier_win() -> None:
    later = [replace(one, utc="2001-01-01T00:00:00+00:00") for one in unserved("64_64_64")]
    for rows in (WON + LOST + later, later + LOST + WON):
        assert (auto(rows)["n"], auto(rows)["win"]) == (1, 0.0)


def test_the_latest_final_counts_and_not_the_luckiest() -> None:
    lucky = final_rows("64_64_64", 0.5, {"cublaslt_auto": 2.0}, utc="1999-01-01T00:00:00+00:00")
    assert auto(WON + lucky) == auto(lucky + WON) == auto(WON)


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
