"""Server mode on the page of the finals: per state and rate every contestant's latency, then every shape's."""

from __future__ import annotations

from collections.abc import Sequence

from cudal2.floor import CLASS_NAMES
from cudal2.records.finals import REFERENCE
from cudal2.records.latency import EMPTY, Latency, Serving
from cudal2.report import markup
from cudal2.report.board import Standing, baseline_title, competitors
from cudal2.report.cells import SPREAD_HEAD, class_cell, failures_table, interval, kernel_name, spread_cells
from cudal2.report.clocks import pooled
from cudal2.report.markup import Cell, Picture, number, words
from cudal2.report.serving import FIGURES, Served, ServerBoard, clocks_while_served, figures, figures_of
from cudal2.report.summary import WORST

_FIGURE_HEAD = tuple(f"{name} us" for name in FIGURES)


def anchor(board: ServerBoard) -> str:
    """Id of its section."""
    return board.key.replace("/", "-").replace("@", "-at-")


def section(board: ServerBoard, pictures: Sequence[Picture] = ()) -> str:
    """One state at one rate."""
    name = anchor(board)
    parts = [markup.heading(board.title, name), markup.paragraph(_about(board)), _standings(board)]
    standing = board.standing()
    if standing is not None:
        worst = [_shape_row(shape) for shape in standing.shapes[:WORST]]
        title = f"Worst {len(worst)} against {baseline_title(REFERENCE)}, by p50"
        parts += [markup.heading(title, level=3), markup.table(_SHAPE_HEAD, worst, name=f"worst-{name}")]
    if pictures:
        drawn = "".join(markup.drawing(picture) for picture in pictures)
        parts += [markup.heading("Pictures", level=3), f'<div class="figures">{drawn}</div>']
    parts += [markup.heading("Every shape and contestant", level=3), _contestants(board), _failures(board)]
    return "\n".join(part for part in parts if part)


def _about(board: ServerBoard) -> str:
    """What holds for all of it."""
    clocks = pooled(clocks_while_served(serving) for serving in board.servings)
    parts = [
        f"{len(board.servings)} shapes. Latency is from just before the submission to the completion as the host sees "
        "it, one request at a time; device is one launch alone, between events. Each figure: their time over ours, "
        "below it geometric means of theirs / ours."
    ]
    if board.empty_us is not None:
        parts.append(f"A launch of nothing takes {board.empty_us:.1f} us (median over shapes of its p50).")
    if clocks.median_mhz is not None:
        parts.append(f"SM clock {clocks.median_mhz:.0f} MHz in the median block, held by: {clocks.held_by}.")
    if board.overloaded:
        parts.append(f"Requests waited for each other, since the rate is too high for: {', '.join(board.overloaded)}.")
    if board.unserved:
        parts.append(f"No kernel of ours served: {', '.join(board.unserved)}.")
    return " ".join(parts)


def _standings(board: ServerBoard) -> str:
    if not board.standings:
        return markup.paragraph("No kernel of ours served here.")
    rows = [
        [
            words(baseline_title(standing.baseline)),
            *spread_cells(standing.overall, standing.entered),
            *_figures(standing),
            *(class_cell(standing.by_class[name]) for name in CLASS_NAMES),
        ]
        for standing in board.standings
    ]
    head = ("against, by p50", *SPREAD_HEAD, *FIGURES, *CLASS_NAMES)
    return markup.table(head, rows, name=f"standings-{anchor(board)}")


def _figures(standing: Standing[Served]) -> list[Cell]:
    found = figures(standing.shapes)
    return [number(one.ratio, below=f"{one.other_us:.1f} / {one.ours_us:.1f} us") for one in found.values()]


_SHAPE_HEAD = ("shape", "contestant", *_FIGURE_HEAD, "p50 over ours", "95 %", "verdict", "p95 over ours",
               "p99 over ours", "device over ours")  # fmt: skip


def _shape_row(shape: Served) -> list[Cell]:
    """A baseline on one shape beside ours."""
    found, latencies = shape.comparison, shape.latencies
    return [
        words(shape.problem.mnk),
        words(shape.other.contestant),
        *_us(shape.other),
        number(found.ratio, style=found.verdict),
        words(interval(shape)),
        words(found.verdict, found.verdict),
        number(latencies.p95),
        number(latencies.p99),
        number(latencies.device.ratio, style=latencies.device.verdict),
    ]


def _us(row: Latency) -> list[Cell]:
    return [number(value, ".2f") for value in figures_of(row).values()]


def _contestants(board: ServerBoard) -> str:
    """Ours first on each shape, then the baselines, then the launch of nothing."""
    rows = [row for serving in board.servings for row in _of_serving(board, serving)]
    return markup.table(_SHAPE_HEAD, rows, sortable=True, name=f"shapes-{anchor(board)}")


def _of_serving(board: ServerBoard, serving: Serving) -> list[list[Cell]]:
    mnk, ours = serving.problem.mnk, serving.ours
    blank = [number(None)] * (len(_SHAPE_HEAD) - 2 - len(FIGURES))
    rows = []
    if ours is not None:
        rows.append([words(mnk), words(kernel_name(ours.config, ours.contestant), "code"), *_us(ours), *blank])
    judged = {standing.baseline: standing.by_problem.get(serving.problem) for standing in board.standings}
    entered = {row.contestant for row in serving.rows if row.config is None} - {EMPTY}
    for name in competitors(entered):
        shape, row = judged.get(name), serving.baseline(name)
        if shape is not None:
            rows.append(_shape_row(shape))
        elif row is not None:
            rows.append([words(mnk), words(row.contestant), *_us(row), *blank])
    if serving.empty is not None:
        rows.append([words(mnk), words("launch of nothing"), *_us(serving.empty), *blank])
    return rows


def _failures(board: ServerBoard) -> str:
    if not board.failures:
        return markup.paragraph("Every contestant served, and rightly.")
    return markup.heading("Without a latency", level=3) + failures_table(board.failures, f"failures-{anchor(board)}")
