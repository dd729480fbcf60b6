"""Autoregressive policy: one head per axis, each conditioned on the axes before it and masked to what is still legal.

The masks are exact, so the policy is a distribution over the legal configurations and nothing else: their probabilities
add up to one. It starts from the analytic model's weights, and learns what to add to their logits and how far to trust
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import Tensor, nn

from cudal2.rl import observation
from cudal2.rl.masks import MaskBank
from cudal2.space.masks import shortened

#: Width of the hidden layer of each head.
HEAD_WIDTH = 32
#: Prefixes expanded at once when ranking, to bound memory.
CHUNK = 65_536
#: Logit of a masked value; finite, so that 0 * log 0 stays 0 and no gradient is NaN.
MASKED = -1e9


class Ranking(NamedTuple):
    """Legal configurations of one problem, most probable first."""

    flat: NDArray[np.int64]
    log_prob: NDArray[np.float64]


class AutoregressivePolicy(ActorCriticPolicy):
    """Actor and critic for a MultiDiscrete action whose axes constrain each other.

    ``masks`` must be set before the first call: :func:`bind_masks`.

    Args:
        observation_space: As :mod:`cudal2.rl.observation` lays it out; its last entry addresses the masks.
        action_space: MultiDiscrete over the axes of the search space.
        lr_schedule: Adam step size by remaining progress.
        hidden: Width of the two hidden layers of either network.
        kwargs: Passed on to Stable-Baselines3.
    """

    masks: MaskBank | None = None
    later: Tensor

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.MultiDiscrete,
        lr_schedule: Callable[[float], float],
        hidden: int = 256,
        **kwargs: Any,
    ) -> None:
        self.hidden = hidden
        self.dims = tuple(int(size) for size in action_space.nvec)
        super().__init__(observation_space, action_space, lr_schedule, **kwargs)

    def _build(self, lr_schedule: Callable[[float], float]) -> None:
        axes, width = len(self.dims), max(self.dims)
        self.actor = _mlp(observation.FEATURES, self.hidden)
        self.critic = nn.Sequential(*_mlp(observation.FEATURES, self.hidden), _linear(self.hidden, 1, 1.0))
        self.head_in = _linear(self.hidden, axes * HEAD_WIDTH, 1.0)
        # chosen[i, a, j]: what value a of axis i tells the head of a later axis j.
        self.chosen = nn.Parameter(torch.randn(axes, width, axes, HEAD_WIDTH) * 0.3)
        self.head_out = nn.Parameter(torch.randn(axes, HEAD_WIDTH, width) * 0.01)
        self.head_bias = nn.Parameter(torch.zeros(axes, width))
        self.trust = nn.Parameter(torch.ones(axes))
        later = torch.triu(torch.ones(axes, axes), diagonal=1)
        self.register_buffer("later", later[:, None, :, None], persistent=False)
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]

    def forward(self, obs: Tensor, deterministic: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Samples a legal action axis by axis; ``deterministic`` takes the likeliest value of each."""
        features, index = _split(obs)
        actions, log_prob = self._sample(features, index, deterministic)
        return actions, self.critic(features), log_prob

    def evaluate_actions(  # type: ignore[override]
        self, obs: Tensor, actions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Values, log-probabilities and the sum of the conditional entropies along the actions."""
        features, index = _split(obs)
        actions = actions.long()
        prior = torch.from_numpy(self._bank().along(index, actions.numpy()))
        log_probs = _log_softmax(self._logits(features, actions), prior, self.trust[:, None])
        log_prob = log_probs.gather(2, actions[:, :, None]).sum(dim=(1, 2))
        entropy = -(log_probs.exp() * log_probs).sum(dim=(1, 2))
        return self.critic(features), log_prob, entropy

    def predict_values(self, obs: Tensor) -> Tensor:  # type: ignore[override]
        """The critic alone."""
        return self.critic(_split(obs)[0])  # type: ignore[no-any-return]

    def _predict(self, observation: Tensor, deterministic: bool = False) -> Tensor:  # type: ignore[override]
        return self._sample(*_split(observation), deterministic)[0]

    def _logits(self, features: Tensor, actions: Tensor) -> Tensor:
        """Unmasked logits of every axis given the actions before it: ``[batch, axes, width]``."""
        axes = len(self.dims)
        base = self.head_in(self.actor(features)).view(-1, axes, HEAD_WIDTH)
        table = (self.chosen * self.later).view(axes * max(self.dims), axes * HEAD_WIDTH)
        rows = actions + torch.arange(axes) * max(self.dims)
        told = nn.functional.embedding_bag(rows, table, mode="sum").view(-1, axes, HEAD_WIDTH)
        return torch.einsum("bjh,jhv->bjv", torch.tanh(base + told), self.head_out) + self.head_bias

    def _sample(self, features: Tensor, index: NDArray[np.int64], deterministic: bool) -> tuple[Tensor, Tensor]:
        bank, axes = self._bank(), len(self.dims)
        base = self.head_in(self.actor(features)).view(-1, axes, HEAD_WIDTH)
        table = self.chosen * self.later
        node = bank.root(len(index))
        log_prob = torch.zeros(len(index))
        actions = []
        for axis, size in enumerate(self.dims):
            logits = torch.tanh(base[:, axis]) @ self.head_out[axis, :, :size] + self.head_bias[axis, :size]
            log_probs = _log_softmax(logits, torch.from_numpy(bank.level(index, axis, node)), self.trust[axis])
            action = log_probs.argmax(dim=1) if deterministic else torch.multinomial(log_probs.exp(), 1).squeeze(1)
            log_prob = log_prob + log_probs.gather(1, action[:, None]).squeeze(1)
            base = base + table[axis, action]
            node = bank.step(axis, node, action.numpy())
            actions.append(action)
        return torch.stack(actions, dim=1), log_prob

    def ranking(
        self,
        features: NDArray[np.float32],
        candidates: NDArray[np.int64],
        log_weights: NDArray[np.float64],
        top: int | None = None,
    ) -> Ranking:
        """Exact log-probabilities of all legal configurations of one problem, without sampling.

        Args:
            features: The problem's observation, without or with its last entry.
            candidates: Its legal configurations, flat and ascending.
            log_weights: Their prior, of :func:`cudal2.search.analytic.log_weights`.
            top: How many to return; all by default.

        Returns:
            Most probable first, ties by flat index.
        """
        with torch.no_grad():
            hidden = self.head_in(self.actor(torch.from_numpy(features[None, : observation.FEATURES])))
            log_prob = self._log_probs(hidden.view(len(self.dims), HEAD_WIDTH), candidates, np.exp(log_weights))
        order = np.argsort(-log_prob, kind="stable")[:top]
        return Ranking(candidates[order], log_prob[order])

    def _log_probs(
        self, base: Tensor, candidates: NDArray[np.int64], weights: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Up the tree of prefixes for the prior of each, then down it, adding each level to its parents'."""
        levels = []
        for size in reversed(self.dims):
            prefixes, parent = shortened(candidates, size)
            prior = np.full((len(prefixes), size), -np.inf, np.float32)
            prior[parent, candidates % size] = np.log(weights)
            levels.append((prefixes, parent, candidates % size, prior))
            candidates, weights = prefixes, np.bincount(parent, weights).astype(np.float64)
        total = np.zeros(1)
        for axis, (prefixes, parent, value, prior) in enumerate(reversed(levels)):
            total = total[parent] + self._level_log_probs(base, axis, prefixes, prior)[parent, value]
        return total

    def _level_log_probs(
        self, base: Tensor, axis: int, prefixes: NDArray[np.int64], prior: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        size = self.dims[axis]
        digits = np.unravel_index(prefixes, self.dims[:axis]) if axis else ()
        rows = []
        for start in range(0, len(prefixes), CHUNK):
            stop = min(start + CHUNK, len(prefixes))
            hidden = base[axis].expand(stop - start, HEAD_WIDTH)
            for before, digit in enumerate(digits):
                hidden = hidden + self.chosen[before, torch.from_numpy(digit[start:stop]), axis]
            logits = torch.tanh(hidden) @ self.head_out[axis, :, :size] + self.head_bias[axis, :size]
            log_probs = _log_softmax(logits, torch.from_numpy(prior[start:stop]), self.trust[axis])
            rows.append(log_probs.double().numpy())
        return np.concatenate(rows)

    def _bank(self) -> MaskBank:
        if self.masks is None:
            raise RuntimeError("the policy has no masks: call bind_masks(policy, scorer.masks) first")
        return self.masks

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "hidden": self.hidden}


def bind_masks(policy: AutoregressivePolicy, masks: MaskBank) -> None:
    """Tells the policy what is legal for each problem index; kept out of the constructor so that nothing pickles it."""
    policy.masks = masks


def _split(obs: Tensor) -> tuple[Tensor, NDArray[np.int64]]:
    """Features and problem indices."""
    return obs[:, : observation.FEATURES], obs[:, observation.PROBLEM_INDEX].numpy().astype(np.int64)


def _log_softmax(logits: Tensor, prior: Tensor, trust: Tensor) -> Tensor:
    """Log-probabilities of the legal values: learnt logits plus the trusted share of the prior ones."""
    illegal = torch.isinf(prior)
    logits = logits + trust * prior.masked_fill(illegal, 0.0)
    return torch.log_softmax(logits.masked_fill(illegal, MASKED), dim=-1)


def _mlp(inputs: int, hidden: int) -> nn.Sequential:
    gain = 2.0**0.5
    return nn.Sequential(_linear(inputs, hidden, gain), nn.Tanh(), _linear(hidden, hidden, gain), nn.Tanh())


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain=gain)
    nn.init.zeros_(layer.bias)
    return layer
