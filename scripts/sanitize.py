"""Runs every kernel family under compute-sanitizer, one small launch per corner of its space, and says what is found.

    python scripts/sanitize.py [--families sm80_mma] [--tools memcheck racecheck] [--minutes 8] [--jobs 12] [--out FILE]
    python scripts/sanitize.py --build-only --cache-dir DIR       fill a cache for a machine that cannot compile
    python scripts/sanitize.py --from FILE [FILE ...] --readme kernels/README.md

For each accumulator and layout, as few configurations as take every value of every axis, on small shapes, most of them
ragged; each is launched plainly, then twice in a row with programmatic dependent launch, and its result is checked.
Exit code 1 if anything is found that is not a known limit of the tool. Ctrl-C keeps what was checked by then, in FILE
too. What FILE holds of the same kernels, byte for byte, under the same tool, driver and GPU is not checked again, so
that the same command goes on where it stopped. With --readme the summary between the page's markers is rewritten.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

from cudal2.cli.main import guarded, guarded_imports

with guarded_imports():
    from cudal2.arch import SM90
    from cudal2.atomic import write_atomically
    from cudal2.bench.sanitize.checks import Checked, check_cases
    from cudal2.bench.sanitize.launcher import Case
    from cudal2.bench.sanitize.limits import doubtful
    from cudal2.bench.sanitize.tool import TOOLS, Sanitizer
    from cudal2.build.artifact import BuiltKernel
    from cudal2.build.cache import resolve_toolchain
    from cudal2.build.pool import BuildPool
    from cudal2.cli import arguments as shared
    from cudal2.cli.backend import require_gpu
    from cudal2.cli.output import counted, note, show_section
    from cudal2.codegen import build_key
    from cudal2.errors import RecordError, ToolchainError
    from cudal2.problem import Acc, Layout, Problem
    from cudal2.runners.local import LocalRunner
    from cudal2.space.config import KernelConfig
    from cudal2.space.covering import covering
    from cudal2.space.families import FAMILIES
    from cudal2.space.space import SearchSpace

#: K tiles for every depth and split, tiles for every order, a last wave to share out, one tile alone, one row, and
#: every width of row.
SHAPES = (
    "200_264_1096", "1000_1032_136", "1000_1032_1032", "64_64_64", "1_8_8", "1000_1032_40", "130_72_260", "65_50_134",
    "123_77_189",
)  # fmt: skip
#: Configurations of each shape, whatever they add to the cover.
PER_SHAPE = 2
#: initcheck looks at reads of global memory that nobody wrote; the launcher writes all of it.
DEFAULT_TOOLS = ("memcheck", "synccheck", "racecheck")
#: Seconds per configuration on an H200: how tools share the time that is left.
WEIGHTS = {"memcheck": 0.1, "synccheck": 0.15, "racecheck": 0.75, "initcheck": 0.15}
BEGIN, END = "<!-- sanitizer:begin -->", "<!-- sanitizer:end -->"

Corner = tuple[Problem, KernelConfig]
#: What a case is called in a record: tool, configuration and problem.
Key = tuple[str, ...]


def main() -> int:
    """Plans, builds, checks, says what was found."""
    arguments = parse()
    if arguments.records:
        return show([read(path) for path in arguments.records], arguments.readme)
    if not arguments.build_only:
        require_gpu(arguments.device)
        sanitizer = Sanitizer.locate()
    families = arguments.families or [one.name for one in FAMILIES.values() if one.compiler == "nvrtc"]
    corners, never = plan(families)
    note(f"{len(corners)} configurations of {', '.join(families)}; legal on none of the shapes: {never or 'none'}")
    cases = build(arguments, limited(corners, arguments.limit))
    if arguments.build_only:
        return 0
    record = {
        "command": "scripts/sanitize.py",
        "utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "sanitizer": sanitizer.version,
        "environment": environment(arguments, families),
        "never_legal": never,
    }
    before = earlier(arguments.out, record)
    checked: list[Checked] = []
    try:
        check(arguments, sanitizer, cases, before, checked)
    finally:
        record["cases"] = rows(arguments.tools, corners, cases, before, checked)
        if arguments.out:
            write_atomically(arguments.out, text_of(record))
    return show([record], arguments.readme)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = shared.Parser(description=__doc__)
    parser.add_argument(
        "--families", nargs="+", choices=tuple(FAMILIES), help="kernel families (default: all of NVRTC)"
    )
    parser.add_argument(
        "--tools", nargs="+", choices=tuple(TOOLS), default=DEFAULT_TOOLS, help=f"default: {' '.join(DEFAULT_TOOLS)}"
    )
    parser.add_argument("--minutes", type=shared.minutes, default=8.0, metavar="M", help="for all tools (default 8)")
    parser.add_argument("--limit", type=shared.positive, metavar="N", help="at most N configurations per family")
    parser.add_argument("--jobs", type=shared.positive, default=1, metavar="N", help="processes at once (default 1)")
    parser.add_argument("--out", type=shared.out_file, metavar="FILE", help="JSON record to write, or to go on with")
    parser.add_argument("--build-only", action="store_true", help="compile what would be launched, and nothing else")
    parser.add_argument(
        "--from", dest="records", type=Path, nargs="+", metavar="FILE", help="show these records; nothing is run"
    )
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


def limited(corners: Sequence[Corner], limit: int | None) -> list[Corner]:
    """The first so many of each family."""
    seen: Counter[str] = Counter()
    kept = []
    for problem, config in corners:
        seen[config.family] += 1
        if limit is None or seen[config.family] <= limit:
            kept.append((problem, config))
    return kept


def build(arguments: argparse.Namespace, corners: Sequence[Corner]) -> list[Case]:
    """Cubins of the corners; every one must build.

    Raises:
        ToolchainError: One does not.
    """
    store = shared.build_cache(arguments)
    with BuildPool(store, resolve_toolchain(store, SM90)) as pool:
        results = pool.build([(config, *problem.signature) for problem, config in corners])
    cases = []
    for problem, config in corners:
        result = results[build_key(config, *problem.signature)]
        if not isinstance(result, BuiltKernel):
            raise ToolchainError(f"{config.name} does not build: {result.reason} (log: {result.log_path})")
        cases.append(Case(problem, config, result))
    note(f"{len(results)} kernels built")
    return cases


def earlier(path: Path | None, record: Mapping[str, Any]) -> dict[Key, dict[str, Any]]:
    """What an earlier run has checked on such a GPU, with this driver and this version of the tool.

    Raises:
        RecordError: There is a file that is no such record.
    """
    if path is None or not path.exists():
        return {}
    before = read(path)
    same = all(before["environment"].get(name) == record["environment"][name] for name in ("gpu", "driver"))
    if not same or before["sanitizer"] != record["sanitizer"]:
        note(f"{path} is of another GPU, driver or version of the tool: all is checked anew")
        return {}
    return {key_of(row): row for row in before["cases"] if row["ran"]}


def key_of(row: Mapping[str, Any]) -> Key:
    """What a row is about."""
    return tuple(row[name] for name in ("tool", "config", "mnk", "acc", "layout"))


@cache
def digest(cubin: Path) -> str:
    """Of a kernel's bytes."""
    return hashlib.sha256(cubin.read_bytes()).hexdigest()[:16]


