"""A figure to draw on, its two file formats, and how numbers read along an axis."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from cudal2.errors import UsageError
from cudal2.report.style import STYLE


def new_figure(title: str, width: float, height: float) -> Figure:
    """An empty figure, sizes in inches, laid out so that nothing is cut off."""
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.05))
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def svg(figure: Figure) -> bytes:
    """The figure as SVG; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return buffer.getvalue()


def save_figure(figure: Figure, path: Path, caption: str) -> Path:
    """Writes the figure as PNG or SVG, by the name of the file, with its caption as the description inside.

    Raises:
        UsageError: The name ends in something else.
    """
    if path.suffix not in (".png", ".svg"):
        raise UsageError(f"{path}: a plot is a .png or a .svg file")
    path.parent.mkdir(parents=True, exist_ok=True)
    untimed = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    with mpl.rc_context(STYLE):
        figure.savefig(path, dpi=150, metadata={**untimed, "Description": caption})
    return path


def log_ticks(axis: Axis, values: Sequence[float], text: Callable[[float, object], str]) -> None:
    """Labels a logarithmic axis at every power of ten, and at 2 and 5 as well where the values span less than two."""
    narrow = bool(values) and math.log10(max(values) / min(values)) < 2.0
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,)))
    axis.set_major_formatter(FuncFormatter(text))
    axis.set_minor_formatter(NullFormatter())


def microseconds(value: float, _: object = None) -> str:
    """2000 as ``2 ms``."""
    return f"{value / 1000:g} ms" if value >= 1000 else f"{value:g} us"


def plain(value: float, _: object = None) -> str:
    """1000 rather than a power of ten."""
    return f"{value:g}"


def share(value: float, _: object = None) -> str:
    """0.5 as ``50%``."""
    return f"{value:.0%}"


def operations(value: float, _: object = None) -> str:
    """2e9 as ``2 GFLOP``."""
    for unit, scale in (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)):
        if value >= scale:
            return f"{value / scale:g} {unit}"
    return f"{value:g} FLOP"


def size(value: int) -> str:
    """4096 as ``4k``: a heat map has ten of them on each side."""
    return f"{value // 1024}k" if value >= 1024 and value % 1024 == 0 else str(value)
