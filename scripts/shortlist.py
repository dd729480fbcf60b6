"""Writes a sweep plan: what to measure on shapes that nobody measured, from the records of others. Needs no GPU.

    python scripts/shortlist.py RECORDS... --shapes-file grid --without judge96 --out plan.jsonl
    python scripts/shortlist.py --space sm80_record --shapes-file sm80_odd --out plan.jsonl
    python -m cudal2 build --plan plan.jsonl                             compile its kernels, on any machine
    python -m cudal2 record --plan plan.jsonl --pdl on --out runs/sweep  measure it

Each of RECORDS is a .parquet recording or a directory of shards, the most trusted last. Configurations that they hold
for a shape are not proposed again, so that a second plan, made from the first one's records too, looks further. With
--space the analytic model picks from that space, for families that have no records.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeAlias

from cudal2.cli.main import guarded, guarded_imports

with guarded_imports():
    from cudal2.cli import arguments as shared
    from cudal2.cli.output import counted, note
    from cudal2.errors import NothingValidError, UsageError
    from cudal2.floor import HEATING_FLOOR_US, heats
    from cudal2.problem import Problem
    from cudal2.progress import Progress
    from cudal2.records.measurement import Measurement
    from cudal2.records.recording import read_records
    from cudal2.runners.plan import in_passes, write_plan
    from cudal2.search.shortlist import Shortlister, analytic_shortlist
    from cudal2.search.surrogate import Behind, log_behind
    from cudal2.settings import load_shapes
    from cudal2.space.config import KernelConfig

Propose: TypeAlias = Callable[[Problem, int, Collection[KernelConfig]], list[KernelConfig]]


def main() -> None:
    """Reads, learns, writes."""
    arguments = parse()
    if arguments.family and not arguments.space:
        raise UsageError("--family goes with --space: without it the records say which families to look at")
    pdl, kind = arguments.pdl == "on", shared.signature(arguments)
    records = [read_records(path, allow_mixed=True).measurements for path in arguments.records]
    known = [[row for row in rows if row.pdl == pdl and row.problem.signature == kind] for rows in records]
    left_out = set(load_shapes(arguments.without).shapes) if arguments.without else set()
    problems = [problem for problem in shared.problems(arguments) if problem.mnk not in left_out]
    if not problems:
        raise NothingValidError(f"--without {arguments.without} leaves none of the shapes")
    note(f"{counted(len(problems), 'shape')}, {sum(map(len, known))} rows to learn from")
    behind = log_behind(known)
    tried = tried_in(known)
    propose = _proposer(arguments, behind)
    shortlists: dict[Problem, list[KernelConfig]] = {}
    with Progress("shortlist", len(problems)) as progress:
        for problem in problems:
            # Each measurement of a shape that heats the chip takes longer, and fewer kernels suit it.
            count = arguments.top_large if heats(problem.m, problem.n, problem.k) else arguments.top
            shortlists[problem] = propose(problem, count, tried.get(problem, ()))
            progress.advance(note=problem.mnk)
    work = in_passes(shortlists, arguments.first, arguments.seed)
    if not work:
        raise NothingValidError("nothing untried is legal for any of the shapes: --space may name another family's")
    write_plan(arguments.out, work)
    kernels = {(config.family, config.build_name) for _, configs in work for config in configs}
    configs = sum(len(configs) for _, configs in work)
    note(f"{arguments.out}: {configs} configurations, {counted(len(kernels), 'kernel')}")


def _proposer(arguments: argparse.Namespace, behind: Behind) -> Propose:
    """What the records say of their families; of a space that was named, what the analytic model says."""
    if not arguments.space:
        return Shortlister(behind).shortlist
    space = shared.search_space(arguments)
    return lambda problem, count, tried: analytic_shortlist(space, problem, count, tried)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = shared.Parser(description=__doc__)
    parser.add_argument("records", type=Path, nargs="*", help="a .parquet recording, or a directory of shards")
    parser.add_argument("--out", type=shared.out_file, required=True, help="the plan to write: JSON lines")
    shared.add_shapes(parser)
    shared.add_kind(parser)
    shared.add_arch(parser)
    shared.add_space(parser)
    parser.add_argument("--without", metavar="FILE", help="not these shapes: YAML, or a name in configs/shapes")
    parser.add_argument("--pdl", choices=("on", "off"), default="on", help="rows to learn from (default on)")
    parser.add_argument("--top", type=shared.positive, default=10, help="configurations a shape (default 10)")
    parser.add_argument(
        "--top-large",
        type=shared.positive,
        default=6,
        help=f"where the floor is over {HEATING_FLOOR_US:g} us (default 6)",
    )
    parser.add_argument("--first", type=shared.positive, default=4, help="of these in the first pass (default 4)")
    parser.add_argument("--seed", type=shared.seed, default=0, help="seed of the order of shapes (default 0)")
    return parser.parse_args()


def tried_in(records: Sequence[Sequence[Measurement]]) -> dict[Problem, set[KernelConfig]]:
    """Everything that was tried, failures included."""
    tried: dict[Problem, set[KernelConfig]] = {}
    for row in (row for rows in records for row in rows):
        if row.config is not None:
            tried.setdefault(row.problem, set()).add(row.config)
    return tried


if __name__ == "__main__":
    sys.exit(guarded(main))
