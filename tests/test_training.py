"""PPO on a made-up recording: it learns, it beats random at equal budget, and its run directory is complete."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import yaml
from fabricated_recording import FINGERPRINT, SPACE, made_up_recording
from fabricated_runner import LiveRunner
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cudal2.errors import UsageError
from cudal2.records.measurement import Measurement, Status
from cudal2.rl.checkpoint import load
from cudal2.rl.rank import policy_strategy
from cudal2.rl.train import train
from cudal2.rl.train_callback import ENTROPY_FLOOR, entropy_weight
from cudal2.runners.replay import ReplayRunner
from cudal2.search.base import FAILURE_LOG_RATIO
from cudal2.search.compare import compare
from cudal2.search.strategies import STRATEGIES
from cudal2.settings import SpaceSettings, TrainSettings
from cudal2.space.families import FAMILIES, SM90_WS
from cudal2.space.space import SearchSpace
from cudal2.table import KernelTable

#: Ten times the configurations of the tiny space, so that luck does not find the best.
WIDER = replace(
    SPACE,
    axes={**SPACE.axes, "tile_m": (64, 128, 192, 256), "tile_n": (32, 64, 96, 128, 192, 256), "raster": ("m", "n")},
)
SETTINGS = TrainSettings(n_envs=64, batch_size=128, hidden=128, checkpoint_every=2048)


@pytest.fixture(scope="module")
def runner():
    return ReplayRunner(made_up_recording(space=WIDER), on_missing="mask")


@pytest.fixture(scope="module")
def trained(runner, tmp_path_factory):
    return train(SETTINGS, runner, tmp_path_factory.mktemp("runs") / "trained", steps=6000, seed=1, progress=False)


def test_ppo_beats_random_at_equal_budget(runner, trained):
    scores = compare({"random": STRATEGIES["random"]}, runner, budgets=(1, 4), seeds=range(5))
    scores += compare({"policy": policy_strategy(trained.run_dir, runner.space)}, runner, budgets=(1, 4))
    scores = {(score.strategy, score.budget): score.geomean_ratio for score in scores}
    assert scores["policy", 1] > 1.2 * scores["random", 1]
    assert scores["policy", 1] > scores["random", 4]
    assert scores["policy", 4] > 1.05 * scores["random", 4]


def test_ppo_beats_the_model_it_started_from(runner, trained):
    strategies = {"analytic": STRATEGIES["analytic"], "policy": policy_strategy(trained.run_dir, runner.space)}
    analytic, policy = compare(strategies, runner, budgets=(1,))
    assert policy.geomean_ratio > 1.03 * analytic.geomean_ratio


def test_rewards_rise_and_exploration_narrows(trained):
    first, last = trained.curve[0], trained.curve[-1]
    assert last["reward"] > first["reward"] + 0.05
    assert last["entropy"] < 0.75 * first["entropy"]
    assert last["best_ratio"]["all"] >= first["best_ratio"]["all"]
    assert [row["steps"] for row in trained.curve] == list(range(512, 6145, 512))


def test_exploring_is_paid_more_as_the_policy_narrows():
    assert entropy_weight(0.01, 5.0) == entropy_weight(0.01, ENTROPY_FLOOR) == 0.01
    assert 0.01 < entropy_weight(0.01, 1.0) < entropy_weight(0.01, 0.5) < entropy_weight(0.01, 0.0) == 1.0
    assert entropy_weight(0.01, math.nan) == 0.01


def test_the_best_is_what_the_recording_says(runner, trained):
    for index, found in enumerate(trained.best):
        row = runner.run(runner.problems[index], [found.config])[0]
        assert found.problem == runner.problems[index] and row.ok
        assert found.median_us == pytest.approx(row.median_us, rel=1e-5)
        assert found.speedup == pytest.approx(row.speedup, rel=1e-4)


def test_the_table_holds_the_winners_and_the_shapes_that_lose(runner, trained):
    table = KernelTable.load(trained.table_paths[0])
    assert table.header.soft["gpu"] == FINGERPRINT.gpu and len(table) == len(runner.problems)
    for found in trained.best:
        shape = found.problem
        entry = table.lookup(shape.m, shape.n, shape.k)
        row = runner.run(shape, [entry.config])[0] if entry.config else None
        if row is None:
            assert found.speedup < 1.0 and entry.baseline == "cublaslt_auto"
        else:
            assert entry.median_us == pytest.approx(row.median_us, rel=1e-4)
            assert entry.median_us <= found.median_us * 1.03


def test_run_directory_holds_settings_curve_scalars_and_checkpoints(trained):
    described = yaml.safe_load((trained.run_dir / "settings.yaml").read_text())
    assert described["settings"]["steps"] == 6000 and described["settings"]["seed"] == 1
    assert len(described["shapes"]) == 6 and len(described["data"]) == 64
    assert (
        [row["steps"] for row in json.loads((trained.run_dir / "curve.json").read_text())][-1] == trained.steps == 6144
    )
    assert trained.checkpoint_path.name == "step_000006144.pt"
    events = EventAccumulator(str(trained.run_dir / "tb")).Reload()
    wanted = {"search/reward", "search/distinct_configs", "search/entropy", "train/approx_kl", "time/steps_per_s"}
    assert wanted | {"best_ratio/all", "best_ratio/<2.3us"} <= set(events.Tags()["scalars"])


def test_a_live_runner_is_asked_for_each_configuration_once(runner, tmp_path):
    live = LiveRunner(runner)
    result = train(SETTINGS, live, tmp_path / "live", steps=1024, fingerprint=FINGERPRINT, progress=False)
    assert len(live.asked) == len(set(live.asked)) == result.distinct
    assert result.distinct < result.steps


def test_problems_can_be_chosen(runner, tmp_path):
    result = train(SETTINGS, runner, tmp_path / "two", steps=512, problems=runner.problems[2:4], progress=False)
    assert [found.problem for found in result.best] == list(runner.problems[2:4])


def test_policy_of_another_space_is_refused(trained):
    with pytest.raises(UsageError, match="another search space"):
        policy_strategy(trained.run_dir, SearchSpace())


def test_a_policy_older_than_an_axis_ranks_where_the_axis_is_held_at_its_default(runner, tmp_path, monkeypatch):
    with monkeypatch.context() as before:
        older = replace(SM90_WS, axes=tuple(axis for axis in SM90_WS.axes if axis.name != "l2_promotion"))
        before.setitem(FAMILIES, "sm90_ws", older)
        axes = {name: values for name, values in WIDER.axes.items() if name != "l2_promotion"}
        old_runner = ReplayRunner(made_up_recording(space=replace(WIDER, axes=axes)), on_missing="mask")
        assert "l2_promotion" not in {axis.name for axis in old_runner.space.axes}
        run = train(SETTINGS, old_runner, tmp_path / "older", steps=512, seed=0, progress=False).run_dir
        expected = compare({"policy": policy_strategy(run, old_runner.space)}, old_runner, budgets=(1, 4))
    assert compare({"policy": policy_strategy(run, runner.space)}, runner, budgets=(1, 4)) == expected
    free = SpaceSettings(axes=axes, name="free")
    with pytest.raises(UsageError, match="another search space"):
        policy_strategy(run, SearchSpace(settings=free))


def test_bad_runs_are_refused(runner, trained, tmp_path):
    with pytest.raises(UsageError, match="already holds a run"):
        train(SETTINGS, runner, trained.run_dir, progress=False)
    with pytest.raises(UsageError, match="no checkpoint"):
        train(SETTINGS, runner, tmp_path, resume=True, progress=False)
    with pytest.raises(UsageError, match="steps = 0"):
        train(SETTINGS, runner, tmp_path / "none", steps=0, progress=False)


def test_progress_lines_go_to_stderr(runner, tmp_path, capsys):
    train(SETTINGS, runner, tmp_path / "shown", steps=512)
    out, err = capsys.readouterr()
    assert out == "" and "training: 512/512" in err


def test_checkpoint_of_a_run_without_success_is_still_a_checkpoint(runner, tmp_path):
    class Hopeless(LiveRunner):
        def run(self, problem, configs):
            return [Measurement(problem, "sm90_ws", config, Status.LAUNCH, "refused") for config in configs]

    hopeless, problems = Hopeless(runner), runner.problems[-1:]
    result = train(
        SETTINGS, hopeless, tmp_path / "run", steps=512, problems=problems, fingerprint=FINGERPRINT, progress=False
    )
    assert result.best == (None,)
    entry = KernelTable.load(result.table_paths[0]).entries[0]
    assert entry.baseline == "cublaslt_auto" and "configurations passed: " in entry.reason and "launch" in entry.reason
    assert np.isclose(result.curve[0]["reward"], FAILURE_LOG_RATIO)
    assert load(result.checkpoint_path).steps == 512 and math.isfinite(result.steps_per_s)
