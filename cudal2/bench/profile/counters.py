"""Profiles of the contestants of some problems: one run of Nsight Compute over the launcher, one profile each."""

from __future__ import annotations

import pickle
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import takewhile
from pathlib import Path
from typing import Any

from cudal2.bench.device import gpu_key, gpu_lock
from cudal2.bench.profile.ncu import CACHE_CONTROL, CLOCK_CONTROL, KernelRow, Ncu
from cudal2.build.artifact import BuiltKernel
from cudal2.codegen import ENTRY
from cudal2.errors import WorkerError
from cudal2.problem import Problem
from cudal2.records.counters import Counters, Profile
from cudal2.settings import BenchSettings
from cudal2.space.config import KernelConfig

#: Importing torch, under a tool that watches every call.
_START_DEADLINE_S = 180.0
_CONTESTANT_DEADLINE_S = 60.0


@dataclass(frozen=True)
class Work:
    """What to launch on one problem, in order.

    Attributes:
        problem: What is computed.
        candidates: Configurations and their cubins; may be empty only where a baseline follows and nothing else does.
    """

    problem: Problem
    candidates: tuple[tuple[KernelConfig, BuiltKernel], ...]


@dataclass(frozen=True)
class LaunchRequest:
    """What to launch.

    Attributes:
        work: Problem after problem.
        settings: Seed, workspace.
        baseline: Whether cuBLASLt's first heuristic answer for a problem's layout comes after its candidates.
        device_index: Which GPU.
    """

    work: tuple[Work, ...]
    settings: BenchSettings
    baseline: bool = False
    device_index: int = 0

    @property
    def contestants(self) -> int:
        """Profiles it yields."""
        return sum(len(work.candidates) + self.baseline for work in self.work)


def profile(request: LaunchRequest, tool: Ncu, deadline_s: float | None = None) -> list[Profile]:
    """Profiles what was asked for, in that order; holds the GPU's lock meanwhile.

    Args:
        request: What to launch.
        tool: Nsight Compute.
        deadline_s: Seconds for all of it; by default three minutes and one more per contestant.

    Raises:
        EnvironmentProblemError: The driver lets this user read no counters.
        WorkerError: The tool failed or took too long, or its table does not hold what was launched.
    """
    deadline_s = deadline_s or _START_DEADLINE_S + request.contestants * _CONTESTANT_DEADLINE_S
    with tempfile.TemporaryDirectory(prefix="cudal2-profile-") as folder, gpu_lock(gpu_key(request.device_index)):
        path = Path(folder) / "request.pickle"
        path.write_bytes(pickle.dumps(request))
        rows = tool.profile([sys.executable, "-m", "cudal2.bench.profile.launcher", str(path)], deadline_s)
    utc = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    about = {"tool": tool.version, "cache_control": CACHE_CONTROL, "clock_control": CLOCK_CONTROL, "utc": utc}
    try:
        return list(_profiles(request, rows, about))
    except ValueError as error:
        names = ", ".join(row.kernel[:40] for row in rows)
        raise WorkerError(f"Nsight Compute profiled {len(rows)} kernels ({names}): {error}") from error


def _profiles(request: LaunchRequest, rows: Sequence[KernelRow], about: dict[str, Any]) -> Iterator[Profile]:
    """Each of ours launches one kernel, in the order asked; others after them are the baseline's, however many.

    Raises:
        ValueError: The rows are not what was launched.
    """
    left = list(rows)
    for work in request.work:
        problem = work.problem
        for config, _ in work.candidates:
            if not left or not _ours(left[0]):
                raise ValueError(f"none is {config.name} on {problem.mnk}")
            row = left.pop(0)
            yield Profile(problem, config.family, config, Counters(**row.values), row.kernel, 1, **about)
        if request.baseline:
            theirs = list(takewhile(lambda row: not _ours(row), left))
            if not theirs:
                raise ValueError(f"none is the baseline's on {problem.mnk}")
            del left[: len(theirs)]
            longest = max(theirs, key=lambda row: row.values["duration_us"] or 0.0)
            name, counters = f"cublaslt_heuristic_{problem.layout}", Counters(**longest.values)
            yield Profile(problem, name, None, counters, longest.kernel, len(theirs), **about)
    if left:
        raise ValueError(f"{request.contestants} contestants were to be launched")


def _ours(row: KernelRow) -> bool:
    return row.kernel.startswith(ENTRY)
