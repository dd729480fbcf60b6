"""Sweep plans: which configurations to measure on which shape, in which order, as a file of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from cudal2.atomic import write_atomically
from cudal2.errors import Cudal2Error, UsageError
from cudal2.problem import Problem
from cudal2.records.measurement import Measurement
from cudal2.runners.base import Runner
from cudal2.space.config import KernelConfig

Work: TypeAlias = list[tuple[Problem, tuple[KernelConfig, ...]]]


def in_passes(shortlists: Mapping[Problem, Sequence[KernelConfig]], first: int, seed: int = 0) -> Work:
    """Everyone's ``first`` best before everyone's rest, shapes shuffled: a sweep cut short has covered them evenly."""
    order = np.random.default_rng(seed).permutation(len(shortlists))
    problems = [sorted(shortlists)[at] for at in order]
    passes = [(problem, tuple(shortlists[problem][:first])) for problem in problems]
    passes += [(problem, tuple(shortlists[problem][first:])) for problem in problems]
    return [(problem, configs) for problem, configs in passes if configs]


def part_of(work: Work, part: int, parts: int) -> Work:
    """Every ``parts``-th shape from the ``part``-th (from 1) on; a shape's passes stay together, so on one GPU."""
    problems = list(dict.fromkeys(problem for problem, _ in work))
    mine = set(problems[part - 1 :: parts])
    return [(problem, configs) for problem, configs in work if problem in mine]


def write_plan(path: Path, work: Work) -> None:
    """One line per entry, in order.

    Raises:
        EnvironmentProblemError: The file cannot be written.
    """
    lines = (
        json.dumps({"problem": problem.to_dict(), "configs": [config.to_dict() for config in configs]}, sort_keys=True)
        for problem, configs in work
    )
    write_atomically(path, "".join(f"{line}\n" for line in lines))


def read_plan(path: Path) -> Work:
    """The inverse of :func:`write_plan`.

    Raises:
        UsageError: The file is absent or names no configuration, or a line is no entry of a plan.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot read plan {path}: {reason}") from error
    work: Work = []
    for number, line in enumerate(lines, start=1):
        try:
            values = json.loads(line)
            configs = tuple(KernelConfig.from_dict(config) for config in values["configs"])
            work.append((Problem.from_dict(values["problem"]), configs))
        except (Cudal2Error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UsageError(f"{path}, line {number} is no entry of a sweep plan: {error}") from error
    if not any(configs for _, configs in work):
        raise UsageError(f"plan {path} names no configuration: `python scripts/shortlist.py` writes one")
    return work


class ByFamily:
    """Measures with the runner of each configuration's family.

    Args:
        runners: By name of the family.
    """

    def __init__(self, runners: Mapping[str, Runner]) -> None:
        self._runners = runners

    def run(self, problem: Problem, configs: Sequence[KernelConfig]) -> list[Measurement]:
        """One measurement per configuration, in the order asked; family after family."""
        rows: dict[KernelConfig, Measurement] = {}
        for family in dict.fromkeys(config.family for config in configs):
            mine = [config for config in configs if config.family == family]
            rows.update(zip(mine, self._runners[family].run(problem, mine), strict=True))
        return [rows[config] for config in configs]


def families_of(work: Iterable[tuple[Problem, Sequence[KernelConfig]]]) -> list[str]:
    """Names of the kernel families of a plan."""
    return sorted({config.family for _, configs in work for config in configs})
