"""Pictures of the finals: speed-up against the floor, its distribution, and every shape of the grid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from cudal2.floor import CLASSES
from cudal2.report.summary import Judged

_OURS, _LOSS, _TIE, _MUTED = "#1b6ca8", "#c0392b", "#8a8f98", "#c9ccd1"
_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#5b6068",
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
}
_COLOURS = {"win": _OURS, "tie": _TIE, "loss": _LOSS}


def speedup_figure(shapes: Sequence[Judged], title: str) -> Figure:
    """Two panels: speed-up of each shape against its floor with 95 % intervals, and the share of shapes above it."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(9.0, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        scatter, ecdf = figure.subplots(1, 2, width_ratios=(3, 2))
        _scatter(scatter, shapes)
        _ecdf(ecdf, shapes)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def save_speedups(shapes: Sequence[Judged], title: str, path: Path) -> Path:
    """Writes :func:`speedup_figure` as PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    speedup_figure(shapes, title).savefig(path, dpi=150)
    return path


def _scatter(axes: Axes, shapes: Sequence[Judged]) -> None:
    for edge, _ in CLASSES[:-1]:
        axes.axvline(edge, color=_MUTED, linewidth=0.6, zorder=0)
    axes.axhline(1.0, color="#30343b", linewidth=0.9, zorder=1)
    for verdict, colour in _COLOURS.items():
        group = [shape for shape in shapes if shape.comparison.verdict == verdict]
        if not group:
            continue
        ratios = np.array([shape.ratio for shape in group])
        ends = np.array([(shape.comparison.low, shape.comparison.high) for shape in group]).T
        axes.errorbar(
            [shape.floor_us for shape in group], ratios, yerr=np.abs(ends - ratios), fmt="o", markersize=4,
            elinewidth=0.8, color=colour, label=f"{verdict} ({len(group)})",
        )  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(_microseconds))
    axes.set_xlabel("floor of the shape")
    axes.set_ylabel("speed-up (1 = equal)")
    axes.set_title("by shape; bars: 95 % interval over rounds")
    if shapes:
        axes.legend(frameon=False, fontsize=8)


def _ecdf(axes: Axes, shapes: Sequence[Judged]) -> None:
    ratios = np.sort([shape.ratio for shape in shapes])
    axes.axvline(1.0, color="#30343b", linewidth=0.9)
    if ratios.size:
        share = 1.0 - np.arange(ratios.size) / ratios.size
        axes.step(ratios, share, where="pre", color=_OURS)
        won = float(np.mean(ratios > 1.0))
        axes.annotate(
            f"{won:.0%} above 1", (1.0, won), xytext=(6, 2), textcoords="offset points", fontsize=8, color="#30343b"
        )
    axes.set_ylim(0.0, 1.03)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.set_xlabel("speed-up")
    axes.set_title("share of shapes at least this fast")


def _microseconds(value: float, _: object = None) -> str:
    return f"{value / 1000:g} ms" if value >= 1000 else f"{value:g} us"
