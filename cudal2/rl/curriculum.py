"""Which problem an episode gets: uniform at first, later more often where the policy is far from the best known."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Steps with uniform draws; regrets mean nothing before.
WARM_UP_STEPS = 20_000
#: Share of draws that stays uniform.
UNIFORM_SHARE = 0.5
#: Weight of a new reward in a problem's running mean.
MEAN_RATE = 0.05


class Curriculum:
    """Draws problems from the given generator only.

    Args:
        problems: How many there are.
        warm_up: Steps with uniform draws.
    """

    def __init__(self, problems: int, warm_up: int = WARM_UP_STEPS) -> None:
        self._warm_up = warm_up
        self._steps = 0
        self._mean = np.full(problems, np.nan)
        self._best = np.full(problems, -np.inf)

    def draw(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Indices of the next problems."""
        if self._steps < self._warm_up:
            return rng.integers(len(self._mean), size=size)
        return np.asarray(rng.choice(len(self._mean), size=size, p=self.weights()))

    def weights(self) -> NDArray[np.float64]:
        """Probability of each problem: half uniform, half proportional to best known minus mean reward."""
        uniform = np.full(len(self._mean), 1.0 / len(self._mean))
        regret = np.where(np.isnan(self._mean), 0.0, self._best - np.nan_to_num(self._mean))
        regret = np.maximum(np.where(np.isfinite(regret), regret, 0.0), 0.0)
        if not regret.any():
            return uniform
        return np.asarray(UNIFORM_SHARE * uniform + (1.0 - UNIFORM_SHARE) * regret / regret.sum())

    def update(self, index: NDArray[np.int64], rewards: NDArray[np.float64]) -> None:
        """Takes in one batch of rewards."""
        self._steps += len(index)
        np.maximum.at(self._best, index, rewards)
        for problem, reward in zip(index.tolist(), rewards.tolist(), strict=True):
            mean = self._mean[problem]
            self._mean[problem] = reward if np.isnan(mean) else mean + MEAN_RATE * (reward - mean)

    def state(self) -> dict[str, Any]:
        """Plain values to continue from."""
        return {"steps": self._steps, "mean": self._mean.tolist(), "best": self._best.tolist()}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what :meth:`state` held."""
        self._steps = state["steps"]
        self._mean[:] = state["mean"]
        self._best[:] = state["best"]
