"""Foreign kernels judged from outside: real processes and real libraries that cheat, host memory in the GPU's place."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import host_platform
import pytest
from host_platform import HostPlatform

from cudal2.bench.foreign import trial as module
from cudal2.bench.foreign.process import ForeignError
from cudal2.bench.foreign.trial import ForeignTrial
from cudal2.build.foreign import ForeignKernel
from cudal2.problem import Problem
from cudal2.records.measurement import Status
from cudal2.settings import BenchSettings

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")

PROBLEM = Problem(16, 24, 64)
Judged = Callable[..., ForeignTrial]


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes the trial of a library written in C."""
    monkeypatch.setenv(host_platform.LEAK, str(tmp_path / "leaked"))
    # A busy machine wakes processes late; what is caught here is off by far more.
    monkeypatch.setattr(module, "_CLOCK_SLACK_MS", 60.0)
    monkeypatch.setattr(module, "_CACHE_RATIO", 8.0)
    monkeypatch.setattr(module, "_LEAK_SECONDS", 0.5)
    opened: list[ForeignTrial] = []

    def make(entry: str, deadline_s: float = 20.0, build=host_platform.build) -> ForeignTrial:
        library = build(tmp_path, entry)
        kernel = ForeignKernel("foreign:cheats", entry, library, tmp_path / "log", 0.0, 1 << 16, False, "a kernel")
        settings = BenchSettings(deadline_s=deadline_s)
        opened.append(ForeignTrial(kernel, PROBLEM, settings, HostPlatform(tmp_path), 3))
        return opened[-1]

    yield make
    for trial in opened:
        trial.close()


def outcome(trial: ForeignTrial, rounds: int = 2) -> tuple[Status, str]:
    """What a contest would record."""
    try:
        checked = trial.check()
        if not checked.ok:
            return Status.CORRECTNESS, checked.reason
        prepared = trial.prepare(1.0)
        for _ in range(rounds):
            prepared.time_us()
        rechecked = prepared.recheck()
        return (Status.CORRECT if rechecked.ok else Status.CORRECTNESS), rechecked.reason
    except ForeignError as error:
        return error.status, str(error)


def test_an_honest_kernel_is_timed_as_a_graph_and_by_both_clocks(judged: Judged) -> None:
    trial = judged("honest")
    assert trial.check().ok
    prepared = trial.prepare(1.0)
    times = [prepared.time_us() for _ in range(3)]
    assert prepared.recheck().ok and all(0.0 < time_us < 1e6 for time_us in times)
    assert prepared.launches >= 2 and prepared.detail.startswith("measure=graph; ")
    assert prepared.detail.endswith(" us on the judge's clock")


def test_what_cannot_be_captured_is_timed_as_a_loop_and_says_so(judged, monkeypatch) -> None:
    monkeypatch.setenv(host_platform.NO_GRAPHS, "1")
    trial = judged("honest")
    assert trial.check().ok
    prepared = trial.prepare(1.0)
    assert prepared.time_us() > 0.0 and prepared.recheck().ok
    assert "measure=loop, host time included: operation not permitted" in prepared.detail


