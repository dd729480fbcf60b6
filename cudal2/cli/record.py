"""``cudal2 record``: measure every legal configuration of a subspace on the GPU; publish what was measured."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudal2.cli import arguments as shared
from cudal2.cli.backend import require_gpu
from cudal2.cli.output import note
from cudal2.cli.runners import add_gpu, open_gpu, open_gpu_families
from cudal2.errors import NothingValidError, UsageError

if TYPE_CHECKING:
    from cudal2.records.measurement import Measurement
    from cudal2.runners.sweep import Done

_EPILOG = """examples:
  cudal2 record --shapes-file record32 --space sm90_record --out runs/rec --minutes 9
  cudal2 record --shapes-file record32 --space sm90_record --out runs/rec        go on where that stopped
  cudal2 record --plan plan.jsonl --part 1/2 --device 0 --pdl on --out runs/sweep0   a plan's first half of shapes
  cudal2 record publish runs/rec --space sm90_record --out h200_fp32_tn.parquet

A plan (scripts/shortlist.py) names configurations of several kernel families; each has a directory in DIR.
Measurements are appended to shards in DIR as they are made, failures included; what is there is not measured again."""


def add(commands: Any) -> argparse.ArgumentParser:
    """Registers the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "record", help="measure a whole subspace on the GPU, for replay", description=__doc__, epilog=_EPILOG
    )
    actions = parser.add_subparsers(dest="action", metavar="publish", parser_class=shared.Parser)
    publish = actions.add_parser(
        "publish", help="write shards as one Parquet file", description="Publishes a recording."
    )
    publish.add_argument("shards", type=Path, metavar="DIR", help="directory that `cudal2 record` filled")
    publish.add_argument(
        "--out", required=True, type=shared.out_file, metavar="FILE", help="the .parquet file to write"
    )
    publish.add_argument(
        "--best", type=shared.positive, metavar="N", help="only the N fastest of each shape and PDL setting"
    )
    publish.add_argument("--allow-mixed", action="store_true", help="accept shards of several environments")
    shared.add_arch(publish)
    shared.add_space(publish)
    shared.add_arch(parser)
    shared.add_shapes(parser)
    shared.add_plan(parser)
    parser.add_argument("--part", type=shared.part, metavar="I/N", help="of a plan: every N-th shape from the I-th on")
    parser.add_argument(
        "--reference",
        choices=("on", "off"),
        default="on",
        help="of a plan: time cuBLASLt in the same rounds (default on)",
    )
    shared.add_kind(parser)
    shared.add_space(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory of shards; resumed if it holds any")
    parser.add_argument("--limit", type=shared.positive, metavar="N", help="at most N configurations per shape")
    parser.add_argument("--minutes", type=shared.minutes, metavar="M", help="begin no batch after M minutes")
    parser.add_argument("--seed", type=shared.seed, default=0, metavar="S", help="seed of the order (default 0)")
    add_gpu(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    return _publish(arguments) if arguments.action == "publish" else _record(arguments)


def _record(arguments: argparse.Namespace) -> int:
    from cudal2.runners.sweep import pending, sweep

    if arguments.out is None:
        raise UsageError("--out is missing: give the directory of the shards")
    if arguments.plan:
        return _record_plan(arguments)
    if arguments.part or arguments.reference == "off":
        raise UsageError("--part and --reference off go with --plan: a recording for replay needs the reference")
    problems = shared.problems(arguments)
    require_gpu(arguments.device)
    done = _done(arguments.out, arguments.pdl == "on")
    space = shared.search_space(arguments)
    work = [(problem, pending(space, problem, done, arguments.seed)[: arguments.limit]) for problem in problems]
    total = sum(len(configs) for _, configs in work)
    if not total and not done:
        raise NothingValidError("nothing to record: no configuration is legal; `cudal2 space --mnk M_N_K` says why")
    note(f"{total} measurements to make, {len(done)} made before")
    with _shown(total) as show, open_gpu(arguments, arguments.out, show) as opened:
        finished = sweep(opened.runner, work, _seconds(arguments))
    note(f"{arguments.out}: {'complete' if finished else 'not complete, the same command goes on'}")
    return 0


def _record_plan(arguments: argparse.Namespace) -> int:
    from cudal2.runners.plan import families_of, part_of, read_plan
    from cudal2.runners.sweep import sweep

    shared.plan_alone(arguments, "seed")
    work = read_plan(arguments.plan)
    require_gpu(arguments.device)
    if arguments.part:
        work = part_of(work, *arguments.part)
    families = families_of(work)
    done = set().union(*(_done(arguments.out / family, arguments.pdl == "on") for family in families))
    work = [(problem, tuple(one for one in configs if (problem, one) not in done)) for problem, configs in work]
    total = sum(len(configs) for _, configs in work)
    note(f"{total} measurements to make, {len(done)} made before")
    with _shown(total) as show, open_gpu_families(arguments, families, arguments.out, show) as runner:
        finished = sweep(runner, work, _seconds(arguments))
    note(f"{arguments.out}: {'complete' if finished else 'not complete, the same command goes on'}")
    return 0


@contextmanager
def _shown(total: int) -> Iterator[Callable[[Measurement], None]]:
    """A bar, and what moves it on."""
    from cudal2.progress import Progress

    failed = 0
    with Progress("record", total) as progress:

        def show(row: Measurement) -> None:
            nonlocal failed
            failed += not row.ok
            progress.advance(note=f"{row.problem.mnk}, {failed} failed")

        yield show


def _seconds(arguments: argparse.Namespace) -> float | None:
    return arguments.minutes * 60.0 if arguments.minutes else None


def _done(directory: Path, pdl: bool) -> Done:
    from cudal2.records.shards import read_shards, shard_files
    from cudal2.runners.sweep import already_done

    if not shard_files(directory):
        return set()
    return already_done(read_shards(directory).measurements, pdl)


def _publish(arguments: argparse.Namespace) -> int:
    from cudal2.records.recording import Recording
    from cudal2.records.shards import read_shards
    from cudal2.runners.finals import best_configs
    from cudal2.runners.sweep import already_done, pending

    shards = read_shards(arguments.shards, arguments.allow_mixed)
    space = shared.search_space(arguments) if arguments.space else None
    rows = shards.measurements
    if arguments.best:
        best = best_configs(rows, arguments.best)
        rows = tuple(row for row in rows if row.config is None or row.config in best.get(row.problem, ()))
    Recording.publish(rows, arguments.out, shards.fingerprints, space)
    size_mb = arguments.out.stat().st_size / 1e6
    ours = [row for row in rows if row.config is not None]
    recorded = sorted({row.problem for row in ours})
    note(f"{arguments.out}: {len(recorded)} problems, {len(rows)} rows, {size_mb:.2f} MB")
    if space is not None:
        for pdl in sorted({row.pdl for row in ours}):
            done = already_done(ours, pdl)
            missing = sum(len(pending(space, problem, done)) for problem in recorded)
            note(f"PDL {'on' if pdl else 'off'}: {missing} legal configurations of this space without a row")
    return 0
