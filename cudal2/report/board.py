"""One leaderboard laid out for a reader: every baseline with its spread, every shape with every comparison.

A mean hides; what stands beside it here is what it hides: ties, losses, the worst shape, the total time, what failed.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Generic, TypeVar

from cudal2.floor import CLASS_NAMES, class_of
from cudal2.problem import Problem
from cudal2.records.finals import BASELINES, REFERENCE, Final, latest_finals, names_of
from cudal2.records.measurement import Measurement
from cudal2.report.spread import Compared, Judged, Spread, floor_of, judge, judge_rival, spread

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

Shape = TypeVar("Shape", bound=Compared)


def board_title(key: str) -> str:
    """``offline/fp32/on`` in words."""
    mode, operands, pdl = key.split("/")
    return f"{mode.capitalize()}, {operands_title(operands)}, our PDL {pdl}"


def operands_title(operands: str) -> str:
    """:attr:`Problem.operands` in words; those of ``fp32`` and ``fp16`` are fp16."""
    precision, _, layout = operands.partition("-")
    title = "bf16 operands, fp32 accumulation" if precision == "bf16" else f"{precision} accumulation"
    return f"{title}, B as [K,N]" if layout == "nn" else title


def baseline_title(name: str) -> str:
    """A baseline's name for readers."""
    return TITLES.get(name, name)


@dataclass(frozen=True)
class Standing(Generic[Shape]):
    """How we stand against one baseline.

    Attributes:
        baseline: Its name in records.
        entered: Shapes it was entered on, whether or not it solved them.
        shapes: Every judged shape, lowest ratio first.
        overall: All of them.
        by_class: Each class of floor; ``None`` where no shape falls into it.
    """

    baseline: str
    entered: int
    shapes: tuple[Shape, ...]
    overall: Spread
    by_class: Mapping[str, Spread | None]

    @functools.cached_property
    def by_problem(self) -> dict[Problem, Shape]:
        """The shapes by what was computed."""
        return {shape.problem: shape for shape in self.shapes}

    @property
    def losses(self) -> tuple[Shape, ...]:
        """The shapes lost by the interval, worst first."""
        return tuple(shape for shape in self.shapes if shape.comparison.verdict == "loss")


@dataclass(frozen=True)
class Board:
    """One leaderboard.

    Attributes:
        key: :attr:`Final.key`.
        standings: Baselines that were measured, in the order of reports.
        rivals: Every other contestant in our place, against the reference.
        finals: The newest final of each shape, by sizes; shapes without a kernel of ours included.
    """

    key: str
    standings: tuple[Standing[Judged], ...]
    rivals: tuple[Standing[Judged], ...]
    finals: tuple[Final, ...]

    @property
    def title(self) -> str:
        """The key in words."""
        return board_title(self.key)

    def standing(self, baseline: str = REFERENCE) -> Standing[Judged] | None:
        """Against one baseline, if it was measured."""
        return named(self.standings, baseline)

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
    def unserved(self) -> tuple[tuple[str, str], ...]:
        """Shapes none of our kernels solved, with the reasons."""
        return tuple((final.problem.mnk, _reasons(final)) for final in self.finals if final.ours is None)

    @property
    def failures(self) -> tuple[Measurement, ...]:
        """Rows of contestants, ours and others', that have no time."""
        return tuple(row for final in self.finals for row in final.rows if not row.ok)


def _operands(key: str) -> str:
    return key.rpartition("/")[0]


def boards(records: Iterable[Measurement]) -> tuple[Board, ...]:
    """Every leaderboard of the finals among the records, the newest of each shape, as :func:`boards_of`."""
    return boards_of(latest_finals(records).values())


def boards_of(chosen: Iterable[Final]) -> tuple[Board, ...]:
    """Every leaderboard, by key, those of the operands with most shapes first.

    Args:
        chosen: One final of each shape on each.

    Raises:
        RecordError: Two contestants of one final cannot be compared.
    """
    finals: dict[str, list[Final]] = defaultdict(list)
    for final in chosen:
        finals[final.key].append(final)
    shapes: dict[str, int] = defaultdict(int)
    for key, found in finals.items():
        shapes[_operands(key)] = max(shapes[_operands(key)], len(found))
    order = sorted(finals, key=lambda key: (-shapes[_operands(key)], key.split("/")))
    return tuple(_board(key, sorted(finals[key], key=lambda final: final.problem)) for key in order)


def named(standings: Iterable[Standing[Shape]], baseline: str) -> Standing[Shape] | None:
    """The standing against one baseline, if it was measured."""
    return next((standing for standing in standings if standing.baseline == baseline), None)


def competitors(entered: Set[str]) -> tuple[str, ...]:
    """Baselines of these contestants: the usual ones in their order, then others by name."""
    usual = {name: set(names_of(name)) for name in BASELINES}
    others = entered - {name for names in usual.values() for name in names}
    return (*(name for name, names in usual.items() if names & entered), *sorted(others))


def _board(key: str, finals: list[Final]) -> Board:
    entered = {row.contestant for final in finals for row in final.rows if row.config is None}
    names = competitors(entered)
    standings = (_standing(name, finals) for name in names)
    rivals = (_rival(name, finals) for name in names if name != REFERENCE)
    return Board(
        key,
        tuple(standing for standing in standings if standing is not None),
        tuple(rival for rival in rivals if rival is not None),
        tuple(finals),
    )


def _standing(baseline: str, finals: list[Final]) -> Standing[Judged] | None:
    shapes = [judged for final in finals if (judged := judge(final, baseline)) is not None]
    missed = [final.problem for final in finals if final.ours is None and final.baseline(baseline) is not None]
    return stand(baseline, len(_entries(baseline, finals)), shapes, missed)


def _rival(name: str, finals: list[Final]) -> Standing[Judged] | None:
    """A shape it was entered on and did not solve counts as lost, one it was not entered on does not count."""
    entries = _entries(name, finals)
    shapes = [judged for final in entries if (judged := judge_rival(final, name, REFERENCE)) is not None]
    missed = [one.problem for one in entries if one.baseline(name) is None and one.baseline(REFERENCE) is not None]
    return stand(name, len(entries), shapes, missed)


def _entries(baseline: str, finals: list[Final]) -> list[Final]:
    names = names_of(baseline)
    return [final for final in finals if any(row.config is None and row.contestant in names for row in final.rows)]


def stand(baseline: str, entered: int, shapes: Iterable[Shape], missed: Sequence[Problem]) -> Standing[Shape] | None:
    """Sums up; ``None`` if no shape has a ratio.

    Args:
        baseline: Its name in records.
        entered: Shapes it was entered on.
        shapes: Those both sides solved.
        missed: Those that only the baseline solved.
    """
    ordered = tuple(sorted(shapes, key=lambda shape: shape.ratio))
    classes = [class_of(floor_of(problem)) for problem in missed]
    overall = spread(ordered, len(missed))
    if overall is None or not ordered:
        return None
    by_class = {
        name: spread([shape for shape in ordered if shape.floor_class == name], classes.count(name))
        for name in CLASS_NAMES
    }
    return Standing(baseline, entered, ordered, overall, by_class)


def _reasons(final: Final) -> str:
    reasons = sorted({f"{row.status.value}: {row.reason}" for row in final.rows if row.config is not None})
    return "; ".join(reasons) or "no configuration competed"
