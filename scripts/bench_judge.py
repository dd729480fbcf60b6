"""Measures the judge itself on this machine's GPU: a whole judgement, and what a search step costs beside its kernels.

    python scripts/bench_judge.py [--shapes M_N_K ...] [--seconds S] [--records DIR] [--profile] [--json] [--out FILE]

A judgement is everything behind a figure: cuBLASLt tuned, ours selected, figures in fresh processes, of shapes under
100 us whose kernels are built. It is timed for the shapes together, as `scripts/judge.py` runs them, and for each
alone, as `cudal2 eval` does. A search step's overhead is its wall time, as the caller sees it, less what the
candidate's and the reference's timed replays took on the device.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cudal2.cli.main import guarded, guarded_imports

with guarded_imports():
    import numpy as np

    from cudal2.bench.jobs import Candidate
    from cudal2.bench.judge.judge import judge, run_final
    from cudal2.bench.judge.request import FinalRequest
    from cudal2.bench.worker import PREPARE_DEADLINE_S, Worker
    from cudal2.build.artifact import BuiltKernel
    from cudal2.build.pool import BuildPool
    from cudal2.cli import arguments as shared
    from cudal2.cli.backend import require_gpu
    from cudal2.cli.benchmark import add_output, finish, keep
    from cudal2.cli.output import note
    from cudal2.codegen import build_key
    from cudal2.errors import NothingValidError
    from cudal2.problem import Problem
    from cudal2.records.measurement import Measurement
    from cudal2.records.recording import bundled_recording, read_records
    from cudal2.records.shards import RecordLog
    from cudal2.runners.finals import best_configs, run_finals
    from cudal2.runners.local import LocalRunner
    from cudal2.settings import BenchSettings
    from cudal2.space.config import KernelConfig
    from cudal2.space.space import SearchSpace

#: Of the recorded shapes, from 2.2 to 33 us by their floors.
SHAPES = ("64_512_64", "64_4096_64", "256_1024_128", "1024_2048_1024", "512_4096_4096", "256_12288_4096")
_TOP = 2
_FUNCTIONS = 25

Candidates = tuple[tuple[KernelConfig, BuiltKernel], ...]


def main() -> None:
    """Judges, then searches a little, and prints what each cost."""
    parser = shared.Parser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), metavar="M_N_K", help="recorded shapes")
    parser.add_argument("--candidates", type=shared.positive, default=24, help="search steps per shape (default 24)")
    parser.add_argument("--seconds", type=float, default=80.0, help="no shape is judged alone after (default 80)")
    parser.add_argument("--profile", action="store_true", help="say on stderr where the time goes, by function")
    parser.add_argument("--records", type=Path, metavar="DIR", help="keep every row there")
    parser.add_argument("--device", type=shared.index, default=0, help="which GPU (default 0)")
    shared.add_cache(parser)
    add_output(parser)
    arguments = parser.parse_args()
    require_gpu(arguments.device)
    best = best_configs(read_records(bundled_recording()).measurements, _TOP)
    problems = [Problem.parse(mnk) for mnk in arguments.shapes]
    unknown = [problem.mnk for problem in problems if problem not in best]
    if unknown:
        raise NothingValidError(f"the recording has nothing for {', '.join(unknown)}: name shapes that it holds")
    plan = {problem: best[problem] for problem in problems}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    found = Found(arguments)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            measure(found, plan, arguments.records or Path(scratch))
    finally:
        if found.figures:
            finish("judge", found.figures, text(found.figures), arguments, found.machine)


@dataclass
class Found:
    """What has been measured so far; kept after every part, since a run may be cut short."""

    arguments: argparse.Namespace
    machine: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def add(self, **figures: Any) -> None:
        """More of it."""
        self.figures.update(figures)
        keep("judge", self.figures, self.arguments, self.machine)


def measure(found: Found, plan: Mapping[Problem, Sequence[KernelConfig]], records: Path) -> None:
    """Search steps, then judgements together, then alone while there is time."""
    arguments, began = found.arguments, time.monotonic()
    settings, cache = BenchSettings(), shared.build_cache(arguments)
    with (
        LocalRunner(SearchSpace(), list(plan), settings=settings, device_index=arguments.device, cache=cache) as runner,
        BuildPool(cache, runner.toolchain) as pool,
    ):
        fingerprint = runner.fingerprint()
        found.machine = fingerprint.gpu
        built = build(pool, plan)
        note(f"{sum(map(len, built.values()))} kernels built")
        steps: list[dict[str, Any]] = []
        for problem in plan:
            steps.append(search_steps(runner, problem, arguments.candidates))
            found.add(
                overhead_ms=round(statistics.median(step["overhead_ms"] for step in steps), 1),
                overhead_max_ms=max(step["overhead_ms"] for step in steps),
                steps=steps,
            )
        runner.worker.close()  # it knows the shapes now
        runner.worker.start()
        with RecordLog(records, fingerprint, {"command": "scripts/bench_judge.py"}) as log:
            started = time.monotonic()
            outcome = run_finals(runner.worker, pool, list(plan.items()), settings, log)
            together_s = time.monotonic() - started
            note(f"together: {len(outcome.judged)} judged in {together_s:.2f} s")
            found.add(
                processes=settings.final_processes,
                rounds=settings.final_rounds,
                judged=len(outcome.judged),
                failed=len(outcome.failed),
                together_s=round(together_s, 2),
                each_s=round(together_s / max(1, len(outcome.judged)), 2),
            )
            alone: dict[str, float] = {}
            for problem in plan:
                if alone and time.monotonic() - began > arguments.seconds:
                    note(f"{arguments.seconds:g} s are over: {len(plan) - len(alone)} shapes are not judged alone")
                    break
                alone[problem.mnk] = round(alone_s(runner, problem, built[problem], settings, log), 2)
                found.add(alone_s=alone, alone_median_s=round(statistics.median(alone.values()), 2))
        if arguments.profile:
            runner.worker.close()
            with ProfilingWorker(arguments.device) as worker:
                profile_judgements(worker, [request(problem, built[problem], settings) for problem in plan])
            candidates = [Candidate(problem, config, kernel) for problem in plan for config, kernel in built[problem]]
            note(runner.worker.call(profile_steps, candidates, settings))


def build(pool: BuildPool, plan: Mapping[Problem, Sequence[KernelConfig]]) -> dict[Problem, Candidates]:
    """Every kernel of the plan, so that nothing compiles while it is timed."""
    requests = [(config, *problem.signature) for problem, configs in plan.items() for config in configs]
    results = pool.build(requests)
    found: dict[Problem, Candidates] = {}
    for problem, configs in plan.items():
        pairs = ((config, results[build_key(config, *problem.signature)]) for config in configs)
        found[problem] = tuple((config, result) for config, result in pairs if isinstance(result, BuiltKernel))
    return found


def request(problem: Problem, candidates: Candidates, settings: BenchSettings) -> FinalRequest:
    """The final of one shape, both PDL columns."""
    return FinalRequest(problem, candidates, settings, (False, True))


def alone_s(
    runner: LocalRunner,
    problem: Problem,
    candidates: Candidates,
    settings: BenchSettings,
    log: RecordLog,
) -> float:
    """Wall seconds of one judgement in processes of its own, their start included."""
    runner.worker.close()
    started = time.monotonic()
    judgement = run_final(runner.worker, request(problem, candidates, settings))
    seconds = time.monotonic() - started
    log.append((*judgement.selection, *judgement.rows))
    note(f"alone: {problem.mnk} in {seconds:.2f} s")
    return seconds


def search_steps(runner: LocalRunner, problem: Problem, count: int) -> dict[str, Any]:
    """What a step of a live search costs once its kernel is built and its shape brought up."""
    configs = runner.space.sample(problem, np.random.default_rng(0), count)
    runner.build([(config, problem) for config in configs])
    launches = runner.worker.prepare(problem, runner.settings).reference_launches
    runner.run(problem, configs[:1])
    started = time.monotonic()
    rows = runner.run(problem, configs)
    each_ms = 1e3 * (time.monotonic() - started) / len(rows)
    kernels = [kernel_ms(row, launches) for row in rows if row.ok]
    device_ms = statistics.mean(kernels) if kernels else 0.0
    note(f"search: {problem.mnk} {each_ms:.1f} ms a step, {device_ms:.1f} ms of it timed")
    return {
        "shape": problem.mnk,
        "measured": len(rows),
        "correct": len(kernels),
        "each_ms": round(each_ms, 1),
        "kernels_ms": round(device_ms, 1),
        "overhead_ms": round(each_ms - device_ms, 1),
    }


class ProfilingWorker(Worker):
    """A worker that says on stderr where the host time of each judging job goes, from its process's second shape on."""

    _seen = 0

    def sibling(self) -> Worker:
        """A fresh process, profiled too."""
        return ProfilingWorker(*self._made_of)

    def call(self, job: Callable[..., Any], *arguments: Any, deadline_s: float = PREPARE_DEADLINE_S) -> Any:
        """Runs the job under the profiler."""
        answer, said = super().call(profiled, job, *arguments, deadline_s=deadline_s)
        self._seen += 1
        if self._seen > 1:
            note(f"{job.__name__} of {arguments[0].problem.mnk}: {said}")
        return answer


