"""One leaderboard laid out for a reader: every baseline with its spread, every shape with every comparison.

A mean hides; what stands beside it here is what it hides: ties, losses, the worst shape, the total time, what failed.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cudal2.floor import CLASS_NAMES
from cudal2.problem import Problem
from cudal2.records.finals import BASELINES, REFERENCE, Final, latest_finals
from cudal2.records.measurement import Measurement
from cudal2.report.summary import Judged, geomean, judge_shapes, unsolved

#: Names of the baselines for readers.
TITLES = {
    "cublaslt_auto": "cuBLASLt-AutoTuning",
    "cublaslt_heuristic": "cuBLASLt-heuristic",
    "cublas": "cuBLAS",
    "torch": "torch.matmul",
    "quack": "QuACK",
    "triton": "Triton",
    "cuda_l2": "CUDA-L2",
}
#: A speed-up that somebody would notice.
NOTICEABLE = 1.05


def board_title(key: str) -> str:
    """``offline/fp32/on`` in words."""
    mode, acc, pdl = key.split("/")
    return f"{mode.capitalize()}, {acc} accumulation, our PDL {pdl}"


def baseline_title(name: str) -> str:
    """A baseline's name for readers."""
    return TITLES.get(name, name)


@dataclass(frozen=True)
class Spread:
    """Speed-ups over several shapes.

    Attributes:
        n: Shapes.
        geomean: Geometric mean.
        mean: Arithmetic mean.
        worst: Lowest.
        best: Highest.
        win: Shapes whose 95 % interval lies above 1.
        tie: Shapes whose interval holds 1.
        loss: Shapes whose interval lies below 1.
        faster: Share of shapes with a ratio above 1, however little; a shape only the baseline solved has none.
        noticeable: Share of shapes with a ratio above ``NOTICEABLE``, likewise.
        total: The baseline's time over ours, both summed over the shapes.
    """

    n: int
    geomean: float
    mean: float
    worst: float
    best: float
    win: int
    tie: int
    loss: int
    faster: float
    noticeable: float
    total: float

    @property
    def loss_share(self) -> float:
        """Share of shapes lost."""
        return self.loss / self.n


def spread(shapes: Sequence[Judged], lost: int = 0) -> Spread | None:
    """Sums up shapes, and so many that only the baseline solved; ``None`` of nothing."""
    ratios = [shape.ratio for shape in shapes]
    centre = geomean(ratios)
    if centre is None:
        return None
    verdicts = [shape.comparison.verdict for shape in shapes]
    ours_us, other_us = (
        math.fsum(row.median_us for row in rows)
        for rows in ([shape.ours for shape in shapes], [shape.other for shape in shapes])
    )
    return Spread(
        n=len(ratios),
        geomean=centre,
        mean=math.fsum(ratios) / len(ratios),
        worst=min(ratios),
        best=max(ratios),
        win=verdicts.count("win"),
        tie=verdicts.count("tie"),
        loss=verdicts.count("loss"),
        faster=sum(ratio > 1.0 for ratio in ratios) / (len(ratios) + lost),
        noticeable=sum(ratio > NOTICEABLE for ratio in ratios) / (len(ratios) + lost),
        total=other_us / ours_us,
    )


@dataclass(frozen=True)
class Standing:
    """How we stand against one baseline.

    Attributes:
        baseline: Its name in records.
        shapes: Every judged shape, lowest ratio first.
        overall: All of them.
        by_class: Each class of floor; ``None`` where no shape falls into it.
    """

    baseline: str
    shapes: tuple[Judged, ...]
    overall: Spread
    by_class: Mapping[str, Spread | None]

    @functools.cached_property
    def by_problem(self) -> dict[Problem, Judged]:
        """The shapes by what was computed."""
        return {shape.problem: shape for shape in self.shapes}


@dataclass(frozen=True)
class Board:
    """One leaderboard.

    Attributes:
        key: ``mode/acc/pdl``.
        standings: Baselines that were measured, in the order of reports.
        finals: The newest final of each shape, by sizes; shapes without a kernel of ours included.
    """

    key: str
    standings: tuple[Standing, ...]
    finals: tuple[Final, ...]

    @property
    def title(self) -> str:
        """The key in words."""
        return board_title(self.key)

    def standing(self, baseline: str = REFERENCE) -> Standing | None:
        """Against one baseline, if it was measured."""
        return next((standing for standing in self.standings if standing.baseline == baseline), None)

    @property
    def absent(self) -> tuple[str, ...]:
        """Baselines nobody measured here."""
        present = {standing.baseline for standing in self.standings}
        return tuple(name for name in BASELINES if name not in present)

    def comparisons(self, final: Final) -> dict[str, Judged]:
        """One final against every baseline that ran beside it."""
        found = {standing.baseline: standing.by_problem.get(final.problem) for standing in self.standings}
        return {name: shape for name, shape in found.items() if shape is not None}

    @property
    def failures(self) -> tuple[Measurement, ...]:
        """Rows of contestants, ours and others', that have no time."""
        return tuple(row for final in self.finals for row in final.rows if not row.ok)


@dataclass(frozen=True)
class Picture:
    """A drawn figure, ready to stand in a page.

    Attributes:
        name: Short, for file names.
        caption: What it shows and how to read it.
        svg: The drawing.
    """

    name: str
    caption: str
    svg: bytes


def boards(records: Iterable[Measurement]) -> tuple[Board, ...]:
    """Every leaderboard of the finals among the records, by key."""
    records = list(records)
    finals: dict[str, list[Final]] = defaultdict(list)
    for (key, _), final in latest_finals(records).items():
        finals[key].append(final)
    judged, lost = judge_shapes(records), unsolved(records)
    return tuple(
        Board(
            key=key,
            standings=tuple(
                _standing(name, shapes, lost.get((key, name), [])) for name, shapes in judged.get(key, {}).items()
            ),
            finals=tuple(sorted(finals[key], key=lambda final: final.problem)),
        )
        for key in sorted(finals)
    )


def _standing(baseline: str, shapes: tuple[Judged, ...], lost: Sequence[str]) -> Standing:
    overall = spread(shapes, len(lost))
    assert overall is not None, "a baseline without a shape is left out by judge_shapes"
    by_class = {
        name: spread([shape for shape in shapes if shape.floor_class == name], lost.count(name)) for name in CLASS_NAMES
    }
    return Standing(baseline, shapes, overall, by_class)
