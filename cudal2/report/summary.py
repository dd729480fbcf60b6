"""What the finals say, as plain values: speed-ups over each baseline by class of floor, with what a mean would hide.

Only finals count: rows of one interleaved, shuffled comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cudal2.errors import RecordError
from cudal2.paths import data_dir
from cudal2.records.fingerprint import Fingerprint
from cudal2.records.measurement import Measurement
from cudal2.records.shards import Shards, read_shards
from cudal2.report.board import Standing, boards
from cudal2.report.serving import Served, ServerBoard, figures
from cudal2.report.spread import Compared
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
    check_one_kind(shards.fingerprints, f"{path}: finals")
    return shards


def check_one_kind(fingerprints: Sequence[Fingerprint], what: str) -> None:
    """Refuses records of several GPUs or protocols in one report.

    Raises:
        RecordError: They are.
    """
    kinds = sorted({f"{Device.from_fingerprint(one).name} by protocol {one.protocol}" for one in fingerprints})
    if len(kinds) > 1:
        raise RecordError(f"{what} on {' and '.join(kinds)}: put each in a folder of its own, for a report of its own")


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


def _entry(standing: Standing[Any]) -> dict[str, Any]:
    by_class = {name: found.to_dict() if found else dict(_NO_SHAPE) for name, found in standing.by_class.items()}
    worst = [_shape(shape) for shape in standing.shapes[:WORST]]
    return {**standing.overall.to_dict(), "entered": standing.entered, "by_class": by_class, "worst": worst}


def _shape(shape: Compared) -> dict[str, Any]:
    found = shape.comparison
    return {
        "mnk": shape.problem.mnk,
        "ratio": found.ratio,
        "low": found.low,
        "high": found.high,
        "verdict": found.verdict,
        "ours_us": shape.ours_us,
        "theirs_us": shape.other_us,
    }


def summarise_servings(found: Iterable[ServerBoard]) -> dict[str, dict[str, dict[str, Any]]]:
    """``server/acc/state@qps`` -> baseline -> the same figures of the median latency, and ``p50`` to ``device`` apart.

    The fractions of the floor are left out: a floor bounds device time.
    """
    return {
        board.key: {standing.baseline: _server_entry(standing) for standing in board.standings}
        for board in found
        if board.standings
    }


def _server_entry(standing: Standing[Served]) -> dict[str, Any]:
    entry = _entry(standing)
    for figures_over_shapes in (entry, *entry["by_class"].values()):
        figures_over_shapes.pop("floor_fraction", None)
    return {**entry, **{name: asdict(one) for name, one in figures(standing.shapes).items()}}
