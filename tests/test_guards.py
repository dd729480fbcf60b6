"""Guard rules on tables: what they take, what they leave, what they say, and what they never make up."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fabricated_recording import FINGERPRINT
from test_counters import profile, write
from test_table import HEADER, LARGE, SMALL, entry, lost, row

from cudal2.cli import main as cli
from cudal2.errors import TableError, UsageError
from cudal2.problem import Problem
from cudal2.records.counters import NAMES, Profile, ProfileBook
from cudal2.records.shards import RecordLog
from cudal2.settings import GuardRule, load_guards
from cudal2.table import KernelTable
from cudal2.table.guards import guard

HITS = GuardRule("l2_hit_rate", "cublaslt_auto", "L2 hit rate under 80 %", below=0.8)
SLOW = GuardRule("speedup", "cublaslt_auto", "slower than cuBLASLt-AutoTuning", below=1.0)


def counters(mnk: str, config=SMALL, fingerprint=FINGERPRINT, **values: float) -> Profile:
    return dataclasses.replace(profile(config, **values), problem=Problem.parse(mnk))


@pytest.fixture
def table() -> KernelTable:
    return KernelTable(HEADER, [entry("64_64_64"), entry("128_64_64", LARGE), entry("256_64_64"), lost("512_64_64")])


def test_a_kernel_past_the_bound_gives_its_shape_to_the_library_with_the_reason(table):
    book = ProfileBook([counters("64_64_64", l2_hit_rate=0.5), counters("128_64_64", LARGE, l2_hit_rate=0.9)])
    made, (result,) = guard(table, [HITS], book)
    fallen = made.lookup(64, 64, 64)
    assert (fallen.config, fallen.baseline, fallen.median_us, fallen.ref_us) == (None, "cublaslt_auto", 5.0, 5.0)
    why = f"L2 hit rate under 80 %: {SMALL.name} has l2_hit_rate 0.500 and took 4.000 us against 5.000 us"
    assert fallen.reason == why and why in made.explain(64, 64, 64)
    assert [one.kernel_name for one in made.entries[1:]] == [LARGE.name, SMALL.name, "cublaslt_auto"]
    assert (len(result.taken), result.judged, result.unknown) == (1, 2, 1)
    assert "took 1 of 2 kernels" in result.summary and "1.250x" in result.summary and "64_64_64" in result.summary
    assert result.summary.endswith("1 not judged: no counters")


def test_the_bound_itself_is_not_past_it(table):
    made, _ = guard(table, [HITS], ProfileBook([counters("64_64_64", l2_hit_rate=0.8)]))
    assert made.entries == table.entries


@pytest.mark.parametrize(
    "found",
    [
        (),
        (counters("64_64_64", LARGE, l2_hit_rate=0.1),),
        (counters("64_64_128", l2_hit_rate=0.1),),
        (counters("64_64_64", registers=100),),
    ],
    ids=["none", "another configuration", "another shape", "another counter"],
)
def test_without_a_profile_of_this_kernel_on_this_shape_a_counter_rule_takes_nothing(table, found):
    made, (result,) = guard(table, [HITS], ProfileBook(found))
    assert made.entries == table.entries and made.sha256 == table.sha256
    assert (result.taken, result.judged, result.unknown) == ((), 0, 3)
    assert result.summary == "l2_hit_rate below 0.8: took 0 of 0 kernels; 3 not judged: no counters"


def test_a_table_without_reference_times_is_not_called_slow():
    table = KernelTable(HEADER, [entry("64_64_64", ref_us=None), entry("128_64_64", ref_us=3.0)])
    made, (result,) = guard(table, [SLOW])
    assert made.lookup(64, 64, 64).config == SMALL and made.lookup(128, 64, 64).baseline == "cublaslt_auto"
    assert result.summary.endswith("1 not judged: no speed-up")


def test_the_first_rule_that_takes_an_entry_gives_its_reason():
    table = KernelTable(HEADER, [entry("64_64_64", ref_us=3.0)])
    book = ProfileBook([counters("64_64_64", l2_hit_rate=0.1)])
    made, (first, second) = guard(table, [SLOW, HITS], book)
    assert made.lookup(64, 64, 64).reason.startswith("slower than") and len(first.taken) == 1 and second.judged == 0
    assert guard(table, [HITS, SLOW], book)[0].lookup(64, 64, 64).reason.startswith("L2 hit rate")


def test_a_guarded_table_is_saved_and_read_like_any_other(table, tmp_path):
    made, _ = guard(table, [HITS], ProfileBook([counters("64_64_64", l2_hit_rate=0.1)]))
    made.save(tmp_path / "table.json")
    assert KernelTable.load(tmp_path / "table.json").lookup(64, 64, 64).reason.startswith("L2 hit rate under 80 %")


def test_an_unknown_metric_lists_the_known_ones(table):
    with pytest.raises(UsageError, match=r"guard metric 'beauty' is unknown; use speedup, l2_hit_rate, l2_throughput"):
        guard(table, [dataclasses.replace(HITS, metric="beauty")])
    assert all(rule.metric in ("speedup", *NAMES) for rule in load_guards("default").rules)


def test_counters_of_another_gpu_are_refused_and_of_another_driver_warned_about(table, caplog):
    book = ProfileBook([counters("64_64_64", l2_hit_rate=0.1)], dataclasses.replace(FINGERPRINT, sm_count=114))
    with pytest.raises(TableError, match=r"the counters are of sm90_114sm_141gb, the table of sm90_132sm_141gb"):
        guard(table, [HITS], book)
    guard(table, [HITS], ProfileBook([], dataclasses.replace(FINGERPRINT, driver="999")))
    assert "the counters were read in another environment than the times: driver" in caplog.text


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Two shapes searched, one won and one lost, and counters of the winner."""
    with RecordLog(tmp_path / "records", FINGERPRINT) as log:
        log.append([row("512_512_512", SMALL, [4.0] * 3, [5.0] * 3), row("512_512_1024", SMALL, [9.0] * 3, [5.0] * 3)])
    write(tmp_path / "counters", counters("512_512_512", l2_hit_rate=0.5))
    return tmp_path


