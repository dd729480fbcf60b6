"""``cudal2 train``: PPO over the kernel space, on the GPU or by replay; leaves a run directory with a kernel table."""

from __future__ import annotations

import argparse
import logging
import statistics
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudal2.cli import arguments as shared
from cudal2.cli.output import counted, note, print_json
from cudal2.cli.runners import add_backend, open_runner
from cudal2.cli.table import print_entries
from cudal2.errors import NothingValidError

if TYPE_CHECKING:
    from cudal2.records.measurement import Measurement
    from cudal2.rl.train import TrainResult

_EPILOG = """examples:
  cudal2 train --arch sm90                                     GPU if there is one, else the shipped recording
  cudal2 train --backend gpu --shapes 64_4096_64 4096_4096_64 --steps 2000 --run-dir runs/mine
  cudal2 train --run-dir runs/mine --resume --steps 4000       continue to 4000 steps in all

The run directory holds the resolved settings, checkpoints, TensorBoard events, the learning curve and table.json;
Ctrl-C saves the last rollout and the table so far."""


def add(commands: Any) -> argparse.ArgumentParser:
    """Registers the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "train", help="learn which kernel suits which shape, save the winners", description=__doc__, epilog=_EPILOG
    )
    shared.add_arch(parser)
    shared.add_shapes(parser)
    shared.add_kind(parser)
    shared.add_space(parser)
    parser.add_argument(
        "--settings", default="ppo", metavar="FILE", help="YAML, or a name in configs/train (default ppo)"
    )
    parser.add_argument(
        "--steps",
        type=shared.positive,
        metavar="N",
        help="measurements in all, rounded up to whole rollouts of n_envs x n_steps (default: the settings')",
    )
    parser.add_argument("--horizon", type=shared.positive, default=1, metavar="N", help="steps per episode (default 1)")
    parser.add_argument(
        "--seed", type=shared.seed, metavar="S", help="seed of policy and shapes (default: the settings')"
    )
    parser.add_argument(
        "--counters", type=Path, metavar="DIR", help="show the policy these profiles (`cudal2 profile`; default: none)"
    )
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="default: runs/DATE-TIME")
    parser.add_argument("--resume", action="store_true", help="continue the run in --run-dir")
    add_backend(parser)
    shared.add_json(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    from cudal2.records.counters import ProfileBook
    from cudal2.settings import load_train

    run_dir = arguments.run_dir or Path("runs") / f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"
    settings = load_train(arguments.settings)
    counters = ProfileBook.load(arguments.counters) if arguments.counters else None
    with open_runner(arguments, run_dir / "records") as opened:
        from cudal2.rl.train import train

        # TensorBoard's remark on TensorFlow is nothing the reader can act on.
        logging.getLogger("tensorboard").setLevel(logging.ERROR)
        note(f"run directory: {run_dir}")
        result = train(
            settings,
            opened.runner,
            run_dir,
            resume=arguments.resume,
            seed=arguments.seed,
            steps=arguments.steps,
            problems=opened.problems,
            horizon=arguments.horizon,
            fingerprint=opened.fingerprint,
            counters=counters,
            known=_known(run_dir / "records") if arguments.resume and opened.backend == "gpu" else (),
        )
    return _report(result, arguments.json)


def _known(records: Path) -> tuple[Measurement, ...]:
    """What the run measured after its last checkpoint, and before."""
    from cudal2.records.shards import read_shards

    return tuple(read_shards(records).measurements)


def _report(result: TrainResult, as_json: bool) -> int:
    from cudal2.table import KernelTable

    best = [found for found in result.best if found is not None]
    if as_json:
        print_json(
            {
                "run_dir": str(result.run_dir),
                "tables": [str(path) for path in result.table_paths],
                "steps": result.steps,
                "measured": result.distinct,
                "steps_per_s": round(result.steps_per_s, 1),
                "best": [
                    {"mnk": found.problem.mnk, "kernel": found.config.name, "speedup": found.speedup} for found in best
                ],
            }
        )
    note(f"{result.steps} steps, {result.distinct} configurations measured, {result.steps_per_s:.0f} steps/s")
    if not best:
        raise NothingValidError(f"no candidate was valid in {result.steps} steps: {result.run_dir} has the records")
    mean = statistics.geometric_mean(found.speedup for found in best)
    note(f"best kernels found: {mean:.3f}x cuBLASLt-AutoTuning, geometric mean of {counted(len(best), 'shape')}")
    for path in result.table_paths:
        note(f"table, with the library where no kernel of ours won; search figures, not final ones: {path}")
        if not as_json:
            print_entries(KernelTable.load(path))
    return 0
