"""The reference of every search step: cuBLASLt-AutoTuning of the same process, buffers and rounds, captured once."""

from __future__ import annotations

import random
import statistics

from cudal2.bench.baselines.autotune import AutoTuner, Exploration
from cudal2.bench.baselines.baseline import LAYOUTS, Baseline, BothLayouts, LibraryCall, NotSupportedError
from cudal2.bench.baselines.libraries import VendorLibraries, library_errors
from cudal2.bench.correctness import Checks
from cudal2.bench.sizing import sized_graph
from cudal2.bench.timing import Stopwatch, interleave, keep_busy, soak_s
from cudal2.errors import EnvironmentProblemError
from cudal2.launch.driver import context_fault
from cudal2.problem import Problem
from cudal2.settings import BenchSettings


class Reference:
    """The fastest cuBLASLt algorithm over both layouts of B, as a graph that is replayed beside every candidate.

    Args:
        problem: What is computed.
        settings: How it is tuned and timed.
        stopwatch: Times on the buffers the candidates use.
        checks: Data every algorithm must pass on.

    Raises:
        EnvironmentProblemError: cuBLASLt is missing, or has nothing right for the problem.
    """

    def __init__(self, problem: Problem, settings: BenchSettings, stopwatch: Stopwatch, checks: Checks) -> None:
        """Tunes, captures, and times once alone."""
        self._libraries = VendorLibraries(
            problem, checks.sets.c(0).device, settings.workspace_bytes, settings.heuristic_results
        )
        buffers, check_buffers = BothLayouts(stopwatch.sets), BothLayouts(checks.sets)

        def verify(call: Baseline) -> str:
            return checks.run(call.on(check_buffers), stopwatch.stream).reason

        load_s = soak_s(problem, settings)
        tuner = AutoTuner(
            stopwatch,
            buffers,
            library_errors(),
            verify,
            settings.replay_ms,
            settings.replays,
            settings.seed,
            Exploration(settings.enumerated_results, settings.enumeration_s),
            context_fault,
            load_s,
        )
        chosen = tuner.choose(self._calls(), self._libraries.enumerated())
        if not chosen:
            self._libraries.close()
            raise EnvironmentProblemError(
                f"{problem.mnk}: cuBLASLt has no algorithm that works: nothing to compare with"
            )
        best = min(chosen.values(), key=lambda tuned: tuned.median_us)
        contestant = best.call.on(buffers)
        self.detail = best.call.detail
        self.graph = sized_graph(stopwatch, contestant, settings.replay_ms)
        keep_busy([self.graph], load_s)
        times = interleave([self.graph], settings.replays, random.Random(settings.seed))
        self.median_us = statistics.median(times[0])

    def close(self) -> None:
        """Gives the graph and the library's handles back; nothing may be running."""
        self.graph.close()
        self._libraries.close()

    def _calls(self) -> list[LibraryCall]:
        calls: list[LibraryCall] = []
        for layout in LAYOUTS:
            try:
                calls += self._libraries.cublaslt(layout)
            except NotSupportedError:
                continue  # the other layout may do
        return calls
