"""``cudal2/HGEMM-v0``: the contracts of Gymnasium and Stable-Baselines3, and what an action is worth."""

import math
import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from fabricated_runner import LiveRunner, first_illegal, legal_actions
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env

import cudal2.rl
from cudal2.errors import UsageError
from cudal2.rl.env import HgemmEnv
from cudal2.rl.vec_env import HgemmVecEnv


@pytest.mark.parametrize("horizon", [1, 4])
def test_passes_the_checkers_of_gymnasium_and_stable_baselines3(runner, horizon):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(cudal2.rl.ENV_ID, runner=runner, horizon=horizon)
        gymnasium_check_env(env.unwrapped, skip_render_check=True)
        sb3_check_env(env.unwrapped)


def test_registered_name_and_determinism_flag(runner):
    assert cudal2.rl.ENV_ID == "cudal2/HGEMM-v0"
    assert gymnasium.make(cudal2.rl.ENV_ID, runner=runner).unwrapped.spec.nondeterministic is False
    assert gymnasium.make(cudal2.rl.ENV_ID, runner=LiveRunner(runner)).unwrapped.spec.nondeterministic is True
    assert gymnasium.spec(cudal2.rl.ENV_ID).nondeterministic is False


def test_the_default_is_the_shipped_recording():
    env = gymnasium.make(cudal2.rl.ENV_ID)
    gymnasium_check_env(env.unwrapped, skip_render_check=True)
    assert len(env.unwrapped.problems) >= 24 and not env.unwrapped.nondeterministic


def test_a_legal_action_is_worth_its_recorded_speedup(runner):
    env = HgemmEnv(runner)
    for problem in runner.problems:
        config = next(c for c in runner.space.enumerate(problem) if runner.run(problem, [c])[0].ok)
        row = runner.run(problem, [config])[0]
        env.reset(options={"problem": problem.mnk})
        _, reward, terminated, truncated, info = env.step(np.array(runner.space.encode(config)))
        assert reward == pytest.approx(np.clip(math.log(row.speedup), -2, 1), abs=1e-5)
        assert terminated and not truncated
        assert info["config"] == config.name and info["median_us"] == pytest.approx(row.median_us, rel=1e-5)


def test_an_illegal_action_is_refused_with_the_reason_and_not_measured(runner):
    live = LiveRunner(runner)
    env = HgemmEnv(live)
    env.reset(seed=0, options={"problem": runner.problems[0]})
    illegal = np.array(np.unravel_index(first_illegal(runner, runner.problems[0]), runner.space.dims))
    _, reward, _, _, info = env.step(illegal)
    assert reward == -2.0 and info["status"] == "constraints"
    assert info["reason"] == "; ".join(runner.space.explain(runner.space.decode(illegal), runner.problems[0]))
    assert live.asked == [] and env.scorer.distinct == 0


def test_a_failure_is_worth_the_floor_and_says_why(runner):
    env = HgemmEnv(runner)
    for problem in runner.problems:
        rows = runner.run(problem, list(runner.space.enumerate(problem)))
        for row in (row for row in rows if not row.ok):
            env.reset(options={"problem": problem})
            _, reward, _, _, info = env.step(np.array(runner.space.encode(row.config)))
            assert reward == -2.0 and info["status"] == row.status.value and info["reason"] == row.reason
            assert "median_us" not in info
    assert env.scorer.distinct > 5


def test_a_repeated_action_is_answered_from_memory(runner):
    live = LiveRunner(runner)
    env = HgemmEnv(live)
    action = legal_actions(runner, runner.problems[0])[0]
    for _ in range(3):
        env.reset(options={"problem": runner.problems[0]})
        env.step(action)
    assert len(live.asked) == 1 == env.scorer.distinct


def test_action_masks_are_the_values_that_occur(runner):
    env = HgemmEnv(runner)
    env.reset(options={"problem": runner.problems[0]})
    legal = legal_actions(runner, runner.problems[0])
    expected = np.concatenate(
        [np.isin(np.arange(size), column) for size, column in zip(env.action_space.nvec, legal.T, strict=True)]
    )
    assert (env.action_masks() == expected).all()


def test_uniform_policy_earns_the_mean_of_the_table(runner):
    env = HgemmEnv(runner)
    total, count = 0.0, 0
    rewards = {problem: [] for problem in runner.problems}
    for problem in runner.problems:
        for action in legal_actions(runner, problem):
            env.reset(options={"problem": problem})
            rewards[problem].append(env.step(action)[1])
    for problem, earned in rewards.items():
        rows = runner.run(problem, [runner.space.decode(a) for a in legal_actions(runner, problem)])
        table = [np.clip(math.log(row.speedup), -2, 1) if row.ok else -2.0 for row in rows]
        assert earned == pytest.approx(table, abs=1e-5)
        total, count = total + sum(table), count + len(table)
    assert -2.0 < total / count < 1.0


def test_an_episode_of_several_steps_pays_improvements(runner):
    env = HgemmEnv(runner, horizon=4)
    env.reset(seed=1, options={"problem": runner.problems[1]})
    actions = legal_actions(runner, runner.problems[1])[[0, 5, 5, 9]]
    steps = [env.step(action) for action in actions]
    assert [step[2] for step in steps] == [False, False, False, True]
    values = [runner.run(runner.problems[1], [runner.space.decode(a)])[0] for a in actions]
    best = max(np.clip(math.log(row.speedup), -2, 1) if row.ok else -2.0 for row in values)
    failed = sum(not row.ok for row in values)
    assert sum(step[1] for step in steps) == pytest.approx(best + 2.0 - 0.02 * failed, abs=1e-5)


def test_seeds_decide_the_problem_and_bad_arguments_are_named(runner):
    env = HgemmEnv(runner)
    drawn = [env.reset(seed=7)[1]["problem"] for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert len({env.reset()[1]["problem"] for _ in range(100)}) == len(runner.problems)
    with pytest.raises(UsageError, match="horizon = 0"):
        HgemmEnv(runner, horizon=0)
    with pytest.raises(UsageError, match="1_2_3"):
        env.reset(options={"problem": "1_2_3"})


def test_the_environment_imports_without_torch():
    code = "import sys; sys.modules['torch'] = None; import cudal2.rl.env, cudal2.rl.observation, cudal2.search.compare"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr == ""


def outside(dims):
    """Actions that no axis holds, some of which have the flat index of another, legal one."""
    first = np.zeros(len(dims), np.int64)
    for axis, size in enumerate(dims):
        for value in (-1, size, 10**6, 2**62):
            action = first.copy()
            action[axis] = value
            yield action
    yield from (first[1:], np.append(first, 0), first.astype(float), np.full(len(dims), np.nan), first[0], None, "x")


def test_an_action_outside_its_axis_is_refused_and_never_measured_as_another_one(runner):
    env, batch = HgemmEnv(runner), HgemmVecEnv(runner, n_envs=1)
    for action in outside(runner.space.dims):
        env.reset(seed=0)
        with pytest.raises(UsageError):
            env.step(action)
        batch.reset()
        with pytest.raises(UsageError):
            batch.step(np.array([action]))
    assert env.scorer.distinct == batch.scorer.distinct == 0
