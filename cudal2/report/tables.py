"""The finals as tables for a terminal: a headline that cannot stand alone, classes, the worst shapes, every shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cudal2.floor import CLASS_NAMES
from cudal2.records.finals import REFERENCE
from cudal2.report.board import Board, baseline_title
from cudal2.report.clocks import clocks_of, pooled
from cudal2.report.serving import FIGURES, ServerBoard, figures
from cudal2.report.spread import Compared, Spread
from cudal2.report.summary import WORST
from cudal2.space.config import KernelConfig


@dataclass(frozen=True)
class Table:
    """Rows under a header.

    Attributes:
        title: One line above it.
        header: Names of the columns.
        rows: Values; ``None`` where there is none.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


_SPREAD = ("shapes", "geomean", "mean", "worst", "won", "tied", "lost", "unserved", "lost%", ">5%slower", "total",
           "of_floor", "theirs")  # fmt: skip
#: Columns at the end that mean nothing of latencies: sums over requests that nobody made, floors of device time.
_OFFLINE_ONLY = ("total", "of_floor", "theirs")
_SHAPE = ("shape", "speedup", "95%", "verdict", "floor_us", "ours_us", "theirs_us", "kernel")


def report_tables(found: Sequence[Board]) -> list[Table]:
    """Per leaderboard: every baseline, then the reference by class of floor and its worst shapes by name."""
    tables = []
    for board in found:
        rows = [(standing.baseline, *_spread(standing.overall)) for standing in board.standings]
        tables.append(Table(f"{board.key}: {_tally(board)}", ("against", *_SPREAD), tuple(rows)))
        if board.rivals:
            others = tuple((rival.baseline, *_spread(rival.overall)) for rival in board.rivals)
            title = f"{board.key}, the others against {baseline_title(REFERENCE)}, ours left out"
            tables.append(Table(title, ("contestant", *_SPREAD[:-1], REFERENCE), others))
        standing = board.standing()
        if standing is not None:
            against = f"{board.key}, against {baseline_title(REFERENCE)}"
            classes = tuple((name, *_spread(standing.by_class[name])) for name in CLASS_NAMES)
            tables.append(Table(f"{against}, by class of floor", ("class", *_SPREAD), classes))
            worst = tuple(_shape(shape, shape.ours.config) for shape in standing.shapes[:WORST])
            tables.append(Table(f"{against}, worst {len(worst)}", _SHAPE, worst))
    return tables


def server_tables(found: Sequence[ServerBoard]) -> list[Table]:
    """Per state and rate: every baseline by its p50 with tails and device time, and the reference's worst shapes."""
    tables = []
    for board in found:
        rows = []
        for standing in board.standings:
            tails = (
                f"{one.ratio:.3f} {one.ours_us:.1f}/{one.other_us:.1f}" for one in figures(standing.shapes).values()
            )
            rows.append((standing.baseline, *_spread(standing.overall)[: -len(_OFFLINE_ONLY)], *tails))
        empty = "" if board.empty_us is None else f", a launch of nothing {board.empty_us:.1f} us"
        tally = f"{len(board.servings)} shapes, {len(board.failures)} contestants without a latency{empty}"
        header = ("against", *_SPREAD[: -len(_OFFLINE_ONLY)], *(f"{name} ours/theirs us" for name in FIGURES))
        tables.append(Table(f"{board.key}, host latency, counted by p50: {tally}", header, tuple(rows)))
        reference = board.standing()
        if reference is not None:
            worst = tuple(_shape(shape, shape.ours.config) for shape in reference.shapes[:WORST])
            title = f"{board.key}, against {baseline_title(REFERENCE)}, worst {len(worst)}"
            tables.append(Table(title, _SHAPE, worst))
    return tables


def every_shape(found: Sequence[Board], served: Sequence[ServerBoard] = ()) -> Table:
    """Every shape of every leaderboard against the reference, slowest of ours first, then those nobody served."""
    rows: list[tuple[Any, ...]] = []
    for board in found:
        standing = board.standing()
        shapes = standing.shapes if standing else ()
        rows += [(board.key, *_shape(shape, shape.ours.config)) for shape in shapes]
        rows += [(board.key, mnk, None, None, "unserved", None, None, None, reason) for mnk, reason in board.unserved]
    for serving in served:
        sooner = serving.standing()
        rows += [(serving.key, *_shape(shape, shape.ours.config)) for shape in (sooner.shapes if sooner else ())]
        rows += [(serving.key, mnk, None, None, "unserved", *[None] * 4) for mnk in serving.unserved]
    return Table(f"every shape against {baseline_title(REFERENCE)}", ("board", *_SHAPE), tuple(rows))


def _tally(board: Board) -> str:
    """What was entered, what failed, and what the chip did."""
    clocks = pooled(clocks_of(final) for final in board.finals)
    parts = [
        f"{len(board.finals)} shapes",
        f"{len(board.unserved)} unserved",
        f"{len(board.failures)} contestants without a time",
    ]
    if clocks.median_mhz is not None:
        parts.append(f"SM clock {clocks.median_mhz:.0f} MHz in the median round")
    if clocks.held_share is not None:
        parts.append(f"held down in {clocks.held_share:.0%}")
    return ", ".join(parts)


def _spread(found: Spread | None) -> tuple[Any, ...]:
    if found is None:
        return (0, *[None] * (len(_SPREAD) - 1))
    return (
        found.n, found.geomean, found.mean, found.worst, found.win, found.tie, found.loss, found.unserved,
        f"{found.loss_share:.0%}", f"{found.slower:.0%}", found.total, _percent(found.floor_ours),
        _percent(found.floor_other),
    )  # fmt: skip


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.0%}"


def _shape(shape: Compared, config: KernelConfig | None) -> tuple[Any, ...]:
    found = shape.comparison
    return (
        shape.problem.mnk, found.ratio, f"{found.low:.3f}..{found.high:.3f}", found.verdict, shape.floor_us,
        shape.ours_us, shape.other_us, config.name if config else None,
    )  # fmt: skip
