"""Says where the milliseconds of a search step go on this machine's GPU, in the searching and the measuring process.

    python scripts/step_breakdown.py [--shapes M_N_K ...] [--candidates N]

Functions along the path of a step are wrapped by a stopwatch of their own (well under 1 us each): a row is one
function's time without that of the other rows inside it. Then what the driver takes for parts of a graph, and what
surrounds a replay.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cudal2.bench.jobs import Candidate
from cudal2.build.artifact import BuiltKernel
from cudal2.cli import arguments as shared
from cudal2.cli.backend import require_gpu
from cudal2.cli.main import guarded
from cudal2.codegen import build_key
from cudal2.problem import Problem
from cudal2.runners.local import LocalRunner
from cudal2.settings import BenchSettings
from cudal2.space.space import SearchSpace

#: Of the grid, with few and many launches per replay, and few and many buffer sets.
SHAPES = ("64_512_64", "256_1024_128", "512_4096_4096")


class Spans:
    """Own times of wrapped functions, in seconds, and their calls."""

    def __init__(self) -> None:
        """Wraps nothing yet."""
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
    arguments = parser.parse_args()
    require_gpu(arguments.device)
    problems = [Problem.parse(mnk) for mnk in arguments.shapes]
    cache = shared.build_cache(arguments)
    with LocalRunner(SearchSpace(), problems, device_index=arguments.device, cache=cache) as runner:
        for problem in problems:
            print("\n".join(step_rows(runner, problem, arguments.candidates)), flush=True)


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
    candidates = [
        Candidate(problem, config, built)
        for config in configs
        if isinstance(built := results[build_key(config, problem.acc, problem.layout)], BuiltKernel)
    ][:2]
    costs = runner.worker.call(driver_costs, candidates, runner.settings)
    head = (
        f"{problem.mnk}: {each_ms:.2f} ms a step, {len(good)} of {count} right, replays of the candidate "
        f"{kernels_ms:.2f} ms, shortest {min(replay_ms):.3f} ms, launches {good[0].launches}"
    )
    return [head, " the searching process:", *parent, " the measuring process:", *child, " parts:", *costs]


def wrap_parent() -> None:
    """What the searching process does."""
    from cudal2.bench.isolation import IsolatedProcess
    from cudal2.bench.worker import Worker
    from cudal2.build.cache import BuildCache
    from cudal2.build.pool import BuildPool

    SPANS.wrap(LocalRunner, "run", "everything else")
    SPANS.wrap(SearchSpace, "explain")
    SPANS.wrap(BuildPool, "build")
    SPANS.wrap(BuildCache, "lookup")
    SPANS.wrap(Worker, "_prepare", "bring the problem up")
    SPANS.wrap(IsolatedProcess, "_answer", "wait for the measuring process")
    SPANS.wrap(IsolatedProcess, "call", "send")


def wrap_child(session: Any) -> None:
    """Job: what the measuring process does."""
    import torch
    from cuda.bindings import driver as cuda

    from cudal2.bench import jobs, timing
    from cudal2.bench.candidate import KernelContestant
    from cudal2.bench.correctness import Aftermath, Checks
    from cudal2.bench.device import Clocks
    from cudal2.bench.inputs import BufferSets

    for owner, name, label in (
        (jobs.GpuSession, "measure", "everything else"),
        (jobs.GpuSession, "kernel", "load: cubin"),
        (Checks, "run", "check: launches"),
        (Checks, "_at_a_glance", "check: compare, wait"),
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


def driver_costs(session: Any, candidates: Sequence[Candidate], settings: BenchSettings) -> list[str]:
    """Job: what capturing, instantiating and running graphs takes, and what surrounds a replay on the device."""
    from cudal2.bench import native

    context = session.context(candidates[0].problem, settings)
    stopwatch = context.stopwatch
    bound = [context.candidate(session.kernel(one.built, one.config), one.config, one.pdl) for one in candidates]
    for contestant in bound:
        contestant.launch(0, stopwatch.stream)
    lines = [f"  native: {native.library() is not None}, buffer sets {context.sets.count}"]
    lines += [graph_costs(stopwatch, bound[0], bound[-1], launches) for launches in (100, 1000)]
    for launches, repeats in ((960, 1), (480, 2), (240, 4), (120, 8)):
        timed = stopwatch.graph(bound[0], launches, repeats)
        time_us = statistics.median(timed.time_us() for _ in range(9))
        timed.close()
        lines.append(f"  a graph of {launches} run {repeats} times: {time_us:.4f} us per launch")
    for name, work in (("poison", context.sets.poison), ("flush", stopwatch.flush)):
        lines.append(f"  ten times {name}, waited for: {ms(repeated(work, 10)):.3f} ms")
    lines.append(f"  an empty replay, waited for: {ms(lambda: stopwatch.time_ms(lambda: None), 20):.3f} ms")
    lines.append(f"  NVML: {ms(session.clocks.sample):.3f} ms")
    return lines


def graph_costs(stopwatch: Any, contestant: Any, other: Any, launches: int) -> str:
    """What the driver takes for a graph of so many launches, in milliseconds."""
    from cuda.bindings import driver as cuda

    stream, sets = stopwatch.stream, stopwatch.sets.count

    def captured(who: Any, python: bool = False) -> Any:
        cuda.cuStreamBeginCapture(stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        if python:
            for index in range(launches):
                who.launch(index % sets, stream)
        else:
            stopwatch.enqueue(who, launches)
        return cuda.cuStreamEndCapture(stream)[1]

    graph, second = captured(contestant), captured(other)
    executables = [cuda.cuGraphInstantiate(graph, 0)[1] for _ in range(8)]
    updated = cuda.cuGraphExecUpdate(executables[7], second)[0]
    figures = {
        "capture from Python": ms(lambda: cuda.cuGraphDestroy(captured(contestant, True))),
        "capture native": ms(lambda: cuda.cuGraphDestroy(captured(contestant))),
        "instantiate": ms(lambda: executables.insert(0, cuda.cuGraphInstantiate(graph, 0)[1])),
        "upload": ms(lambda: cuda.cuGraphUpload(executables[0], stream), 1),
        "upload waited for": ms(repeated(lambda: cuda.cuGraphUpload(executables[1], stream), 1), 1),
        "launch after upload": ms(lambda: cuda.cuGraphLaunch(executables[0], stream), 1),
        "launch without upload": ms(lambda: cuda.cuGraphLaunch(executables[2], stream), 1),
        "launch again": ms(lambda: cuda.cuGraphLaunch(executables[0], stream)),
        "run again": ms(repeated(lambda: cuda.cuGraphLaunch(executables[0], stream), 1)),
        "update to another kernel": ms(lambda: cuda.cuGraphExecUpdate(executables[-1], second)),
        "destroy": ms(lambda: cuda.cuGraphExecDestroy(executables.pop())),
    }
    text = ", ".join(f"{name} {value:.3f}" for name, value in figures.items())
    return f"  {launches} launches, in ms: {text}; the update said {int(updated)}"


def ms(function: Callable[[], Any], times: int = 5) -> float:
    """Median host time of a call that finds the device idle."""
    from cuda.bindings import driver as cuda

    found = []
    for _ in range(times):
        cuda.cuCtxSynchronize()
        started = time.perf_counter()
        function()
        found.append(1e3 * (time.perf_counter() - started))
    return statistics.median(found)


def repeated(work: Callable[[], Any], times: int) -> Callable[[], None]:
    """The work so many times, then a wait for the device."""
    from cuda.bindings import driver as cuda

    def run() -> None:
        for _ in range(times):
            work()
        cuda.cuCtxSynchronize()

    return run


if __name__ == "__main__":
    sys.exit(guarded(main))
