"""One interleaved comparison read back from its rows: who competed, best of each, and paired ratios with an interval.

Rows belong to one final if they share sizes, types, mode, PDL flag and time stamp: they were timed in the same
shuffled rounds of the same processes, so the i-th time of one and the i-th time of another saw the same clocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cudal2.errors import RecordError
from cudal2.floor import floor_us
from cudal2.problem import Problem
from cudal2.records.measurement import Measurement, Mode

#: Baselines in the order of reports; the first is the reference of rewards and tables.
BASELINES = ("cublaslt_auto", "cublaslt_heuristic", "cublas", "torch", "quack", "triton", "cuda_l2")
REFERENCE = BASELINES[0]
#: How the names of contestants begin that a user brought.
FOREIGN = "foreign:"
#: Operand layouts a library baseline is measured in; the baseline's time is the better of the two.
LAYOUT_SUFFIXES = ("tn", "nn")
#: What complete runs differ by beyond the rounds of their own processes, where the floor is up to the one given and
#: where it is above: clocks fall there, and another selection may choose another of almost equal kernels. Two runs over
#: 12 shapes (2026-11-29, two H200 of one host): of 24 pairs, each ratio lay within the other's interval in 17 with
#: 0.5 %, 20 with 1 %, 23 with 2 %; up to the floor all 12 with 1 %.
STEADY_SPREAD, RUN_SPREAD = 0.01, 0.02
STEADY_FLOOR_US = 10.0

Verdict = Literal["win", "tie", "loss"]


def names_of(baseline: str) -> tuple[str, ...]:
    """Contestants that are this baseline: its name alone, or with the operand layout it was measured in."""
    return (baseline, *(f"{baseline}_{suffix}" for suffix in LAYOUT_SUFFIXES))


@dataclass(frozen=True)
class Comparison:
    """How much faster one contestant is than another in the same rounds.

    Attributes:
        ratio: Median over the rounds of all processes of the other's time over ours; above 1 we are faster.
        low: Lower end of the interval of ``ratio``: the lowest of the processes' own bootstrap intervals.
        high: Upper end: the highest of them. The hull holds what differs from process to process.
    """

    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """A win or a loss only if every process agrees; a tie if the hull holds 1: it cannot tell the two apart."""
        if self.low > 1.0:
            return "win"
        return "loss" if self.high < 1.0 else "tie"


def paired_ratios(times_us: Sequence[float], other_us: Sequence[float]) -> NDArray[np.float64]:
    """Other over ours, round by round.

    Raises:
        ValueError: The two were not timed in the same number of rounds.
    """
    if len(times_us) != len(other_us) or not times_us:
        raise ValueError(f"{len(times_us)} and {len(other_us)} rounds cannot be paired")
    return np.asarray(other_us, dtype=np.float64) / np.asarray(times_us, dtype=np.float64)


def compare(
    times_us: Sequence[float],
    other_us: Sequence[float],
    process_rounds: Sequence[int] = (),
    spread: float = 0.0,
    *,
    level: float = 0.95,
    resamples: int = 2_000,
    seed: int = 0,
) -> Comparison:
    """Median paired ratio, and the hull of the processes' percentile-bootstrap intervals over their own rounds.

    Rounds of one process share its buffers' places and its clocks, so that more of them cannot show what the next
    process would; the hull of several shows some of it, and ``spread`` stands for the rest. The same input gives the
    same interval. Of fewer than six rounds a 95 % bootstrap interval is the range from the lowest to the highest ratio.

    Args:
        times_us: Ours, in order over all processes.
        other_us: The other's in the same rounds.
        process_rounds: How many rounds each process ran; empty for one process.
        spread: By which fraction both ends move outwards.
        level: Confidence of each process's interval.
        resamples: Bootstrap resamples.
        seed: Seed of the resampling.

    Raises:
        ValueError: The two were not timed in the same rounds.
    """
    ratios = paired_ratios(times_us, other_us)
    bounds = [_interval(part, level, resamples, seed) for part in np.split(ratios, np.cumsum(process_rounds[:-1]))]
    low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
    return Comparison(float(np.median(ratios)), low / (1.0 + spread), high * (1.0 + spread))


def _interval(ratios: NDArray[np.float64], level: float, resamples: int, seed: int) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    medians = np.median(ratios[rng.integers(0, ratios.size, (resamples, ratios.size))], axis=1)
    low, high = np.quantile(medians, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)


def run_spread(problem: Problem) -> float:
    """The ``spread`` of a final's intervals."""
    return RUN_SPREAD if floor_us(problem.m, problem.n, problem.k) > STEADY_FLOOR_US else STEADY_SPREAD


