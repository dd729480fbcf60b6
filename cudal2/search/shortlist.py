"""A few promising configurations for a shape nobody measured, from what was fast on other shapes.

What was near-best anywhere, and its transposes, is refitted to the shape: rings, splits of K and tile orders follow its
sizes. A surrogate learned from all records ranks the result; a few of a kind are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudal2.arch import SM90, Arch
from cudal2.floor import floor_us
from cudal2.problem import Problem
from cudal2.search.analytic import columns_of, rank
from cudal2.search.surrogate import Behind, Surrogate
from cudal2.space.axes import Axis
from cudal2.space.config import KernelConfig, Sm90SmallConfig, Sm90WsConfig
from cudal2.space.estimate import predict_us
from cudal2.space.families import FAMILIES
from cudal2.space.refit import transposed
from cudal2.space.shared_rules import tma_reads
from cudal2.space.space import SearchSpace

#: A configuration is a pattern for other shapes if it is one of so many, and not further behind, on a shape of its own.
PATTERNS_PER_SHAPE, PATTERN_BEHIND = 24, 0.12
#: Kernels whose run-time axes are tried out by the model.
KERNELS = 24
#: Estimates so much worse are as welcome as another choice of the same kernel, another kernel much like one chosen, and
#: another that goes the same way as one chosen.
SAME_KERNEL, SAME_KIND, SAME_WAY = 0.03, 0.02, 0.01
#: Above this floor the latency family has nothing to say, nor records.
SMALL_BELOW_US = 5.0
#: Patterns have a few thousand choices each, which are held in memory together.
_PATTERNS_AT_ONCE = 64
#: Records of these families and no others make patterns.
_FAMILIES = (Sm90WsConfig.family, Sm90SmallConfig.family)
#: What a pattern is compared by on each shape, with every value where legal: splits and how their sums meet, rings,
#: what L2 is told, waves, what of A stays, whether a last wave is shared out.
_COMPARED = ("split_k", "split_via", "stages", "store_hint", "store_buffers", "persistent", "resident_a", "stream_k")
#: What a pattern has plain since the problem decides it.
_PADDED = "padded"


class Shortlister:
    """Patterns of what is known, and the model that ranks them on a shape.

    Args:
        behind: Logarithm of each measured configuration's time over the best of its shape.
        arch: The GPU that was measured.

    Raises:
        EnvironmentProblemError: scikit-learn is not installed.
        NothingValidError: There is nothing to learn from.
    """

    def __init__(self, behind: Behind, arch: Arch = SM90) -> None:
        known = {
            problem: {config: value for config, value in values.items() if config.family in _FAMILIES}
            for problem, values in behind.items()
        }
        self._surrogate = Surrogate(known, arch)
        patterns = set(_patterns(known))
        self._banks = [
            _Bank(
                SearchSpace(arch, family=family), [one for one in patterns if one.family == family], next(iter(known))
            )
            for family in _FAMILIES
        ]

    def shortlist(self, problem: Problem, count: int, tried: Collection[KernelConfig] = ()) -> list[KernelConfig]:
        """The most promising configurations, best first; fewer where few are legal.

        Args:
            problem: What for.
            count: How many.
            tried: These are not proposed.
        """
        small = floor_us(problem.m, problem.n, problem.k) < SMALL_BELOW_US
        banks = [bank for bank in self._banks if small or bank.family != Sm90SmallConfig.family]
        heads: dict[tuple[str, str], KernelConfig] = {}
        for config, _ in self._ranked(problem, [one for bank in banks for one in bank.kernels(problem)]):
            heads.setdefault(_kernel(config), config)
        best = list(heads.values())[:KERNELS]
        fresh = [one for bank in banks for one in bank.run_times(problem, best) if one not in tried]
        return _diverse(self._ranked(problem, fresh)[: KERNELS * count], count)

    def _ranked(self, problem: Problem, configs: Sequence[KernelConfig]) -> list[tuple[KernelConfig, float]]:
        """With their estimates, most promising first."""
        if not configs:
            return []
        estimates = self._surrogate.log_behind(problem, configs)
        return [(configs[at], float(estimates[at])) for at in np.argsort(estimates, kind="stable")]


class _Bank:
    """The patterns of one family with every legal choice of the axes they are compared by, as flat indices.

    Args:
        space: The full space of the family.
        patterns: What :func:`_pattern` gives.
        kind: Any problem of the precision and layout to come: what its rules forbid at all sizes is left out.
    """

    def __init__(self, space: SearchSpace, patterns: Sequence[KernelConfig], kind: Problem) -> None:
        self.family = space.family.name
        self._space = space
        self._stages = np.array(space.axis("stages").values)
        self._stride = space.stride("stages")
        self._padded = space.stride(_PADDED) if any(axis.name == _PADDED for axis in space.axes) else 0
        first = np.unique(np.array([space.flat(pattern) for pattern in patterns if space.holds(pattern)], np.int64))
        compared = [axis for axis in space.axes if axis.name in _COMPARED]
        parts = (_outer(part, space, compared) for part in np.array_split(first, len(first) // _PATTERNS_AT_ONCE + 1))
        self._flats = np.concatenate([part[space.allowed(part, kind, by_size=False)] for part in parts])

    def kernels(self, problem: Problem) -> list[KernelConfig]:
        """Every legal pattern and split, with its deepest ring and with one about half as deep."""
        flats = self._flats if tma_reads(problem) else self._flats + self._padded
        flats = flats[self._space.allowed(flats, problem, by_size=True)]
        depth = flats // self._stride % len(self._stages)
        _, group = np.unique(flats - depth * self._stride, return_inverse=True)
        stages = self._stages[depth]
        kept = stages == _largest(stages, group)
        halves = stages <= 0.6 * _largest(stages, group)
        kept |= halves & (stages == _largest(np.where(halves, stages, 0), group))
        return [self._space.from_flat(int(flat)) for flat in flats[kept]]

    def run_times(self, problem: Problem, kernels: Iterable[KernelConfig]) -> list[KernelConfig]:
        """Those of this family with every legal choice of the run-time axes."""
        axes = [axis for axis in self._space.axes if not axis.compile_time]
        mine = [self._space.flat(_plain(one, axes)) for one in kernels if one.family == self.family]
        flats = _outer(np.array(mine, np.int64), self._space, axes)
        return [self._space.from_flat(int(flat)) for flat in flats[self._space.allowed(flats, problem)]]


def _plain(config: KernelConfig, axes: Iterable[Axis]) -> KernelConfig:
    """With the first value of each axis."""
    return replace(config, **{axis.name: axis.values[0] for axis in axes})


def _outer(flats: NDArray[np.int64], space: SearchSpace, axes: Iterable[Axis]) -> NDArray[np.int64]:
    """Flat indices of configurations that are plain on some axes, each with every choice of those."""
    steps = (np.arange(len(axis)) * space.stride(axis.name) for axis in axes)
    return np.asarray(reduce(np.add.outer, steps, flats).ravel())


def _largest(values: NDArray[Any], group: NDArray[Any]) -> NDArray[Any]:
    """Of each element the largest of its group."""
    largest = np.zeros(group.max(initial=-1) + 1, values.dtype)
    np.maximum.at(largest, group, values)
    return np.asarray(largest[group])


def analytic_shortlist(
    space: SearchSpace, problem: Problem, count: int, tried: Collection[KernelConfig] = ()
) -> list[KernelConfig]:
    """For families without records: the analytic model's best of a narrowed space, few of a kind."""
    legal = rank(space, problem, space.legal_flat(problem))
    configs = [space.from_flat(int(flat)) for flat in legal]
    estimates = np.log(predict_us(columns_of(space, legal), problem, space.arch))
    ranked = zip(configs, estimates.tolist(), strict=True)
    return _diverse([(config, estimate) for config, estimate in ranked if config not in tried], count)


