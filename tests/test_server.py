"""Server mode end to end on the CPU: real client, buffers, checks; driver, libraries and time stand in."""

import itertools
import pickle
import shutil
import types
from typing import ClassVar

import numpy as np
import pytest
from fake_driver import FakeDriver
from test_judge import BUILT, CONFIG, HostLibraries, host_gemm, session_for

from cudal2.bench.baselines.baseline import NotSupportedError
from cudal2.bench.judge import arena as arena_module
from cudal2.bench.native import SOURCE, Submit, Submitter
from cudal2.bench.server import server as module
from cudal2.bench.server.client import python_submitter
from cudal2.bench.server.server import ServerRequest, serve
from cudal2.bench.server.traffic import REQUESTS, Traffic
from cudal2.build.host import COMPILERS, compile_shared
from cudal2.errors import UsageError, WorkerError
from cudal2.launch.driver import LaunchError
from cudal2.problem import Problem
from cudal2.records.latency import group_servings
from cudal2.records.measurement import STATES, Status
from cudal2.settings import BenchSettings

PROBLEM = Problem(16, 24, 64)
TRAFFIC = Traffic(seconds=0.0, blocks=3)
LIBRARIES = [
    f"{name}_{suffix}" for name in ("cublas", "cublaslt_auto", "cublaslt_heuristic") for suffix in ("nn", "tn")
]


class HostDevice:
    """Stands in for ``ServerDevice``; remembers itself."""

    made: ClassVar[list] = []

    def __init__(self, library, context, l2_bytes):
        self.driver, self.stream, self.entered = FakeDriver(), 0, []
        self.driver.tick_us = 20.0
        self.client = self.driver.client(library)
        self._serve, self.arrivals = self.client.serve, []
        self.client.serve = self.noting
        self.made.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def noting(self, submitter, arrivals_us, sets):
        self.arrivals.append((id(submitter), tuple(arrivals_us), sets))
        return self._serve(submitter, arrivals_us, sets)

    def empty(self, operands):
        return Submitter(Submit(lambda state, index, operands, stream: 0), None, operands)

    def enter(self, state):
        self.entered.append(state)
        return 2 if state == "warm" else 3

    def settle(self):
        pass


@pytest.fixture
def library(tmp_path_factory):
    if not any(map(shutil.which, COMPILERS)):
        pytest.skip("no C compiler here")
    return compile_shared(SOURCE, tmp_path_factory.mktemp("build"))


@pytest.fixture(autouse=True)
def host(monkeypatch):
    HostDevice.made.clear()
    errors = lambda: (NotSupportedError, LaunchError)  # noqa: E731
    monkeypatch.setattr(module, "VendorLibraries", HostLibraries)
    monkeypatch.setattr(module, "ServerDevice", HostDevice)
    monkeypatch.setattr(module, "library_errors", errors)
    monkeypatch.setattr(arena_module, "library_errors", errors)
    monkeypatch.setattr(arena_module, "context_fault", lambda: None)


def run(library, monkeypatch, compute=None, traffic=TRAFFIC, problem=PROBLEM, device_us=None):
    """Serves with a kernel of ours that is the given function of (a, b, c, stream)."""
    compute = compute or host_gemm(problem, problem.layout)

    def ours(launch, stream, operands):
        return python_submitter(lambda index: compute(*operands[index].tolist(), stream), (RuntimeError,), operands)

    monkeypatch.setattr(module, "kernel_submitter", ours)
    session = session_for(problem, load=lambda built, config: types.SimpleNamespace(on=lambda *_: None))
    session.info = types.SimpleNamespace(l2_bytes=50 << 20, sm_count=132)
    request = ServerRequest(problem, ((CONFIG, BUILT),), BenchSettings(), traffic, library)
    return serve(session, pickle.loads(pickle.dumps(request)))


def test_everyone_serves_in_every_state(library, monkeypatch):
    rows = run(library, monkeypatch)
    assert {row.status for row in rows} == {Status.CORRECT}, [row.reason for row in rows]
    for state in STATES:
        names = sorted(row.contestant for row in rows if row.state == state)
        assert names == sorted(["sm90_ws", "torch", "empty", *LIBRARIES])
    row = rows[0]
    assert [len(block) for block in row.latency_us] == [len(block) for block in row.queue_us] == [REQUESTS[0]] * 3
    assert [len(block) for block in row.device_us] == [2] * 3 and len(row.host_us) == 3
    assert row.sm_clock_mhz == (1980,) * 3 and row.power_w == ()
    (device,) = HostDevice.made
    assert tuple(device.entered) == STATES
    torch_row = next(row for row in rows if row.contestant == "torch")
    assert torch_row.detail.endswith("called from Python")
    assert len(group_servings(rows)) == 3
    assert {len(serving.rows) for serving in group_servings(rows)} == {9}


def test_everyone_gets_the_same_arrivals_in_shuffled_order(library, monkeypatch):
    rows = run(library, monkeypatch, traffic=Traffic(seconds=0.0, blocks=3, states=("warm",)))
    (device,) = HostDevice.made
    drawn = [tuple(TRAFFIC.arrivals_us(block, REQUESTS[0])) for block in range(3)]
    counted = [(who, arrivals) for who, arrivals, sets in device.arrivals if arrivals in drawn]
    orders = [[who for who, arrivals in counted if arrivals == block] for block in drawn]
    assert all(len(order) == len(rows) == 9 for order in orders)
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert all(one != other for one, other in itertools.pairwise(orders))
    assert {sets for _, _, sets in device.arrivals} == {2}


