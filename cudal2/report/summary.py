"""What the finals say, as plain values: speed-ups over each baseline by class of floor, with what a mean would hide.

Only finals count: rows of one interleaved, shuffled comparison.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cudal2.errors import RecordError
from cudal2.paths import data_dir
from cudal2.records.measurement import Measurement
from cudal2.records.shards import Shards, read_shards
from cudal2.report.board import Standing, boards
from cudal2.report.spread import Judged
from cudal2.table import Device

#: Shapes that are called the worst.
WORST = 10
_NO_SHAPE = {"n": 0, "geomean": None, "win": None}


def shipped_finals() -> Path:
    """Directory of the measured finals that ship with the package."""
    return data_dir() / "finals"


def load_finals(path: Path | None = None) -> Shards:
    """Reads finals from a directory of shards; the shipped ones by default.

    Sessions of several drivers or kernel versions may stand side by side, since every ratio is taken inside one
    session; those of several GPUs or protocols may not, since no mean over them means anything.

    Raises:
        RecordError: There are none, one cannot be read, or they are of several GPUs or protocols.
    """
    path = path or shipped_finals()
    shards = read_shards(path, allow_mixed=True)
    kinds = sorted({f"{Device.from_fingerprint(one).name} by protocol {one.protocol}" for one in shards.fingerprints})
    if len(kinds) > 1:
        raise RecordError(f"{path}: finals on {' and '.join(kinds)}: put each in a folder of its own, for --finals")
    return shards


def summarise(records: Iterable[Measurement]) -> dict[str, dict[str, dict[str, Any]]]:
    """The report: ``mode/acc/pdl`` -> baseline -> :meth:`Spread.to_dict`, ``entered``, ``by_class`` and ``worst``.

    ``by_class`` holds the same figures for every class of floor, and ``{n, geomean, win}`` with ``null`` where no shape
    falls into it; ``worst`` the ten lowest ratios by name.
    """
    return {
        board.key: {standing.baseline: _entry(standing) for standing in board.standings}
        for board in boards(records)
        if board.standings
    }


def _entry(standing: Standing) -> dict[str, Any]:
    by_class = {name: found.to_dict() if found else dict(_NO_SHAPE) for name, found in standing.by_class.items()}
    worst = [_shape(shape) for shape in standing.shapes[:WORST]]
    return {**standing.overall.to_dict(), "entered": standing.entered, "by_class": by_class, "worst": worst}


def _shape(shape: Judged) -> dict[str, Any]:
    found = shape.comparison
    return {
        "mnk": shape.problem.mnk,
        "ratio": found.ratio,
        "low": found.low,
        "high": found.high,
        "verdict": found.verdict,
        "ours_us": shape.ours.median_us,
        "theirs_us": shape.other.median_us,
    }