def check(
    arguments: argparse.Namespace,
    sanitizer: Sanitizer,
    cases: Sequence[Case],
    before: Mapping[Key, Mapping[str, Any]],
    checked: list[Checked],
) -> None:
    """Every case under every tool, added to ``checked`` as it comes; a tool's turn is as long as it is slow.

    Cases that a tool may not be up to are its last: each may cost a process.
    """

    def on_checked(one: Checked) -> None:
        checked.append(one)
        say(one)

    ends = time.monotonic() + arguments.minutes * 60.0
    for number, tool in enumerate(arguments.tools):
        share = WEIGHTS[tool] / sum(WEIGHTS[other] for other in arguments.tools[number:])
        started, so_far = time.monotonic(), len(checked)
        left = [case for case in cases if not known(before, tool, case)]
        ordered = sorted(left, key=partial(doubtful, tool))
        check_cases(
            tool,
            ordered,
            sanitizer,
            (ends - started) * share,
            device_index=arguments.device,
            on_checked=on_checked,
            jobs=min(arguments.jobs, max(1, len(ordered))),
        )
        note(
            f"{tool}: {len(checked) - so_far} of {len(ordered)} configurations in {time.monotonic() - started:.0f} s,"
            f" {len(cases) - len(ordered)} known"
        )


def known(before: Mapping[Key, Mapping[str, Any]], tool: str, case: Case) -> bool:
    """Whether an earlier run has checked these very bytes."""
    row = before.get(key_of(row_of(tool, case.problem, case.config)))
    return row is not None and row.get("cubin") == digest(case.built.cubin_path)


