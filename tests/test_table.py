"""Kernel tables: round trips, refusals, exact and nearest lookup, choosing winners, concurrent writers."""

import dataclasses
import json
import multiprocessing
import re

import pytest
from fabricated_finals import final_rows
from fabricated_recording import FINGERPRINT

from cudal2.errors import EnvironmentProblemError, TableError
from cudal2.problem import Problem
from cudal2.records.measurement import Measurement, Status
from cudal2.space.config import Sm80MmaConfig, Sm90WsConfig
from cudal2.space.refit import refit
from cudal2.space.space import SearchSpace
from cudal2.table import Device, Entry, Header, KernelTable, neighbours

SMALL = Sm90WsConfig(64, 64, 64, 2, "coop", 1, 1, 1, 1, "tma", 1, "m", 1, False)
LARGE = Sm90WsConfig(128, 256, 64, 4, "coop", 2, 1, 1, 1, "tma", 1, "m", 4, False)
WAVES = dataclasses.replace(LARGE, group=8, persistent=True)
SPLIT = Sm90WsConfig(64, 64, 64, 4, "coop", 1, 1, 1, 4, "direct", 1, "m", 1, False)
HEADER = Header.from_fingerprint(FINGERPRINT, "fp32", "tn")


def entry(mnk, config=SMALL, median_us=4.0, ref_us=5.0, evidence="searched", **more):
    problem = Problem.parse(mnk)
    return Entry(problem.m, problem.n, problem.k, config, None, median_us, ref_us, evidence, **more)


def lost(mnk, median_us=3.0, evidence="searched"):
    problem = Problem.parse(mnk)
    return Entry(
        problem.m, problem.n, problem.k, None, "cublaslt_auto", median_us, median_us, evidence, reason="ours took 4 us"
    )


def row(mnk, config, times_us, ref_us=(), pdl=False, **more):
    problem = Problem.parse(mnk, **more)
    return Measurement(
        problem, "sm90_ws", config, Status.CORRECT, times_us=tuple(times_us), ref_times_us=tuple(ref_us), pdl=pdl
    )


def chosen(rows, mnk="512_512_512", **more):
    problem = Problem.parse(mnk)
    return KernelTable.from_measurements(rows, FINGERPRINT, **more).lookup(problem.m, problem.n, problem.k)


@pytest.fixture
def table():
    return KernelTable(HEADER, [entry("1024_1024_1024", LARGE), entry("64_64_64"), lost("8192_64_64")])


@pytest.fixture
def saved(table, tmp_path):
    table.save(tmp_path / "table.json")
    return tmp_path / "table.json"


# The file


def test_a_saved_table_loads_as_it_was(table, saved):
    loaded = KernelTable.load(saved)
    assert loaded.entries == table.entries
    assert loaded.header == table.header
    assert loaded.sha256 == table.sha256
    loaded.save(saved.with_name("again.json"))
    assert saved.with_name("again.json").read_text() == saved.read_text()


def test_one_line_per_shape_in_order_of_size(saved):
    lines = saved.read_text().splitlines()
    shapes = [match.group(1) for line in lines if (match := re.match(r'"(\d+_\d+_\d+)":', line))]
    assert shapes == ["64_64_64", "1024_1024_1024", "8192_64_64"]
    values = json.loads(saved.read_text())
    assert values["entries"]["64_64_64"]["config"] == {**SMALL.to_dict()}
    assert list(values) == ["header", "entries"]


def test_the_file_does_not_depend_on_the_order_of_entries(table):
    assert KernelTable(HEADER, table.entries[::-1]).to_text() == table.to_text()


def test_the_checksum_follows_the_content(table):
    other = KernelTable(HEADER, [*table.entries[:-1], lost("8192_64_64", 3.5)])
    assert other.sha256 != table.sha256


