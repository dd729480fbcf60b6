"""Finals and servings of B as [K,N] never stand in the place of those of B as [N,K], in whatever form."""

from dataclasses import replace

import pytest
from fabricated_finals import final_rows
from fabricated_recording import FINGERPRINT
from fabricated_servings import serving_rows

from cudal2.cli.main import main
from cudal2.errors import RecordError
from cudal2.records.finals import group_finals, latest_finals
from cudal2.records.latency import KIND
from cudal2.records.shards import RecordLog, Rows, Shards
from cudal2.report import readme
from cudal2.report.notes import judged_again
from cudal2.report.page import page
from cudal2.report.serving import server_boards
from cudal2.report.spread import check_comparable
from cudal2.report.summary import load_finals, summarise, summarise_servings
from cudal2.table import KernelTable


def nn(rows):
    return [replace(row, problem=replace(row.problem, layout="nn")) for row in rows]


OLD, NEW = "2000-01-01T00:00:00+00:00", "2000-01-02T00:00:00+00:00"
TN = final_rows("64_64_64", 1.0, {"cublaslt_auto": 2.0}, utc=OLD)
NN = nn(final_rows("64_64_64", 1.0, {"cublaslt_auto": 0.5}, utc=NEW))


@pytest.fixture
def folder(tmp_path):
    with RecordLog(tmp_path / "finals", FINGERPRINT) as log:
        log.append(TN + NN)
    return tmp_path / "finals"


def test_a_newer_final_of_the_other_layout_replaces_nothing_and_makes_a_board_of_its_own():
    for rows in (TN + NN, NN + TN):
        assert len(latest_finals(rows)) == 2
        found = {key: board["cublaslt_auto"] for key, board in summarise(rows).items()}
        assert found["offline/fp32/off"] == summarise(TN)["offline/fp32/off"]["cublaslt_auto"]
        assert found["offline/fp32/off"]["geomean"] == pytest.approx(2.0)
        assert found["offline/fp32-nn/off"]["geomean"] == pytest.approx(0.5)
    assert judged_again(TN + NN) == "", "no shape was judged twice"


def test_every_problem_mode_and_setting_has_its_own_key():
    rows = [row for acc in ("fp32", "fp16") for pdl in (False, True) for row in final_rows(
        "64_64_64", 1.0, {"torch": 2.0}, acc=acc, pdl=pdl)]  # fmt: skip
    rows += [replace(row, problem=replace(row.problem, dtype="bf16")) for row in rows if row.problem.acc == "fp32"]
    rows += nn(rows)
    rows += [replace(row, mode="server") for row in rows]
    kinds = {(row.problem, row.mode, row.pdl) for row in rows}
    assert len(latest_finals(rows)) == len(group_finals(rows)) == len(kinds) == 24


def test_every_form_says_which_layout(folder, tmp_path, capsys):
    shards = load_finals(folder)
    for text in (readme.results_markdown(shards), page(shards, {}, "")):
        assert "Offline, fp32 accumulation, B as [K,N]" in text and text.count("B as [K,N]") < text.count("fp32 accum")
    assert main(["report", "--finals", str(folder), "--losses"]) == 0
    shown = capsys.readouterr().out
    assert "offline/fp32-nn/off" in shown and "offline/fp32/off" in shown
    assert main(["report", "--finals", str(folder), "--csv", str(tmp_path / "csv")]) == 0
    assert {path.name for path in (tmp_path / "csv").iterdir()} == {"offline-fp32-off.csv", "offline-fp32-nn-off.csv"}
    assert all(len(path.read_text().splitlines()) == 2 for path in (tmp_path / "csv").iterdir())


def test_a_table_is_listed_with_the_finals_of_its_layout_if_there_are_any():
    tables = [KernelTable.from_measurements(TN + NN, FINGERPRINT, layout=layout) for layout in ("tn", "nn")]

    def sections(rows):
        text = readme.results_markdown(Shards((FINGERPRINT,), tuple(rows)), tables)
        return [[table.header.kind in part for table in tables] for part in text.split("### ")[1:]]

    assert sections(TN + NN) == [[True, False], [False, True]]
    assert sections(TN) == [[True, True]]


def test_no_speed_up_is_given_across_layouts():
    with pytest.raises(RecordError, match="layout tn against nn"):
        check_comparable(TN[0], NN[1])


def test_servings_of_two_layouts_are_never_mixed(tmp_path):
    rows = serving_rows("64_64_64", 10.0, {"cublaslt_auto": 20.0})
    other = nn(serving_rows("64_64_64", 20.0, {"cublaslt_auto": 10.0}))
    found = summarise_servings(server_boards([*other, *rows]))
    assert found["server/fp32/warm@1000"] == summarise_servings(server_boards(rows))["server/fp32/warm@1000"]
    assert found["server/fp32-nn/warm@1000"]["cublaslt_auto"]["geomean"] == pytest.approx(0.5, rel=0.05)
    text = readme.results_markdown(Shards((), ()), (), Rows((FINGERPRINT,), tuple(rows + other)))
    assert "### Server, fp32 accumulation\n" in text and "### Server, fp32 accumulation, B as [K,N]\n" in text
    with RecordLog(tmp_path, FINGERPRINT) as log:
        for row in rows + other:
            log.write_row(KIND, row.to_dict())
    assert main(["report", "--latency", str(tmp_path)]) == 0
