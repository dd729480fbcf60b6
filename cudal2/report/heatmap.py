"""The grid of shapes as a picture: speed-up over M x N, one panel per K, and what was not measured left empty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

from cudal2.problem import Problem
from cudal2.report.canvas import new_figure, size
from cudal2.report.spread import Compared
from cudal2.report.style import INK, LOSS, MUTED, OURS, STYLE

_DIVERGING = LinearSegmentedColormap.from_list("loss_to_win", [LOSS, "#f4f4f2", OURS])
#: The heat map is saturated from this ratio on, either way, so that a few percent still show.
SATURATED = 1.3
_LIMIT = math.log(SATURATED)
_PANELS_PER_ROW = 5


def heatmap_figure(shapes: Sequence[Compared], title: str, unserved: Sequence[Problem] = ()) -> Figure:
    """Speed-up over M x N, one panel per K; the numbers are percent, unserved shapes a cross."""
    problems = [*(shape.problem for shape in shapes), *unserved]
    ms, ns, ks = (sorted({getattr(problem, name) for problem in problems}) for name in "mnk")
    columns = min(_PANELS_PER_ROW, max(1, len(ks)))
    rows = math.ceil(len(ks) / columns) or 1
    with mpl.rc_context(STYLE):
        figure = new_figure(f"{title}; cells: per cent faster", max(7.0, 1.0 + 2.1 * columns), 0.8 + 2.1 * rows)
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
        image = None
        for panel, k in zip(panels, ks, strict=False):
            image = _heat(panel, [shape for shape in shapes if shape.problem.k == k], ms, ns)
            _crosses(panel, [problem for problem in unserved if problem.k == k], ms, ns)
            panel.set_title(f"K = {k}", fontsize=9)
        for panel in panels[len(ks) :]:
            panel.set_axis_off()
        if image is not None:
            _colour_bar(figure, image, panels.tolist())
        for at, panel in enumerate(panels[: len(ks)]):
            panel.set_xlabel("N" if at + columns >= len(ks) else "")
            panel.tick_params(labelbottom=at + columns >= len(ks))
            panel.set_ylabel("M" if at % columns == 0 else "")
    return figure


def _colour_bar(figure: Figure, image: Any, panels: list[Axes]) -> None:
    bar = figure.colorbar(image, ax=panels, shrink=0.6, aspect=30, extend="both")
    bar.ax.yaxis.set_major_locator(FixedLocator([math.log(tick) for tick in (1 / 1.3, 0.9, 1.0, 1.1, 1.3)]))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{math.exp(value):.2f}"))
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    bar.set_label("speed-up (1 = equal)")
    bar.outline.set_visible(False)


def _heat(axes: Axes, shapes: Sequence[Compared], ms: Sequence[int], ns: Sequence[int]) -> Any:
    """One panel; a measured cell has an edge, even at 1.0, and what was not measured is a dot without a colour."""
    ratios = np.full((len(ms), len(ns)), np.nan)
    for shape in shapes:
        ratios[ms.index(shape.problem.m), ns.index(shape.problem.n)] = shape.ratio
    image = axes.imshow(np.log(ratios), cmap=_DIVERGING, norm=Normalize(-_LIMIT, _LIMIT), aspect="equal")
    missing = np.argwhere(np.isnan(ratios))
    axes.scatter(missing[:, 1], missing[:, 0], s=1.5, color=MUTED, linewidths=0, label="not measured")
    for row, column in np.argwhere(~np.isnan(ratios)):
        ratio = ratios[row, column]
        ink = INK if abs(math.log(ratio)) < 0.6 * _LIMIT else "white"
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=INK, linewidth=0.4))
        axes.text(column, row, _percent(ratio), ha="center", va="center", fontsize=6.5, color=ink)
    axes.set_xticks(range(len(ns)), [size(n) for n in ns], rotation=90, fontsize=6.5)
    axes.set_yticks(range(len(ms)), [size(m) for m in ms], fontsize=6.5)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(MUTED)
    return image


def _crosses(axes: Axes, unserved: Sequence[Problem], ms: Sequence[int], ns: Sequence[int]) -> None:
    if unserved:
        columns, rows = [ns.index(problem.n) for problem in unserved], [ms.index(problem.m) for problem in unserved]
        axes.scatter(columns, rows, s=28, marker="x", color=LOSS, linewidths=1.2, label="unserved")


def _percent(ratio: float) -> str:
    """Short enough for a cell: no plus."""
    return str(round(100 * ratio - 100))