def profile_judgements(worker: ProfilingWorker, requests: Sequence[FinalRequest]) -> None:
    """Judges the requests together once more, each job under the profiler; needs two of them."""
    for judgement in judge(worker, requests):
        if judgement.failure:
            note(f"{judgement.request.problem.mnk}: no profile: {judgement.failure}")


def profiled(session: Any, job: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    """Job: another job's answer, its wall time, and its functions by their own time and by all they called."""
    profile = cProfile.Profile()
    started = time.perf_counter()
    answer = profile.runcall(job, session, *arguments)
    said = io.StringIO()
    said.write(f"{time.perf_counter() - started:.2f} s under the profiler")
    stats = pstats.Stats(profile, stream=said)
    for order in ("tottime", "cumulative"):
        stats.sort_stats(order).print_stats(_FUNCTIONS)
    return answer, said.getvalue()


def profile_steps(session: Any, candidates: Sequence[Candidate], settings: BenchSettings) -> str:
    """Job: the functions that took the measurements' host time, by time of their own."""
    for candidate in candidates:
        session.measure(candidate, settings, True)
    profile = cProfile.Profile()
    profile.enable()
    for candidate in candidates:
        session.measure(candidate, settings, True)
    profile.disable()
    said = io.StringIO()
    pstats.Stats(profile, stream=said).sort_stats("tottime").print_stats(_FUNCTIONS)
    return f"{len(candidates)} search steps:{said.getvalue()}"


def kernel_ms(row: Measurement, reference_launches: int) -> float:
    """Device time of a row's timed replays and of the reference's beside them."""
    return (sum(row.times_us) * row.launches + sum(row.ref_times_us) * reference_launches) / 1e3


def text(figures: Mapping[str, Any]) -> str:
    """A few lines for a reader."""
    lines = ["  ".join(f"{key} {value}" for key, value in one.items()) for one in figures["steps"]]
    lines.append(f"a search step's overhead: {figures['overhead_ms']} ms, at most {figures['overhead_max_ms']} ms")
    if "together_s" in figures:
        together_s, each_s = figures["together_s"], figures["each_s"]
        lines.append(f"judged {figures['judged']} shapes together in {together_s} s, {each_s} s each")
    if "alone_s" in figures:
        alone = ", ".join(f"{mnk} {seconds:.2f}" for mnk, seconds in figures["alone_s"].items())
        lines.append(f"alone, process starts included, in s: {alone}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(guarded(main))
