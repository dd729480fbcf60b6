"""Damaged recordings, shards and tables of every kind: refused in one line, or read as if nothing had happened."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fabricated_finals import final_rows
from fabricated_recording import FINGERPRINT, SHAPES, made_up_recording
from fabricated_servings import serving_rows

from cudal2.cli import main as cli
from cudal2.errors import RecordError, TableError
from cudal2.problem import Problem
from cudal2.records.counters import Counters, Profile, ProfileBook
from cudal2.records.fingerprint import Fingerprint
from cudal2.records.parquet import read_table
from cudal2.records.recording import Recording, read_records
from cudal2.records.shards import RecordLog, read_shards
from cudal2.table import KernelTable

NAN, INF = float("nan"), float("inf")
#: Whose order as texts would not be that of times, or that never was.
NO_TIMES = ("x", " ", "\x00", "2026", "2026-01-01", "2026-01-01 00:00:00+00:00", "2026-01-01T00:00:00",
            "2026-01-01T00:00:00Z", "2026-01-01T00:00:00+01:00", "2026-13-01T00:00:00+00:00",
            "2026-02-30T00:00:00+00:00", "2026-01-01T24:01:00+00:00", "2026-01-01T00:00:00.1+00:00",
            "2026-01-01T00:00:00+00:00\n", "9999999-01-01T00:00:00+00:00", "٢٠٢٦-01-01T00:00:00+00:00")  # fmt: skip


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recording, path = made_up_recording(SHAPES[:2]), tmp_path_factory.mktemp("published") / "one.parquet"
    Recording.publish(recording.measurements(), path, recording.metadata.fingerprints, recording.space)
    return path


def with_column(published: Path, path: Path, name: str, value: Any, kind: pa.DataType | None = None) -> Path:
    table = pq.read_table(published)
    at = table.schema.names.index(name)
    column = pa.array([value] * table.num_rows, kind or table.schema.field(at).type)
    pq.write_table(table.set_column(at, name, column), path)
    return path


def test_a_file_from_before_processes_were_counted_reads_as_one_process(published: Path, tmp_path: Path) -> None:
    path = tmp_path / "old.parquet"
    pq.write_table(pq.read_table(published).drop_columns(["process_rounds"]), path)
    old, new = read_records(path), read_records(published)
    assert old == new and all(row.process_rounds == () for row in old.measurements)


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("process_rounds", None, None),
        *(("times_us", value, None) for value in (None, [], [NAN], [INF], [-1.0], [0.0], [1.0, None])),
        *(("ref_times_us", value, None) for value in (None, [NAN], [-INF], [-5.0])),
        *((name, None, None) for name in ("m", "acc", "status", "pdl", "compile_s", "mode", "contestant")),
        *(("status", value, None) for value in ("weird", "timeout", "")),
        *(("m", value, None) for value in (0, -1)),
        *(("utc", value, None) for value in (None, *NO_TIMES)),
        ("mode", "weird", None),
        ("acc", "fp8", None),
        ("tile_m", 7, None),
        ("times_us", ["a"], pa.list_(pa.string())),
        ("pdl", "x", pa.string()),
        ("m", "many", pa.string()),
    ],
)
def test_a_damaged_column(published: Path, tmp_path: Path, name: str, value: Any, kind: pa.DataType | None) -> None:
    path = with_column(published, tmp_path / "damaged.parquet", name, value, kind)
    with pytest.raises(RecordError) as caught:
        Recording.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"fingerprints": []},
        {"fingerprints": [{}]},
        {"schema": 2},
        {"arch": "sm12"},
        {"space": {"name": "x", "axes": [["foo", [1]]], "limits": []}},
        {"space": {"name": "x", "axes": [["tile_m", [256]]], "limits": []}},
        {"space": {"name": "x", "axes": [], "limits": 5}},
        *(
            {"fingerprints": [{**FINGERPRINT.to_dict(), name: value}]}
            for name in ("sm_count", "memory_gib")
            for value in (0, "x")
        ),
        {"fingerprints": [{**FINGERPRINT.to_dict(), "capability": [9]}]},
        {"fingerprints": [{**FINGERPRINT.to_dict(), "gpu": 5}]},
    ],
)
def test_damaged_metadata(published: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    table = pq.read_table(published)
    values = json.loads(table.schema.metadata[b"cudal2"])
    pq.write_table(table.replace_schema_metadata({b"cudal2": json.dumps(values | changes)}), tmp_path / "x.parquet")
    with pytest.raises(RecordError):
        Recording.load(tmp_path / "x.parquet")


@pytest.mark.parametrize("metadata", ["[]", "null", "5", "{", "[" * 100_000])
def test_metadata_that_is_none(published: Path, tmp_path: Path, metadata: str) -> None:
    pq.write_table(pq.read_table(published).replace_schema_metadata({b"cudal2": metadata}), tmp_path / "x.parquet")
    with pytest.raises(RecordError):
        Recording.load(tmp_path / "x.parquet")


def dictionary_bytes(path: Path, *names: str) -> Iterator[int]:
    """Where a file holds the values of these columns: no checksum is over the heads of such pages."""
    group = pq.read_metadata(path).row_group(0)
    for column in map(group.column, range(group.num_columns)):
        if column.path_in_schema in names:
            yield from range(column.dictionary_page_offset, column.data_page_offset)


def test_any_flipped_byte_is_noticed_or_changes_nothing(published: Path, tmp_path: Path) -> None:
    raw, path = published.read_bytes(), tmp_path / "flipped.parquet"
    whole, _ = read_table(published)
    for at in (*range(0, len(raw), max(1, len(raw) // 150)), *dictionary_bytes(published, "status", "mode")):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 0x40]) + raw[at + 1 :])
        try:
            table, _ = read_table(path)
        except RecordError:
            continue
        for name in ("m", "times_us", "ref_times_us", "status", "tile_m"):
            assert table.column(name).equals(whole.column(name)), f"byte {at} changed {name} unnoticed"


def test_a_shard_torn_at_any_byte(tmp_path: Path) -> None:
    rows = [row for _, row in zip(range(3), made_up_recording(SHAPES[:1]).measurements(), strict=False)]
    with RecordLog(tmp_path, FINGERPRINT) as log:
        log.append(rows)
    raw = log.path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(raw) if byte == 10]
    for size in range(len(raw) + 1):
        log.path.write_bytes(raw[:size])
        shards = read_shards(tmp_path)
        complete = sum(size >= end - 1 for end in ends)
        assert len(shards.measurements) == max(0, complete - 1)
        assert list(shards.measurements) == rows[: len(shards.measurements)]
        assert shards.torn_lines == (size > 0 and size + 1 not in ends and size not in ends)


@pytest.mark.parametrize(
    "line",
    [
        *("null", "[]", "5", "{}", "{", "[" * 100_000, '"text"', '{"kind": "measurement"}'),
        '{"kind": "measurement", "problem": null, "config": null, "status": "correct"}',
        '{"kind": "measurement", "problem": {"m": 1}, "config": {}, "status": "correct"}',
        '{"kind": "session", "schema": 2}',
    ],
    ids=lambda line: line[:20],
)
def test_a_damaged_line_hides_nothing_behind_it(tmp_path: Path, line: str) -> None:
    with RecordLog(tmp_path, FINGERPRINT) as log:
        log.append(made_up_recording(SHAPES[:1]).measurements())
    lines = log.path.read_text().splitlines()
    for at in (0, 2):
        log.path.write_text("\n".join([*lines[:at], line, *lines[at:]]) + "\n")
        with pytest.raises(RecordError, match=f"jsonl:{at + 1}: "):
            read_shards(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"), [("times_us", [1.0, INF]), ("times_us", [NAN]), ("ref_times_us", [-1.0]), ("mode", "a/b")]
)
def test_times_and_modes_that_are_none(tmp_path: Path, name: str, value: Any) -> None:
    with RecordLog(tmp_path, FINGERPRINT) as log:
        log.append(row for row in made_up_recording(SHAPES[:1]).measurements() if row.ok)
    header, row, *_ = log.path.read_text().splitlines()
    log.path.write_text(f"{header}\n{json.dumps({**json.loads(row), name: value})}\n")
    with pytest.raises(RecordError):
        read_records(tmp_path)


@pytest.mark.parametrize("utc", NO_TIMES, ids=ascii)
@pytest.mark.parametrize("kind", ["finals", "latency", "counters"])
def test_a_time_stamp_that_is_none_is_named_with_file_and_line(tmp_path: Path, kind: str, utc: str, run: Any) -> None:
    rows: list[Any] = final_rows("64_64_64", 2.0, {"cublaslt_auto_tn": 3.0})
    rows = serving_rows("64_64_64", 10.0, {"cublaslt_auto_tn": 12.0}) if kind == "latency" else rows
    written, asked = {
        "finals": ("measurement", ("report", "--finals")),
        "latency": ("latency", ("report", "--latency")),
        "counters": ("profile", ("table", "make", tmp_path, "--out", tmp_path / "t.json", "--counters")),
    }[kind]
    if kind == "counters":
        rows = [Profile(rows[0].problem, "torch", None, Counters(), "", 1, "", "", "", rows[0].utc)] * 2
    with RecordLog(tmp_path, FINGERPRINT) as log:
        log.write_row(written, rows[0].to_dict())
        log.write_row(written, {**rows[1].to_dict(), "utc": utc})
    code, _, err = run(*asked, tmp_path)
    assert code == 2 and err.startswith(f"error: {log.path}:3: 'utc' is ") and len(err.splitlines()) == 1


@pytest.mark.parametrize("utc", ["2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00.123+00:00", "", "µs"])
def test_the_writers_spellings_of_a_time_are_read(tmp_path: Path, published: Path, utc: str) -> None:
    utc = utc if utc != "µs" else datetime(2026, 1, 1, microsecond=1, tzinfo=timezone.utc).isoformat()
    rows = [replace(row, utc=utc) for row in final_rows("64_64_64", 2.0, {"torch": 3.0})]
    with RecordLog(tmp_path / "run", FINGERPRINT) as log:
        log.append(rows)
    assert list(read_shards(tmp_path / "run").measurements) == rows
    assert {
        row.utc for row in read_records(with_column(published, tmp_path / "a.parquet", "utc", utc)).measurements
    } == {utc}


@pytest.fixture(scope="module")
def table_values() -> dict[str, Any]:
    rows = list(made_up_recording(SHAPES[:2]).measurements())
    values = KernelTable.from_measurements(rows, FINGERPRINT).to_dict()
    del values["header"]["sha256"]
    return values


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        *(("entry", "median_us", value) for value in (None, "1", NAN, INF, -1.0, 0)),
        *(("entry", "ref_us", value) for value in ("x", -1.0, 0, INF)),
        *(("entry", "runner_up_us", value) for value in ("x", [], 0)),
        *(("entry", "pdl", value) for value in ("no", 1)),
        *(("entry", "evidence", value) for value in ("trust me", [], None)),
        *(("entry", "config", value) for value in (None, [], {}, 5)),
        *(("config", name, value) for name in ("tile_m", "consumers", "split_k") for value in (0, "64", None, 64.0)),
        *(("device", name, value) for name in ("sm_count", "memory_gb") for value in (0, -1, "132", None)),
        *(("device", "capability", value) for value in ("90", [9], [9, 0, 1], None, ["9", "0"])),
        *(("header", "soft", value) for value in ([], {"driver": 5}, None)),
        *(("header", "acc", value) for value in ("fp8", None, [])),
    ],
)
def test_a_damaged_table(tmp_path: Path, table_values: dict[str, Any], part: str, name: str, value: Any) -> None:
    values = json.loads(json.dumps(table_values))
    mnk = Problem.parse(SHAPES[0]).mnk
    entry = values["entries"][mnk]
    places = {
        "entry": entry,
        "config": entry["config"],
        "header": values["header"],
        "device": values["header"]["device"],
    }
    places[part][name] = value
    path = tmp_path / "table.json"
    path.write_text(json.dumps(values))
    with pytest.raises(TableError):
        KernelTable.load(path)


@pytest.mark.parametrize("text", ["", "[]", "5", "null", "{}", "\0", "[" * 100_000, '{"header": [], "entries": {}}'])
def test_a_file_that_is_no_table(tmp_path: Path, text: str) -> None:
    (tmp_path / "table.json").write_text(text)
    with pytest.raises(TableError):
        KernelTable.load(tmp_path / "table.json")


def test_fingerprints_survive_the_round_trip() -> None:
    assert Fingerprint.from_dict(json.loads(json.dumps(FINGERPRINT.to_dict()))) == FINGERPRINT


def _fields(values: dict[str, Any], prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every field of a row but its kind, those of its problem and configuration included."""
    found = [(*prefix, name) for name in values if name != "kind"]
    return found + [
        path for name, value in values.items() if isinstance(value, dict) for path in _fields(value, (name,))
    ]


