"""Runs every kernel family under compute-sanitizer, one small launch per corner of its space, and says what is found.

    python scripts/sanitize.py [--families sm80_mma] [--tools memcheck racecheck] [--minutes 8] [--out FILE]
    python scripts/sanitize.py --build-only --cache-dir DIR       fill a cache for a machine that cannot compile
    python scripts/sanitize.py --from FILE --readme kernels/README.md

For each accumulator and layout, as few configurations as take every value of every axis, on small shapes, most of them
ragged; each is launched plainly, then twice in a row with programmatic dependent launch, and its result is checked.
Exit code 1 if anything is found. With --readme the summary between the page's markers is rewritten.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, get_args

from cudal2.arch import SM90
from cudal2.atomic import write_atomically
from cudal2.bench.sanitize.checks import Checked, check_cases
from cudal2.bench.sanitize.launcher import Case
from cudal2.bench.sanitize.tool import TOOLS, Sanitizer
from cudal2.build.artifact import BuiltKernel
from cudal2.build.cache import resolve_toolchain
from cudal2.build.pool import BuildPool
from cudal2.cli import arguments as shared
from cudal2.cli.backend import require_gpu
from cudal2.cli.main import guarded
from cudal2.cli.output import note, require_writable
from cudal2.codegen import build_key
from cudal2.errors import RecordError, ToolchainError, UsageError
from cudal2.problem import Acc, Layout, Problem
from cudal2.runners.local import LocalRunner
from cudal2.space.config import KernelConfig
from cudal2.space.covering import covering
from cudal2.space.families import FAMILIES
from cudal2.space.space import SearchSpace

#: K tiles for every depth and split, tiles for every order, one tile alone, one row, and every width of row.
SHAPES = ("200_264_1096", "1000_1032_136", "64_64_64", "1_8_8", "130_72_260", "65_50_134", "123_77_189")
#: Configurations of each shape, whatever they add to the cover.
PER_SHAPE = 2
#: initcheck looks at reads of global memory that nobody wrote; the launcher writes all of it.
DEFAULT_TOOLS = ("memcheck", "racecheck", "synccheck")
BEGIN, END = "<!-- sanitizer:begin -->", "<!-- sanitizer:end -->"

Corner = tuple[Problem, KernelConfig]


def main() -> int:
    """Plans, builds, checks, says what was found."""
    arguments = parse()
    if arguments.record:
        return show(read(arguments.record), arguments.readme)
    if not arguments.build_only:
        require_gpu(arguments.device)
        if arguments.out:
            require_writable(arguments.out.parent, "--out")
        sanitizer = Sanitizer.locate()
    families = arguments.families or list(FAMILIES)
    corners, never = plan(families)
    note(f"{len(corners)} configurations of {', '.join(families)}; legal on none of the shapes: {never or 'none'}")
    cases = build(arguments, corners)
    if arguments.build_only:
        return 0
    checked = check(arguments, sanitizer, cases)
    record = {
        "command": "scripts/sanitize.py",
        "utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "sanitizer": sanitizer.version,
        "environment": environment(arguments, families),
        "never_legal": never,
        "cases": [one.to_dict() for one in checked],
    }
    if arguments.out:
        write_atomically(arguments.out, json.dumps(record, indent=1) + "\n")
    return show(record, arguments.readme)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = shared.Parser(description=__doc__)
    parser.add_argument("--families", nargs="+", choices=tuple(FAMILIES), help="kernel families (default: all)")
    parser.add_argument(
        "--tools", nargs="+", choices=tuple(TOOLS), default=DEFAULT_TOOLS, help=f"default: {' '.join(DEFAULT_TOOLS)}"
    )
    parser.add_argument("--minutes", type=shared.minutes, default=8.0, metavar="M", help="for all tools (default 8)")
    parser.add_argument("--limit", type=shared.positive, metavar="N", help="at most N configurations per family")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON record to write")
    parser.add_argument("--build-only", action="store_true", help="compile what would be launched, and nothing else")
    parser.add_argument("--from", dest="record", type=Path, metavar="FILE", help="show this record; nothing is run")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="page whose summary is rewritten")
    parser.add_argument("--device", type=shared.index, default=0, metavar="N", help="which GPU (default 0)")
    shared.add_cache(parser)
    return parser.parse_args()


def plan(families: Sequence[str]) -> tuple[list[Corner], list[str]]:
    """Corners of the families in turns, so that a short budget reaches all; values that no shape allows."""
    columns: list[list[Corner]] = []
    never: list[str] = []
    for family in families:
        space = SearchSpace(SM90, family=family)
        for acc in get_args(Acc):
            for layout in get_args(Layout):
                chosen, left = covering(space, [Problem.parse(mnk, acc, layout) for mnk in SHAPES], PER_SHAPE)
                columns.append(chosen)
                never += [f"{family} {acc} {layout} {name} = {value}" for name, value in left]
    longest = max(map(len, columns))
    return [column[at] for at in range(longest) for column in columns if at < len(column)], never


def build(arguments: argparse.Namespace, corners: Sequence[Corner]) -> list[Case]:
    """Cubins of the corners; every one must build.

    Raises:
        ToolchainError: One does not.
    """
    seen: Counter[str] = Counter()
    if arguments.limit:
        kept = []
        for corner in corners:
            seen[corner[1].family] += 1
            kept += [corner] if seen[corner[1].family] <= arguments.limit else []
        corners = kept
    cache = shared.build_cache(arguments)
    with BuildPool(cache, resolve_toolchain(cache, SM90)) as pool:
        results = pool.build([(config, *problem.signature) for problem, config in corners])
    cases = []
    for problem, config in corners:
        result = results[build_key(config, *problem.signature)]
        if not isinstance(result, BuiltKernel):
            raise ToolchainError(f"{config.name} does not build: {result.reason} (log: {result.log_path})")
        cases.append(Case(problem, config, result))
    note(f"{len(results)} kernels built")
    return cases


def check(arguments: argparse.Namespace, sanitizer: Sanitizer, cases: Sequence[Case]) -> list[Checked]:
    """Every case under every tool; the time left is shared evenly by the tools that are left."""
    ends = time.monotonic() + arguments.minutes * 60.0
    checked: list[Checked] = []
    for number, tool in enumerate(arguments.tools):
        seconds = (ends - time.monotonic()) / (len(arguments.tools) - number)
        started = time.monotonic()
        rows = check_cases(tool, cases, sanitizer, seconds, device_index=arguments.device, on_checked=say)
        ran = sum(row.ran for row in rows)
        note(f"{tool}: {ran} of {len(rows)} configurations in {time.monotonic() - started:.0f} s")
        checked += rows
    return checked


def say(one: Checked) -> None:
    """One line for each kind of finding."""
    for finding in one.findings:
        case = one.case
        name = f"{case.config.name} on {case.problem.mnk} {case.problem.acc} {case.problem.layout}"
        note(f"{one.tool}: {name}: {finding.count} x {finding.text} {finding.where}")


def environment(arguments: argparse.Namespace, families: Sequence[str]) -> dict[str, Any]:
    """The GPU, its driver and the version of the kernels."""
    with LocalRunner(SearchSpace(SM90), device_index=arguments.device, cache=shared.build_cache(arguments)) as runner:
        return runner.fingerprint(families).to_dict()


def read(path: Path) -> dict[str, Any]:
    """A record of an earlier run.

    Raises:
        RecordError: It is none.
    """
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        summary(record)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path} is no record of scripts/sanitize.py: {error}") from error
    return record


def show(record: dict[str, Any], readme: Path | None) -> int:
    """Prints the summary, or writes it into a page; the exit code."""
    page = summary(record)
    if readme is None:
        print(page)
    else:
        text = readme.read_text(encoding="utf-8")
        if BEGIN not in text or END not in text:
            raise UsageError(f"{readme} has no place for the summary: {BEGIN} and {END}")
        write_atomically(readme, f"{text.partition(BEGIN)[0]}{BEGIN}\n{page}\n{END}{text.partition(END)[2]}")
    return 1 if any(case["findings"] for case in record["cases"]) else 0


def summary(record: dict[str, Any]) -> str:
    """One line per tool and family, then every kind of finding with a configuration that shows it, as Markdown."""
    cases = record["cases"]
    here = record["environment"]
    lines = [
        f"compute-sanitizer {record['sanitizer']} on {here['gpu']}, driver {here['driver']}, {record['utc'][:10]},"
        " by `python scripts/sanitize.py`; every value of every axis in each accumulator and layout"
        + (f", but {', '.join(record['never_legal'])}." if record["never_legal"] else "."),
        "",
        "| family | tool | configurations | clean | with findings | not run |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for family, tool in dict.fromkeys((case["family"], case["tool"]) for case in cases):
        rows = [case for case in cases if (case["family"], case["tool"]) == (family, tool)]
        found, missed = sum(bool(row["findings"]) for row in rows), sum(not row["ran"] for row in rows)
        lines.append(f"| `{family}` | {tool} | {len(rows)} | {len(rows) - found - missed} | {found} | {missed} |")
    shown: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for case in cases:
        for finding in case["findings"]:
            shown.setdefault((case["family"], case["tool"], finding["text"]), []).append(case)
    lines += [""] if shown else ["", "Nothing was found."]
    for (family, tool, text), rows in shown.items():
        first = f"{rows[0]['config']} on {rows[0]['mnk']} {rows[0]['acc']} {rows[0]['layout']}"
        lines.append(f"- `{family}`, {tool}, {len(rows)} configurations: {text.rstrip('.')}; for example {first}.")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(guarded(main))
