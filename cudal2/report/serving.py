"""Server mode for readers: per state and rate, what requests took on the host's clock, and device time beside it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cudal2.errors import RecordError
from cudal2.problem import Problem
from cudal2.records.finals import REFERENCE, names_of
from cudal2.records.latency import (
    EMPTY,
    Latency,
    LatencyComparison,
    Serving,
    read_latencies,
    shipped_latencies,
    summaries,
)
from cudal2.records.measurement import STATES, State
from cudal2.records.shards import Rows
from cudal2.report.board import Standing, competitors, named, operands_title, stand
from cudal2.report.clocks import Clocks
from cudal2.report.spread import Compared, floor_of

NONE_SERVED: Rows[Latency] = Rows((), ())
#: The figures of one contestant on one shape, by name.
FIGURES = ("p50", "p95", "p99", "device")
#: What requests find, for readers.
STATE_TITLES: dict[State, str] = {
    "idle_cold": "idle, cold L2",
    "warm": "idle, warm L2",
    "loaded": "copies in the background",
}


@dataclass(frozen=True)
class Served(Compared):
    """Latencies of one serving; the ratio is that of medians, block by block.

    Attributes:
        ours: Our soonest configuration.
        other: The baseline, in its sooner layout.
        latencies: All the ratios.
    """

    ours: Latency
    other: Latency
    latencies: LatencyComparison

    @property
    def ours_us(self) -> float:
        """Our median latency."""
        return self.ours.quantile_us(0.5)

    @property
    def other_us(self) -> float:
        """The baseline's."""
        return self.other.quantile_us(0.5)


@dataclass(frozen=True)
class Figure:
    """One figure over several shapes.

    Attributes:
        ratio: Geometric mean of theirs over ours.
        ours_us: Geometric mean of ours.
        other_us: Of theirs, over the same shapes.
    """

    ratio: float
    ours_us: float
    other_us: float


@dataclass(frozen=True)
class ServerBoard:
    """One precision and layout, state and rate.

    Attributes:
        operands: :attr:`Problem.operands`.
        state: What the requests found the device in.
        target_qps: Mean arrivals per second.
        standings: Baselines that served, in the order of reports.
        servings: The newest of each shape; shapes without a kernel of ours included.
    """

    operands: str
    state: State
    target_qps: float
    standings: tuple[Standing[Served], ...]
    servings: tuple[Serving, ...]

    @property
    def key(self) -> str:
        """``server/operands/state@qps``, for example ``server/fp32/warm@1000``."""
        return f"server/{self.operands}/{self.state}@{self.target_qps:g}"

    @property
    def title(self) -> str:
        """The key in words."""
        operands, rate = operands_title(self.operands), f"{self.target_qps:g} requests per second"
        return f"Server, {operands}, {STATE_TITLES[self.state]}, {rate}"

    def standing(self, baseline: str = REFERENCE) -> Standing[Served] | None:
        """Against one baseline, if it served."""
        return named(self.standings, baseline)

    @property
    def unserved(self) -> tuple[str, ...]:
        """Shapes no kernel of ours served."""
        return tuple(serving.problem.mnk for serving in self.servings if serving.ours is None)

    @property
    def overloaded(self) -> tuple[str, ...]:
        """Shapes on which requests waited for each other."""
        return tuple(serving.problem.mnk for serving in self.servings if serving.overloaded)

    @property
    def failures(self) -> tuple[Latency, ...]:
        """Rows of contestants that have no latency."""
        return tuple(row for serving in self.servings for row in serving.rows if not row.ok)

    @property
    def empty_us(self) -> float | None:
        """Median over shapes of the median latency of a launch of nothing: what no contestant can be under."""
        found = [serving.empty.quantile_us(0.5) for serving in self.servings if serving.empty]
        return statistics.median(found) if found else None


def figures_of(row: Latency) -> dict[str, float]:
    """One contestant's ``FIGURES`` on one shape, microseconds; correct rows only."""
    quantiles = {name: row.quantile_us(int(name[1:]) / 100) for name in FIGURES[:-1]}
    return {**quantiles, "device": row.device_median_us}


def figures(shapes: Sequence[Served]) -> dict[str, Figure]:
    """``FIGURES`` over the shapes both sides served; at least one."""
    ours, others = [figures_of(one.ours) for one in shapes], [figures_of(one.other) for one in shapes]
    ratios = {
        "p50": [one.ratio for one in shapes],
        "p95": [one.latencies.p95 for one in shapes],
        "p99": [one.latencies.p99 for one in shapes],
        "device": [one.latencies.device.ratio for one in shapes],
    }
    return {
        name: Figure(
            statistics.geometric_mean(ratios[name]),
            statistics.geometric_mean(row[name] for row in ours),
            statistics.geometric_mean(row[name] for row in others),
        )
        for name in FIGURES
    }


def clocks_while_served(serving: Serving) -> Clocks:
    """SM clock and throttle reasons after every block, of everyone who served."""
    rows = [row for row in serving.rows if row.ok]
    return Clocks(
        tuple(mhz for row in rows for mhz in row.sm_clock_mhz), tuple(bits for row in rows for bits in row.throttle)
    )


def load_latencies(path: Path | None = None) -> Rows[Latency]:
    """Reads servings from a directory of shards; by default the shipped ones, of which there may be none.

    Raises:
        RecordError: The directory has none, or one cannot be read.
    """
    if path is None and not shipped_latencies().is_dir():
        return NONE_SERVED
    return read_latencies(path or shipped_latencies(), allow_mixed=True)


def server_boards(rows: Iterable[Latency]) -> tuple[ServerBoard, ...]:
    """Every precision and layout, state and rate among the rows, states in their order; the newest serving counts.

    Raises:
        RecordError: Two contestants of one serving cannot be paired.
    """
    found: dict[tuple[str, float, int], list[Serving]] = defaultdict(list)
    for serving in summaries(rows):
        found[serving.problem.operands, serving.target_qps, STATES.index(serving.state)].append(serving)
    return tuple(_board(name, STATES[at], qps, servings) for (name, qps, at), servings in sorted(found.items()))


def _board(operands: str, state: State, target_qps: float, servings: list[Serving]) -> ServerBoard:
    entered = {row.contestant for serving in servings for row in serving.rows if row.config is None} - {EMPTY}
    standings = (_standing(name, servings) for name in competitors(entered))
    return ServerBoard(operands, state, target_qps, tuple(one for one in standings if one is not None), tuple(servings))


def _standing(baseline: str, servings: list[Serving]) -> Standing[Served] | None:
    names = names_of(baseline)
    entered = sum(any(row.config is None and row.contestant in names for row in one.rows) for one in servings)
    shapes = [served for serving in servings if (served := compared(serving, baseline)) is not None]
    missed: list[Problem] = [one.problem for one in servings if one.ours is None and one.baseline(baseline) is not None]
    return stand(baseline, entered, shapes, missed)


def compared(serving: Serving, baseline: str) -> Served | None:
    """Ours against a baseline in one serving; ``None`` if either has no latency there.

    Raises:
        RecordError: The two did not serve the same blocks.
    """
    ours, other = serving.ours, serving.baseline(baseline)
    if ours is None or other is None:
        return None
    try:
        latencies = serving.against(baseline)
    except ValueError as error:
        raise RecordError(f"serving of {serving.problem.mnk}, {serving.state}, at {serving.utc}: {error}") from error
    if latencies is None:
        return None
    return Served(serving.problem, floor_of(serving.problem), latencies.p50, ours, other, latencies)
