"""A trained policy as a search strategy: it measures a shape's legal configurations in the policy's own order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gymnasium import spaces

from cudal2.errors import UsageError
from cudal2.rl import observation
from cudal2.rl.checkpoint import Checkpoint, latest, load
from cudal2.rl.env import observation_space
from cudal2.rl.policy import AutoregressivePolicy
from cudal2.search.analytic import log_weights
from cudal2.search.base import SearchSession, Strategy
from cudal2.space.space import SearchSpace

#: Configurations handed to the runner at once.
BATCH = 16


def load_policy(run: Path) -> tuple[AutoregressivePolicy, Checkpoint]:
    """The policy of a run's newest checkpoint, or of one checkpoint file.

    Raises:
        UsageError: The directory holds no checkpoint.
        RecordError: The checkpoint is damaged or of another version.
    """
    saved = load(run if run.suffix == ".pt" else latest(run))
    if saved.identity["observation"] != observation.VERSION:
        raise UsageError(f"{run} was trained on observation version {saved.identity['observation']}: train it anew")
    dims = [len(values) for values in saved.identity["axes"].values()]
    policy = AutoregressivePolicy(
        observation_space(len(saved.identity["problems"])),
        spaces.MultiDiscrete(dims),
        lambda _: 0.0,
        hidden=saved.identity["settings"]["hidden"],
    )
    policy.load_state_dict(saved.policy)
    policy.set_training_mode(False)
    return policy, saved


def policy_strategy(run: Path, space: SearchSpace) -> Strategy:
    """The strategy that follows the exact ranking of a trained policy; no sampling, so ``rng`` is not used.

    Args:
        run: A run directory or a checkpoint.
        space: The space that will be searched: the axes must be those the policy was trained on. Axes added since then
            have to be held at what all configurations had before.

    Raises:
        UsageError: They are not.
    """
    policy, saved = load_policy(run)
    axes, known = {axis.name: list(axis.values) for axis in space.axes}, saved.identity["axes"]
    # An axis of one value changes no flat index, and flat indices are what the policy ranks.
    defaults = space.family.config.added_defaults()
    newer = {name for name in axes.keys() - known.keys() if axes[name] == [defaults.get(name)]}
    if {name: values for name, values in axes.items() if name not in newer} != known:
        raise UsageError(f"{run} was trained on another search space: search the one it knows, or train on this one")
    return ranked(policy)


def ranked(policy: AutoregressivePolicy) -> Strategy:
    """The strategy that follows the exact ranking of a policy."""

    def strategy(session: SearchSession, rng: np.random.Generator) -> None:
        features = observation.static_features(session.space, session.problem, session.candidates)
        weights = log_weights(session.space, session.problem, session.candidates)
        order = policy.ranking(features, session.candidates, weights).flat
        session.measure_in_order(order, BATCH)

    return strategy
