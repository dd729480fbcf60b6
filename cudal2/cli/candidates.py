"""Configurations that a command was given, checked and built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from cudal2.arch import SM90, Arch
from cudal2.cli.output import note
from cudal2.errors import NothingValidError, UsageError
from cudal2.problem import Problem
from cudal2.space.config import KernelConfig

if TYPE_CHECKING:
    from cudal2.build.artifact import BuiltKernel
    from cudal2.runners.local import LocalRunner
    from cudal2.space.space import SearchSpace


def legal(config: KernelConfig, problem: Problem, arch: Arch = SM90) -> KernelConfig:
    """The configuration, if the full space of its family allows it.

    Raises:
        UsageError: It is illegal for the problem, or its family does not run on the architecture.
    """
    from cudal2.space.space import SearchSpace

    require_legal(config, SearchSpace(arch, family=config.family), problem)
    return config


def require_legal(config: KernelConfig, space: SearchSpace, problem: Problem, any_size: bool = False) -> None:
    """Makes sure that a space allows a configuration.

    Args:
        config: Named by the user.
        space: Of its family.
        problem: What it would compute.
        any_size: No sizes were named: only what holds for all of them counts.

    Raises:
        UsageError: It is illegal; the line has the first reason, and what shows the others.
    """
    reasons = space.explain(config, problem, by_size=False if any_size else None)
    if reasons:
        place, shape = ("any shape", "M_N_K") if any_size else (problem.mnk, problem.mnk)
        more = f"; `cudal2 space --mnk {shape} --explain` gives all {len(reasons)} reasons" if len(reasons) > 1 else ""
        raise UsageError(f"{config.name} is illegal for {place}: {reasons[0]}{more}")


def legal_of(
    given: Iterable[tuple[KernelConfig, SearchSpace]], problem: Problem, fate: str = ""
) -> Iterator[KernelConfig]:
    """Those that are legal, with a line for each that is not.

    Args:
        given: Configurations with the space that each belongs to.
        problem: What they would compute.
        fate: What becomes of the others, as the line says it.
    """
    for config, space in given:
        if reasons := space.explain(config, problem):
            note(f"{config.name} is illegal for {problem.mnk}{fate}: {reasons[0]}")
        else:
            yield config


def built(configs: list[KernelConfig], problem: Problem, runner: LocalRunner) -> list[tuple[KernelConfig, BuiltKernel]]:
    """Each configuration with its cubin; one that does not build is left out with a line that says why.

    Raises:
        NothingValidError: None builds.
    """
    from cudal2.build.artifact import BuiltKernel
    from cudal2.codegen import build_key

    results = runner.build([(config, problem) for config in configs])
    candidates = []
    for config in configs:
        result = results[build_key(config, *problem.signature)]
        if isinstance(result, BuiltKernel):
            candidates.append((config, result))
        else:
            note(f"{config.name} does not build: {result.reason} (log: {result.log_path})")
    if not candidates:
        raise NothingValidError(f"{problem.mnk}: no candidate builds; the lines above say why")
    return candidates
