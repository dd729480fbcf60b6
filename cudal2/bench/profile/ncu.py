"""Nsight Compute from outside: where it is, how it is asked, what its table says. Knows nothing about kernels.

Metric names are those of ``ncu --query-metrics --chips gh100``; what the tool does to its target says its manual
(https://docs.nvidia.com/nsight-compute/NsightComputeCli): kernels run alone and once per pass, caches are flushed
before every pass.
"""

from __future__ import annotations

import csv
import logging
import math
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cudal2.build.process import process_group
from cudal2.build.toolkit import find_tool
from cudal2.errors import EnvironmentProblemError, WorkerError

logger = logging.getLogger(__name__)

CACHE_CONTROL, CLOCK_CONTROL = "all", "none"
#: Where installers put it: a toolkit, and a folder of versions.
INSTALLED = (Path("/usr/local/cuda"), Path("/opt/nvidia/nsight-compute"))
INSTALL = "install Nsight Compute (with the CUDA toolkit, or from https://developer.nvidia.com/nsight-compute)"
PERMIT = (
    "run as root, or let everyone read them: `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in /etc/modprobe.d "
    "and reboot; in a container add --cap-add SYS_ADMIN (https://developer.nvidia.com/ERR_NVGPUCTRPERM)"
)

Units = Mapping[str, float]

# How many of the tool's units are one of ours; --print-units base makes it use the smallest. Any other is no number.
_FRACTION: Units = {"%": 100.0}
_MICROSECONDS: Units = {"ns": 1e3, "nsecond": 1e3, "us": 1.0, "usecond": 1.0, "ms": 1e-3, "msecond": 1e-3}
_MEGAHERTZ: Units = {
    **dict.fromkeys(("hz", "1/s", "cycle/s", "cycle/second"), 1e6),
    **dict.fromkeys(("mhz", "cycle/us", "cycle/usecond"), 1.0),
    **dict.fromkeys(("ghz", "cycle/ns", "cycle/nsecond"), 1e-3),
}
_BYTES: Units = {"byte": 1.0, "kbyte": 1e-3, "mbyte": 1e-6, "gbyte": 1e-9}
_COUNT: Units = {}

#: Counter name to the tool's metric and its units; a count takes any.
METRICS: dict[str, tuple[str, Units]] = {
    "l2_hit_rate": ("lts__t_sector_hit_rate.pct", _FRACTION),
    "l2_throughput": ("lts__throughput.avg.pct_of_peak_sustained_elapsed", _FRACTION),
    "dram_throughput": ("dram__throughput.avg.pct_of_peak_sustained_elapsed", _FRACTION),
    "tma_throughput": (
        "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum.pct_of_peak_sustained_elapsed",
        _FRACTION,
    ),
    "tensor_active": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", _FRACTION),
    "wgmma_issue": ("sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_active", _FRACTION),
    "occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active", _FRACTION),
    "issue_rate": ("smsp__issue_active.avg.pct_of_peak_sustained_active", _FRACTION),
    "registers": ("launch__registers_per_thread", _COUNT),
    "waves": ("launch__waves_per_multiprocessor", _COUNT),
    "duration_us": ("gpu__time_duration.sum", _MICROSECONDS),
    "sm_clock_mhz": ("sm__cycles_elapsed.avg.per_second", _MEGAHERTZ),
    "tma_load_bytes": ("l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum", _BYTES),
}
_VERSION = re.compile(r"^Version (\d[\w.]*)", re.MULTILINE)
_VERSION_DEADLINE_S = 30.0
_CAUSE_CHARS = 300


@dataclass(frozen=True)
class KernelRow:
    """One kernel launch in the tool's table.

    Attributes:
        kernel: Its name.
        values: Counter name to value in our units; ``None`` where the tool gave no number.
    """

    kernel: str
    values: dict[str, float | None]


