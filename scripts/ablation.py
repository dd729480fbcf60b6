"""What each axis of the kernel is worth: the best recorded time without some of its values over the best with all.

    python scripts/ablation.py [--family sm80_mma] [--recording FILE] [--readme kernels/README.md]

Read from a complete recording, so nothing is measured. With --readme the table between its ablation markers is
rewritten. Ratios to the interleaved reference are compared, since clocks drift over a recording.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cudal2.cli.arguments import Parser
from cudal2.cli.main import guarded
from cudal2.errors import UsageError
from cudal2.floor import floor_us
from cudal2.problem import Problem
from cudal2.records.recording import bundled_recording, read_records
from cudal2.space.config import KernelConfig

#: By kernel family: what is taken away, and which configurations are left.
ABLATIONS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "sm90_ws": {
        "ping-pong": lambda c: c.schedule == "coop",
        "cooperative": lambda c: c.schedule == "pingpong",
        "clusters with multicast": lambda c: c.cluster_m * c.cluster_n == 1,
        "split-K": lambda c: c.split_k == 1,
        "split-K other than 2, 4, 8": lambda c: c.split_k in (1, 2, 4, 8),
        "direct stores": lambda c: c.epilogue == "tma",
        "TMA stores": lambda c: c.epilogue == "direct",
        "tile_k 128": lambda c: c.tile_k == 64,
        "stages above 4": lambda c: c.stages <= 4,
        "tiles under 128 columns": lambda c: c.tile_n >= 128,
        "tiles over 128 columns": lambda c: c.tile_n <= 128,
        "one consumer": lambda c: c.consumers > 1,
        "persistence": lambda c: not c.persistent,
        "raster groups above 1": lambda c: c.group == 1,
        "raster along n": lambda c: c.raster == "m",
        "two CTAs per SM": lambda c: c.ctas_per_sm == 1,
    },
    "sm80_mma": {
        "swizzled shared memory": lambda c: c.smem_layout == "pad",
        "padded shared memory": lambda c: c.smem_layout == "swizzle",
        "two fragment buffers": lambda c: c.fragments == 1,
        "one fragment buffer": lambda c: c.fragments == 2,
        "staggered prefetch": lambda c: c.prefetch == "plain",
        "wide stores": lambda c: c.epilogue == "direct",
        "direct stores": lambda c: c.epilogue == "wide",
        "tile_k 64": lambda c: c.tile_k <= 32,
        "stages above 3": lambda c: c.stages <= 3,
        "tiles under 64 rows": lambda c: c.tile_m >= 64,
        "tiles over 64 rows": lambda c: c.tile_m <= 64,
        "raster groups above 1": lambda c: c.group == 1,
        "raster along n": lambda c: c.raster == "m",
        "several CTAs per SM": lambda c: c.ctas_per_sm == 1,
    },
}


def markers(family: str) -> tuple[str, str]:
    """What stands around a family's table in a page."""
    return f"<!-- ablation of {family}:begin -->", f"<!-- ablation of {family}:end -->"


def main() -> None:
    """Prints the table, or writes it into a page."""
    parser = Parser(description=__doc__)
    parser.add_argument("--family", choices=tuple(ABLATIONS), default="sm90_ws", help="of the shipped recording")
    parser.add_argument("--recording", type=Path, help="recording (default: the shipped one)")
    parser.add_argument("--readme", type=Path, help="page with the ablation markers")
    arguments = parser.parse_args()
    path = arguments.recording or bundled_recording(family=arguments.family)
    page = table(relative_times(path), path.name)
    if arguments.readme is None:
        print(page)
        return
    begin, end = markers(arguments.family)
    text = arguments.readme.read_text()
    if begin not in text or end not in text:
        raise UsageError(f"{arguments.readme} has no place for the table: {begin} and {end}")
    arguments.readme.write_text(f"{text.partition(begin)[0]}{begin}\n{page}\n{end}{text.partition(end)[2]}")


def relative_times(path: Path) -> dict[Problem, dict[KernelConfig, float]]:
    """Time over the reference of the same rounds, by shape and configuration."""
    times: dict[Problem, dict[KernelConfig, float]] = defaultdict(dict)
    for row in read_records(path).measurements:
        if row.ok and row.config is not None and row.speedup:
            times[row.problem][row.config] = 1.0 / row.speedup
    return times


def table(times: dict[Problem, dict[KernelConfig, float]], source: str) -> str:
    """One line per ablation, as Markdown."""
    lines = [
        f"Read from `{source}`, {len(times)} shapes, by `python scripts/ablation.py --readme kernels/README.md`.",
        "Slower by: the best time without over the best time with, geometric mean over the shapes that have any left.",
        "",
        "| without | slower by | shapes over 1 % | worst | where | left with none |",
        "| --- | ---: | ---: | ---: | --- | ---: |",
    ]
    family = next(config.family for column in times.values() for config in column)
    lines += [line(name, keeps, times) for name, keeps in ABLATIONS[family].items()]
    return "\n".join(lines)


def line(name: str, keeps: Callable[[KernelConfig], bool], times: dict[Problem, dict[KernelConfig, float]]) -> str:
    """What is lost where only the configurations that ``keeps`` holds for are left."""
    losses = {}
    for problem, column in times.items():
        left = [cost for config, cost in column.items() if keeps(config)]
        if left:
            losses[problem] = min(left) / min(column.values())
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
