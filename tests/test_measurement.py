"""A row holds times if and only if it passed, a reason if and only if it did not."""

import json

import pytest

from cudal2.problem import Problem
from cudal2.records.measurement import Measurement, Status
from cudal2.space.config import Sm90WsConfig

PROBLEM = Problem(64, 4096, 64)
CONFIG = Sm90WsConfig(128, 128, 64, 4, "coop", 2, 1, 1, 1, "tma", 1)


def test_failures_hold_no_times():
    with pytest.raises(ValueError, match="times"):
        Measurement(PROBLEM, "sm90_ws", CONFIG, Status.TIMEOUT, "hung", times_us=(1.0,))


def test_correct_rows_hold_times():
    with pytest.raises(ValueError, match="0 times"):
        Measurement(PROBLEM, "sm90_ws", CONFIG, Status.CORRECT)


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.CORRECT])
def test_every_failure_needs_a_reason(status):
    with pytest.raises(ValueError, match="reason"):
        Measurement(PROBLEM, "sm90_ws", CONFIG, status)


def test_a_success_has_no_reason():
    with pytest.raises(ValueError, match="reason"):
        Measurement(PROBLEM, "sm90_ws", CONFIG, Status.CORRECT, "but slow", times_us=(1.0,))


@pytest.mark.parametrize("time_us", [0.0, -1.0, float("nan")])
def test_times_are_ones_that_can_be(time_us):
    with pytest.raises(ValueError, match="a time is not from"):
        Measurement(PROBLEM, "sm90_ws", CONFIG, Status.CORRECT, times_us=(1.0, time_us))


@pytest.mark.parametrize("rounds", [(1,), (2, 2), (0, 3), (4, -1)])
def test_times_split_into_the_rounds_of_every_process(rounds):
    with pytest.raises(ValueError, match="do not split"):
        Measurement(PROBLEM, "torch", None, Status.CORRECT, times_us=(1.0, 2.0, 3.0), process_rounds=rounds)


def test_rows_from_before_processes_were_counted_read_as_one_process():
    values = Measurement(PROBLEM, "torch", None, Status.CORRECT, times_us=(1.0, 2.0)).to_dict()
    del values["process_rounds"]
    assert Measurement.from_dict(values).process_rounds == ()


def test_median_and_speedup_use_the_raw_repeats():
    row = Measurement(PROBLEM, "sm90_ws", CONFIG, Status.CORRECT, times_us=(4.0, 2.0, 9.0), ref_times_us=(5.0, 6.0))
    assert row.median_us == 4.0
    assert row.speedup == pytest.approx(5.5 / 4.0)


def test_no_speedup_without_a_reference():
    assert Measurement(PROBLEM, "torch", None, Status.CORRECT, times_us=(4.0,)).speedup is None


@pytest.mark.parametrize(
    "row",
    [
        Measurement(PROBLEM, "sm90_ws", CONFIG, Status.CORRECT, times_us=(1.5, 1.25), ref_times_us=(2.0,), pdl=True),
        Measurement(PROBLEM, "torch", None, Status.CORRECT, times_us=(1.5, 1.25, 2.0), process_rounds=(1, 2)),
        Measurement(PROBLEM, "sm90_ws", CONFIG, Status.COMPILE, "C7510", detail="log.txt"),
        Measurement(PROBLEM, "cublas", None, Status.CORRECT, times_us=(3.0,), mode="server"),
    ],
)
def test_rows_survive_json(row):
    assert Measurement.from_dict(json.loads(json.dumps(row.to_dict()))) == row
