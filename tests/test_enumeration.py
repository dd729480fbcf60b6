"""The order in which cuBLASLt's configurations are tried, over a made-up library: all, once each, nearest first."""

import dataclasses
import itertools
import math

import pytest

from cudal2.bench.baselines.enumeration import (
    AXES,
    Algorithm,
    Capabilities,
    Configuration,
    Enumeration,
    in_turn,
    nearest_first,
)

OPTIONS = {
    "cluster": {0: (0.0, 0.0), 3: (1.0, 0.0), 4: (2.0, 0.0)},
    "split": {(1, 0): (0.0, 0.0), (2, 2): (1.0, 0.25), (4, 2): (2.0, 0.25)},
    "tile": {15: (6.0, 6.0), 20: (7.0, 7.0), 24: (8.0, 7.0)},
    "stages": {35: (6.0, 0.0)},
    "custom": {0: (0.0,), 1: (1.0,), 2: (2.0,)},
    "swizzle": {0: (0.0,)},
    "inner": {0: (0.0,), 1: (1.0,)},
}
CAPABILITIES = Capabilities(66, OPTIONS)
LEADER = Configuration(66, cluster=3, split=(1, 0), tile=20, stages=35, custom=0, swizzle=0, inner=0)
SIZE = math.prod(len(options) for options in OPTIONS.values())


def changes(configuration, centre=LEADER):
    return sum(getattr(configuration, axis) != getattr(centre, axis) for axis in AXES)


def algorithm(configuration, rank=None):
    return Algorithm(rank, repr(configuration).encode(), configuration, 0, 1.0)


class MadeUpLibrary:
    def __init__(self, capabilities=(CAPABILITIES,), legal=lambda configuration: True):
        self._capabilities, self.legal, self.asked = capabilities, legal, []

    def capabilities(self):
        return self._capabilities

    def configured(self, configuration):
        self.asked.append(configuration)
        return algorithm(configuration) if self.legal(configuration) else None


def test_every_configuration_comes_once_fewest_changes_first():
    found = list(nearest_first(LEADER, CAPABILITIES))
    assert len(found) == len(set(found)) == SIZE - 1 and LEADER not in found
    distances = [changes(configuration) for configuration in found]
    assert distances == sorted(distances) and distances[0] == 1
    single = found[: distances.count(1)]
    axes = [next(axis for axis in AXES if getattr(one, axis) != getattr(LEADER, axis)) for one in single]
    assert axes[:5] == ["cluster", "split", "tile", "custom", "inner"], "axes take turns"
    assert [one.split for one in single if one.split != LEADER.split] == [(2, 2), (4, 2)], "small changes first"
    assert next(one.tile for one in single if one.tile != LEADER.tile) == 24, "256x128 is closer to 128x128 than 64x64"


def test_offered_and_refused_configurations_are_not_tried_again():
    near, far = dataclasses.replace(LEADER, custom=1), dataclasses.replace(LEADER, tile=15, custom=2)
    library = MadeUpLibrary(legal=lambda configuration: configuration.split == (1, 0))
    enumeration = Enumeration(library, [algorithm(LEADER, 0), algorithm(near, 1)])
    first = list(itertools.islice(enumeration.near([LEADER]), 5))
    rest = list(enumeration.near([far, LEADER]))
    given = [one.configuration for one in (*first, *rest)]
    assert set(given) == {one for one in nearest_first(LEADER, CAPABILITIES) if one.split == (1, 0) and one != near}
    assert len(given) == len(set(given)) and len(library.asked) == len(set(library.asked)) == SIZE - 2
    assert enumeration.checked == SIZE - 2
    assert changes(rest[0].configuration, far) == 1, "the new leader's surroundings come next"


def test_algorithms_that_no_leader_uses_get_a_share_and_begin_at_the_leaders_values():
    other = Capabilities(6, {**OPTIONS, "tile": {15: (6.0, 6.0)}, "cluster": {0: (0.0, 0.0)}})
    library = MadeUpLibrary((CAPABILITIES, other))
    found = [one.configuration for one in itertools.islice(Enumeration(library, []).near([LEADER]), 8)]
    assert [one.id for one in found] == [66, 66, 66, 6, 66, 66, 66, 6]
    assert found[3] == dataclasses.replace(LEADER, id=6, tile=15, cluster=0)
    assert changes(found[7], found[3]) == 1


def test_leaders_take_turns_and_one_that_the_library_does_not_list_still_helps():
    second = dataclasses.replace(LEADER, tile=15, custom=2)
    found = [one.configuration for one in itertools.islice(Enumeration(MadeUpLibrary(), []).near([LEADER, second]), 2)]
    assert [changes(found[0]), changes(found[1], second)] == [1, 1]
    unlisted = dataclasses.replace(LEADER, id=99)
    found = list(Enumeration(MadeUpLibrary(), []).near([unlisted]))
    assert len(found) == SIZE and found[0].configuration == LEADER


def test_checks_are_bounded_over_all_calls():
    library = MadeUpLibrary(legal=lambda configuration: False)
    enumeration = Enumeration(library, [], most_checks=7)
    assert list(enumeration.near([LEADER])) == list(enumeration.near([LEADER])) == []
    assert len(library.asked) == enumeration.checked == 7


@pytest.mark.parametrize("value", [999, 24])
def test_a_value_that_the_library_does_not_list_is_close_to_none(value):
    leader = dataclasses.replace(LEADER, tile=value)
    assert {one.tile for one in nearest_first(leader, CAPABILITIES)} >= {15, 20, 24}


def test_streams_take_turns_and_drop_out():
    assert list(in_turn([iter("abc"), iter(""), iter("x"), iter("12")])) == ["a", "x", "1", "b", "2", "c"]
    assert list(in_turn([])) == []
