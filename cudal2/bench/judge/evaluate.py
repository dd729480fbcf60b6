"""One shape judged from end to end: candidates checked one by one in the worker, the right ones selected and judged.

Correctness comes first: a wrong kernel ends the evaluation before anything is compared.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cudal2.arch import Arch
from cudal2.atomic import write_new
from cudal2.bench.judge.final import Failure
from cudal2.bench.judge.foreign import CHECK_DEADLINE_S, check_foreign, refuse_foreign
from cudal2.bench.judge.judge import run_final
from cudal2.bench.judge.request import FinalRequest
from cudal2.bench.rounds import RoundLimits
from cudal2.bench.worker import Worker
from cudal2.build.artifact import BuiltKernel
from cudal2.build.foreign import ForeignKernel
from cudal2.errors import NothingValidError, WrongResultError
from cudal2.floor import floor_us
from cudal2.problem import Problem
from cudal2.records.finals import BASELINES, FOREIGN, Comparison, Final, compare_rows, group_finals
from cudal2.records.latency import Latency
from cudal2.records.measurement import PROTOCOL_VERSION, Measurement, Status
from cudal2.records.speedup_csv import csv_text
from cudal2.settings import BenchSettings
from cudal2.space.config import KernelConfig
from cudal2.space.defaults import default_configs
from cudal2.table import KernelTable

#: Configurations of ours that go from the checks into the selection.
CANDIDATES = 3


@dataclass(frozen=True)
class Evaluation:
    """What came of one shape.

    Attributes:
        problem: What was computed.
        rows: Every row of the final.
        set_aside: Candidates that did not get into it, with their reasons.
        settings: How it was measured.
        limits: How long, in all processes together.
        selection: The rows by which ours were chosen; empty if there was no choice.
    """

    problem: Problem
    rows: tuple[Measurement, ...]
    set_aside: tuple[Measurement, ...]
    settings: BenchSettings
    limits: RoundLimits
    selection: tuple[Measurement, ...] = ()

    @property
    def finals(self) -> list[Final]:
        """One per PDL column."""
        return group_finals(self.rows)


def table_configs(problem: Problem, table: KernelTable, arch: Arch) -> tuple[list[KernelConfig], str]:
    """What the table says to run, with a line that says why; default configurations where it has none of ours.

    Raises:
        NothingValidError: Neither has anything legal.
    """
    entry = table.best(problem.m, problem.n, problem.k)
    if entry is not None and entry.config is not None:
        return [entry.config], f"{entry.config.name}, from the table's {entry.mnk}"
    found = f"the table has {entry.baseline}" if entry is not None else "the table has nothing near"
    configs = default_configs(problem, arch)
    return configs, f"{len(configs)} default configurations, since {found} for {problem.mnk}"


def evaluate(
    worker: Worker,
    problem: Problem,
    candidates: Sequence[tuple[KernelConfig, BuiltKernel]],
    settings: BenchSettings,
    pdl: Sequence[bool] = (False, True),
    limits: RoundLimits | None = None,
    on_step: Callable[[str], None] = lambda step: None,
    optional: Sequence[str] = (),
    foreign: ForeignKernel | None = None,
) -> Evaluation:
    """Checks the candidates, selects among the best of them, and judges those beside every baseline.

    Args:
        worker: The GPU.
        problem: What to compute.
        candidates: Configurations and their cubins.
        settings: How it is measured.
        pdl: PDL columns wanted.
        limits: Rounds and seconds; the settings' rounds by default.
        on_step: Called with a few words after every check, one per candidate and column, and after the final.
        optional: Names of optional contestants.
        foreign: A kernel that is not ours, to be judged in the same rounds; then ours need not be there.

    Raises:
        WrongResultError: A candidate computed something wrong, or the foreign kernel did when it was checked.
        ForeignBuildError: The foreign library does not load.
        NothingValidError: No candidate ran, or the foreign kernel did not pass its check.
        WorkerError: The final could not be run to its end.
    """
    if foreign is not None:
        failure = worker.call(check_foreign, foreign, problem, settings, deadline_s=CHECK_DEADLINE_S)
        refuse_foreign(problem, foreign.name, failure)
    checked: list[Measurement] = []
    for column in pdl:
        for row in worker.measure(problem, candidates, settings, pdl=column, reference=False):
            checked.append(row)
            on_step(f"checked {len(checked)}; selection and final come next")
    refuse_wrong(checked)
    passed = _best(checked, candidates)
    if not passed and foreign is None:
        raise NothingValidError(f"{problem.mnk}: no candidate ran ({_causes(checked)})")
    request = FinalRequest(problem, tuple(passed), settings, tuple(pdl), limits, tuple(optional), foreign)
    judgement = run_final(worker, request)
    on_step("final")
    refuse_wrong((*judgement.selection, *judgement.rows))
    set_aside = tuple(row for row in checked if not row.ok)
    return Evaluation(problem, judgement.rows, set_aside, settings, request.rounds, judgement.selection)


def refuse_wrong(rows: Iterable[Measurement | Latency]) -> None:
    """A wrong kernel of ours is an error; a wrong library is a row.

    Raises:
        WrongResultError: One of ours computed something wrong.
    """
    for row in rows:
        if row.config is not None and row.status is Status.CORRECTNESS:
            raise WrongResultError(f"{row.problem.mnk}: {row.config.name} is wrong: {row.reason}")


def refuse_failed_foreign(rows: Iterable[Measurement]) -> None:
    """A foreign kernel that failed in the final, to be said once the rest is written.

    Raises:
        WrongResultError: It computed something wrong.
        NothingValidError: It failed otherwise.
    """
    for row in rows:
        if row.contestant.startswith(FOREIGN) and not row.ok:
            refuse_foreign(row.problem, row.contestant, Failure(row.status, row.reason))


def _best(
    checked: Sequence[Measurement], candidates: Sequence[tuple[KernelConfig, BuiltKernel]]
) -> list[tuple[KernelConfig, BuiltKernel]]:
    """The fastest that passed in any column, at most ``CANDIDATES``."""
    built = dict(candidates)
    passed = sorted((row for row in checked if row.ok), key=lambda row: row.median_us)
    configs = dict.fromkeys(row.config for row in passed if row.config is not None)
    return [(config, built[config]) for config in list(configs)[:CANDIDATES]]


def _causes(rows: Sequence[Measurement]) -> str:
    counts = Counter(f"{row.status.value}: {row.reason}" for row in rows)
    return "; ".join(f"{count} x {cause}" for cause, count in counts.most_common(3)) or "none was given"


def reproduce_command(evaluation: Evaluation, options: Sequence[str] = ()) -> str:
    """The command that measures the same again: the kernels that were judged, by name, and everything that matters.

    Args:
        evaluation: What was measured.
        options: Further options it was measured with.
    """
    problem, limits = evaluation.problem, evaluation.limits
    judged = dict.fromkeys(row.config.name for row in evaluation.rows if row.config is not None)
    columns = {final.pdl for final in evaluation.finals}
    pdl = "both" if len(columns) == 2 else "on" if True in columns else "off"
    words = ["python", "-m", "cudal2", "eval", "--mnk", problem.mnk, "--acc_precise", problem.acc]
    words += ["--dtype", problem.dtype, "--layout", problem.layout, "--pdl", pdl]
    words += [word for name in judged for word in ("--config", name)]
    words += ["--warmup_seconds", f"{limits.warmup_s:g}"]
    if limits.benchmark_s is not None:
        words += ["--benchmark_seconds", f"{limits.benchmark_s:g}"]
    return shlex.join([*words, *options])


def to_dict(evaluation: Evaluation, environment: Mapping[str, Any], command: str = "") -> dict[str, Any]:
    """The evaluation as plain values, ready for JSON: comparisons per PDL column, then every raw row.

    Args:
        evaluation: What was measured.
        environment: Where.
        command: What measures it again.
    """
    problem = evaluation.problem
    return {
        "protocol": PROTOCOL_VERSION,
        "reproduce": command,
        "problem": problem.to_dict(),
        "floor_us": floor_us(problem.m, problem.n, problem.k),
        "environment": dict(environment),
        "settings": asdict(evaluation.settings),
        "limits": asdict(evaluation.limits),
        "columns": {f"pdl_{'on' if final.pdl else 'off'}": _column(final) for final in evaluation.finals},
        "rows": [row.to_dict() for row in evaluation.rows],
        "selection": [row.to_dict() for row in evaluation.selection],
        "set_aside": [row.to_dict() for row in evaluation.set_aside],
    }


def _column(final: Final) -> dict[str, Any]:
    ours = final.ours
    return {
        "ours": _figure(ours) if ours else None,
        "baselines": {row.contestant: _figure(row) for row in final.rows if _is_library(row)},
        "speedups": {name: _speedup(found) for name in BASELINES if (found := final.against(name)) is not None},
        **({"foreign": {row.contestant: _foreign(row, final) for row in final.foreign}} if final.foreign else {}),
    }


def _is_library(row: Measurement) -> bool:
    return row.config is None and not row.contestant.startswith(FOREIGN)


def _foreign(row: Measurement, final: Final) -> dict[str, Any]:
    """Its figure, how it came about, and its speed-up over ours and every library."""
    if not row.ok:
        return {**_figure(row), "detail": row.detail}
    others = {other.contestant: other for other in final.rows if other.ok and _is_library(other)}
    if final.ours is not None:
        others = {"ours": final.ours, **others}
    speedups = {name: _speedup(compare_rows(row, other)) for name, other in others.items()}
    return {**_figure(row), "detail": row.detail, "speedups": speedups}


def _figure(row: Measurement) -> dict[str, Any]:
    if not row.ok:
        return {"status": row.status.value, "reason": row.reason}
    figure: dict[str, Any] = {"median_us": row.median_us, "tflops": row.problem.flops / row.median_us / 1e6}
    return {**figure, "config": row.config.name} if row.config else figure


def _speedup(comparison: Comparison) -> dict[str, Any]:
    return {**asdict(comparison), "verdict": comparison.verdict}


def write(evaluation: Evaluation, base_dir: Path, environment: Mapping[str, Any], command: str = "") -> list[Path]:
    """Writes one JSON file and one CSV per PDL column; a file that is there is kept and the new one numbered.

    Arguments as :func:`to_dict`.

    Raises:
        EnvironmentProblemError: The directory cannot be written.
    """
    stem = f"{evaluation.problem.mnk}_{evaluation.problem.precision}_offline"
    text = json.dumps(to_dict(evaluation, environment, command), indent=1, allow_nan=False) + "\n"
    files = {f"{stem}.json": text}
    for final in evaluation.finals:
        files[f"{stem}_pdl_{'on' if final.pdl else 'off'}.csv"] = csv_text([final])
    return [write_new(base_dir / name, text, "choose another --base_dir") for name, text in files.items()]
