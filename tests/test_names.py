"""``cudal2 space --names``: every part of every family's names is explained, and says what the configuration holds."""

from __future__ import annotations

import json
import random
import re

import pytest

from cudal2.cli.arguments import config as parse
from cudal2.cli.names import parts, vocabulary
from cudal2.space.config import KernelConfig
from cudal2.space.families import FAMILIES, Family

NAME = "128x128x64_s6_pingpong2_c1x1_k1_tma_o1_stream_k_evict_first_m16p"


def configs(family: Family) -> list[KernelConfig]:
    """A thousand at random, legal or not, so that every value of every axis meets others."""
    rng = random.Random(family.name)
    made = [family.config(**{axis.name: rng.choice(axis.values) for axis in family.axes}) for _ in range(1000)]
    assert all({getattr(one, axis.name) for one in made} == set(axis.values) for axis in family.axes)
    return made


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_parts_of_a_name_are_all_of_it_and_every_axis_once(family: Family) -> None:
    for config in configs(family):
        found = list(parts(config))
        assert re.sub("_", "", "".join(part.text for part in found)) == config.name.replace("_", "")
        assert sorted(part.axis.name for part in found) == sorted(axis.name for axis in family.axes)
        assert all(part.value == getattr(config, part.axis.name) and part.axis.doc for part in found)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_every_part_that_occurs_in_a_name_is_in_the_vocabulary_of_its_family(family: Family) -> None:
    rows = {axis: (shown.split(" or "), left_out.split(", ")) for shown, axis, left_out, _ in vocabulary(family)}
    assert [axis for _, axis, _, _ in vocabulary(family)] == [part.axis.name for part in parts(configs(family)[0])]
    for config in configs(family):
        for part in parts(config):
            shown, left_out = rows[part.axis.name]
            numeric = not isinstance(part.value, (bool, str))
            text = re.sub(r"\d+$", "N", part.text) if numeric else part.text
            assert text in shown if text else str(part.value) in left_out, (config.name, part)
            assert not (numeric and text) or part.text.endswith(str(part.value))


def test_a_name_is_read_part_by_part(run) -> None:  # type: ignore[no-untyped-def]
    code, out, err = run("space", "--names", NAME)
    said = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines()}
    assert code == 0 and not err and said["part"] == "axis value meaning"
    assert said["pingpong"].startswith("schedule pingpong consumers share one tile, or take turns")
    assert said["stream_k"].startswith("stream_k True whether idle CTAs take parts along K")
    assert said["16"] == "group 16 tiles per raster group" and said["p"].startswith("persistent True")
    code, out, _ = run("space", "--names", NAME, "--json")
    values = {row["axis"]: row["value"] for row in json.loads(out)}
    assert code == 0 and values == {name: value for name, value in parse(NAME).to_dict().items() if name != "family"}


def test_the_vocabulary_needs_no_shape_and_says_what_is_left_out(run) -> None:  # type: ignore[no-untyped-def]
    for family in FAMILIES:
        code, out, _ = run("space", "--names", "--family", family, "--json")
        rows = json.loads(out)
        assert code == 0 and {row["axis"] for row in rows} == {axis.name for axis in FAMILIES[family].axes}
        assert all(row["part"] and row["meaning"] for row in rows)
    rows = {row["axis"]: row for row in json.loads(run("space", "--names", "--json")[1])}
    assert (rows["schedule"]["part"], rows["schedule"]["left_out"]) == ("coop or pingpong", "")
    assert (rows["l2_promotion"]["part"], rows["l2_promotion"]["left_out"]) == ("lN", "256")


def test_what_is_no_name_is_one_line_that_says_where_names_are_explained(run) -> None:  # type: ignore[no-untyped-def]
    code, out, err = run("space", "--names", "128x128")
    assert code == 2 and not out and err.startswith("error: '128x128' is no configuration name") and "--names" in err