def test_an_empty_table_round_trips(tmp_path):
    KernelTable(HEADER, []).save(tmp_path / "empty.json")
    assert len(KernelTable.load(tmp_path / "empty.json")) == 0


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "no kernel table, or a damaged one"),
        (lambda text: "", "no kernel table, or a damaged one"),
        (lambda text: "# A page\n", "no kernel table, or a damaged one"),
        (lambda text: "PAR1\0", "no kernel table, or a damaged one"),
        (lambda text: '{"a": 1}', "no kernel table, or a damaged one"),
        (lambda text: "[]", "no kernel table, or a damaged one"),
        (lambda text: '{"entries": {}}', "no kernel table, or a damaged one"),
        (lambda text: text.replace('"median_us": 4.0', '"median_us": 2.0'), "checksum"),
        (lambda text: text.replace('"schema": 2', '"schema": 9'), "schema 9 is not 1 to 2"),
        (
            lambda text: text.replace('"stages"', '"stagger"'),
            r"64_64_64.*wrong or missing fields \['stages', 'stagger'\]",
        ),
        (lambda text: text.replace('"8192_64_64"', '"64_64_64"'), "'64_64_64' occurs twice"),
        (lambda text: text.replace('"64_64_64"', '"64_64"'), "64_64.*M_N_K"),
        (lambda text: text.replace('"acc": "fp32"', '"acc": "fp8"'), "fp8"),
        (lambda text: text.replace('"reason": "ours took 4 us"', '"reason": ""'), "needs its reason"),
        (lambda text: text.replace('"evidence": "searched"', '"evidence": "hearsay"'), "hearsay"),
        (lambda text: text.replace('"evidence": "searched"', '"surprise": 1, "evidence": "searched"'), "surprise"),
    ],
)
def test_a_damaged_table_is_one_clear_line(saved, damage, message):
    saved.write_text(damage(saved.read_text()))
    with pytest.raises(TableError, match=message) as caught:
        KernelTable.load(saved)
    assert str(saved) in str(caught.value) and "delete" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_edited_on_purpose_loads_without_its_checksum(saved):
    text = re.sub(r', "sha256": "\w+"', "", saved.read_text()).replace('"median_us": 4.0', '"median_us": 2.0')
    saved.write_text(text)
    assert KernelTable.load(saved).lookup(64, 64, 64).median_us == 2.0


def test_a_missing_file_is_a_table_error(tmp_path):
    with pytest.raises(TableError, match="No such file"):
        KernelTable.load(tmp_path / "none.json")


def test_saving_leaves_no_partial_file(saved):
    assert [path.name for path in saved.parent.iterdir()] == ["table.json"]


def test_an_unwritable_target_is_one_clear_line(table, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblemError, match="cannot write"):
        table.save(tmp_path / "file" / "table.json")


# The device


@pytest.mark.parametrize(
    ("gib", "memory_gb"),
    [(79.6, 80), (79.1, 80), (93.1, 96), (94.5, 96), (139.8, 141), (140.4, 141), (39.4, 40), (178.4, 180)],
)
def test_memory_classes_are_nominal_sizes(gib, memory_gb):
    assert Device.from_memory((9, 0), 132, gib).memory_gb == memory_gb


def test_the_name_of_the_gpu_is_only_a_label(table, saved):
    renamed = dataclasses.replace(FINGERPRINT, gpu="NVIDIA H200 / vGPU")
    KernelTable.load(saved, device=Device.from_fingerprint(renamed))
    assert Device.from_fingerprint(renamed).name == "sm90_132sm_141gb"


@pytest.mark.parametrize("change", [{"capability": (8, 0)}, {"sm_count": 114}, {"memory_gib": 80}])
def test_another_device_is_refused(saved, change):
    device = Device.from_fingerprint(dataclasses.replace(FINGERPRINT, **change))
    with pytest.raises(TableError, match=f"is for sm90_132sm_141gb_fp32_tn, not for {device.name}_fp32_tn"):
        KernelTable.load(saved, device=device)


