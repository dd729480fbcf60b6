"""The worker against jobs that hang, crash, raise, lie and make noise, in real processes; no GPU."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cudal2.bench import worker as worker_module
from cudal2.bench.isolation import IsolatedProcess, JobDiedError, JobFailedError, JobTimeoutError
from cudal2.bench.jobs import Candidate, Prepared
from cudal2.bench.worker import PRELOAD, Worker, call_each, call_together
from cudal2.build.artifact import BuiltKernel
from cudal2.errors import EnvironmentProblemError, WorkerError
from cudal2.launch.driver import LaunchError
from cudal2.problem import Problem
from cudal2.records.measurement import Measurement, Status
from cudal2.settings import BenchSettings
from cudal2.space.config import Sm90WsConfig

PROBLEM = Problem(64, 64, 64)
SETTINGS = BenchSettings()
CONFIG = Sm90WsConfig(64, 64, 64, 2, "coop", 1, 1, 1, 1, "direct", 1)
DEADLINE_S = 0.7
RESPAWN_S = 5.0


class FakeSession:
    """Does what the name of the cubin says."""

    def __init__(self, device_index: int) -> None:
        self.broken = False
        self.prepared = 0

    def fault(self) -> str | None:
        return "CUDA_ERROR_ILLEGAL_ADDRESS" if self.broken else None

    def prepare(self, problem: Problem, settings: BenchSettings, reference: bool) -> Prepared:
        self.prepared += 1
        return Prepared(5.0, f"pid {os.getpid()}")

    def measure(
        self, candidate: Candidate, settings: BenchSettings, reference: bool, upcoming: Sequence[Candidate]
    ) -> Any:
        assert self.prepared
        self.upcoming = upcoming
        return getattr(self, candidate.built.name)(candidate)

    def good(self, candidate: Candidate) -> Measurement:
        return candidate.row(Status.CORRECT, times_us=(3.0, 3.1), ref_times_us=(4.0, 4.1), detail=str(os.getpid()))

    def hangs(self, candidate: Candidate) -> None:
        time.sleep(600)

    def segfaults(self, candidate: Candidate) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def exits(self, candidate: Candidate) -> None:
        os._exit(3)

    def calls_exit(self, candidate: Candidate) -> None:
        sys.exit(4)

    def raises(self, candidate: Candidate) -> None:
        raise ValueError("first line\nsecond line")

    def is_refused(self, candidate: Candidate) -> None:
        raise LaunchError(912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "cuLaunchKernelEx")

    def faults(self, candidate: Candidate) -> None:
        self.broken = True
        raise LaunchError(700, "CUDA_ERROR_ILLEGAL_ADDRESS", "cuGraphLaunch")

    def returns_garbage(self, candidate: Candidate) -> dict[str, float]:
        return {"time_us": 0.0}

    def returns_unpicklable(self, candidate: Candidate) -> Any:
        return lambda: None

    def returns_poison(self, candidate: Candidate) -> Any:
        return Poison()

    def looks_ahead(self, candidate: Candidate) -> Measurement:
        return candidate.row(Status.CORRECT, times_us=(1.0,), detail=" ".join(one.built.name for one in self.upcoming))

    def leaves_word(self, candidate: Candidate) -> Measurement:
        candidate.built.log_path.touch()
        return self.good(candidate)

    def forks(self, candidate: Candidate) -> Measurement:
        os.fork()  # both copies answer
        return self.good(candidate)

    def prints(self, candidate: Candidate) -> Measurement:
        print("noise from Python", flush=True)
        os.write(1, b"noise from native code\n")
        return self.good(candidate)


class Poison:
    """Pickles, and cannot be unpickled."""

    def __reduce__(self) -> Any:
        return int, ("not a number",)


class NoGpu(FakeSession):
    def __init__(self, device_index: int) -> None:
        raise EnvironmentProblemError(f"torch sees no CUDA GPU number {device_index}")


class CannotPrepare(FakeSession):
    def prepare(self, problem: Problem, settings: BenchSettings, reference: bool) -> Prepared:
        raise MemoryError("needs 200 GiB")


def built(name: str) -> BuiltKernel:
    return BuiltKernel(name, "0" * 64, Path("no.cubin"), 168, 0, 40_000, 160, 0.5, Path("no.log"))


def run(worker: Worker, *names: str) -> list[Measurement]:
    candidates = [(replace(CONFIG, group=2**index), built(name)) for index, name in enumerate(names)]
    return list(worker.measure(PROBLEM, candidates, SETTINGS))


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Worker(0, DEADLINE_S, FakeSession) as started:
        yield started


BAD = {
    "hangs": (Status.TIMEOUT, "no answer within 0.7 s"),
    "segfaults": (Status.RUNTIME, "SIGSEGV"),
    "exits": (Status.RUNTIME, "exit code 3"),
    "calls_exit": (Status.RUNTIME, "exit code 4"),
    "faults": (Status.RUNTIME, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    "raises": (Status.RUNTIME, "first line"),
    "is_refused": (Status.LAUNCH, "CUDA_ERROR_INVALID_CLUSTER_SIZE"),
    "returns_garbage": (Status.RUNTIME, "returned a dict"),
    "returns_unpicklable": (Status.RUNTIME, "unusable answer"),
    "returns_poison": (Status.RUNTIME, "unusable answer"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_fault_costs_one_candidate_and_the_worker_is_back_within_seconds(worker: Worker, fault: str) -> None:
    before, bad = run(worker, "good", fault)
    started = time.monotonic()
    (after,) = run(worker, "good")
    status, reason = BAD[fault]
    assert (bad.status, bad.times_us, bad.registers) == (status, (), 168)
    assert reason in bad.reason and "\n" not in bad.reason
    assert bad.bench_s < DEADLINE_S + RESPAWN_S
    assert before.ok and after.ok
    assert time.monotonic() - started < RESPAWN_S
    keeps_child = fault in ("raises", "is_refused", "returns_garbage", "returns_unpicklable")
    assert (before.detail == after.detail) == keeps_child


def test_an_answer_to_another_job_is_nobodys_measurement(worker: Worker) -> None:
    first, *others = run(worker, "forks", "hangs", "good")
    assert first.ok
    assert not others[0].ok, "the second answer of the first job must not pass for the hang's"
    assert others[1].ok


def test_results_are_streamed_so_that_a_hang_loses_nothing_before_it(worker: Worker) -> None:
    candidates = [(CONFIG, built(name)) for name in ("good", "hangs", "good")]
    stream = worker.measure(PROBLEM, candidates, SETTINGS)
    first = next(stream)
    assert first.ok
    assert [row.status for row in stream] == [Status.TIMEOUT, Status.CORRECT]


def test_a_measurement_is_told_what_comes_next(worker: Worker) -> None:
    rows = run(worker, "looks_ahead", "good", "looks_ahead", "good", "looks_ahead")
    assert [rows[at].detail for at in (0, 2, 4)] == ["good looks_ahead", "good looks_ahead", ""]


def test_the_hung_child_is_gone_and_not_only_forgotten(worker: Worker) -> None:
    worker.start()
    pid = worker.pid
    assert pid is not None and os.getpgid(pid) == pid
    run(worker, "hangs")
    assert not alive(pid)


def test_noise_on_the_childs_stdout_stays_off_ours(worker: Worker, capfd: pytest.CaptureFixture[str]) -> None:
    (row,) = run(worker, "prints")
    assert row.ok
    assert "noise" not in capfd.readouterr().out


def test_a_worker_without_a_gpu_says_so() -> None:
    with Worker(3, DEADLINE_S, NoGpu) as worker, pytest.raises(WorkerError, match="no CUDA GPU number 3"):
        run(worker, "good")


def test_a_problem_that_cannot_be_prepared_blames_no_candidate() -> None:
    with Worker(0, DEADLINE_S, CannotPrepare) as worker:
        with pytest.raises(WorkerError, match="64_64_64 cannot be prepared on the GPU: needs 200 GiB"):
            run(worker, "good")


def test_closing_the_stream_early_gives_the_gpu_back(worker: Worker) -> None:
    stream = worker.measure(PROBLEM, [(CONFIG, built("good"))] * 2, SETTINGS)
    next(stream)
    assert worker.prepare(PROBLEM, SETTINGS).reference_us == 5.0  # asked while the stream is open
    stream.close()
    assert run(worker, "good")[0].ok


def test_the_child_goes_on_while_the_caller_looks_at_a_measurement(worker: Worker, tmp_path: Path) -> None:
    kernels = [built("good"), replace(built("leaves_word"), log_path=tmp_path / "word"), built("good")]
    stream = worker.measure(PROBLEM, [(CONFIG, kernel) for kernel in kernels], SETTINGS)
    assert next(stream).ok
    assert eventually((tmp_path / "word").exists), "measured before it is asked for"
    pid = worker.pid
    stream.close()
    assert run(worker, "good")[0].ok and worker.pid == pid, "the answer nobody wants is no other candidate's"


def test_what_kills_the_child_costs_the_candidate_behind_it_nothing(worker: Worker) -> None:
    rows = run(worker, "good", "segfaults", "good", "hangs", "faults", "good", "raises", "good")
    assert [row.ok for row in rows] == [True, False, True, False, False, True, False, True]
    assert [row.status for row in rows if not row.ok][1] is Status.TIMEOUT


def job_returning(session: Any, value: Any) -> Any:
    return value


def job_sleeping(session: Any, seconds: float) -> None:
    time.sleep(seconds)


def job_forking(session: Any) -> int:
    grandchild = subprocess.Popen(["sleep", "600"])
    return grandchild.pid


def test_an_interrupted_call_never_answers_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    process = IsolatedProcess(FakeSession, (0,), PRELOAD)
    try:
        process.start()
        monkeypatch.setattr(process, "_answer", interrupt)
        with pytest.raises(KeyboardInterrupt):
            process.call(job_returning, "stale", deadline_s=5)
        monkeypatch.undo()
        assert process.call(job_returning, "fresh", deadline_s=5) == "fresh"
    finally:
        process.stop()


def test_jobs_posted_one_behind_the_other_are_answered_by_number() -> None:
    process = IsolatedProcess(FakeSession, (0,), PRELOAD)
    try:
        numbers = [process.post(job_returning, word) for word in ("one", "two", "three")]
        assert process.collect(numbers[1], 5) == "two"
        assert process.call(job_returning, "four", deadline_s=5) == "four"
        assert [process.collect(numbers[at], 5) for at in (2, 0)] == ["three", "one"]
        lost = [process.post(job_sleeping, 60), process.post(job_returning, "lost")]
        with pytest.raises(JobTimeoutError):
            process.collect(lost[0], 0.2)
        assert process.call(job_returning, "fresh", deadline_s=5) == "fresh"
        with pytest.raises(JobTimeoutError):
            process.collect(lost[1], 0.2)
    finally:
        process.stop()


def interrupt(deadline_s: float, number: int) -> None:
    raise KeyboardInterrupt


def test_stopping_takes_grandchildren_along() -> None:
    process = IsolatedProcess(FakeSession, (0,), PRELOAD)
    grandchild = process.call(job_forking, deadline_s=5)
    assert alive(grandchild)
    process.stop()
    assert eventually(lambda: not alive(grandchild))


def test_kinds_of_failure_are_told_apart() -> None:
    process = IsolatedProcess(FakeSession, (0,), PRELOAD)
    try:
        with pytest.raises(JobTimeoutError):
            process.call(job_sleeping, 60.0, deadline_s=0.2)
        with pytest.raises(JobFailedError, match="str"):
            process.call(job_sleeping, "long", deadline_s=5)
        os.kill(process.pid or 0, signal.SIGKILL)
        with pytest.raises(JobDiedError, match="SIGKILL"):
            process.call(job_sleeping, 0.0, deadline_s=5)
    finally:
        process.stop()


_PARENT = """
import time
from cudal2.bench.isolation import IsolatedProcess

