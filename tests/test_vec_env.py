"""The batched environment agrees with the single one, asks for nothing twice, and draws problems as it says."""

import numpy as np
import pytest
from fabricated_runner import LiveRunner, first_illegal, legal_actions
from stable_baselines3.common.vec_env import VecEnv

from cudal2.errors import NothingValidError
from cudal2.rl import observation
from cudal2.rl.curriculum import Curriculum
from cudal2.rl.env import HgemmEnv
from cudal2.rl.masks import MaskBank
from cudal2.rl.vec_env import HgemmVecEnv


def problems_of(observations):
    return observations[:, observation.PROBLEM_INDEX].astype(int)


def random_legal(runner, indices, rng):
    return np.stack([rng.choice(legal_actions(runner, runner.problems[i])) for i in indices])


@pytest.mark.parametrize("wrap", [lambda runner: runner, LiveRunner])
def test_agrees_with_the_single_environment(runner, wrap):
    vec, single = HgemmVecEnv(wrap(runner), n_envs=16, seed=3), HgemmEnv(runner)
    assert isinstance(vec, VecEnv)
    rng = np.random.default_rng(0)
    seen = vec.reset()
    for _ in range(4):
        before = problems_of(seen)
        actions = random_legal(runner, before, rng)
        seen, rewards, dones, infos = vec.step(actions)
        assert dones.all() and seen.dtype == np.float32
        for row in range(16):
            start, _ = single.reset(options={"problem": runner.problems[before[row]]})
            end = single.step(actions[row])
            assert rewards[row] == pytest.approx(end[1], abs=1e-5)
            assert (
                infos[row]["terminal_observation"][: observation.HISTORY.start] == start[: observation.HISTORY.start]
            ).all()


def test_a_batch_asks_for_each_new_configuration_once(runner):
    live = LiveRunner(runner)
    vec = HgemmVecEnv(live, problems=runner.problems[:2], n_envs=32)
    rng = np.random.default_rng(1)
    seen = vec.reset()
    for _ in range(6):
        proposals = random_legal(runner, problems_of(seen), rng)
        proposals[16:] = np.where(
            (problems_of(seen)[16:] == problems_of(seen)[0])[:, None], proposals[0], proposals[16:]
        )
        seen, _, _, _ = vec.step(proposals)
    assert len(live.asked) == len(set(live.asked)) == vec.scorer.distinct


def test_a_batch_is_built_at_once_before_it_is_measured(runner):
    class Building(LiveRunner):
        built = ()

        def build(self, work):
            assert not set(work) & set(self.built)
            self.built = (*self.built, *work)

        def run(self, problem, configs):
            assert {(config, problem) for config in configs} <= set(self.built)
            return super().run(problem, configs)

    building = Building(runner)
    vec = HgemmVecEnv(building, n_envs=32)
    vec.step(random_legal(runner, problems_of(vec.reset()), np.random.default_rng(0)))
    assert len(building.built) == len(building.asked) == vec.scorer.distinct > 20


def test_a_refused_action_has_its_reason_and_costs_nothing(runner):
    vec = HgemmVecEnv(runner, problems=runner.problems[:1], n_envs=2)
    vec.reset()
    illegal = np.array(np.unravel_index(first_illegal(runner, runner.problems[0]), runner.space.dims))
    legal = legal_actions(runner, runner.problems[0])[0]
    _, rewards, _, infos = vec.step(np.stack([illegal, legal]))
    assert rewards[0] == -2.0 and rewards[1] > -2.0
    assert infos[0]["reason"] and "reason" not in infos[1]
    assert vec.scorer.distinct == 1


