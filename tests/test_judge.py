"""The whole judge on the CPU: real buffers, checks, control flow and, where it matters, processes; libraries, our
kernels and time are stand-ins."""

import ctypes
import dataclasses
import multiprocessing
import os
import pickle
import re
import signal
import statistics
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from cudal2 import floor
from cudal2.bench import timing
from cudal2.bench.baselines import contestants
from cudal2.bench.baselines.baseline import LibraryCall, NotSupportedError
from cudal2.bench.baselines.enumeration import Algorithm
from cudal2.bench.correctness import Checks
from cudal2.bench.device import ClockSample
from cudal2.bench.inputs import BufferSets
from cudal2.bench.judge import arena as arena_module
from cudal2.bench.judge import final
from cudal2.bench.judge import judge as judge_module
from cudal2.bench.judge.arena import call_entrants, our_entrants
from cudal2.bench.judge.final import Contest
from cudal2.bench.judge.judge import SELECTION_DETAIL, figure, judge, ready, select
from cudal2.bench.judge.request import FinalRequest
from cudal2.bench.rounds import RoundLimits
from cudal2.bench.worker import Worker
from cudal2.build.artifact import BuiltKernel
from cudal2.errors import WorkerError
from cudal2.launch.driver import LaunchError
from cudal2.problem import Problem
from cudal2.records.finals import group_finals
from cudal2.records.measurement import Status
from cudal2.settings import BenchSettings
from cudal2.space.config import Sm90WsConfig

CONFIG = Sm90WsConfig(128, 128, 64, 4, "coop", 2, 1, 1, 1, "tma", 1)
BUILT = BuiltKernel("name", "digest", Path("kernel.cubin"), 168, 0, 200_000, 384, 0.5, Path("log"))
OTHER = dataclasses.replace(CONFIG, stages=3)
SETTINGS = BenchSettings(final_rounds=3, replays=3, enumerated_results=0)


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
        times = {"4 us": good, "1 us": lambda a, b, c, stream: None, "2 us" if layout == "nn" else "2.5 us": good}
        return [self.call(name, time, layout, enqueue) for time, enqueue in times.items()]

    def call(self, name, detail, layout, enqueue):
        algorithm = Algorithm(0, detail.encode(), None, 0, 1.0)
        return LibraryCall(name, detail, layout, enqueue, algorithm, library_version=1)

    def enumerated(self):
        return {}

    def restore(self, saved):
        return self.call(saved.name, saved.detail, saved.layout, host_gemm(self.problem, saved.layout))


class HostStopwatch:
    """Runs everything at once and reports the time a contestant's detail names."""

    stream = 0

    def __init__(self, sets):
        self.sets, self.open = sets, 0

    def time_of(self, contestant):
        if contestant.detail.startswith("torch"):
            return 5.0
        return float(contestant.detail.split(" ")[0])

    def probe_us(self, contestant):
        contestant.launch(0, self.stream)
        return self.time_of(contestant)

    def graph(self, contestant, launches, repeats=1, warm=True):
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
            launches=launches * repeats,
            sets_used=self.sets.count,
            run_once=run,
            lengthen=lambda replay_ms: run(),
            time_us=time_us,
            begin=lambda: time_us,
            close=close,
        )


class HostContext:
    """A ``ProblemContext`` on the host whose kernels are the given function."""

    def __init__(self, problem, compute):
        self.problem, self.settings = problem, SETTINGS
        self.sets = BufferSets(problem, 3, "cpu", 0)
        self.checks = Checks(problem, "cpu", 1)
        self.stopwatch = HostStopwatch(self.sets)
        self.compute = compute

    def contestant(self, sets, config, pdl):
        pointers = list(zip(sets.a_pointers, sets.b_pointers, sets.c_pointers, strict=True))
        detail = "1.0 us" if pdl else "1.6 us"
        if config == OTHER:  # slower, but for a launch that overlaps
            detail = "0.8 us" if pdl else "1.7 us"
        return types.SimpleNamespace(detail=detail, launch=lambda index, stream: self.compute(*pointers[index], stream))

    def candidate(self, kernel, config, pdl):
        return self.contestant(self.sets, config, pdl)

    def check(self, kernel, config, pdl):
        return self.checks.run(self.contestant(self.checks.sets, config, pdl), 0)


def host_clocks(sm_clock_mhz):
    sample = ClockSample(sm_clock_mhz=sm_clock_mhz)
    return types.SimpleNamespace(sample=lambda: sample, recent=lambda age_s: sample)


