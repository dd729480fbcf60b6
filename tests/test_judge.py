"""The whole judge on the CPU: real buffers, checks and control flow; libraries, our kernels and time are stand-ins."""

import ctypes
import pickle
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from cudal2.bench import arena as arena_module
from cudal2.bench import judge as judge_module
from cudal2.bench.baselines import LibraryCall, NotSupportedError
from cudal2.bench.correctness import Checks
from cudal2.bench.device import ClockSample
from cudal2.bench.inputs import BufferSets
from cudal2.bench.judge import FinalRequest, judge
from cudal2.bench.rounds import RoundLimits
from cudal2.build.artifact import BuiltKernel
from cudal2.errors import WorkerError
from cudal2.launch.driver import LaunchError
from cudal2.problem import Problem
from cudal2.records.finals import group_finals
from cudal2.records.measurement import Status
from cudal2.settings import BenchSettings
from cudal2.space.config import KernelConfig

CONFIG = KernelConfig(128, 128, 64, 4, "coop", 2, 1, 1, 1, "tma", 1)
BUILT = BuiltKernel("name", "digest", Path("kernel.cubin"), 168, 0, 200_000, 384, 0.5, Path("log"))
SETTINGS = BenchSettings(final_rounds=3, replays=3)


def memory(pointer, rows, columns):
    data = np.ctypeslib.as_array(ctypes.cast(int(pointer), ctypes.POINTER(ctypes.c_int16)), (rows * columns,))
    return torch.from_numpy(data).view(torch.float16).view(rows, columns)


def host_gemm(problem, layout):
    """A library call that reads and writes the addresses it is given."""

    def enqueue(a, b, c, stream):
        stored = memory(b, *((problem.k, problem.n) if layout == "nn" else (problem.n, problem.k)))
        right = stored if layout == "nn" else stored.t()
        product = memory(a, problem.m, problem.k).float() @ right.float()
        memory(c, problem.m, problem.n).copy_(product.half())

    return enqueue


class HostLibraries:
    """What ``VendorLibraries`` offers, computed on the host; the second answer of each layout is wrong."""

    closed = 0

    def __init__(self, problem, device, workspace_bytes, heuristic_results):
        self.problem, self.results = problem, heuristic_results

    def __enter__(self):
        return self

    def __exit__(self, *_):
        type(self).closed += 1

    def cublas(self, layout):
        return LibraryCall(f"cublas_{layout}", "3 us", layout, host_gemm(self.problem, layout))

    def cublaslt(self, layout):
        name = f"cublaslt_heuristic_{layout}"
        good = host_gemm(self.problem, layout)
        return [
            LibraryCall(name, "4 us", layout, good),
            LibraryCall(name, "1 us", layout, lambda a, b, c, stream: None),
            LibraryCall(name, "2 us" if layout == "nn" else "2.5 us", layout, good),
        ]

    def enumerated(self):
        return {}


class HostStopwatch:
    """Runs everything at once and reports the time a contestant's detail names."""

    stream = 0

    def __init__(self, sets):
        self.sets, self.open = sets, 0

    def time_of(self, contestant):
        if contestant.detail.startswith("torch"):
            return 5.0
        return float(contestant.detail.split(" ")[0])

    def estimate_us(self, contestant, longest_us=float("inf")):
        contestant.launch(0, self.stream)
        return self.time_of(contestant)

    def graph(self, contestant, launches):
        self.open += 1

        def run():
            for index in range(self.sets.count):
                contestant.launch(index, self.stream)

        def time_us():
            run()
            return self.time_of(contestant)

        def close():
            self.open -= 1

        return types.SimpleNamespace(
            launches=launches, sets_used=self.sets.count, run=run, time_us=time_us, close=close
        )


class HostContext:
    """A ``ProblemContext`` on the host whose kernels are the given function."""

    def __init__(self, problem, compute):
        self.problem, self.settings = problem, SETTINGS
        self.sets = BufferSets(problem, 3, "cpu", 0)
        self.checks = Checks(problem, "cpu", 1)
        self.stopwatch = HostStopwatch(self.sets)
        self.compute = compute

    def contestant(self, sets, pdl):
        pointers = list(zip(sets.a_pointers, sets.b_pointers, sets.c_pointers, strict=True))
        detail = "1.0 us" if pdl else "1.6 us"
        return types.SimpleNamespace(detail=detail, launch=lambda index, stream: self.compute(*pointers[index], stream))

    def candidate(self, kernel, config, pdl):
        return self.contestant(self.sets, pdl)

    def check(self, kernel, config, pdl):
        return self.checks.run(self.contestant(self.checks.sets, pdl), 0)


