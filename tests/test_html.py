"""The page of the finals: that it stands alone, says what the numbers say, escapes what it is given, and draws."""

import base64
import builtins
import csv
import dataclasses
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from fabricated_finals import CONFIG, final_rows, row

from cudal2.cli.main import main
from cudal2.floor import CLASS_NAMES
from cudal2.records.finals import compare_rows
from cudal2.records.fingerprint import Fingerprint
from cudal2.records.shards import RecordLog
from cudal2.records.speedup_csv import CSV_COLUMNS, csv_text
from cudal2.report import markup, plots
from cudal2.report.board import boards
from cudal2.report.clocks import clocks_of
from cudal2.report.page import page, sources
from cudal2.report.spread import spread
from cudal2.report.summary import load_finals, summarise

COMMAND = "python -m cudal2 report --html page.html"
VOID = {"meta", "img", "br", "link"}


class Document(HTMLParser):
    """Every tag closed in order; tables as lists of (text, data-v) cells."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tables, self.links, self.ids, self.texts = [], {}, [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.links += [value for name, value in attrs.items() if name in ("src", "href", "srcset", "action", "data")]
        self.ids += [attrs["id"]] if "id" in attrs else []
        if tag == "table":
            self.rows = self.tables.setdefault(attrs.get("id", ""), [])
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append(["", attrs.get("data-v")])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if "td" in self.open or "th" in self.open:
            if "small" not in self.open:
                self.rows[-1][-1][0] += data
        elif "script" not in self.open and "style" not in self.open:
            self.texts.append(data)

    @property
    def prose(self):
        return " ".join(self.texts)


def fingerprint(**changes):
    values = dict(
        gpu="NVIDIA Test", capability=(9, 0), sm_count=132, memory_gib=140, driver="580.1", cuda="13.0", cublaslt="1",
        nvrtc="13.0", generator_version="abcdef",
    )  # fmt: skip
    return Fingerprint(**(values | changes))


def noisy(base_us, seed):
    return base_us * np.random.default_rng(seed).normal(1.0, 0.003, 9)


def some_finals():
    """Five shapes with wins, a tie and losses in both PDL columns, one more that none of ours solves."""
    records = []
    factors = {
        "64_64_64": 1.3,
        "512_512_512": 1.0,
        "2048_2048_1024": 0.9,
        "4096_4096_4096": 1.1,
        "8192_8192_8192": 0.95,
    }
    for pdl in (False, True):
        for seed, (mnk, factor) in enumerate(factors.items()):
            base = 2.0 * 8.0**seed
            records += [
                row(mnk, "sm90_ws", noisy(base, seed), config=CONFIG, pdl=pdl),
                row(mnk, "cublaslt_auto_tn", noisy(base * factor, seed + 90), pdl=pdl),
                row(mnk, "cublaslt_auto_nn", noisy(base * factor * 1.2, seed + 80), pdl=pdl),
                row(mnk, "torch", noisy(base * factor * 1.4, seed + 70), pdl=pdl),
            ]
        records += final_rows("64_64_256", None, {"cublaslt_auto": 2.0, "torch": 2.5}, pdl=pdl)
        records += [row("64_64_256", "sm90_ws", (), config=CONFIG, reason="NaN at (0, 0)", pdl=pdl)]
    return records


def shards_of(tmp_path, records, **changes):
    with RecordLog(tmp_path / "finals", fingerprint(**changes)) as log:
        log.append(records)
    return load_finals(tmp_path / "finals")


@pytest.fixture
def shards(tmp_path):
    return shards_of(tmp_path, some_finals())


def test_the_page_needs_nothing_but_itself(shards, tmp_path):
    pictures = {board.key: plots.board_pictures(board) for board in boards(shards.measurements)[:1]}
    text = page(shards, pictures, COMMAND, sources(tmp_path / "finals"))
    document = Document(text)
    own = re.sub(r"data:image/svg\+xml;base64,[^\"]*", "", text)
    assert not re.search(r"https?:|//[a-z]|@import|url\(|<link|<iframe|fetch\(|XMLHttp", own)
    for drawing in re.findall(r"base64,([^\"]*)", text):
        links = re.findall(r'href="([^"]*)"', base64.b64decode(drawing).decode())
        assert links and all(link.startswith(("#", "data:")) for link in links)
    inside = [link for link in document.links if link.startswith("#")]
    assert [link for link in document.links if not link.startswith(("#", "data:image/svg+xml;base64,"))] == []
    assert inside and {link[1:] for link in inside} <= set(document.ids), "an anchor leads nowhere"
    assert len(document.ids) == len(set(document.ids))
    assert "default-src 'none'" in text, "the page itself must forbid a browser to load anything"
    assert "${" not in text and "/tmp" not in text and str(tmp_path) not in text


def test_the_tables_say_what_the_summary_says(shards):
    report, document = summarise(shards.measurements), Document(page(shards, {}, COMMAND))
    assert set(report) == {"offline/fp32/off", "offline/fp32/on"}
    for key, baselines in report.items():
        head, *rows = document.tables[f"standings-{key.replace('/', '-')}"]
        titles = [cell[0] for cell in head]
        assert [row[0][0] for row in rows] == ["cuBLASLt-AutoTuning", "torch.matmul"] and len(baselines) == 2
        for entry, cells in zip(baselines.values(), rows, strict=True):
            found = dict(zip(titles, cells, strict=True))
            for title, value, shown in (
                ("shapes", entry["n"], "d"),
                ("geomean", entry["geomean"], ".3f"),
                ("mean", entry["mean"], ".3f"),
                ("share lost", (entry["lost"] + entry["unserved"]) / (entry["n"] + entry["unserved"]), ".0%"),
                ("unserved", entry["unserved"], "d"),
                ("slower by >5%", entry["slower_5pct"], ".0%"),
                ("total time", entry["total_theirs_us"] / entry["total_ours_us"], ".3f"),
                ("ours of floor", entry["floor_fraction"]["ours"], ".0%"),
                ("theirs of floor", entry["floor_fraction"]["theirs"], ".0%"),
                ("above 1", entry["win"], ".0%"),
                ("worst", entry["min"], ".3f"),
            ):
                assert float(found[title][1]) == value and found[title][0] == format(value, shown), title
        head, *rows = document.tables[f"geomeans-{key.replace('/', '-')}"]
        assert [cell[0] for cell in head] == ["against", *CLASS_NAMES]
        for entry, cells in zip(baselines.values(), rows, strict=True):
            for name, cell in zip(CLASS_NAMES, cells[1:], strict=True):
                geomean = entry["by_class"][name]["geomean"]
                assert cell == (["-", None] if geomean is None else [f"{geomean:.3f}", repr(geomean)])
        head, *rows = document.tables[f"classes-{key.replace('/', '-')}"]
        by_class = baselines["cublaslt_auto"]["by_class"]
        assert [(row[0][0], row[1][0]) for row in rows] == [(name, str(by_class[name]["n"])) for name in CLASS_NAMES]


def test_every_shape_is_there_with_its_own_ratio(shards):
    document = Document(page(shards, {}, COMMAND))
    for board in boards(shards.measurements):
        head, *rows = document.tables[f"shapes-{board.key.replace('/', '-')}"]
        titles = [cell[0] for cell in head]
        assert len(rows) == 6
        unserved, *served = [dict(zip(titles, cells, strict=True)) for cells in rows]
        assert unserved["our kernel"][0] == "none of ours ran" and unserved["over cuBLASLt-AutoTuning"] == ["-", None]
        shapes = board.standing().shapes
        ratios = [float(cells["over cuBLASLt-AutoTuning"][1]) for cells in served]
        assert ratios == [shape.ratio for shape in shapes] == sorted(ratios)
        for cells, shape in zip(served, shapes, strict=True):
            assert "_".join(cells[name][0] for name in "MNK") == shape.problem.mnk
            assert (
                float(cells["ours us"][1]) == shape.ours.median_us and cells["verdict"][0] == shape.comparison.verdict
            )
            assert float(cells["TFLOP/s"][1]) == pytest.approx(shape.problem.flops / shape.ours.median_us / 1e6)


def test_losses_stand_where_they_are_seen(shards, monkeypatch):
    monkeypatch.setattr("cudal2.report.page.WORST", 4)
    document = Document(page(shards, {}, COMMAND))
    worst = document.tables["worst-offline-fp32-off"]
    assert [cells[0][0] for cells in worst[1:]] == [
        "2048_2048_1024",
        "8192_8192_8192",
        "512_512_512",
        "4096_4096_4096",
    ]
    assert worst[1][3][0] == "loss" and worst[1][7][0] == "cublaslt_auto_tn" and worst[-1][7][0] == "ours"
    overview = dict(zip(*([cell[0] for cell in cells] for cells in document.tables["table-overview"][:2]), strict=True))
    assert (overview["won"], overview["tied"], overview["lost"]) == ("2", "1", "2")
    # Two of five lost by the interval, and the shape that only the libraries solved.
    assert (overview["unserved"], overview["share lost"]) == ("1", "50%")
    failures = document.tables["failures-offline-fp32-off"]
    assert [cell[0] for cell in failures[1]] == ["64_64_256", CONFIG.name, "correctness", "NaN at (0, 0)"]


def test_means_and_total_time_by_hand():
    records = final_rows("64_64_64", 2.0, {"cublaslt_auto": 4.0}) + final_rows(
        "8192_8192_8192", 2000.0, {"cublaslt_auto": 1000.0}
    )
    found = boards(records)[0].standing().overall
    assert (found.geomean, found.mean, found.total) == pytest.approx((1.0, 1.25, 1004.0 / 2002.0))
    assert (found.win, found.tie, found.loss, found.loss_share) == (1, 0, 1, 0.5)
    assert (found.faster, found.noticeable, found.slower, found.worst, found.best) == (0.5, 0.5, 0.5, 0.5, 2.0)
    assert spread(()) is None


def test_nothing_in_a_record_becomes_markup(tmp_path):
    evil = "<script>alert(1)</script>\"'&${title}"
    records = final_rows("64_64_64", 2.0, {"cublaslt_auto": 4.0})
    records += [row("64_64_64", "sm90_ws", (), config=CONFIG, reason=evil)]
    text = page(shards_of(tmp_path, records, gpu=evil, driver=evil), {}, f"{COMMAND} {evil}")
    assert text.count("<script>") == 1 and "alert(1)</script>" not in text
    document = Document(text)
    assert evil in [cells[3][0] for cells in document.tables["failures-offline-fp32-off"]]
    assert [evil, None] in document.tables["fingerprint"][1]
    assert evil in document.prose
    assert markup.drawing(markup.Picture("x", '"><b>', b"<svg/>")).count("<b>") == 0
    assert all("<b>x" not in piece("<b>x") for piece in (markup.paragraph, markup.heading, markup.code))
    assert "<b>x" not in markup.items(["<b>x", "head: <b>x"]) and "<i" not in markup.table(["<i>"], [])


def test_fingerprint_protocol_and_the_command_that_makes_it_again(shards, tmp_path):
    document = Document(page(shards, {}, COMMAND, sources(tmp_path / "finals")))
    shown = {cells[0][0]: cells[1][0] for cells in document.tables["fingerprint"]}
    for name, value in shards.fingerprint.to_dict().items():
        assert shown[name.replace("_", " ")] == ("9.0" if name == "capability" else str(value))
    assert shown["sha256"] == shards.fingerprint.sha256
    assert "Protocol v1 (docs/protocol.md)" in document.prose and COMMAND in document.prose
    (file,) = sources(tmp_path / "finals")
    assert [cell[0] for cell in document.tables["files"][1]] == [file.name, file.sha256]


def test_the_page_says_how_ours_was_chosen_and_in_how_many_processes(tmp_path):
    rows = final_rows("64_64_64", 1.0, {"cublaslt_auto": 2.0}, rounds=6)
    old = Document(page(shards_of(tmp_path / "old", rows), {}, COMMAND)).prose
    assert "at most 1 configuration that" in old and "in 6 shuffled rounds;" in old
    fresh = [dataclasses.replace(one, process_rounds=(3, 3)) for one in rows]
    new = Document(page(shards_of(tmp_path / "new", fresh), {}, COMMAND)).prose
    assert "ours was selected by another process" in new and "in 6 shuffled rounds of 2 processes;" in new


def test_the_page_says_what_it_lacks(shards):
    prose = Document(page(shards, {}, COMMAND)).prose
    assert "CUDA-L2, QuACK, Triton, cuBLAS, cuBLASLt-heuristic have no figures" in prose
    assert "there are no servings" in prose
    assert "free, not locked; they were not recorded" in prose
    assert "The two are never mixed" in prose


def test_records_without_a_comparison_still_make_a_page(tmp_path):
    searched = shards_of(tmp_path / "a", [row("64_64_64", "sm90_ws", [1.0], config=CONFIG)])
    assert "nothing has been compared yet" in Document(page(searched, {}, COMMAND)).prose
    unserved = shards_of(tmp_path / "b", final_rows("64_64_64", None, {"cublaslt_auto": 2.0}))
    assert "No kernel of ours has a time on this leaderboard" in Document(page(unserved, {}, COMMAND)).prose
    only_torch = shards_of(tmp_path / "c", final_rows("64_64_64", 1.0, {"torch": 2.0}))
    document = Document(page(only_torch, {}, COMMAND))
    assert "No shape was measured against cuBLASLt-AutoTuning" in document.prose
    assert document.tables["standings-offline-fp32-off"][1][0][0] == "torch.matmul"
    assert plots.board_pictures(boards(only_torch.measurements)[0]) == []


@pytest.mark.parametrize(
    ("detail", "mhz", "share", "words"),
    [
        ("", None, None, "unknown"),
        ("1980/1700/1690MHz 201.7/220W 44/44/44C 0/0/1throttle", 1700, 0.0, "nothing"),
        ("algo=4; 1500/1400MHz 4/36throttle", 1450, 1.0, "power cap 100%, temperature (software) 50%"),
        ("1980/1980MHz 0/0throttle 1500/1400/1400MHz 4/4/4throttle", 1500, 0.6, "power cap 60%"),
    ],
)
def test_what_the_clock_did_in_the_rounds(detail, mhz, share, words):
    (board,) = boards(final_rows("64_64_64", 1.0, {"torch": 1.0}, detail=detail))
    clocks = clocks_of(board.finals[0])
    assert (clocks.median_mhz, clocks.held_share, clocks.held_by) == (mhz, share, words)


def test_a_final_without_its_rounds_clocks_has_the_last_one():
    rows = [dataclasses.replace(one, sm_clock_mhz=1755, throttle=4) for one in final_rows("64_64_64", 1, {"torch": 1})]
    clocks = clocks_of(boards(rows)[0].finals[0])
    assert (clocks.median_mhz, clocks.held_by) == (1755, "power cap 100%")


@pytest.fixture
def folder(tmp_path):
    shards_of(tmp_path, final_rows("64_64_64", 2.0, {"cublaslt_auto": 4.0}))
    return str(tmp_path / "finals")


def test_the_command_writes_page_and_plots(folder, tmp_path, capsys):
    path = tmp_path / "out" / "page.html"
    assert main(["report", "--finals", folder, "--html", str(path), "--plots", str(tmp_path / "png")]) == 0
    assert capsys.readouterr().out == ""
    text = path.read_text()
    names = re.findall('data-name="([a-z]+)"', text)
    assert names == ["heatmap", "ecdf", "floor", "flops", "roofline"]
    files = {file.name: file.read_bytes() for file in (tmp_path / "png").iterdir()}
    assert set(files) == {f"offline-fp32-off-{name}.png" for name in names}
    assert all(data.startswith(b"\x89PNG") for data in files.values())
    assert f"report --finals {folder} --html page.html" in Document(text).prose
    assert main(["report", "--finals", folder, "--html", str(tmp_path / "again" / "page.html")]) == 0
    assert (tmp_path / "again" / "page.html").read_text() == text, "the same data must give the same page"


def test_the_columns_of_cuda_l2_one_file_per_leaderboard(tmp_path, capsys):
    shards_of(tmp_path, some_finals())
    assert main(["report", "--finals", str(tmp_path / "finals"), "--csv", str(tmp_path / "csv")]) == 0
    assert capsys.readouterr().out == ""
    found = boards(load_finals(tmp_path / "finals").measurements)
    files = sorted((tmp_path / "csv").iterdir())
    assert [file.name for file in files] == [f"{board.key.replace('/', '-')}.csv" for board in found]
    # What CUDA-L2's own tables begin with, to the letter.
    columns = ["torch.matmul"]
    for library in ("cuBLAS", "cuBLASLt-heuristic", "cuBLASLt-auto-tuning"):
        columns += [f"{library}-{which}" for which in ("tn", "nn", "max")]
    for board, file in zip(found, files, strict=True):
        assert file.read_text().splitlines()[0] == ",".join(["mnk", *columns])
        rows = {line["mnk"]: line for line in csv.DictReader(file.open())}
        assert list(rows) == [final.problem.mnk for final in board.finals], "unserved shapes keep their line"
        for final in board.finals:
            for column, name in CSV_COLUMNS.items():
                ours, other = final.ours, final.named(name) if name[-3:] in ("_tn", "_nn") else final.baseline(name)
                ratio = compare_rows(ours, other).ratio if ours and other else None
                assert rows[final.problem.mnk][column] == ("" if ratio is None else f"{ratio:.4f}")
        reference = {shape.problem.mnk: f"{shape.ratio:.4f}" for shape in board.standing().shapes}
        assert {mnk: line["cuBLASLt-auto-tuning-max"] for mnk, line in rows.items()} == {**reference, "64_64_256": ""}
    with pytest.raises(ValueError, match="several leaderboards"):
        csv_text(final for board in found for final in board.finals)


def test_without_matplotlib_the_page_has_tables_and_says_why(folder, tmp_path, monkeypatch, capsys):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "cudal2.report.plots":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert main(["report", "--finals", folder, "--html", str(tmp_path / "page.html")]) == 0
    assert "[report]'" in capsys.readouterr().err
    document = Document((tmp_path / "page.html").read_text())
    assert "standings-offline-fp32-off" in document.tables and not any("data:" in link for link in document.links)
    assert main(["report", "--finals", folder, "--plots", str(tmp_path / "png")]) == 2


def test_a_page_that_cannot_be_written_is_one_line(folder, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["report", "--finals", folder, "--html", str(tmp_path / "file" / "page.html")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
