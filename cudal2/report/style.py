"""The look that all pictures share: colours by meaning, and matplotlib's settings."""

from __future__ import annotations

from typing import Any

OURS, LOSS, TIE, MUTED, INK = "#1b6ca8", "#c0392b", "#8a8f98", "#c9ccd1", "#30343b"

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
