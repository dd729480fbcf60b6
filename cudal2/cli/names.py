"""What the parts of a configuration's name say: read off the pattern that names are parsed by, and the axes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from cudal2.cli.arguments import NAMES
from cudal2.space.axes import Axis
from cudal2.space.config import KernelConfig
from cudal2.space.families import Family, family_of

_NUMBER = re.compile(r"\d+$")


@dataclass(frozen=True)
class Part:
    """What a name says of one axis.

    Attributes:
        text: That part of the name, without the ``_`` that separates it; empty where the value is left out.
        axis: The axis.
        value: The value.
    """

    text: str
    axis: Axis
    value: Any


def parts(config: KernelConfig) -> Iterator[Part]:
    """Every axis of a configuration in the order of its name."""
    pattern, end = NAMES[config.family], 0
    match = pattern.fullmatch(config.name)
    assert match is not None, config.name
    axes = {axis.name: axis for axis in family_of(config).axes}
    for name in sorted(pattern.groupindex, key=lambda group: pattern.groupindex[group]):
        stop = match.end(name) if match[name] else end
        yield Part(config.name[end:stop].lstrip("_"), axes[name], getattr(config, name))
        end = stop


def vocabulary(family: Family) -> list[tuple[str, str, str, str]]:
    """A row for each axis of a family in the order of its names: how it reads, axis, value if left out, meaning."""
    base = family.config(**{axis.name: axis.values[0] for axis in family.axes})
    rows = []
    for axis in (part.axis for part in parts(base)):
        read = {value: _text(replace(base, **{axis.name: value}), axis) for value in axis.values}
        texts = [text if isinstance(value, (bool, str)) else _NUMBER.sub("N", text) for value, text in read.items()]
        shown = " or ".join(dict.fromkeys(text for text in texts if text))
        left_out = ", ".join(str(value) for value, text in read.items() if not text)
        rows.append((shown, axis.name, left_out, axis.doc))
    return rows


def _text(config: KernelConfig, axis: Axis) -> str:
    return next(part.text for part in parts(config) if part.axis is axis)