def make(folder: Path, *arguments: str) -> KernelTable:
    out = folder / "table.json"
    assert cli.main(["table", "make", str(folder / "records"), "--out", str(out), *arguments]) == 0
    return KernelTable.load(out)


def test_the_default_guards_apply_when_counters_are_given(measured, capsys):
    table = make(measured, "--counters", str(measured / "counters"))
    assert table.lookup(512, 512, 512).reason.startswith("L2 hit rate under 80 %")
    said = capsys.readouterr().err
    assert "guards default: 1 of 2 shapes had gone to the library by time alone" in said
    assert "guards default: speedup below 1: took 0 of 1 kernels" in said
    assert "guards default: l2_hit_rate below 0.8: took 1 of 1 kernels, which now take 1.250x their time" in said
    assert cli.main(["table", "show", "--table", str(measured / "table.json")]) == 0
    assert "L2 hit rate under 80 %: 64x64x64" in capsys.readouterr().out


def test_they_do_not_apply_by_themselves_and_can_be_switched_off(measured, capsys):
    assert make(measured).lookup(512, 512, 512).config == SMALL
    assert make(measured, "--counters", str(measured / "counters"), "--guards", "none").lookup(512, 512, 512).config
    assert "guards" not in capsys.readouterr().err


def test_they_hold_against_the_table_that_is_merged_into(measured):
    assert make(measured).lookup(512, 512, 512).config == SMALL
    assert make(measured, "--counters", str(measured / "counters")).lookup(512, 512, 512).config is None


def test_guards_without_counters_say_that_there_are_none(measured, capsys):
    assert make(measured, "--guards", "default").lookup(512, 512, 512).config == SMALL
    assert "took 0 of 0 kernels; 1 not judged: no counters" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--counters", "nowhere"], "nowhere: no such file or directory"),
        (["--guards", "nowhere"], "no settings file"),
        (["--guards", "metric.yaml"], "guard metric 'beauty' is unknown"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(measured, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(measured)
    text = "rules: [{metric: beauty, below: 1, action: cublaslt_auto, reason: ugly}]"
    (measured / "metric.yaml").write_text(text)
    assert cli.main(["table", "make", "records", "--out", "table.json", *arguments]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert message in errors[-1] and errors[-1].startswith("error: ")
    assert not (measured / "table.json").exists()
