"""The ablation table of kernels/README.md is what the shipped recording says."""

import importlib.util
import shutil
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, median

import pytest

from cudal2.errors import NothingValidError, UsageError
from cudal2.problem import Problem
from cudal2.records.measurement import Measurement, Status
from cudal2.records.recording import bundled_recording, read_records
from cudal2.space.config import Sm80MmaConfig, Sm90SmallConfig, Sm90WsConfig
from cudal2.space.families import FAMILIES

ROOT = Path(__file__).parents[1]
_SPEC = importlib.util.spec_from_file_location("ablation", ROOT / "scripts" / "ablation.py")
assert _SPEC is not None and _SPEC.loader is not None
ablation = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(ablation)

SPLIT = Sm90WsConfig(64, 64, 64, 4, "coop", 1, 1, 1, 4, "direct", 1, "m", 1, False)
WHOLE = Sm90WsConfig(64, 64, 64, 4, "coop", 1, 1, 1, 1, "direct", 1, "m", 1, False)


def test_the_page_holds_the_table_of_the_shipped_recording():
    path = bundled_recording()
    page = (ROOT / "kernels" / "README.md").read_text()
    assert ablation.table(ablation.relative_times(path), path) in page


def test_what_the_newest_axes_are_worth_is_what_was_recorded():
    """The written table: best without and with the value, how much slower, and cuBLASLt beside the best with."""
    rows = read_records(ROOT / "cudal2" / "data" / "searched" / "h200_sm90_new_axes_fp32_tn.parquet").measurements
    page = (ROOT / "kernels" / "README.md").read_text()
    lines = page[page.index("| without | shape | best without |") :].split("\n\n")[0].splitlines()[2:]
    assert len(lines) == 9
    axis, value = "", ""
    for line in lines:
        name, mnk, *figures = (cell.strip() for cell in line.strip("|").split("|"))
        axis, value = name.replace("`", "").split() if name else (axis, value)
        times = {True: [], False: []}
        for row in rows:
            if row.problem.mnk == mnk and row.ok:
                times[getattr(row.config, axis) == value].append((row.median_us, row.median_us * row.speedup))
        (without_us, _), (with_us, theirs_us) = min(times[False]), min(times[True])
        slower = f"{100 * (without_us / with_us - 1):.1f} %"
        assert figures == [f"{without_us:.2f}", f"{with_us:.2f}", slower, f"{theirs_us:.2f}"], line


def test_what_a_resident_operand_is_worth_is_what_selections_timed():
    folder, page = ROOT / "cudal2" / "data" / "searched", (ROOT / "kernels" / "README.md").read_text()
    meetings = defaultdict(lambda: defaultdict(list))
    # Later selections had few without it.
    for path in folder.glob("h200_sm90_ws_selected[1-8]_fp32_tn.parquet"):
        for row in read_records(path).measurements:
            if row.ok and row.pdl:
                meetings[row.problem, row.utc][row.config.resident_a > 0].append(row)
    newest = {key[0]: met for key, met in sorted(meetings.items(), key=lambda item: item[0][1]) if len(met) == 2}
    expected = []
    for problem, met in sorted(newest.items()):
        without, with_it = (min(met[resident], key=lambda row: row.median_us) for resident in (False, True))
        faster = f"{100 * (without.median_us / with_it.median_us - 1):.1f} %"
        times = f"{without.median_us:.2f} | {with_it.median_us:.2f} | {faster} | {median(with_it.ref_times_us):.2f}"
        expected.append(f"| {problem.mnk} | {times} |")
    lines = page[page.index("| shape | best without | best with `resident_a` |") :].split("\n\n")[0].splitlines()[2:]
    assert lines == expected and len(lines) >= 13


