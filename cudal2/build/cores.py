"""How many compilers this machine can run at once."""

from __future__ import annotations

import os
from pathlib import Path

#: Peak of one compiler process, precompiled header included, is 0.3 GB; the rest is headroom for odd tiles.
_BYTES_PER_JOB = 2**30


def default_jobs(bytes_per_job: int = _BYTES_PER_JOB) -> int:
    """Cores this process may use, at most as many as there is memory for."""
    cores = min(len(os.sched_getaffinity(0)), _cgroup_cores())
    return max(1, min(cores, _available_bytes() // bytes_per_job))


def _cgroup_cores() -> int:
    """Cores the container's quota is worth; a large number without one."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return 2**16
    return 2**16 if quota == "max" else max(1, int(quota) // int(period))


def _available_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 2**40
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else 2**40
