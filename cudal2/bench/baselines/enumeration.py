"""cuBLASLt's algorithm configurations beyond its heuristic's answers: every one of them, nearest to the best first.

The full product has far more members than anyone times, so the order matters: a configuration that differs from a
leader in one attribute comes before one that differs in two, and a value close to the leader's before one far from it.
Pure control flow over ``AlgorithmLibrary``, so that it is tested without the library.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

Item = TypeVar("Item")

#: What may vary, in the order in which equally near configurations take turns. The cluster shape is what NVIDIA says an
#: exhaustive search on Hopper must not leave out (CUDALibrarySamples issue 247).
AXES = ("cluster", "split", "tile", "stages", "custom", "swizzle", "inner")
#: Of four configurations one belongs to an algorithm that no leader uses: the heuristic may miss a whole family.
_NEAR_PER_FOREIGN = 3
#: One check takes the library and us some 20 us; most of a product fails it.
_MOST_CHECKS = 5_000


@dataclass(frozen=True)
class Configuration:
    """Everything cuBLASLt lets one choose about a matmul, as the library's own numbers.

    Attributes:
        id: Algorithm.
        cluster: ``CLUSTER_SHAPE_ID``.
        split: ``SPLITK_NUM`` and ``REDUCTION_SCHEME``, which go together: no reduction without a split.
        tile: ``TILE_ID``.
        stages: ``STAGES_ID``.
        custom: ``CUSTOM_OPTION``.
        swizzle: ``CTA_SWIZZLING``.
        inner: ``INNER_SHAPE_ID``.
    """

    id: int
    cluster: int
    split: tuple[int, int]
    tile: int
    stages: int
    custom: int
    swizzle: int
    inner: int


@dataclass(frozen=True)
class Capabilities:
    """What one algorithm can be set to.

    Attributes:
        id: Algorithm.
        options: By axis: each value and its coordinates, by which values count as close to each other.
    """

    id: int
    options: Mapping[str, Mapping[Hashable, tuple[float, ...]]]

    def nearest(self, axis: str, value: Any) -> list[Any]:
        """The axis' values, closest to ``value`` first; a value it lacks is close to none."""
        places = self.options[axis]
        here = places.get(value)
        return list(places) if here is None else sorted(places, key=lambda other: math.dist(places[other], here))


@dataclass(frozen=True)
class Algorithm:
    """One algorithm, configured; plain values, so that it can go to another process.

    Attributes:
        rank: Place in the heuristic's list, 0 is its favourite; ``None`` for one it did not offer.
        data: The library's opaque ``cublasLtMatmulAlgo_t``, 64 bytes.
        configuration: What is chosen in it.
        workspace_bytes: Workspace it needs.
        waves: Waves as the library estimates them.
    """

    rank: int | None
    data: bytes
    configuration: Configuration
    workspace_bytes: int
    waves: float


class AlgorithmLibrary(Protocol):
    """The library, as the enumeration needs it, for one problem in one layout."""

    def capabilities(self) -> Sequence[Capabilities]:
        """Of every algorithm that handles the data types."""

    def configured(self, configuration: Configuration) -> Algorithm | None:
        """The algorithm so configured, or ``None`` if the library's check refuses it for this problem."""


class Enumeration:
    """The configurations of one problem and layout that the heuristic did not offer.

    Args:
        library: Checks them.
        offered: What the heuristic offered.
        most_checks: Configurations checked in all, before it ends.

    Attributes:
        checked: Configurations the library was asked about so far.
    """

    def __init__(
        self, library: AlgorithmLibrary, offered: Iterable[Algorithm], most_checks: int = _MOST_CHECKS
    ) -> None:
        self._library = library
        self._capabilities = library.capabilities()
        self._seen = {algorithm.configuration for algorithm in offered}
        self._most_checks = most_checks
        self.checked = 0

    def near(self, leaders: Sequence[Configuration]) -> Iterator[Algorithm]:
        """Legal configurations that no earlier call has given, nearest to the leaders first.

        Args:
            leaders: Best known, best first; at least one.
        """
        by_id = {capabilities.id: capabilities for capabilities in self._capabilities}
        known = [leader for leader in leaders if leader.id in by_id]
        own = [nearest_first(leader, by_id[leader.id]) for leader in known]
        used = {leader.id for leader in known}
        others = [_settled(leaders[0], other) for other in self._capabilities if other.id not in used]
        foreign = in_turn([itertools.chain([start], nearest_first(start, by_id[start.id])) for start in others])
        mixed = in_turn([in_turn(own)] * _NEAR_PER_FOREIGN + [foreign])
        for configuration in mixed:
            if configuration in self._seen:
                continue
            if self.checked >= self._most_checks:
                return
            self._seen.add(configuration)
            self.checked += 1
            algorithm = self._library.configured(configuration)
            if algorithm is not None:
                yield algorithm


def nearest_first(centre: Configuration, capabilities: Capabilities) -> Iterator[Configuration]:
    """Every other configuration of an algorithm: fewest attributes changed first, small changes before large ones."""
    others = {
        axis: [value for value in capabilities.nearest(axis, getattr(centre, axis)) if value != getattr(centre, axis)]
        for axis in AXES
    }
    for count in range(1, len(AXES) + 1):
        yield from in_turn([_changed(centre, axes, others) for axes in itertools.combinations(AXES, count)])


def in_turn(streams: Sequence[Iterator[Item]]) -> Iterator[Item]:
    """One item of each stream after the other; those that end drop out."""
    streams = list(streams)
    while streams:
        for stream in tuple(streams):
            try:
                yield next(stream)
            except StopIteration:
                streams.remove(stream)


def _changed(
    centre: Configuration, axes: Sequence[str], others: Mapping[str, Sequence[Any]]
) -> Iterator[Configuration]:
    for values in _diagonally([others[axis] for axis in axes]):
        yield dataclasses.replace(centre, **dict(zip(axes, values, strict=True)))


def _diagonally(options: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    """The product, by the sum of places: no list is run through before the next one moves."""
    if all(options):
        for total in range(sum(map(len, options)) - len(options) + 1):
            yield from _with_total(options, total)


def _with_total(options: Sequence[Sequence[Any]], total: int) -> Iterator[tuple[Any, ...]]:
    if not options:
        yield ()
        return
    first, rest = options[0], options[1:]
    most_of_rest = sum(map(len, rest)) - len(rest)
    for place in range(max(0, total - most_of_rest), min(total, len(first) - 1) + 1):
        for tail in _with_total(rest, total - place):
            yield (first[place], *tail)


def _settled(leader: Configuration, other: Capabilities) -> Configuration:
    """The leader's values where another algorithm has them, else its first."""
    values = {axis: other.nearest(axis, getattr(leader, axis))[0] for axis in AXES}
    return Configuration(other.id, **values)
