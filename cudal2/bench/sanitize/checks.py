"""Cases under one tool of compute-sanitizer: processes side by side, each started again after a case that ends it."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from cudal2.bench.device import gpu_key, gpu_lock
from cudal2.bench.sanitize.launcher import Case
from cudal2.bench.sanitize.limits import limit
from cudal2.bench.sanitize.tool import Finding, Sanitizer, read_report
from cudal2.build.process import process_group
from cudal2.errors import EnvironmentProblemError, WorkerError

#: How often the output is looked at.
_POLL_S = 0.5
_CAUSE_CHARS = 300
_OUT_OF_TIME, _STOPPED = "out of time", "stopped"


@dataclass(frozen=True)
class Checked:
    """One case under one tool.

    Attributes:
        tool: Of compute-sanitizer.
        case: What was launched.
        findings: What the tool reported, and what came of the launch where that is wrong; empty if all is well.
        limit: Why these say nothing about the kernel, where the tool is known not to be up to such a launch.
        ran: Whether there was time for it.
    """

    tool: str
    case: Case
    findings: tuple[Finding, ...] = ()
    limit: str = ""
    ran: bool = True


@dataclass(frozen=True)
class _Turn:
    """One tool's turn: what its processes share."""

    tool: str
    sanitizer: Sanitizer
    ends: float
    silence_s: float
    device_index: int
    on_checked: Callable[[Checked], None]
    stopped: threading.Event = field(default_factory=threading.Event)
    one_at_a_time: threading.Lock = field(default_factory=threading.Lock)


def check_cases(
    tool: str,
    cases: Sequence[Case],
    sanitizer: Sanitizer,
    seconds: float,
    silence_s: float = 60.0,
    device_index: int = 0,
    on_checked: Callable[[Checked], None] = lambda checked: None,
    jobs: int = 1,
) -> list[Checked]:
    """Runs cases, each process its own share of them one after the other; holds the GPU's lock meanwhile.

    Args:
        tool: Of compute-sanitizer.
        cases: In order; the first of them are the first of the processes.
        sanitizer: The executable.
        seconds: For all of them; those without a turn come back as not run.
        silence_s: A process that prints nothing for so long hangs, and costs the case it is at.
        device_index: Which GPU.
        on_checked: Called with each as it comes, one at a time; those of a process in order.
        jobs: Processes at once. The tool keeps a core busy and the GPU mostly idle; each has its own context.

    Returns:
        As many as there are cases, in their order.

    Raises:
        EnvironmentProblemError: The tool cannot be started.
        KeyboardInterrupt: Ctrl-C, once ``on_checked`` has had all that was done by then.
        WorkerError: The tool or the launcher fails before the first case, or a report belongs to none.
    """
    turn = _Turn(tool, sanitizer, time.monotonic() + seconds, silence_s, device_index, on_checked)
    done: dict[Case, Checked] = {}
    with gpu_lock(gpu_key(device_index)), ThreadPoolExecutor(jobs) as threads:
        shares = [threads.submit(_share, turn, cases[job::jobs], job) for job in range(jobs)]
        try:
            left = set(shares)
            while left:  # in slices: a wait without an end may not see Ctrl-C
                ended, left = wait(left, _POLL_S, FIRST_COMPLETED)
                done |= {one.case: one for share in ended for one in share.result()}
        except BaseException:
            turn.stopped.set()
            raise
    return [done.get(case, Checked(tool, case, ran=False)) for case in cases]


def _share(turn: _Turn, cases: Sequence[Case], job: int) -> list[Checked]:
    """Process after process until all are checked or time is out."""
    done: list[Checked] = []
    while len(done) < len(cases) and time.monotonic() < turn.ends and not turn.stopped.is_set():
        checked = _one_process(turn, cases[len(done) :], job)
        with turn.one_at_a_time:
            for one in checked:
                turn.on_checked(one)
        done += checked
        if not checked:
            break
    return done


def _one_process(turn: _Turn, cases: Sequence[Case], job: int) -> list[Checked]:
    """The cases that a process came through, and the one it died at."""
    tool = turn.tool
    with tempfile.TemporaryDirectory(prefix="cudal2-sanitize-") as folder:
        request = Path(folder) / "cases.pickle"
        request.write_bytes(pickle.dumps(list(cases)))
        program = [sys.executable, "-m", "cudal2.bench.sanitize.launcher", str(request), str(turn.device_index)]
        output, end = _run([*turn.sanitizer.command(tool, job), *program], Path(folder) / "output", turn)
    reports, before, counted = read_report(output)
    if before.findings or (not reports and end not in (_OUT_OF_TIME, _STOPPED)):
        raise WorkerError(f"{tool} failed before the first kernel ({end}): {_cause(output)}")
    # A program that fails counts as an error too.
    explained = any(report.findings or report.verdict != "" for report in reports.values())
    if counted and not explained:
        raise WorkerError(f"{tool} counts {counted} errors and none of its reports is about a case: {_cause(output)}")
    checked = []
    for number in sorted(reports):
        report, findings = reports[number], list(reports[number].findings)
        if report.verdict is None and end in (_OUT_OF_TIME, _STOPPED):
            break
        if report.verdict is None:
            findings.append(Finding(end, _cause(output), 1))
        elif report.verdict:
            findings.append(Finding(report.verdict, "", 1))
        checked.append(Checked(tool, cases[number], tuple(findings), limit(tool, cases[number], findings)))
    return checked


def _run(command: Sequence[str], path: Path, turn: _Turn) -> tuple[str, str]:
    """What a command printed, and how it ended: by itself, silent for too long, out of time or stopped by us."""
    end, size, heard = "", 0, time.monotonic()
    try:
        with path.open("wb") as output, process_group(command, stdout=output, stderr=subprocess.STDOUT) as process:
            while not end:
                try:
                    end = f"the process ended with exit code {process.wait(_POLL_S)}"
                except subprocess.TimeoutExpired:
                    now, grown = time.monotonic(), path.stat().st_size
                    heard = now if grown > size else heard
                    size = grown
                    if turn.stopped.is_set():
                        end = _STOPPED
                    elif now >= turn.ends:
                        end = _OUT_OF_TIME
                    elif now - heard >= turn.silence_s:
                        end = f"no answer within {turn.silence_s:g} s: it hangs"
    except OSError as error:
        raise EnvironmentProblemError(f"cannot start {command[0]}: {error.strerror}") from error
    return path.read_text(encoding="utf-8", errors="replace"), end


def _cause(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip("= \t") and "SUMMARY" not in line]
    errors = [line for line in lines if "rror" in line]
    return next(iter([*errors[-1:], *lines[-1:]]), "it printed nothing")[:_CAUSE_CHARS]
