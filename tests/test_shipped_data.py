"""What ships in ``cudal2/data`` is what it is said to be: complete, measured by the protocol, one source for all."""

from __future__ import annotations

import importlib.util
import json
import re
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import pytest

from cudal2.arch import SM80
from cudal2.cli.arguments import config as parse_config
from cudal2.paths import data_dir
from cudal2.problem import Acc, Layout, Problem
from cudal2.records.finals import Final, compare, group_finals, latest_finals
from cudal2.records.measurement import PROTOCOL_VERSION
from cudal2.records.recording import Recording, bundled_recording, read_records
from cudal2.report.board import boards
from cudal2.report.summary import load_finals
from cudal2.settings import BenchSettings
from cudal2.space.config import KernelConfig
from cudal2.space.families import FAMILIES
from cudal2.table import Device, KernelTable, tuned_elsewhere
from cudal2.table.files import table_files

RECORDINGS = sorted((data_dir() / "recordings").glob("*.parquet"))
LIBRARIES = ("cublaslt_auto", "cublaslt_heuristic", "cublas", "torch")


@pytest.fixture(scope="module", params=RECORDINGS, ids=lambda path: path.stem)
def recording(request: pytest.FixtureRequest) -> Recording:
    return Recording.load(request.param)


def test_all_of_it_is_small() -> None:
    assert sum(path.stat().st_size for path in data_dir().rglob("*") if path.is_file()) <= 1.3e7


def test_the_replayed_recording_has_enough_shapes_spread_evenly_in_work() -> None:
    started_s = time.perf_counter()
    bundled = Recording.load(bundled_recording())
    assert time.perf_counter() - started_s < 5.0
    work = np.sort([np.log2(problem.flops) for problem in bundled.problems])
    assert len(bundled.problems) >= 24 and np.diff(work).max() <= 2.0
    assert min(len(bundled.cells.row(index)[0]) for index in range(len(bundled.problems))) >= 200


def test_a_recording_holds_every_legal_configuration_of_its_space(recording: Recording) -> None:
    for index, problem in enumerate(recording.problems):
        assert np.array_equal(recording.cells.row(index)[0], recording.space.legal_flat(problem)), problem.mnk


def test_every_row_has_its_raw_repeats_beside_the_reference_or_its_reason(recording: Recording) -> None:
    assert recording.fingerprint.gpu and recording.fingerprint.protocol == PROTOCOL_VERSION
    for index, problem in enumerate(recording.problems):
        for flat in recording.cells.row(index)[0][:: 1 + len(recording.problems)]:
            row = recording.measurement(problem, int(flat))
            assert row is not None and row.utc
            if row.ok:
                assert len(row.times_us) == len(row.ref_times_us) == BenchSettings().replays
                assert row.sm_clock_mhz and row.registers and row.launches
            else:
                assert row.reason


def test_finals_compare_with_every_library_in_both_columns() -> None:
    rows = load_finals().measurements
    finals = group_finals(rows)
    assert finals and sum(len(final.rows) for final in finals) == len(rows), "what selections timed is published apart"
    for final in finals:
        assert all(final.baseline(name) is not None for name in LIBRARIES), (final.key, final.problem.mnk)
        splits = {row.process_rounds for row in final.rows if row.ok}
        assert splits <= {(), (BenchSettings().final_rounds,) * BenchSettings().final_processes}
        assert len({len(row.times_us) for row in final.rows if row.ok}) == 1


#: Finals of shapes off the grid, and what stands for shapes without: the best of sweeps of the grid and of odd sizes;
#: fp16's selections.
BESIDE_FINALS = {
    "fp32": sorted((data_dir() / "off_grid").glob("h200_*_finals_fp32_tn.parquet"))
    + sorted((data_dir() / "searched").glob("h200_*_swept_fp32_tn.parquet")),
    "fp16": sorted((data_dir() / "searched").glob("h200_*_selected1_fp16_tn.parquet")),
}