@pytest.mark.parametrize("wanted", [{"acc": "fp16"}, {"layout": "nn"}])
def test_another_accumulator_or_layout_is_refused(saved, wanted):
    with pytest.raises(TableError, match="is for sm90_132sm_141gb_fp32_tn"):
        KernelTable.load(saved, device=HEADER.device, **wanted)


def test_soft_differences_are_named_and_unknown_never_matches():
    assert HEADER.soft_differences(HEADER.soft) == []
    changed = HEADER.soft_differences({**HEADER.soft, "driver": "600"})
    assert changed == ["driver: measured with 0, here 600"]
    unknown = dataclasses.replace(HEADER, soft={"driver": "unknown"})
    assert unknown.soft_differences({"driver": "unknown"}) != []


# Lookup


def test_lookup_is_exact(table):
    assert table.lookup(64, 64, 64).config == SMALL
    assert table.lookup(64, 64, 72) is None


def test_best_prefers_the_exact_entry(table):
    assert table.best(1024, 1024, 1024) is table.lookup(1024, 1024, 1024)
    assert "exact" in table.explain(1024, 1024, 1024)


def test_a_baseline_entry_is_found_too(table):
    assert table.best(8192, 64, 64).kernel_name == "cublaslt_auto"
    assert "because ours took 4 us" in table.explain(8192, 64, 64)
    assert "cuBLASLt" not in table.explain(1024, 1024, 1024)
    alone = KernelTable(HEADER, [dataclasses.replace(one, ref_us=None) for one in table.entries])
    assert "there, without a time of cuBLASLt)" in alone.explain(1024, 1024, 1024)
    assert table.never_beside_library == 0 and alone.never_beside_library == len(alone) - 1


def test_of_kernels_that_promise_as_much_the_nearest_in_log_space_serves():
    deep = dataclasses.replace(SPLIT, split_k=1, stages=12)
    table = KernelTable(HEADER, [entry("64_64_1024", deep), entry("64_64_4096", deep)])
    # 2200 is nearer to 1024 by difference, and nearer to 4096 by logarithm; 2000 nearer to 1024 by both.
    assert table.best(64, 64, 2200).k == 4096
    assert table.best(64, 64, 2000).k == 1024
    assert table.best(64, 64, 2200).evidence == "transferred"
    assert "(from 64_64_4096, transferred" in table.explain(64, 64, 2200)


def test_fewer_rows_or_columns_than_a_tile_has_are_as_far_as_those_of_a_tile():
    table = KernelTable(HEADER, [entry("64_4096_4096")])
    assert table.best(1, 4096, 4096).mnk == table.best(8, 14336, 4096).mnk == "64_4096_4096"
    assert table.best(1, 64, 4096) is None, "4096 columns are not 64"
    assert KernelTable(HEADER, [entry("4096_64_4096")]).best(4096, 8, 4096) is not None


def test_a_shape_far_from_all_others_gets_nothing(table):
    assert table.best(16384, 16384, 16384) is None
    assert "no measured shape is within 4x" in table.explain(16384, 16384, 16384)


def test_a_kernel_that_promises_more_here_beats_that_of_a_nearer_shape():
    # Tiles of 128 x 256 are 8 CTAs here, those of 64 x 64 are 64.
    small = dataclasses.replace(SMALL, stages=8)
    table = KernelTable(HEADER, [entry("1024_1024_1024", LARGE), entry("256_256_512", small)])
    assert table.best(512, 512, 1024).mnk == "256_256_512"
    assert table.best(2048, 2048, 1024).mnk == "1024_1024_1024"


def test_only_the_most_promising_neighbours_are_refitted(monkeypatch):
    asked = []

    def counted(config, source, problem, space):
        asked.append(source.mnk)
        return refit(config, source, problem, space)

    monkeypatch.setattr(neighbours, "refit", counted)
    table = KernelTable(HEADER, [entry(f"{64 * m}_{64 * n}_1024", SPLIT) for m in range(4, 9) for n in range(4, 9)])
    assert table.best(380, 380, 1024) is not None
    assert len(asked) == neighbours.REFITTED < len(table)


