"""Hardware counters of one launch: what Nsight Compute saw of a kernel, kept with the tool and the environment.

A counter that the tool did not report is ``None``, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from cudal2.errors import RecordError
from cudal2.problem import Problem
from cudal2.records.fingerprint import Fingerprint
from cudal2.records.kinds import from_plain, to_plain
from cudal2.records.shards import RecordLog, read_rows
from cudal2.space.config import KernelConfig

KIND = "profile"


@dataclass(frozen=True)
class Counters:
    """Figures of one kernel launch on cold caches; which metric each is says ``bench/profile/ncu.py``.

    Attributes:
        l2_hit_rate: Sectors found in the L2 over sectors asked of it, 0 to 1.
        l2_throughput: The L2's busiest unit, as a fraction of its sustained peak.
        dram_throughput: The device memory's busiest unit, as a fraction of its sustained peak.
        tma_throughput: Bytes TMA loaded, as a fraction of what could have been loaded in the time.
        tensor_active: Cycles in which the tensor pipe was busy, as a fraction of all.
        wgmma_issue: Warp-group MMA instructions, as a fraction of the peak rate while an SM was active.
        occupancy: Resident warps while an SM was active, as a fraction of what it holds.
        issue_rate: Instructions per scheduler and active cycle, 0 to 1.
        registers: Registers per thread.
        waves: CTAs over what the device holds at once.
        duration_us: Time of the launch; the clocks float and the caches are cold, so it is no benchmark.
        sm_clock_mhz: SM clock during the launch.
        tma_load_bytes: Bytes TMA loaded.
    """

    l2_hit_rate: float | None = None
    l2_throughput: float | None = None
    dram_throughput: float | None = None
    tma_throughput: float | None = None
    tensor_active: float | None = None
    wgmma_issue: float | None = None
    occupancy: float | None = None
    issue_rate: float | None = None
    registers: float | None = None
    waves: float | None = None
    duration_us: float | None = None
    sm_clock_mhz: float | None = None
    tma_load_bytes: float | None = None

    def __post_init__(self) -> None:
        """Refuses what no counter can be.

        Raises:
            RecordError: A value is no number, negative or not finite.
        """
        for name, value in asdict(self).items():
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value < math.inf
            ):
                raise RecordError(f"{name} = {str(value)[:40]} is no counter")


#: Names of all counters.
NAMES: tuple[str, ...] = tuple(field.name for field in fields(Counters))


@dataclass(frozen=True)
class Profile:
    """What one run of the tool says of one contestant on one problem.

    Attributes:
        problem: What was computed.
        contestant: Kernel family, or the name of a baseline.
        config: The configuration; ``None`` for a baseline.
        counters: The figures.
        kernel: Name of the kernel they are of.
        kernels: Kernels the contestant launches; of several the longest is the one above.
        tool: Nsight Compute version.
        cache_control: What the tool did to the caches before every pass; ``all`` flushes and invalidates them.
        clock_control: ``none``: the clocks float, as in every measurement.
        utc: ISO time.
    """

    problem: Problem
    contestant: str
    config: KernelConfig | None
    counters: Counters
    kernel: str
    kernels: int
    tool: str
    cache_control: str
    clock_control: str
    utc: str

    @property
    def name(self) -> str:
        """The configuration's name, or the baseline's."""
        return self.config.name if self.config is not None else self.contestant

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return to_plain(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Profile:
        """The inverse of :meth:`to_dict`.

        Raises:
            RecordError: A value is not of its field's kind.
        """
        return from_plain(cls, values, counters=lambda counters: Counters(**counters))


def append_profiles(log: RecordLog, profiles: Iterable[Profile]) -> None:
    """Writes profiles to a shard of their own kind, and syncs."""
    for profile in profiles:
        log.write_row(KIND, profile.to_dict())
    log.sync()


class ProfileBook:
    """The newest profile of each contestant on each problem.

    Args:
        profiles: In any order; later ones win, by their time stamps.
        fingerprint: The environment of all of them.
    """

    def __init__(self, profiles: Iterable[Profile] = (), fingerprint: Fingerprint | None = None) -> None:
        self.fingerprint = fingerprint
        ordered = sorted(profiles, key=lambda profile: profile.utc)
        self._newest = {(profile.problem, profile.name): profile for profile in ordered}

    def __len__(self) -> int:
        """Contestants profiled, over all problems."""
        return len(self._newest)

    def get(self, problem: Problem, config: KernelConfig) -> Counters | None:
        """Counters of a configuration; ``None`` if it was never profiled on exactly this problem."""
        found = self._newest.get((problem, config.name))
        return found.counters if found is not None else None

    def profiles(self) -> tuple[Profile, ...]:
        """All of them, sorted by problem and name."""
        return tuple(self._newest[key] for key in sorted(self._newest))

    @classmethod
    def load(cls, path: Path) -> ProfileBook:
        """Reads a directory of shards that ``cudal2 profile`` wrote, or one of them.

        Raises:
            RecordError: There is none, one is damaged, or they come from different environments.
        """
        found = read_rows(path, KIND, Profile.from_dict)
        return cls(found.rows, next(iter(found.fingerprints), None))