#: Entry of ``host_cuda/capture.cc``, and why it is timed as a loop.
LOOPS = {
    "returns_the_error": "returned 900 after cudaErrorStreamCaptureUnsupported",
    "swallows_the_error": "cudaErrorStreamCaptureUnsupported: what it means",
    "throws_the_error": "threw: no waiting",
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@pytest.mark.parametrize("entry", LOOPS)
def test_the_error_that_a_failed_capture_leaves_is_not_the_loops(entry: str, judged, monkeypatch) -> None:
    monkeypatch.setenv(host_platform.NO_GRAPHS, "1")
    trial = judged(entry, build=host_platform.build_entry)
    assert trial.check().ok
    prepared = trial.prepare(1.0)
    assert prepared.time_us() > 0.0 and prepared.recheck().ok
    assert f"measure=loop, host time included: {LOOPS[entry]}; " in prepared.detail


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_what_cannot_be_launched_outside_a_capture_either_is_no_loop(judged, monkeypatch) -> None:
    monkeypatch.setenv(host_platform.NO_GRAPHS, "1")
    status, reason = outcome(judged("bad_launch_from_then_on", build=host_platform.build_entry))
    assert status is Status.LAUNCH and "the launch fails: cudaErrorInvalidConfiguration" in reason


#: Entry of ``host_cheats.c``, how it ends, and why.
CHEATS = {
    "writes_nothing": (Status.CORRECTNESS, "0/1 data: C[0,0] is nan"),
    "zeros": (Status.CORRECTNESS, "0/1 data: C[0,0] is 0"),
    "nan_output": (Status.CORRECTNESS, "C[0,5] is nan"),
    "skips_the_k_tail": (Status.CORRECTNESS, "0/1 data"),
    "stale_output": (Status.CORRECTNESS, "revealing data"),
    "first_call_only": (Status.CORRECTNESS, "is nan"),
    "fp16_accumulator": (Status.CORRECTNESS, "revealing data"),
    "fp16_partials": (Status.CORRECTNESS, "revealing data"),
    "changes_its_input": (Status.CORRECTNESS, "changed its input A"),
    "writes_behind_c": (Status.CORRECTNESS, "elements written after C"),
    "caches_by_pointer": (Status.CORRECTNESS, "(operands changed in place)"),
    "caches_by_a_sample": (Status.CORRECTNESS, "(operands changed in place)"),
    "remembers_answers": (Status.QUARANTINED, "it remembers answers"),
    "wrong_when_timed": (Status.CORRECTNESS, "after timing, set"),
    "empties_its_input_when_timed": (Status.CORRECTNESS, "while it was timed, it changed its input A"),
    "idle_when_timed": (Status.CORRECTNESS, "when it said it was done"),
    "returns_early": (Status.CORRECTNESS, "is nan"),
    "patches_the_timer": (Status.QUARANTINED, "the judge's clock saw"),
    "leaks": (Status.RUNTIME, "it leaks device memory: "),
    "leaves_a_setting": (Status.RUNTIME, "it left the persisting-L2 limit at 4096 bytes, which was 0"),
    "refuses": (Status.CONSTRAINTS, "does not take this shape: the entry returned 7"),
    "loops": (Status.TIMEOUT, "no answer within 2 s: hang?"),
    "crashes": (Status.RUNTIME, "its process died of SIGSEGV"),
    "exits": (Status.RUNTIME, "its process ended with exit code 3"),
    "exits_when_loaded": (Status.RUNTIME, "its process ended with exit code 5 (bye)"),
    "aborts": (Status.RUNTIME, "its process died of SIGABRT (terminate called)"),
    "does_not_load": (Status.COMPILE, "undefined symbol: nowhere"),
    "answers_for_us": (Status.RUNTIME, "its process answers what was not asked"),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_caught_with_its_reason(cheat: str, judged: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    status, reason = CHEATS[cheat]
    if cheat == "leaks":
        monkeypatch.setattr(module, "_LEAK_SECONDS", 10.0)  # all its calls, however busy the machine
    found = outcome(judged(cheat, 2.0 if cheat == "loops" else 20.0))
    assert found[0] is status and reason in found[1], found
    assert "\n" not in found[1]


def test_no_seed_tells_the_operands_and_rows_to_come(judged: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever knew them would compute nothing else."""
    seeds: list[int] = []
    compared = module.check_sample
    monkeypatch.setattr(module, "check_sample", lambda sets, index, seed: seeds.append(seed) or compared(sets, 0, seed))
    drawn = []
    for _ in range(2):
        trial = judged("honest")
        assert trial.check().ok
        trial.prepare(0.1)
        drawn.append(trial.sets.a(0).clone())
    assert len(set(seeds)) == len(seeds) > 2
    assert not drawn[0].equal(drawn[1])


def test_the_check_data_of_a_cheat_does_not_survive_it(judged: Judged) -> None:
    """A second trial in the same judge starts from scratch."""
    assert outcome(judged("changes_its_input"))[0] is Status.CORRECTNESS
    assert outcome(judged("honest"))[0] is Status.CORRECT


#: What the kernel's process says instead of a time or of what it left behind.
LIES = [5e-324, 1e300, float("inf"), float("nan"), -1.0, 0.0, 5, None, True, [1.0], 10**400, "x\n\x1b[2J" * 20_000]


@pytest.mark.parametrize("order", ["replay", "left_behind", "prepare", "repeat"])
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: repr(lie)[:12])
def test_no_answer_of_a_lying_process_is_more_than_its_own_failure(
    lie: object, order: str, judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    real = module.ForeignProcess.ask

    def ask(process: module.ForeignProcess, asked: str, deadline_s: float, **arguments: object) -> object:
        answer = real(process, asked, deadline_s, **arguments)
        loaded.extend([asked] if asked == "load" else [])
        return lie if asked == order and loaded else answer

    monkeypatch.setattr(module.ForeignProcess, "ask", ask)
    status, reason = outcome(judged("honest"), 1)
    assert reason.isprintable() and len(reason) < 500
    assert status is Status.QUARANTINED if order == "replay" else status in (Status.CORRECT, Status.RUNTIME)
