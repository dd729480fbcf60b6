"""What a measurement is worth to the policy: log(t_ref / t), clipped; every failure is worth the floor."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cudal2.search.base import FAILURE_LOG_RATIO

REWARD_MIN = FAILURE_LOG_RATIO
REWARD_MAX = 1.0
#: Extra charge for a failure inside an episode longer than one step, where it would otherwise be free.
FAILURE_CHARGE = 0.02


def clipped(log_ratios: ArrayLike) -> NDArray[np.float64]:
    """Rewards of log(t_ref / t); :func:`cudal2.search.base.log_ratio` gives those of failures."""
    return np.clip(np.asarray(log_ratios, np.float64), REWARD_MIN, REWARD_MAX)


def improvement(best: float, value: float) -> tuple[float, float]:
    """Reward of a step in a longer episode, and the new best: the rewards add up to the final value above the floor."""
    new_best = max(best, value)
    charge = FAILURE_CHARGE if value <= REWARD_MIN else 0.0
    return new_best - best - charge, new_best
