"""``HGEMM-v0``: choose a kernel configuration for a shape, be paid by its measured speed-up."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from cudal2.errors import UsageError
from cudal2.problem import Problem
from cudal2.records.counters import ProfileBook
from cudal2.records.measurement import Status
from cudal2.records.recording import Recording, bundled_recording
from cudal2.rl import observation
from cudal2.rl.observed import ObservedCounters
from cudal2.rl.reward import REWARD_MIN, improvement
from cudal2.rl.scoring import Outcome, Scorer
from cudal2.runners.base import Runner
from cudal2.runners.replay import ReplayRunner

#: Longest episode; more steps than this are a search, not an episode.
MAX_HORIZON = 16


def observation_space(problems: int) -> spaces.Box[np.float32]:
    """Box of :mod:`cudal2.rl.observation` for so many problems."""
    high = np.full(observation.SIZE, observation.BOUND, np.float32)
    low = -high
    low[observation.PROBLEM_INDEX], high[observation.PROBLEM_INDEX] = 0.0, max(1, problems - 1)
    return spaces.Box(low, high, dtype=np.float32)


def bundled_runner() -> ReplayRunner:
    """Replay of the recording shipped with the package, restricted to what was recorded."""
    return ReplayRunner(Recording.load(bundled_recording()), on_missing="mask")


class HgemmEnv(gymnasium.Env[NDArray[np.float32], NDArray[np.int64]]):
    """Half-precision GEMM kernel search.

    ## Description
    Each episode draws a problem C[m,n] = A[m,k] B[k,n]. Each step proposes one complete kernel configuration, which is
    rendered, compiled, checked and timed on a GPU, or looked up in a recording of such measurements (the default, which
    needs no GPU). A configuration that was proposed before in the life of the environment is answered from memory.

    ## Action Space
    `MultiDiscrete(space.dims)`: one index per axis of the search space, compile-time axes first. Not every combination
    is legal; `action_masks()` gives the values of each axis that occur in a legal configuration of the current problem,
    and `cudal2.space.masks.PrefixMasks` the exact masks given the axes already chosen.

    ## Observation Space
    `Box(98,)`, float32, documented index by index in `cudal2.rl.observation`: shape, an analytic model's choice,
    hardware, counters with presence bits, history. The last entry is the index of the problem in `problems`.
    Counters are absent, zeros with presence bits off, unless `counters` holds profiles: then an episode starts with
    those of the best configuration measured so far, and each step shows those of the configuration it measured.

    ## Rewards
    clip(log(t_ref / t), -2, 1), where t_ref is cuBLASLt-AutoTuning measured interleaved with the candidate. Every
    failure (compile, launch, wrong result, timeout) is worth -2. So is a configuration that is not legal: it is never
    measured, and `info["reason"]` says why. With `horizon > 1` a step is paid the improvement over the episode's best,
    minus 0.02 for a failure, so that rewards add up to the final value above -2.

    ## Starting State
    A problem drawn uniformly from `problems` by the environment's generator; `reset(options={"problem": "64_4096_64"})`
    chooses one.

    ## Episode End
    Terminates after `horizon` steps. Never truncates.

    ## Arguments
    - `runner`: where measurements come from; default: replay of the bundled H200 recording.
    - `problems`: problems to draw from; default: all the runner has.
    - `horizon`: steps per episode, 1 (a contextual bandit) to 16.
    - `counters`: profiles made by `cudal2 profile`; default: none.

    `nondeterministic` tells whether the runner may answer the same question differently: a GPU may, a recording not.

    ## Version History
    - v0: observation version 1.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (the name and type are Gymnasium's)

    def __init__(
        self,
        runner: Runner | None = None,
        problems: Sequence[Problem] | None = None,
        horizon: int = 1,
        counters: ProfileBook | None = None,
    ) -> None:
        if not 1 <= horizon <= MAX_HORIZON:
            raise UsageError(f"horizon = {horizon}: give 1 to {MAX_HORIZON}")
        self.scorer = Scorer(runner or bundled_runner(), problems)
        self.horizon = horizon
        self.problems = self.scorer.problems
        self.action_space = spaces.MultiDiscrete(list(self.scorer.space.dims))
        self.observation_space = observation_space(len(self.problems))
        self._table = observation.ObservationTable(self.scorer.space, self.problems, self.scorer.masks.candidates)
        self._counters = ObservedCounters(self.scorer, counters)
        self._index = 0
        self._taken = 0
        self._best = REWARD_MIN
        self._observation = np.zeros(observation.SIZE, np.float32)
        self._spec: EnvSpec | None = None

    @property
    def nondeterministic(self) -> bool:
        """Whether the runner may answer the same question differently."""
        return self.scorer.runner.nondeterministic

    @property
    def spec(self) -> EnvSpec | None:
        """The registered specification, with ``nondeterministic`` as this environment's runner has it."""
        return self._spec

    @spec.setter
    def spec(self, spec: EnvSpec | None) -> None:
        self._spec = copy.copy(spec)
        if self._spec is not None:
            self._spec.nondeterministic = self.nondeterministic

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Draws a problem, or takes ``options["problem"]`` (a ``Problem`` or ``M_N_K``)."""
        super().reset(seed=seed)
        wanted = (options or {}).get("problem")
        self._index = int(self.np_random.integers(len(self.problems))) if wanted is None else self._find(wanted)
        self._taken, self._best = 0, REWARD_MIN
        self._observation = self._table.batch(np.array([self._index]))[0]
        observation.write_counters(self._observation, self._counters.of_best(self._index))
        return self._observation.copy(), {"problem": self.problems[self._index].mnk}

    def step(self, action: NDArray[np.int64]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Measures one configuration."""
        flat = self.scorer.masks.flat(np.asarray(action)[None])
        scores = self.scorer.score(np.array([self._index]), flat)
        value = reward = float(scores.rewards[0])
        if self.horizon > 1:
            reward, self._best = improvement(self._best, value)
        self._taken += 1
        counters = self._counters.of(self._index, int(flat[0]), scores.outcomes[0])
        observation.write_history(self._observation, self._taken / self.horizon, self._best, value, counters)
        info = self._info(int(flat[0]), scores.outcomes[0], scores.refused.get(0, ""))
        return self._observation.copy(), reward, self._taken >= self.horizon, False, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Values that occur in any legal configuration of the current problem, axis after axis in one flat array."""
        return self.scorer.action_masks(self._index).copy()

    def _find(self, wanted: Problem | str) -> int:
        for index, problem in enumerate(self.problems):
            if wanted in (problem, problem.mnk):
                return index
        raise UsageError(f"problem {wanted} is not one of the {len(self.problems)} of this environment")

    def _info(self, flat: int, outcome: Outcome | None, refused: str) -> dict[str, Any]:
        status = outcome.status if outcome else Status.CONSTRAINTS
        info: dict[str, Any] = {
            "problem": self.problems[self._index].mnk,
            "config": self.scorer.space.from_flat(flat).name,
            "status": status.value,
            "reason": outcome.reason if outcome else refused,
            "measured": self.scorer.distinct,
        }
        if status is Status.CORRECT and outcome is not None:
            info |= {"median_us": outcome.time_us, "speedup": float(np.exp(outcome.log_ratio))}
        return info
