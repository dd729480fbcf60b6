"""What the report says of server mode, on made-up servings whose answers are known."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from fabricated_finals import final_rows
from fabricated_recording import FINGERPRINT
from fabricated_servings import served, serving_rows

from cudal2.cli.main import main
from cudal2.errors import RecordError
from cudal2.records.latency import KIND, Latency
from cudal2.records.shards import RecordLog, Rows
from cudal2.report import readme
from cudal2.report.page import page
from cudal2.report.serving import figures, server_boards
from cudal2.report.summary import load_finals, summarise_servings

#: Won by a fifth, lost by a fifth, unserved; cuBLASLt counts in its sooner layout.
WON = serving_rows(
    "64_64_64", 10.0, {"cublaslt_auto_tn": 12.0, "cublaslt_auto_nn": 15.0, "torch": 30.0, "foreign:f": 11.0}
)
LOST = serving_rows("4096_4096_64", 20.0, {"cublaslt_auto_tn": 16.0, "torch": 40.0})
UNSERVED = serving_rows("64_64_128", None, {"cublaslt_auto_tn": 12.0, "torch": 30.0})
UNSERVED += [served("64_64_128", "sm90_ws", 10.0, reason="NaN at (0, 0)")]


def written(folder: Path, rows: list[Latency], **changes: object) -> Path:
    with RecordLog(folder, dataclasses.replace(FINGERPRINT, **changes)) as log:
        for row in rows:
            log.write_row(KIND, row.to_dict())
    return folder


def test_latency_is_compared_by_state_with_losses_and_unserved_shapes() -> None:
    (board,) = server_boards([*WON, *LOST, *UNSERVED])
    assert board.key == "server/fp32/warm@1000" and board.unserved == ("64_64_128",)
    assert [row.reason for row in board.failures] == ["NaN at (0, 0)"]
    assert board.empty_us == pytest.approx(8.0, rel=0.01)
    found = {standing.baseline: standing for standing in board.standings}
    assert list(found) == ["cublaslt_auto", "torch", "foreign:f"]
    overall = found["cublaslt_auto"].overall
    assert (overall.n, overall.win, overall.tie, overall.loss, overall.unserved) == (2, 1, 0, 1, 1)
    assert overall.loss_share == pytest.approx(2 / 3)
    assert overall.worst == pytest.approx(0.8, rel=0.01) and overall.best == pytest.approx(1.2, rel=0.01)
    assert (found["foreign:f"].overall.n, found["foreign:f"].entered) == (1, 1)


def test_tails_and_device_time_stand_beside_the_median() -> None:
    standing = server_boards([*WON, *LOST])[0].standing()
    found = figures(standing.shapes)
    assert list(found) == ["p50", "p95", "p99", "device"]
    assert found["p50"].ours_us == pytest.approx((10.0 * 20.0) ** 0.5, rel=0.01)
    assert found["p50"].other_us == pytest.approx((12.0 * 16.0) ** 0.5, rel=0.01)
    assert found["p99"].ours_us > 2.5 * found["p50"].ours_us, "every twentieth request is three times as late"
    assert found["device"].ours_us == pytest.approx(found["p50"].ours_us / 4, rel=0.01)
    for one in found.values():
        assert one.ratio == pytest.approx((1.2 * 0.8) ** 0.5, rel=0.03)


def test_states_rates_and_accumulators_are_never_mixed() -> None:
    changes = [{}, {"state": "idle_cold"}, {"state": "loaded"}, {"target_qps": 100.0}, {"acc": "fp16"}]
    rows = [row for some in changes for row in serving_rows("64_64_64", 10.0, {"cublaslt_auto": 12.0}, **some)]
    assert [board.key for board in server_boards(rows)] == [
        "server/fp16/warm@1000",
        "server/fp32/warm@100",
        "server/fp32/idle_cold@1000",
        "server/fp32/warm@1000",
        "server/fp32/loaded@1000",
    ]
    assert all(board.standing().overall.n == 1 for board in server_boards(rows))


def test_blocks_that_were_dropped_are_noticed() -> None:
    ours, other, empty = serving_rows("64_64_64", 10.0, {"cublaslt_auto": 12.0})
    cut = {name: getattr(ours, name)[:3] for name in ("latency_us", "queue_us", "host_us", "device_us")}
    with pytest.raises(RecordError, match="serving of 64_64_64, warm"):
        server_boards([dataclasses.replace(ours, **cut), other, empty])


def test_json_has_a_board_per_state() -> None:
    found = summarise_servings(server_boards([*WON, *LOST, *UNSERVED]))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    entry = found["server/fp32/warm@1000"]["cublaslt_auto"]
    assert (entry["n"], entry["won"], entry["lost"], entry["unserved"]) == (2, 1, 1, 1)
    assert entry["worst"][0]["mnk"] == "4096_4096_64"
    assert set(entry["p99"]) == {"ratio", "ours_us", "other_us"} and "floor_fraction" not in entry


def test_the_readme_has_a_section_of_its_own(tmp_path: Path) -> None:
    with RecordLog(tmp_path / "finals", FINGERPRINT) as log:
        log.append(final_rows("64_64_64", 1.0, {"cublaslt_auto": 2.0}))
    shards = load_finals(tmp_path / "finals")
    assert "### Server" not in readme.results_markdown(shards)
    text = readme.results_markdown(shards, (), Rows((FINGERPRINT,), (*WON, *LOST, *UNSERVED)))
    section = text[text.index("### Server, fp32 accumulation") :]
    (line,) = (line for line in section.splitlines() if line.startswith("| warm, 1000/s | cuBLASLt-AutoTuning"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[2] == "2 of 3" and cells[5:8] == ["1 / 0 / 2", "67%", "67%"]
    assert re.fullmatch(r"0\.9[78]\d \(13\.\d / 14\.\d\)", cells[9]) and len(cells) == 13
    (remark,) = (line for line in section.splitlines() if line.startswith("- warm, 1000/s: "))
    assert "Lost to cuBLASLt-AutoTuning, worst first: 4096_4096_64 0.8" in remark
    assert "No kernel of ours served: 64_64_128." in remark


def test_the_page_shows_every_contestant_of_every_shape(tmp_path: Path) -> None:
    shards = load_finals(written_finals(tmp_path))
    text = page(shards, {}, "command", (), Rows((FINGERPRINT,), (*WON, *LOST, *UNSERVED)))
    for name in ("standings", "worst", "shapes", "failures"):
        assert f'id="{name}-server-fp32-warm-at-1000"' in text
    assert text.count("launch of nothing</td>") == 3 and "foreign:f" in text
    shapes = text[text.index('id="shapes-server') : text.index('id="failures-server')]
    assert [shapes.count(f"<td>{mnk}</td>") for mnk in ("64_64_64", "4096_4096_64", "64_64_128")] == [5, 4, 3]
    assert "offline leaderboards hold device time" in text and "there are no servings" not in text
    overview = text[text.index('id="table-overview"') : text.index('id="notes"')]
    assert "Server, fp32 accumulation, idle, warm L2, 1000 requests per second" in overview


def written_finals(folder: Path, **changes: object) -> Path:
    with RecordLog(folder / "finals", dataclasses.replace(FINGERPRINT, **changes)) as log:
        log.append(final_rows("64_64_64", 1.0, {"cublaslt_auto": 2.0}))
    return folder / "finals"


def test_the_command_reports_what_is_named_and_nothing_else(tmp_path: Path, capsys) -> None:
    folder = str(written(tmp_path / "latency", [*WON, *LOST]))
    assert main(["report", "--latency", folder]) == 0
    out = capsys.readouterr().out
    assert out.startswith("server/fp32/warm@1000, host latency") and "offline" not in out
    assert main(["report", "--latency", folder, "--losses"]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[1:]] == ["4096_4096_64", "64_64_64"]
    assert main(["report", "--finals", str(written_finals(tmp_path)), "--latency", folder, "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["offline/fp32/off", "server/fp32/warm@1000"]
    written_page = tmp_path / "page.html"
    assert main(["report", "--latency", folder, "--html", str(written_page), "--plots", str(tmp_path / "png")]) == 0
    assert [file.name for file in (tmp_path / "png").iterdir()] == ["server-fp32-warm-at-1000-ecdf.png"]
    assert f"report --latency {folder} --html page.html" in written_page.read_text()


def test_finals_and_servings_of_two_gpus_make_no_report(tmp_path: Path, capsys) -> None:
    finals = written_finals(tmp_path, sm_count=114)
    folder = written(tmp_path / "latency", WON)
    assert main(["report", "--finals", str(finals), "--latency", str(folder)]) == 2
    assert "finals and servings on" in capsys.readouterr().err