def made_for_hopper(acc: Acc, layout: Layout) -> KernelTable:
    """The table that the shipped measurements come to: of finals, and of searched rows where a shape has no final.

    Of ``nn`` there are finals of 96 shapes in fp32; else it takes over what ``tn`` has.
    """
    finals = load_finals()
    made = KernelTable.from_measurements(finals.measurements, finals.fingerprint, acc, layout)
    if acc == "fp32":
        served = load_finals(data_dir() / "served")
        made = made.merge(KernelTable.from_measurements(served.measurements, served.fingerprint, acc, layout))
    if layout == "nn":
        if acc == "fp32":
            for swept in map(read_records, sorted((data_dir() / "searched").glob("h200_*_swept_fp32_nn.parquet"))):
                made = made.merge(KernelTable.from_measurements(swept.measurements, swept.fingerprint, acc, layout))
        return made.merge(made_for_hopper(acc, "tn").for_operands(layout="nn"))
    for records in map(read_records, BESIDE_FINALS[acc]):
        made = made.merge(KernelTable.from_measurements(records.measurements, records.fingerprint, acc))
    return made


@pytest.mark.parametrize("path", table_files(data_dir() / "tables"), ids=lambda path: path.stem)
def test_a_table_is_what_the_measurements_say(path) -> None:  # type: ignore[no-untyped-def]
    table = KernelTable.load(path)
    acc, layout = table.header.acc, table.header.layout
    if table.header.device == Device.of_arch(SM80):
        records = read_records(bundled_recording(acc, "sm80_mma"))
        made, evidence = tuned_elsewhere(records.measurements, records.fingerprint, SM80, acc, layout), {"transferred"}
    else:
        made = made_for_hopper(acc, layout)
        # A run of fp16 finals was cut short: of its last shapes there is the selection only.
        own = {"final", "searched"} if acc == "fp32" else set()
        evidence = {"final", "searched"} if layout == "tn" else {"transferred"} | own
    assert [entry.to_dict() for entry in table.entries] == [entry.to_dict() for entry in made.entries]
    assert (table.header.kind, table.header.soft) == (made.header.kind, made.header.soft)
    assert {entry.evidence for entry in table.entries} == evidence


def test_the_pages_say_where_replays_fall_short_and_how_many_were_searched() -> None:
    root = data_dir().parents[1]
    readme, protocol, kernels = (
        " ".join((root / name).read_text().split()) for name in ("README.md", "docs/protocol.md", "kernels/README.md")
    )
    about = " ".join((data_dir() / "README.md").read_text().split())
    settings = BenchSettings()
    finals = [row for row in load_finals(None).measurements if row.process_rounds]
    lasted_ms = np.array([row.median_us * row.launches / 1e3 for row in finals])
    short = int((lasted_ms < settings.final_replay_ms).sum())
    assert f"{lasted_ms.min():.1f} ms at worst in finals ({short} of {lasted_ms.size:,} rows under 20)" in readme
    assert f"of {lasted_ms.size:,} final rows {short}, {lasted_ms.min():.1f} ms at worst" in protocol

    rows = {
        path.stem: read_records(path, allow_mixed=True).measurements for path in (data_dir() / "searched").glob("*")
    }
    passed = [row for found in rows.values() for row in found if row.ok]
    searched_ms = np.array([row.median_us * row.launches / 1e3 for row in passed])
    short = int((searched_ms < settings.replay_ms).sum())
    assert f"of {searched_ms.size:,} searched rows {short}, {searched_ms.min():.2f} ms at worst" in protocol

    small, large = rows["h200_sm90_small_shortlist_fp32_tn"], rows["h200_sm90_shortlist_fp32_tn"]
    counts = Counter(problem for problem, _ in {(row.problem, row.config) for row in (*small, *large)}).values()
    assert f"{min(counts)} to {max(counts)} configurations for each shape of `judge96.yaml`" in about
    counts = Counter(problem for problem, _ in {(row.problem, row.config) for row in large if row.pdl}).values()
    assert f"shortlists of {min(counts)} to {max(counts)} configurations for each of {len(counts)} shapes" in kernels


