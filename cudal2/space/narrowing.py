"""What the settings take away from the full space: values of axes, and combinations by conditional limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cudal2.arch import Arch
from cudal2.errors import UsageError
from cudal2.problem import Problem
from cudal2.settings import Limit
from cudal2.space.axes import SM90_WS_AXES, Axis
from cudal2.space.config import KernelConfig
from cudal2.space.rules import Rule

Values = Mapping[str, tuple[Any, ...]]

_AXES = {axis.name: axis for axis in SM90_WS_AXES}


def narrowed_axes(values_by_axis: Values) -> tuple[Axis, ...]:
    """All axes in order, those that are named with only the values given.

    Raises:
        UsageError: An axis is unknown, or a value is not on it.
    """
    _check(values_by_axis)
    return tuple(axis.narrowed(values_by_axis.get(name, axis.values)) for name, axis in _AXES.items())


def limit_rule(limit: Limit, space_name: str) -> Rule:
    """A limit as a rule named ``subspace``.

    Raises:
        UsageError: An axis is unknown, or a value is not on it.
    """
    _check(limit.when)
    _check(limit.only)

    def allows(choice: Any, problem: Problem, arch: Arch) -> Any:
        exempt = problem.flops <= limit.flops_above
        return exempt | np.logical_not(_within(choice, limit.when)) | _within(choice, limit.only)

    def reason(config: KernelConfig, problem: Problem, arch: Arch) -> str:
        condition = f" where {_text(limit.when)}" if limit.when else ""
        above = f" above {limit.flops_above:.3g} FLOPs" if limit.flops_above else ""
        return f"space '{space_name}' keeps only {_text(limit.only)}{condition}{above}"

    axes = tuple(dict.fromkeys((*limit.when, *limit.only)))
    return Rule("subspace", axes, allows, reason, by_size=limit.flops_above > 0)


def _check(values_by_axis: Values) -> None:
    for name, values in values_by_axis.items():
        if name not in _AXES:
            raise UsageError(f"unknown axis '{name}': choose from {', '.join(_AXES)}")
        _AXES[name].narrowed(values)


def _within(choice: Any, values_by_axis: Values) -> Any:
    met: Any = np.True_
    for name, values in values_by_axis.items():
        met = met & np.isin(np.asarray(getattr(choice, name)), values)
    return met


def _text(values_by_axis: Values) -> str:
    return ", ".join(f"{name} {' or '.join(map(str, values))}" for name, values in values_by_axis.items())