def test_whether_a_library_serves_is_for_the_nearest_entry_to_say():
    table = KernelTable(HEADER, [lost("1024_1024_1024"), entry("2048_1024_1024", LARGE)])
    assert table.best(1100, 1024, 1024).config is None
    assert table.best(1900, 1024, 1024).config is not None


def test_a_neighbour_that_is_illegal_here_is_passed_over():
    narrow = dataclasses.replace(SMALL, tile_k=32)
    table = KernelTable(HEADER, [entry("64_64_256", narrow), entry("64_128_512", SPLIT)])
    # Tiles of 32 along K are for short K alone.
    assert table.best(64, 64, 320).mnk == "64_128_512"
    assert "64_64_256 passed over: narrow_depth" in table.explain(64, 64, 320)


@pytest.mark.parametrize(
    ("edit", "served"),
    [
        ({"tile_n": 255}, False),
        ({"tile_n": 4}, False),
        ({"consumers": 7}, False),
        ({"l2_promotion": 64}, True),
        ({"group": 3}, True),
    ],
)
def test_a_value_that_is_on_no_axis_is_passed_over_or_at_run_time_replaced(edit, served):
    """A table may be edited by hand, or be of another version."""
    table = KernelTable(HEADER, [entry("1024_1024_1024", dataclasses.replace(LARGE, **edit))])
    for shape in ((1024, 1024, 1024), (1000, 1048, 1024), (520, 3000, 1048)):
        found = table.best(*shape)
        assert (found is not None) is served
        if served:
            assert SearchSpace().explain(found.config, Problem(*shape)) == []
        else:
            ((name, value),) = edit.items()
            assert f"1024_1024_1024 passed over: {name} = {value} is not in this space" in table.explain(*shape)


def test_a_neighbour_keeps_its_cubin_with_run_time_axes_that_fit():
    table = KernelTable(HEADER, [entry("4096_4096_1024", WAVES)])
    assert table.best(4096, 4096, 1024).config == WAVES
    fitted = table.best(2048, 2048, 1024)
    assert fitted.config == dataclasses.replace(WAVES, persistent=False)
    assert SearchSpace().explain(fitted.config, Problem(2048, 2048, 1024)) == []


def test_a_persistent_neighbour_may_have_more_stages_than_this_shape_has_k_tiles():
    """Its stages run on into the next tile, so only the same cubin without persistence is illegal here."""
    found = KernelTable(HEADER, [entry("4096_4096_128", WAVES)]).best(4096, 4096, 64)
    assert found.config.stages == 4 and found.config.persistent and found.evidence == "transferred"


def test_a_shape_whose_rows_tma_cannot_read_takes_a_kernel_that_copies_them_first(table):
    found = table.best(1000, 1000, 1001)
    assert found.mnk == "1024_1024_1024" and found.evidence == "transferred"
    assert found.config.padded and SearchSpace().explain(found.config, Problem(1000, 1000, 1001)) == []
    assert KernelTable(HEADER, [entry("1000_1000_1001", found.config)]).best(1024, 1024, 1024).config == LARGE


def test_measured_on_rows_that_have_to_be_copied_a_kernel_is_nearer_to_others_like_it():
    padded = dataclasses.replace(LARGE, padded=True)
    table = KernelTable(HEADER, [entry("1024_1024_1024", LARGE), entry("1024_1024_1303", padded)])
    assert [table.best(1024, 1024, k).k for k in (1023, 1026, 1032)] == [1303, 1303, 1024]


@pytest.mark.parametrize("mnk", [(1, 4097, 4097), (64, 1024, 1023), (1024, 1024, 91)])
def test_operands_with_little_work_for_each_element_are_not_copied_on_the_word_of_shapes_that_tma_reads(mnk):
    readable = [entry(f"{mnk[0]}_4096_4096", LARGE), entry("64_1024_1024", LARGE), entry("1024_1024_96", LARGE)]
    assert KernelTable(HEADER, readable).best(*mnk) is None


