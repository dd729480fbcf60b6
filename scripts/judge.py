"""Judges the best recorded configurations of each shape against every baseline on this machine's GPU.

    python scripts/judge.py RECORDS... --out cudal2/data/finals [--top 2] [--minutes 9] [--with quack,triton]
    python scripts/judge.py RECORDS... --acc fp16 --take-over --shapes-file repeat24 --out DIR
    python scripts/judge.py RECORDS... --dtype bf16 --take-over --shapes-file repeat24 --out DIR
    python scripts/judge.py RECORDS... --plan plan.jsonl --out DIR

Each of RECORDS is a .parquet recording or a directory of shards. Each shape's fastest configurations, per PDL setting,
and those of the plan, meet in one process; the best of them meets torch.matmul, cuBLAS and cuBLASLt in shuffled
interleaved rounds of fresh processes. Every row is appended to a new shard in --out. Shapes that have a final there are
left out, so that the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cudal2.cli.main import guarded, guarded_imports

with guarded_imports():
    from cudal2.bench.baselines import contestants
    from cudal2.build.pool import BuildPool
    from cudal2.cli import arguments as shared
    from cudal2.cli.backend import require_gpu
    from cudal2.cli.candidates import legal_of
    from cudal2.cli.eval import PDL_COLUMNS
    from cudal2.cli.output import note
    from cudal2.errors import NothingValidError, UsageError
    from cudal2.problem import Acc, Dtype, Problem, require_accumulator
    from cudal2.records.measurement import Measurement
    from cudal2.records.recording import read_records
    from cudal2.records.shards import RecordLog, read_shards, shard_files
    from cudal2.report.board import boards
    from cudal2.runners.finals import already_judged, best_configs, run_finals
    from cudal2.runners.local import LocalRunner
    from cudal2.runners.plan import Work, families_of, read_plan
    from cudal2.settings import load_bench, load_shapes
    from cudal2.space.config import KernelConfig
    from cudal2.space.families import FAMILIES
    from cudal2.space.space import SearchSpace


def main() -> None:
    """Plans, judges, says how it went."""
    arguments = parse()
    require_accumulator(arguments.acc, arguments.dtype)
    if not arguments.records and arguments.plan is None:
        raise UsageError("judge.py needs RECORDS or --plan FILE to choose from")
    planned = read_plan(arguments.plan) if arguments.plan else []
    wanted = set(load_shapes(arguments.shapes_file).shapes) if arguments.shapes_file else None
    settings, cache = load_bench(arguments.bench), shared.build_cache(arguments)
    require_gpu(arguments.device)
    contestants.require(arguments.optional)
    records = [row for path in arguments.records for row in read_records(path, allow_mixed=True).measurements]
    best = best_configs(records, arguments.top)
    for problem, configs in legal(planned):
        best[problem] = list(dict.fromkeys([*best.get(problem, ()), *configs]))
    if arguments.take_over:
        best = taken_over(best, arguments.acc, arguments.dtype)
    before = read_shards(arguments.out, allow_mixed=True).measurements if shard_files(arguments.out) else ()
    done = already_judged(before)
    kind = (arguments.acc, arguments.dtype)
    plan = [
        (problem, configs)
        for problem, configs in sorted(best.items())
        if problem not in done and (problem.acc, problem.dtype) == kind and (wanted is None or problem.mnk in wanted)
    ]
    known = {problem.mnk for problem in best if (problem.acc, problem.dtype) == kind}
    if not known & (known if wanted is None else wanted):
        raise NothingValidError(nothing(best, arguments))
    note(f"{len(plan)} finals to run, {len(done)} run before")
    if wanted is not None and wanted - known:
        note(f"{len(wanted - known)} shapes have no records: {', '.join(sorted(wanted - known))}")
    if not plan:
        return
    families = {config.family for _, configs in plan for config in configs}
    columns = PDL_COLUMNS[arguments.pdl]
    seconds = arguments.minutes * 60.0 if arguments.minutes else None
    with (
        LocalRunner(SearchSpace(), settings=settings, device_index=arguments.device, cache=cache) as runner,
        BuildPool(cache, runner.toolchain) as pool,
        RecordLog(
            arguments.out,
            runner.fingerprint(families),
            {"command": "scripts/judge.py", "top": arguments.top},
        ) as log,
    ):
        outcome = run_finals(
            runner.worker, pool, plan, settings, log, columns, say, seconds, optional=arguments.optional
        )
    note(f"{len(outcome.judged)} judged, {len(outcome.failed)} failed, {len(outcome.left)} left for another run")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = shared.Parser(description=__doc__)
    parser.add_argument("records", type=Path, nargs="*", help="a .parquet recording, or a directory of shards")
    parser.add_argument("--out", type=Path, required=True, help="directory of finals")
    shared.add_plan(parser)
    parser.add_argument(
        "--top", type=shared.positive, default=2, help="configurations per shape and PDL setting (default 2)"
    )
    parser.add_argument("--acc", choices=("fp32", "fp16"), default="fp32", help="accumulator (default fp32)")
    shared.add_dtype(parser)
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="records of the other accumulator or type give candidates too, where legal",
    )
    parser.add_argument("--pdl", choices=tuple(PDL_COLUMNS), default="both", help="PDL columns (default both)")
    parser.add_argument("--shapes-file", help="only these shapes: YAML, or a name in configs/shapes")
    parser.add_argument("--bench", default="offline", help="how to time: YAML, or a name in configs/bench")
    parser.add_argument("--minutes", type=shared.minutes, help="begin no batch of finals after this long")
    parser.add_argument("--device", type=shared.index, default=0, help="which GPU (default 0)")
    shared.add_optional(parser)
    shared.add_cache(parser)
    return parser.parse_args()


def legal(planned: Work) -> Work:
    """What of a plan is legal on its shape, with a line for each configuration that is not."""
    spaces = {family: SearchSpace(family=family) for family in families_of(planned)}
    kept: Work = []
    for problem, configs in planned:
        given = ((config, spaces[config.family]) for config in dict.fromkeys(configs))
        if left := tuple(legal_of(given, problem, " and left out")):
            kept.append((problem, left))
    return kept


def nothing(best: Mapping[Problem, Sequence[KernelConfig]], arguments: argparse.Namespace) -> str:
    """Why there is no shape to judge."""
    kinds = {(problem.acc, problem.dtype) for problem in best}
    if not kinds:
        return "nothing to judge: neither RECORDS nor --plan has a configuration that is right and legal"
    if (arguments.acc, arguments.dtype) in kinds:
        return f"nothing to judge: neither RECORDS nor --plan has a shape of --shapes-file {arguments.shapes_file}"
    held = " and ".join(f"--acc {acc} --dtype {dtype}" for acc, dtype in sorted(kinds))
    return f"nothing to judge: RECORDS and --plan are of {held}; give that, or --take-over"


def taken_over(
    best: Mapping[Problem, Sequence[KernelConfig]], acc: Acc, dtype: Dtype
) -> dict[Problem, list[KernelConfig]]:
    """The candidates of every shape for one accumulator and type, whichever they were best with: its own first."""
    spaces = {name: SearchSpace(family=name) for name in FAMILIES}
    taken: dict[Problem, list[KernelConfig]] = {}
    for source in sorted(best, key=lambda problem: (problem.acc, problem.dtype) != (acc, dtype)):
        problem = replace(source, acc=acc, dtype=dtype)
        held = taken.setdefault(problem, [])
        held += [c for c in best[source] if c not in held and not spaces[c.family].explain(c, problem)]
    return {problem: configs for problem, configs in taken.items() if configs}


def say(problem: Problem, rows: Sequence[Measurement]) -> None:
    """One line per final and column."""
    for board in boards(rows):
        standing = board.standing()
        for shape in standing.shapes if standing else ():
            kernel = shape.ours.config.name if shape.ours.config else ""
            found = shape.comparison
            note(
                f"{problem.mnk} {board.key}: {found.ratio:.3f} [{found.low:.3f}, {found.high:.3f}] {found.verdict}"
                f" {shape.ours.median_us:.3f} us, {kernel}"
            )
        for mnk, reason in board.unserved:
            note(f"{mnk} {board.key}: none of ours ran: {reason}")


if __name__ == "__main__":
    sys.exit(guarded(main))