def test_a_search_that_looked_faster_than_a_final_had_met_it_in_the_selection() -> None:
    folder = data_dir() / "searched"
    table = KernelTable.load(data_dir() / "tables" / "h200_fp32_tn.json")
    records = read_records(folder / "h200_sm90_proposed_fp32_tn.parquet")
    merged = table.merge(KernelTable.from_measurements(records.measurements, records.fingerprint))
    overtaken = [entry for entry in merged.entries if entry != table.lookup(entry.m, entry.n, entry.k)]
    selected = map(read_records, folder.glob("h200_sm90_ws_selected?_fp32_tn.parquet"))
    met = {(row.problem.mnk, row.config) for records in selected for row in records.measurements}
    assert all((entry.mnk, entry.config) in met for entry in overtaken)


def test_the_protocol_says_how_finals_of_the_same_kernel_agree() -> None:
    page = " ".join((data_dir().parents[1] / "docs" / "protocol.md").read_text().split())
    by_shape: dict[tuple[str, str], list[Final]] = defaultdict(list)
    for final in group_finals(load_finals().measurements):
        by_shape[final.key, final.problem.mnk].append(final)
    found = []
    for one, two in (pair for finals in by_shape.values() for pair in pairwise(finals)):
        first, second = one.against("cublaslt_auto"), two.against("cublaslt_auto")
        if first and second and one.ours and two.ours and one.ours.config == two.ours.config:
            agree = first.low <= second.ratio <= first.high and second.low <= first.ratio <= second.high
            found.append((agree, abs(first.ratio / second.ratio - 1.0)))
    agreed, apart = sum(agree for agree, _ in found), max(apart for _, apart in found)
    assert (
        f"the same kernel: {agreed} of {len(found)} pairs agree so, at most {apart:.1%} apart".replace("%", " %")
        in page
    )


def test_the_protocol_says_how_complete_runs_agree() -> None:
    page = " ".join((data_dir().parents[1] / "docs" / "protocol.md").read_text().split())
    columns = json.loads((data_dir() / "benchmarks" / "repeat.json").read_text())["figures"]["columns"].values()
    agree, pairs, overlap = (sum(one[name] for one in columns) for name in ("agree", "pairs", "overlap"))
    apart = max(one["largest_disagreement"] for one in columns)
    assert not any(one["reversed"] for one in columns)
    said = f"{agree} of {pairs} pairs agree so, {overlap} intervals overlap, no verdict is reversed, "
    said += f"at most {apart:.1%} apart"
    assert said.replace("%", " %") in page
    readme = " ".join((data_dir().parents[1] / "README.md").read_text().split())
    assert agree < 0.95 * pairs, "or these pages need not say so"
    assert "Fewer finals of a shape agree than intervals of 95 % promise" in readme


def test_the_kernels_page_says_how_ours_stand_beside_triton() -> None:
    page = " ".join((data_dir().parents[1] / "kernels" / "README.md").read_text().split())
    by_key = {board.key: board for board in boards(load_finals(data_dir() / "triton").measurements)}
    on, off = (by_key[f"offline/fp32/{pdl}"].standing("triton") for pdl in ("on", "off"))
    assert on and off and not on.losses
    assert f"{on.overall.geomean:.3f}x, {on.overall.win} of {on.overall.n} won" in page
    lost = ", ".join(f"{one.problem.mnk} lost at {one.ratio:.3f}" for one in off.losses)
    assert f"{off.overall.geomean:.3f}x without it, {off.overall.win} won and {lost}" in page
    theirs = on.overall.geomean / by_key["offline/fp32/on"].standing("cublaslt_auto").overall.geomean
    assert f"takes {theirs:.2f}x cuBLASLt-AutoTuning" in page


