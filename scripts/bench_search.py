"""Compares the search strategies at equal budget on shapes the policy was not trained on.

    python scripts/bench_search.py [--recording FILE] [--folds 4] [--steps 20480] [--json] [--out FILE]

Every shape is held out once: the policy that ranks it was trained on the other folds. The figure is the geometric mean
over shapes of t_ref / t_best after B measurements, t_ref being cuBLASLt-AutoTuning; a shape without a correct candidate
counts as exp(-2). `exhaustive` at an unlimited budget is what any search could reach.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cudal2.cli.benchmark import add_output, finish
from cudal2.problem import Problem
from cudal2.progress import track
from cudal2.records.recording import Recording, bundled_recording
from cudal2.rl.rank import policy_strategy
from cudal2.rl.train import train
from cudal2.runners.replay import ReplayRunner
from cudal2.search.base import Budget, SearchResult, Strategy, search
from cudal2.search.compare import BUDGETS, score
from cudal2.search.strategies import STRATEGIES
from cudal2.settings import load_train

SEEDS = range(5)


def main() -> None:
    """Runs the comparison and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recording", type=Path, help="recording to replay (default: the shipped one)")
    parser.add_argument("--folds", type=int, default=4, help="parts that are held out in turn (default 4)")
    parser.add_argument("--steps", type=int, default=20_480, help="training steps per fold (default 20480)")
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
    results: dict[str, list[SearchResult]] = {}
    optimum = []
    for fold in track(range(folds), "folds"):
        held_out = runner.problems[fold::folds]
        strategies = {"random": STRATEGIES["random"], "hill_climb": STRATEGIES["hill_climb"]}
        for name, strategy in strategies.items():
            results.setdefault(name, []).extend(run(name, strategy, runner, held_out, SEEDS))
        results.setdefault("analytic", []).extend(run("analytic", STRATEGIES["analytic"], runner, held_out))
        policy = trained_without(runner, held_out, steps)
        results.setdefault("policy", []).extend(run("policy", policy, runner, held_out))
        optimum += run("exhaustive", STRATEGIES["exhaustive"], runner, held_out, limit=None)
    return {
        "shapes": len(runner.problems),
        "folds": folds,
        "scores": [score(rows, budget).to_dict() for rows in results.values() for budget in BUDGETS],
        "optimum": score(optimum, max(len(result.measurements) for result in optimum)).to_dict(),
    }


def trained_without(runner: ReplayRunner, held_out: Sequence[Problem], steps: int) -> Strategy:
    """A policy that has not seen the held-out shapes."""
    seen = [problem for problem in runner.problems if problem not in held_out]
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        train(load_train("ppo"), runner, run_dir, steps=steps, problems=seen, progress=False)
        return policy_strategy(run_dir, runner.space)


def run(
    name: str,
    strategy: Strategy,
    runner: ReplayRunner,
    problems: Sequence[Problem],
    seeds: Sequence[int] = (0,),
    limit: int | None = max(BUDGETS),
) -> list[SearchResult]:
    """One search per problem and seed."""
    return [search(name, strategy, runner, problem, Budget(limit), seed) for problem in problems for seed in seeds]


if __name__ == "__main__":
    main()
