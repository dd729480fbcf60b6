"""Finals over many problems: the best searched configurations of each against every baseline, one record shard."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cudal2.bench.judge.judge import judge
from cudal2.bench.judge.request import FinalRequest
from cudal2.bench.worker import Worker
from cudal2.build.artifact import BuiltKernel
from cudal2.build.pool import BuildPool
from cudal2.codegen import build_key
from cudal2.problem import Problem
from cudal2.records.finals import group_finals
from cudal2.records.measurement import Measurement, costs
from cudal2.records.shards import RecordLog
from cudal2.settings import BenchSettings
from cudal2.space.config import KernelConfig

logger = logging.getLogger(__name__)

#: Shapes that share their processes: enough that starting those is cheap, few enough that little is under way at once.
BATCH = 8

Plan = Sequence[tuple[Problem, Sequence[KernelConfig]]]


def best_configs(measurements: Iterable[Measurement], count: int) -> dict[Problem, list[KernelConfig]]:
    """The ``count`` best correct configurations of each problem and PDL setting; the settings rank differently."""
    columns: dict[tuple[Problem, bool], list[Measurement]] = defaultdict(list)
    for row in measurements:
        if row.ok and row.config is not None:
            columns[row.problem, row.pdl].append(row)
    best: dict[Problem, list[KernelConfig]] = defaultdict(list)
    for (problem, _), rows in sorted(columns.items()):
        least: dict[KernelConfig, float] = {}
        for row, cost in zip(rows, costs(rows), strict=True):
            assert row.config is not None
            least[row.config] = min(least.get(row.config, math.inf), cost)
        fastest = sorted(least, key=lambda config: (least[config], config.name))[:count]
        best[problem] += [config for config in fastest if config not in best[problem]]
    return dict(best)


def already_judged(measurements: Iterable[Measurement]) -> set[Problem]:
    """Problems that have a final with a kernel of ours in it."""
    return {final.problem for final in group_finals(measurements) if final.ours is not None}


@dataclass(frozen=True)
class Outcome:
    """How far a run of finals got.

    Attributes:
        judged: Problems with a final.
        failed: Problems whose final could not be run to its end, with the reason.
        left: Problems for which there was no time.
    """

    judged: tuple[Problem, ...]
    failed: Mapping[Problem, str]
    left: tuple[Problem, ...]


def run_finals(
    worker: Worker,
    pool: BuildPool,
    plan: Plan,
    settings: BenchSettings,
    log: RecordLog,
    pdl: Sequence[bool] = (False, True),
    on_final: Callable[[Problem, Sequence[Measurement]], None] = lambda problem, rows: None,
    seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    optional: Sequence[str] = (),
) -> Outcome:
    """Judges problems in batches and appends every row; a problem that fails costs itself alone.

    A batch's shapes are selected in one process and measured in fresh ones, all of them in each. A selection is on disk
    once it is made, a figure once the last process is done with its shape.

    Args:
        worker: The GPU.
        pool: Builds, or finds built.
        plan: Configurations by problem; a problem without any still gets its baselines.
        settings: How a final is measured.
        log: Where the rows go.
        pdl: PDL columns of ours.
        on_final: Called with each problem's rows.
        seconds: Wall time after which no batch begins.
        clock: Source of monotonic seconds.
        optional: Names of optional contestants.
    """
    built = build_plan(pool, plan)
    judged: list[Problem] = []
    failed: dict[Problem, str] = {}
    started = clock()
    for at in range(0, len(plan), BATCH):
        if seconds is not None and clock() - started >= seconds:
            return Outcome(tuple(judged), failed, tuple(problem for problem, _ in plan[at:]))
        requests = []
        for problem, configs in plan[at : at + BATCH]:
            candidates = tuple((config, built[problem, config]) for config in configs if (problem, config) in built)
            requests.append(FinalRequest(problem, candidates, settings, tuple(pdl), optional=tuple(optional)))
        with contextlib.closing(judge(worker, requests, log.append)) as judgements:
            for judgement in judgements:
                problem = judgement.request.problem
                if judgement.failure:
                    logger.warning("%s: no final: %s", problem.mnk, judgement.failure)
                    failed[problem] = judgement.failure
                    continue
                log.append(judgement.rows)
                judged.append(problem)
                on_final(problem, judgement.rows)
    return Outcome(tuple(judged), failed, ())


def build_plan(pool: BuildPool, plan: Plan) -> dict[tuple[Problem, KernelConfig], BuiltKernel]:
    """Cubins of the plan; a configuration without one is logged and left out."""
    requests = {(problem, config): (config, *problem.signature) for problem, configs in plan for config in configs}
    results = pool.build(list(requests.values()))
    built: dict[tuple[Problem, KernelConfig], BuiltKernel] = {}
    for key, request in requests.items():
        result = results[build_key(*request)]
        if isinstance(result, BuiltKernel):
            built[key] = result
        else:
            logger.warning("%s does not build and is left out: %s", request[0].name, result.reason)
    return built
