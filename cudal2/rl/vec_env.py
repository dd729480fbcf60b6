"""Many logical environments over one runner: a batch of proposals is deduplicated and measured in one go.

The GPU belongs to one process, so these are not processes; on a recording a batch is a few array look-ups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from cudal2.problem import Problem
from cudal2.records.counters import ProfileBook
from cudal2.rl import observation
from cudal2.rl.curriculum import Curriculum
from cudal2.rl.env import observation_space
from cudal2.rl.observed import ObservedCounters
from cudal2.rl.reward import REWARD_MIN, improvement
from cudal2.rl.scoring import Scorer, Scores
from cudal2.runners.base import Runner

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class HgemmVecEnv(VecEnv):
    """``n_envs`` copies of :class:`~cudal2.rl.env.HgemmEnv` with one memory, one generator and one curriculum.

    Args:
        runner: Where measurements come from.
        problems: Problems to draw from; by default all the runner has.
        n_envs: Proposals per batch.
        horizon: Steps per episode.
        seed: Seed of the problem draws.
        max_masks: Most problems whose masks are held at once.
        counters: Profiles to show in the observation; none by default.
    """

    def __init__(
        self,
        runner: Runner,
        problems: Sequence[Problem] | None = None,
        n_envs: int = 128,
        horizon: int = 1,
        seed: int = 0,
        max_masks: int | None = None,
        counters: ProfileBook | None = None,
    ) -> None:
        self.scorer = Scorer(runner, problems, max_masks)
        self.horizon = horizon
        self.render_mode = None
        self.curriculum = Curriculum(len(self.scorer.problems))
        self.last_scores: Scores | None = None
        self._rng = np.random.default_rng(seed)
        self._table = observation.ObservationTable(
            self.scorer.space, self.scorer.problems, self.scorer.masks.candidates
        )
        self._counters = ObservedCounters(self.scorer, counters)
        self._index = np.zeros(n_envs, np.int64)
        self._taken = np.zeros(n_envs, np.int64)
        self._best = np.full(n_envs, REWARD_MIN)
        self._observations = np.zeros((n_envs, observation.SIZE), np.float32)
        self._actions = np.zeros((n_envs, len(self.scorer.space.dims)), np.int64)
        super().__init__(
            n_envs, observation_space(len(self.scorer.problems)), spaces.MultiDiscrete(list(self.scorer.space.dims))
        )

    def reset(self) -> Floats:
        """Starts every environment on a fresh problem."""
        seeds = [seed for seed in self._seeds if seed is not None]
        if seeds:
            self._rng = np.random.default_rng(seeds[0])
        self._reset_seeds()
        self._reset_options()
        self._start(np.arange(self.num_envs))
        return self._observations.copy()

    def step_async(self, actions: NDArray[Any]) -> None:
        """Keeps the proposals for :meth:`step_wait`."""
        self._actions = np.array(actions)

    def step_wait(self) -> tuple[Floats, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Scores the batch; a finished environment restarts on another problem."""
        flat = self.scorer.masks.flat(self._actions)
        scores = self.scorer.score(self._index, flat)
        self.last_scores = scores
        self.curriculum.update(self._index, scores.rewards)
        self._taken += 1
        rewards = self._episode_rewards(flat, scores)
        dones = self._taken >= self.horizon
        infos: list[dict[str, Any]] = [
            {"reason": scores.refused[row]} if row in scores.refused else {} for row in range(self.num_envs)
        ]
        for row in np.flatnonzero(dones).tolist():
            infos[row]["terminal_observation"] = self._observations[row].copy()
        self._start(np.flatnonzero(dones))
        return self._observations.copy(), rewards.astype(np.float32), dones, infos

    def _episode_rewards(self, flat: Ints, scores: Scores) -> NDArray[np.float64]:
        if self.horizon == 1:
            return scores.rewards
        rewards = np.empty(self.num_envs)
        for row, value in enumerate(scores.rewards.tolist()):
            rewards[row], self._best[row] = improvement(float(self._best[row]), value)
            progress = float(self._taken[row]) / self.horizon
            counters = self._counters.of(int(self._index[row]), int(flat[row]), scores.outcomes[row])
            observation.write_history(self._observations[row], progress, float(self._best[row]), value, counters)
        return rewards

    def _start(self, rows: Ints) -> None:
        if not len(rows):
            return
        self._index[rows] = self.curriculum.draw(self._rng, len(rows))
        self._taken[rows] = 0
        self._best[rows] = REWARD_MIN
        self._observations[rows] = self._table.batch(self._index[rows])
        if self._counters:
            for row in rows.tolist():
                observation.write_counters(self._observations[row], self._counters.of_best(int(self._index[row])))

    def state(self) -> dict[str, Any]:
        """Plain values to continue from, at a rollout boundary."""
        return {
            "rng": self._rng.bit_generator.state,
            "index": self._index.tolist(),
            "taken": self._taken.tolist(),
            "best": self._best.tolist(),
            "observations": self._observations.tolist(),
            "curriculum": self.curriculum.state(),
            "scorer": self.scorer.state(),
        }

    def restore(self, state: dict[str, Any]) -> Floats:
        """Takes over what :meth:`state` held; returns the observations to act on."""
        self._rng.bit_generator.state = state["rng"]
        self._index[:] = state["index"]
        self._taken[:] = state["taken"]
        self._best[:] = state["best"]
        self._observations[:] = state["observations"]
        self.curriculum.restore(state["curriculum"])
        self.scorer.restore(state["scorer"])
        return self._observations.copy()

    def action_masks(self) -> NDArray[np.bool_]:
        """Per environment, the values that occur in any legal configuration, axis after axis."""
        return np.stack([self.scorer.action_masks(index) for index in self._index.tolist()])

    def close(self) -> None:
        """Nothing to release: the runner belongs to the caller."""

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        """The attribute of this object, once per environment asked for."""
        return [getattr(self, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: int | Iterable[int] | None = None) -> None:
        """Sets an attribute of this object: the environments share everything."""
        setattr(self, attr_name, value)

    def env_method(
        self, method_name: str, *args: Any, indices: int | Iterable[int] | None = None, **kwargs: Any
    ) -> list[Any]:
        """Calls a method that answers for all environments, and picks the answers asked for."""
        answers = getattr(self, method_name)(*args, **kwargs)
        return [answers[index] for index in self._get_indices(indices)]

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: int | Iterable[int] | None = None
    ) -> list[bool]:
        """Never: there are no wrappers inside."""
        return [False] * len(list(self._get_indices(indices)))