def test_every_value_of_every_axis_was_under_every_tool_and_what_did_not_run_is_said() -> None:
    records = [json.loads(path.read_text()) for path in (data_dir() / "sanitizer").glob("*.json")]
    cases = [dict(zip(one["columns"], case, strict=True)) for one in records for case in one["cases"]]
    for family in ("sm90_ws", "sm90_small", "sm80_mma"):
        for tool in ("memcheck", "synccheck", "racecheck"):
            ran = [case for case in cases if (case["family"], case["tool"]) == (family, tool) and case["ran"]]
            configs = [parse_config(case["config"]) for case in ran]
            narrow = {
                axis.name for axis in FAMILIES[family].axes if len({getattr(one, axis.name) for one in configs}) == 1
            }
            assert not narrow, (family, tool)
    (skipped,) = [case for case in cases if not case["ran"]]
    page = " ".join((data_dir().parents[1] / "kernels" / "README.md").read_text().split())
    assert f"{skipped['config']}, one of the 222 of `{skipped['family']}`, was not seen by {skipped['tool']}" in page
    assert sum((case["family"], case["tool"]) == (skipped["family"], skipped["tool"]) for case in cases) == 222


def test_the_kernels_page_says_which_clusters_synccheck_mixes_up() -> None:
    page = " ".join((data_dir().parents[1] / "kernels" / "README.md").read_text().split())
    records = [json.loads(path.read_text()) for path in (data_dir() / "sanitizer").glob("*.json")]
    hit: dict[int, list[bool]] = defaultdict(list)
    for one in records:
        for case in (dict(zip(one["columns"], values, strict=True)) for values in one["cases"]):
            if case["tool"] == "synccheck" and case["ran"] and case["family"] != "sm80_mma":
                geometry = FAMILIES[case["family"]].geometry
                hit[geometry.cluster_size(parse_config(case["config"]))].append(bool(case["findings"]))
    of_14, of_16 = (f"{sum(hit[size])} of the {len(hit[size])}" for size in (14, 16))
    large = f"{of_14} launches of clusters of 14 CTAs and {of_16} of clusters of 16"
    smaller = [found for size, findings in hit.items() if 1 < size <= 12 for found in findings]
    assert not any(smaller) and not any(hit[1]) and max(hit) == 16
    none = f"none of the {len(smaller)} of smaller clusters, up to 12, nor of the {len(hit[1])} of none"
    assert f"Hit were {large}, and {none}" in page


def test_the_readme_says_how_many_choices_never_met_the_library() -> None:
    readme = " ".join((data_dir().parents[1] / "README.md").read_text().split())
    table = KernelTable.load(data_dir() / "tables" / "h200_fp32_tn.json")
    alone = [entry for entry in table.entries if entry.config is not None and entry.ref_us is None]
    assert table.never_beside_library == len(alone) and {entry.evidence for entry in alone} == {"searched"}
    judged, searched = table.evidence["final"], table.evidence["searched"]
    assert f"{judged} entries were judged in finals, {searched - len(alone)} searched beside it" in readme
    assert f"and {len(alone)} only searched, without it: nothing says that cuBLASLt would not be faster there" in readme


def test_the_readme_says_where_the_library_takes_the_other_layout() -> None:
    readme = " ".join((data_dir().parents[1] / "README.md").read_text().split())
    final = latest_finals(load_finals().measurements)["offline/fp32/on", "64_16384_16384"]
    nn, tn, ours = final.named("cublaslt_auto_nn"), final.named("cublaslt_auto_tn"), final.ours
    assert nn and tn and ours and nn.median_us < ours.median_us < tn.median_us
    times = f"{nn.median_us:.1f} us with B as [K,N] and {tn.median_us:.1f} us as [N,K], ours {ours.median_us:.1f} us"
    assert f"on 64_16384_16384 it takes {times}" in readme