@dataclass(frozen=True)
class Ncu:
    """The tool.

    Attributes:
        path: Its executable.
        version: For example ``2025.3.1.0``.
    """

    path: Path
    version: str

    @classmethod
    def find(cls) -> Ncu:
        """Looks in ``$PATH``, the CUDA toolkit and ``/opt/nvidia/nsight-compute``, newest first.

        Raises:
            EnvironmentProblemError: It is not there, or does not run.
        """
        path = find()
        if path is None:
            raise EnvironmentProblemError(f"ncu is not in PATH, CUDA_HOME/bin or /opt/nvidia/nsight-compute: {INSTALL}")
        output, code = run_to_end([str(path), "--version"], _VERSION_DEADLINE_S)
        version = _VERSION.search(output)
        if code or version is None:
            raise EnvironmentProblemError(f"{path} --version does not answer as Nsight Compute does: {INSTALL}")
        return cls(path, version[1])

    def profile(self, program: Sequence[str], deadline_s: float) -> list[KernelRow]:
        """Runs a program under the tool; what it launches between profiler start and stop comes back, in order.

        One metric that the tool does not know makes it refuse all, so that it is asked again without.

        Args:
            program: Command line; whatever it prints must not go to stdout.
            deadline_s: Seconds after which the tool and everything it started are killed.

        Raises:
            EnvironmentProblemError: The driver lets this user read no counters.
            WorkerError: It took too long, failed, or printed no table.
        """
        metrics = [metric for metric, _ in METRICS.values()]
        output, code = run_to_end([*self.command(metrics), *program], deadline_s)
        while (unknown := _unknown(output, metrics)) and len(unknown) < len(metrics):
            logger.warning("Nsight Compute %s does not know %s: left out", self.version, ", ".join(unknown))
            metrics = [metric for metric in metrics if metric not in unknown]
            output, code = run_to_end([*self.command(metrics), *program], deadline_s)
        if "ERR_NVGPUCTRPERM" in output:
            raise EnvironmentProblemError(f"the driver lets this user read no counters (ERR_NVGPUCTRPERM): {PERMIT}")
        rows = parse(output)
        if code or not rows:
            raise WorkerError(f"Nsight Compute {self.version} gave no counters (exit code {code}): {_cause(output)}")
        return rows

    def command(self, metrics: Sequence[str]) -> list[str]:
        """The command line up to the program; units are base ones, so that no figure is scaled to be readable."""
        options = ["--clock-control", CLOCK_CONTROL, "--cache-control", CACHE_CONTROL, "--target-processes", "all"]
        options += ["--profile-from-start", "off", "--csv", "--page", "raw", "--print-units", "base"]
        return [str(self.path), *options, "--metrics", ",".join(metrics)]


def _unknown(output: str, metrics: Sequence[str]) -> list[str]:
    """Metrics that the tool said it could not find: the name if it gave one in full, else all of its base name."""
    complaints = [line.replace("\\", "") for line in output.splitlines() if "Failed to find metric" in line]
    unknown: set[str] = set()
    for line in complaints:
        named = [metric for metric in metrics if metric in line]
        base = [metric for metric in metrics if re.search(rf"\b{metric.split('.')[0]}\b", line)]
        unknown |= {max(named, key=len)} if named else set(base)
    return sorted(unknown)


def find() -> Path | None:
    """The tool's executable; starts nothing."""
    toolkit, versions = INSTALLED
    return find_tool("ncu", (toolkit,), more=sorted(versions.glob("*"), key=_numbers, reverse=True))


def _numbers(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.name)]


def run_to_end(command: Sequence[str], deadline_s: float) -> tuple[str, int]:
    """Everything a command prints, on either stream, and its exit code.

    It gets a process group of its own, and none of it is left: at the deadline, or on Ctrl-C, the group is killed.

    Raises:
        WorkerError: It was still running at the deadline.
        EnvironmentProblemError: It cannot be started.
    """
    # A locale could turn the decimal point of the table into a comma.
    environment = {**os.environ, "LC_ALL": "C"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8", "errors": "replace"}
    try:
        with process_group(command, env=environment, **streams) as process:
            output, _ = process.communicate(timeout=deadline_s)
    except OSError as error:
        raise EnvironmentProblemError(f"cannot start {command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise WorkerError(f"{Path(command[0]).name} gave no answer within {deadline_s:g} s and was killed") from error
    return output, process.returncode


def parse(output: str) -> list[KernelRow]:
    """The table in what the tool printed; empty if there is none. Other lines may stand around it.

    The first row names the columns, the second their units, each other is one kernel launch.
    """
    lines = output.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    try:
        header, *rows = csv.reader(lines[start:])
    except csv.Error:
        return []
    table = [dict(zip(header, row, strict=True)) for row in rows if len(row) == len(header)]
    if not table or "Kernel Name" not in header:
        return []
    units = table[0] if not table[0]["ID"] else {}
    launches = [row for row in table if row["ID"].isdigit()]
    return [KernelRow(row["Kernel Name"], _values(row, units)) for row in launches]


def _values(row: dict[str, str], units: dict[str, str]) -> dict[str, float | None]:
    return {
        name: _number(row.get(metric, ""), units.get(metric, ""), known) for name, (metric, known) in METRICS.items()
    }


def _number(text: str, unit: str, known: Units) -> float | None:
    per_ours = known.get(unit.lower()) if known else 1.0
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    # The tool prints two decimals; six of ours hold them all and none of what the division leaves behind.
    return round(value / per_ours, 6) if per_ours is not None and 0.0 <= value < math.inf else None


def _cause(output: str) -> str:
    """The line that says most: the tool's own error, else the last of the program's, else the last of all."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("==ERROR==") and "application returned" not in line]
    programs = [line for line in lines if not line.startswith("==")]
    return next(iter([*errors, *programs[-1:], *lines[-1:]]), "it printed nothing")[:_CAUSE_CHARS]
