"""Counters on disk: they come back as they were, the newest of a configuration counts, absent ones stay absent."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fabricated_recording import FINGERPRINT, SPACE, made_up_row

from cudal2.bench.profile.ncu import METRICS
from cudal2.errors import RecordError
from cudal2.problem import Problem
from cudal2.records.counters import NAMES, Counters, Profile, ProfileBook, append_profiles
from cudal2.records.shards import RecordLog, read_shards
from cudal2.space.space import SearchSpace

PROBLEM = Problem(128, 256, 512)
CONFIGS = list(SearchSpace(settings=SPACE).enumerate(PROBLEM))[:3]


def profile(config=CONFIGS[0], utc="2026-01-01T00:00:00+00:00", contestant="sm90_ws", **counters):
    values = Counters(**counters)
    return Profile(PROBLEM, contestant, config, values, "cudal2_gemm", 1, "2025.3", "all", "none", utc)


def write(directory, *profiles, fingerprint=FINGERPRINT):
    with RecordLog(directory, fingerprint) as log:
        append_profiles(log, profiles)
    return log.path


def test_profiles_come_back_as_they_were(tmp_path):
    made = [profile(l2_hit_rate=0.5, registers=168), profile(None, contestant="cublaslt_heuristic_tn", waves=1.5)]
    write(tmp_path, *made)
    book = ProfileBook.load(tmp_path)
    assert sorted(book.profiles(), key=lambda one: one.name, reverse=True) == sorted(
        made, key=lambda one: one.name, reverse=True
    )
    assert book.fingerprint == FINGERPRINT
    assert book.get(PROBLEM, CONFIGS[0]) == Counters(l2_hit_rate=0.5, registers=168)


def test_an_absent_counter_is_none_and_never_zero(tmp_path):
    write(tmp_path, profile(l2_hit_rate=0.0))
    found = ProfileBook.load(tmp_path).get(PROBLEM, CONFIGS[0])
    assert found.l2_hit_rate == 0.0
    assert all(getattr(found, name) is None for name in NAMES if name != "l2_hit_rate")


def test_the_newest_of_a_configuration_counts_whatever_the_order_of_files(tmp_path):
    write(tmp_path, profile(utc="2026-01-02T00:00:00+00:00", l2_hit_rate=0.9))
    write(tmp_path, profile(l2_hit_rate=0.1), profile(CONFIGS[1], l2_hit_rate=0.2))
    book = ProfileBook.load(tmp_path)
    assert len(book) == 2
    assert book.get(PROBLEM, CONFIGS[0]).l2_hit_rate == 0.9 and book.get(PROBLEM, CONFIGS[1]).l2_hit_rate == 0.2


def test_only_exactly_this_problem_and_configuration_has_counters():
    book = ProfileBook([profile(l2_hit_rate=0.5)])
    assert book.get(PROBLEM, CONFIGS[1]) is None
    assert book.get(dataclasses.replace(PROBLEM, layout="nn"), CONFIGS[0]) is None


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), True, "0.5"])
def test_what_is_no_counter_is_refused(value):
    with pytest.raises(RecordError, match=r"l2_hit_rate = .* is no counter"):
        Counters(l2_hit_rate=value)


def test_damage_and_other_rows_name_file_and_line(tmp_path):
    path = write(tmp_path, profile(l2_hit_rate=0.5))
    path.write_text(path.read_text().replace('"l2_hit_rate":0.5', '"l2_hit_rate":-5'))
    with pytest.raises(RecordError, match=rf"{path.name}:2: l2_hit_rate = -5 is no counter"):
        ProfileBook.load(tmp_path)
    with pytest.raises(RecordError, match=rf"{path.name}:2: not a measurement row"):
        read_shards(tmp_path)
    with RecordLog(tmp_path / "other", FINGERPRINT) as log:
        log.write(made_up_row(PROBLEM, CONFIGS[0]))
    with pytest.raises(RecordError, match=":2: not a profile row"):
        ProfileBook.load(tmp_path / "other")
    with pytest.raises(RecordError, match="nowhere: no such file or directory"):
        ProfileBook.load(tmp_path / "nowhere")


def test_counters_of_two_environments_are_not_mixed(tmp_path):
    write(tmp_path, profile())
    write(tmp_path, profile(), fingerprint=dataclasses.replace(FINGERPRINT, driver="other"))
    with pytest.raises(RecordError, match="another environment"):
        ProfileBook.load(tmp_path)


def test_the_page_names_every_counter_with_its_metric():
    page = (Path(__file__).parents[1] / "docs" / "counters.md").read_text()
    for name, (metric, _) in METRICS.items():
        assert f"| `{name}` | `{metric}` |" in page
