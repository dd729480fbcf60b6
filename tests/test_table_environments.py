"""What a table says of where it was measured, when it was made of several sessions or tables."""

from dataclasses import replace
from itertools import permutations

import pytest
from fabricated_recording import FINGERPRINT

from cudal2.codegen import generator_version
from cudal2.problem import Problem
from cudal2.records.measurement import Measurement, Status
from cudal2.records.recording import Recording
from cudal2.records.shards import RecordLog, read_shards
from cudal2.runtime import op
from cudal2.space.config import Sm90SmallConfig, Sm90WsConfig
from cudal2.table import KernelTable

WS = Sm90WsConfig(64, 64, 64, 2, "coop", 1, 1, 1, 1, "tma", 1, "m", 1, False)
OTHER_WS = replace(WS, stages=4)
SMALL = Sm90SmallConfig(32, 32, 128, 2, "mma", 4, 8)
NOW = {name: generator_version(name) for name in ("sm90_ws", "sm90_small", "sm90_collective")}
OLD = "0123456789abcdef"


def row(mnk, config, time_us=4.0):
    return Measurement(Problem.parse(mnk), config.family, config, Status.CORRECT, times_us=(time_us,))


ROWS = {"ws": row("64_64_64", WS), "small": row("128_128_128", SMALL), "again": row("256_256_256", OTHER_WS)}


def recorded(folder, *sessions):
    """A directory of shards: the rows of each session with its environment's differences."""
    for differences, *rows in sessions:
        with RecordLog(folder, replace(FINGERPRINT, **differences)) as log:
            log.append(ROWS[name] for name in rows)
    return folder


def version(*families, old=()):
    return {"generator_version": "+".join((*(NOW[name] for name in sorted(families)), *old))}


ALL = [
    (version("sm90_ws"), "ws"),
    (version("sm90_small", "sm90_ws"), "small"),
    (version("sm90_collective", "sm90_ws"), "again"),
]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_table_names_the_versions_of_its_kernels_in_whatever_order_they_were_measured(order, run, tmp_path):
    records = recorded(tmp_path / "records", *(ALL[at] for at in order))
    code, _, said = run("table", "make", records, "--allow-mixed", "--out", tmp_path / "t.json")
    table = KernelTable.load(tmp_path / "t.json")
    assert code == 0 and table.header.versions == {NOW["sm90_ws"], NOW["sm90_small"]}
    assert table.header.soft["driver"] == "0" and "different environments" not in said


def test_what_differs_between_sessions_is_named_and_said(run, tmp_path):
    sessions = [({**version("sm90_ws"), "driver": "2"}, "ws"), ({**version("sm90_ws"), "driver": "1"}, "again")]
    records = recorded(tmp_path / "records", *sessions)
    code, _, said = run("table", "make", records, "--allow-mixed", "--out", tmp_path / "t.json")
    assert code == 0 and KernelTable.load(tmp_path / "t.json").header.soft["driver"] == "1+2"
    (line,) = [line for line in said.splitlines() if "different environments" in line]
    assert f"{records}: " in line and line.endswith("are compared here: driver: 1 and 2")


def test_two_versions_of_one_family_are_named_and_said_where_the_table_is_made_and_used(run, tmp_path, caplog):
    records = recorded(tmp_path / "records", (version("sm90_ws"), "ws"), (version(old=[OLD]), "again"))
    code, _, said = run("table", "make", records, "--allow-mixed", "--out", tmp_path / "t.json")
    assert code == 0 and KernelTable.load(tmp_path / "t.json").header.versions == {NOW["sm90_ws"], OLD}
    assert f"generator_version: {OLD} and {NOW['sm90_ws']}" in said
    op.reset()
    op._table_file(tmp_path / "t.json")
    (warning,) = [text for text in caplog.messages if "generator_version" in text]
    assert f"measured with {OLD}+{NOW['sm90_ws']}, here {NOW['sm90_ws']}" in warning


def test_times_of_two_devices_make_no_table(run, tmp_path):
    records = recorded(tmp_path / "records", (version("sm90_ws"), "ws"), ({"sm_count": 114}, "again"))
    code, _, said = run("table", "make", records, "--allow-mixed", "--out", tmp_path / "t.json")
    assert code == 2 and "several devices" in said and "sm_count: 132 != 114" in said
    assert not (tmp_path / "t.json").exists()


def test_a_recording_of_several_sessions_names_them_all(tmp_path):
    records = recorded(tmp_path / "records", ({"driver": "2"}, "ws"), ({"driver": "1"}, "again"))
    shards = read_shards(records, allow_mixed=True)
    Recording.publish(shards.measurements, tmp_path / "a.parquet", shards.fingerprints)
    for path in (records, tmp_path / "a.parquet"):
        found = Recording.load(path, allow_mixed=True).fingerprint
        assert found == shards.fingerprint == replace(FINGERPRINT, driver="1+2")


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_merged_tables_name_what_each_was_measured_with(order, run, tmp_path, caplog):
    for at, session in enumerate(ALL):
        records = recorded(tmp_path / str(at), session)
        assert run("table", "make", records, "--out", tmp_path / f"{at}.json")[0] == 0
    run("table", "merge", *(tmp_path / f"{at}.json" for at in order), "--out", tmp_path / "t.json")
    assert KernelTable.load(tmp_path / "t.json").header.versions == {NOW["sm90_ws"], NOW["sm90_small"]}
    assert not caplog.text


def test_a_merge_of_older_kernels_says_so_and_names_both(run, tmp_path, caplog):
    for name, session in (("new", ALL[0]), ("old", (version(old=[OLD]), "again"))):
        run("table", "make", recorded(tmp_path / name, session), "--out", tmp_path / f"{name}.json")
    merged = KernelTable.load(tmp_path / "new.json").merge(KernelTable.load(tmp_path / "old.json"))
    assert merged.header.versions == {OLD, NOW["sm90_ws"]}
    assert f"generator_version: measured with {NOW['sm90_ws']}, here {OLD}" in caplog.text
