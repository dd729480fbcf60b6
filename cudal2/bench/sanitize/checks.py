"""Cases under one tool of compute-sanitizer: restarted after each that kills its process, within a budget of time."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cudal2.bench.device import gpu_key, gpu_lock
from cudal2.bench.sanitize.launcher import Case
from cudal2.bench.sanitize.limits import limit
from cudal2.bench.sanitize.tool import Finding, Sanitizer, read_report
from cudal2.build.process import process_group
from cudal2.errors import EnvironmentProblemError, WorkerError

#: How often the output is looked at.
_POLL_S = 0.5
_CAUSE_CHARS = 300
_OUT_OF_TIME, _INTERRUPTED = "out of time", "interrupted"


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

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        problem = self.case.problem
        return {
            "tool": self.tool,
            "family": self.case.config.family,
            "config": self.case.config.name,
            "mnk": problem.mnk,
            "acc": problem.acc,
            "layout": problem.layout,
            "ran": self.ran,
            "limit": self.limit,
            "findings": [asdict(finding) for finding in self.findings],
        }


def check_cases(
    tool: str,
    cases: Sequence[Case],
    sanitizer: Sanitizer,
    seconds: float,
    silence_s: float = 60.0,
    device_index: int = 0,
    on_checked: Callable[[Checked], None] = lambda checked: None,
) -> list[Checked]:
    """Runs cases one after the other; holds the GPU's lock meanwhile.

    Args:
        tool: Of compute-sanitizer.
        cases: In order.
        sanitizer: The executable.
        seconds: For all of them; those without a turn come back as not run.
        silence_s: A process that prints nothing for so long hangs, and costs the case it is at.
        device_index: Which GPU.
        on_checked: Called with each, in order.

    Raises:
        EnvironmentProblemError: The tool cannot be started.
        KeyboardInterrupt: Ctrl-C, once ``on_checked`` has had all that was done by then.
        WorkerError: The tool or the launcher fails before the first case, or a report belongs to none.
    """
    done: list[Checked] = []
    ends = time.monotonic() + seconds
    with gpu_lock(gpu_key(device_index)):
        while len(done) < len(cases) and time.monotonic() < ends:
            left = cases[len(done) :]
            checked, end = _one_process(tool, left, sanitizer, ends, silence_s, device_index)
            for one in checked:
                on_checked(one)
            done += checked
            if end == _INTERRUPTED:
                raise KeyboardInterrupt
            if not checked:
                break
    return done + [Checked(tool, case, ran=False) for case in cases[len(done) :]]


def _one_process(
    tool: str, cases: Sequence[Case], sanitizer: Sanitizer, ends: float, silence_s: float, device_index: int
) -> tuple[list[Checked], str]:
    """The cases that a process came through, and the one it died at; how it ended."""
    with tempfile.TemporaryDirectory(prefix="cudal2-sanitize-") as folder:
        request = Path(folder) / "cases.pickle"
        request.write_bytes(pickle.dumps(list(cases)))
        program = [sys.executable, "-m", "cudal2.bench.sanitize.launcher", str(request), str(device_index)]
        output, end = _run([*sanitizer.command(tool), *program], Path(folder) / "output", ends, silence_s)
    reports, before, counted = read_report(output)
    if before.findings or (not reports and end not in (_OUT_OF_TIME, _INTERRUPTED)):
        raise WorkerError(f"{tool} failed before the first kernel ({end}): {_cause(output)}")
    # A program that fails counts as an error too.
    explained = any(report.findings or report.verdict != "" for report in reports.values())
    if counted and not explained:
        raise WorkerError(f"{tool} counts {counted} errors and none of its reports is about a case: {_cause(output)}")
    checked = []
    for number in sorted(reports):
        report, findings = reports[number], list(reports[number].findings)
        if report.verdict is None and end in (_OUT_OF_TIME, _INTERRUPTED):
            break
        if report.verdict is None:
            findings.append(Finding(end, _cause(output), 1))
        elif report.verdict:
            findings.append(Finding(report.verdict, "", 1))
        checked.append(Checked(tool, cases[number], tuple(findings), limit(tool, cases[number], findings)))
    return checked, end


def _run(command: Sequence[str], path: Path, ends: float, silence_s: float) -> tuple[str, str]:
    """What a command printed, and how it ended: by itself, silent for too long, out of time or by our Ctrl-C."""
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
                    if now >= ends:
                        end = _OUT_OF_TIME
                    elif now - heard >= silence_s:
                        end = f"no answer within {silence_s:g} s: it hangs"
    except KeyboardInterrupt:
        end = _INTERRUPTED
    except OSError as error:
        raise EnvironmentProblemError(f"cannot start {command[0]}: {error.strerror}") from error
    return path.read_text(encoding="utf-8", errors="replace"), end


def _cause(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip("= \t") and "SUMMARY" not in line]
    errors = [line for line in lines if "rror" in line]
    return next(iter([*errors[-1:], *lines[-1:]]), "it printed nothing")[:_CAUSE_CHARS]