def test_what_cutlass_comes_to_is_what_was_recorded():
    """The written table: the best of both families in the newest selection where they met, with PDL."""
    data, page = ROOT / "cudal2" / "data", (ROOT / "kernels" / "README.md").read_text()
    meetings = defaultdict(lambda: defaultdict(list))
    for family in ("sm90_collective", "sm90_ws"):
        for path in (data / "searched").glob(f"h200_{family}_selected*_fp32_tn.parquet"):
            for row in read_records(path).measurements:
                if row.ok and row.pdl:
                    meetings[row.problem, row.utc][family].append(row)
    newest = {key[0]: met for key, met in sorted(meetings.items(), key=lambda item: item[0][1]) if len(met) == 2}
    lines = page[page.index("| shape | best `sm90_collective` |") :].split("\n\n")[0].splitlines()[2:]
    expected = []
    for problem, met in sorted(newest.items()):
        theirs, ours = (min(met[name], key=lambda row: row.median_us) for name in ("sm90_collective", "sm90_ws"))
        slower = f"{100 * (theirs.median_us / ours.median_us - 1):.1f} %"
        library_us = median(ours.ref_times_us)
        expected.append(
            f"| {problem.mnk} | {theirs.median_us:.2f} | {ours.median_us:.2f} | {slower} | {library_us:.2f} |"
        )
    assert lines == expected and len(lines) >= 8

    rows = read_records(bundled_recording("fp32", "sm90_collective")).measurements
    best = defaultdict(float)
    for row in rows:
        best[row.problem] = max(best[row.problem], row.speedup)
    figures = (geometric_mean(best.values()), len(best), max(best.values()), min(best.values()))
    assert f"All {len(rows)} rows of that recording are right" in page and all(row.ok for row in rows)
    assert (
        "a speed-up of {:.3f}x over cuBLASLt-AutoTuning, geometric mean over {} shapes, best {:.3f}x, worst {:.3f}x"
    ).format(*figures) in page
    counts = Counter(row.problem for row in rows).values()
    assert f"{min(counts)} to {max(counts)} configurations of CUTLASS's" in page
    path = bundled_recording("fp32", "sm90_collective")
    assert ablation.table(ablation.relative_times(path), path) in page


@pytest.mark.parametrize("family", ["sm90_ws", "sm90_small"])
def test_the_page_holds_what_twins_of_the_shipped_selections_say(family: str, monkeypatch):
    monkeypatch.chdir(ROOT)
    paths = sorted(Path("cudal2/data/searched").glob(f"h200_{family}_selected*_fp32_tn.parquet"))
    rows = [row for path in paths for row in ablation.usual_rows(path)]
    assert ablation.twins_table(rows, paths) in (ROOT / "kernels" / "README.md").read_text()


def test_twins_are_of_one_family_and_of_the_same_rounds():
    searched = ROOT / "cudal2" / "data" / "searched"
    paths = [searched / f"h200_sm90_{family}_selected1_fp32_tn.parquet" for family in ("small", "ws")]
    with pytest.raises(UsageError, match="of sm90_small and sm90_ws: give those of one family"):
        ablation.twin_rows(paths)
    with pytest.raises(UsageError, match="holds kernels of sm90_small"):
        ablation.twin_rows(paths, "sm90_ws")
    with pytest.raises(NothingValidError, match="no two configurations were timed in the same rounds"):
        ablation.twin_rows([bundled_recording("fp32", "sm80_mma")])
    assert len(ablation.twin_rows(paths[:1])) > len({row.utc for row in ablation.twin_rows(paths[:1])})


def test_twins_share_everything_but_one_axis():
    def timed(config, time_us, utc="1"):
        problem = Problem(64, 64, 4096)
        return Measurement(problem, config.family, config, Status.CORRECT, times_us=(time_us,), utc=utc)

    axis = next(axis for axis in FAMILIES["sm90_ws"].axes if axis.name == "raster")
    other = replace(WHOLE, raster="n")
    rows = [timed(WHOLE, 3.0), timed(other, 2.0), timed(replace(other, stages=3), 1.0), timed(other, 1.0, utc="2")]
    assert ablation.twins(rows, axis) == {("m", "n"): [(1.5, "64_64_4096")]}
    gains = [(1.0 + at / 1000, "64_64_64") for at in range(19)] + [(0.9996, "64_64_128")]
    line = ablation.twins_line("raster", "m", "n", gains)
    assert line == "| `raster` m to n | 20 | 2 | 0.9 % | 0.0 % | 1.7 % | 1.8 %, 64_64_64 |"