def _damaged(row: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(row))
    inner = copy
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return copy


@pytest.mark.parametrize("value", [[], {}, 1.5, -1, 10**400, 1e308, True, "\x00<b>", None, [[]], [1, "x"]], ids=repr)
@pytest.mark.parametrize("kind", ["finals", "latency"])
def test_no_value_in_a_field_of_another_kind_gets_past_the_reader(
    tmp_path: Path, kind: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[Any] = final_rows("64_64_64", 2.0, {"cublaslt_auto_tn": 3.0})
    if kind == "latency":
        rows = serving_rows("64_64_64", 10.0, {"cublaslt_auto_tn": 12.0})
    for path in _fields(rows[0].to_dict()):
        with RecordLog(tmp_path / "-".join(path), FINGERPRINT) as log:
            log.write_row({"finals": "measurement"}.get(kind, kind), _damaged(rows[0].to_dict(), path, value))
            for row in rows[1:]:
                log.write_row({"finals": "measurement"}.get(kind, kind), row.to_dict())
        code = cli.main(["report", f"--{kind}", str(log.path.parent), "--json"])
        out, err = capsys.readouterr()
        assert code == (2 if err else 0) and err.count("error: ") == (code == 2) and len(err.splitlines()) <= 1, path
        assert not {"NaN", "Infinity"} & set(out.replace(",", "").split()), path


@pytest.mark.parametrize(
    "command",
    [
        *(("report", "--finals", "{}"), ("table", "make", "{}", "--out", "{}/t.json"), ("report", "--latency", "{}")),
        *(
            ("search", "--backend", "replay", "--recording", "{}"),
            ("table", "make", "{}", "--counters", "{}", "--out", "t"),
        ),
    ],
    ids=" ".join,
)
def test_a_session_that_died_before_its_header_holds_nothing(
    tmp_path: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "torn.jsonl").write_text('{"kind":"sess')
    code = cli.main([word.format(tmp_path) for word in command])
    out, err = capsys.readouterr()
    assert (code == 2 and err.count("error: ") == 1) or (code == 0 and "nothing to report" in err and not out)
    assert not (tmp_path / "t.json").exists()


@pytest.mark.parametrize("read", [read_shards, ProfileBook.load])
def test_a_device_file_is_no_shard(read: Callable[[Path], object]) -> None:
    with pytest.raises(RecordError, match="/dev/null: no record shard"):
        read(Path("/dev/null"))


@pytest.mark.parametrize(
    "command",
    [
        *("report --finals", "report --latency", "train --counters", "record publish --out x.parquet"),
        *(
            "table make --out x.json",
            "search --backend replay --recording",
            "search --backend replay --strategy beam --from",
        ),
    ],
)
def test_what_is_not_there_is_called_that(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*command.split(), str(tmp_path / "none")]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"error: {tmp_path / 'none'}: no such ")
