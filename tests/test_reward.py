"""What each outcome is worth."""

import math

import pytest

from cudal2.problem import Problem
from cudal2.records.measurement import Measurement, Status
from cudal2.rl.reward import REWARD_MAX, REWARD_MIN, clipped, improvement
from cudal2.search.base import log_ratio

PROBLEM = Problem(64, 64, 64)


def correct(time_us, ref_us=()):
    return Measurement(PROBLEM, "sm90_ws", None, Status.CORRECT, times_us=(time_us,), ref_times_us=ref_us)


def reward_of(measurement, reference_us):
    (reward,) = clipped([log_ratio(measurement, reference_us)])
    return reward


def test_reward_is_the_log_speedup_over_the_reference_of_the_same_rounds():
    assert reward_of(correct(2.0), 3.0) == pytest.approx(math.log(1.5))
    assert reward_of(correct(2.0, (4.0,)), 3.0) == pytest.approx(math.log(2.0))


def test_reward_is_clipped_on_both_sides():
    assert reward_of(correct(1.0), 100.0) == REWARD_MAX == 1.0
    assert reward_of(correct(100.0), 1.0) == REWARD_MIN == -2.0


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.CORRECT])
def test_every_failure_is_worth_the_floor(status):
    assert reward_of(Measurement(PROBLEM, "sm90_ws", None, status, "why"), 3.0) == -2.0


def test_episode_rewards_add_up_to_the_final_value_and_failures_are_charged():
    best, total = REWARD_MIN, 0.0
    for value in (-0.5, -2.0, 0.3, 0.1):
        reward, best = improvement(best, value)
        total += reward
    assert best == 0.3
    assert total == pytest.approx(0.3 - REWARD_MIN - 0.02)
