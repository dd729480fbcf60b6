"""Shards: what survives a kill, what is refused, and how repeats of one measurement merge."""

import dataclasses
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fabricated_recording import FINGERPRINT, SPACE, made_up_row

from cudal2.errors import EnvironmentProblemError, RecordError
from cudal2.problem import Problem
from cudal2.records.fingerprint import Fingerprint
from cudal2.records.measurement import Measurement, Status
from cudal2.records.recording import read_records
from cudal2.records.shards import RecordLog, dedupe, read_shards, require_environment
from cudal2.space.space import SearchSpace

PROBLEM = Problem(128, 256, 512)


@pytest.fixture(scope="module")
def rows():
    configs = list(SearchSpace(settings=SPACE).enumerate(PROBLEM))[:6]
    return [made_up_row(PROBLEM, config) for config in configs]


def write(directory, rows, fingerprint=FINGERPRINT):
    with RecordLog(directory, fingerprint) as log:
        log.append(rows)
    return log.path


def test_rows_come_back_in_order(tmp_path, rows):
    write(tmp_path, rows)
    shards = read_shards(tmp_path)
    assert shards.measurements == tuple(rows)
    assert shards.fingerprint == FINGERPRINT
    assert shards.torn_lines == 0


def test_a_second_session_never_touches_the_first_file(tmp_path, rows):
    first = write(tmp_path, rows[:2])
    before = first.read_bytes()
    write(tmp_path, rows[2:])
    assert first.read_bytes() == before
    assert sorted(row.config.name for row in read_shards(tmp_path).measurements) == sorted(r.config.name for r in rows)


def test_a_file_cut_anywhere_loses_at_most_its_last_line(tmp_path, rows):
    whole = write(tmp_path / "whole", rows).read_bytes()
    header = whole.index(b"\n") + 1
    for cut in range(header, len(whole), 97):
        path = tmp_path / "cut.jsonl"
        path.write_bytes(whole[:cut])
        complete = whole[:cut].count(b"\n") - 1
        kept = read_shards(path).measurements
        assert complete <= len(kept) <= complete + 1
        assert kept == tuple(rows[: len(kept)])


def test_a_packed_shard_is_read_as_it_was(tmp_path, rows):
    first, second = write(tmp_path / "plain", rows[:2]), write(tmp_path / "plain", rows[2:])
    packed = tmp_path / "packed" / f"{first.name}.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(first.read_bytes()))
    shutil.copy(second, packed.parent)
    assert read_shards(packed.parent) == read_shards(tmp_path / "plain")
    assert read_records(packed).measurements == tuple(rows[:2])
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(RecordError, match=rf"{packed.name}: .*damaged after it was packed"):
        read_shards(packed)


def test_a_session_that_died_in_its_header_is_empty(tmp_path, rows):
    write(tmp_path, rows)
    (tmp_path / "0.jsonl").write_bytes(b'{"kind": "sess')
    shards = read_shards(tmp_path)
    assert shards.torn_lines == 1
    assert len(shards.measurements) == len(rows)
    with pytest.raises(RecordError, match="no session header survived"):
        _ = read_shards(tmp_path / "0.jsonl").fingerprint


def test_a_torn_middle_line_names_file_and_line(tmp_path, rows):
    path = write(tmp_path, rows)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3][:40] + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(RecordError, match=rf"{path.name}:4: not a JSON line"):
        read_shards(tmp_path)


@pytest.mark.parametrize("text", ["# A page\n", "PAR1\0\n", "\n", "{\n}", "[]\n", "5\n", "{}\n", '{"header": {}}\n'])
def test_a_file_that_is_no_shard_is_called_that(tmp_path, text):
    path = tmp_path / "README.md"
    path.write_text(text)
    with pytest.raises(RecordError, match=rf"{path.name}:1: .*(no record|no cudal2|not a cudal2) shard") as caught:
        read_shards(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"times_us": []}, "0 times"),
        ({"status": "perfect"}, "perfect"),
        ({"problem": {"m": 0, "n": 1, "k": 1}}, "m = 0"),
        ({"config": {"family": "sm70"}}, "sm70"),
        ({"kind": "note"}, "not a measurement"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_row_that_cannot_be_is_refused_with_its_line(tmp_path, rows, change, message):
    path = write(tmp_path, [row for row in rows if row.ok])
    lines = path.read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), **change})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(RecordError, match=rf":2: .*{message}"):
        read_shards(tmp_path)


def test_an_unknown_schema_is_refused(tmp_path, rows):
    path = write(tmp_path, rows)
    path.write_text(path.read_text().replace('"schema":1', '"schema":2', 1))
    with pytest.raises(RecordError, match=r":1: record schema 2 is not 1"):
        read_shards(tmp_path)


def test_mixed_fingerprints_are_refused_unless_asked_for(tmp_path, rows):
    write(tmp_path, rows[:1])
    write(tmp_path, rows[1:], dataclasses.replace(FINGERPRINT, driver="581.1"))
    with pytest.raises(RecordError, match=r"driver: .*581\.1"):
        read_shards(tmp_path)
    shards = read_shards(tmp_path, allow_mixed=True)
    assert {fingerprint.driver for fingerprint in shards.fingerprints} == {"0", "581.1"}
    assert len(shards.measurements) == len(rows)


