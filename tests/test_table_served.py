"""What serves a shape where a library is ahead of ours: the fastest that hgemm can run; and the table says who is."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from fabricated_finals import CONFIG, final_rows
from fabricated_recording import FINGERPRINT
from test_table import HEADER, LARGE, SMALL, chosen, entry, lost, row

from cudal2.errors import TableError
from cudal2.launch.plan import plan_launch
from cudal2.paths import data_dir
from cudal2.problem import Problem
from cudal2.records.finals import group_finals
from cudal2.records.recording import read_records
from cudal2.report.summary import load_finals
from cudal2.runtime.kernels import DeviceKernels
from cudal2.settings import load_guards
from cudal2.space.space import SearchSpace
from cudal2.table import KernelTable
from cudal2.table.files import table_files
from cudal2.table.guards import guard

MNK = "512_512_512"


def final(ours_us, auto_us, torch_us, auto="cublaslt_auto_nn"):
    return final_rows(MNK, ours_us, {auto: auto_us} | ({"torch": torch_us} if torch_us else {}))


def behind(mnk=MNK, **more):
    """An entry that cuBLASLt is ahead of and torch.matmul is not."""
    values = {"evidence": "final", "baseline": "cublaslt_auto", "reason": "ours took 4.1 us", "torch_us": 5.0, **more}
    return dataclasses.replace(entry(mnk, LARGE, 4.1, 4.0), **values)


def routed(table, mnk=MNK):
    loaded = DeviceKernels(HEADER.device, lambda config, problem: SimpleNamespace(plan=plan_launch))
    return loaded.route(Problem.parse(mnk), table)


@pytest.mark.parametrize(
    ("ours_us", "auto_us", "torch_us", "serves", "baseline", "median_us"),
    [
        (5.0, 4.0, 6.0, True, "cublaslt_auto", 5.0),
        (5.0, 4.0, 5.0, True, "cublaslt_auto", 5.0),
        (5.0, 4.0, 4.5, False, "cublaslt_auto", 4.0),
        (5.0, 4.0, None, False, "cublaslt_auto", 4.0),
        (5.0, 6.0, 4.5, False, "torch", 4.5),
        (5.0, 4.6, 4.5, False, "torch", 4.5),
        (5.0, 5.0, 5.0, True, None, 5.0),
        (5.0, 6.0, 7.0, True, None, 5.0),
    ],
)
def test_of_ours_and_torch_the_faster_serves_and_who_is_ahead_of_ours_is_named(
    ours_us, auto_us, torch_us, serves, baseline, median_us
):
    best = chosen(final(ours_us, auto_us, torch_us))
    assert (best.config, best.baseline, best.median_us) == (CONFIG if serves else None, baseline, median_us)
    assert (best.ref_us, best.torch_us, best.evidence) == (auto_us, torch_us, "final")
    assert best.served_us == (ours_us if serves else torch_us or auto_us)
    ahead_us = {"cublaslt_auto": auto_us, "torch": torch_us, None: None}[baseline]
    assert best.reason == (f"{CONFIG.name} took {ours_us:.3f} us against {ahead_us:.3f} us" if baseline else "")
    route = routed(KernelTable(HEADER, [best]))
    assert (route.config is not None, route.expected) == (serves, not serves)


def test_a_kernel_that_serves_although_a_library_is_ahead_is_never_shown_as_a_win(tmp_path, run):
    table = KernelTable.from_measurements(final(5.0, 4.0, 6.0), FINGERPRINT)
    table.save(tmp_path / "table.json")
    assert KernelTable.load(tmp_path / "table.json").entries == table.entries
    code, out, err = run("table", "lookup", "--mnk", MNK, "--table", tmp_path / "table.json", "--json")
    said = f"cublaslt_auto is ahead: {CONFIG.name} took 5.000 us against 4.000 us, torch.matmul 6.000 us)"
    assert code == 0 and said in err
    found = json.loads(out)
    assert (found["baseline"], found["median_us"], found["ref_us"], found["torch_us"]) == ("cublaslt_auto", 5, 4, 6)
    assert found["config"]["tile_m"] == CONFIG.tile_m
    code, out, _ = run("table", "show", "--table", tmp_path / "table.json")
    shown = " ".join(out.split())
    assert f"{MNK} {CONFIG.name} 5.0000 4.0000 0.800 6.0000 off final {CONFIG.name} took 5.000 us" in shown
    assert table.lookup(512, 512, 512).speedup == 0.8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"torch_us": None}, "only if torch.matmul is slower"),
        ({"torch_us": 4.05}, r"torch.matmul took 4.05 us, the configuration 4.1 us"),
        ({"baseline": None, "reason": "", "torch_us": 4.05}, "torch.matmul took 4.05 us"),
        ({"reason": ""}, "needs its reason"),
        ({"config": None, "baseline": None}, "a configuration, a baseline, or both"),
        ({"torch_us": -1.0}, "-1.0 is no time"),
        ({"runner_up_ratio": 0.0}, "0.0 is no time or ratio"),
    ],
)
def test_an_entry_that_would_serve_what_was_slower_is_refused(change, message):
    with pytest.raises(TableError, match=message):
        behind(**change)


def test_in_another_layout_torch_s_time_does_not_speak_for_ours_and_for_another_type_it_does():
    table = KernelTable(HEADER, [behind(), entry("64_64_64", torch_us=5.0)])
    for other in ({"layout": "nn"}, {"acc": "fp16"}):
        moved = table.for_operands(**other)
        left = moved.lookup(512, 512, 512)
        assert (left.config, left.baseline, left.median_us, left.torch_us) == (None, "cublaslt_auto", 4.0, None)
        assert moved.lookup(64, 64, 64).config == SMALL and moved.lookup(64, 64, 64).torch_us is None
    assert table.for_operands(dtype="bf16").lookup(512, 512, 512).config.build_name == LARGE.build_name


def test_a_neighbour_that_a_library_is_ahead_of_serves_ours_as_it_does_itself():
    near = "500_512_512"
    assert routed(KernelTable(HEADER, [behind()]), near).config is not None
    assert routed(KernelTable(HEADER, [lost(MNK)]), near).config is None
    assert "cublaslt_auto is ahead" in KernelTable(HEADER, [behind()]).explain(500, 512, 512)


def test_of_two_finals_what_serves_in_less_time_stays_not_what_no_program_can_call():
    left = dataclasses.replace(lost(MNK, 3.0, "final"), torch_us=5.0)
    mine, theirs = (KernelTable(HEADER, [one]) for one in (left, behind()))
    for merged in (mine.merge(theirs), theirs.merge(mine)):
        assert merged.lookup(512, 512, 512).config == LARGE


def test_guards_on_speed_and_their_cost_are_of_what_would_serve_instead():
    table = KernelTable(HEADER, [behind()])
    made, results = guard(table, load_guards("default").rules)
    assert made.entries == table.entries and results[0].judged == 1
    rule = dataclasses.replace(load_guards("default").rules[0], below=2.0)
    made, (result,) = guard(table, [rule])
    left = made.lookup(512, 512, 512)
    assert (left.config, left.median_us, left.torch_us) == (None, 4.0, 5.0)
    assert "now take 1.220x their time" in result.summary and "took 4.100 us against 5.000 us" in left.reason


def test_a_table_of_the_first_schema_loads_and_is_written_as_one_of_this(tmp_path):
    values = KernelTable(HEADER, [entry("64_64_64"), lost("8192_64_64")]).to_dict()
    values["header"]["schema"] = 1
    del values["header"]["sha256"]
    values["entries"]["64_64_64"]["runner_up_us"] = 4.2
    (tmp_path / "old.json").write_text(json.dumps(values))
    table = KernelTable.load(tmp_path / "old.json")
    assert table.entries == (entry("64_64_64"), lost("8192_64_64")) and table.header.schema == 2
    table.save(tmp_path / "new.json")
    assert KernelTable.load(tmp_path / "new.json").entries == table.entries
    (tmp_path / "old.json").write_text(json.dumps(values).replace('"schema": 1', '"schema": 2'))
    with pytest.raises(TableError, match="runner_up_us"):
        KernelTable.load(tmp_path / "old.json")


# The next best


def test_the_runner_up_is_compared_as_the_winner_was_chosen():
    """By the clocks of its own rounds the second is slower, by the clock on the wall faster."""
    rows = [row(MNK, SMALL, [11.0] * 3, [12.1] * 3), row(MNK, LARGE, [10.0] * 3, [10.2] * 3)]
    best = chosen(rows)
    assert best.config == SMALL and best.runner_up_ratio == pytest.approx((10.0 / 10.2) / (11.0 / 12.1))
    alone = chosen([rows[0], dataclasses.replace(rows[1], ref_times_us=())])
    assert alone.config == LARGE and alone.runner_up_ratio == pytest.approx(1.1)
    assert chosen(rows[:1]).runner_up_ratio is None
    assert chosen([rows[0], dataclasses.replace(rows[0], pdl=True)]).runner_up_ratio is None


def test_a_runner_up_is_faster_by_no_more_than_the_noise_of_a_tie():
    best = chosen([row(MNK, SMALL, [4.01]), row(MNK, LARGE, [4.0])])
    assert best.config == SMALL and 0.995 < best.runner_up_ratio < 1.0


# What ships


@pytest.mark.parametrize("path", table_files(data_dir() / "tables"), ids=lambda path: path.stem)
def test_no_shipped_entry_serves_what_its_final_found_slower(path):
    table = KernelTable.load(path)
    acc, layout, dtype = table.header.problem(1, 1, 1).signature
    judged = {}
    off_grid = [read_records(found, allow_mixed=True) for found in (data_dir() / "off_grid").glob("*.parquet")]
    on_grid = load_finals(), load_finals(data_dir() / "served")
    rows = [row for records in (*on_grid, *off_grid) for row in records.measurements]
    for one in group_finals(rows):
        if one.ours and one.problem.signature == (acc, layout, dtype):
            judged.setdefault(one.problem.mnk, {})[one.pdl] = one
    shown = [one for one in table.entries if one.evidence == "final"]
    assert bool(shown) == ((acc, layout) != ("fp16", "nn") and table.header.device == HEADER.device)
    for one in shown:
        ours = min((final.ours for final in judged[one.mnk].values()), key=lambda found: found.median_us)
        torch = judged[one.mnk][ours.pdl].named("torch")
        assert (one.config is None) == (torch.median_us < ours.median_us), one.mnk


def test_the_readme_says_what_serves_where_a_library_won_a_final():
    readme = " ".join((data_dir().parents[1] / "README.md").read_text().split())
    table = KernelTable.load(data_dir() / "tables" / "h200_fp32_tn.json")
    won = [one for one in table.entries if one.evidence == "final" and one.baseline is not None]
    ours = [one.torch_us / one.median_us - 1.0 for one in won if one.config is not None]
    said = f"({len(ours)} of the {len(won)} that a library won, by {100 * min(ours):.0f} to {100 * max(ours):.0f} %)"
    assert said in readme and {one.baseline for one in won} == {"cublaslt_auto", "torch"}


@pytest.mark.parametrize("path", table_files(data_dir() / "tables"), ids=lambda path: path.stem)
def test_what_serves_an_n_that_8_does_not_divide_is_legal_there(path):
    """Whatever was measured near, whichever way its operands lie."""
    table, rng = KernelTable.load(path), np.random.default_rng(7)
    spaces, served = {}, 0
    for _ in range(40):
        m, n, k = (int(size) for size in np.exp(rng.uniform(np.log(8), np.log(16384), 3)))
        problem = table.header.problem(m, n if n % 8 else n + int(rng.integers(1, 8)), k)
        found = table.best(problem.m, problem.n, problem.k)
        if found is not None and found.config is not None:
            space = spaces.setdefault(found.config.family, SearchSpace(family=found.config.family))
            assert not space.explain(found.config, problem), f"{found.config.name} on {problem.mnk}"
            served += 1
    assert served >= 1 or len(table.entries) < 10