def compare_rows(ours: Measurement, other: Measurement) -> Comparison:
    """:func:`compare` of two rows of one final, with its :func:`run_spread`.

    Raises:
        RecordError: The two were not timed in the same rounds of the same processes.
    """
    if len(ours.times_us) != len(other.times_us) or ours.process_rounds != other.process_rounds:
        rounds, others = (list(row.process_rounds) or len(row.times_us) for row in (ours, other))
        text = f"{rounds} rounds of ours, {others} of {other.contestant} cannot be paired"
        raise RecordError(f"final of {ours.problem.mnk} at {ours.utc or 'no time'}: {text}")
    return compare(ours.times_us, other.times_us, ours.process_rounds, run_spread(ours.problem))


@dataclass(frozen=True)
class Final:
    """The rows of one interleaved comparison.

    Attributes:
        problem: What was computed.
        mode: Protocol mode.
        pdl: Whether our launches carried the programmatic-dependent-launch attribute.
        utc: Time stamp shared by the rows.
        rows: Every contestant, failures included.
    """

    problem: Problem
    mode: Mode
    pdl: bool
    utc: str
    rows: tuple[Measurement, ...]

    @property
    def key(self) -> str:
        """Leaderboard this final counts for: mode, :attr:`Problem.operands`, PDL, as in ``offline/fp32/on``."""
        return f"{self.mode}/{self.problem.operands}/{'on' if self.pdl else 'off'}"

    @property
    def ours(self) -> Measurement | None:
        """Our fastest correct configuration; a vendor library never counts as ours."""
        return _fastest(row for row in self.rows if row.config is not None)

    @property
    def foreign(self) -> tuple[Measurement, ...]:
        """Rows of kernels that a user brought, failures included."""
        return tuple(row for row in self.rows if row.contestant.startswith(FOREIGN))

    def named(self, contestant: str) -> Measurement | None:
        """The row of exactly this contestant, if it passed."""
        return _fastest(row for row in self.rows if row.config is None and row.contestant == contestant)

    def baseline(self, name: str) -> Measurement | None:
        """A baseline by name, the better of its operand layouts where it was measured in both."""
        names = names_of(name)
        return _fastest(row for row in self.rows if row.config is None and row.contestant in names)

    def against(self, name: str) -> Comparison | None:
        """Ours against a baseline; ``None`` if either is missing.

        Raises:
            RecordError: The two were not timed in the same rounds.
        """
        ours, other = self.ours, self.baseline(name)
        return compare_rows(ours, other) if ours and other else None


def _fastest(rows: Iterable[Measurement]) -> Measurement | None:
    return min((row for row in rows if row.ok), key=lambda row: row.median_us, default=None)


def group_finals(records: Iterable[Measurement]) -> list[Final]:
    """Splits rows into finals, oldest first; rows of a search (no baseline beside them) make no final."""
    groups: dict[tuple[object, ...], list[Measurement]] = defaultdict(list)
    for row in records:
        groups[(row.problem, row.mode, row.pdl, row.utc)].append(row)
    finals = (Final(rows[0].problem, rows[0].mode, rows[0].pdl, rows[0].utc, tuple(rows)) for rows in groups.values())
    compared = (final for final in finals if any(row.config is None for row in final.rows))
    return sorted(compared, key=lambda final: final.utc)


def latest_finals(records: Iterable[Measurement]) -> dict[tuple[str, str], Final]:
    """The newest final of each shape on each leaderboard, by (key, ``M_N_K``): the last word counts, not the best."""
    return by_shape(group_finals(records))


def by_shape(finals: Iterable[Final]) -> dict[tuple[str, str], Final]:
    """Finals by (key, ``M_N_K``), which tells every problem, mode and PDL setting apart; the last of each."""
    return {(final.key, final.problem.mnk): final for final in finals}