def session_for(problem, compute=None, load=lambda built, config: None):
    context = HostContext(problem, compute or host_gemm(problem, problem.layout))
    clocks = host_clocks(1980)
    return types.SimpleNamespace(
        context=lambda problem, settings, replay_ms: context,
        the_context=context, clocks=clocks, kernel=load, device="cpu", kept={}, fault=lambda: None,
    )  # fmt: skip


def judged(session, request):
    """Everything a final does, in one process."""
    selection = select(session, request)
    contests = [
        figure(session, request, selection, request.process_limits(number))
        for number in range(request.settings.final_processes)
    ]
    return final.rows(request.problem, contests)


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
    rows = judged(session, request)
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
    assert session.the_context.stopwatch.open == 0 and HostLibraries.closed == 3


@dataclasses.dataclass(frozen=True)
class HostQuack:
    """An optional contestant's choice: plain values, bound wherever it is."""

    problem: Problem
    name = "quack_tn"
    detail = "1.4 us, of=18"

    def on(self, buffers):
        return LibraryCall(self.name, self.detail, "tn", host_gemm(self.problem, "tn")).on(buffers)


def test_optional_contestants_are_chosen_once_and_judged_like_the_others(monkeypatch):
    problem = Problem(16, 24, 64)
    chosen = []

    def choose(tuner, buffers):
        chosen.append(tuner)
        return [HostQuack(buffers.sets.problem)]

    monkeypatch.setitem(contestants.OPTIONAL, "quack", contestants.OptionalContestant("quack", "quack-kernels", choose))
    request = FinalRequest(problem, ((CONFIG, BUILT),), SETTINGS, (False, True), optional=("quack",))
    rows = judged(session_for(problem), pickle.loads(pickle.dumps(request)))
    off, on = group_finals(rows)
    assert off.against("quack").ratio == pytest.approx(1.4 / 1.6) and on.against("quack").ratio == pytest.approx(1.4)
    assert off.baseline("quack").detail.startswith("1.4 us, of=18; ") and len(chosen) == 1
    assert off.ours.ref_times_us == off.baseline("cublaslt_auto").times_us, "the reference stays cuBLASLt"
    assert request.setup_deadline_s > dataclasses.replace(request, optional=()).setup_deadline_s


def test_an_optional_contestant_with_nothing_to_enter_disturbs_nobody(monkeypatch):
    problem = Problem(16, 24, 64)
    nothing = contestants.OptionalContestant("quack", "quack-kernels", lambda tuner, buffers: [])
    monkeypatch.setitem(contestants.OPTIONAL, "quack", nothing)
    rows = judged(session_for(problem), FinalRequest(problem, ((CONFIG, BUILT),), SETTINGS, optional=("quack",)))
    assert len(rows) == 8 and all(row.ok for row in rows)


def test_each_column_selects_its_own_and_the_losers_are_kept_apart():
    problem = Problem(16, 24, 64)
    request = FinalRequest(problem, ((CONFIG, BUILT), (OTHER, BUILT)), SETTINGS, pdl=(False, True))
    selection = pickle.loads(pickle.dumps(select(session_for(problem), request)))
    assert [(one.config, one.pdl) for one in selection.ours] == [(CONFIG, False), (OTHER, True)]
    assert len(selection.rows) == 4 and group_finals(selection.rows) == []
    for row in selection.rows:
        assert row.detail.startswith(SELECTION_DETAIL) and row.process_rounds == ()
        assert len(row.times_us) == len(row.ref_times_us) == SETTINGS.selection_rounds
    assert {saved.name: saved.detail.split(" of=")[0] for saved in selection.tuned} == {
        "cublaslt_auto_nn": "2 us", "cublaslt_auto_tn": "2.5 us",
    }  # fmt: skip
    rows = judged(session_for(problem), request)
    off, on = group_finals(rows)
    assert [row.config for row in off.rows if row.config] == [CONFIG]
    assert [row.config for row in on.rows if row.config] == [OTHER]
    assert off.ours.process_rounds == (3, 3) and off.utc not in {row.utc for row in selection.rows}