def _patterns(behind: Behind) -> Iterator[KernelConfig]:
    for problem, values in behind.items():
        best = sorted(values, key=lambda config: (values[config], config.name))[:PATTERNS_PER_SHAPE]
        for config in best:
            if values[config] > PATTERN_BEHIND:
                break
            turned = transposed(problem, config)
            yield from map(_pattern, (config, turned[1]) if turned else (config,))


def _pattern(config: KernelConfig) -> KernelConfig:
    """With the first value of what follows from the shape, or is tried both ways."""
    axes = FAMILIES[config.family].axes
    return _plain(config, (axis for axis in axes if axis.name in (*_COMPARED, _PADDED) or not axis.compile_time))


def _kernel(config: KernelConfig) -> tuple[str, str]:
    return config.family, config.build_name


def _kind(config: KernelConfig) -> tuple[Any, ...]:
    """What makes two kernels much alike: how wgmma sees the tile, and the split."""
    sides = (config.tile_m, config.tile_n)
    swapped = getattr(config, "swap_ab", False)
    return config.family, sides[::-1] if swapped else sides, getattr(config, "split_k", 1)


def _way(config: KernelConfig) -> tuple[Any, ...]:
    """What the model may misjudge as a whole, where few shapes of the records had it."""
    return config.family, getattr(config, "split_via", ""), getattr(config, "store_hint", "")


def _diverse(ranked: Sequence[tuple[KernelConfig, float]], count: int) -> list[KernelConfig]:
    """The best first; what is much like one chosen before has to be better by a margin."""
    left = dict(ranked)
    likenesses = ((SAME_KERNEL, _kernel), (SAME_KIND, _kind), (SAME_WAY, _way))
    seen: Counter[Any] = Counter()
    chosen: list[KernelConfig] = []

    def cost(config: KernelConfig) -> float:
        return left[config] + sum(margin * seen[like(config)] for margin, like in likenesses)

    while left and len(chosen) < count:
        best = min(left, key=cost)
        del left[best]
        seen.update(like(best) for _, like in likenesses)
        chosen.append(best)
    return chosen
