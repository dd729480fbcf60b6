"""What all pictures share: colours by meaning that survive colour blindness, matplotlib's settings, axes and files."""

from __future__ import annotations

from typing import Any

OURS, LOSS, TIE, MUTED, INK = "#1b6ca8", "#c0392b", "#8a8f98", "#c9ccd1", "#30343b"
#: Of the other baselines: the palette of Okabe and Ito without its blues. Each has a dash of its own as well, and their
#: numbers have no common divisor, so that the seventh differs from the first.
OTHERS = ("#e69f00", "#009e73", "#d55e00", "#cc79a7", "#7a5c00", "#5b6068")
DASHES: tuple[Any, ...] = ((0, (6, 2)), (0, (2, 2)), (0, (6, 2, 1, 2)), (0, (1, 1)), (0, (4, 1)), (0, (3, 1, 1, 1)),
                           (0, (9, 2, 3, 2)))  # fmt: skip

STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#5b6068",
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    # The same input must give the same file: ids are hashed with this instead of a random number.
    "svg.hashsalt": "cudal2",
}