def session_for(problem, compute=None, load=lambda built, config: None):
    context = HostContext(problem, compute or host_gemm(problem, problem.layout))
    clocks = types.SimpleNamespace(sample=lambda: ClockSample(sm_clock_mhz=1980))
    return types.SimpleNamespace(
        context=lambda problem, settings, replay_ms: context,
        the_context=context, clocks=clocks, kernel=load, device="cpu",
    )  # fmt: skip


@pytest.fixture(autouse=True)
def host_libraries(monkeypatch):
    HostLibraries.closed = 0
    monkeypatch.setattr(judge_module, "VendorLibraries", HostLibraries)
    monkeypatch.setattr(arena_module, "library_errors", lambda: (NotSupportedError, LaunchError))
    monkeypatch.setattr(arena_module, "context_fault", lambda: None)


@pytest.mark.parametrize("layout", ["tn", "nn"])
def test_a_final_has_every_baseline_in_both_layouts_and_both_columns_of_ours(layout):
    problem = Problem(16, 24, 64, layout=layout)
    session = session_for(problem)
    request = pickle.loads(pickle.dumps(FinalRequest(problem, ((CONFIG, BUILT),), SETTINGS, pdl=(False, True))))
    rows = judge(session, request)
    assert {row.status for row in rows} == {Status.CORRECT}, [row.reason for row in rows]
    libraries = [
        f"{name}_{suffix}" for name in ("cublas", "cublaslt_auto", "cublaslt_heuristic") for suffix in ("nn", "tn")
    ]
    for pdl in (False, True):
        column = sorted(row.contestant for row in rows if row.pdl is pdl)
        assert column == sorted(["sm90_ws", "torch", *libraries])
    off, on = group_finals(rows)
    assert off.ours.registers == 168 and off.ours.config == CONFIG
    # The fastest answer is wrong and never becomes the reference; nn's 2 us does.
    assert off.against("cublaslt_auto").ratio == pytest.approx(2.0 / 1.6)
    assert on.against("cublaslt_auto").ratio == pytest.approx(2.0)
    assert on.against("cublaslt_heuristic").ratio == pytest.approx(4.0)
    assert off.baseline("cublaslt_auto").contestant == "cublaslt_auto_nn"
    assert session.the_context.stopwatch.open == 0 and HostLibraries.closed == 1


def test_a_kernel_that_does_not_load_is_one_row(monkeypatch):
    def refuse(built, config):
        raise LaunchError(209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "cuModuleLoadData")

    problem = Problem(16, 24, 64)
    rows = judge(session_for(problem, load=refuse), FinalRequest(problem, ((CONFIG, BUILT),), SETTINGS))
    (ours,) = [row for row in rows if row.config]
    assert ours.status is Status.LAUNCH and "NO_BINARY_FOR_GPU" in ours.reason
    assert sum(row.ok for row in rows) == 7


def test_a_lost_context_ends_the_final_and_names_who_lost_it(monkeypatch):
    def crash(a, b, c, stream):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(arena_module, "context_fault", lambda: "CUDA_ERROR_ILLEGAL_ADDRESS")
    problem = Problem(16, 24, 64)
    with pytest.raises(WorkerError, match=r"128x128x64.* broke the CUDA context: CUDA_ERROR_ILLEGAL_ADDRESS"):
        judge(session_for(problem, crash), FinalRequest(problem, ((CONFIG, BUILT),), SETTINGS))
    assert HostLibraries.closed == 1


def test_limits_default_to_the_settings_and_bound_the_deadline():
    request = FinalRequest(Problem(16, 24, 64), (), SETTINGS)
    assert request.rounds == RoundLimits(3, seed=SETTINGS.seed)
    longer = FinalRequest(Problem(16, 24, 64), (), SETTINGS, limits=RoundLimits(3, warmup_s=50, benchmark_s=10))
    assert longer.deadline_s == request.deadline_s + 60
