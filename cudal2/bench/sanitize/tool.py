"""compute-sanitizer from outside: where it is, how it is asked, what its report says. Knows nothing about kernels.

Options and reports are those of its manual (https://docs.nvidia.com/compute-sanitizer/ComputeSanitizer).
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from cudal2.build.toolkit import find_tool
from cudal2.errors import EnvironmentProblemError

NAME = "compute-sanitizer"
#: What the program under it prints before and after each case, with its number.
BEGIN, END = "cudal2 case", "cudal2 done"
#: Where installers put it.
INSTALLED = (Path("/usr/local/cuda"), Path("/opt/cuda"))
INSTALL = "install it with the CUDA toolkit (https://developer.nvidia.com/compute-sanitizer) or set CUDA_HOME"

#: What each tool is asked beside the common options.
TOOLS: dict[str, tuple[str, ...]] = {
    # The launcher checks every call itself; the padding keeps one buffer's end off the next one's start.
    "memcheck": ("--report-api-errors", "no", "--padding", "1024"),
    "racecheck": ("--racecheck-report", "analysis"),
    "synccheck": (),
    "initcheck": (),
}
#: Processes at once look for their programs on ports of their own; by default all would share the ten from this one on.
_FIRST_PORT, _PORTS = 49152, 10
#: No limit on what is printed: after it a case would look clean that was not looked at.
_COMMON = ("--print-limit", "0", "--show-backtrace", "no", "--launch-timeout", "120")
_VERSION = re.compile(r"[Vv]ersion (\d[\w.]*)")
_VERSION_DEADLINE_S = 30.0
_PREFIX = "========="
#: Lines of the tool that report nothing.
_HOUSEKEEPING = re.compile(
    r"COMPUTE-SANITIZER|(ERROR|RACECHECK|LEAK) SUMMARY|Target application returned|Process ID|This report|Saved host"
)
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
#: What differs between threads and launches of one fault.
_PLACES = re.compile(r"0x[0-9a-fA-F]+|\(\d+,\s*\d+,\s*\d+\)|\[\d+ hazards?\]")


@dataclass(frozen=True, order=True)
class Finding:
    """One kind of report about one case.

    Attributes:
        text: Its first line, addresses and threads left out.
        where: The line after it, as first printed.
        count: How often it was printed.
    """

    text: str
    where: str
    count: int


@dataclass(frozen=True)
class CaseReport:
    """What was printed between a case's announcement and the next.

    Attributes:
        findings: Reports of the tool.
        verdict: What the launcher says is wrong with the result; ``None`` if it never came to say so.
    """

    findings: tuple[Finding, ...]
    verdict: str | None


@dataclass(frozen=True)
class Sanitizer:
    """The executable.

    Attributes:
        path: Where it is.
        version: For example ``2025.3.1.0``.
    """

    path: Path
    version: str

    @classmethod
    def locate(cls) -> Sanitizer:
        """Looks in ``$PATH`` and the CUDA toolkit.

        Raises:
            EnvironmentProblemError: It is not there, or does not run.
        """
        found = find()
        if found is None:
            raise EnvironmentProblemError(f"{NAME} is not in PATH or CUDA_HOME/bin: {INSTALL}")
        try:
            answer = subprocess.run(
                [found, "--version"], capture_output=True, text=True, timeout=_VERSION_DEADLINE_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EnvironmentProblemError(f"{found} does not run ({error}): {INSTALL}") from error
        version = _VERSION.search(answer.stdout)
        if version is None:
            raise EnvironmentProblemError(f"{found} --version does not answer as {NAME} does: {INSTALL}")
        return cls(found, version[1])

    def command(self, tool: str, job: int = 0) -> list[str]:
        """The command line up to the program; ``job`` tells those that run at once apart."""
        port = str(_FIRST_PORT + _PORTS * job)
        return [str(self.path), "--tool", tool, "--port", port, *_COMMON, *TOOLS[tool]]


def find() -> Path | None:
    """The executable; starts nothing."""
    return find_tool(NAME, INSTALLED, within=("bin", NAME))


def read_report(output: str) -> tuple[dict[int, CaseReport], CaseReport, int]:
    """What the tool and the launcher printed, case by case.

    Returns:
        Reports by case; what was reported before the first; how many errors or hazards the tool counts in all.
    """
    at = -1
    printed: dict[int, list[tuple[str, str]]] = {at: []}
    verdicts: dict[int, str] = {}
    counted = 0
    for line in output.splitlines():
        if BEGIN in line or END in line:  # the tool may leave a line unfinished
            mark, _, rest = line[line.index("cudal2 ") :].partition(" ")[2].partition(" ")
            number, _, verdict = rest.partition(" ")
            at = int(number)
            printed.setdefault(at, [])
            if mark == "done":
                verdicts[at] = verdict
        elif line.startswith(_PREFIX):
            counted += _add(printed[at], line[len(_PREFIX) :])
    reports = {number: CaseReport(_findings(lines), verdicts.get(number)) for number, lines in printed.items()}
    return reports, reports.pop(-1), counted


def _add(lines: list[tuple[str, str]], text: str) -> int:
    """Keeps a report's first line with the next; the tool's own count if this is its summary."""
    summary = _SUMMARY.search(text)
    if summary:
        return int(summary[1])
    content = text.strip()
    if not content or _HOUSEKEEPING.search(text):
        return 0
    if text.startswith("  "):  # indented: it goes on about the report above
        if lines and not lines[-1][1]:
            lines[-1] = (lines[-1][0], content)
    else:
        lines.append((content, ""))
    return 0


def _findings(lines: list[tuple[str, str]]) -> tuple[Finding, ...]:
    counts = Counter(_PLACES.sub("*", text) for text, _ in lines)
    first: dict[str, str] = {}
    for text, where in lines:
        first.setdefault(_PLACES.sub("*", text), where)
    return tuple(Finding(text, first[text], count) for text, count in counts.most_common())
