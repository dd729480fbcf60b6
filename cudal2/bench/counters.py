"""Profiles of one problem's contestants: one run of Nsight Compute over the launcher, one profile per contestant."""

from __future__ import annotations

import pickle
import sys
import tempfile
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from cudal2.bench.device import gpu_key, gpu_lock
from cudal2.bench.ncu import CACHE_CONTROL, CLOCK_CONTROL, KernelRow, Ncu
from cudal2.build.artifact import BuiltKernel
from cudal2.codegen import ENTRY
from cudal2.errors import WorkerError
from cudal2.problem import Problem
from cudal2.records.counters import Counters, Profile
from cudal2.settings import BenchSettings
from cudal2.space.config import KernelConfig

BASELINE = "cublaslt"
#: Importing torch and making the data, under a tool that watches every call.
_START_DEADLINE_S = 180.0
_CONTESTANT_DEADLINE_S = 60.0


@dataclass(frozen=True)
class LaunchRequest:
    """What to launch, in order.

    Attributes:
        problem: What is computed.
        candidates: Configurations and their cubins.
        settings: Seed, workspace.
        baseline: Whether cuBLASLt's first heuristic answer for the problem's layout comes after them.
        device_index: Which GPU.
    """

    problem: Problem
    candidates: tuple[tuple[KernelConfig, BuiltKernel], ...]
    settings: BenchSettings
    baseline: bool = False
    device_index: int = 0


def profile(request: LaunchRequest, tool: Ncu, deadline_s: float | None = None) -> list[Profile]:
    """Profiles each candidate, then the baseline if it is asked for; holds the GPU's lock meanwhile.

    Args:
        request: What to launch.
        tool: Nsight Compute.
        deadline_s: Seconds for all of it; by default three minutes and one more per contestant.

    Raises:
        EnvironmentProblemError: The driver lets this user read no counters.
        WorkerError: The tool failed or took too long, or its table does not hold what was launched.
    """
    contestants = len(request.candidates) + request.baseline
    deadline_s = deadline_s or _START_DEADLINE_S + contestants * _CONTESTANT_DEADLINE_S
    with tempfile.TemporaryDirectory(prefix="cudal2-profile-") as folder, gpu_lock(gpu_key(request.device_index)):
        path = Path(folder) / "request.pickle"
        path.write_bytes(pickle.dumps(request))
        rows = tool.profile([sys.executable, "-m", "cudal2.bench.launcher", str(path)], deadline_s)
    return _profiles(request, tool, rows)


def _profiles(request: LaunchRequest, tool: Ncu, rows: list[KernelRow]) -> list[Profile]:
    """Ours launch one kernel each, in the order asked; whatever comes after them is the baseline's."""
    ours, theirs = rows[: len(request.candidates)], rows[len(request.candidates) :]
    foreign = [row.kernel for row in ours if not row.kernel.startswith(ENTRY)]
    if len(ours) < len(request.candidates) or foreign or bool(theirs) != request.baseline:
        names = ", ".join(row.kernel[:40] for row in rows)
        wanted = f"{len(request.candidates)} of {ENTRY}{' and the baseline' if request.baseline else ''}"
        raise WorkerError(f"Nsight Compute profiled {len(rows)} kernels ({names}) where {wanted} were launched")
    utc = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    about = {"tool": tool.version, "cache_control": CACHE_CONTROL, "clock_control": CLOCK_CONTROL, "utc": utc}
    profiles = [
        Profile(request.problem, config.family, config, Counters(**row.values), row.kernel, 1, **about)
        for (config, _), row in zip(request.candidates, ours, strict=True)
    ]
    if theirs:
        longest = max(theirs, key=lambda row: row.values["duration_us"] or 0.0)
        name = f"cublaslt_heuristic_{request.problem.layout}"
        counters = Counters(**longest.values)
        profiles.append(Profile(request.problem, name, None, counters, longest.kernel, len(theirs), **about))
    return profiles
