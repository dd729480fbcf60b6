"""``Measurement``: what one timed (or failed) contestant on one problem looks like, in memory and on disk."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, get_args

from cudal2.problem import Problem
from cudal2.records.kinds import from_plain, to_plain
from cudal2.space.config import KernelConfig

SCHEMA_VERSION = 1
PROTOCOL_VERSION = 1
#: Between a picosecond and days: a time beyond is damage, and means over it overflow.
LEAST_US, MOST_US = 1e-6, 1e12

Mode = Literal["offline", "server"]
#: What a request of server mode finds. idle_cold: none of its operands in the L2. warm: as much of them as fits.
#: loaded: copies running on another stream.
State = Literal["idle_cold", "warm", "loaded"]
STATES: tuple[State, ...] = get_args(State)


class Status(str, Enum):
    """How a candidate ended; the first six words are those of the T4 auto-tuning results format."""

    CORRECT = "correct"
    CONSTRAINTS = "constraints"
    COMPILE = "compile"
    RUNTIME = "runtime"
    CORRECTNESS = "correctness"
    TIMEOUT = "timeout"
    LAUNCH = "launch"
    QUARANTINED = "quarantined"


@dataclass(frozen=True)
class Measurement:
    """One contestant on one problem: its times if it passed, else why not.

    Attributes:
        problem: What was computed.
        contestant: Kernel family (``sm90_ws``) or baseline (``cublaslt_auto``, ``torch``, ...).
        config: The configuration; ``None`` for a baseline.
        status: How it ended.
        reason: One line; empty if and only if the status is ``correct``.
        mode: Protocol mode.
        pdl: Whether our launches carried the programmatic-dependent-launch attribute.
        times_us: Device time per launch of each graph replay, raw, in order; only if correct.
        ref_times_us: cuBLASLt-AutoTuning in the same interleaved rounds, in order; may be empty.
        process_rounds: How many of the times each measuring process took, in order; empty if one process took all.
        launches: Launches per replay.
        max_error: Largest error over its bound in the checks (1.0 is the limit).
        registers: Registers per thread as built.
        spill_bytes: Local-memory bytes per thread as built.
        smem_bytes: Dynamic shared memory per block.
        sm_clock_mhz: SM clock after the timing.
        power_w: Board power after the timing.
        temperature_c: GPU temperature after the timing.
        throttle: NVML throttle-reason bits after the timing.
        compile_s: Wall seconds of its build on one core when it was made, even if this run found it in the cache.
        bench_s: Wall seconds spent on this measurement, the build not included.
        utc: ISO time at its end.
        detail: Free text: baseline algorithm, log path.
    """

    problem: Problem
    contestant: str
    config: KernelConfig | None
    status: Status
    reason: str = ""
    mode: Mode = "offline"
    pdl: bool = False
    times_us: tuple[float, ...] = ()
    ref_times_us: tuple[float, ...] = ()
    process_rounds: tuple[int, ...] = ()
    launches: int = 0
    max_error: float | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    smem_bytes: int | None = None
    sm_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle: int | None = None
    compile_s: float = 0.0
    bench_s: float = 0.0
    utc: str = ""
    detail: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        passed = self.status is Status.CORRECT
        if passed != bool(self.times_us):
            raise ValueError(f"status '{self.status.value}' with {len(self.times_us)} times: times mean correct")
        if passed == bool(self.reason):
            raise ValueError(f"status '{self.status.value}' with reason '{self.reason}': a reason means failure")
        if not all(LEAST_US <= time_us <= MOST_US for time_us in (*self.times_us, *self.ref_times_us)):
            raise ValueError(f"a time is not from {LEAST_US:g} to {MOST_US:g} us")
        if self.process_rounds and (min(self.process_rounds) < 1 or sum(self.process_rounds) != len(self.times_us)):
            raise ValueError(f"{len(self.times_us)} times do not split into {list(self.process_rounds)}")
        if self.mode not in get_args(Mode):
            raise ValueError(f"mode '{self.mode}' is none of {', '.join(get_args(Mode))}")

    @property
    def ok(self) -> bool:
        """Whether the times count."""
        return self.status is Status.CORRECT

    @property
    def median_us(self) -> float:
        """Median device time per launch, microseconds; correct measurements only."""
        return statistics.median(self.times_us)

    @property
    def speedup(self) -> float | None:
        """Median reference time over median time of the same rounds; ``None`` without a reference."""
        if not self.times_us or not self.ref_times_us:
            return None
        return statistics.median(self.ref_times_us) / self.median_us

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**to_plain(self), "status": self.status.value}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Measurement:
        """The inverse of :meth:`to_dict`.

        Raises:
            RecordError: A value is not of its field's kind.
        """
        values = {"process_rounds": (), **values}
        return from_plain(cls, values, status=Status, times_us=tuple, ref_times_us=tuple, process_rounds=tuple)


def costs(rows: Sequence[Measurement]) -> list[float]:
    """What ranks correct rows of one shape, the lower the better.

    Where every row has its reference, the median over the rounds of the time over the reference's in the same round:
    clocks drift over a recording and within a row, and both drift alike. Else the median time, microseconds.
    """
    if all(row.ref_times_us for row in rows):
        return [_over_reference(row) for row in rows]
    return [row.median_us for row in rows]


def _over_reference(row: Measurement) -> float:
    if len(row.times_us) != len(row.ref_times_us):
        return row.median_us / statistics.median(row.ref_times_us)
    return statistics.median(own / other for own, other in zip(row.times_us, row.ref_times_us, strict=True))
