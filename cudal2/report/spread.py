"""Ours against one other contestant: shape by shape, and summed up so that no mean stands alone.

A ratio is the median over rounds of their time over ours in the same rounds. Whatever is averaged is averaged over the
shapes that both sides solved, and that number is part of the result; a shape that only they solved has no ratio and
counts as lost.
"""

from __future__ import annotations

import math
import re
import statistics
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cudal2.errors import RecordError
from cudal2.floor import class_of, floor_us
from cudal2.problem import Problem
from cudal2.records.finals import Comparison, Final, compare_rows
from cudal2.records.measurement import Measurement

#: A difference that somebody would notice: one side takes more than this many times as long as the other.
NOTICEABLE = 1.05
#: Precision switches of torch that turn an fp32 contestant into one that rounds its sums to half precision.
_NARROW_SUMS = re.compile(r"allow_(?:fp16|bf16)_(?:accumulation|reduced_precision_reduction)=True")


@dataclass(frozen=True)
class Compared(ABC):
    """One shape on one leaderboard against one baseline.

    Attributes:
        problem: What was computed.
        floor_us: Lower bound on its device time.
        comparison: Ours against the baseline.
    """

    problem: Problem
    floor_us: float
    comparison: Comparison

    @property
    @abstractmethod
    def ours_us(self) -> float:
        """Our time."""

    @property
    @abstractmethod
    def other_us(self) -> float:
        """The baseline's."""

    @property
    def ratio(self) -> float:
        """Speed-up over the baseline."""
        return self.comparison.ratio

    @property
    def floor_class(self) -> str:
        """Class by floor."""
        return class_of(self.floor_us)


@dataclass(frozen=True)
class Judged(Compared):
    """Device times of one final.

    Attributes:
        ours: Our fastest configuration.
        other: The baseline, in its better layout.
    """

    ours: Measurement
    other: Measurement

    @property
    def ours_us(self) -> float:
        """Median of ours over rounds."""
        return self.ours.median_us

    @property
    def other_us(self) -> float:
        """Median of the baseline's over the same rounds."""
        return self.other.median_us


def judge(final: Final, baseline: str) -> Judged | None:
    """Ours against a baseline in one final; ``None`` if either has no time there.

    Raises:
        RecordError: The two did not compute the same thing under the same terms, or not in the same rounds.
    """
    return _judged(final, final.ours, final.baseline(baseline))


def judge_rival(final: Final, rival: str, baseline: str) -> Judged | None:
    """One baseline in our place, against another; as :func:`judge`."""
    return _judged(final, final.baseline(rival), final.baseline(baseline))


def _judged(final: Final, ours: Measurement | None, other: Measurement | None) -> Judged | None:
    if ours is None or other is None:
        return None
    check_comparable(ours, other)
    return Judged(final.problem, floor_of(final.problem), compare_rows(ours, other), ours, other)


def check_comparable(ours: Measurement, other: Measurement) -> None:
    """Refuses a speed-up between two that were not asked for the same thing.

    Raises:
        RecordError: Sizes, accumulator, operands, layout, mode or PDL column differ, or one sums in half precision
            under an fp32 label.
    """
    terms = [
        ("sizes", ours.problem.mnk, other.problem.mnk),
        ("accumulator", ours.problem.acc, other.problem.acc),
        ("operands", ours.problem.dtype, other.problem.dtype),
        ("layout", ours.problem.layout, other.problem.layout),
        ("mode", ours.mode, other.mode),
        ("PDL", ours.pdl, other.pdl),
    ]
    differing = [f"{name} {mine} against {theirs}" for name, mine, theirs in terms if mine != theirs]
    if ours.problem.acc == "fp32":
        narrow = (found for row in (ours, other) for found in _NARROW_SUMS.findall(row.detail))
        differing += [f"fp32 sums against {found}" for found in narrow]
    if differing:
        raise RecordError(
            f"{ours.problem.mnk}: no speed-up over {other.contestant} can be given ({', '.join(differing)}): "
            "measure both under the same terms"
        )