def test_only_what_is_copied_has_to_be_used_often():
    padded = dataclasses.replace(SMALL, padded=True, l2_prefetch=0)
    row_major = dataclasses.replace(HEADER, layout="nn")
    table = KernelTable(row_major, [entry("64_8192_2048", SMALL)])
    assert table.best(64, 8192, 2050).config == padded, "of A alone, whose elements meet 8192 columns"
    assert KernelTable(HEADER, [entry("64_8192_2048", SMALL)]).best(64, 8192, 2050) is None, "B is copied, too"
    assert table.best(64, 8190, 2048) is None


def test_a_copy_that_paid_for_many_rows_is_not_made_for_one():
    padded = dataclasses.replace(LARGE, padded=True)
    table = KernelTable(HEADER, [entry("64_4096_4001", padded)])
    assert table.best(1, 4096, 4001) is None and table.best(20, 4096, 4001) is None
    assert table.best(48, 4096, 4001).config.padded


def test_a_library_speaks_for_columns_that_tma_stores_or_for_others():
    """Where it cannot, it runs other routines, and is behind by more."""
    table = KernelTable(HEADER, [lost("1000_1000_1000"), entry("1536_1024_1024", LARGE)])
    assert table.best(1000, 1008, 1000).config is None
    assert table.best(1000, 1001, 1000).config is not None


def test_a_library_that_won_on_rows_of_4_bytes_decides_for_rows_of_2():
    """What is copied first is copied in the same time."""
    table = KernelTable(HEADER, [lost("1500_1500_1026"), entry("1536_1536_1024", LARGE)])
    assert table.best(1500, 1500, 1027).config is None


@pytest.mark.parametrize(
    ("there", "served"),
    [
        ("160_960_218", "167_957_218"),  # stored by 16 bytes there, by 2 here, 0.16 million elements
        ("5480_1344_68", "5481_1343_68"),  # 7.4 million
        ("80_100_60", "81_101_53"),  # read by 8 bytes there, by 2 here
        ("80_200_412", None),  # K is long for that
        ("47_106_399", "48_108_404"),  # wider rows than its own
    ],
)
def test_sm80_mma_serves_rows_of_c_of_any_beginning_and_narrower_operands_of_a_short_k(there, served):
    config = Sm80MmaConfig(32, 32, 32, 3, 2, 2, "swizzle", 1, "plain", "direct", 2, 1, "m", 1)
    source = Problem.parse(there)
    config = dataclasses.replace(config, copy_bytes=source.alignment_bytes)
    mnk = served or "81_200_411"
    problem = Problem.parse(mnk)
    found = KernelTable(HEADER, [entry(there, config)]).best(problem.m, problem.n, problem.k)
    assert (found is not None) is (served is not None)
    assert found is None or found.config.copy_bytes == problem.alignment_bytes


def test_a_library_says_nothing_of_rows_that_tma_reads_if_it_was_timed_on_others_nor_the_reverse():
    """It runs other routines there."""
    table = KernelTable(HEADER, [lost("1024_1024_1024"), entry("1536_1024_1024", LARGE)])
    assert table.best(1024, 1024, 1032).config is None
    assert table.best(1024, 1024, 1023).config.padded
    odd = KernelTable(HEADER, [lost("1024_1024_1023"), entry("1536_1024_1024", LARGE)])
    assert odd.best(1024, 1024, 1024).mnk == "1536_1024_1024"
    assert odd.best(1500, 1024, 1025).config is None, "of its kind it is the nearest"
    assert KernelTable(HEADER, [lost("1024_1024_1024")]).best(1024, 1024, 1023) is None
    reason = "no measured shape whose choice holds for rows that TMA cannot read is within 4x"
    assert reason in KernelTable(HEADER, [lost("1024_1024_1024")]).explain(1024, 1024, 1023)