def test_what_is_recorded_next_must_be_of_the_same_environment(tmp_path, rows):
    other = dataclasses.replace(FINGERPRINT, driver="581.1")
    require_environment(tmp_path / "none", other)
    write(tmp_path, rows[:1])
    (tmp_path / "0.jsonl").write_text('{"kind": "sess')
    (tmp_path / "1.jsonl").touch()
    require_environment(tmp_path, FINGERPRINT)
    with pytest.raises(RecordError, match=r"records of another environment .*driver: .* != 581.1"):
        require_environment(tmp_path, other)
    for broken in ("[]", '{"kind": "measurement"}', '{"kind": "session", "schema": 1, "fingerprint": {}}'):
        (tmp_path / "2.jsonl").write_text(f"{broken}\n")
        with pytest.raises(RecordError, match=r"2\.jsonl:1: "):
            require_environment(tmp_path, FINGERPRINT)


def test_an_empty_directory_says_what_writes_records(tmp_path):
    with pytest.raises(RecordError, match="cudal2 record"):
        read_shards(tmp_path)


def test_an_unwritable_directory_is_one_clear_line(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(EnvironmentProblemError, match="cannot write records"):
        RecordLog(blocker / "run", FINGERPRINT)


WRITER = """
import itertools, sys
from pathlib import Path
from fabricated_recording import FINGERPRINT, SPACE, made_up_row
from cudal2.problem import Problem
from cudal2.records.recording import read_records
from cudal2.records.shards import RecordLog
from cudal2.space.space import SearchSpace
problem = Problem(128, 256, 512)
rows = [made_up_row(problem, config) for config in SearchSpace(settings=SPACE).enumerate(problem)]
log = RecordLog(Path(sys.argv[1]), FINGERPRINT)
print("writing", flush=True)
for row in itertools.cycle(rows):
    log.write(row)
"""


def test_sigkill_while_writing_leaves_a_readable_log(tmp_path):
    tests = Path(__file__).parent
    env = {**os.environ, "PYTHONPATH": f"{tests}{os.pathsep}{tests.parent}"}
    for pause_s in (0.02, 0.05):
        process = subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], env=env, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "writing\n"
        time.sleep(pause_s)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    shards = read_shards(tmp_path)
    lines = sum(path.read_bytes().count(b"\n") for path in tmp_path.iterdir())
    assert len(shards.measurements) in range(lines - 2, lines + 1)
    assert len(shards.measurements) > 0
    resumed = write(tmp_path, shards.measurements[:1])
    assert read_shards(tmp_path).measurements[-1] == read_shards(resumed).measurements[0]


def test_dedupe_keeps_a_pass_over_an_accident_but_never_over_a_wrong_result(rows):
    good = next(row for row in rows if row.ok)
    config = good.config
    hung = Measurement(PROBLEM, "sm90_ws", config, Status.TIMEOUT, "hung")
    wrong = Measurement(PROBLEM, "sm90_ws", config, Status.CORRECTNESS, "off by one tile")
    assert dedupe([good, hung]) == [good]
    assert dedupe([hung, good]) == [good]
    assert dedupe([wrong, good]) == [wrong]
    assert dedupe([good, wrong, good]) == [wrong]


def test_dedupe_prefers_more_repeats_then_the_later_row(rows):
    good = next(row for row in rows if row.ok)
    short = dataclasses.replace(good, times_us=good.times_us[:2])
    later = dataclasses.replace(good, utc="2001-01-01T00:00:00+00:00")
    assert dedupe([good, short]) == [good]
    assert dedupe([good, later]) == [later]


def test_dedupe_keeps_a_final_figure_over_a_search_with_more_repeats(rows):
    searched = next(row for row in rows if row.ok and len(row.times_us) > 2)
    final = dataclasses.replace(searched, times_us=searched.times_us[:2], process_rounds=(1, 1))
    assert dedupe([final, searched]) == dedupe([searched, final]) == [final]


def test_dedupe_tells_pdl_mode_and_contestant_apart(rows):
    good = next(row for row in rows if row.ok)
    others = [dataclasses.replace(good, pdl=True), dataclasses.replace(good, mode="server")]
    assert dedupe([good, *others]) == [good, *others]


def test_fingerprint_survives_json_and_names_its_differences():
    again = Fingerprint.from_dict(json.loads(json.dumps(FINGERPRINT.to_dict())))
    assert again == FINGERPRINT
    assert again.sha256 == FINGERPRINT.sha256
    other = dataclasses.replace(FINGERPRINT, sm_count=114)
    assert FINGERPRINT.differences(other) == ["sm_count: 132 != 114"]
    assert other.sha256 != FINGERPRINT.sha256


def test_a_fingerprint_of_another_version_is_refused():
    with pytest.raises(RecordError, match="schema 9"):
        Fingerprint.from_dict({**FINGERPRINT.to_dict(), "schema": 9})
    with pytest.raises(RecordError, match="colour"):
        Fingerprint.from_dict({**FINGERPRINT.to_dict(), "colour": "green"})
