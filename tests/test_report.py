"""The report on made-up finals whose answers are known by hand."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from fabricated_finals import CONFIG, final_rows, row

from cudal2.cli.main import main
from cudal2.errors import RecordError, UsageError
from cudal2.records.finals import compare, group_finals, latest_finals
from cudal2.records.fingerprint import Fingerprint
from cudal2.records.shards import RecordLog, Shards
from cudal2.report import notes, plots, readme, summary
from cudal2.report.board import boards
from cudal2.table import KernelTable

FOUR = {"cublaslt_auto_tn": 4.0, "cublaslt_auto_nn": 6.0, "cublas_tn": 8.0, "cublas_nn": 5.0, "torch": 10.0}


def test_summary_has_the_published_shape():
    records = final_rows("64_64_64", 2.0, FOUR) + final_rows("16384_16384_16384", 16000.0, {"cublaslt_auto": 12000.0})
    report = summary.summarise(records)
    assert list(report) == ["offline/fp32/off"]
    board = report["offline/fp32/off"]
    assert list(board) == ["cublaslt_auto", "cublas", "torch"]
    auto = board["cublaslt_auto"]
    assert {"n", "geomean", "mean", "win", "min", "won", "tied", "lost", "unserved", "by_class", "worst"} <= set(auto)
    assert (auto["won"], auto["tied"], auto["lost"], auto["unserved"]) == (1, 0, 1, 0)
    assert [shape["mnk"] for shape in auto["worst"]] == ["16384_16384_16384", "64_64_64"]
    assert (auto["total_ours_us"], auto["total_theirs_us"]) == (16002.0, 12004.0)
    assert list(auto["by_class"]) == ["<2.3us", "2.3-10us", "10-100us", "0.1-1ms", ">1ms"]
    # Against the better layout of each baseline: 4/2 = 2 and 12000/16000 = 0.75.
    assert auto["n"] == 2 and auto["win"] == 0.5
    assert auto["geomean"] == pytest.approx(1.5**0.5)
    assert auto["min"] == pytest.approx(0.75)
    tiny, huge = (auto["by_class"][name] for name in ("<2.3us", ">1ms"))
    assert (tiny["n"], tiny["geomean"], tiny["win"]) == (1, pytest.approx(2.0), 1.0)
    assert (huge["n"], huge["geomean"], huge["win"], huge["slower_5pct"]) == (1, pytest.approx(0.75), 0.0, 1.0)
    assert auto["by_class"]["10-100us"] == {"n": 0, "geomean": None, "win": None}
    assert board["cublas"]["geomean"] == pytest.approx(2.5)
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_leaderboards_are_never_mixed():
    records = (
        final_rows("64_64_64", 1.0, {"cublaslt_auto": 2.0})
        + final_rows("64_64_64", 1.0, {"cublaslt_auto": 3.0}, pdl=True)
        + final_rows("64_64_64", 1.0, {"cublaslt_auto": 4.0}, acc="fp16")
    )
    geomeans = {key: board["cublaslt_auto"]["geomean"] for key, board in summary.summarise(records).items()}
    assert geomeans == pytest.approx({"offline/fp16/off": 4.0, "offline/fp32/off": 2.0, "offline/fp32/on": 3.0})


def test_best_of_our_configurations_counts_and_a_library_never_does():
    slower = dataclasses.replace(CONFIG, stages=3)
    rival = row("64_64_64", "sm90_ws", [4.0] * 9, config=slower)
    records = [rival, *final_rows("64_64_64", 3.0, {"cublaslt_auto": 2.0})]
    (final,) = group_finals(records)
    assert final.ours is not None and final.ours.config == CONFIG
    assert final.against("cublaslt_auto").ratio == pytest.approx(2.0 / 3.0)


def test_latest_final_counts_even_if_it_is_worse():
    old = final_rows("64_64_64", 1.0, {"cublaslt_auto": 2.0}, utc="2000-01-01T00:00:00+00:00")
    new = final_rows("64_64_64", 1.0, {"cublaslt_auto": 0.5}, utc="2000-01-02T00:00:00+00:00")
    assert summary.summarise(new + old)["offline/fp32/off"]["cublaslt_auto"]["geomean"] == pytest.approx(0.5)
    assert len(latest_finals(new + old)) == 1


def test_search_rows_without_a_baseline_are_no_final():
    assert group_finals([row("64_64_64", "sm90_ws", [1.0], config=CONFIG)]) == []
    assert summary.summarise([row("64_64_64", "sm90_ws", [1.0], config=CONFIG)]) == {}


def test_the_rounds_that_chose_are_not_counted_as_rounds_of_a_final():
    rows = final_rows("64_64_64", 1.0, {"cublaslt_auto": 2.0}, rounds=6)
    rows = [dataclasses.replace(one, process_rounds=(3, 3)) for one in rows]
    chosen = row("64_64_64", "sm90_ws", [1.0] * 7, config=CONFIG, utc="1999-01-01T00:00:00+00:00")
    assert notes.rounds_text(Shards((), (chosen, *rows))) == "6 shuffled rounds of 2 processes"


def test_pairing_removes_a_drift_that_unpaired_medians_would_see():
    rng = np.random.default_rng(0)
    clock = np.linspace(1.0, 1.3, 9)
    ours, other = clock, 1.02 * clock * rng.normal(1.0, 1e-3, 9)
    result = compare(tuple(ours), tuple(other))
    assert result.ratio == pytest.approx(1.02, rel=2e-3)
    assert 1.01 < result.low <= result.ratio <= result.high < 1.03
    assert result.verdict == "win"


def test_noise_alone_is_a_tie_at_about_the_stated_level():
    rng = np.random.default_rng(1)
    pairs = rng.normal(1.0, 0.02, (300, 2, 9))
    verdicts = [compare(tuple(ours), tuple(other), resamples=400).verdict for ours, other in pairs]
    # A 95 % percentile bootstrap of nine points is a little narrow; it must still call equals equal nearly always.
    assert verdicts.count("tie") > 0.85 * len(verdicts)


def test_the_interval_is_the_hull_of_the_processes():
    ours, other = [1.0] * 6, [1.10, 1.11, 1.12, 1.02, 1.03, 1.04]
    together, apart = compare(ours, other), compare(ours, other, (3, 3))
    assert apart.ratio == together.ratio == pytest.approx(1.07)
    assert (apart.low, apart.high) == (pytest.approx(1.02), pytest.approx(1.12))


def test_a_win_needs_every_process():
    ours = [1.0] * 6
    assert compare(ours, [1.1] * 5 + [1.05]).verdict == "win"
    assert compare(ours, [1.1] * 3 + [0.99, 1.01, 1.02], (3, 3)).verdict == "tie"
    assert compare(ours, [0.9] * 3 + [0.98, 0.99, 1.01], (3, 3)).verdict == "tie"
    assert compare(ours, [0.9] * 3 + [0.97, 0.98, 0.99], (3, 3)).verdict == "loss"


def test_a_process_that_favours_one_side_makes_no_win_where_more_rounds_of_it_would():
    """Two processes of an equal pair, each 1 % off its own way, 0.1 % from round to round."""
    rng = np.random.default_rng(2)
    false_wins = {"one": 0, "two": 0}
    for _ in range(300):
        place = rng.normal(1.0, 0.01, 2)
        ratios = np.concatenate([place[index] * rng.normal(1.0, 1e-3, 5) for index in range(2)])
        false_wins["one"] += compare([1.0] * 5, list(ratios[:5]), resamples=200).verdict != "tie"
        false_wins["two"] += compare([1.0] * 10, list(ratios), (5, 5), resamples=200).verdict != "tie"
    assert false_wins["one"] > 0.8 * 300
    assert false_wins["two"] < 0.6 * 300


def test_rows_of_differently_split_processes_are_refused():
    rows = final_rows("64_64_64", 1.0, {"cublaslt_auto": 2.0}, rounds=4)
    rows[0] = dataclasses.replace(rows[0], process_rounds=(2, 2))
    (final,) = group_finals(rows)
    with pytest.raises(RecordError, match=r"\[2, 2\] rounds of ours, 4 of cublaslt_auto cannot be paired"):
        final.against("cublaslt_auto")


def test_rounds_that_do_not_pair_are_refused():
    with pytest.raises(ValueError, match="cannot be paired"):
        compare((1.0, 2.0), (1.0,))


def test_a_board_keeps_losses_and_unserved_shapes():
    records = final_rows("64_64_64", 2.0, {"cublaslt_auto": 1.0}) + final_rows("64_64_128", 1.0, {"cublaslt_auto": 2.0})
    records += final_rows("64_64_256", None, {"cublaslt_auto": 2.0})
    records += [row("64_64_256", "sm90_ws", (), config=CONFIG, reason="NaN at (0, 0)")]
    (board,) = boards(records)
    standing = board.standing()
    assert [shape.problem.mnk for shape in standing.shapes] == ["64_64_64", "64_64_128"]
    assert [shape.problem.mnk for shape in standing.losses] == ["64_64_64"]
    assert board.unserved == (("64_64_256", "correctness: NaN at (0, 0)"),)
    assert (standing.overall.unserved, standing.overall.lost, standing.entered) == (1, 2, 3)
    assert [row.reason for row in board.failures] == ["NaN at (0, 0)"]
    assert summary.summarise(records)["offline/fp32/off"]["cublaslt_auto"]["n"] == 2


def fingerprint(**changes):
    values = dict(
        gpu="NVIDIA Test", capability=(9, 0), sm_count=132, memory_gib=140, driver="1", cuda="13.0", cublaslt="1",
        nvrtc="13.0", generator_version="0" * 16,
    )  # fmt: skip
    return Fingerprint(**(values | changes))


def test_finals_are_read_from_shards_of_several_environments(tmp_path):
    for index, driver in enumerate(("1", "2")):
        with RecordLog(tmp_path, fingerprint(driver=driver)) as log:
            log.append(final_rows(f"64_64_{64 * (index + 1)}", 1.0, {"cublaslt_auto": 2.0}))
    shards = summary.load_finals(tmp_path)
    assert len(shards.fingerprints) == 2
    assert summary.summarise(shards.measurements)["offline/fp32/off"]["cublaslt_auto"]["n"] == 2


README = "# Title\n\n<!-- results:begin -->\nold\n<!-- results:end -->\n\nTail\n"


def shards_of(tmp_path, records):
    with RecordLog(tmp_path / "finals", fingerprint()) as log:
        log.append(records)
    return summary.load_finals(tmp_path / "finals")


def test_readme_tables_come_from_the_records(tmp_path):
    records = final_rows("64_64_64", 2.0, FOUR) + final_rows("4096_4096_4096", 250.0, {"cublaslt_auto": 200.0})
    path = tmp_path / "README.md"
    path.write_text(README)
    shards = shards_of(tmp_path, records)
    assert readme.update_readme(path, shards, {}, ())
    text = path.read_text()
    assert text.startswith("# Title\n\n<!-- results:begin -->\n") and text.endswith("<!-- results:end -->\n\nTail\n")
    assert (
        "Measured 2000-01-01 on NVIDIA Test (driver 1, CUDA 13.0, cuBLASLt 1). Protocol v1: 9 shuffled rounds" in text
    )
    assert "### Offline, fp32 accumulation\n" in text
    start = "| off | cuBLASLt-AutoTuning | 2 | 1.265 | 1.400 | 1 / 0 / 1 | 50% | 50% | 0.800 |"
    assert f"{start} 87% / 69% | 2.000 | - | - | 0.800 | - |" in text
    assert (
        "- PDL off: 0.25 ms in total, cuBLASLt-AutoTuning 0.20 ms. Lost to it, worst first: 4096_4096_4096 0.8" in text
    )
    assert "\nold\n" not in text
    bar = "| kernels: geomean >= 1.00 over cuBLASLt-AutoTuning, interleaved | 1.265 (offline/fp32/off) |"
    assert bar + " `python scripts/judge.py` | 2000-01-01, NVIDIA Test |" in text
    assert not readme.update_readme(path, shards, {}, ()), "a second run must change nothing"


def test_readme_shows_both_pdl_columns_in_one_table_and_accumulators_apart(tmp_path):
    records = final_rows("64_64_64", 1.0, {"cublaslt_auto": 2.0})
    records += final_rows("64_64_64", 1.0, {"cublaslt_auto": 3.0}, pdl=True)
    records += final_rows("4096_4096_4096", 250.0, {"cublaslt_auto": 200.0}, pdl=True)
    records += final_rows("64_64_64", 1.0, {"cublaslt_auto": 4.0}, acc="fp16")
    text = readme.results_markdown(shards_of(tmp_path, records))
    fp32, fp16 = text.split("### ")[1:]  # the accumulator of more shapes first
    assert fp16.startswith("Offline, fp16 accumulation") and fp32.startswith("Offline, fp32 accumulation")
    assert "| off | cuBLASLt-AutoTuning | 1 | 4.000 |" in fp16 and "| on |" not in fp16
    assert "| off | cuBLASLt-AutoTuning | 1 | 2.000 |" in fp32 and "| on | cuBLASLt-AutoTuning | 2 |" in fp32
    assert "| <2.3us (1) |" in fp32 and "| 0.1-1ms (0/1) |" in fp32
    assert "| on | cuBLASLt-AutoTuning | 2 | 1.549 | 1.900 | 1 / 0 / 1 | 50% |" in fp32


def test_readme_shows_an_optional_contestant_from_finals_of_its_own(tmp_path):
    others = {"cublaslt_auto": 2.0, "cublas": 3.0, "quack": 0.5}
    records = final_rows("64_64_64", 1.0, others) + final_rows("64_64_128", 1.0, {**others, "quack": 4.0})
    text = readme.beside_markdown("quack", shards_of(tmp_path, records))
    assert (
        "| off | QuACK | 2 | 1.414 |" in text and "| off | cuBLASLt-AutoTuning | 2 |" in text and "cuBLAS |" not in text
    )
    assert "Lost to it, worst first: 64_64_64 0.500." in text
    without = shards_of(tmp_path / "again", final_rows("64_64_64", 1.0, {"cublaslt_auto": 2.0}))
    assert readme.beside_markdown("quack", without) == ""


def test_readme_says_which_shapes_the_table_leaves_to_the_library(tmp_path):
    records = final_rows("64_64_64", 1.0, {"cublaslt_auto": 2.0}) + final_rows("64_64_128", 3.0, {"cublaslt_auto": 2.0})
    records += final_rows("64_64_256", 1.0, {"cublaslt_auto": 2.0}, pdl=True)
    records += final_rows("64_64_512", 3.0, {"cublaslt_auto": 2.0, "torch": 4.0})
    table = KernelTable.from_measurements(records, fingerprint())
    text = readme.results_markdown(shards_of(tmp_path, records), [table])
    served = "serves a kernel of ours on 3 of 4 shapes (1 with PDL), `torch.matmul` on 1."
    assert f"{served} A library is ahead of ours on 2: 64_64_128, 64_64_512.\n" in f"{text}\n"
    searched = KernelTable.from_measurements([row("64_64_64", "sm90_ws", [1.0], config=CONFIG)], fingerprint())
    text = readme.results_markdown(shards_of(tmp_path / "again", records), [searched])
    assert "on 1 of 1 shapes (0 with PDL). Chosen by a search, not judged in a final: 1." in text
    assert "not judged in a final: 1. Without a time of cuBLASLt: 1." in text


def test_the_readme_of_this_tree_is_what_the_shipped_measurements_say_and_short(tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text((Path(__file__).parents[1] / "README.md").read_text())
    assert main(["report", "--readme", str(copy)]) == 0
    assert copy.read_text() == (Path(__file__).parents[1] / "README.md").read_text(), (
        "run `python -m cudal2 report --readme README.md`"
    )
    begin, end = (copy.read_text()[: copy.read_text().index(mark)].count("\n") for mark in (readme.BEGIN, readme.END))
    assert end - begin <= 100, "what is generated"
    assert len(copy.read_text().splitlines()) - (end - begin) <= 160, "what is written, and its summary"


def test_a_readme_may_begin_with_a_line_for_each_leaderboard(tmp_path):
    records = final_rows("64_64_64", 2.0, FOUR) + final_rows("4096_4096_4096", 250.0, {"cublaslt_auto": 200.0})
    records += final_rows("64_64_64", 1.0, {"cublaslt_auto": 4.0}, acc="fp16")
    path, shards = tmp_path / "README.md", shards_of(tmp_path, records)
    path.write_text(f"{readme.SUMMARY_BEGIN}\nold\n{readme.SUMMARY_END}\n{README}")
    assert readme.update_readme(path, shards, {}, ())
    top = path.read_text().split("# Title")[0].splitlines()
    assert top[1:-1] == [
        "| NVIDIA Test, against cuBLASLt-AutoTuning | shapes | geomean | won / tied / lost | worst"
        " | geomean by floor, <2.3us to >1ms |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| Offline, fp32 accumulation, our PDL off | 2 | 1.265 | 1 / 0 / 1 | 0.800 | 2.000 / - / - / 0.800 / - |",
    ]
    assert not readme.update_readme(path, shards, {}, ()), "a second run must change nothing"


def test_readme_without_markers_is_left_alone(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("# Title\n")
    with pytest.raises(UsageError, match="results:begin"):
        readme.update_readme(path, shards_of(tmp_path, final_rows("64_64_64", 2.0, FOUR)), {}, ())
    assert path.read_text() == "# Title\n"


def many_finals():
    rng = np.random.default_rng(3)
    records = []
    for index, (m, n, k) in enumerate(
        [(64, 64, 64), (512, 512, 512), (2048, 2048, 1024), (4096, 4096, 4096), (8192,) * 3]
    ):
        for step, factor in enumerate((0.93, 1.0, 1.08, 1.2)):
            mnk = f"{m + 64 * step}_{n}_{k}"
            base = 3.0 * 10**index
            noise = rng.normal(1.0, 0.004, (2, 9))
            records += [
                row(mnk, "sm90_ws", base * noise[0], config=CONFIG),
                row(mnk, "cublaslt_auto", base * factor * noise[1]),
            ]
    return records


def test_plot_shows_every_shape_and_the_line_of_equality(tmp_path):
    shapes = boards(many_finals())[0].standing().shapes
    figure = plots.speedup_figure(shapes, "made-up data")
    scatter, ecdf = figure.axes
    drawn = sum(len(container.lines[0].get_xdata()) for container in scatter.containers)
    assert drawn == len(shapes) == 20
    assert any(list(line.get_ydata()) == [1.0, 1.0] for line in scatter.lines)
    assert any(list(line.get_xdata()) == [1.0, 1.0] for line in ecdf.lines)
    path = plots.save_speedups(shapes, "made-up data", tmp_path / "plots" / "speedup.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_plot_of_nothing_is_still_a_picture(tmp_path):
    assert plots.save_speedups((), "nothing yet", tmp_path / "empty.png").stat().st_size > 1000