def test_a_kernel_that_is_wrong_has_no_time(library, monkeypatch):
    rows = run(library, monkeypatch, compute=lambda a, b, c, stream: None)
    ours = [row for row in rows if row.config]
    assert {row.status for row in ours} == {Status.CORRECTNESS} and not any(row.latency_us for row in ours)
    assert "0/1 data" in ours[0].reason and sum(row.ok for row in rows) == 8 * 3


def test_a_kernel_that_stops_writing_later_is_caught_and_loses_its_times(library, monkeypatch):
    good, calls = host_gemm(PROBLEM, "tn"), itertools.count()
    rows = run(library, monkeypatch, compute=lambda *at: good(*at) if next(calls) < 30 else None)
    ours = [row for row in rows if row.config]
    assert {row.status for row in ours} == {Status.CORRECTNESS}
    assert "outputs hold NaN or were not written" in ours[0].reason


def test_a_kernel_that_goes_wrong_by_address_is_caught_by_the_sample(library, monkeypatch):
    good, first = host_gemm(PROBLEM, "tn"), {}

    def stale(a, b, c, stream):
        """Answers every later product with the operands it saw first where C was: a cache by pointer gone wrong."""
        if len(first) < 2:  # the checks
            first[c] = a
            return good(a, b, c, stream)
        return good(next(iter(first.values())), b, c, stream)

    rows = run(library, monkeypatch, compute=stale)
    (reason,) = {row.reason for row in rows if row.config}
    assert reason.startswith("after timing, set 0")


def test_one_that_raises_while_it_serves_is_one_row_per_state(library, monkeypatch):
    good, calls = host_gemm(PROBLEM, "tn"), itertools.count()

    def flaky(*at):
        if next(calls) == 20:
            raise RuntimeError("CUDA error: out of something\nand more")
        good(*at)

    rows = run(library, monkeypatch, compute=flaky)
    ours = [row for row in rows if row.config]
    assert {(row.status, row.reason) for row in ours} == {(Status.RUNTIME, "CUDA error: out of something")}
    assert sum(row.ok for row in rows) == 8 * 3


def test_a_lost_context_ends_the_serving(library, monkeypatch):
    monkeypatch.setattr(arena_module, "context_fault", lambda: "CUDA_ERROR_ILLEGAL_ADDRESS")

    def crash(*at):
        raise RuntimeError("CUDA error")

    with pytest.raises(WorkerError, match="broke the CUDA context: CUDA_ERROR_ILLEGAL_ADDRESS"):
        run(library, monkeypatch, compute=crash)


def test_device_times_that_cannot_be_are_set_aside(library, monkeypatch):
    # 4 us by the fake events; 2 x 4096^3 FLOPs take more than 100.
    monkeypatch.setattr(arena_module, "too_fast", lambda problem, time_us, fraction: f"{time_us:g} us is too fast")
    rows = run(library, monkeypatch)
    assert {row.status for row in rows if row.contestant != "empty"} == {Status.QUARANTINED}
    assert {row.reason for row in rows if row.config} == {"4 us is too fast"}
    assert all(row.ok for row in rows if row.contestant == "empty")


def test_arrivals_are_exponential_seeded_and_a_shorter_list_begins_a_longer_one():
    traffic = Traffic(target_qps=500.0, seed=3)
    arrivals = traffic.arrivals_us(0, 20_000)
    gaps = np.diff(arrivals, prepend=0.0)
    assert np.all(gaps > 0) and gaps.mean() == pytest.approx(2_000.0, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05), "an exponential's spread is its mean"
    assert np.array_equal(arrivals[:50], Traffic(target_qps=500.0, seed=3).arrivals_us(0, 50))
    assert not np.array_equal(arrivals[:50], traffic.arrivals_us(1, 50))
    assert not np.array_equal(arrivals[:50], Traffic(target_qps=500.0, seed=4).arrivals_us(0, 50))


def test_requests_fill_the_time_they_are_given():
    traffic = Traffic(seconds=10.0)
    requests = traffic.requests(Problem(64, 64, 64), 9)
    assert traffic.expected_s(Problem(64, 64, 64), 9) == pytest.approx(10.0, rel=0.1)
    assert REQUESTS[0] < requests < REQUESTS[1]
    assert Traffic(seconds=1e6).requests(Problem(64, 64, 64), 9) == REQUESTS[1]
    assert Traffic(target_qps=10.0).requests(Problem(64, 64, 64), 9) == REQUESTS[0]
    large = Problem(16384, 8192, 8192)
    assert traffic.requests(large, 9) < requests
    assert ServerRequest(large, (), BenchSettings(), traffic, SOURCE).deadline_s > traffic.expected_s(large, 9)


@pytest.mark.parametrize("qps", [0.0, -5.0, float("nan"), float("inf"), 2e6])
def test_a_rate_that_means_nothing_is_one_line(qps):
    with pytest.raises(UsageError, match="--target_qps"):
        Traffic(target_qps=qps)