# Choosing


def test_the_lowest_median_wins():
    rows = [row("512_512_512", SMALL, [4.0, 9.0, 4.0]), row("512_512_512", LARGE, [5.0, 5.0, 3.0])]
    best = chosen(rows)
    assert (best.config, best.median_us, best.runner_up_ratio, best.evidence) == (SMALL, 4.0, 1.25, "searched")


def test_where_every_row_has_its_reference_the_ratio_decides():
    """Rows far apart in time: by the clocks of the second the first would have won."""
    rows = [row("512_512_512", SMALL, [11.0] * 3, [12.1] * 3), row("512_512_512", LARGE, [10.0] * 3, [10.2] * 3)]
    assert chosen(rows).config == SMALL
    alone = [rows[0], dataclasses.replace(rows[1], ref_times_us=())]
    assert chosen(alone).config == LARGE


def test_of_equals_the_kernel_that_leaves_c_in_l2_is_chosen():
    hinted = dataclasses.replace(LARGE, store_hint="evict_first")
    for times_us, config in (([9.98] * 3, LARGE), ([9.5] * 3, hinted)):
        assert chosen([row("512_512_512", LARGE, [10.0] * 3), row("512_512_512", hinted, times_us)]).config == config


def test_a_tie_goes_to_the_incumbent_then_to_the_smaller_kernel():
    rows = [row("512_512_512", SMALL, [4.01]), row("512_512_512", LARGE, [4.0])]
    assert chosen(rows).config == SMALL
    incumbent = KernelTable(HEADER, [entry("512_512_512", LARGE)])
    assert chosen(rows, incumbent=incumbent).config == LARGE
    clear = [row("512_512_512", SMALL, [4.0]), row("512_512_512", LARGE, [4.4])]
    assert chosen(clear, incumbent=incumbent).config == SMALL


def test_noisy_repeats_widen_the_tie():
    steady = [row("512_512_512", SMALL, [4.1] * 5), row("512_512_512", LARGE, [4.0] * 5)]
    noisy = [steady[0], row("512_512_512", LARGE, [3.8, 3.9, 4.0, 4.1, 4.2])]
    assert chosen(steady).config == LARGE
    assert chosen(noisy).config == SMALL


def test_where_ours_loses_the_baseline_stands_with_the_reason():
    best = chosen([row("512_512_512", SMALL, [5.0], ref_us=[4.0])])
    assert (best.config, best.baseline, best.median_us, best.ref_us) == (None, "cublaslt_auto", 4.0, 4.0)
    assert best.reason == f"{SMALL.name} took 5.000 us against 4.000 us"


def test_failures_and_baselines_never_win():
    problem = Problem(512, 512, 512)
    wrong = Measurement(problem, "sm90_ws", LARGE, Status.CORRECTNESS, "off")
    baseline = Measurement(problem, "cublas", None, Status.CORRECT, times_us=(0.1,))
    assert chosen([wrong, baseline, row("512_512_512", SMALL, [4.0])]).config == SMALL
    best = chosen([wrong, baseline])
    assert best.baseline == "cublaslt_auto"
    assert best.reason == "none of 1 configurations passed: 1 correctness"
    assert len(KernelTable.from_measurements([baseline], FINGERPRINT)) == 0


def test_other_accumulators_layouts_and_modes_are_left_out():
    rows = [row("512_512_512", LARGE, [1.0], acc="fp16"), row("512_512_512", LARGE, [1.0], layout="nn")]
    rows.append(dataclasses.replace(row("512_512_512", LARGE, [1.0]), mode="server"))
    assert chosen([*rows, row("512_512_512", SMALL, [4.0])]).config == SMALL
    assert len(KernelTable.from_measurements(rows, FINGERPRINT)) == 0