def rows(
    tools: Sequence[str],
    corners: Sequence[Corner],
    cases: Sequence[Case],
    before: Mapping[Key, dict[str, Any]],
    checked: Sequence[Checked],
) -> list[dict[str, Any]]:
    """A row for every corner under every tool, those without a turn included."""
    done = {(one.tool, one.case.problem, one.case.config): one for one in checked}
    built = {(case.problem, case.config): case for case in cases}
    found = []
    for tool in tools:
        for problem, config in corners:
            one, case = done.get((tool, problem, config)), built.get((problem, config))
            row = row_of(tool, problem, config, one)
            found.append(before[key_of(row)] if one is None and case and known(before, tool, case) else row)
    return found


def row_of(tool: str, problem: Problem, config: KernelConfig, checked: Checked | None = None) -> dict[str, Any]:
    """Plain values, ready for JSON."""
    return {
        "tool": tool,
        "family": config.family,
        "config": config.name,
        "mnk": problem.mnk,
        "acc": problem.acc,
        "layout": problem.layout,
        "cubin": digest(checked.case.built.cubin_path) if checked else "",
        "ran": checked is not None and checked.ran,
        "limit": checked.limit if checked else "",
        "findings": [asdict(finding) for finding in checked.findings] if checked else [],
    }


def text_of(record: dict[str, Any]) -> str:
    """JSON with a line for each case: its values, in the order of ``columns``."""
    cases = record["cases"]
    head = {**{key: value for key, value in record.items() if key != "cases"}, "columns": list(cases[0])}
    lines = ",\n".join(json.dumps(list(case.values()), separators=(",", ":")) for case in cases)
    return f'{json.dumps(head, indent=1)[:-2]},\n "cases": [\n{lines}\n ]\n}}\n'


def say(one: Checked) -> None:
    """One line for each kind of finding."""
    for finding in one.findings:
        case = one.case
        name = f"{case.config.name} on {case.problem.mnk} {case.problem.acc} {case.problem.layout}"
        excuse = f" (not applicable: {one.limit})" if one.limit else ""
        note(f"{one.tool}: {name}: {finding.count} x {finding.text} {finding.where}{excuse}")


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
        columns = record.pop("columns")
        record["cases"] = [dict(zip(columns, case, strict=True)) for case in record["cases"]]
        summary(record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RecordError(f"{path} is no record of scripts/sanitize.py: {reason}") from error
    return record


def show(records: Sequence[dict[str, Any]], readme: Path | None) -> int:
    """Prints the summaries, or writes them into a page; the exit code."""
    show_section(readme, BEGIN, END, "\n\n".join(map(summary, records)))
    cases = [case for record in records for case in record["cases"]]
    return 1 if any(case["findings"] and not case["limit"] for case in cases) else 0


def summary(record: dict[str, Any]) -> str:
    """One line per tool and family, then every kind of finding with a configuration that shows it, as Markdown."""
    cases = record["cases"]
    here = record["environment"]
    lines = [
        f"compute-sanitizer {record['sanitizer']} on {here['gpu']}, driver {here['driver']}, {record['utc'][:10]},"
        " by `python scripts/sanitize.py`; every value of every axis in each accumulator and layout"
        + (f", but {', '.join(record['never_legal'])}." if record["never_legal"] else "."),
        *([record["note"]] if "note" in record else []),
        "",
        "| family | tool | configurations | clean | with findings | not applicable | not run |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for family, tool in dict.fromkeys((case["family"], case["tool"]) for case in cases):
        outcomes = Counter(outcome(case) for case in cases if (case["family"], case["tool"]) == (family, tool))
        counts = [outcomes[name] for name in ("clean", "found", "not applicable", "not run")]
        lines.append(f"| `{family}` | {tool} | {sum(counts)} | {' | '.join(map(str, counts))} |")
    shown: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for case in cases:
        for finding in case["findings"]:
            shown.setdefault((case["family"], case["tool"], case["limit"], finding["text"]), []).append(case)
    lines += [""] if shown else ["", "Nothing was found."]
    for (family, tool, limit, text), found in shown.items():
        first = f"{found[0]['config']} on {found[0]['mnk']} {found[0]['acc']} {found[0]['layout']}"
        excuse = f" Not applicable: {limit}." if limit else ""
        many = counted(len(found), "configuration")
        lines.append(f"- `{family}`, {tool}, {many}: {text.rstrip('.')}; for example {first}.{excuse}")
    return "\n".join(lines)


def outcome(case: dict[str, Any]) -> str:
    """What a case counts as."""
    if not case["ran"]:
        return "not run"
    if not case["findings"]:
        return "clean"
    return "not applicable" if case["limit"] else "found"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(guarded(main))