def test_the_pages_name_every_final_of_the_shape_whose_finals_differ_most() -> None:
    root = data_dir().parents[1]
    by_key: dict[str, list[str]] = defaultdict(list)
    for final in group_finals(load_finals().measurements):
        if final.problem.mnk == "128_16384_16384" and (found := final.against("cublaslt_auto")):
            by_key[final.key].append(f"{found.ratio:.3f}")
    on, off = by_key["offline/fp32/on"], by_key["offline/fp32/off"]
    said = f"with PDL {', '.join(on[:-1])} and, the newest, {on[-1]}, without {', '.join(off[:-1])} and {off[-1]}"
    for name in ("README.md", "kernels/README.md", "cudal2/data/README.md"):
        assert said in " ".join((root / name).read_text().split()), name
    nn = {pdl: by_key[f"offline/fp32-nn/{pdl}"] for pdl in ("on", "off")}
    kernels = " ".join((root / "kernels" / "README.md").read_text().split())
    assert f"128_16384_16384 {nn['on'][-1]} and {nn['off'][-1]}, all tied" in kernels


def test_quack_was_beside_every_shape_of_the_finals_and_the_readme_says_where_its_run_differs() -> None:
    readme = " ".join((data_dir().parents[1] / "README.md").read_text().split())
    found = {board.key: board for board in boards(load_finals(data_dir() / "quack").measurements)}
    judged = {board.key: board for board in boards(load_finals(data_dir() / "finals").measurements)}
    text: dict[str, list[str]] = defaultdict(list)
    for key in ("offline/fp32/on", "offline/fp32/off"):
        beside, reference = found[key].standing("quack"), found[key].standing()
        assert beside and reference and len(beside.shapes) == 96
        for mnk in ("128_16384_16384", "8192_8192_8192"):
            text[mnk] += [f"{shape.comparison.ratio:.3f}" for shape in reference.shapes if shape.problem.mnk == mnk]
        standing = judged[key].standing()
        assert standing
        text["finals"] += [f"{x.comparison.ratio:.3f}" for x in standing.shapes if x.problem.mnk == "8192_8192_8192"]
    one, cube, finals = (" and ".join(text[name]) for name in ("128_16384_16384", "8192_8192_8192", "finals"))
    assert f"Beside QuACK, on two more GPUs, it is {one}, 8192_8192_8192 {cube} ({finals} in the finals)" in readme