def test_uniform_proposals_earn_the_table_mean_and_rewards_are_not_aliased(runner):
    vec = HgemmVecEnv(runner, n_envs=64, seed=5)
    table = [
        vec.scorer.score(np.full(len(c), i), c).rewards.mean()
        for i in range(len(runner.problems))
        for c in [vec.scorer.masks.candidates(i)]
    ]
    rng = np.random.default_rng(2)
    earned, kept = [], None
    seen = vec.reset()
    for _ in range(60):
        seen, rewards, _, _ = vec.step(random_legal(runner, problems_of(seen), rng))
        assert kept is None or (kept[0] == kept[1]).all()
        kept = (rewards, rewards.copy())
        earned.append(rewards.copy())
    earned = np.concatenate(earned)
    assert earned.mean() == pytest.approx(np.mean(table), abs=3 * earned.std() / np.sqrt(len(earned)))


def test_problem_draws_depend_on_the_seed_alone(runner):
    draws = [problems_of(HgemmVecEnv(runner, n_envs=64, seed=seed).reset()).tolist() for seed in (4, 4, 5)]
    assert draws[0] == draws[1] != draws[2]
    vec = HgemmVecEnv(runner, n_envs=64)
    vec.seed(4)
    assert problems_of(vec.reset()).tolist() == draws[0]


def test_state_and_restore_continue_where_they_were(runner):
    first, second = (HgemmVecEnv(runner, n_envs=8, horizon=2, seed=9) for _ in range(2))
    rng = np.random.default_rng(0)
    seen = first.reset()
    for _ in range(3):
        seen = first.step(random_legal(runner, problems_of(seen), rng))[0]
    assert (second.restore(first.state()) == seen).all()
    assert (second.scorer.best_flat == first.scorer.best_flat).all() and second.scorer.distinct == first.scorer.distinct
    for _ in range(3):
        actions = random_legal(runner, problems_of(seen), rng)
        a, b = first.step(actions), second.step(actions)
        assert all((x == y).all() for x, y in zip(a[:3], b[:3], strict=True))
        seen = a[0]


def test_curriculum_turns_to_where_regret_is_and_keeps_half_uniform():
    curriculum = Curriculum(4, warm_up=8)
    rng = np.random.default_rng(0)
    for _ in range(50):
        curriculum.update(np.arange(4), np.array([0.0, 0.0, rng.choice([-2.0, 1.0]), 0.5]))
    weights = curriculum.weights()
    assert weights.sum() == pytest.approx(1) and weights.min() >= 0.125
    assert weights[2] == pytest.approx(0.125 + 0.5)
    other = Curriculum(4, warm_up=8)
    other.restore(curriculum.state())
    assert (other.weights() == weights).all()


def test_masks_equal_brute_force_and_survive_eviction(runner):
    space = runner.space
    bank = MaskBank(runner.problems, space, runner.allowed, max_rows=2)
    rng = np.random.default_rng(0)
    for index in (0, 1, 2, 3, 0, 5, 1):
        allowed = runner.allowed(runner.problems[index])
        assert bank.candidates(index).tolist() == allowed.tolist()
        flats = rng.integers(space.total, size=200)
        assert (bank.legal(np.full(200, index), flats) == np.isin(flats, allowed)).all()
        legal = legal_actions(runner, runner.problems[index])
        actions = legal[rng.integers(len(legal), size=5)]
        masks = np.isfinite(bank.along(np.full(5, index), actions))
        for action, mask in zip(actions, masks, strict=True):
            node = bank.root(1)
            for axis, size in enumerate(space.dims):
                rest = legal[(legal[:, :axis] == action[:axis]).all(axis=1), axis]
                assert (mask[axis, :size] == np.isin(np.arange(size), rest)).all() and not mask[axis, size:].any()
                assert (np.isfinite(bank.level(np.array([index]), axis, node)[0]) == mask[axis, :size]).all()
                node = bank.step(axis, node, action[axis : axis + 1])


def test_a_problem_without_legal_configurations_is_an_error(runner):
    bank = MaskBank(runner.problems, runner.space, lambda problem: np.zeros(0, np.int64))
    with pytest.raises(NothingValidError, match=runner.problems[0].mnk):
        bank.candidates(0)
