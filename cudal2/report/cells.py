"""Cells that tables of several pages share: a spread in full, a class, an interval."""

from __future__ import annotations

from collections.abc import Sequence

from cudal2.records.latency import Latency
from cudal2.records.measurement import Measurement
from cudal2.report.markup import Cell, number, table, words
from cudal2.report.spread import Compared, Spread
from cudal2.space.config import KernelConfig

SPREAD_HEAD = ("shapes", "geomean", "mean", "worst", "best", "won", "tied", "lost", "unserved", "share lost",
               "slower by >5%", "above 1", "faster by >5%")  # fmt: skip


def spread_cells(found: Spread | None, entered: int = 0) -> list[Cell]:
    """The figures under ``SPREAD_HEAD``; dashes of nothing."""
    if found is None:
        return [number(0, "d"), *(number(None) for _ in SPREAD_HEAD[1:])]
    return [
        number(found.n, "d", below=f"of {entered}" if entered > found.n else ""),
        number(found.geomean),
        number(found.mean),
        number(found.worst),
        number(found.best),
        number(found.win, "d", "win"),
        number(found.tie, "d", "tie"),
        number(found.loss, "d", "loss" if found.loss else ""),
        number(found.unserved, "d", "loss" if found.unserved else ""),
        number(found.loss_share, ".0%"),
        number(found.slower, ".0%"),
        number(found.faster, ".0%"),
        number(found.noticeable, ".0%"),
    ]


def class_cell(found: Spread | None) -> Cell:
    """Geomean, and won / tied / lost."""
    return number(None) if found is None else number(found.geomean, below=f"{found.win} / {found.tie} / {found.lost}")


def interval(shape: Compared) -> str:
    """Its 95 % interval."""
    return f"{shape.comparison.low:.3f} to {shape.comparison.high:.3f}"


def kernel_name(config: KernelConfig | None, contestant: str) -> str:
    """Configuration of ours, else the contestant."""
    return config.name if config is not None else contestant


def failures_table(rows: Sequence[Measurement | Latency], name: str) -> str:
    """Contestants without a figure, and why."""
    texts = ((row.problem.mnk, kernel_name(row.config, row.contestant), row.status.value, row.reason) for row in rows)
    cells = [[words(text) for text in line] for line in texts]
    return table(("shape", "contestant", "status", "reason"), cells, name=name)
