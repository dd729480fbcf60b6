"""Records of server mode: what they refuse, that they come back as they went, what is said of them."""

import dataclasses

import pytest
from fabricated_finals import CONFIG
from fabricated_recording import FINGERPRINT

from cudal2.errors import RecordError
from cudal2.problem import Problem
from cudal2.records.latency import (
    KIND,
    Latency,
    compare_latencies,
    group_servings,
    read_latencies,
    shipped_latencies,
    summaries,
)
from cudal2.records.measurement import STATES, Status
from cudal2.records.shards import RecordLog, read_shards

PROBLEM = Problem(64, 4096, 64)


def latency(
    contestant="sm90_ws", base_us=10.0, *, mnk="64_4096_64", state="warm", utc="2000-01-01T00:00:00+00:00", **values
):
    """Eight blocks of five requests, drifting up together; the last request of each block is five times as late."""
    blocks = tuple(
        tuple(round(base_us * (1 + 0.01 * block) * (5.0 if index == 4 else 1.0), 2) for index in range(5))
        for block in range(8)
    )
    values = {
        "problem": Problem.parse(mnk),
        "contestant": contestant,
        "config": CONFIG if contestant == "sm90_ws" else None,
        "state": state,
        "target_qps": 1000.0,
        "seed": 0,
        "status": Status.CORRECT,
        "latency_us": blocks,
        "queue_us": tuple((0.02,) * 5 for _ in blocks),
        "host_us": (3.0,) * 8,
        "device_us": ((base_us / 4, base_us / 4),) * 8,
        "sm_clock_mhz": (1980,) * 8,
        "utc": utc,
        **values,
    }
    return Latency(**values)


def failed(contestant="cublas_nn", **values):
    empty = {"latency_us": (), "queue_us": (), "host_us": (), "device_us": ()}
    return latency(contestant, status=Status.CORRECTNESS, reason="C[0,0] is nan", **empty, **values)


def test_rows_come_back_as_they_went(tmp_path):
    rows = (latency(), latency("cublas_tn", 20.0), failed())
    with RecordLog(tmp_path, FINGERPRINT) as log:
        for row in rows:
            log.write_row(KIND, row.to_dict())
    found = read_latencies(tmp_path)
    assert found.rows == rows and found.fingerprints == (FINGERPRINT,)
    assert [row.detail for row in found.rows] == [row.detail for row in rows]


def test_a_torn_last_line_costs_one_row_and_a_measurement_is_none(tmp_path):
    with RecordLog(tmp_path, FINGERPRINT) as log:
        log.write_row(KIND, latency().to_dict())
    with log.path.open("a") as file:
        file.write('{"kind":"latency","prob')
    found = read_latencies(tmp_path)
    assert len(found.rows) == 1 and found.torn_lines == 1
    with pytest.raises(RecordError, match="not a measurement row"):
        read_shards(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"status": Status.RUNTIME},
        {"reason": "why"},
        {"latency_us": ()},
        {"device_us": ()},
        {"queue_us": ((0.0,),) * 8},
        {"host_us": (1.0,)},
        {"latency_us": ((float("nan"),) * 5,) * 8},
        {"device_us": ((0.0,),) * 8},
        {"queue_us": ((-1.0,) * 5,) * 8},
        {"state": "lukewarm"},
        {"target_qps": 0.0},
    ],
)
def test_a_row_that_contradicts_itself_is_refused(change):
    with pytest.raises(ValueError):
        dataclasses.replace(latency(), **change)


def test_quantiles_load_and_sojourn():
    row = latency(base_us=10.0)
    assert row.quantile_us(0.5) == pytest.approx(10.4, abs=0.11)
    assert row.quantile_us(0.99) == pytest.approx(53.5, abs=0.5)
    assert row.sojourn_us(0.5) == pytest.approx(row.quantile_us(0.5) + 0.02)
    assert row.load == pytest.approx(10.35 * 9 / 5 * 1e-3, rel=0.01)
    assert row.device_median_us == 2.5 and row.block_p50_us[0] == 10.0


def test_ratios_are_paired_by_block_so_that_common_drift_cancels():
    found = compare_latencies(latency(base_us=10.0), latency("torch", 15.0))
    assert (found.p50.ratio, found.p50.low, found.p50.high) == pytest.approx((1.5, 1.5, 1.5), rel=1e-3)
    assert found.p50.verdict == "win" and found.device.ratio == pytest.approx(1.5)
    assert found.p95 == pytest.approx(1.5, rel=1e-3) and found.p99 == pytest.approx(1.5, rel=1e-3)


def test_a_serving_takes_the_better_layout_and_never_a_library_as_ours():
    rows = [latency(), latency("cublas_tn", 20.0), latency("cublas_nn", 12.0), latency("empty", 5.0), failed("torch")]
    (serving,) = group_servings(rows)
    assert serving.ours.config == CONFIG and serving.empty.contestant == "empty"
    assert serving.baseline("cublas").contestant == "cublas_nn" and list(serving.baselines) == ["cublas"]
    assert serving.against("cublas").p50.ratio == pytest.approx(1.2, rel=1e-3)
    assert serving.against("torch") is None and not serving.overloaded
    busy = dataclasses.replace(latency("torch"), target_qps=50_000.0)
    assert group_servings([busy])[0].overloaded


def test_the_newest_serving_of_each_state_counts():
    rows = [
        latency(base_us=10.0, utc="2000-01-02T00:00:00+00:00"), latency(base_us=5.0, utc="2000-01-01T00:00:00+00:00"),
        latency(state="idle_cold"), latency(mnk="64_64_64", state="loaded"),
    ]  # fmt: skip
    found = summaries(rows)
    assert [(one.problem.mnk, one.state) for one in found] == [
        ("64_64_64", "loaded"), ("64_4096_64", "idle_cold"), ("64_4096_64", "warm"),
    ]  # fmt: skip
    assert found[-1].ours.block_p50_us[0] == 10.0


def test_what_ships_can_be_read():
    folder = shipped_latencies()
    if not folder.is_dir():
        pytest.skip("no servings ship yet")
    rows = read_latencies(folder, allow_mixed=True).rows
    assert {serving.state for serving in summaries(rows)} == set(STATES)
