"""Says where the time of search steps and of judgements goes on this machine's GPU, process by process.

    python scripts/step_breakdown.py [--shapes M_N_K ...] [--candidates N] [--judge M_N_K ...]

Functions along the path of a step are wrapped by a stopwatch of their own (well under 1 us each): a row is one
function's time without that of the other rows inside it. Then where the device stands still, what the driver takes for
parts of a graph, and what surrounds a replay. Then the same for every job of judgements of some shapes together, and
when each began and ended.
"""

from __future__ import annotations

import functools
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from cudal2.cli.main import guarded, guarded_imports

with guarded_imports():
    import numpy as np
    from device_gaps import device_gaps
    from graph_costs import driver_costs

    from cudal2.bench.jobs import Candidate, GpuSession
    from cudal2.bench.judge.judge import judge
    from cudal2.bench.judge.request import FinalRequest
    from cudal2.bench.worker import Worker
    from cudal2.build.artifact import BuiltKernel
    from cudal2.build.cache import BuildCache, resolve_toolchain
    from cudal2.build.pool import BuildPool
    from cudal2.cli import arguments as shared
    from cudal2.cli.backend import require_gpu
    from cudal2.codegen import build_key
    from cudal2.problem import Problem
    from cudal2.records.recording import bundled_recording, read_records
    from cudal2.runners.finals import best_configs, build_plan
    from cudal2.runners.local import LocalRunner
    from cudal2.settings import BenchSettings
    from cudal2.space.space import SearchSpace

#: Of the grid, with few and many launches per replay, and few and many buffer sets.
SHAPES = ("64_512_64", "256_1024_128", "512_4096_4096")
#: Of the recorded ones, with floors of 2 to 33 us.
JUDGED = ("64_512_64", "64_4096_64", "1024_2048_1024", "256_12288_4096")
_ROWS = 20