@pytest.mark.parametrize("config", [WHOLE, Sm90SmallConfig(64, 32, 64, 4, "wgmma", 4, 1)], ids=lambda one: one.family)
def test_twins_by_what_l2_fetches_are_found_in_both_families(config):
    fewer, problem = replace(config, l2_promotion=128), Problem(64, 64, 4104)
    rows = [
        Measurement(problem, config.family, one, Status.CORRECT, times_us=(time_us,), utc=str(at))
        for at in range(20)
        for one, time_us in ((fewer, 2.0), (config, 2.2))
    ]
    table = ablation.twins_table(rows, [Path("x")])
    assert "| `l2_promotion` 256 to 128 | 20 | 1 | 10.0 % | 10.0 % | 10.0 % | 10.0 %, 64_64_4104 |" in table
    best = rows_of(ablation.table({problem: {config: 2.2, fewer: 2.0}}, Path("x")))
    assert "| 0.0 % | 0 |" in best["`l2_promotion` other than 128"]


def test_records_of_several_families_are_read_one_family_at_a_time(tmp_path):
    newest = max((ROOT / "cudal2" / "data" / "quack").glob("*.gz"))
    finals = Path(shutil.copy(newest, tmp_path)).parent
    small = ablation.relative_times(finals, "sm90_small")
    assert ablation.family_in(small) == "sm90_small"
    assert {type(config) for column in small.values() for config in column} == {Sm90SmallConfig}
    for family in ("", "sm80_mma"):
        with pytest.raises(UsageError, match="kernels of sm90_small, sm90_ws: name one"):
            ablation.relative_times(finals, family)


def test_each_family_has_its_place_in_the_page_and_its_own_axes():
    page = (ROOT / "kernels" / "README.md").read_text()
    for family in FAMILIES:
        assert all(page.count(marker) == 1 for marker in ablation.markers(family))


def test_names_and_flags_are_taken_away_and_numbers_held_whatever_the_family():
    mma = Sm80MmaConfig(64, 64, 32, 3, 2, 2, "swizzle", 2, "plain", "wide", 16, 2, "m", 1)
    times = {
        Problem(64, 64, 64): {mma: 0.5, replace(mma, smem_layout="pad"): 0.6, replace(mma, fragments=1): 0.7},
        Problem(64, 64, 512): {mma: 0.5, replace(mma, fragments=1): 0.4, replace(mma, stages=5): 0.45},
        Problem(64, 64, 65): {replace(mma, copy_bytes=2): 0.5},
    }
    rows = rows_of(ablation.table(times, Path("x")))
    assert rows["`smem_layout` swizzle"].split("|")[2:5] == [" 20.0 % ", " 1 ", " 20 % "]
    assert rows["`smem_layout` pad"].split("|")[2] == " 0.0 % "
    assert rows["`fragments` other than 2"].split("|")[2:5] == [" 4.0 % ", " 1 ", " 12 % "]
    assert "| 2 |" in rows["`smem_layout` swizzle"] and "`copy_bytes`" not in "".join(rows)
    assert not [name for name in rows if "raster" in name or "prefetch" in name], "only what was recorded"


def test_a_flag_is_taken_away_both_ways():
    persistent = replace(WHOLE, persistent=True)
    rows = rows_of(ablation.table({Problem(4096, 4096, 64): {WHOLE: 1.0, persistent: 0.5}}, Path("x")))
    assert "| 100.0 % | 1 |" in rows["`persistent`"] and "| 0.0 % | 0 |" in rows["`persistent` off"]


def rows_of(text: str) -> dict[str, str]:
    return {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| ")}


def test_a_loss_is_best_without_over_best_with():
    times = {Problem(64, 64, 4096): {SPLIT: 0.5, WHOLE: 0.75}, Problem(64, 64, 64): {WHOLE: 1.0}}
    rows = rows_of(ablation.table(times, Path("x")))
    assert "| 22.5 % | 1 | 50 % | 64_64_4096" in rows["`split_k` other than 1"]
    split = {Problem(64, 64, 4096): {SPLIT: 0.5, WHOLE: 0.75}}
    rows = rows_of(ablation.table(split, Path("x")))
    assert "| 50.0 % | 1 |" in rows["`split_k` above 1"] and "| 0.0 % | 0 |" in rows["`split_k` other than 4"]
    taken = {Problem(64, 64, 64): {WHOLE: 1.0, replace(WHOLE, epilogue="tma"): 2.0}, **split}
    assert "| 0 |" in rows_of(ablation.table(taken, Path("x")))["`epilogue` tma"]


def test_what_every_configuration_has_cannot_be_taken_away():
    text = ablation.line("all", lambda config: False, {Problem(64, 64, 64): {WHOLE: 1.0}})
    assert text == "| all | none left | | | | 1 |"
