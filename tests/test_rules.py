"""Rules of every family: many configurations at once are judged as each by itself is."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from cudal2.arch import SM90
from cudal2.problem import Problem
from cudal2.space.families import FAMILIES, Family
from cudal2.space.rule import Rule
from cudal2.space.space import SearchSpace

RULES = [(family, rule) for family in FAMILIES.values() for rule in family.rules]
PROBLEMS = (
    Problem(4096, 4096, 4096),
    Problem(1, 8, 8, "fp16", "nn"),
    Problem(64, 512, 40, "fp16", "nn"),
    Problem(256, 512, 1024),
    Problem(300, 2**31 - 1, 1000),
    Problem(123, 456, 789),
    Problem(640, 1288, 777),
)


@pytest.mark.parametrize(("family", "rule"), RULES, ids=lambda one: one.name)
def test_arrays_are_judged_as_single_configurations(family: Family, rule: Rule) -> None:
    space = SearchSpace(family=family.name)
    configs = [space.from_flat(flat) for flat in np.random.default_rng(7).integers(space.total, size=200).tolist()]
    columns = {axis.name: [getattr(config, axis.name) for config in configs] for axis in family.axes}
    # Text as objects, as the space passes it.
    batch = SimpleNamespace(
        **{name: np.array(column, object if isinstance(column[0], str) else None) for name, column in columns.items()}
    )
    for problem in PROBLEMS:
        together = np.broadcast_to(np.asarray(rule.allows(batch, problem, SM90)), len(configs))
        assert [bool(rule.allows(config, problem, SM90)) for config in configs] == together.tolist()
