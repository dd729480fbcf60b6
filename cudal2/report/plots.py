"""Pictures of the finals: speed-up against floor and FLOPs, its distribution, the grid as a heat map, the roofline."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter

from cudal2.floor import BURST, CLASSES, SUSTAINED, Ceilings
from cudal2.records.finals import REFERENCE
from cudal2.report.board import Board, Picture, Standing, baseline_title
from cudal2.report.style import INK, LOSS, MUTED, OURS, STYLE, TIE
from cudal2.report.summary import Judged

_COLOURS = {"win": OURS, "tie": TIE, "loss": LOSS}
#: A verdict is told by its marker as well, for those who cannot tell the colours apart.
_MARKERS = {"win": "o", "tie": "s", "loss": "v"}
_DASHES: Sequence[Any] = ((0, (6, 2)), (0, (2, 2)), (0, (6, 2, 1, 2)), (0, (1, 1)), (0, (9, 3)), (0, (3, 1, 1, 1)))
_DIVERGING = LinearSegmentedColormap.from_list("loss_to_win", [LOSS, "#f4f4f2", OURS])
#: The heat map is saturated from this ratio on, either way, so that a few percent still show.
_SATURATED = 1.3
_PANELS_PER_ROW = 5
#: From this many shapes on, markers are small.
_MANY = 200


def board_pictures(board: Board) -> list[Picture]:
    """Every picture of a leaderboard as SVG; none if no kernel of ours met the reference there."""
    return [Picture(name, _CAPTIONS[name], _svg(figure)) for name, figure in _figures(board)]


def save_board(board: Board, directory: Path) -> list[Path]:
    """Writes every picture of a leaderboard as ``mode-acc-pdl-name.png``; returns the files."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in _figures(board):
        path = directory / f"{board.key.replace('/', '-')}-{name}.png"
        figure.savefig(path, dpi=150, metadata={"Software": None})
        paths.append(path)
    return paths


def _figures(board: Board) -> Iterable[tuple[str, Figure]]:
    standing = board.standing()
    if standing is None:
        return
    title = f"{board.title}, against {baseline_title(REFERENCE)}"
    yield "heatmap", heatmap_figure(standing.shapes, title)
    yield "ecdf", ecdf_figure(board.standings, board.title)
    yield "floor", floor_figure(standing.shapes, title)
    yield "flops", flops_figure(standing.shapes, title)
    yield "roofline", roofline_figure(standing.shapes, board.title)


_OVER = f"Speed-up over {baseline_title(REFERENCE)}"
_CAPTIONS = {
    "heatmap": f"{_OVER}, one panel per K, M downwards, N to the right. Blue: ours is faster; red: slower. Numbers are "
    f"per cent; colours saturate at {_SATURATED:g}x either way. Dots were not measured.",
    "ecdf": "Share of shapes with at least this speed-up, against each baseline. What a curve has left of 1 is slower.",
    "floor": f"{_OVER} against the floor of the shape, the least time its sizes allow. Grey lines part the classes; "
    "bars are 95 % intervals over rounds.",
    "flops": f"{_OVER} against the work of the shape; bars are 95 % intervals over rounds.",
    "roofline": "Achieved rate against arithmetic intensity (FLOP per byte of A and B read once and C written once). "
    "Solid: sustained ceilings; dashed: burst ceilings. Far below the roof, launch and latency cost more than the "
    "arithmetic.",
}


def speedup_figure(shapes: Sequence[Judged], title: str) -> Figure:
    """Two panels: speed-up of each shape against its floor with 95 % intervals, and the share of shapes above it."""
    with mpl.rc_context(STYLE):
        figure = _figure(title, 9.0, 3.6)
        scatter, ecdf = figure.subplots(1, 2, width_ratios=(3, 2))
        _scatter(scatter, shapes)
        _legend_above(scatter, shapes)
        scatter.set_title("by shape; bars: 95 % interval over rounds", pad=18.0)
        _ecdf(ecdf, shapes)
        ecdf.set_title("share of shapes at least this fast", pad=18.0)
    return figure


