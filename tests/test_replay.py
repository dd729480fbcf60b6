"""Replay: recorded numbers only, failures as they failed, misses by name, and the bill of the live run."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from fabricated_recording import FINGERPRINT, SHAPES, SPACE, made_up_row
from fabricated_runner import first_illegal

from cudal2.errors import ReplayMissError, UsageError
from cudal2.problem import Problem
from cudal2.records.measurement import Status
from cudal2.records.recording import STATUS_CODES, Recording
from cudal2.runners.base import Runner
from cudal2.runners.replay import ReplayRunner
from cudal2.space.space import SearchSpace

PROBLEM = Problem.parse(SHAPES[2])


@pytest.fixture
def runner(tiny_recording):
    return ReplayRunner(tiny_recording)


@pytest.fixture(scope="module")
def partial(tiny_recording):
    """The recording without its 4-stage kernels on PROBLEM."""
    rows = (
        row
        for row in tiny_recording.measurements()
        if row.config is None or row.problem != PROBLEM or row.config.stages == 2
    )
    return Recording.from_measurements(rows, [FINGERPRINT], tiny_recording.space)


def split(space, problem):
    configs = list(space.enumerate(problem))
    return [config for config in configs if config.stages == 2], [config for config in configs if config.stages == 4]


def test_it_is_a_runner(runner):
    typed: Runner = runner
    assert typed.nondeterministic is False
    assert typed.problems == runner.recording.problems


def test_it_answers_in_the_order_asked_with_recorded_rows(runner):
    configs = list(runner.space.enumerate(PROBLEM))[::-9]
    rows = runner.run(PROBLEM, configs)
    assert [row.config for row in rows] == configs
    for row, config in zip(rows, configs, strict=True):
        assert row.times_us == pytest.approx(made_up_row(PROBLEM, config).times_us, rel=1e-6)


def test_the_same_question_gets_the_same_answer(runner):
    configs = list(runner.space.enumerate(PROBLEM))[:5]
    assert runner.run(PROBLEM, configs) == runner.run(PROBLEM, configs)


def test_failures_replay_as_failures(runner):
    failed = next(row for row in runner.recording.measurements() if row.status is Status.TIMEOUT)
    (row,) = runner.run(failed.problem, [failed.config])
    assert (row.status, row.reason, row.times_us) == (Status.TIMEOUT, "no answer within 10 s", ())
    index, flat = runner.problem_index(failed.problem), runner.space.flat(failed.config)
    assert np.isnan(runner.times_us(index, flat))
    assert runner.statuses(index, flat) == STATUS_CODES[Status.TIMEOUT]


def test_an_illegal_configuration_fails_by_rule(runner):
    illegal = runner.space.from_flat(first_illegal(runner, PROBLEM))
    (row,) = runner.run(PROBLEM, [illegal])
    assert row.status is Status.CONSTRAINTS
    assert row.reason == "; ".join(runner.space.explain(illegal, PROBLEM))
    assert runner.cost_s == 0.0


def test_a_miss_names_shape_and_configuration(partial):
    runner = ReplayRunner(partial)
    _, missing = split(partial.space, PROBLEM)
    pattern = rf"64_512_2048 \(fp32, tn\): {missing[0].name} was not recorded"
    with pytest.raises(ReplayMissError, match=pattern):
        runner.run(PROBLEM, missing[:1])
    with pytest.raises(ReplayMissError, match=pattern):
        runner.times_us(runner.problem_index(PROBLEM), runner.space.flat(missing[0]))


def test_a_value_outside_the_recorded_space_is_a_miss(runner):
    config = dataclasses.replace(next(iter(runner.space.enumerate(PROBLEM))), stages=3)
    with pytest.raises(ReplayMissError, match=config.name):
        runner.run(PROBLEM, [config])


def test_an_unrecorded_problem_is_a_miss(runner):
    with pytest.raises(ReplayMissError, match="7_7_7"):
        runner.reference_us(Problem(7, 7, 7))


def test_error_allows_everything_legal_and_mask_only_what_was_recorded(partial):
    recorded, missing = split(partial.space, PROBLEM)
    everything = ReplayRunner(partial).allowed(PROBLEM)
    np.testing.assert_array_equal(everything, partial.space.legal_flat(PROBLEM))
    masked = ReplayRunner(partial, on_missing="mask").allowed(PROBLEM)
    assert len(masked) == len(recorded) < len(everything) == len(recorded) + len(missing)
    assert masked.tolist() == sorted(partial.space.flat(config) for config in recorded)
    assert not any(partial.space.flat(config) in masked for config in missing)


def test_an_unknown_policy_is_a_usage_error(tiny_recording):
    with pytest.raises(UsageError, match="choose one of error, mask"):
        ReplayRunner(tiny_recording, on_missing="guess")


def test_vectorised_lookups_match_the_rows(runner):
    rng = np.random.default_rng(0)
    indices = rng.integers(0, len(runner.problems), 64)
    flats = np.array([rng.choice(runner.cells.row(index)[0]) for index in indices])
    times_us, refs_us, statuses = (f(indices, flats) for f in (runner.times_us, runner.ref_times_us, runner.statuses))
    assert times_us.dtype == np.float32
    for at, (index, flat) in enumerate(zip(indices, flats, strict=True)):
        problem = runner.problems[index]
        (row,) = runner.run(problem, [runner.space.from_flat(int(flat))])
        assert statuses[at] == STATUS_CODES[row.status]
        assert refs_us[at] == pytest.approx(np.median(row.ref_times_us) if row.ok else runner.reference_us(problem))
        assert np.isnan(times_us[at]) if not row.ok else times_us[at] == pytest.approx(row.median_us, rel=1e-6)


def test_the_bill_is_build_plus_measurement(runner):
    configs = list(runner.space.enumerate(PROBLEM))[:10]
    runner.run(PROBLEM, configs)
    assert runner.cost_s == pytest.approx(10 * (0.75 + 0.25))
    runner.charge(np.zeros(3, int), runner.cells.row(0)[0][:3])
    assert runner.cost_s == pytest.approx(13.0)


def test_a_narrower_space_reindexes_the_cells(tiny_recording):
    space = SearchSpace(settings=dataclasses.replace(SPACE, axes={**SPACE.axes, "tile_n": (64, 128), "stages": (4,)}))
    runner, whole = ReplayRunner(tiny_recording, space), ReplayRunner(tiny_recording)
    assert runner.cells.shape[1] == space.total < whole.space.total
    for config in list(space.enumerate(PROBLEM))[::5]:
        index = runner.problem_index(PROBLEM)
        mine, theirs = runner.times_us(index, space.flat(config)), whole.times_us(index, whole.space.flat(config))
        np.testing.assert_array_equal(mine, theirs)


def test_a_wider_space_is_masked_to_the_recording_and_misses_otherwise(tiny_recording):
    space = SearchSpace(settings=dataclasses.replace(SPACE, axes={**SPACE.axes, "stages": (2, 3, 4)}))
    masked = ReplayRunner(tiny_recording, space, on_missing="mask").allowed(PROBLEM)
    assert len(masked) == len(tiny_recording.recorded(PROBLEM))
    config = next(config for config in space.enumerate(PROBLEM) if config.stages == 3)
    assert space.flat(config) not in masked
    strict = ReplayRunner(tiny_recording, space)
    with pytest.raises(ReplayMissError, match="_s3_"):
        strict.times_us(strict.problem_index(PROBLEM), space.flat(config))


def test_replay_imports_neither_torch_nor_cuda():
    code = "import sys, cudal2.runners.replay; print([name for name in ('torch', 'cuda') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
