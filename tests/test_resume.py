"""A run that was stopped and resumed ends with the same bits as one that never stopped; an interrupt loses nothing."""

import errno
import json
import os
from dataclasses import replace

import pytest
import torch
from fabricated_recording import FINGERPRINT, SHAPES, made_up_recording
from fabricated_runner import LiveRunner

from cudal2.errors import EnvironmentProblemError, RecordError, UsageError
from cudal2.rl.checkpoint import checkpoints, load
from cudal2.rl.train import train
from cudal2.runners.replay import ReplayRunner
from cudal2.settings import TrainSettings

SETTINGS = TrainSettings(n_envs=16, n_steps=4, batch_size=32, n_epochs=2, hidden=32, checkpoint_every=64)


def assert_same_state(first, second):
    a, b = load(first), load(second)
    assert a.steps == b.steps and a.env == b.env and a.rng == b.rng and a.identity == b.identity
    assert all(torch.equal(a.policy[name], b.policy[name]) for name in a.policy)
    for one, other in zip(a.optimizer["state"].values(), b.optimizer["state"].values(), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    drop = [[{k: v for k, v in row.items() if k != "steps_per_s"} for row in c.trainer["curve"]] for c in (a, b)]
    assert drop[0] == drop[1]


@pytest.mark.parametrize("horizon", [1, 3])
def test_resume_equals_an_uninterrupted_run_bit_for_bit(runner, tmp_path, horizon):
    whole = train(SETTINGS, runner, tmp_path / "whole", steps=512, horizon=horizon, progress=False)
    train(SETTINGS, runner, tmp_path / "parts", steps=192, horizon=horizon, progress=False)
    torch.manual_seed(99)
    parts = train(SETTINGS, runner, tmp_path / "parts", steps=512, horizon=horizon, resume=True, progress=False)
    assert_same_state(whole.checkpoint_path, parts.checkpoint_path)
    assert whole.best == parts.best and whole.distinct == parts.distinct


def test_same_seed_same_bits_other_seed_other_bits(runner, tmp_path):
    a, b, c = (
        train(SETTINGS, runner, tmp_path / name, steps=128, seed=seed, progress=False)
        for name, seed in zip("abc", (1, 1, 2), strict=True)
    )
    assert_same_state(a.checkpoint_path, b.checkpoint_path)
    assert load(a.checkpoint_path).env != load(c.checkpoint_path).env


def test_a_resumed_run_keeps_its_seed_unless_told_another(runner, tmp_path):
    train(SETTINGS, runner, tmp_path / "run", steps=64, seed=5, progress=False)
    resumed = train(SETTINGS, runner, tmp_path / "run", steps=128, resume=True, progress=False)
    whole = train(SETTINGS, runner, tmp_path / "whole", steps=128, seed=5, progress=False)
    assert_same_state(whole.checkpoint_path, resumed.checkpoint_path)
    with pytest.raises(UsageError, match="another seed"):
        train(SETTINGS, runner, tmp_path / "run", steps=192, seed=6, resume=True, progress=False)


class Interrupting(LiveRunner):
    """Ctrl-C arrives while the n-th problem is being measured."""

    def __init__(self, runner, after):
        super().__init__(runner)
        self.calls_left = after

    def run(self, problem, configs):
        self.calls_left -= 1
        if self.calls_left == 0:
            raise KeyboardInterrupt
        return super().run(problem, configs)


def test_ctrl_c_saves_the_last_boundary_and_the_table_and_can_be_resumed(runner, tmp_path):
    live = {"steps": 256, "fingerprint": FINGERPRINT, "progress": False}
    whole = train(SETTINGS, LiveRunner(runner), tmp_path / "whole", **live)
    settings = replace(SETTINGS, checkpoint_every=10_000)
    with pytest.raises(KeyboardInterrupt):
        train(settings, Interrupting(runner, after=45), tmp_path / "cut", **live)
    saved = checkpoints(tmp_path / "cut" / "checkpoints")
    assert len(saved) == 1 and 0 < load(saved[0]).steps < 256
    assert (tmp_path / "cut" / "table.json").is_file()
    resumed = train(SETTINGS, LiveRunner(runner), tmp_path / "cut", resume=True, **live)
    assert_same_state(whole.checkpoint_path, resumed.checkpoint_path)


def test_a_resumed_live_run_does_not_measure_again_what_its_records_hold(runner, tmp_path):
    live = {"fingerprint": FINGERPRINT, "progress": False}
    first = LiveRunner(runner)
    train(SETTINGS, first, tmp_path / "run", steps=64, **live)
    rows = [row for problem, config in first.asked for row in runner.run(problem, [config])]
    later = [row for p in runner.problems for row in runner.run(p, list(runner.space.enumerate(p))[:20])]
    second = LiveRunner(runner)
    result = train(SETTINGS, second, tmp_path / "run", steps=256, resume=True, known=[*rows, *later], **live)
    held = {(row.problem, row.config) for row in (*rows, *later)}
    assert second.asked and not held & set(second.asked)
    assert result.distinct == len(held) + len(second.asked)


def test_a_finished_run_resumed_takes_no_step(runner, tmp_path):
    first = train(SETTINGS, runner, tmp_path / "run", steps=64, progress=False)
    again = train(SETTINGS, runner, tmp_path / "run", steps=64, resume=True, progress=False)
    assert again.steps == 64 and again.best == first.best and again.steps_per_s == 0


def test_another_recording_or_another_setting_is_refused(runner, tmp_path):
    train(SETTINGS, runner, tmp_path / "run", steps=64, progress=False)
    other = ReplayRunner(made_up_recording(shapes=(*SHAPES[:-1], "512_1024_2048")), on_missing="mask")
    with pytest.raises(UsageError, match="another recording or launch setting"):
        train(SETTINGS, other, tmp_path / "run", resume=True, progress=False)
    with pytest.raises(UsageError, match="another learning_rate"):
        train(replace(SETTINGS, learning_rate=1e-3), runner, tmp_path / "run", resume=True, progress=False)
    with pytest.raises(UsageError, match="another list of shapes"):
        train(SETTINGS, runner, tmp_path / "run", resume=True, problems=runner.problems[:2], progress=False)


def test_old_checkpoints_are_removed_and_a_damaged_one_is_named(runner, tmp_path):
    result = train(SETTINGS, runner, tmp_path / "run", steps=512, progress=False)
    kept = checkpoints(tmp_path / "run" / "checkpoints")
    assert len(kept) == 3 and kept[-1] == result.checkpoint_path
    kept[-1].write_bytes(kept[-1].read_bytes()[:1000])
    with pytest.raises(RecordError, match="step_000000512"):
        train(SETTINGS, runner, tmp_path / "run", steps=640, resume=True, progress=False)
    kept[-1].unlink()
    assert train(SETTINGS, runner, tmp_path / "run", steps=512, resume=True, progress=False).steps == 512


@pytest.mark.parametrize("part", ["policy", "optimizer", "plain", "steps", "rng", "env", "trainer", "more"])
@pytest.mark.parametrize("value", [None, {}, [], "text", 5])
def test_a_checkpoint_damaged_in_any_part_is_named(runner, tmp_path, part, value):
    path = train(SETTINGS, runner, tmp_path / "run", steps=64, progress=False).checkpoint_path
    content = torch.load(path, weights_only=True)
    if part in content:
        content[part] = value
    elif not (part == "steps" and value == 5):
        content["plain"] = json.dumps({**json.loads(content["plain"]), part: value})
    else:
        return
    torch.save(content, path)
    with pytest.raises(RecordError, match=f"{path.name} is not a readable checkpoint"):
        train(SETTINGS, runner, tmp_path / "run", steps=128, resume=True, progress=False)


def test_a_full_disk_is_said_and_costs_no_older_checkpoint(runner, tmp_path, monkeypatch):
    path = train(SETTINGS, runner, tmp_path / "run", steps=64, progress=False).checkpoint_path
    whole = path.read_bytes()

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentProblemError, match="No space left on device"):
        train(SETTINGS, runner, tmp_path / "run", steps=128, resume=True, progress=False)
    assert [file.name for file in path.parent.iterdir()] == [path.name] and path.read_bytes() == whole


def test_nothing_to_resume_leaves_nothing_behind(runner, tmp_path):
    with pytest.raises(UsageError, match="holds no checkpoint"):
        train(SETTINGS, runner, tmp_path / "none", resume=True, progress=False)
    assert not (tmp_path / "none").exists()
