"""Picture of one training run: what the search reached for how many measurements, and what each shape got."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cudal2.errors import RecordError
from cudal2.report.style import INK, MUTED, OURS, STYLE, TIE


def read_curve(run_dir: Path) -> list[dict[str, Any]]:
    """The learning curve of a run, one row per rollout.

    Raises:
        RecordError: The run has none, or it is damaged.
    """
    path = run_dir / "curve.json"
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RecordError(
            f"{path} is missing: {run_dir} is no training run, or it was stopped before its first rollout"
        ) from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not valid JSON: {error}") from error
    wanted = {"steps", "reward", "best_ratio"}
    if not isinstance(rows, list) or not all(isinstance(row, dict) and wanted <= set(row) for row in rows):
        raise RecordError(f"{path} is no learning curve: it was written by another version, or damaged")
    return rows


def save_run(curve: Sequence[Mapping[str, Any]], speedups: Mapping[str, float], path: Path) -> Path:
    """Draws the learning curve and the speed-up of each shape's winner over cuBLASLt-AutoTuning.

    Args:
        curve: Rows with ``steps``, ``reward`` and ``best_ratio``.
        speedups: Shape to search-time speed-up.
        path: The ``.png`` or ``.svg`` to write.

    Raises:
        RecordError: There is nothing to draw.
    """
    if not curve or not speedups:
        raise RecordError("nothing to draw: the run was stopped before anything passed")
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 0.9 + max(2.7, 0.16 * len(speedups))), layout="constrained")
        FigureCanvasAgg(figure)
        learning, shapes = figure.subplots(1, 2)
        _learning(learning, curve)
        _shapes(shapes, speedups)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def _learning(axes: Axes, curve: Sequence[Mapping[str, Any]]) -> None:
    rows = [row for row in curve if row["best_ratio"].get("all") is not None]
    steps = [row["steps"] for row in rows]
    axes.plot(steps, [row["best_ratio"]["all"] for row in rows], color=OURS, label="best so far")
    axes.plot(
        steps, [math.exp(row["reward"]) for row in rows], color=TIE, label="proposals, as the curriculum draws shapes"
    )
    axes.axhline(1.0, color=MUTED, linewidth=0.9, zorder=0)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("geomean speed-up (1 = cuBLASLt)")
    axes.set_title("search")
    axes.legend(frameon=False, fontsize=8)


def _shapes(axes: Axes, speedups: Mapping[str, float]) -> None:
    ordered = sorted(speedups.items(), key=lambda item: item[1])
    names, values = [name for name, _ in ordered], [value for _, value in ordered]
    axes.hlines(range(len(values)), 1.0, values, color=MUTED, linewidth=1.0, zorder=1)
    axes.scatter(values, range(len(values)), s=16, color=OURS, zorder=2)
    axes.axvline(1.0, color=INK, linewidth=0.9, zorder=0)
    axes.set_yticks(range(len(names)), names, fontsize=6)
    axes.set_xlabel("speed-up in the search (1 = equal)")
    axes.set_title("what the table serves; 1 exactly: the library")
