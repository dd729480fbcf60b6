"""How far behind is a kernel taken over from a neighbour? Leaves one shape out at a time. Needs no GPU.

    python scripts/neighbours.py RECORDS... [--shapes-file judge96]

RECORDS are .parquet recordings or directories of shards, the most trusted last. Each shape's best known configuration,
with PDL, stands in a table; then each shape is asked of the table of all others, and what would serve it is looked up
in the shape's own records. Where they do not hold that there is nothing to say: the last line counts these shapes.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path

from cudal2.cli import arguments as shared
from cudal2.cli.main import guarded
from cudal2.cli.output import note, print_table
from cudal2.errors import NothingValidError
from cudal2.problem import Problem
from cudal2.records.recording import read_records
from cudal2.search.surrogate import Behind, log_behind
from cudal2.settings import load_shapes
from cudal2.space.config import KernelConfig
from cudal2.table import Entry, Header, KernelTable


def main() -> None:
    """Reads, leaves out, prints."""
    arguments = parse()
    kind = shared.signature(arguments)
    records = [read_records(path, allow_mixed=True) for path in arguments.records]
    rows = [[row for row in part.measurements if row.pdl and row.problem.signature == kind] for part in records]
    behind = log_behind(rows)
    if len(behind) < 2:
        raise NothingValidError("the records hold fewer than two shapes of this kind with PDL")
    wanted = set(load_shapes(arguments.shapes_file).shapes) if arguments.shapes_file else None
    asked = [problem for problem in behind if wanted is None or problem.mnk in wanted]
    found = regrets(behind, Header.from_fingerprint(records[0].fingerprint, *kind), asked)
    known = {problem: regret for problem, regret in found.items() if regret is not None}
    if not known:
        raise NothingValidError(f"of {len(asked)} shapes asked none has a time for what would serve it")
    worst = sorted(known, key=lambda problem: -known[problem])[:5]
    print_table(("shape", "behind_percent"), [(problem.mnk, f"{100 * known[problem]:.1f}") for problem in worst])
    values = sorted(known.values())
    mean = statistics.geometric_mean(1.0 + value for value in values) - 1.0
    print(
        f"{len(values)} shapes: geometric mean {100 * mean:.1f} %, "
        f"90th percentile {100 * values[int(0.9 * (len(values) - 1))]:.1f} %, worst {100 * values[-1]:.1f} %"
    )
    note(f"{len(asked) - len(known)} of {len(asked)} shapes have no time for what would serve them, or nothing would")


def regrets(behind: Behind, header: Header, asked: list[Problem]) -> dict[Problem, float | None]:
    """How much longer than the best known each shape would take; ``None`` where its records do not say."""
    entries = [Entry(p.m, p.n, p.k, _best(values), None, 1.0, None, "searched", True) for p, values in behind.items()]
    found: dict[Problem, float | None] = {}
    for problem in asked:
        others = [entry for entry in entries if (entry.m, entry.n, entry.k) != (problem.m, problem.n, problem.k)]
        entry = KernelTable(header, others).best(problem.m, problem.n, problem.k)
        served = behind[problem].get(entry.config) if entry is not None and entry.config is not None else None
        found[problem] = math.expm1(served) if served is not None else None
    return found


def _best(values: Mapping[KernelConfig, float]) -> KernelConfig:
    return min(values, key=lambda config: (values[config], config.name))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = shared.Parser(description=__doc__)
    parser.add_argument("records", type=Path, nargs="+", help="a .parquet recording, or a directory of shards")
    parser.add_argument(
        "--shapes-file", metavar="FILE", help="ask these shapes only: YAML, or a name in configs/shapes"
    )
    shared.add_kind(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(guarded(main))
