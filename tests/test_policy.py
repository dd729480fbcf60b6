"""The autoregressive policy is a distribution over the legal configurations, and over nothing else."""

import numpy as np
import pytest
import torch
from fabricated_recording import made_up_recording
from gymnasium import spaces

from cudal2.rl import observation
from cudal2.rl.env import observation_space
from cudal2.rl.policy import AutoregressivePolicy, bind_masks
from cudal2.rl.scoring import Scorer
from cudal2.runners.replay import ReplayRunner
from cudal2.search.analytic import log_weights


@pytest.fixture(scope="module")
def scorer():
    return Scorer(ReplayRunner(made_up_recording(), on_missing="mask"))


@pytest.fixture(scope="module")
def policy(scorer):
    torch.manual_seed(0)
    policy = AutoregressivePolicy(
        observation_space(len(scorer.problems)),
        spaces.MultiDiscrete(list(scorer.space.dims)),
        lambda _: 1e-3,
        hidden=32,
    )
    bind_masks(policy, scorer.masks)
    with torch.no_grad():
        # Far from uniform, so that a mistake in the conditioning shows.
        policy.head_out.mul_(200.0)
    return policy


def rows(scorer, index):
    table = observation.ObservationTable(scorer.space, scorer.problems, scorer.masks.candidates)
    return torch.from_numpy(table.batch(np.asarray(index)))


def ranked_input(scorer, index):
    candidates = scorer.masks.candidates(index)
    return candidates, log_weights(scorer.space, scorer.problems[index], candidates)


def test_probabilities_of_the_legal_configurations_add_up_to_one(scorer, policy):
    for index in range(len(scorer.problems)):
        candidates = scorer.masks.candidates(index)
        obs = rows(scorer, np.full(len(candidates), index))
        actions = torch.from_numpy(scorer.masks.actions(candidates))
        _, log_prob, _ = policy.evaluate_actions(obs, actions)
        assert log_prob.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
        assert log_prob.exp().max() > 2.0 / len(candidates)


def test_an_untrained_policy_is_the_prior(scorer):
    torch.manual_seed(3)
    spaces_ = observation_space(len(scorer.problems)), spaces.MultiDiscrete(list(scorer.space.dims))
    fresh = AutoregressivePolicy(*spaces_, lambda _: 1e-3, hidden=16)
    with torch.no_grad():
        fresh.head_out.zero_()
    bind_masks(fresh, scorer.masks)
    for index in range(len(scorer.problems)):
        candidates, prior = ranked_input(scorer, index)
        obs = rows(scorer, np.full(len(candidates), index))
        _, log_prob, _ = fresh.evaluate_actions(obs, torch.from_numpy(scorer.masks.actions(candidates)))
        expected = prior - np.log(np.exp(prior).sum())
        assert log_prob.detach().numpy() == pytest.approx(expected, abs=1e-4)
        assert fresh.ranking(obs[0].numpy(), candidates, prior).flat[0] == candidates[np.argmax(prior)]


def test_samples_are_legal_and_evaluation_repeats_their_log_probability(scorer, policy):
    index = np.arange(600) % len(scorer.problems)
    obs = rows(scorer, index)
    for deterministic in (False, True):
        actions, values, log_prob = policy.forward(obs, deterministic)
        assert scorer.masks.legal(index, scorer.masks.flat(actions.numpy())).all()
        again_values, again, _ = policy.evaluate_actions(obs, actions)
        assert torch.allclose(log_prob, again, atol=1e-5) and torch.allclose(values, again_values)
        assert torch.allclose(policy.predict_values(obs), values)


def test_predict_is_masked_too(scorer, policy):
    index = np.arange(100) % len(scorer.problems)
    actions, _ = policy.predict(rows(scorer, index).numpy())
    assert scorer.masks.legal(index, scorer.masks.flat(actions)).all()


def test_sample_frequencies_follow_the_log_probabilities(scorer, policy):
    torch.manual_seed(1)
    size = 4000
    actions, _, _ = policy.forward(rows(scorer, np.zeros(size, int)))
    drawn = scorer.masks.flat(actions.numpy())
    ranking = policy.ranking(rows(scorer, [0])[0].numpy(), *ranked_input(scorer, 0))
    for flat, log_prob in zip(ranking.flat[:5], ranking.log_prob[:5], strict=True):
        expected = np.exp(log_prob)
        assert (drawn == flat).mean() == pytest.approx(expected, abs=4 * np.sqrt(expected / size))


def test_entropy_averages_to_the_exact_entropy(scorer, policy):
    candidates = scorer.masks.candidates(2)
    obs = rows(scorer, np.full(len(candidates), 2))
    _, log_prob, entropy = policy.evaluate_actions(obs, torch.from_numpy(scorer.masks.actions(candidates)))
    exact = -(log_prob.exp() * log_prob).sum()
    assert (log_prob.exp() * entropy).sum().item() == pytest.approx(exact.item(), rel=1e-4)


def test_ranking_is_exact_sorted_and_deterministic(scorer, policy):
    index = 4
    candidates = scorer.masks.candidates(index)
    obs = rows(scorer, np.full(len(candidates), index))
    ranking = policy.ranking(obs[0].numpy(), *ranked_input(scorer, index))
    assert sorted(ranking.flat) == candidates.tolist()
    assert (np.diff(ranking.log_prob) <= 0).all()
    assert np.exp(ranking.log_prob).sum() == pytest.approx(1.0, abs=1e-5)
    _, log_prob, _ = policy.evaluate_actions(obs, torch.from_numpy(scorer.masks.actions(ranking.flat)))
    assert log_prob.detach().numpy() == pytest.approx(ranking.log_prob, abs=1e-4)
    top = policy.ranking(obs[0].numpy(), *ranked_input(scorer, index), top=5)
    assert (top.flat == ranking.flat[:5]).all()


def test_the_problem_index_is_an_address_and_not_a_feature(scorer, policy):
    obs = rows(scorer, [1])
    moved = obs.clone()
    moved[0, observation.PROBLEM_INDEX] = 3
    assert torch.equal(policy.predict_values(obs), policy.predict_values(moved))


def test_no_gradient_reaches_masked_values_and_none_is_nan(scorer, policy):
    obs = rows(scorer, np.arange(len(scorer.problems)))
    actions, _, _ = policy.forward(obs)
    _, log_prob, entropy = policy.evaluate_actions(obs, actions)
    policy.zero_grad()
    (log_prob.sum() + entropy.sum()).backward()
    assert all(torch.isfinite(p.grad).all() for p in policy.parameters() if p.grad is not None)
    width = torch.arange(max(scorer.space.dims))
    beyond = width[None, :] >= torch.tensor(scorer.space.dims)[:, None]
    assert (policy.head_bias.grad[beyond] == 0).all()


def test_a_policy_without_masks_says_so(scorer):
    bare = AutoregressivePolicy(
        observation_space(1), spaces.MultiDiscrete(list(scorer.space.dims)), lambda _: 1e-3, hidden=8
    )
    with pytest.raises(RuntimeError, match="bind_masks"):
        bare.forward(rows(scorer, [0]))