def test_pdl_is_chosen_with_the_kernel_unless_asked_for():
    rows = [row("512_512_512", SMALL, [4.0]), row("512_512_512", SMALL, [3.0], pdl=True)]
    assert chosen(rows).pdl is True
    assert chosen(rows, pdl=False).median_us == 4.0


def test_a_final_overrules_the_search_and_the_latest_final_the_others():
    searched = row("512_512_512", LARGE, [1.0])
    early = final_rows("512_512_512", 4.0, {"cublaslt_auto_tn": 5.0, "cublaslt_auto_nn": 4.5})
    late = final_rows("512_512_512", 6.0, {"cublaslt_auto_tn": 5.0}, utc="2001-01-01T00:00:00+00:00")
    best = chosen([searched, *early])
    assert (best.evidence, best.median_us, best.ref_us) == ("final", 4.0, 4.5)
    assert chosen([searched, *early, *late]).baseline == "cublaslt_auto"


# Merging


def test_merging_keeps_the_better_entry_of_each_shape(table):
    other = KernelTable(HEADER, [entry("64_64_64", LARGE, 3.0), entry("128_64_64")])
    merged = table.merge(other)
    assert merged.lookup(64, 64, 64).config == LARGE
    assert merged.lookup(128, 64, 64).config == SMALL
    assert len(merged) == 4


def test_merging_prefers_evidence_and_leaves_ties_with_the_incumbent(table):
    final = KernelTable(HEADER, [entry("64_64_64", LARGE, 4.5, 5.6, evidence="final")])
    assert table.merge(final).lookup(64, 64, 64).config == LARGE
    assert final.merge(table).lookup(64, 64, 64).config == LARGE
    near = KernelTable(HEADER, [entry("64_64_64", LARGE, 3.99)])
    assert table.merge(near).lookup(64, 64, 64).config == SMALL


def test_what_a_search_timed_beside_the_reference_overtakes_a_final_by_a_clear_margin_alone():
    judged = KernelTable(HEADER, [entry("64_64_64", SMALL, 4.0, 4.4, "final"), lost("512_512_512", evidence="final")])
    for median_us, ref_us, overtakes in ((4.0, 4.48, False), (5.0, 5.65, True), (3.0, None, False)):
        found = KernelTable(HEADER, [entry("64_64_64", SPLIT, median_us, ref_us)])
        for merged in (judged.merge(found), found.merge(judged)):
            assert merged.lookup(64, 64, 64).evidence == ("searched" if overtakes else "final")
    found = KernelTable(HEADER, [entry("512_512_512", SPLIT, 3.0, 3.2)])
    assert judged.merge(found).lookup(512, 512, 512).config == SPLIT


def test_merging_tables_of_two_devices_is_refused_and_of_two_drivers_warned_about(table, caplog):
    with pytest.raises(TableError, match="not for"):
        table.merge(KernelTable(dataclasses.replace(HEADER, layout="nn"), []))
    table.merge(KernelTable(dataclasses.replace(HEADER, soft={**HEADER.soft, "driver": "600"}), []))
    assert "driver: measured with 0, here 600" in caplog.text


def add_entry(path, index):
    KernelTable(HEADER, [entry(f"{8 * (index + 1)}_64_64")]).save_merged(path)


def test_concurrent_writers_lose_nothing(tmp_path):
    path = tmp_path / "table.json"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=add_entry, args=(path, index)) for index in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(KernelTable.load(path)) == 6


def test_a_table_made_from_a_recording_names_its_device(tiny_recording):
    table = KernelTable.from_measurements(tiny_recording.measurements(), tiny_recording.fingerprint)
    assert table.header.device.name == "sm90_132sm_141gb"
    assert len(table) == len(tiny_recording.problems)
    for item in table.entries:
        problem = Problem(item.m, item.n, item.k)
        fastest = min(
            row.median_us for row in tiny_recording.measurements() if row.problem == problem and row.config and row.ok
        )
        assert item.median_us == pytest.approx(min(fastest * 1.01, item.ref_us), rel=0.01)
