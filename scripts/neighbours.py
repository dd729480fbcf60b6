"""How far behind is a kernel taken over from a neighbour? Leaves one shape out at a time. Needs no GPU.

    python scripts/neighbours.py RECORDS... [--shapes-file judge96]
    python scripts/neighbours.py RECORDS... --table cudal2/data/tables/h200_fp32_tn.json

RECORDS are .parquet recordings or directories of shards, the most trusted last. Each shape's best known configuration,
with PDL, stands in a table; then each shape is asked of the table of all others, and what would serve it is looked up
in the shape's own records. Where they do not hold that there is nothing to say: the last line counts these shapes.
With --table the shapes of RECORDS, timed beside cuBLASLt, are served by that table less their own entries, and compared
with it; what was not measured counts as the nearest configuration of its family that was, the library as cuBLASLt.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path

from cudal2.cli.main import guarded, guarded_imports

with guarded_imports():
    from cudal2.cli import arguments as shared
    from cudal2.cli.output import note, print_table
    from cudal2.errors import NothingValidError
    from cudal2.problem import Problem
    from cudal2.records.measurement import Measurement, costs
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
    if arguments.table:
        beside = log_beside([row for part in rows for row in part if row.ref_times_us])
        show_beside(beside, served_by(KernelTable.load(arguments.table, None, *kind), beside))
        return
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


def log_beside(rows: Iterable[Measurement]) -> Behind:
    """Of each shape's configurations the logarithm of their time over cuBLASLt's of the same rounds, the latest.

    Raises:
        NothingValidError: There are none.
    """
    found: dict[Problem, dict[KernelConfig, float]] = defaultdict(dict)
    for row in rows:
        if row.ok and row.config is not None:
            (over,) = costs([row])
            found[row.problem][row.config] = math.log(over)
    if not found:
        raise NothingValidError("the records hold no shape of this kind with PDL that was timed beside cuBLASLt")
    return dict(found)


def served_by(table: KernelTable, beside: Behind) -> dict[Problem, KernelConfig | None]:
    """What a table serves each shape without its own entry; ``None`` for the library."""
    found = {}
    for problem in beside:
        others = [entry for entry in table.entries if entry.mnk != problem.mnk]
        entry = KernelTable(table.header, others).best(problem.m, problem.n, problem.k)
        found[problem] = entry.config if entry is not None else None
    return found


def show_beside(beside: Behind, served: Mapping[Problem, KernelConfig | None]) -> None:
    """A line for each shape, worst first, then the means."""
    logs = {problem: nearest(served[problem], values) for problem, values in beside.items()}
    known = {problem: log for problem, log in logs.items() if log is not None}
    best = {problem: min(0.0, *beside[problem].values()) for problem in known}
    rows = []
    for problem in sorted(known, key=lambda problem: best[problem] - known[problem]):
        config = served[problem]
        how = "library" if config is None else "measured" if config in beside[problem] else "nearest"
        ratios = (f"{math.exp(-log):.3f}" for log in (known[problem], best[problem]))
        rows.append((problem.mnk, *ratios, how, config.name if config is not None else "-"))
    print_table(("shape", "over_cublaslt", "best_known", "how", "served"), rows)
    means = [math.exp(-statistics.mean(logs.values())) for logs in (known, best)]
    counts = Counter(row[3] for row in rows)
    print(
        f"{len(known)} of {len(beside)} shapes: {means[0]:.3f}x cuBLASLt, the best known {means[1]:.3f}x; "
        f"ahead on {sum(log < 0.0 for log in known.values())}, behind on {sum(log > 0.0 for log in known.values())}; "
        + ", ".join(f"{count} {how}" for how, count in sorted(counts.items()))
    )


def nearest(config: KernelConfig | None, values: Mapping[KernelConfig, float]) -> float | None:
    """A configuration's value, or that of the most alike of its family; the library's is 0."""
    if config is None or config in values:
        return values[config] if config is not None else 0.0
    alike = [one for one in values if (one.family, _padded(one)) == (config.family, _padded(config))]
    return values[min(alike, key=lambda one: (_unlike(one, config), values[one]))] if alike else None


def _padded(config: KernelConfig) -> bool:
    return bool(getattr(config, "padded", False))


def _unlike(one: KernelConfig, other: KernelConfig) -> float:
    """Sides of tiles count most, then other numbers by their ratio, then whatever else differs."""
    total = 0.0
    for axis in fields(one):
        mine, theirs = getattr(one, axis.name), getattr(other, axis.name)
        if isinstance(mine, str) or not (mine and theirs):
            total += 0.2 * (mine != theirs)
        else:
            total += (1.0 if axis.name in ("tile_m", "tile_n") else 0.3) * abs(math.log(mine / theirs))
    return total


def _best(values: Mapping[KernelConfig, float]) -> KernelConfig:
    return min(values, key=lambda config: (values[config], config.name))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = shared.Parser(description=__doc__)
    parser.add_argument("records", type=Path, nargs="+", help="a .parquet recording, or a directory of shards")
    parser.add_argument(
        "--shapes-file", metavar="FILE", help="ask these shapes only: YAML, or a name in configs/shapes"
    )
    parser.add_argument("--table", type=Path, metavar="FILE", help="serve from this table, beside cuBLASLt")
    shared.add_kind(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(guarded(main))
