"""Serves many shapes at random arrivals on this machine's GPU: ours and every baseline, in three states.

    python scripts/judge_server.py --shapes-file server24 --target_qps 1000 --out DIR [--minutes 4]

Each shape's best configurations without PDL (of --records, by default the shipped finals) and every library serve the
same arrivals in shuffled blocks; every row is appended to a new shard in --out. Shapes that were served at this rate in
every state are left out, so that the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from cudal2.cli.main import guarded, guarded_imports

with guarded_imports():
    from cudal2.bench.native import SOURCE
    from cudal2.bench.server.traffic import Traffic
    from cudal2.build.host import compile_shared
    from cudal2.build.pool import BuildPool
    from cudal2.cli import arguments as shared
    from cudal2.cli.backend import require_gpu
    from cudal2.cli.eval_server import DEFAULT_QPS
    from cudal2.cli.output import note
    from cudal2.paths import data_dir
    from cudal2.problem import Problem
    from cudal2.records.finals import REFERENCE
    from cudal2.records.latency import Latency, group_servings, read_latencies
    from cudal2.records.measurement import STATES
    from cudal2.records.recording import read_records
    from cudal2.records.shards import RecordLog, shard_files
    from cudal2.runners.finals import best_configs
    from cudal2.runners.local import LocalRunner
    from cudal2.runners.servings import Service, already_served, run_servings
    from cudal2.settings import load_bench, load_shapes
    from cudal2.space.space import SearchSpace


def main() -> None:
    """Plans, serves, says how it went."""
    arguments = parse()
    require_gpu(arguments.device)
    settings, cache = load_bench(arguments.bench), shared.build_cache(arguments)
    traffic = Traffic(
        arguments.target_qps, tuple(arguments.state or STATES), seconds=arguments.seconds, seed=settings.seed
    )
    records = read_records(arguments.records, allow_mixed=True).measurements
    best = best_configs([row for row in records if not row.pdl], arguments.top)
    done = already_served(read_latencies(arguments.out, True).rows, traffic) if shard_files(arguments.out) else set()
    problems = load_shapes(arguments.shapes_file).problems(arguments.acc, dtype=arguments.dtype)
    plan = [(problem, best.get(problem, [])) for problem in problems if problem not in done]
    note(f"{len(plan)} shapes to serve, {len(problems) - len(plan)} served before")
    without = [problem.mnk for problem, configs in plan if not configs]
    if without:
        note(f"no configuration of ours is recorded for {', '.join(without)}: libraries alone serve them")
    service = Service(settings, traffic, compile_shared(SOURCE, cache.root))
    families = {config.family for _, configs in plan for config in configs}
    session = {"command": "scripts/judge_server.py", "top": arguments.top, "seconds": arguments.seconds}
    with (
        LocalRunner(SearchSpace(), settings=settings, device_index=arguments.device, cache=cache) as runner,
        BuildPool(cache, runner.toolchain) as pool,
        RecordLog(arguments.out, runner.fingerprint(families), session) as log,
    ):
        seconds = arguments.minutes * 60.0 if arguments.minutes else None
        outcome = run_servings(runner.worker, pool, plan, service, log, say, seconds)
    note(f"{len(outcome.judged)} served, {len(outcome.failed)} failed, {len(outcome.left)} left for another run")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = shared.Parser(description=__doc__)
    parser.add_argument("--shapes-file", default="server24", help="YAML, or a name in configs/shapes (server24)")
    parser.add_argument("--out", type=Path, required=True, help="directory of servings")
    parser.add_argument("--target_qps", type=float, default=DEFAULT_QPS, help="mean arrivals per second (default 1000)")
    parser.add_argument("--state", choices=STATES, action="append", help="may be repeated (default: all)")
    parser.add_argument("--seconds", type=float, default=5.0, help="per shape, for all contestants (default 5)")
    parser.add_argument(
        "--records", type=Path, default=data_dir() / "finals", help="a .parquet recording, or a directory of shards"
    )
    parser.add_argument("--top", type=shared.positive, default=2, help="configurations to try per shape (default 2)")
    parser.add_argument("--acc", choices=("fp32", "fp16"), default="fp32", help="accumulator (default fp32)")
    shared.add_dtype(parser)
    parser.add_argument(
        "--bench", default="offline", help="seed, workspace, L2 policy: YAML, or a name in configs/bench"
    )
    parser.add_argument("--minutes", type=shared.minutes, help="begin no shape after this long")
    parser.add_argument("--device", type=shared.index, default=0, help="which GPU (default 0)")
    shared.add_cache(parser)
    return parser.parse_args()


def say(problem: Problem, rows: Sequence[Latency]) -> None:
    """One line per state."""
    for serving in group_servings(rows):
        ours, found = serving.ours, serving.against(REFERENCE)
        if ours is None or found is None:
            reasons = sorted({row.reason for row in serving.rows if row.reason}) or ["no configuration"]
            note(f"{problem.mnk} {serving.state}: nothing of ours to compare: {reasons[0]}")
            continue
        note(
            f"{problem.mnk} {serving.state}: p50 {found.p50.ratio:.3f} [{found.p50.low:.3f}, {found.p50.high:.3f}]"
            f" {found.p50.verdict}, p99 {found.p99:.2f}, device {found.device.ratio:.3f};"
            f" {ours.quantile_us(0.5):.1f} us, load {ours.load:.1%}"
        )


if __name__ == "__main__":
    sys.exit(guarded(main))