def save_speedups(shapes: Sequence[Judged], title: str, path: Path) -> Path:
    """Writes :func:`speedup_figure` as PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    speedup_figure(shapes, title).savefig(path, dpi=150)
    return path


def ecdf_figure(standings: Sequence[Standing], title: str) -> Figure:
    """Share of shapes at least this fast, one curve per baseline, the reference in front."""
    with mpl.rc_context(STYLE):
        figure = _figure(title, 7.0, 4.2)
        axes = figure.subplots()
        axes.axvline(1.0, color=INK, linewidth=0.9)
        others = iter(_DASHES)
        for standing in standings:
            reference = standing.baseline == REFERENCE
            look: dict[str, Any] = {"color": OURS, "linewidth": 2.0, "zorder": 3}
            if not reference:
                look = {"color": "#5b6068", "linewidth": 1.0, "linestyle": next(others)}
            found = standing.overall
            label = f"{baseline_title(standing.baseline)} ({found.faster:.0%} above 1, n = {found.n})"
            _descend(axes, [shape.ratio for shape in standing.shapes], label=label, **look)
        axes.set_xlabel("speed-up (1 = equal)")
        axes.set_ylabel("share of shapes at least this fast")
        if standings:
            axes.legend(frameon=False, fontsize=8, title="against", title_fontsize=8, alignment="left")
    return figure


def floor_figure(shapes: Sequence[Judged], title: str) -> Figure:
    """Speed-up of each shape against its lower bound."""
    with mpl.rc_context(STYLE):
        figure = _figure(title, 7.0, 4.2)
        axes = figure.subplots()
        _scatter(axes, shapes)
        _legend_above(axes, shapes)
    return figure


def flops_figure(shapes: Sequence[Judged], title: str) -> Figure:
    """Speed-up of each shape against its floating-point operations."""
    with mpl.rc_context(STYLE):
        figure = _figure(title, 7.0, 4.2)
        axes = figure.subplots()
        _verdicts(axes, shapes, [shape.problem.flops for shape in shapes])
        _legend_above(axes, shapes)
        axes.xaxis.set_major_formatter(FuncFormatter(_operations))
        axes.set_xlabel("work of the shape, 2 M N K")
    return figure


def roofline_figure(shapes: Sequence[Judged], title: str) -> Figure:
    """Achieved TFLOP/s of ours and of the reference against arithmetic intensity, under two sets of ceilings."""
    with mpl.rc_context(STYLE):
        figure = _figure(title, 7.0, 4.2)
        axes = figure.subplots()
        intensity = np.array([shape.problem.flops / shape.problem.bytes_min for shape in shapes])
        ours, other = (
            np.array([shape.problem.flops / row.median_us / 1e6 for shape, row in rows])
            for rows in ([(shape, shape.ours) for shape in shapes], [(shape, shape.other) for shape in shapes])
        )
        ends = (intensity.min() / 1.5, intensity.max() * 1.5) if shapes else (10.0, 5_000.0)
        _roof(axes, SUSTAINED, ends, "sustained", "-")
        _roof(axes, BURST, ends, "burst", (0, (5, 3)))
        axes.vlines(intensity, ours, other, color=MUTED, linewidth=1.0, zorder=1)
        size = 20 if len(shapes) < _MANY else 6
        hollow: dict[str, Any] = {"facecolors": "white", "edgecolors": INK, "linewidths": 0.9}
        axes.scatter(intensity, other, s=size + 2, zorder=2, label=baseline_title(REFERENCE), **hollow)
        axes.scatter(intensity, ours, s=size, color=OURS, zorder=3, label="ours")
        axes.set(xscale="log", yscale="log", xlim=ends)
        axes.xaxis.set_major_formatter(FuncFormatter(_plain))
        axes.yaxis.set_major_formatter(FuncFormatter(_plain))
        axes.set_xlabel("arithmetic intensity, FLOP per byte of device memory")
        axes.set_ylabel("achieved TFLOP/s")
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def heatmap_figure(shapes: Sequence[Judged], title: str) -> Figure:
    """Speed-up over M x N, one panel per K; the numbers are percent."""
    ms, ns, ks = (sorted({getattr(shape.problem, name) for shape in shapes}) for name in "mnk")
    columns = min(_PANELS_PER_ROW, max(1, len(ks)))
    rows = math.ceil(len(ks) / columns) or 1
    with mpl.rc_context(STYLE):
        figure = _figure(f"{title}; cells: percent faster", 1.0 + 2.1 * columns, 0.8 + 2.1 * rows)
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
        image = None
        for panel, k in zip(panels, ks, strict=False):
            image = _heat(panel, [shape for shape in shapes if shape.problem.k == k], ms, ns)
            panel.set_title(f"K = {k}", fontsize=9)
        for panel in panels[len(ks) :]:
            panel.set_axis_off()
        if image is not None:
            bar = figure.colorbar(image, ax=panels.tolist(), shrink=0.6, aspect=30, extend="both")
            bar.ax.yaxis.set_major_locator(FixedLocator([math.log(tick) for tick in (1 / 1.3, 0.9, 1.0, 1.1, 1.3)]))
            bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{math.exp(value):.2f}"))
            bar.ax.yaxis.set_minor_formatter(NullFormatter())
            bar.set_label("speed-up (1 = equal)")
            bar.outline.set_visible(False)
        for at, panel in enumerate(panels[: len(ks)]):
            panel.set_xlabel("N" if at // columns == rows - 1 else "")
            panel.set_ylabel("M" if at % columns == 0 else "")
    return figure


def _heat(axes: Axes, shapes: Sequence[Judged], ms: Sequence[int], ns: Sequence[int]) -> Any:
    """One panel; what was not measured is a dot, not a colour."""
    ratios = np.full((len(ms), len(ns)), np.nan)
    for shape in shapes:
        ratios[ms.index(shape.problem.m), ns.index(shape.problem.n)] = shape.ratio
    limit = math.log(_SATURATED)
    image = axes.imshow(np.log(ratios), cmap=_DIVERGING, norm=Normalize(-limit, limit), aspect="equal")
    missing = np.argwhere(np.isnan(ratios))
    axes.scatter(missing[:, 1], missing[:, 0], s=1.5, color=MUTED, linewidths=0)
    for row, column in np.argwhere(~np.isnan(ratios)):
        ratio = ratios[row, column]
        pale = abs(math.log(ratio)) < 0.6 * limit
        axes.text(column, row, _percent(ratio), ha="center", va="center", fontsize=6, color=INK if pale else "white")
    axes.set_xticks(range(len(ns)), [_size(n) for n in ns], rotation=90, fontsize=6.5)
    axes.set_yticks(range(len(ms)), [_size(m) for m in ms], fontsize=6.5)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(MUTED)
    return image


def _roof(axes: Axes, ceilings: Ceilings, ends: tuple[float, float], name: str, style: Any) -> None:
    ridge = ceilings.tensor_flops / ceilings.hbm_bytes
    points = np.array(sorted({ends[0], min(max(ridge, ends[0]), ends[1]), ends[1]}))
    rates = np.minimum(points * ceilings.hbm_bytes, ceilings.tensor_flops) / 1e12
    label = f"{name}: {ceilings.tensor_flops / 1e12:.0f} TFLOP/s, {ceilings.hbm_bytes / 1e12:.1f} TB/s"
    axes.plot(points, rates, color=INK, linewidth=1.0, linestyle=style, zorder=0, label=label)


def _figure(title: str, width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.05))
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def _svg(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return buffer.getvalue()


def _scatter(axes: Axes, shapes: Sequence[Judged]) -> None:
    for edge, _ in CLASSES[:-1]:
        axes.axvline(edge, color=MUTED, linewidth=0.6, zorder=0)
    _verdicts(axes, shapes, [shape.floor_us for shape in shapes])
    axes.xaxis.set_major_formatter(FuncFormatter(_microseconds))
    axes.set_xlabel("floor of the shape")


def _verdicts(axes: Axes, shapes: Sequence[Judged], x: Sequence[float]) -> None:
    """Every ratio with its interval over a logarithmic axis, marked by verdict."""
    axes.axhline(1.0, color=INK, linewidth=0.9, zorder=1)
    size = 4 if len(shapes) < _MANY else 2.5
    for verdict, colour in _COLOURS.items():
        chosen = [index for index, shape in enumerate(shapes) if shape.comparison.verdict == verdict]
        if not chosen:
            continue
        found = [shapes[index].comparison for index in chosen]
        ratios = np.array([comparison.ratio for comparison in found])
        ends = np.array([(comparison.low, comparison.high) for comparison in found]).T
        axes.errorbar(
            [x[index] for index in chosen], ratios, yerr=np.abs(ends - ratios), fmt=_MARKERS[verdict], markersize=size,
            elinewidth=0.8, color=colour, label=f"{verdict} ({len(found)})",
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_ylabel("speed-up (1 = equal)")


def _legend_above(axes: Axes, shapes: Sequence[Judged]) -> None:
    """Out of the way: intervals reach into every corner."""
    if shapes:
        axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, borderaxespad=0.0)


def _ecdf(axes: Axes, shapes: Sequence[Judged]) -> None:
    ratios = [shape.ratio for shape in shapes]
    axes.axvline(1.0, color=INK, linewidth=0.9)
    if ratios:
        _descend(axes, ratios, color=OURS)
        won = float(np.mean(np.array(ratios) > 1.0))
        axes.annotate(
            f"{won:.0%} above 1", (1.0, won), xytext=(6, 2), textcoords="offset points", fontsize=8, color=INK
        )
    axes.set_xlabel("speed-up")


def _descend(axes: Axes, ratios: Sequence[float], **look: Any) -> None:
    """Share of the ratios that are at least x."""
    ordered = np.sort(ratios)
    axes.step([*ordered, ordered[-1]], [*(1.0 - np.arange(ordered.size) / ordered.size), 0.0], where="pre", **look)
    axes.set_ylim(0.0, 1.03)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10]))


def _microseconds(value: float, _: object = None) -> str:
    return f"{value / 1000:g} ms" if value >= 1000 else f"{value:g} us"


def _plain(value: float, _: object = None) -> str:
    return f"{value:g}"


def _operations(value: float, _: object = None) -> str:
    for unit, scale in (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)):
        if value >= scale:
            return f"{value / scale:g} {unit}"
    return f"{value:g} FLOP"


def _percent(ratio: float) -> str:
    rounded = round(100 * ratio - 100)
    return f"{rounded:+d}" if rounded else "0"


def _size(value: int) -> str:
    """4096 as 4k: a heat map has ten of them on each side."""
    return f"{value // 1024}k" if value >= 1024 and value % 1024 == 0 else str(value)
