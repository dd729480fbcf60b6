"""What server mode measured: per contestant and state every request's latency, queueing and device time, in order.

Rows belong to one serving if they share problem, state, rate and time stamp: they served the same arrivals in shuffled
blocks, so the i-th block of one and the i-th block of another saw the same clocks.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from cudal2.paths import data_dir
from cudal2.problem import Problem
from cudal2.records.finals import BASELINES, Comparison, compare, names_of
from cudal2.records.kinds import from_plain, to_plain
from cudal2.records.measurement import LEAST_US, MOST_US, STATES, State, Status
from cudal2.records.shards import Rows, read_rows
from cudal2.space.config import KernelConfig

#: A launch of a kernel that does nothing, served like every other contestant.
EMPTY = "empty"
#: Above this share of the time spent serving, arrivals wait for each other.
MOST_LOAD = 0.3
KIND = "latency"

Blocks: TypeAlias = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Latency:
    """One contestant in one state: what its requests took if it served them, else why not.

    Attributes:
        problem: What was computed.
        contestant: Kernel family, baseline, or ``empty``.
        config: The configuration; ``None`` for all but ours.
        state: What the requests found the device in.
        target_qps: Mean arrivals per second.
        seed: Seed of the arrivals.
        status: How it ended.
        reason: One line; empty if and only if the status is ``correct``.
        latency_us: By block, in order: from just before a request's submission to its completion as the host sees it.
        queue_us: By block, in order: from the arrival to the submission; more than a clock reading if the request
            before was still being served.
        host_us: By block: median time the submission kept the calling thread.
        device_us: By block of the second pass, in order: device time of one launch alone, between two events.
        unflushed: Requests of idle_cold that came before the L2 had been flushed again; their operands were cold too.
        max_error: Largest error over its bound in the checks; ``None`` where nothing is computed.
        sm_clock_mhz: SM clock after each block.
        power_w: Board power after each block.
        temperature_c: GPU temperature after each block.
        throttle: NVML throttle-reason bits after each block.
        bench_s: Wall seconds spent on it.
        utc: ISO time at the end of the serving.
        detail: Free text: algorithm, who calls.
    """

    problem: Problem
    contestant: str
    config: KernelConfig | None
    state: State
    target_qps: float
    seed: int
    status: Status
    reason: str = ""
    latency_us: Blocks = ()
    queue_us: Blocks = ()
    host_us: tuple[float, ...] = ()
    device_us: Blocks = ()
    unflushed: int = 0
    max_error: float | None = None
    sm_clock_mhz: tuple[int, ...] = ()
    power_w: tuple[float, ...] = ()
    temperature_c: tuple[int, ...] = ()
    throttle: tuple[int, ...] = ()
    bench_s: float = 0.0
    utc: str = ""
    detail: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        passed = self.status is Status.CORRECT
        if passed != bool(self.latency_us) or passed != bool(self.device_us) or passed == bool(self.reason):
            raise ValueError(
                f"status '{self.status.value}' with reason '{self.reason}': times mean correct, and reverse"
            )
        if [len(block) for block in self.latency_us] != [len(block) for block in self.queue_us]:
            raise ValueError("not every latency has its queueing")
        if len(self.host_us) != len(self.latency_us):
            raise ValueError("not every block has its host time")
        blocks = (*self.latency_us, *self.device_us)
        if not all(LEAST_US <= time_us <= MOST_US for block in blocks for time_us in block):
            raise ValueError(f"a time is not from {LEAST_US:g} to {MOST_US:g} us")
        if not all(blocks) or not all(0.0 <= wait <= MOST_US for block in self.queue_us for wait in block):
            raise ValueError("a block is empty, or a queueing negative or longer than days")
        if self.state not in STATES or not 0.0 < self.target_qps < math.inf:
            raise ValueError(f"state '{self.state}' at {self.target_qps} requests per second means nothing")

    @property
    def ok(self) -> bool:
        """Whether the times count."""
        return self.status is Status.CORRECT

    @property
    def block_p50_us(self) -> tuple[float, ...]:
        """Median latency of each block: what is paired."""
        return tuple(statistics.median(block) for block in self.latency_us)

    @property
    def block_device_us(self) -> tuple[float, ...]:
        """Median device time of each block of the second pass."""
        return tuple(statistics.median(block) for block in self.device_us)

    @property
    def device_median_us(self) -> float:
        """Median device time of all requests; correct rows only."""
        return statistics.median(time_us for block in self.device_us for time_us in block)

    def quantile_us(self, share: float) -> float:
        """Quantile of the latencies of all blocks; correct rows only."""
        return _quantile(self.latency_us, share)

    def sojourn_us(self, share: float) -> float:
        """Quantile of arrival to completion, queueing included; correct rows only."""
        pairs = zip(self.latency_us, self.queue_us, strict=True)
        return _quantile([np.add(latency, queue) for latency, queue in pairs], share)

    @property
    def load(self) -> float:
        """Share of the time that serving takes: mean latency over mean interval."""
        return float(np.mean(np.concatenate(self.latency_us))) * self.target_qps / 1e6

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**to_plain(self), "status": self.status.value}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Latency:
        """The inverse of :meth:`to_dict`.

        Raises:
            RecordError: A value is not of its field's kind.
        """
        blocks = dict.fromkeys(("latency_us", "queue_us", "device_us"), _blocks)
        rows = dict.fromkeys(("host_us", "sm_clock_mhz", "power_w", "temperature_c", "throttle"), tuple)
        return from_plain(cls, values, status=Status, **blocks, **rows)


def _blocks(values: Iterable[Iterable[float]]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(block) for block in values)


def _quantile(blocks: Sequence[Any], share: float) -> float:
    return float(np.quantile(np.concatenate(blocks), share))


@dataclass(frozen=True)
class LatencyComparison:
    """How much sooner ours answers than another contestant; above 1 ours is sooner.

    Attributes:
        p50: Median over blocks of the ratio of their medians, with its interval.
        p95: Ratio of the 95th percentiles of all requests.
        p99: Ratio of the 99th percentiles.
        device: As ``p50``, for device times.
    """

    p50: Comparison
    p95: float
    p99: float
    device: Comparison


@dataclass(frozen=True)
class Serving:
    """The rows that served the same arrivals in one state.

    Attributes:
        problem: What was computed.
        state: What the requests found the device in.
        target_qps: Mean arrivals per second.
        utc: Time stamp shared by the rows.
        rows: Every contestant, failures included.
    """

    problem: Problem
    state: State
    target_qps: float
    utc: str
    rows: tuple[Latency, ...]

    @property
    def ours(self) -> Latency | None:
        """Our correct configuration with the lowest median; a vendor library never counts as ours."""
        return _soonest(row for row in self.rows if row.config is not None)

    @property
    def empty(self) -> Latency | None:
        """The launch of nothing."""
        return _soonest(row for row in self.rows if row.contestant == EMPTY)

    def baseline(self, name: str) -> Latency | None:
        """A baseline by name, the better of its operand layouts."""
        return _soonest(row for row in self.rows if row.config is None and row.contestant in names_of(name))

    @property
    def baselines(self) -> dict[str, Latency]:
        """Every baseline that served, by name, in the order of reports."""
        return {name: row for name in BASELINES if (row := self.baseline(name)) is not None}

    def against(self, name: str) -> LatencyComparison | None:
        """Ours against a baseline; ``None`` if either is missing."""
        ours, other = self.ours, self.baseline(name)
        return compare_latencies(ours, other) if ours and other else None

    @property
    def overloaded(self) -> bool:
        """Whether someone served for more than ``MOST_LOAD`` of the time, so that arrivals waited for each other."""
        return any(row.ok and row.load > MOST_LOAD for row in self.rows)


def compare_latencies(ours: Latency, other: Latency) -> LatencyComparison:
    """Two contestants that served the same arrivals."""
    return LatencyComparison(
        p50=compare(ours.block_p50_us, other.block_p50_us),
        p95=other.quantile_us(0.95) / ours.quantile_us(0.95),
        p99=other.quantile_us(0.99) / ours.quantile_us(0.99),
        device=compare(ours.block_device_us, other.block_device_us),
    )


def _soonest(rows: Iterable[Latency]) -> Latency | None:
    return min((row for row in rows if row.ok), key=lambda row: row.quantile_us(0.5), default=None)


def group_servings(rows: Iterable[Latency]) -> list[Serving]:
    """Splits rows into servings, oldest first."""
    groups: dict[tuple[Problem, State, float, str], list[Latency]] = defaultdict(list)
    for row in rows:
        groups[row.problem, row.state, row.target_qps, row.utc].append(row)
    servings = [Serving(*key, rows=tuple(group)) for key, group in groups.items()]
    return sorted(servings, key=lambda serving: serving.utc)


def summaries(rows: Iterable[Latency]) -> list[Serving]:
    """The newest serving of each problem, state and rate, in that order."""
    newest = {(serving.problem, serving.state, serving.target_qps): serving for serving in group_servings(rows)}
    return [newest[key] for key in sorted(newest, key=lambda key: (key[0], STATES.index(key[1]), key[2]))]


def read_latencies(directory: Path, allow_mixed: bool = False) -> Rows[Latency]:
    """Reads the shards of a directory, or one shard.

    Raises:
        RecordError: As :func:`cudal2.records.shards.read_shards`.
    """
    return read_rows(directory, KIND, Latency.from_dict, allow_mixed)


def shipped_latencies() -> Path:
    """Where the servings that ship with this version lie; the folder may be absent."""
    return data_dir() / "latency"