def test_clocks_that_move_between_rounds_choose_nobody():
    ahead, behind = our_entrants(((CONFIG, BUILT), (OTHER, BUILT)), (True,))
    levels = [1040.0, 1000.0, 1001.0, 999.0, 928.0, 920.0, 921.0]
    slower = [1.017 * level for level in levels[:3]] + [1.017 * 925.0] + [1.017 * level for level in levels[4:]]
    assert statistics.median(slower) < statistics.median(levels)
    held = Contest((ahead, behind), times={ahead.label: levels, behind.label: slower})
    assert judge_module.choose(held, 1) == (ahead,)


def test_a_wrong_candidate_is_not_selected_and_where_all_are_wrong_the_final_says_so():
    problem = Problem(16, 24, 64)
    request = FinalRequest(problem, ((CONFIG, BUILT), (OTHER, BUILT)), SETTINGS)
    selection = select(session_for(problem, lambda a, b, c, stream: None), request)
    assert {row.status for row in selection.rows} == {Status.CORRECTNESS}
    assert [one.config for one in selection.ours] == [CONFIG, OTHER]
    more = dataclasses.replace(request, settings=dataclasses.replace(SETTINGS, finalists=2))
    assert len(select(session_for(problem), more).ours) == 2


def test_a_kernel_that_does_not_load_is_one_row(monkeypatch):
    def refuse(built, config):
        raise LaunchError(209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "cuModuleLoadData")

    problem = Problem(16, 24, 64)
    rows = judged(session_for(problem, load=refuse), FinalRequest(problem, ((CONFIG, BUILT),), SETTINGS))
    (ours,) = [row for row in rows if row.config]
    assert ours.status is Status.LAUNCH and "NO_BINARY_FOR_GPU" in ours.reason
    assert sum(row.ok for row in rows) == 7


def test_a_lost_context_ends_the_final_and_names_who_lost_it(monkeypatch):
    def crash(a, b, c, stream):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(arena_module, "context_fault", lambda: "CUDA_ERROR_ILLEGAL_ADDRESS")
    problem = Problem(16, 24, 64)
    with pytest.raises(WorkerError, match=r"128x128x64.* broke the CUDA context: CUDA_ERROR_ILLEGAL_ADDRESS"):
        judged(session_for(problem, crash), FinalRequest(problem, ((CONFIG, BUILT),), SETTINGS))
    assert HostLibraries.closed == 1


def test_processes_share_the_seconds_and_draw_orders_of_their_own():
    request = FinalRequest(Problem(16, 24, 64), (), SETTINGS)
    assert [request.process_limits(number) for number in (0, 1)] == [
        RoundLimits(3, seed=seed, parts=SETTINGS.final_parts) for seed in (0, 1)
    ]
    longer = dataclasses.replace(request, limits=RoundLimits(9, warmup_s=5, benchmark_s=10, seed=7))
    assert longer.process_limits(1) == RoundLimits(9, warmup_s=2.5, benchmark_s=5, seed=8, parts=SETTINGS.final_parts)


def test_what_heats_the_chip_is_soaked_first_in_every_process():
    large = FinalRequest(Problem(8192, 8192, 8192), (), SETTINGS)
    assert [large.process_limits(number).warmup_s for number in (0, 1)] == [SETTINGS.presoak_s] * 2
    longer = dataclasses.replace(large, limits=RoundLimits(9, warmup_s=10, benchmark_s=10))
    assert longer.process_limits(0).warmup_s == 5.0
    assert timing.soak_s(large.problem, SETTINGS) == SETTINGS.search_soak_s > 0
    warm = FinalRequest(Problem(1024, 2048, 2048), (), SETTINGS)
    assert warm.process_limits(0).warmup_s == SETTINGS.warm_s and not warm.heats
    assert timing.soak_s(warm.problem, SETTINGS) == 0


def test_where_the_chip_heats_a_selection_is_made_under_load(monkeypatch):
    given = []
    monkeypatch.setattr(
        judge_module,
        "contest",
        lambda entrants, arena, limits: given.append(limits) or final.contest(entrants, arena, limits),
    )
    problem = Problem(16, 24, 64)
    settings = dataclasses.replace(SETTINGS, search_soak_s=0.01)
    request = FinalRequest(problem, ((CONFIG, BUILT), (OTHER, BUILT)), settings)
    select(session_for(problem), request)
    monkeypatch.setattr(floor, "floor_us", lambda m, n, k: floor.HEATING_FLOOR_US + 1)
    select(session_for(problem), request)
    assert [limits.warmup_s for limits in given] == [0.0, 0.01]


