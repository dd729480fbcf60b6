"""What the finals say, as numbers: speed-ups over each baseline by class of floor, and the losses in full.

Only finals count: rows of one interleaved, shuffled comparison. A ratio is the median over rounds of baseline time over
our time in the same round. A shape none of our kernels solved is no win; it is listed as unserved.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudal2.errors import RecordError
from cudal2.floor import CLASS_NAMES, class_of, floor_us
from cudal2.paths import data_dir
from cudal2.problem import Problem
from cudal2.records.finals import BASELINES, REFERENCE, Comparison, Final, latest_finals
from cudal2.records.measurement import Measurement
from cudal2.records.shards import Shards, read_shards
from cudal2.table import Device

Floors = Callable[[int, int, int], float]


@dataclass(frozen=True)
class Judged:
    """One shape on one leaderboard against one baseline.

    Attributes:
        problem: What was computed.
        floor_us: Its lower bound.
        comparison: Ours against the baseline.
        ours: Our fastest configuration.
        other: The baseline, in its better layout.
    """

    problem: Problem
    floor_us: float
    comparison: Comparison
    ours: Measurement
    other: Measurement

    @property
    def ratio(self) -> float:
        """Speed-up over the baseline."""
        return self.comparison.ratio

    @property
    def floor_class(self) -> str:
        """Class by floor."""
        return class_of(self.floor_us)


@dataclass(frozen=True)
class Detail:
    """What a mean would hide, on one leaderboard against one baseline.

    Attributes:
        shapes: Every judged shape, slowest of ours first.
        unserved: Shapes none of our kernels solved, with the reasons.
    """

    shapes: tuple[Judged, ...]
    unserved: tuple[tuple[str, str], ...]

    @property
    def worst(self) -> tuple[Judged, ...]:
        """The ten lowest ratios."""
        return self.shapes[:10]

    def verdicts(self) -> dict[str, int]:
        """Wins, ties and losses; a tie is a 95 % interval that holds 1."""
        counts = {"win": 0, "tie": 0, "loss": 0}
        for shape in self.shapes:
            counts[shape.comparison.verdict] += 1
        return counts


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


def geomean(ratios: Iterable[float]) -> float | None:
    """Geometric mean; ``None`` of nothing."""
    known = list(ratios)
    return statistics.geometric_mean(known) if known else None


def judge_shapes(records: Iterable[Measurement], floors: Floors = floor_us) -> dict[str, dict[str, tuple[Judged, ...]]]:
    """Leaderboard -> baseline -> its judged shapes, lowest ratio first; baselines without a row are left out."""
    judged: dict[str, dict[str, list[Judged]]] = defaultdict(lambda: defaultdict(list))
    for (key, _), final in latest_finals(records).items():
        for name in BASELINES:
            shape = _judged(final, name, floors)
            if shape is not None:
                judged[key][name].append(shape)
    return {
        key: {
            name: tuple(sorted(by_name[name], key=lambda shape: shape.ratio)) for name in BASELINES if name in by_name
        }
        for key, by_name in sorted(judged.items())
    }


def _judged(final: Final, name: str, floors: Floors) -> Judged | None:
    comparison, ours, other = final.against(name), final.ours, final.baseline(name)
    if comparison is None or ours is None or other is None:
        return None
    problem = final.problem
    return Judged(problem, floors(problem.m, problem.n, problem.k), comparison, ours, other)


def summarise(records: Iterable[Measurement], floors: Floors = floor_us) -> dict[str, dict[str, dict[str, Any]]]:
    """The report: ``mode/acc/pdl`` -> baseline -> ``{n, geomean, win, min, by_class}``.

    ``win`` is the share of shapes with a ratio above 1, those that only the baseline solved counted as lost; the rest
    is over the ``n`` shapes that have a ratio. ``by_class`` holds ``{n, geomean, win}`` for every class, ``null`` where
    no shape falls into it.
    """
    records = list(records)
    lost = unsolved(records, floors)
    return {
        key: {name: _statistics(shapes, lost.get((key, name), [])) for name, shapes in by_name.items()}
        for key, by_name in judge_shapes(records, floors).items()
    }


def unsolved(records: Iterable[Measurement], floors: Floors = floor_us) -> dict[tuple[str, str], list[str]]:
    """Leaderboard and baseline -> the class of every shape that the baseline solved and none of our kernels did."""
    lost: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (key, _), final in latest_finals(records).items():
        for name in BASELINES if final.ours is None else ():
            if final.baseline(name) is not None:
                problem = final.problem
                lost[key, name].append(class_of(floors(problem.m, problem.n, problem.k)))
    return dict(lost)


def _statistics(shapes: tuple[Judged, ...], lost: list[str]) -> dict[str, Any]:
    ratios = {name: [shape.ratio for shape in shapes if shape.floor_class == name] for name in CLASS_NAMES}
    by_class = {name: _share(ratios[name], lost.count(name)) for name in CLASS_NAMES}
    every = [shape.ratio for shape in shapes]
    return {**_share(every, len(lost)), "min": min(every), "by_class": by_class}


def _share(ratios: list[float], lost: int) -> dict[str, Any]:
    counted = len(ratios) + lost
    win = sum(ratio > 1.0 for ratio in ratios) / counted if counted else None
    return {"n": len(ratios), "geomean": geomean(ratios), "win": win}


def details(records: Iterable[Measurement], baseline: str = REFERENCE, floors: Floors = floor_us) -> dict[str, Detail]:
    """Leaderboard -> every shape against one baseline, worst first, and the shapes we have nothing for."""
    records = list(records)
    judged = judge_shapes(records, floors)
    unserved: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for (key, mnk), final in latest_finals(records).items():
        if final.ours is None:
            unserved[key].append((mnk, _reasons(final)))
    return {
        key: Detail(judged.get(key, {}).get(baseline, ()), tuple(sorted(unserved[key])))
        for key in sorted({*judged, *unserved})
    }


def _reasons(final: Final) -> str:
    reasons = sorted({f"{row.status.value}: {row.reason}" for row in final.rows if row.config is not None})
    return "; ".join(reasons) or "no configuration competed"
