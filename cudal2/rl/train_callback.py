"""What happens around the rollouts of a training run: progress, scalars, checkpoints and the table so far."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

from cudal2.floor import CLASS_NAMES, floor_class
from cudal2.progress import Progress
from cudal2.rl.scoring import Scorer

Row = dict[str, Any]

#: Mean entropy, nats, below which exploring is paid more: a policy of one choice per shape finds nothing new.
ENTROPY_FLOOR = 2.0


def best_ratios(scorer: Scorer) -> dict[str, float]:
    """Geometric mean over problems of the best t_ref / t so far: ``all``, and each floor class that has a result."""
    groups: dict[str, list[float]] = {"all": []}
    for problem, value in zip(scorer.problems, scorer.best_log_ratio.tolist(), strict=True):
        if math.isfinite(value):
            groups["all"].append(value)
            groups.setdefault(floor_class(problem.m, problem.n, problem.k), []).append(value)
    names = ("all", *CLASS_NAMES)
    return {name: math.exp(float(np.mean(groups[name]))) for name in names if groups.get(name)}


def entropy_weight(weight: float, entropy: float) -> float:
    """The entropy bonus for the next rollout: up to a hundred times the settings' as the policy narrows."""
    missing = (ENTROPY_FLOOR - entropy) / ENTROPY_FLOOR
    return weight * 100.0**missing if missing > 0.0 else weight


class RunCallback(BaseCallback):
    """Runs between rollouts, where the state of a run is complete.

    Args:
        scorer: Memory of what was measured.
        progress: Bar to advance.
        at_boundary: Called at every rollout boundary; saves what is due.
        curve: Rows of the learning curve so far, continued in place.
        ent_coef: Weight of the entropy bonus above the entropy floor.
    """

    def __init__(
        self,
        scorer: Scorer,
        progress: Progress | None,
        at_boundary: Callable[[], None],
        curve: list[Row],
        ent_coef: float,
    ) -> None:
        super().__init__()
        self.curve = curve
        self._ent_coef = ent_coef
        self._scorer = scorer
        self._progress = progress
        self._at_boundary = at_boundary
        self._rewards: list[float] = []
        self._began_s = time.perf_counter()

    def _on_rollout_start(self) -> None:
        self.finish_rollout()

    def _on_step(self) -> bool:
        rewards = self.locals["rewards"]
        self._rewards.append(float(np.mean(rewards)))
        if self._progress is not None:
            self._progress.advance(len(rewards), f"reward {self._rewards[-1]:+.2f}, {self._scorer.distinct} measured")
        return True

    def _on_rollout_end(self) -> None:
        self.logger.record("search/reward", float(np.mean(self._rewards)))
        self.logger.record("search/distinct_configs", self._scorer.distinct)
        for name, ratio in best_ratios(self._scorer).items():
            self.logger.record(f"best_ratio/{name}", ratio)

    def finish_rollout(self) -> None:
        """Closes the rollout that the last update learned from, if there is one, and lets the run be saved."""
        if self._rewards:
            self.curve.append(self._row())
            self._rewards = []
        self._began_s = time.perf_counter()
        if self.curve:
            # A function of the curve alone, so that a resumed run goes on with the same weight.
            assert isinstance(self.model, PPO)
            self.model.ent_coef = entropy_weight(self._ent_coef, self.curve[-1]["entropy"])
        self._at_boundary()

    def _row(self) -> Row:
        values = self.logger.name_to_value
        steps = len(self._rewards) * self.training_env.num_envs
        speed = steps / (time.perf_counter() - self._began_s)
        self.logger.record("time/steps_per_s", speed)
        self.logger.record("search/entropy", -float(values.get("train/entropy_loss", math.nan)))
        return {
            "steps": self.model.num_timesteps,
            "reward": float(np.mean(self._rewards)),
            "entropy": -float(values.get("train/entropy_loss", math.nan)),
            "approx_kl": float(values.get("train/approx_kl", math.nan)),
            "distinct": self._scorer.distinct,
            "best_ratio": best_ratios(self._scorer),
            "steps_per_s": round(speed, 1),
        }
