"""PPO over a runner: one call trains, saves, resumes, and leaves a kernel table at every checkpoint."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.logger import Logger, configure

from cudal2.errors import UsageError
from cudal2.problem import Problem
from cudal2.progress import Progress
from cudal2.records.counters import ProfileBook
from cudal2.records.fingerprint import Fingerprint
from cudal2.records.measurement import Measurement
from cudal2.rl import run_dir as layout
from cudal2.rl.best import Found, found, write_tables
from cudal2.rl.checkpoint import DAMAGE, Checkpoint, damaged, latest, load, rng_state, save, set_rng_state
from cudal2.rl.policy import AutoregressivePolicy, bind_masks
from cudal2.rl.train_callback import Row, RunCallback
from cudal2.rl.vec_env import HgemmVecEnv
from cudal2.runners.base import Runner
from cudal2.runners.replay import ReplayRunner
from cudal2.settings import TrainSettings

#: An update ends early once the policy moved by 1.5 times this; late in a run single batches moved it by more than 1.
TARGET_KL = 0.05


@dataclass(frozen=True)
class TrainResult:
    """What a training run left behind.

    Attributes:
        run_dir: Its directory.
        table_paths: The kernel tables: ``table.json``, or one per accumulator and layout.
        checkpoint_path: The last checkpoint.
        steps: Environment steps of the whole run, earlier parts included.
        distinct: Unique configurations measured, failures included.
        best: Best measurement per problem, in the order of the problems; ``None`` where nothing passed.
        curve: One row per rollout: steps, reward, entropy, approx_kl, distinct, best_ratio, steps_per_s.
        elapsed_s: Wall time of this call.
        steps_per_s: Steps of this call over its wall time, updates included.
    """

    run_dir: Path
    table_paths: tuple[Path, ...]
    checkpoint_path: Path
    steps: int
    distinct: int
    best: tuple[Found | None, ...]
    curve: tuple[Row, ...]
    elapsed_s: float
    steps_per_s: float


def train(
    settings: TrainSettings,
    runner: Runner,
    run_dir: Path,
    *,
    resume: bool = False,
    seed: int | None = None,
    steps: int | None = None,
    problems: Sequence[Problem] | None = None,
    horizon: int = 1,
    fingerprint: Fingerprint | None = None,
    known: Iterable[Measurement] = (),
    counters: ProfileBook | None = None,
    progress: bool = True,
) -> TrainResult:
    """Trains a policy, or continues a run to ``steps`` in all.

    An exception or a Ctrl-C on the way saves the last rollout boundary and the table so far, and passes on.
    A resumed run ends with the same bits as one that was never stopped, on a recording.

    Args:
        settings: Hyperparameters.
        runner: Where measurements come from.
        run_dir: Directory of the run; must be new unless ``resume``.
        resume: Continue from the newest checkpoint in ``run_dir``.
        seed: Instead of the settings' seed, or of the one a resumed run was started with.
        steps: Instead of the settings' steps; rounded up to whole rollouts.
        problems: Problems to train on; by default all the runner has.
        horizon: Steps per episode.
        fingerprint: Environment of the measurements, for the table; a recording has its own.
        known: Measurements made before, answered from memory: the records of a live run that is resumed.
        counters: Profiles the observation shows where a configuration was profiled; none by default.
        progress: Show how far it has got, on stderr.

    Raises:
        UsageError: The directory holds another run, or nothing to resume.
    """
    started_from = load(latest(run_dir)) if resume else None
    if started_from is not None and seed is None:
        seed = started_from.identity["settings"]["seed"]
    overrides = {name: value for name, value in (("seed", seed), ("steps", steps)) if value is not None}
    settings = replace(settings, **overrides)
    if settings.steps < 1:
        raise UsageError(f"steps = {settings.steps}: give at least 1")
    layout.prepare(run_dir, resume)
    with _one_thread():
        problems = tuple(problems or runner.problems)
        run = _Run(settings, runner, run_dir, started_from, problems, horizon, fingerprint, counters)
        run.env.scorer.remember(known)
        return run.train(progress)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small matrices run fastest on one core, and on one core the sums have one order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Run:
    """One training run: the model, its environment and what is saved of them."""

    def __init__(
        self,
        settings: TrainSettings,
        runner: Runner,
        run_dir: Path,
        started_from: Checkpoint | None,
        problems: tuple[Problem, ...],
        horizon: int,
        fingerprint: Fingerprint | None,
        counters: ProfileBook | None,
    ) -> None:
        self.fingerprint = _fingerprint(runner, fingerprint)
        self.settings = settings
        self.run_dir = run_dir
        self.identity = layout.identity(settings, runner, problems, horizon, counters)
        self.curve: list[Row] = []
        if started_from is not None:
            layout.require_same(started_from.identity, self.identity, run_dir)
        self.env = HgemmVecEnv(runner, problems, settings.n_envs, horizon, settings.seed, counters=counters)
        self.model = make_model(settings, self.env)
        layout.write_settings(run_dir, settings, self.identity)
        if started_from is not None:
            try:
                self._restore(started_from)
            except DAMAGE as error:
                raise damaged(latest(run_dir)) from error
        self._saved_steps = self.model.num_timesteps
        self._boundary = self._snapshot()

    def train(self, progress: bool) -> TrainResult:
        began_s, began_steps = time.perf_counter(), self.model.num_timesteps
        missing = max(0, self.settings.steps - began_steps)
        rollout = self.settings.n_envs * self.settings.n_steps
        try:
            if missing:
                self.model.set_logger(_logger(self.run_dir))
                with _shown(progress, math.ceil(missing / rollout) * rollout) as bar:
                    callback = RunCallback(self.env.scorer, bar, self._at_boundary, self.curve, self.settings.ent_coef)
                    self.model.learn(missing, callback=callback, reset_num_timesteps=not began_steps)
                    callback.finish_rollout()
        finally:
            tables = self._save()
        elapsed_s = time.perf_counter() - began_s
        speed = (self.model.num_timesteps - began_steps) / elapsed_s
        best, distinct = found(self.env.scorer), self.env.scorer.distinct
        steps, path = self.model.num_timesteps, latest(self.run_dir)
        return TrainResult(self.run_dir, tables, path, steps, distinct, best, tuple(self.curve), elapsed_s, speed)

    def _at_boundary(self) -> None:
        self._boundary = self._snapshot()
        if self._boundary.steps - self._saved_steps >= self.settings.checkpoint_every:
            self._save()

    def _snapshot(self) -> Checkpoint:
        """The state between two rollouts, held in memory so that an interrupt at any moment can save it."""
        policy, optimizer = self.model.policy.state_dict(), self.model.policy.optimizer.state_dict()
        starts = self.model._last_episode_starts
        return Checkpoint(
            steps=self.model.num_timesteps,
            policy={name: value.clone() for name, value in policy.items()},
            optimizer=copy.deepcopy(optimizer),
            rng=rng_state(),
            env=self.env.state(),
            trainer={
                "updates": self.model._n_updates,
                "episode_starts": None if starts is None else starts.tolist(),
                "curve": list(self.curve),
            },
            identity=self.identity,
        )

    def _save(self) -> tuple[Path, ...]:
        # An interrupt before the first update leaves nothing to continue from, but perhaps measurements for the table.
        if self._boundary.steps:
            save(self._boundary, self.run_dir / layout.CHECKPOINTS)
        self._saved_steps = self._boundary.steps
        layout.write_curve(self.run_dir, self._boundary.trainer["curve"])
        return write_tables(self.env.scorer, self.fingerprint, self.run_dir)

    def _restore(self, saved: Checkpoint) -> None:
        model = self.model
        model.policy.load_state_dict(saved.policy)
        model.policy.optimizer.load_state_dict(saved.optimizer)
        model.num_timesteps = saved.steps
        model._n_updates = saved.trainer["updates"]
        model._last_obs = self.env.restore(saved.env)
        model._last_episode_starts = np.array(saved.trainer["episode_starts"], np.bool_)
        self.curve.extend(saved.trainer["curve"])
        set_rng_state(saved.rng)


def _fingerprint(runner: Runner, given: Fingerprint | None) -> Fingerprint:
    if given is not None:
        return given
    if isinstance(runner, ReplayRunner):
        return runner.recording.fingerprint
    raise UsageError("a live run needs the fingerprint of its environment, for the table it leaves")


def make_model(settings: TrainSettings, env: HgemmVecEnv) -> PPO:
    """An untrained PPO with the autoregressive policy, on the CPU."""
    model = PPO(
        AutoregressivePolicy,
        env,
        learning_rate=settings.learning_rate,
        n_steps=settings.n_steps,
        batch_size=settings.batch_size,
        n_epochs=settings.n_epochs,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        clip_range=settings.clip_range,
        ent_coef=settings.ent_coef,
        vf_coef=settings.vf_coef,
        max_grad_norm=settings.max_grad_norm,
        target_kl=TARGET_KL,
        seed=settings.seed,
        device="cpu",
        policy_kwargs={"hidden": settings.hidden},
    )
    assert isinstance(model.policy, AutoregressivePolicy)
    bind_masks(model.policy, env.scorer.masks)
    return model


def _logger(run_dir: Path) -> Logger:
    return configure(str(run_dir / layout.TENSORBOARD), ["tensorboard"])


@contextmanager
def _shown(progress: bool, total: int) -> Iterator[Progress | None]:
    if not progress:
        yield None
        return
    with Progress("training", total) as bar:
        yield bar
