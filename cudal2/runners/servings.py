"""Server mode on one shape and on many: candidates checked where a hang costs itself, the fastest serve, rows kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cudal2.bench.server.server import Candidates, ServerRequest, run_server
from cudal2.bench.server.traffic import Traffic
from cudal2.bench.worker import Worker
from cudal2.build.pool import BuildPool
from cudal2.errors import WorkerError
from cudal2.problem import Problem
from cudal2.records.latency import KIND, Latency
from cudal2.records.measurement import Measurement
from cudal2.records.shards import RecordLog
from cudal2.runners.finals import Outcome, Plan, build_plan
from cudal2.settings import BenchSettings

logger = logging.getLogger(__name__)

#: Configurations of ours that serve; more would take requests from everyone.
FINALISTS = 2


@dataclass(frozen=True)
class Service:
    """How servings are made.

    Attributes:
        settings: Data, workspace, L2 policy.
        traffic: Arrivals.
        client: ``native.c``, compiled.
    """

    settings: BenchSettings
    traffic: Traffic
    client: Path


def fit_to_serve(
    worker: Worker, problem: Problem, candidates: Candidates, settings: BenchSettings
) -> tuple[Candidates, list[Measurement]]:
    """The fastest that pass the checks, each tried under its own deadline; and the rows of all.

    Raises:
        WorkerError: The worker cannot be brought up for the problem.
    """
    checked = list(worker.measure(problem, candidates, settings, pdl=False, reference=False))
    built = dict(candidates)
    passed = sorted((row for row in checked if row.ok), key=lambda row: row.median_us)[:FINALISTS]
    return tuple((row.config, built[row.config]) for row in passed if row.config is not None), checked


def already_served(rows: Iterable[Latency], traffic: Traffic) -> set[Problem]:
    """Problems that were served in every state of the traffic, at its rate."""
    served = {(row.problem, row.state) for row in rows if row.target_qps == traffic.target_qps}
    return {problem for problem, _ in served if all((problem, state) in served for state in traffic.states)}


def run_servings(
    worker: Worker,
    pool: BuildPool,
    plan: Plan,
    service: Service,
    log: RecordLog,
    on_serving: Callable[[Problem, Sequence[Latency]], None] = lambda problem, rows: None,
    seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Serves problem after problem and appends every row; a problem that fails costs itself alone.

    Args:
        worker: The GPU.
        pool: Builds, or finds built.
        plan: Configurations by problem; where none is fit, the baselines serve alone.
        service: How.
        log: Where the rows go.
        on_serving: Called with each problem's rows.
        seconds: Wall time after which no problem begins.
        clock: Source of monotonic seconds.
    """
    built = build_plan(pool, plan)
    done: list[Problem] = []
    failed: dict[Problem, str] = {}
    started = clock()
    for at, (problem, configs) in enumerate(plan):
        if seconds is not None and clock() - started >= seconds:
            return Outcome(tuple(done), failed, tuple(problem for problem, _ in plan[at:]))
        candidates = tuple((config, built[problem, config]) for config in configs if (problem, config) in built)
        try:
            rows = _serve(worker, problem, candidates, service)
        except WorkerError as error:
            logger.warning("%s: not served: %s", problem.mnk, error)
            failed[problem] = str(error)
            continue
        for row in rows:
            log.write_row(KIND, row.to_dict())
        log.sync()
        done.append(problem)
        on_serving(problem, rows)
    return Outcome(tuple(done), failed, ())


def _serve(worker: Worker, problem: Problem, candidates: Candidates, service: Service) -> list[Latency]:
    fit, checked = fit_to_serve(worker, problem, candidates, service.settings)
    for row in checked:
        if not row.ok:
            name = row.config.name if row.config else row.contestant
            logger.warning("%s: %s does not serve: %s", problem.mnk, name, row.reason)
    return run_server(worker, ServerRequest(problem, fit, service.settings, service.traffic, service.client))