class Spans:
    """Own times of wrapped functions, in seconds, and their calls."""

    def __init__(self) -> None:
        """Wraps nothing yet."""
        self.answer: Any = None
        self.clear()

    def clear(self) -> None:
        """Starts over."""
        self.own_s: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._inner = [0.0]

    def wrap(self, owner: Any, name: str, label: str = "") -> None:
        """Replaces a function of a class or module by one that is timed; once."""
        function = getattr(owner, name)
        label = label or name
        if getattr(function, "spanned", False):
            return

        def timed(*arguments: Any, **keywords: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return function(*arguments, **keywords)  # what runs beside takes none of the time
            self._inner.append(0.0)
            started = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                seconds = time.perf_counter() - started
                self.own_s[label] += seconds - self._inner.pop()
                self.calls[label] += 1
                self._inner[-1] += seconds

        timed.spanned = True  # type: ignore[attr-defined]
        setattr(owner, name, timed)

    def wrap_call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Calls a function; what none of the others took is "everything else", its answer is kept."""
        started = time.perf_counter()
        self.answer = function(*arguments)
        self.own_s["everything else"] += time.perf_counter() - started - self._inner[0]

    def rows(self, steps: int) -> list[str]:
        """Milliseconds and calls per step, longest first."""
        total = sum(self.own_s.values())
        lines = [f"  {'all':34s}{1e3 * total / steps:8.2f} ms"]
        for label, seconds in self.own_s.most_common():
            lines.append(f"  {label:34s}{1e3 * seconds / steps:8.3f} ms {self.calls[label] / steps:7.1f} calls")
        return lines


SPANS = Spans()


def main() -> None:
    """Searches a little with every function timed, and prints."""
    parser = shared.Parser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), metavar="M_N_K", help="shapes")
    parser.add_argument("--candidates", type=shared.positive, default=24, help="search steps per shape (default 24)")
    parser.add_argument("--device", type=shared.index, default=0, help="which GPU (default 0)")
    shared.add_cache(parser)
    parser.add_argument("--judge", nargs="*", default=list(JUDGED), metavar="M_N_K", help="recorded shapes to judge")
    arguments = parser.parse_args()
    require_gpu(arguments.device)
    problems = [Problem.parse(mnk) for mnk in arguments.shapes]
    cache = shared.build_cache(arguments)
    with LocalRunner(SearchSpace(), problems, device_index=arguments.device, cache=cache) as runner:
        for problem in problems:
            print("\n".join(step_rows(runner, problem, arguments.candidates)), flush=True)
    if arguments.judge:
        print("\n".join(judgement_rows([Problem.parse(mnk) for mnk in arguments.judge], cache, arguments.device)))


def step_rows(runner: LocalRunner, problem: Problem, count: int) -> list[str]:
    """One shape: the parent's rows, the child's, and the driver's costs."""
    configs = runner.space.sample(problem, np.random.default_rng(0), count)
    results = runner.build([(config, problem) for config in configs])
    runner.reference_us(problem)
    runner.run(problem, configs[:1])
    wrap_parent()
    runner.worker.call(wrap_child)
    SPANS.clear()
    started = time.perf_counter()
    rows = runner.run(problem, configs)
    each_ms = 1e3 * (time.perf_counter() - started) / count
    parent, child = SPANS.rows(count), runner.worker.call(child_rows, count)
    good = [row for row in rows if row.ok]
    replay_ms = [min(row.times_us) * row.launches / 1e3 for row in good]
    kernels_ms = statistics.mean(sum(row.times_us) * row.launches / 1e3 for row in good)
    every = [
        Candidate(problem, config, built)
        for config in configs
        if isinstance(built := results[build_key(config, *problem.signature)], BuiltKernel)
    ]
    gaps = runner.worker.call(device_gaps, every, runner.settings)
    costs = runner.worker.call(driver_costs, every[:2], runner.settings)
    head = (
        f"{problem.mnk}: {each_ms:.2f} ms a step, {len(good)} of {count} right, {good[0].launches} launches, "
        f"five replays {kernels_ms:.2f} ms, shortest {min(replay_ms):.3f} ms, replays over their median by place: "
        f"{by_place([row.times_us for row in good])}, of the reference {by_place([row.ref_times_us for row in good])}"
    )
    return [
        head,
        " the searching process:",
        *parent,
        " the measuring process:",
        *child,
        " the device:",
        *gaps,
        " parts:",
        *costs,
    ]


class SpannedSession(GpuSession):
    """A child's state that keeps what making it took."""

    def __init__(self, device_index: int) -> None:
        """As that of its base."""
        self.began = time.monotonic()
        wrap_session()
        SPANS.clear()
        SPANS.wrap_call(super().__init__, device_index)
        self.rows = SPANS.rows(1)


class SpannedWorker(Worker):
    """A worker that keeps when each job ran and what it did."""

    made = 0
    jobs: list[str] = []  # noqa: RUF012 - one list for all of them
    began = 0.0

    def __init__(self, device_index: int, deadline_s: float = 10.0, *_: Any) -> None:
        """Numbered as they are made."""
        super().__init__(device_index, deadline_s, SpannedSession)
        self._number = SpannedWorker.made
        SpannedWorker.made += 1
        self._process.call = functools.partial(self._spanned, self._process.call)  # type: ignore[method-assign]

    def sibling(self) -> Worker:
        """Another one."""
        return SpannedWorker(*self._made_of)

    def _spanned(self, call: Callable[..., Any], job: Callable[..., Any], *arguments: Any, deadline_s: float) -> Any:
        """Runs the job with its functions wrapped, and keeps a line for it and one for each function."""
        fresh = not self._process.running
        started = time.monotonic()
        answer, rows, session_began, session_rows = call(spanned, job, *arguments, deadline_s=deadline_s)
        span = f"{started - SpannedWorker.began:.2f}-{time.monotonic() - SpannedWorker.began:.2f} s"
        if fresh:
            made = (
                f"process {self._number}: its session began {1e3 * (session_began - started):.0f} ms after it was asked"
            )
            SpannedWorker.jobs += [made, *session_rows]
        SpannedWorker.jobs += [f"process {self._number}: {job.__name__} {arguments[0].problem.mnk} {span}", *rows]
        return answer


def spanned(session: Any, job: Callable[..., Any], *arguments: Any) -> tuple[Any, list[str], float, list[str]]:
    """Job: another job's answer and the rows of its functions, then those of the session."""
    wrap_child(session)
    wrap_judge()
    SPANS.clear()
    SPANS.wrap_call(job, session, *arguments)
    return SPANS.answer, SPANS.rows(1)[: _ROWS + 1], session.began, session.rows


def wrap_session() -> None:
    """What making a child's state does."""
    import torch

    from cudal2.bench import jobs

    for owner, name in (
        (torch.cuda, "is_available"),
        (torch.cuda, "device_count"),
        (torch.cuda, "set_device"),
        (torch.cuda, "set_stream"),
        (jobs, "ensure_context"),
        (jobs, "describe"),
        (jobs, "Clocks"),
    ):
        SPANS.wrap(owner, name)


def judgement_rows(problems: Sequence[Problem], cache: BuildCache, device: int) -> list[str]:
    """The jobs of judgements of all shapes together."""
    best = best_configs(read_records(bundled_recording()).measurements, 2)
    settings, began = BenchSettings(), []
    with BuildPool(cache, resolve_toolchain(cache, SearchSpace().arch)) as pool, SpannedWorker(device) as worker:
        built = build_plan(pool, [(problem, best[problem]) for problem in problems])
        requests = [
            FinalRequest(problem, tuple((one, built[problem, one]) for one in best[problem]), settings, (False, True))
            for problem in problems
        ]
        SpannedWorker.began = time.monotonic()
        for judgement in judge(worker, requests):
            began.append(f"{judgement.request.problem.mnk} at {time.monotonic() - SpannedWorker.began:.2f} s")
        seconds = time.monotonic() - SpannedWorker.began
    return [f"{len(problems)} shapes judged in {seconds:.2f} s: {', '.join(began)}", *SpannedWorker.jobs]


def wrap_judge() -> None:
    """What the jobs of a judgement do besides."""
    from cudal2.bench import context, correctness, inputs
    from cudal2.bench.baselines import autotune, baseline, cublaslt, libraries
    from cudal2.bench.judge import arena

    for owner, name, label in (
        (context.ProblemContext, "__init__", "context: data, answers"),
        (libraries.VendorLibraries, "__init__", "libraries: handles"),
        (libraries.VendorLibraries, "close", "libraries: close"),
        (libraries.VendorLibraries, "cublaslt", "libraries: heuristic"),
        (libraries.VendorLibraries, "enumerated", "enumerate: capabilities"),
        (cublaslt.LtMatmul, "configured", "enumerate: check"),
        (autotune.AutoTuner, "_short_us", "tune: screen"),
        (autotune.AutoTuner, "_is_right", "tune: is right"),
        (autotune.AutoTuner, "_compare", "tune: compare"),
        (autotune.AutoTuner, "_explore", "tune: explore"),
        (autotune.AutoTuner, "choose", "tune: choose"),
        (baseline.BothLayouts, "_transposed", "transpose"),
        (cublaslt, "bindings", "import nvmath"),
        (libraries, "bindings", "import nvmath"),
        (correctness.Checks, "__init__", "context: answers"),
        (correctness.Checks, "_store", "answers: store"),
        (correctness.Checks, "_remember", "answers: remember"),
        (correctness, "zero_one", "answers: 0/1 data"),
        (correctness, "revealing", "answers: revealing data"),
        (correctness, "error_bound", "answers: fp64 product, bound"),
        (correctness, "_refuse_degenerate", "answers: not degenerate"),
        (inputs.BufferSets, "__init__", "context: buffers"),
        (arena.DeviceArena, "check", "check: rest"),
        (arena.DeviceArena, "prepare", "prepare"),
        (arena.DevicePrepared, "begin_recheck", "recheck"),
    ):
        SPANS.wrap(owner, name, label)


def by_place(replays: Sequence[Sequence[float]]) -> str:
    """Mean of each round's time over the median of its row: what the host does meanwhile must not show."""
    ratios = [[time_us / statistics.median(row) for time_us in row] for row in replays]
    return " ".join(f"{statistics.mean(place):.4f}" for place in zip(*ratios, strict=True))


def wrap_parent() -> None:
    """What the searching process does."""
    from cudal2.bench.isolation import IsolatedProcess

    SPANS.wrap(LocalRunner, "run", "everything else")
    SPANS.wrap(SearchSpace, "explain")
    SPANS.wrap(BuildPool, "build")
    SPANS.wrap(BuildCache, "lookup")
    SPANS.wrap(Worker, "_prepare", "bring the problem up")
    SPANS.wrap(IsolatedProcess, "_answer", "wait for the measuring process")
    SPANS.wrap(IsolatedProcess, "post", "send")


def wrap_child(session: Any) -> None:
    """Job: what the measuring process does."""
    import torch
    from cuda.bindings import driver as cuda

    from cudal2.bench import jobs, sizing, timing
    from cudal2.bench.candidate import KernelContestant
    from cudal2.bench.correctness import Aftermath, Checks
    from cudal2.bench.device import Clocks
    from cudal2.bench.inputs import BufferSets

    for owner, name, label in (
        (jobs.GpuSession, "measure", "everything else"),
        (jobs.GpuSession, "kernel", "load: cubin"),
        (jobs.GpuSession, "_look_ahead", "look ahead"),
        (Checks, "begin", "check: launches"),
        (Checks, "_at_a_glance", "check: compare"),
        (Checks, "_result", "check: wait"),
        (jobs.GpuSession, "_bind", "bind: rest"),
        (sizing.LateGraph, "start", "size: enqueue"),
        (KernelContestant, "__init__", "bind: structs, maps"),
        (timing.Stopwatch, "probe_us", "probe"),
        (timing.Stopwatch, "begin", "replay: enqueue"),
        (timing.Stopwatch, "enqueue", "graph: capture launches"),
        (timing.Graph, "__init__", "graph: rest"),
        (timing.TimedGraph, "close", "graph: destroy"),
        (timing.TimedGraph, "run_once", "replay: launch graph"),
        (BufferSets, "poison", "replay: poison"),
        (timing.Stopwatch, "flush", "replay: flush"),
        (torch.cuda.Event, "synchronize", "replay: wait"),
        (torch.cuda.Event, "elapsed_time", "replay: elapsed"),
        (Clocks, "sample", "clocks"),
        (Aftermath, "__init__", "after: choose"),
        (Aftermath, "look", "after: enqueue"),
        (Aftermath, "result", "after: wait"),
        (cuda, "cuModuleLoadData", "load: cuModuleLoadData"),
        (cuda, "cuModuleUnload", "load: cuModuleUnload"),
        (cuda, "cuModuleGetFunction", "load: cuModuleGetFunction"),
        (cuda, "cuFuncSetAttribute", "load: cuFuncSetAttribute"),
        (cuda, "cuStreamBeginCapture", "graph: begin"),
        (cuda, "cuStreamEndCapture", "graph: end"),
        (cuda, "cuGraphInstantiate", "graph: instantiate"),
        (cuda, "cuGraphDestroy", "graph: destroy captured"),
        (cuda, "cuGraphUpload", "graph: upload"),
    ):
        SPANS.wrap(owner, name, label)
    SPANS.clear()


def child_rows(session: Any, steps: int) -> list[str]:
    """Job: the rows of the measuring process."""
    return SPANS.rows(steps)


if __name__ == "__main__":
    sys.exit(guarded(main))
