"""``cudal2 search``: one strategy on some shapes, on the GPU or by replay: what it found for how many measurements."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudal2.cli import arguments as shared
from cudal2.cli.output import counted, note, print_json, print_table
from cudal2.cli.runners import Opened, add_backend, open_runner
from cudal2.errors import NothingValidError, UsageError

if TYPE_CHECKING:
    from cudal2.problem import Problem
    from cudal2.search.base import SearchResult, Strategy
    from cudal2.space.config import KernelConfig
    from cudal2.table.entry import Evidence

STRATEGIES = ("random", "hill_climb", "beam", "exhaustive", "analytic", "policy")

#: Configurations of each PDL setting that ``--from`` takes from earlier records.
STARTS = 6

_EPILOG = """examples:
  cudal2 search --strategy random --budget 64                 every recorded shape, 64 measurements each
  cudal2 search --mnk 64_4096_64 --strategy exhaustive --backend gpu
  cudal2 search --strategy beam --from runs/mine/records --budget 100 --backend gpu --pdl on
  cudal2 search --strategy policy --run-dir runs/mine --budget 16"""


def add(commands: Any) -> argparse.ArgumentParser:
    """Registers the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "search", help="run one search strategy", description=__doc__, epilog=_EPILOG
    )
    shared.add_arch(parser)
    shared.add_shapes(parser)
    shared.add_kind(parser)
    shared.add_space(parser)
    parser.add_argument("--strategy", choices=STRATEGIES, default="random", help="how to choose (default random)")
    parser.add_argument(
        "--budget", type=shared.positive, metavar="N", help="measurements per shape (default: no limit)"
    )
    parser.add_argument("--seed", type=shared.seed, default=0, metavar="S", help="seed of the strategy (default 0)")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="with policy: the run whose policy proposes")
    parser.add_argument(
        "--from",
        dest="starts",
        nargs="+",
        type=Path,
        metavar="RECORDS",
        help="with beam: begin with each shape's best in these recordings or directories of records, else with those "
        "of the nearest shapes, refitted",
    )
    parser.add_argument("--records", type=Path, metavar="DIR", help="with gpu: append every measurement there")
    parser.add_argument(
        "--table", type=shared.out_file, metavar="FILE", help="merge the winners into this kernel table"
    )
    add_backend(parser)
    shared.add_json(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    from cudal2.progress import track
    from cudal2.search.base import Budget, search

    if arguments.strategy == "policy" and arguments.run_dir is None:
        raise UsageError("--strategy policy needs --run-dir, the run whose policy proposes")
    if arguments.starts and arguments.strategy != "beam":
        raise UsageError("--from is for --strategy beam")
    with open_runner(arguments, arguments.records) as opened:
        strategy = _strategy(arguments, opened)
        results = [
            search(arguments.strategy, strategy, opened.runner, problem, Budget(arguments.budget), arguments.seed)
            for problem in track(opened.problems, arguments.strategy)
        ]
    _print(results, arguments.json)
    if arguments.table:
        _merge(arguments, opened, results)
    if not any(result.best for result in results):
        raise NothingValidError(f"no candidate was valid: {_reasons(results)}")
    return 0


def _strategy(arguments: argparse.Namespace, opened: Opened) -> Strategy:
    from cudal2.search.beam import beam_from
    from cudal2.search.nearest import refitted
    from cudal2.search.strategies import STRATEGIES as KNOWN

    if arguments.starts:
        space = opened.runner.space
        best = _starts(arguments.starts, space.family.name)
        known = sum(problem in best for problem in opened.problems)
        note(f"--from: records of {known} of {counted(len(opened.problems), 'shape')}, else of the nearest, refitted")
        return beam_from({one: best.get(one) or refitted(best, one, space, STARTS) for one in opened.problems})
    if arguments.strategy in KNOWN:
        return KNOWN[arguments.strategy]
    from cudal2.rl.rank import policy_strategy

    return policy_strategy(arguments.run_dir, opened.runner.space)


def _starts(records: list[Path], family: str) -> dict[Problem, list[KernelConfig]]:
    """The best few of each problem in earlier records, of the family that is searched."""
    from cudal2.records.recording import read_records
    from cudal2.runners.finals import best_configs

    rows = [row for path in records for row in read_records(path, allow_mixed=True).measurements]
    return best_configs((row for row in rows if row.config is not None and row.config.family == family), STARTS)


def _merge(arguments: argparse.Namespace, opened: Opened, results: list[SearchResult]) -> None:
    from cudal2.table import KernelTable

    rows = [row for result in results for row in result.measurements]
    evidence: Evidence = "exhaustive" if arguments.strategy == "exhaustive" and not arguments.budget else "searched"
    acc, layout, dtype = shared.signature(arguments)
    found = KernelTable.from_measurements(rows, opened.fingerprint, acc, layout, evidence=evidence, dtype=dtype)
    note(f"{arguments.table}: {counted(len(found.save_merged(arguments.table)), 'shape')}")


def _row(result: SearchResult) -> dict[str, Any]:
    best = result.best
    return {
        "mnk": result.problem.mnk,
        "measured": len(result.measurements),
        "failed": sum(not row.ok for row in result.measurements),
        "best": best.config.name if best and best.config else None,
        "median_us": best.median_us if best else None,
        # Of the same rounds as the best, so that the ratio is the speed-up.
        "cublaslt_auto_us": best.median_us * best.speedup if best and best.speedup else result.reference_us,
        "speedup": best.speedup if best else None,
    }


def _print(results: list[SearchResult], as_json: bool) -> None:
    rows = [_row(result) for result in results]
    if as_json:
        print_json(rows)
    else:
        print_table(("shape", *list(rows[0])[1:]), [tuple(row.values()) for row in rows])


def _reasons(results: list[SearchResult]) -> str:
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(result.failures)
    return "; ".join(f"{count} x {reason}" for reason, count in counts.most_common(3)) or "nothing was legal"
