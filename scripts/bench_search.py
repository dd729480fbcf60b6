"""Compares the search strategies at equal budget on shapes the policy was not trained on.

    python scripts/bench_search.py [--recording FILE] [--folds 4] [--steps 20480] [--json] [--out FILE]

Every shape is held out once: what ranks it, the policy or its nearest neighbours, knows the other folds only. The
figure is the geometric mean over shapes of t_ref / t_best after B measurements, t_ref being cuBLASLt-AutoTuning; a
shape without a correct candidate counts as exp(-2). `exhaustive` at an unlimited budget is what any search could reach.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cudal2.cli.main import guarded, guarded_imports

with guarded_imports():
    import numpy as np

    from cudal2.cli.arguments import Parser, positive
    from cudal2.cli.benchmark import add_output, finish
    from cudal2.problem import Problem
    from cudal2.progress import track
    from cudal2.records.recording import Recording, bundled_recording
    from cudal2.rl.rank import policy_strategy
    from cudal2.rl.train import train
    from cudal2.runners.replay import ReplayRunner
    from cudal2.search.base import SearchSession, Strategy
    from cudal2.search.compare import BUDGETS, compare
    from cudal2.search.nearest import nearest_strategy
    from cudal2.search.strategies import STRATEGIES
    from cudal2.settings import load_train

SEEDS = range(5)


def main() -> None:
    """Runs the comparison and prints it."""
    parser = Parser(description=__doc__)
    parser.add_argument("--recording", type=Path, help="recording to replay (default: the shipped one)")
    parser.add_argument("--folds", type=positive, default=4, help="parts that are held out in turn (default 4)")
    parser.add_argument("--steps", type=positive, default=20_480, help="training steps per fold (default 20480)")
    add_output(parser)
    arguments = parser.parse_args()
    runner = ReplayRunner(Recording.load(arguments.recording or bundled_recording()), on_missing="mask")
    figures = compare_held_out(runner, arguments.folds, arguments.steps)
    finish("search", figures, table(figures), arguments)


def table(figures: dict[str, Any]) -> str:
    """One line per strategy, one column per budget."""
    rows: dict[str, list[float]] = {}
    for one in [*figures["scores"], {**figures["optimum"], "strategy": "optimum"}]:
        rows.setdefault(one["strategy"], []).append(one["geomean_ratio"])
    head = f"{'strategy':12}" + "".join(f"{'B=' + str(budget):>8}" for budget in BUDGETS)
    lines = (f"{name:12}" + "".join(f"{ratio:8.3f}" for ratio in ratios) for name, ratios in rows.items())
    return "\n".join([head, *lines])


def compare_held_out(runner: ReplayRunner, folds: int, steps: int) -> dict[str, Any]:
    """All strategies on all shapes, the policy always on shapes it has not seen."""
    drawn = {name: STRATEGIES[name] for name in ("random", "hill_climb", "beam")}
    ranked = {
        "analytic": STRATEGIES["analytic"],
        "nearest": held_out(runner, folds, lambda seen: nearest_strategy(runner, seen)),
        "policy": held_out(runner, folds, lambda seen: trained(runner, seen, steps)),
    }
    exhaustive = {"exhaustive": STRATEGIES["exhaustive"]}
    scores = compare(drawn, runner, seeds=SEEDS) + compare(ranked, runner)
    (optimum,) = compare(exhaustive, runner, budgets=(runner.space.total,))
    return {
        "shapes": len(runner.problems),
        "folds": folds,
        "scores": [score.to_dict() for score in scores],
        "optimum": optimum.to_dict(),
    }


def held_out(runner: ReplayRunner, folds: int, made_from: Callable[[Sequence[Problem]], Strategy]) -> Strategy:
    """One strategy per fold, each made from the other folds' shapes and asked only for its own."""
    strategies: dict[Problem, Strategy] = {}
    for fold in track(range(folds), "folds"):
        own = runner.problems[fold::folds]
        seen = [problem for problem in runner.problems if problem not in own]
        strategies |= dict.fromkeys(own, made_from(seen))

    def strategy(session: SearchSession, rng: np.random.Generator) -> None:
        strategies[session.problem](session, rng)

    return strategy


def trained(runner: ReplayRunner, seen: Sequence[Problem], steps: int) -> Strategy:
    """A policy that has met these shapes and no other."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        train(load_train("ppo"), runner, run_dir, steps=steps, problems=seen, progress=False)
        return policy_strategy(run_dir, runner.space)


if __name__ == "__main__":
    sys.exit(guarded(main))
