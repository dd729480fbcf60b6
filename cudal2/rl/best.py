"""The best configuration per problem of a run, and the kernel tables made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from cudal2.problem import Problem, precision_of
from cudal2.records.fingerprint import Fingerprint
from cudal2.records.measurement import Measurement, Status
from cudal2.rl.scoring import Outcome, Scorer
from cudal2.space.config import KernelConfig
from cudal2.table import KernelTable

#: How far behind the best a configuration may be and still win on size: more than the noise of a median.
CONTENDER_LOG_MARGIN = 0.03


@dataclass(frozen=True)
class Found:
    """The best measurement of one problem.

    Attributes:
        problem: What was computed.
        config: The configuration.
        median_us: Its median device time.
        reference_us: cuBLASLt-AutoTuning in the same interleaved rounds.
    """

    problem: Problem
    config: KernelConfig
    median_us: float
    reference_us: float

    @property
    def speedup(self) -> float:
        """Reference time over ours."""
        return self.reference_us / self.median_us


def found(scorer: Scorer) -> tuple[Found | None, ...]:
    """The best of every problem, in the order of the problems; ``None`` where nothing passed."""
    results: list[Found | None] = []
    for index, problem in enumerate(scorer.problems):
        outcome = scorer.best(index)
        if outcome is None:
            results.append(None)
            continue
        config = scorer.space.from_flat(int(scorer.best_flat[index]))
        results.append(Found(problem, config, outcome.time_us, outcome.time_us * math.exp(outcome.log_ratio)))
    return tuple(results)


def write_tables(scorer: Scorer, fingerprint: Fingerprint, run_dir: Path) -> tuple[Path, ...]:
    """Writes a kernel table of what was measured so far, one file per layout and precision.

    Returns:
        ``table.json``, or ``table_<precision>_<layout>.json`` each if the problems are of several kinds.
    """
    rows = _contenders(scorer)
    kinds = sorted({problem.signature for problem in scorer.problems})
    paths = []
    for acc, layout, dtype in kinds:
        path = run_dir / ("table.json" if len(kinds) == 1 else f"table_{precision_of(acc, dtype)}_{layout}.json")
        KernelTable.from_measurements(rows, fingerprint, acc, layout, dtype=dtype).save(path)
        paths.append(path)
    return tuple(paths)


def _contenders(scorer: Scorer) -> list[Measurement]:
    """What a table chooses from: everything near a problem's best, and every failure of a problem without one."""
    rows = []
    for index, flat, outcome in scorer.measured():
        best = scorer.best_log_ratio[index]
        if outcome.status is not Status.CORRECT and not math.isfinite(best):
            config = scorer.space.from_flat(flat)
            rows.append(Measurement(scorer.problems[index], config.family, config, outcome.status, outcome.reason))
        elif outcome.status is Status.CORRECT and outcome.log_ratio >= best - CONTENDER_LOG_MARGIN:
            rows.append(_row(scorer.problems[index], scorer.space.from_flat(flat), outcome))
    return rows


def _row(problem: Problem, config: KernelConfig, outcome: Outcome) -> Measurement:
    """The medians of a measurement, as one repeat."""
    reference_us = outcome.time_us * math.exp(outcome.log_ratio)
    times, refs = (outcome.time_us,), (reference_us,)
    return Measurement(
        problem, config.family, config, Status.CORRECT, times_us=times, ref_times_us=refs, pdl=outcome.pdl
    )
