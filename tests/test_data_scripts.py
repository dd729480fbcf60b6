"""The scripts that look after shipped data: what they cannot use is one line and exit code 2, and changes nothing."""

from __future__ import annotations

import gzip
import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from fabricated_recording import FINGERPRINT

from cudal2.cli.main import guarded
from cudal2.codegen import generator_version
from cudal2.problem import Problem
from cudal2.records.measurement import Measurement, Status
from cudal2.records.recording import Recording, read_records
from cudal2.records.shards import RecordLog
from cudal2.settings import SpaceSettings
from cudal2.space.space import SearchSpace
from cudal2.table import KernelTable

SCRIPTS = Path(__file__).parent.parent / "scripts"
OLD, NEW = "fedcba9876543210", "0123456789abcdef"
BEFORE = replace(FINGERPRINT, generator_version=OLD)
FIRST, SECOND, THIRD = (f"2000-01-01T0{hour}:00:00+00:00" for hour in (1, 2, 3))


#: Few of the whole space, to take the first of.
SMALL_TILES = SearchSpace(settings=SpaceSettings({"tile_m": (64,), "tile_n": (64,), "stages": (2,)}))


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(*problems: Problem) -> list[Measurement]:
    configs = [next(SMALL_TILES.enumerate(problem)) for problem in problems]
    made = zip(problems, configs, strict=True)
    return [Measurement(one, c.family, c, Status.CORRECT, times_us=(1.0,), pdl=True) for one, c in made]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder laid out as the shipped one."""
    for folder in ("searched", "tables"):
        (tmp_path / folder).mkdir()
    measured = rows(Problem(64, 64, 64))
    Recording.publish(measured, tmp_path / "searched" / "a.parquet", [BEFORE])
    KernelTable.from_measurements(measured, BEFORE).save(tmp_path / "tables" / "a.json")
    for folder in ("finals", "repeat"):
        with RecordLog(tmp_path / folder, BEFORE) as log:
            log.append(measured)
    log.path.with_name(f"{log.path.name}.gz").write_bytes(gzip.compress(log.path.read_bytes()))
    log.path.unlink()
    return tmp_path


def test_restamping_changes_the_version_everywhere_and_nothing_else(data: Path, capsys) -> None:
    restamp, folders = script("restamp"), (data / "finals", data / "repeat")
    before = {path: read_records(path).measurements for path in (*folders, data / "searched" / "a.parquet")}
    files = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    restamp.main([NEW, NEW, "--data", str(data)])
    assert "0 files now of" in capsys.readouterr().out
    assert all(path.read_bytes() == content for path, content in files.items())
    restamp.main([OLD, NEW, "--data", str(data)])
    assert "4 files now of" in capsys.readouterr().out
    assert {path for path in data.rglob("*") if path.is_file()} == set(files)
    for path, measurements in before.items():
        found = read_records(path)
        assert found.measurements == measurements and found.fingerprint.generator_version == NEW
    assert KernelTable.load(data / "tables" / "a.json").header.soft["generator_version"] == NEW


@pytest.mark.parametrize(
    "arguments, message",
    [(["abc"], "16 hex digits"), ([NEW, "--data", "none"], "holds no recordings"), ([], "required: OLD")],
)
def test_restamping_nothing_is_refused(arguments: list[str], message: str, capsys) -> None:
    assert guarded(lambda: script("restamp").main(arguments)) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_finals_are_split_into_figures_and_what_selections_timed(tmp_path: Path) -> None:
    chosen, other = (replace(row, utc=FIRST) for row in rows(Problem(64, 64, 64), Problem(64, 64, 128)))
    other = replace(other, times_us=(0.1,))
    again = replace(chosen, times_us=(2.0,), utc=THIRD)
    library = replace(chosen, contestant="cublaslt_auto_tn", config=None, utc=SECOND)
    figures = [replace(chosen, utc=SECOND), library]
    for at, measured in enumerate(([chosen, other, *figures], [again])):
        with RecordLog(tmp_path / "run", replace(BEFORE, generator_version=("+".join((OLD, NEW)), OLD)[at])) as log:
            log.append(measured)
    split, finals = script("split_finals"), tmp_path / "finals"
    arguments = [str(tmp_path / "run"), "--finals", str(finals), "--selected", str(tmp_path / "{family}{nth}.parquet")]
    split.main(arguments)
    (kept,) = finals.glob("*.jsonl")
    assert list(read_records(kept).measurements) == figures
    whole = (tmp_path / "run" / kept.name).read_bytes()
    assert all(line in whole.splitlines() for line in kept.read_bytes().splitlines())
    published = read_records(tmp_path / "sm90_ws1.parquet")
    kept_us = {row.problem: row.times_us for row in published.measurements}
    assert kept_us == {chosen.problem: (1.0,), other.problem: (pytest.approx(0.1),)}
    assert published.fingerprint.generator_version == f"{OLD}+{NEW}", "none of our kernels': left as it is"
    split.main(arguments)
    assert read_records(tmp_path / "sm90_ws1.parquet") == published, "the same again, since nothing is lost"
    second = read_records(tmp_path / "sm90_ws2.parquet")
    assert second.measurements == (again,) and second.fingerprint.generator_version == OLD


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["none", "--finals", "f", "--selected", "{family}{nth}.parquet"], "no shards"),
        (["run", "--finals", "f", "--selected", "{family}.parquet"], "needs {family}"),
        (["run", "--finals", "run", "--selected", "{family}{nth}.parquet"], "is in --finals itself"),
        (["run", "--finals", "f", "--selected", "{family}{nth}.txt"], "a recording is a .parquet"),
        (["run", "--finals", "f", "--selected", "held/{family}{nth}.parquet"], "holds 1 row that RUNS do not"),
    ],
)
def test_a_split_that_would_lose_rows_is_refused(tmp_path, monkeypatch, arguments, message, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    with RecordLog(tmp_path / "run", BEFORE) as log:
        log.append(rows(Problem(64, 64, 64)))
    (tmp_path / "held").mkdir()
    Recording.publish(rows(Problem(64, 64, 64), Problem(64, 64, 128)), tmp_path / "held" / "sm90_ws1.parquet", [BEFORE])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert guarded(lambda: script("split_finals").main(arguments)) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_split_names_the_version_of_each_family_alone(tmp_path: Path) -> None:
    ours = generator_version("sm90_ws")
    for version in (f"{OLD}+{ours}", ours):
        with RecordLog(tmp_path / "run", replace(BEFORE, generator_version=version)) as log:
            log.append(rows(Problem(64, 64, 8 * len(version))))
    with RecordLog(tmp_path / "run", replace(BEFORE, generator_version=NEW)) as log:
        small = next(iter(SearchSpace(family="sm90_small").enumerate(Problem(64, 64, 64))))
        log.append([Measurement(Problem(64, 64, 64), small.family, small, Status.CORRECT, times_us=(1.0,))])
    script("split_finals").main(
        [str(tmp_path / "run"), "--finals", str(tmp_path / "f"), "--selected", str(tmp_path / "{family}{nth}.parquet")]
    )
    assert [one.generator_version for one in read_records(tmp_path / "sm90_ws1.parquet").fingerprints] == [ours]
    assert [one.generator_version for one in read_records(tmp_path / "sm90_small1.parquet").fingerprints] == [NEW]
    assert not (tmp_path / "f").exists(), "no finals, no shard"


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"version": "", "digests": {}, "kernels": [1]})])
def test_machine_code_is_compared_with_digests_alone(tmp_path: Path, text: str, capsys) -> None:
    (tmp_path / "before.json").write_text(text)
    machine_code = script("machine_code")
    assert guarded(lambda: machine_code.main(["--compare", str(tmp_path / "before.json")])) == 2
    assert guarded(lambda: machine_code.main(["--compare", str(tmp_path / "none.json")])) == 2
    assert guarded(lambda: machine_code.main(["--write", "x", "--random", "-5"])) == 2
    err = capsys.readouterr().err
    assert "holds no digests" in err and "none.json: No such file" in err and err.count("\n") == 3


def test_neighbours_that_say_nothing_are_no_figure(tmp_path: Path, capsys, monkeypatch) -> None:
    Recording.publish(rows(Problem(64, 64, 64), Problem(8192, 8192, 8192)), tmp_path / "a.parquet", [FINGERPRINT])
    monkeypatch.setattr("sys.argv", ["neighbours.py", str(tmp_path / "a.parquet")])
    assert guarded(script("neighbours").main) == 3
    assert "of 2 shapes asked none has a time" in capsys.readouterr().err
