"""Reinforcement learning over the search; importing it registers ``cudal2/HGEMM-v0`` with Gymnasium."""

from __future__ import annotations

from gymnasium.envs.registration import register

ENV_ID = "cudal2/HGEMM-v0"

# The default runner is a recording: the same action on the same problem is always worth the same.
register(id=ENV_ID, entry_point="cudal2.rl.env:HgemmEnv", nondeterministic=False)