class Session:
    def fault(self):
        return None

def sleep(session, seconds):
    time.sleep(seconds)

if __name__ == "__main__":
    process = IsolatedProcess(Session)
    process.start()
    print(process.pid, flush=True)
    process.call(sleep, 600.0, deadline_s=600)
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_busy_child_dies_with_its_parent(sent: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(_PARENT)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.send_signal(sent)
        parent.wait(20)
    assert eventually(lambda: not alive(pid))


def alive(pid: int) -> bool:
    """A zombie that nobody has reaped yet counts as dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(condition: Any, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(condition())


def squares(session: FakeSession, item: int) -> None:
    """Job: writes a file where it can, and dies of 3."""
    folder, number = item
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 5:
        raise ValueError("no fives")
    (Path(folder) / str(number)).write_text(str(os.getpid()))


@pytest.mark.timeout(60)
def test_items_are_done_beside_each_other_and_each_costs_itself_alone(tmp_path: Path) -> None:
    with Worker(0, session=FakeSession, preload=()) as worker:
        ends = list(call_each(worker, squares, [(str(tmp_path), number) for number in range(8)], 3, 20.0))
        assert worker.pid is None, "its own process has no part in it"
    assert sorted(str(end) for end in ends if end is not None) == ["no fives", "the worker process died of SIGKILL"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "4", "6", "7"]
    assert 1 < len({path.read_text() for path in tmp_path.iterdir()}) <= 4, "processes are used again"


@pytest.mark.timeout(60)
def test_leaving_in_the_middle_of_the_items_ends_their_processes() -> None:
    with Worker(0, session=FakeSession, preload=()) as worker:
        ends = call_each(worker, sleeps, [0.0, 600.0, 600.0], 2, 900.0)
        assert next(ends) is None
        ends.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("together", [False, True])
def test_leaving_ends_a_process_that_is_only_about_to_start(monkeypatch: pytest.MonkeyPatch, together: bool) -> None:
    """A thread that is not there yet when the others' processes are killed starts its own afterwards."""
    waiting, killed = threading.Event(), threading.Event()
    call, kill = IsolatedProcess.call, worker_module._kill

    def late(process: IsolatedProcess, job: Any, *arguments: Any, deadline_s: float) -> Any:
        if arguments == (600.0,):
            waiting.set()
            killed.wait()
        return call(process, job, *arguments, deadline_s=deadline_s)

    def kills(workers: Any) -> None:
        waiting.wait()
        kill(workers)
        killed.set()

    monkeypatch.setattr(IsolatedProcess, "call", late)
    monkeypatch.setattr(worker_module, "_kill", kills)
    with Worker(0, session=FakeSession, preload=()) as worker, worker.sibling() as sibling:
        if together:
            with pytest.raises((AttributeError, pickle.PicklingError)):
                call_together(sleeps, {worker: (lambda: None,), sibling: (600.0,)}, 900.0)
        else:
            ends = call_each(worker, sleeps, [0.0, 600.0], 2, 900.0)
            assert next(ends) is None
            ends.close()


def sleeps(session: FakeSession, seconds: float) -> None:
    """Job."""
    time.sleep(seconds)


@pytest.mark.parametrize("main", ["cudal2.__main__", "judge", "bench_judge", "bench_repeat"])
def test_a_child_finds_what_its_parents_main_module_imports_imported(main: str) -> None:
    """It imports that module again before its first job, a fifth of a second where nothing of it is there yet."""
    code = f"""
import importlib, sys
for name in {PRELOAD!r}:
    importlib.import_module(name)
before = set(sys.modules)
importlib.import_module({main!r})
new = set(sys.modules) - before
print(*sorted(name for name in new if name.partition(".")[0] in ("pyarrow", "torch", "nvmath")), len(new))
"""
    root = Path(__file__).parents[1]
    path = os.pathsep.join([str(root), str(root / "scripts")])
    seen = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert int(seen.stdout) < 20, seen.stdout
