"""Pictures of the finals: speed-up against floor and FLOPs, its distribution, absolute rates, the roofline."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from cudal2.floor import BURST, CLASSES, SUSTAINED, Ceilings
from cudal2.problem import Problem
from cudal2.records.finals import REFERENCE
from cudal2.records.measurement import Measurement
from cudal2.report.board import Board, Standing, baseline_title
from cudal2.report.canvas import log_ticks, microseconds, new_figure, operations, plain, save_figure, share, svg
from cudal2.report.heatmap import SATURATED, heatmap_figure
from cudal2.report.markup import Picture
from cudal2.report.serving import ServerBoard
from cudal2.report.spread import Compared, Judged, floor_of
from cudal2.report.style import DASHES, INK, LOSS, MUTED, OTHERS, OURS, STYLE, TIE

_COLOURS = {"win": OURS, "tie": TIE, "loss": LOSS}
#: A verdict is told by its marker as well, for those who cannot tell the colours apart.
_MARKERS = {"win": "o", "tie": "s", "loss": "v"}
#: From this many shapes on, markers are small.
_MANY = 200
_HOLLOW: dict[str, Any] = {"facecolors": "white", "edgecolors": INK, "linewidths": 0.9}


def board_pictures(board: Board) -> list[Picture]:
    """Every picture of a leaderboard as SVG; none if no kernel of ours met the reference there."""
    return [Picture(name, _CAPTIONS[name], svg(figure), name == "heatmap") for name, figure in board_figures(board)]


def server_pictures(board: ServerBoard) -> list[Picture]:
    """The distribution of a server leaderboard as SVG; none if nobody was met there."""
    return [Picture("ecdf", _CAPTIONS["ecdf"], svg(figure)) for figure in _server_figures(board)]


def save_server_board(board: ServerBoard, directory: Path) -> list[Path]:
    """Writes the distribution as ``server-acc-state-at-qps-ecdf.png``; returns the files."""
    path = directory / f"{board.key.replace('/', '-').replace('@', '-at-')}-ecdf.png"
    caption = f"{board.title}. {_CAPTIONS['ecdf']}"
    return [save_figure(figure, path, caption) for figure in _server_figures(board)]


def _server_figures(board: ServerBoard) -> list[Figure]:
    return [ecdf_figure(board.standings, f"{board.title}, p50")] if board.standings else []


def save_board(board: Board, directory: Path) -> list[Path]:
    """Writes every picture of a leaderboard as ``mode-acc-pdl-name.png``; returns the files."""
    stem = board.key.replace("/", "-")
    return [
        save_figure(figure, directory / f"{stem}-{name}.png", f"{board.title}. {_CAPTIONS[name]}")
        for name, figure in board_figures(board)
    ]


def board_figures(board: Board) -> Iterable[tuple[str, Figure]]:
    """Every picture of a leaderboard with its short name; none if no kernel of ours met the reference there."""
    standing = board.standing()
    if standing is None:
        return
    title = f"{board.title}, against {baseline_title(REFERENCE)}"
    unserved = [final.problem for final in board.finals if final.ours is None]
    yield "heatmap", heatmap_figure(standing.shapes, title, unserved)
    yield "ecdf", ecdf_figure(board.standings, board.title)
    yield "floor", floor_figure(standing.shapes, title, unserved)
    yield "flops", flops_figure(standing.shapes, title, unserved)
    yield "roofline", roofline_figure(standing.shapes, board.title)


_OVER = f"Speed-up over {baseline_title(REFERENCE)}"
_CAPTIONS = {
    "heatmap": f"{_OVER}, one panel per K, M downwards, N to the right. Blue: ours is faster; red: slower. Numbers are "
    f"per cent; colours saturate at {SATURATED:g}x either way. Dots were not measured; a cross: no kernel of ours ran.",
    "ecdf": "Share of shapes with at most this speed-up, against each baseline. Where a curve meets the line at 1 is "
    "the share of shapes on which ours is not faster; a shape that none of ours solved lifts it from its left end on.",
    "floor": f"{_OVER} against the floor of the shape, the least time its sizes allow. Grey lines part the classes; "
    "bars are 95 % intervals, crosses shapes that none of ours solved.",
    "flops": "Above: what both achieve, dashed the sustained rate of the tensor cores. Below, on the same shapes: "
    f"{_OVER[0].lower()}{_OVER[1:]}; bars are 95 % intervals, crosses shapes that none of ours solved.",
    "roofline": "Achieved rate against arithmetic intensity (FLOP per byte of A and B read once and C written once). "
    "Solid: sustained ceilings; dashed: burst ceilings. Far below the roof, launch and latency cost more than the "
    "arithmetic.",
}


def speedup_figure(shapes: Sequence[Judged], title: str) -> Figure:
    """Two panels: speed-up of each shape against its floor with 95 % intervals, and the share of shapes below it."""
    with mpl.rc_context(STYLE):
        figure = new_figure(title, 9.0, 3.6)
        scatter, ecdf = figure.subplots(1, 2, width_ratios=(3, 2))
        _against_floor(scatter, shapes)
        scatter.set_title("by shape; bars: 95 % interval", pad=18.0)
        _one_ecdf(ecdf, [shape.ratio for shape in shapes])
        ecdf.set_title("share of shapes at most this fast", pad=18.0)
    return figure


def save_speedups(shapes: Sequence[Judged], title: str, path: Path) -> Path:
    """Writes :func:`speedup_figure` as PNG or SVG."""
    return save_figure(speedup_figure(shapes, title), path, f"{title}: {_CAPTIONS['floor']}")


def ecdf_figure(standings: Sequence[Standing[Any]], title: str) -> Figure:
    """Share of shapes at most this fast, one curve per baseline, the reference in front."""
    with mpl.rc_context(STYLE):
        figure = new_figure(title, 7.0, 4.0 + 0.17 * math.ceil(len(standings) / 2))
        axes = figure.subplots()
        others = [standing.baseline for standing in standings if standing.baseline != REFERENCE]
        for standing in standings:
            look: dict[str, Any] = {"color": OURS, "linewidth": 2.0, "zorder": 3}
            if standing.baseline != REFERENCE:
                at = others.index(standing.baseline)
                look = {"color": OTHERS[at % len(OTHERS)], "linewidth": 1.2, "linestyle": DASHES[at % len(DASHES)]}
            found = standing.overall
            label = f"{baseline_title(standing.baseline)} ({1.0 - found.faster:.0%} not faster, n = {found.n})"
            # An unserved shape is slower than any ratio: it lifts the curve from its left end on.
            axes.ecdf([*[0.0] * found.unserved, *(shape.ratio for shape in standing.shapes)], label=label, **look)
        _share_axes(axes, [shape.ratio for standing in standings for shape in standing.shapes])
        axes.set_ylabel("share of shapes at most this fast")
        if standings:
            figure.legend(frameon=False, fontsize=8, loc="outside lower left", ncols=2)
    return figure


def floor_figure(shapes: Sequence[Compared], title: str, unserved: Sequence[Problem] = ()) -> Figure:
    """Speed-up of each shape against its lower bound."""
    with mpl.rc_context(STYLE):
        figure = new_figure(title, 7.0, 4.2)
        _against_floor(figure.subplots(), shapes, unserved)
    return figure


def flops_figure(shapes: Sequence[Judged], title: str, unserved: Sequence[Problem] = ()) -> Figure:
    """Absolute rates of both sides over the work of the shape, and the speed-up of each shape below them."""
    with mpl.rc_context(STYLE):
        figure = new_figure(title, 7.0, 5.6)
        rates, ratios = figure.subplots(2, 1, sharex=True, height_ratios=(2, 3))
        work = [shape.problem.flops for shape in shapes]
        _rates(rates, shapes, np.array(work, dtype=float))
        top = SUSTAINED.tensor_flops / 1e12
        label = f"sustained ceiling, {top:.0f} TFLOP/s"
        rates.axhline(top, color=INK, linewidth=0.8, linestyle=(0, (5, 3)), zorder=0, label=label)
        rates.set_yscale("log")
        log_ticks(rates.yaxis, rates.get_ylim(), plain)
        rates.legend(frameon=False, fontsize=8, loc="lower right")
        _verdicts(ratios, shapes, work)
        _crosses(ratios, [problem.flops for problem in unserved])
        _legend_above(ratios)
        log_ticks(ratios.xaxis, work, operations)
        ratios.set_xlabel("work of the shape, 2 M N K")
    return figure


def roofline_figure(shapes: Sequence[Judged], title: str) -> Figure:
    """Achieved TFLOP/s of ours and of the reference against arithmetic intensity, under two sets of ceilings."""
    with mpl.rc_context(STYLE):
        figure = new_figure(title, 7.0, 4.2)
        axes = figure.subplots()
        intensity = np.array([shape.problem.flops / shape.problem.bytes_min for shape in shapes])
        ends = (intensity.min() / 1.5, intensity.max() * 1.5) if shapes else (10.0, 5_000.0)
        _roof(axes, SUSTAINED, ends, "sustained", "-")
        _roof(axes, BURST, ends, "burst", (0, (5, 3)))
        _rates(axes, shapes, intensity)
        axes.set(xscale="log", yscale="log", xlim=ends)
        log_ticks(axes.xaxis, ends, plain)
        log_ticks(axes.yaxis, axes.get_ylim(), plain)
        axes.set_xlabel("arithmetic intensity, FLOP per byte of device memory")
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def _rates(axes: Axes, shapes: Sequence[Judged], x: np.ndarray[Any, Any]) -> None:
    """Achieved rate of both sides, a line from one to the other."""
    ours = np.array([_tflops(shape, shape.ours) for shape in shapes])
    other = np.array([_tflops(shape, shape.other) for shape in shapes])
    size = 20 if len(shapes) < _MANY else 6
    axes.vlines(x, ours, other, color=MUTED, linewidth=1.0, zorder=1)
    axes.scatter(x, other, s=size + 2, zorder=2, label=baseline_title(REFERENCE), **_HOLLOW)
    axes.scatter(x, ours, s=size, color=OURS, zorder=3, label="ours")
    axes.set_ylabel("achieved TFLOP/s")


def _tflops(shape: Judged, row: Measurement) -> float:
    return shape.problem.flops / row.median_us / 1e6


def _roof(axes: Axes, ceilings: Ceilings, ends: tuple[float, float], name: str, style: Any) -> None:
    ridge = ceilings.tensor_flops / ceilings.hbm_bytes
    points = np.array(sorted({ends[0], min(max(ridge, ends[0]), ends[1]), ends[1]}))
    rates = np.minimum(points * ceilings.hbm_bytes, ceilings.tensor_flops) / 1e12
    label = f"{name}: {ceilings.tensor_flops / 1e12:.0f} TFLOP/s, {ceilings.hbm_bytes / 1e12:.1f} TB/s"
    axes.plot(points, rates, color=INK, linewidth=1.0, linestyle=style, zorder=0, label=label)


def _against_floor(axes: Axes, shapes: Sequence[Compared], unserved: Sequence[Problem] = ()) -> None:
    for edge, _ in CLASSES[:-1]:
        axes.axvline(edge, color=MUTED, linewidth=0.6, zorder=0)
    _verdicts(axes, shapes, [shape.floor_us for shape in shapes])
    _crosses(axes, [floor_of(problem) for problem in unserved])
    _legend_above(axes)
    log_ticks(axes.xaxis, axes.get_xlim(), microseconds)
    axes.set_xlabel("floor of the shape")


def _verdicts(axes: Axes, shapes: Sequence[Compared], x: Sequence[float]) -> None:
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


def _crosses(axes: Axes, x: Sequence[float]) -> None:
    """Shapes without a ratio, along the lower edge."""
    if x:
        edge = axes.get_xaxis_transform()
        axes.plot(x, [0.03] * len(x), "x", color=LOSS, clip_on=False, transform=edge, label=f"unserved ({len(x)})")


def _legend_above(axes: Axes) -> None:
    """Out of the way: intervals reach into every corner."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=4, borderaxespad=0.0)


def _one_ecdf(axes: Axes, ratios: Sequence[float]) -> None:
    if ratios:
        axes.ecdf(ratios, color=OURS)
        below = float(np.mean(np.array(ratios) <= 1.0))
        text = f"{below:.0%} not faster"
        axes.annotate(text, (1.0, below), xytext=(6, -10), textcoords="offset points", fontsize=8, color=INK)
    _share_axes(axes, ratios)


def _share_axes(axes: Axes, ratios: Sequence[float]) -> None:
    axes.axvline(1.0, color=INK, linewidth=0.9)
    low, high = min([*ratios, 1.0]), max([*ratios, 1.0])
    margin = 0.04 * (high - low) or 0.1
    axes.set_xlim(low - margin, high + margin)
    axes.set_ylim(0.0, 1.03)
    axes.set_xlabel("speed-up (1 = equal)")
    axes.yaxis.set_major_formatter(FuncFormatter(share))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10]))
