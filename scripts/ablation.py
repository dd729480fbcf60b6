"""What each axis of the kernel is worth: the best recorded time without some of its values over the best with all.

    python scripts/ablation.py [--family sm80_mma] [--recording FILE] [--readme kernels/README.md [--place NAME]]
    python scripts/ablation.py --twins --recording cudal2/data/searched/h200_sm90_ws_selected?_fp32_tn.parquet

Read from a recording, so nothing is measured; of one that is not complete, it is the best found without. With --readme
the table between its ablation markers is rewritten. Ratios to the interleaved reference are compared, since clocks
drift over a recording, and plain times where a shape was measured without one, within seconds. With --twins pairs of
configurations are compared that differ in one axis alone and were timed in the same rounds, as a selection's are.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias

from cudal2.cli.main import guarded, guarded_imports

with guarded_imports():
    from cudal2.cli.arguments import Parser
    from cudal2.cli.output import show_section
    from cudal2.errors import NothingValidError, UsageError
    from cudal2.floor import floor_us
    from cudal2.problem import Problem
    from cudal2.records.measurement import Measurement, costs
    from cudal2.records.recording import bundled_recording, read_records
    from cudal2.space.axes import Axis
    from cudal2.space.config import KernelConfig
    from cudal2.space.families import FAMILIES

Keeps: TypeAlias = Callable[[Any], bool]
#: Time over the reference of the same rounds.
Times: TypeAlias = dict[Problem, dict[KernelConfig, float]]

#: Of fewer pairs nothing is said.
ENOUGH_TWINS = 20

#: By kernel family: what is taken away that is no single axis, and which configurations are left.
COMBINED: dict[str, dict[str, Keeps]] = {
    "sm90_ws": {
        "clusters with multicast": lambda c: c.cluster_m * c.cluster_n == 1,
        "stages above 4": lambda c: c.stages <= 4,
        "split-K other than 2, 4, 8": lambda c: c.split_k in (1, 2, 4, 8),
        "tiles under 128 columns": lambda c: c.tile_n >= 128,
        "tiles over 128 columns": lambda c: c.tile_n <= 128,
    },
    "sm90_small": {
        "split-K above 8": lambda c: c.split_k <= 8,
        "tiles under 64 rows": lambda c: c.tile_m >= 64,
        "tiles over 64 rows": lambda c: c.tile_m <= 64,
        "tiles under 32 columns": lambda c: c.tile_n >= 32,
        "tiles over 32 columns": lambda c: c.tile_n <= 32,
        "tile_k above 64": lambda c: c.tile_k == 64,
        "stages above 4": lambda c: c.stages <= 4,
        "two warp groups": lambda c: c.warps <= 4,
        "L2 prefetch": lambda c: c.l2_prefetch == 0,
    },
    "sm80_mma": {
        "stages above 3": lambda c: c.stages <= 3,
        "tiles under 64 rows": lambda c: c.tile_m >= 64,
        "tiles over 64 rows": lambda c: c.tile_m <= 64,
    },
}


def markers(place: str) -> tuple[str, str]:
    """What stands around a table in a page."""
    return f"<!-- ablation of {place}:begin -->", f"<!-- ablation of {place}:end -->"


def main() -> None:
    """Prints the table, or writes it into a page."""
    parser = Parser(description=__doc__)
    parser.add_argument("--family", choices=tuple(FAMILIES), default="", help="default: the recording's, or sm90_ws")
    parser.add_argument("--recording", type=Path, nargs="+", help="recording, of twins several (default: as shipped)")
    parser.add_argument("--readme", type=Path, help="page with the ablation markers")
    parser.add_argument("--place", help="what the markers are of (default: the family)")
    parser.add_argument("--twins", action="store_true", help="compare pairs of the same rounds that differ in one axis")
    arguments = parser.parse_args()
    paths = arguments.recording or [bundled_recording(family=arguments.family or next(iter(FAMILIES)))]
    if arguments.twins:
        rows = twin_rows(paths, arguments.family)
        page, place = twins_table(rows, paths), f"{rows[0].contestant}_twins"
    elif len(paths) > 1:
        raise UsageError("one --recording at a time: only --twins looks at several")
    else:
        times = relative_times(paths[0], arguments.family)
        page, place = table(times, paths[0], arguments.place), family_in(times)
    show_section(arguments.readme, *markers(arguments.place or place), page)


def relative_times(path: Path, family: str = "") -> Times:
    """Time over the reference of the same rounds, or the time, by shape and configuration; in the usual PDL setting.

    Raises:
        UsageError: As :func:`usual_rows`.
    """
    columns: dict[Problem, list[Measurement]] = defaultdict(list)
    for row in usual_rows(path, family):
        columns[row.problem].append(row)
    times: Times = {}
    for problem, column in columns.items():
        times[problem] = {row.config: cost for row, cost in zip(column, costs(column), strict=True) if row.config}
    return times


def usual_rows(path: Path, family: str = "") -> list[Measurement]:
    """What passed of one family, in the PDL setting of most.

    Raises:
        UsageError: The recording holds nothing of the family, or without one, kernels of several.
    """
    rows = [row for row in read_records(path).measurements if row.ok and row.config is not None]
    found = sorted({row.config.family for row in rows if row.config is not None})
    if family not in found and (family or len(found) != 1):
        raise UsageError(f"{path} holds kernels of {', '.join(found) or 'no family'}: name one of them by --family")
    rows = [row for row in rows if row.config is not None and row.config.family == (family or found[0])]
    pdl = 2 * sum(row.pdl for row in rows) >= len(rows)
    return [row for row in rows if row.pdl == pdl]


def twin_rows(paths: Sequence[Path], family: str = "") -> list[Measurement]:
    """What passed of one family in several recordings, some of it timed in the same rounds.

    Raises:
        UsageError: As :func:`usual_rows`, or the recordings are of several families.
        NothingValidError: Every configuration was timed in rounds of its own.
    """
    rows = [row for path in paths for row in usual_rows(path, family)]
    if len(families := sorted({row.contestant for row in rows})) > 1:
        raise UsageError(f"these recordings hold kernels of {' and '.join(families)}: give those of one family")
    if len({(row.problem, row.utc) for row in rows}) == len({(row.problem, row.utc, row.config) for row in rows}):
        raise NothingValidError("no two configurations were timed in the same rounds: --twins is for selections")
    return rows


def twins_table(rows: Sequence[Measurement], sources: Sequence[Path]) -> str:
    """One line per change of one axis that enough pairs show, as Markdown."""
    family = FAMILIES[rows[0].contestant]
    lines = [
        f"Read from {', '.join(f'`{path.name}`' for path in sources)}, by `python scripts/ablation.py --twins"
        f" --readme kernels/README.md --recording {' '.join(map(str, sources))}`.",
        f"Changes of one axis alone that {ENOUGH_TWINS} pairs of configurations or more differ by, both timed in the",
        "same rounds. Faster by: geometric mean over the pairs; then what nine pairs in ten exceed, and one in ten.",
        "",
        "| change | pairs | shapes | faster by | nine in ten | one in ten | most, where |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for axis in family.axes:
        changes = sorted(twins(rows, axis).items(), key=lambda item: [axis.values.index(value) for value in item[0]])
        lines += [twins_line(axis.name, *change, gains) for change, gains in changes if len(gains) >= ENOUGH_TWINS]
    return "\n".join(lines)


def twins(rows: Iterable[Measurement], axis: Axis) -> dict[tuple[Any, Any], list[tuple[float, str]]]:
    """By two values of an axis: the first's time over the second's of each pair that shares all else, and its shape."""
    alike: dict[tuple[Any, ...], dict[Any, float]] = defaultdict(dict)
    for row in rows:
        if row.config is not None:
            rest = row.config.to_dict()
            value = rest.pop(axis.name)
            alike[(row.problem, row.utc, *rest.values())][value] = row.median_us
    found: dict[tuple[Any, Any], list[tuple[float, str]]] = defaultdict(list)
    for (problem, *_), times_us in alike.items():
        for first, second in combinations(sorted(times_us, key=axis.values.index), 2):
            found[first, second].append((times_us[first] / times_us[second], problem.mnk))
    return found


def twins_line(name: str, first: Any, second: Any, gains: list[tuple[float, str]]) -> str:
    """How much faster the second value is."""
    ratios = [ratio for ratio, _ in gains]
    low, *_, high = statistics.quantiles(ratios, n=10)
    most, where = max(gains)
    figures = (statistics.geometric_mean(ratios), low, high, most)
    cells = [f"{round(100 * (figure - 1), 1) + 0.0:.1f} %" for figure in figures]
    shapes = len({mnk for _, mnk in gains})
    return f"| `{name}` {first} to {second} | {len(gains)} | {shapes} | {' | '.join(cells)}, {where} |"


def family_in(times: Times) -> str:
    """The kernel family that all are of."""
    return next(config.family for column in times.values() for config in column)


def table(times: Times, source: Path, place: str | None = None) -> str:
    """One line per ablation, as Markdown."""
    family = FAMILIES[family_in(times)]
    command = ["python scripts/ablation.py", "--readme kernels/README.md"]
    command[1:1] = [f"--family {family.name}"] if family is not next(iter(FAMILIES.values())) else []
    command += [f"--recording {source}"] if source.parent.name == "searched" else []
    command += [f"--place {place}"] if place else []
    lines = [
        f"Read from `{source.name}`, {len(times)} shapes, by `{' '.join(command)}`.",
        "Slower by: the best time without over the best time with, geometric mean over the shapes that have any left.",
        "An axis of numbers is held at its best single value of those that three shapes in four can take.",
        "",
        "| without | slower by | shapes over 1 % | worst | where | left with none |",
        "| --- | ---: | ---: | ---: | --- | ---: |",
    ]
    rows = [row for axis in family.axes for row in ablations(axis, times)]
    rows += COMBINED.get(family.name, {}).items()
    lines += [line(name, keeps, times) for name, keeps in rows]
    return "\n".join(lines)


def ablations(axis: Axis, times: Times) -> list[tuple[str, Keeps]]:
    """What can be taken away of one axis: each recorded name or flag, or all its numbers but one.

    Nothing where no shape was recorded with two values, as of an axis that the shape decides.
    """
    by_shape = [{getattr(config, axis.name) for config in column} for column in times.values()]
    values = [value for value in axis.values if any(value in held for held in by_shape)]
    if all(len(held) < 2 for held in by_shape):
        return []
    if isinstance(values[0], str):
        return [(f"`{axis.name}` {value}", without(axis.name, value)) for value in values]
    if isinstance(values[0], bool):
        return [
            (f"`{axis.name}`" if value else f"`{axis.name}` off", without(axis.name, value)) for value in (True, False)
        ]
    best = min(values, key=lambda value: mean_loss(only(axis.name, value), times))
    rows = [(f"`{axis.name}` other than {best}", only(axis.name, best))]
    return rows if best == 1 or 1 not in values else [(f"`{axis.name}` above 1", only(axis.name, 1)), *rows]


def without(name: str, value: Any) -> Keeps:
    """Configurations with any other value."""
    return lambda config: getattr(config, name) != value


def only(name: str, value: Any) -> Keeps:
    """Configurations with this value."""
    return lambda config: getattr(config, name) == value


def losses_of(keeps: Keeps, times: Times) -> dict[Problem, float]:
    """Best time of those kept over the best of all, by shape that has any left."""
    losses = {}
    for problem, column in times.items():
        left = [cost for config, cost in column.items() if keeps(config)]
        if left:
            losses[problem] = min(left) / min(column.values())
    return losses


def mean_loss(keeps: Keeps, times: Times) -> tuple[int, float]:
    """Shapes left with none as far as they are more than a quarter, then the geometric mean over the others."""
    losses = losses_of(keeps, times)
    none = len(times) - len(losses)
    return none if 4 * none > len(times) else 0, statistics.geometric_mean(losses.values()) if losses else 0.0


def line(name: str, keeps: Keeps, times: Times) -> str:
    """What is lost where only the configurations that ``keeps`` holds for are left."""
    losses = losses_of(keeps, times)
    if not losses:
        return f"| {name} | none left | | | | {len(times)} |"
    mean = statistics.geometric_mean(losses.values())
    worst = max(losses, key=lambda problem: losses[problem])
    over = sum(loss > 1.01 for loss in losses.values())
    where = f"{worst.mnk} (floor {floor_us(worst.m, worst.n, worst.k):.3g} us)" if over else "-"
    slower = f"{100 * (mean - 1):.1f} % | {over} | {100 * (losses[worst] - 1):.0f} %"
    return f"| {name} | {slower} | {where} | {len(times) - len(losses)} |"


if __name__ == "__main__":
    sys.exit(guarded(main))
