"""Measures replay training: PPO steps per second on one core, policy updates and checkpoints included.

    python scripts/bench_replay.py [--recording FILE] [--steps 50000] [--json] [--out FILE]

Trains with configs/train/ppo.yaml into a temporary folder, pinned to one core.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cudal2.cli.main import guarded, guarded_imports

with guarded_imports():
    from cudal2.cli.arguments import Parser, positive
    from cudal2.cli.benchmark import add_output, finish
    from cudal2.records.recording import Recording, bundled_recording
    from cudal2.rl.train import train
    from cudal2.runners.replay import ReplayRunner
    from cudal2.settings import load_train


def main() -> None:
    """Trains once and prints the figures."""
    parser = Parser(description=__doc__)
    parser.add_argument("--recording", type=Path, help="recording to replay (default: the shipped one)")
    parser.add_argument("--steps", type=positive, help="environment steps (default: the settings', as in demo.sh)")
    add_output(parser)
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    figures = measure(arguments.recording or bundled_recording(), arguments.steps)
    text = "\n".join(f"{key:24} {value}" for key, value in figures.items())
    finish("replay", figures, text, arguments)


def measure(recording: Path, steps: int | None) -> dict[str, Any]:
    """Figures of one run on a recording."""
    runner = ReplayRunner(Recording.load(recording), on_missing="mask")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = train(load_train("ppo"), runner, Path(folder) / "run", steps=steps, progress=False)
    return {
        "recording": recording.name,
        "problems": len(runner.problems),
        "configurations": sum(len(runner.allowed(problem)) for problem in runner.problems),
        "steps": result.steps,
        "train_s": round(time.perf_counter() - started, 1),
        "steps_per_s": round(result.steps_per_s),
        "distinct_measured": result.distinct,
        "first_reward": round(result.curve[0]["reward"], 3),
        "last_reward": round(result.curve[-1]["reward"], 3),
    }


if __name__ == "__main__":
    sys.exit(guarded(main))