def test_the_time_of_a_round_is_split_but_for_a_foreign_kernel():
    ours = FinalRequest(Problem(16, 24, 64), (), SETTINGS)
    assert ours.figure_replay_ms * ours.process_limits(0).parts == SETTINGS.final_replay_ms
    foreign = dataclasses.replace(ours, foreign=object())
    assert (foreign.figure_replay_ms, foreign.process_limits(0).parts) == (SETTINGS.final_replay_ms, 1)


class ProcessSession:
    """A child's session on the host: its context is that of the request's problem."""

    @property
    def clocks(self):
        return host_clocks(os.getpid() % 10_000)

    device = "cpu"

    def __init__(self, device_index):
        self.kept = {}
        judge_module.VendorLibraries = HostLibraries
        arena_module.library_errors = lambda: (NotSupportedError, LaunchError)
        arena_module.context_fault = lambda: None

    def context(self, problem, settings, replay_ms):
        lethal = {(16, 24, 96): settings.replay_ms, (16, 24, 128): settings.final_replay_ms / settings.final_parts}
        if lethal.get((problem.m, problem.n, problem.k)) == replay_ms:
            os.kill(os.getpid(), signal.SIGKILL)
        return HostContext(problem, host_gemm(problem, problem.layout))

    def kernel(self, built, config):
        return None

    def fault(self):
        return None


def requests_for(*depths):
    return [FinalRequest(Problem(16, 24, k), ((CONFIG, BUILT), (OTHER, BUILT)), SETTINGS) for k in depths]


@pytest.mark.timeout(120)
def test_selection_and_every_figure_have_a_process_of_their_own_and_a_death_costs_one_shape():
    selected = []
    with Worker(0, session=ProcessSession) as worker:
        judgements = {
            one.request.problem.k: one for one in judge(worker, requests_for(64, 160, 96, 128), selected.append)
        }
        assert worker.pid is None, "its memory is given back before a figure is measured"
    assert {k: bool(one.failure) for k, one in judgements.items()} == {64: False, 96: True, 128: True, 160: False}
    assert "SIGKILL" in judgements[96].failure and "SIGKILL" in judgements[128].failure
    assert [rows[0].problem.k for rows in selected] == [64, 160, 128]
    assert judgements[128].selection == selected[2] and judgements[128].rows == ()
    for k in (64, 160):
        row = next(row for row in judgements[k].rows if row.config)
        assert row.config == CONFIG and row.process_rounds == (3, 3)
        clocks = [int(text.split("/")[0]) for text in re.findall(r"[\d/]+(?=MHz)", row.detail)]
        chosen_in = judgements[k].selection[0].sm_clock_mhz
        assert len({*clocks, chosen_in}) == 3, "selection and two figures, each in another process"
    first, last = (next(row.detail for row in judgements[k].rows if row.config) for k in (64, 160))
    assert first.split("MHz")[1] == last.split("MHz")[1], "one process serves every shape of a batch"


def test_what_is_ready_is_timed_as_it_is_and_what_is_not_gets_ready_then():
    problem = Problem(16, 24, 64)
    session = session_for(problem)
    request = FinalRequest(problem, ((CONFIG, BUILT), (OTHER, BUILT)), SETTINGS, (False, True))
    selection = select(session, request)
    context = session.the_context
    assert selection.times_us["cublas_tn"] == 3.0 and selection.times_us["torch"] == 5.0
    labels = {entrant.label for entrant in (*selection.ours, *call_entrants(selection.optional))}
    assert labels < set(selection.times_us) and context.stopwatch.open == 0
    probes, context.stopwatch.probe_us = context.stopwatch.probe_us, None  # nobody is timed to be sized
    closed = HostLibraries.closed
    ready(session, request, selection)
    captured = context.stopwatch.open
    assert captured == len(labels) + 7 and HostLibraries.closed == closed
    held = figure(session, request, selection, request.process_limits(0))
    assert context.stopwatch.open == 0 and HostLibraries.closed == closed + 1 and not session.kept
    assert set(held.times) < set(selection.times_us)
    context.stopwatch.probe_us = probes
    again = figure(session, request, selection, request.process_limits(0))
    assert again.launches == held.launches and again.times.keys() == held.times.keys()
    for _ in range(2):  # the one before was never timed
        ready(session, request, selection)
    assert context.stopwatch.open == captured
    session.fault = lambda: "CUDA_ERROR_UNKNOWN"
    with pytest.raises(WorkerError, match="context is lost"):
        ready(session, request, selection)