def floor_of(problem: Problem) -> float:
    """Lower bound of a problem, microseconds."""
    return floor_us(problem.m, problem.n, problem.k)


def geomean(values: Iterable[float]) -> float | None:
    """Geometric mean; ``None`` of nothing."""
    known = list(values)
    return statistics.geometric_mean(known) if known else None


@dataclass(frozen=True)
class Spread:
    """Speed-ups over several shapes; what is a mean, an extreme or a total is ``None`` where no shape has a ratio.

    Attributes:
        n: Shapes that both sides solved: those with a ratio.
        unserved: Shapes that only the baseline solved.
        geomean: Geometric mean.
        mean: Arithmetic mean.
        worst: Lowest.
        best: Highest.
        win: Shapes whose 95 % interval lies above 1.
        tie: Shapes whose interval holds 1.
        loss: Shapes whose interval lies below 1.
        faster: Share of shapes with a ratio above 1, however little.
        noticeable: Share of shapes with a ratio above ``NOTICEABLE``.
        slower: Share of shapes with a ratio below 1 / ``NOTICEABLE``. In all three shares an unserved shape is lost.
        ours_us: Our time summed over the shapes.
        other_us: The baseline's, over the same shapes.
        floor_ours: Geometric mean of floor over our time: 1 is what the chip allows.
        floor_other: The same of the baseline.
    """

    n: int
    unserved: int
    geomean: float | None
    mean: float | None
    worst: float | None
    best: float | None
    win: int
    tie: int
    loss: int
    faster: float
    noticeable: float
    slower: float
    ours_us: float
    other_us: float
    floor_ours: float | None
    floor_other: float | None

    @property
    def total(self) -> float | None:
        """The baseline's time over ours, both summed over the shapes."""
        return self.other_us / self.ours_us if self.n else None

    @property
    def lost(self) -> int:
        """Shapes lost: by the interval, or because none of ours ran."""
        return self.loss + self.unserved

    @property
    def loss_share(self) -> float:
        """Share of shapes lost."""
        return self.lost / (self.n + self.unserved)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; ``win`` is the share of ratios above 1, the counts are won, tied and lost."""
        return {
            "n": self.n,
            "geomean": self.geomean,
            "win": self.faster,
            "mean": self.mean,
            "min": self.worst,
            "max": self.best,
            "won": self.win,
            "tied": self.tie,
            "lost": self.loss,
            "unserved": self.unserved,
            "slower_5pct": self.slower,
            "total_ours_us": self.ours_us,
            "total_theirs_us": self.other_us,
            "floor_fraction": {"ours": self.floor_ours, "theirs": self.floor_other},
        }


def spread(shapes: Sequence[Compared], unserved: int = 0) -> Spread | None:
    """Sums up shapes, and so many that only the baseline solved; ``None`` of nothing."""
    count = len(shapes) + unserved
    if not count:
        return None
    ratios = [shape.ratio for shape in shapes]
    verdicts = [shape.comparison.verdict for shape in shapes]
    return Spread(
        n=len(ratios),
        unserved=unserved,
        geomean=geomean(ratios),
        mean=statistics.fmean(ratios) if ratios else None,
        worst=min(ratios, default=None),
        best=max(ratios, default=None),
        win=verdicts.count("win"),
        tie=verdicts.count("tie"),
        loss=verdicts.count("loss"),
        faster=sum(ratio > 1.0 for ratio in ratios) / count,
        noticeable=sum(ratio > NOTICEABLE for ratio in ratios) / count,
        slower=(sum(ratio < 1.0 / NOTICEABLE for ratio in ratios) + unserved) / count,
        ours_us=math.fsum(shape.ours_us for shape in shapes),
        other_us=math.fsum(shape.other_us for shape in shapes),
        floor_ours=geomean(shape.floor_us / shape.ours_us for shape in shapes),
        floor_other=geomean(shape.floor_us / shape.other_us for shape in shapes),
    )
