"""Rows as plain values and back, each field held to its annotation: JSON has no types, and an edited file has any."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from cudal2.errors import RecordError
from cudal2.problem import Problem
from cudal2.space.config import KernelConfig

Row = TypeVar("Row")

#: One spelling, so that the order of texts is that of times.
UTC_PATTERN = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{3}([0-9]{3})?)?[+]00:00$"


def to_plain(row: Any) -> dict[str, Any]:
    """A row's plain values, ready for JSON; its configuration with the family, so that it describes itself.

    Args:
        row: A dataclass with a ``problem`` and a ``config``, which may be ``None``.
    """
    return {**asdict(row), "config": row.config.to_dict() if row.config else None}


def from_plain(row_type: type[Row], values: Mapping[str, Any], **read: Callable[[Any], Any]) -> Row:
    """The inverse of :func:`to_plain`.

    Args:
        row_type: The dataclass.
        values: What was written.
        **read: What makes the value of a field other than ``problem`` and ``config``.

    Raises:
        RecordError: A value is not of its field's kind.
    """
    made = dict(values)
    made["problem"] = Problem.from_dict(made["problem"])
    made["config"] = KernelConfig.from_dict(made["config"]) if made["config"] else None
    for name, convert in read.items():
        made[name] = convert(made[name])
    return checked(row_type(**made))


def checked(row: Row) -> Row:
    """The row, if each of its fields holds a value of its annotation.

    Args:
        row: A dataclass made from plain values.

    Raises:
        RecordError: A field holds something else, a number that is not finite or out of all bounds, or as ``utc`` what
            is neither empty nor a time.
    """
    for name, kind in _kinds(type(row)).items():  # type: ignore[arg-type]  # a class is hashable
        value = getattr(row, name)
        if not _holds(value, kind):
            shown = repr(value)[:40] if isinstance(value, (str, float, bool)) else f"a {type(value).__name__}"
            raise RecordError(f"'{name}' is {shown}, which it cannot be: the file is damaged")
    check_utc(getattr(row, "utc", ""))
    return row


def check_utc(text: str) -> None:
    """Lets pass what is empty, unknown, or a time as :meth:`~datetime.datetime.isoformat` writes it in UTC.

    Raises:
        RecordError: It is neither.
    """
    try:
        known = not text or bool(re.fullmatch(UTC_PATTERN, text) and datetime.fromisoformat(text))
    except ValueError:
        known = False
    if not known:
        raise RecordError(f"'utc' is {text[:40]!r}, no ISO time in UTC: the file is damaged")


@cache
def _kinds(row_type: type) -> dict[str, Any]:
    return get_type_hints(row_type)


def _holds(value: Any, kind: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_holds(value, one) for one in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is tuple:
        return isinstance(value, tuple) and all(_holds(item, inner[0]) for item in value)
    if kind is int:
        return type(value) is int and abs(value) < 2**63
    if kind is float:
        return _holds(value, int) or (isinstance(value, float) and math.isfinite(value))
    return isinstance(value, kind)
