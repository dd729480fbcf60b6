"""Where kernel tables are looked for, and which of them is taken."""

import dataclasses
import logging

import pytest
from test_table import HEADER, entry

from cudal2.errors import TableError
from cudal2.table import KernelTable


@pytest.fixture
def table():
    return KernelTable(HEADER, [entry("64_4096_64")])


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDAL2_TABLE_PATH", f"{tmp_path / 'first'}:{tmp_path / 'second'}")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    return {
        "first": tmp_path / "first",
        "second": tmp_path / "second",
        "user": tmp_path / "home" / "cudal2" / "tables",
    }


def test_the_first_place_with_a_fit_wins(table, places, caplog):
    table.save(places["user"] / "b.json")
    assert KernelTable.load(device=HEADER.device).path == places["user"] / "b.json"
    table.save(places["second"] / "a.json")
    assert KernelTable.load(device=HEADER.device).path == places["second"] / "a.json"
    KernelTable(dataclasses.replace(HEADER, acc="fp16"), []).save(places["first"] / "other.json")
    with caplog.at_level(logging.INFO, "cudal2"):
        assert KernelTable.load(device=HEADER.device).path == places["second"] / "a.json"
    assert str(places["second"] / "a.json") in caplog.text


def test_a_single_file_may_stand_on_the_path(table, places):
    table.save(places["first"])
    assert KernelTable.load(device=HEADER.device).path == places["first"]


def test_no_fit_says_what_there_is_and_what_makes_one(table, places):
    table.save(places["first"] / "a.json")
    device = dataclasses.replace(HEADER.device, sm_count=114)
    message = r"no kernel table for sm90_114sm_141gb, fp32, tn .*sm90_132sm_141gb_fp32_tn.*cudal2 train"
    with pytest.raises(TableError, match=message):
        KernelTable.load(device=device)


def test_an_ambiguous_place_is_a_miss(table, places):
    table.save(places["first"] / "a.json")
    table.save(places["first"] / "b.json")
    with pytest.raises(TableError, match="several tables fit"):
        KernelTable.load(device=HEADER.device)
