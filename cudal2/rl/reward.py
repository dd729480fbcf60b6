"""What a measurement is worth to the policy: log(t_ref / t), clipped; every failure is worth the floor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cudal2.records.measurement import Measurement
from cudal2.search.base import FAILURE_LOG_RATIO, log_ratio

REWARD_MIN = FAILURE_LOG_RATIO
REWARD_MAX = 1.0
#: Extra charge for a failure inside an episode longer than one step, where it would otherwise be free.
FAILURE_CHARGE = 0.02


def reward_of(measurement: Measurement, reference_us: float) -> float:
    """clip(log(t_ref / t), -2, 1); -2 for every status but ``correct``."""
    return float(np.clip(log_ratio(measurement, reference_us), REWARD_MIN, REWARD_MAX))


def rewards_of_times(times_us: NDArray[np.float64], reference_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same for arrays of times; NaN stands for a failure."""
    with np.errstate(invalid="ignore"):
        ratio = np.log(reference_us / times_us)
    return np.where(np.isnan(ratio), REWARD_MIN, np.clip(ratio, REWARD_MIN, REWARD_MAX))


def improvement(best: float, value: float) -> tuple[float, float]:
    """Reward of a step in a longer episode, and the new best: the rewards add up to the final value above the floor."""
    new_best = max(best, value)
    charge = FAILURE_CHARGE if value <= REWARD_MIN else 0.0
    return new_best - best - charge, new_best