def test_processes_get_ready_together_and_time_in_turn_but_for_what_heats_or_brings_a_process(monkeypatch):
    seen = []

    class Process:
        def __init__(self, name):
            self.name = name

        def call(self, job, request, selection, limits, deadline_s):
            seen.append((job.__name__, self.name, request.problem.k))
            return self.name

        def close(self):
            seen.append(("close", self.name))

    def call_together(job, arguments, deadline_s):
        names = "".join(process.name for process in arguments)
        seen.append((job.__name__, names, next(iter(arguments.values()))[0].problem.k))
        if "not at once" in seen:
            raise WorkerError("no")

    monkeypatch.setattr(judge_module, "call_together", call_together)
    monkeypatch.setattr(final, "rows", lambda problem, contests: contests)
    fresh = [Process("a"), Process("b")]
    (small,) = requests_for(64)
    selection = judge_module.Selection((), (), ())
    alone = lambda: seen.append("alone")  # noqa: E731
    judgement = judge_module._judged_together(fresh, small, selection, alone)
    assert seen == [("ready", "ab", 64), "alone", ("figure", "a", 64), ("figure", "b", 64)]
    assert judgement.rows == ("a", "b")
    seen[:] = ["not at once"]
    assert judge_module._judged_together(fresh, small, selection, alone).rows == ("a", "b"), (
        "each says itself what is wrong"
    )
    large = FinalRequest(Problem(8192, 8192, 8192), (), SETTINGS)
    assert small.ready_together and not large.ready_together
    assert not dataclasses.replace(small, foreign=object()).ready_together
    seen.clear()
    (judgement,) = judge_module._judged_in_turn(fresh, {large: selection})
    assert seen == [("figure", "a", 8192), ("close", "a"), ("figure", "b", 8192), ("close", "b")]
    assert judgement.rows == ("a", "b")


def test_every_small_shape_is_brought_up_in_every_process_at_once_a_large_one_in_its_turn(monkeypatch):
    brought = []

    def call_together(job, arguments, deadline_s):
        (request,) = {given[0] for given in arguments.values()}
        brought.append((request.problem.k, sorted(given[1] for given in arguments.values())))
        if request.problem.k == 128:
            raise WorkerError("no")

    monkeypatch.setattr(judge_module, "call_together", call_together)
    large = FinalRequest(Problem(8192, 8192, 8192), (), SETTINGS)
    lengths = [SETTINGS.replay_ms, *[SETTINGS.final_replay_ms / SETTINGS.final_parts] * 2]
    bring_up_together = judge_module._bring_up_together
    bring_up_together("selecting", ["fresh", "fresher"], [*requests_for(64, 96), large, *requests_for(160)])
    assert brought == [(64, lengths), (96, lengths), (160, lengths)]
    brought.clear()
    bring_up_together("selecting", ["fresh", "fresher"], [large, *requests_for(128, 160)])
    assert brought == [(8192, lengths), (128, lengths)], "processes that died are left to come up by themselves"


def test_what_contestants_compile_ahead_is_compiled_once_and_before_any_process_waits(monkeypatch, capsys, caplog):
    finished = []

    def call_each(worker, job, items, processes, deadline_s):
        yield from (WorkerError("no such tile") if item == 2 else None for item in items)

    def ahead(dtype):
        return None if finished else contestants.Ahead(print, (1, 2, 3), lambda: finished.append(dtype))

    monkeypatch.setattr(judge_module, "call_each", call_each)
    quack = dataclasses.replace(contestants.OPTIONAL["quack"], ahead=ahead)
    monkeypatch.setitem(contestants.OPTIONAL, "quack", quack)
    requests = [dataclasses.replace(request, optional=("quack", "triton")) for request in requests_for(64, 96)]
    with caplog.at_level("INFO"):
        judge_module._compile_ahead("worker", requests)
    assert finished == ["fp16"] and "compiling quack: 3/3" in capsys.readouterr().err
    assert "quack: a configuration does not compile: no such tile" in caplog.text


@pytest.mark.timeout(120)
def test_leaving_early_ends_every_process():
    with Worker(0, session=ProcessSession) as worker:
        judgements = judge(worker, requests_for(64, 160))
        next(judgements)
        children = multiprocessing.active_children()
        assert children
        judgements.close()
        assert not multiprocessing.active_children()
