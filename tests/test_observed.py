"""Counters in the observation: only of what was profiled and measured, and nothing changes where there are none."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
import torch
from fabricated_runner import first_illegal
from gymnasium.utils.env_checker import check_env
from test_counters import profile
from test_resume import SETTINGS, assert_same_state

from cudal2.errors import UsageError
from cudal2.problem import Problem
from cudal2.records.counters import ProfileBook
from cudal2.rl import checkpoint, run_dir
from cudal2.rl import observation as obs
from cudal2.rl.checkpoint import checkpoints, load
from cudal2.rl.env import HgemmEnv
from cudal2.rl.observed import digest
from cudal2.rl.train import train
from cudal2.rl.vec_env import HgemmVecEnv
from cudal2.space.config import Sm90SmallConfig

SEEN = [1, 0.625, 0, 0, 1, 0.5, 1, 0.25, 1, 0.5]
ABSENT = [0] * 10


@pytest.fixture(scope="module")
def passing(runner) -> dict[Problem, list]:
    """Recorded configurations of each problem, fastest first."""
    found = {}
    for problem in runner.problems:
        rows = [row for config in runner.space.enumerate(problem) for row in runner.run(problem, [config]) if row.ok]
        found[problem] = [row.config for row in sorted(rows, key=lambda row: -row.speedup)]
    return found


def of(problem, config, **counters):
    values = counters or {"l2_hit_rate": 0.625, "dram_throughput": 0.5, "tensor_active": 0.25, "registers": 127.5}
    return dataclasses.replace(profile(config, **values), problem=problem)


def act(runner, config):
    return np.array(runner.space.encode(config))


def test_an_episode_starts_with_the_counters_of_the_best_so_far(runner, passing):
    problem = runner.problems[1]
    best, second = passing[problem][:2]
    env = HgemmEnv(runner, counters=ProfileBook([of(problem, best), of(problem, second, l2_hit_rate=0.75)]))
    start = env.reset(options={"problem": problem})[0]
    assert list(start[obs.COUNTER]) == ABSENT, "nothing was measured yet"
    after = env.step(act(runner, second))[0]
    assert list(after[obs.COUNTER][:2]) == [1, 0.75]
    assert list(env.reset(options={"problem": problem})[0][obs.COUNTER][:2]) == [1, 0.75]
    env.step(act(runner, best))
    assert list(env.reset(options={"problem": problem})[0][obs.COUNTER]) == SEEN
    env.step(act(runner, second))
    assert list(env.reset(options={"problem": problem})[0][obs.COUNTER]) == SEEN, "the best, not the last"
    assert list(env.reset(options={"problem": runner.problems[0]})[0][obs.COUNTER]) == ABSENT


def test_a_measurement_that_was_not_profiled_shows_none(runner, passing):
    problem = runner.problems[1]
    env = HgemmEnv(runner, horizon=3, counters=ProfileBook([of(problem, passing[problem][0])]))
    env.reset(options={"problem": problem})
    assert list(env.step(act(runner, passing[problem][0]))[0][obs.COUNTER]) == SEEN
    assert list(env.step(act(runner, passing[problem][1]))[0][obs.COUNTER]) == ABSENT


def test_a_refused_action_shows_no_counters(runner):
    problem = runner.problems[0]
    flat = first_illegal(runner, problem)
    env = HgemmEnv(runner, counters=ProfileBook([of(problem, runner.space.from_flat(flat))]))
    env.reset(options={"problem": problem})
    seen, _, _, _, info = env.step(act(runner, runner.space.from_flat(flat)))
    assert info["status"] == "constraints" and list(seen[obs.COUNTER]) == ABSENT


@pytest.mark.parametrize("horizon", [1, 3])
def test_without_profiles_every_bit_is_as_before(runner, passing, horizon):
    problem = runner.problems[1]
    elsewhere = ProfileBook([of(Problem(8, 8, 8), passing[problem][0])])
    envs = [HgemmEnv(runner, horizon=horizon, counters=book) for book in (None, ProfileBook(), elsewhere)]
    for _ in range(2):
        starts = [env.reset(options={"problem": problem})[0] for env in envs]
        steps = [env.step(act(runner, passing[problem][0]))[0] for env in envs]
        for seen in (starts, steps):
            assert not seen[0][obs.COUNTER].any() and all((seen[0] == other).all() for other in seen)
    assert obs.VERSION == 1 and obs.SIZE == 98


def test_what_no_fraction_can_be_stays_within_the_bounds_of_the_space(runner, passing):
    problem = runner.problems[1]
    env = HgemmEnv(runner, counters=ProfileBook([of(problem, passing[problem][0], dram_throughput=99.0)]))
    env.reset(options={"problem": problem})
    assert env.observation_space.contains(env.step(act(runner, passing[problem][0]))[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env, skip_render_check=True)


def everything(runner, passing) -> ProfileBook:
    return ProfileBook(of(problem, config) for problem, configs in passing.items() for config in configs)


def test_the_batched_environment_shows_what_the_single_one_does(runner, passing):
    book = everything(runner, passing)
    vec = HgemmVecEnv(runner, n_envs=8, horizon=2, seed=3, counters=book)
    assert not vec.reset()[:, obs.COUNTER].any()
    rng = np.random.default_rng(0)
    for _ in range(4):
        problems = [runner.problems[int(row[obs.PROBLEM_INDEX])] for row in vec._observations]
        configs = [passing[problem][rng.integers(len(passing[problem]))] for problem in problems]
        seen = vec.step(np.array([runner.space.encode(config) for config in configs]))[0]
        for row in seen:
            index = int(row[obs.PROBLEM_INDEX])
            measured = vec.scorer.best_flat[index] >= 0
            assert list(row[obs.COUNTER]) == (SEEN if measured else ABSENT)
    assert seen[:, obs.COUNTER].any()


def test_a_run_with_counters_resumes_bit_for_bit_and_only_with_the_same_ones(runner, passing, tmp_path):
    book = everything(runner, passing)
    whole = train(SETTINGS, runner, tmp_path / "whole", steps=256, counters=book, progress=False)
    train(SETTINGS, runner, tmp_path / "parts", steps=128, counters=book, progress=False)
    parts = train(SETTINGS, runner, tmp_path / "parts", steps=256, counters=book, resume=True, progress=False)
    assert_same_state(whole.checkpoint_path, parts.checkpoint_path)
    for other in (None, ProfileBook([*book.profiles()[:-1]])):
        with pytest.raises(UsageError, match="was started with another set of counters"):
            train(SETTINGS, runner, tmp_path / "parts", steps=512, counters=other, resume=True, progress=False)
    plain = train(SETTINGS, runner, tmp_path / "plain", steps=256, progress=False)
    policies = [load(run.checkpoint_path).policy for run in (whole, plain)]
    assert any(not torch.equal(policies[0][name], policies[1][name]) for name in policies[0]), "they are seen"
    assert digest(book) != digest(ProfileBook()) != digest(None) is None


def test_a_checkpoint_from_before_counters_goes_on(runner, tmp_path):
    train(SETTINGS, runner, tmp_path, steps=128, progress=False)
    path = checkpoints(tmp_path / run_dir.CHECKPOINTS)[-1]
    saved = load(path)
    assert saved.identity.pop("counters") is None
    checkpoint.save(saved, path.parent)
    assert "counters" not in load(path).identity
    assert train(SETTINGS, runner, tmp_path, steps=192, resume=True, progress=False).steps >= 192


def test_counters_of_another_kernel_family_are_left_out(runner, passing):
    problem = runner.problems[1]
    best = passing[problem][0]
    book = ProfileBook([of(problem, Sm90SmallConfig(64, 32, 64, 4, "wgmma", 4, 1)), of(problem, best)])
    env = HgemmEnv(runner, counters=book)
    env.reset(options={"problem": problem})
    env.step(act(runner, best))
    assert list(env.reset(options={"problem": problem})[0][obs.COUNTER]) == SEEN
