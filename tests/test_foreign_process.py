"""The process of a foreign kernel: what it starts, prints and hangs in costs nobody else anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import host_platform
import pytest

from cudal2.bench.foreign import process as judge_end
from cudal2.bench.foreign.process import ForeignError, ForeignProcess
from cudal2.records.measurement import Status

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")

COMMAND = [sys.executable, host_platform.__file__]


@contextmanager
def loaded(folder: Path, entry: str) -> Iterator[ForeignProcess]:
    """A process that has the library, and buffers of zeros."""
    library = host_platform.build(folder, entry)
    for operand in "abc":
        (folder / operand).write_bytes(bytes(1 << 12))
    arena = {name: {"handle": str(folder / name), "offset": 0, "pitch": 0} for name in "abc"}
    with ForeignProcess(COMMAND, {}, folder / "run.log") as process:
        process.ask("open", 20.0, arenas={"check": {**arena, "count": 1}}, sizes=(8, 8, 8), workspace_bytes=64)
        process.ask("load", 20.0, library=str(library))
        yield process


def call(process: ForeignProcess, deadline_s: float = 20.0) -> None:
    process.ask("call", deadline_s, arena="check", index=0, hold_ms=0.0)


def gone(pid: int, within_s: float = 10.0) -> bool:
    """Whether a process ends in time; a zombie has."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    return False


def written_pid(path: Path) -> int:
    until = time.monotonic() + 10.0
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return int(path.read_text())


def test_a_hang_is_ended_and_named(tmp_path: Path) -> None:
    with loaded(tmp_path, "loops") as process:
        with pytest.raises(ForeignError, match=r"no answer within 0.5 s: hang\?; log: ") as caught:
            call(process, 0.5)
        assert caught.value.status is Status.TIMEOUT
        assert gone(process.pid)
        with pytest.raises(ForeignError, match="was ended before"):
            call(process)


def test_a_detached_grandchild_goes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_PID", str(tmp_path / "pid"))
    with loaded(tmp_path, "detaches") as process:
        call(process)
        left = written_pid(tmp_path / "pid")
        assert not gone(left, 0.1)
    assert gone(left)


def test_a_host_that_exits_leaves_no_grandchild_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_PID", str(tmp_path / "pid"))
    with loaded(tmp_path, "detaches_and_exits") as process, pytest.raises(ForeignError, match="exit code 3"):
        call(process)
    assert gone(written_pid(tmp_path / "pid"))


def test_everything_dies_with_the_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_PID", str(tmp_path / "pid"))
    code = (
        "import os, pathlib, sys, test_foreign_process as t\n"
        "with t.loaded(pathlib.Path(sys.argv[1]), 'detaches') as process:\n"
        "    t.call(process); print(process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    judge = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert judge.returncode == -9, judge.stderr
    assert gone(int(judge.stdout)) and gone(written_pid(tmp_path / "pid"))


def test_its_prints_go_to_the_log_up_to_a_limit_and_nowhere_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with loaded(tmp_path, "prints_too_much") as process:
        call(process)
    assert (tmp_path / "run.log").stat().st_size == 2**24
    assert capfd.readouterr() == ("", "")


def test_the_checker_is_not_in_it(tmp_path: Path) -> None:
    """Nothing to find by walking the process's memory: neither answers nor what compares with them."""
    with loaded(tmp_path, "honest") as process:
        host = next(
            int(entry.name) for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and parent_of(int(entry.name)) == process.pid
        )  # fmt: skip
        mapped = Path(f"/proc/{host}/maps").read_text()
    assert "kernel.so" in mapped and "torch" not in mapped and "numpy" not in mapped


def parent_of(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def test_a_program_that_does_not_start_is_a_reason(tmp_path: Path) -> None:
    with ForeignProcess([sys.executable, "-c", "raise SystemExit('no GPU')"], {}, tmp_path / "log") as process:
        with pytest.raises(ForeignError, match=r"its process ended with exit code 1 \(no GPU\); log: "):
            process.ask("idle", 20.0)


#: Programs in the place of the foreign process, with ``ordered()``, which waits for an order, and ``out``, the pipe of
#: answers; and what the judge makes of each, asked twice.
LIARS = {
    "ordered(); os.write(out, b'?' * 2**20)": "answers what was not asked",
    "ordered(); os.write(out, b'\\n' * 2**20)": "answers what was not asked",
    "ordered(); os.write(out, b'[' * 60_000 + b'\\n'); time.sleep(60)": "answers what was not asked",
    "ordered(); os.write(out, b'\\xff{}\\n'); time.sleep(60)": "answers what was not asked",
    "ordered(); answer(2); answer(1); time.sleep(60)": "answers what was not asked",
    "ordered(); answer(1); answer(1); time.sleep(60)": "answers what was not asked",
    "ordered(); answer(1); ordered(); answer(-2); time.sleep(60)": "answers what was not asked",
    "ordered(); os.write(out, b'[1]\\n'); time.sleep(60)": "answers what was not asked",
    "ordered(); answer(1); os.close(out)": "ended with exit code 0",
    "ordered(); os.write(out, b'{')": "answers what was not asked",
    "ordered(); answer(1, outcome='x', text='a\\n\\x1b[2J' * 1_000); time.sleep(60)": "a  [2Ja  [2J",
    "ordered(); answer(1, outcome=[], text={'a': None}); time.sleep(60)": "{'a': None}",
    "ordered(); [os.write(out, b' ') and time.sleep(0.2) for _ in range(300)]": "no answer within 1 s",
    "os.close(orders); time.sleep(60)": "no answer within 1 s|ended",
}
LIAR = """
import json, os, sys, time
options = json.loads(sys.argv[1])
orders, out = options["commands"], options["replies"]
def ordered(): return os.read(orders, 2**16)
def answer(number, **more): os.write(out, json.dumps({"number": number, "value": 1.0, **more}).encode() + b"\\n")
"""


@pytest.mark.parametrize("program", LIARS)
def test_a_process_that_talks_nonsense_is_ended_in_one_line(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_end, "_STOP_S", 0.2)  # no guard here that sees the judge hang up
    command = [sys.executable, "-c", LIAR + program]
    with ForeignProcess(command, {}, tmp_path / "run.log") as process:
        with pytest.raises(ForeignError, match=LIARS[program].replace("[2J", r"\[2J")) as caught:
            for _ in range(2):
                process.ask("idle", 1.0)
        assert str(caught.value).isprintable() and len(str(caught.value)) < 1_000
    assert gone(process.pid)