def test_the_readme_says_how_the_table_serves_shapes_without_their_own_entries(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = data_dir().parents[1]
    kinds = ("odd", "unaligned")
    swept = [
        str(one) for kind in kinds for one in sorted((data_dir() / "searched").glob(f"h200_*_{kind}_swept_fp32_tn*"))
    ]
    spec = importlib.util.spec_from_file_location("neighbours", root / "scripts" / "neighbours.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    table = str(data_dir() / "tables" / "h200_fp32_tn.json")
    monkeypatch.setattr("sys.argv", ["neighbours.py", *swept, "--table", table])
    script.main()
    words = capsys.readouterr().out.splitlines()[-1].split("; ")
    count, ratio, best = re.fullmatch(r"(\d+) of \d+ shapes: (\S+)x cuBLASLt, the best known (\S+)x", words[0]).groups()
    readme = " ".join((root / "README.md").read_text().split())
    said = f"{count} shapes with rows that TMA cannot read or store, each served by the table less its own entry"
    said += f": {ratio}x cuBLASLt, {words[1]}"
    assert f"{said}, the best known {best}x" in readme


def test_the_kernels_page_says_where_padded_kernels_are_faster_than_those_that_copy_nothing() -> None:
    best: dict[str, dict[Problem, float]] = defaultdict(dict)
    for family in ("sm80", "sm90"):
        rows = read_records(data_dir() / "searched" / f"h200_{family}_odd_swept_fp32_tn.parquet").measurements
        for row in rows:
            ratio = compare(row.times_us, row.ref_times_us).ratio
            best[family][row.problem] = max(ratio, best[family].get(row.problem, 0.0))
    padded, both = best["sm90"], sorted(set(best["sm80"]) & set(best["sm90"]))
    often = [one for one in both if one.m * one.n / (one.m + one.n) >= 700.0]
    ahead = [one for one in both if padded[one] > best["sm80"][one]]
    few = [one for one in ahead if one not in often]
    ratios, depths = [padded[one] for one in often], [one.k for one in often]
    assert set(often) < set(ahead) and (len(both), len(often), len(few)) == (62, 10, 8)
    said = f"K of {min(depths)} to {max(depths)}, there {geometric_mean(ratios):.3f}x cuBLASLt, geometric mean, "
    said += f"{min(ratios):.3f} to {max(ratios):.3f}x; of the other 52 on eight."
    assert said in " ".join((data_dir().parents[1] / "kernels" / "README.md").read_text().split()), said


def test_the_kernels_page_says_what_choices_taken_over_to_the_other_layout_cost() -> None:
    folder = data_dir()
    taken = KernelTable.load(folder / "tables" / "h200_fp32_tn.json").for_operands(layout="nn")
    selections = sorted((folder / "searched").glob("h200_sm90_*_selected1_fp32_nn.parquet"))
    swept = [folder / "searched" / "h200_sm90_swept_fp32_nn.parquet"]
    page = " ".join((folder.parents[1] / "kernels" / "README.md").read_text().split())
    cost = taken_over_cost(taken, selections)
    mean, under = geometric_mean(cost.values()) - 1.0, sum(value < 1.01 for value in cost.values())
    worst = max(cost, key=lambda mnk: cost[mnk])
    assert f"Of {len(cost)} shapes whose choice, as it is taken over now" in page
    said = f"it was {100 * mean:.1f} % slower than the best there in the mean, under 1 % on {under}, "
    assert f"{said}most on {worst} ({cost[worst]:.3f}x)" in page
    cost = taken_over_cost(taken, swept)
    worst = max(cost, key=lambda mnk: cost[mnk])
    said = (
        f"of the {len(cost)} of the 71 where it was timed {100 * geometric_mean(cost.values()) - 100:.1f} % in the mean"
    )
    assert f"{said}, most on {worst} ({cost[worst]:.3f}x)" in page
    best: dict[str, float] = {}
    for row in read_records(folder / "searched" / "h200_sm90_swept_fp32_nn.parquet").measurements:
        best[row.problem.mnk] = max(best.get(row.problem.mnk, 0.0), compare(row.times_us, row.ref_times_us).ratio)
    ahead = sum(ratio > 1.0 for ratio in best.values())
    assert f"of {len(best)} shapes (`h200_sm90_swept_fp32_nn`" in page
    assert f"the best {geometric_mean(best.values()):.3f}x cuBLASLt, ahead on {ahead})" in page


def taken_over_cost(taken: KernelTable, files: list[Path]) -> dict[str, float]:
    """Time with PDL of what a table takes over, over the best timed in these files."""
    timed: dict[Problem, dict[KernelConfig, float]] = defaultdict(dict)
    for path in files:
        for row in read_records(path).measurements:
            if row.ok and row.pdl and row.config is not None:
                timed[row.problem][row.config] = row.median_us
    entries = {problem: taken.lookup(problem.m, problem.n, problem.k) for problem in timed}
    return {
        problem.mnk: times[entry.config] / min(times.values())
        for problem, times in timed.items()
        if (entry := entries[problem]) is not None and entry.config in times
    }


def test_both_layouts_of_b_are_served() -> None:
    tables = [KernelTable.load(path) for path in table_files(data_dir() / "tables")]
    hopper = {(t.header.acc, t.header.layout): t for t in tables if t.header.device.capability == (9, 0)}
    assert set(hopper) >= {("fp32", "tn"), ("fp32", "nn")}
    entries = [hopper["fp32", layout].entries for layout in ("tn", "nn")]
    shapes = [{entry.mnk for entry in given} for given in entries]
    # What is fastest with K-major B may be illegal with N-major B; such a shape has its neighbours there.
    assert {entry.mnk for entry in entries[1] if entry.evidence == "transferred"} <= shapes[0]
    assert len(shapes[0] - shapes[1]) <= 0.05 * len(shapes[0]) and len(shapes[0]) >= 96
