"""What the driver takes to capture, instantiate and run graphs, and what surrounds a replay: part of step_breakdown."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cudal2.cli.main import guarded
from cudal2.errors import UsageError

if TYPE_CHECKING:
    from cudal2.bench.jobs import Candidate
    from cudal2.settings import BenchSettings


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


def main() -> None:
    """Says what to run."""
    raise UsageError(
        "scripts/graph_costs.py is a part of scripts/step_breakdown.py, which prints its figures: run that"
    )


if __name__ == "__main__":
    sys.exit(guarded(main))
