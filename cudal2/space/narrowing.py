"""What the settings take away from the full space: values of axes, and combinations by conditional limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cudal2.arch import Arch
from cudal2.errors import UsageError
from cudal2.problem import Problem
from cudal2.settings import Limit
from cudal2.space.axes import Axis
from cudal2.space.config import KernelConfig
from cudal2.space.rule import Rule

Values = Mapping[str, tuple[Any, ...]]


def narrowed_axes(axes: Sequence[Axis], values_by_axis: Values) -> tuple[Axis, ...]:
    """All axes in order, those that are named with only the values given.

    Raises:
        UsageError: An axis is unknown, or a value is not on it.
    """
    _check(axes, values_by_axis)
    return tuple(axis.narrowed(values_by_axis.get(axis.name, axis.values)) for axis in axes)


def limit_rule(axes: Sequence[Axis], limit: Limit, space_name: str) -> Rule:
    """A limit as a rule named ``subspace``.

    Raises:
        UsageError: An axis is unknown, or a value is not on it.
    """
    _check(axes, limit.when)
    _check(axes, limit.only)

    def allows(choice: Any, problem: Problem, arch: Arch) -> Any:
        exempt = problem.flops <= limit.flops_above
        return exempt | np.logical_not(_within(choice, limit.when)) | _within(choice, limit.only)

    def reason(config: KernelConfig, problem: Problem, arch: Arch) -> str:
        condition = f" where {_text(limit.when)}" if limit.when else ""
        above = f" above {limit.flops_above:.3g} FLOPs" if limit.flops_above else ""
        return f"space '{space_name}' keeps only {_text(limit.only)}{condition}{above}"

    read = tuple(dict.fromkeys((*limit.when, *limit.only)))
    return Rule("subspace", read, allows, reason, by_size=limit.flops_above > 0)


def _check(axes: Sequence[Axis], values_by_axis: Values) -> None:
    by_name = {axis.name: axis for axis in axes}
    for name, values in values_by_axis.items():
        if name not in by_name:
            raise UsageError(f"unknown axis '{name}': choose from {', '.join(by_name)}")
        by_name[name].narrowed(values)


def _within(choice: Any, values_by_axis: Values) -> Any:
    met: Any = np.True_
    for name, values in values_by_axis.items():
        met = met & np.isin(np.asarray(getattr(choice, name)), values)
    return met


def _text(values_by_axis: Values) -> str:
    return ", ".join(f"{name} {' or '.join(map(str, values))}" for name, values in values_by_axis.items())
