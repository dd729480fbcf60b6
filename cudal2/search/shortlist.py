"""A few promising configurations for a shape nobody measured, from what was fast on other shapes.

What was near-best anywhere, and its transposes, is refitted to the shape: rings, splits of K and tile orders follow its
sizes. A surrogate learned from all records ranks the result; a few of a kind are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from cudal2.arch import SM90, Arch
from cudal2.floor import floor_us
from cudal2.problem import Problem
from cudal2.search.analytic import columns_of, predict_us, rank
from cudal2.search.surrogate import Surrogate
from cudal2.space.config import KernelConfig, Sm90SmallConfig, Sm90WsConfig
from cudal2.space.refit import transposed, with_axes
from cudal2.space.space import SearchSpace

Behind = Mapping[Problem, Mapping[KernelConfig, float]]

#: A configuration is a pattern for other shapes if it is one of so many, and not further behind, on a shape of its own.
PATTERNS_PER_SHAPE, PATTERN_BEHIND = 16, 0.08
#: Kernels whose run-time axes are tried out by the model.
KERNELS = 24
#: Estimates so much worse are as welcome as another choice of the same kernel, or another kernel much like one chosen.
SAME_KERNEL, SAME_KIND = 0.02, 0.01
#: Above this floor the latency family has nothing to say, nor records.
SMALL_BELOW_US = 5.0
#: Records of these families and no others make patterns.
_FAMILIES = (Sm90WsConfig.family, Sm90SmallConfig.family)


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
        self._spaces = {name: SearchSpace(arch, family=name) for name in _FAMILIES}
        known = {
            problem: {config: value for config, value in values.items() if config.family in _FAMILIES}
            for problem, values in behind.items()
        }
        self._surrogate = Surrogate(known, arch)
        self._patterns = sorted(set(_patterns(known)), key=lambda config: (config.family, config.name))

    def shortlist(self, problem: Problem, count: int, tried: Collection[KernelConfig] = ()) -> list[KernelConfig]:
        """The most promising configurations, best first; fewer where few are legal.

        Args:
            problem: What for.
            count: How many.
            tried: These are not proposed.
        """
        heads: dict[tuple[str, str], KernelConfig] = {}
        for config, _ in self._ranked(problem, self._kernels(problem)):
            heads.setdefault(_kernel(config), config)
        variants = [one for head in list(heads.values())[:KERNELS] for one in self._run_times(head)]
        fresh = (config for config in variants if config not in tried)
        return _diverse(self._ranked(problem, fresh)[: KERNELS * count], count)

    def _ranked(self, problem: Problem, configs: Iterable[KernelConfig]) -> list[tuple[KernelConfig, float]]:
        """The legal ones with their estimates, most promising first, each once."""
        legal: list[KernelConfig] = []
        unique = list(dict.fromkeys(configs))
        for family, space in self._spaces.items():
            mine = [config for config in unique if config.family == family]
            legal += [mine[at] for at in np.flatnonzero(space.allows(mine, problem))] if mine else []
        if not legal:
            return []
        estimates = self._surrogate.log_behind(problem, legal)
        return [(legal[at], float(estimates[at])) for at in np.argsort(estimates, kind="stable")]

    def _kernels(self, problem: Problem) -> list[KernelConfig]:
        """Every pattern by every split of K, with its deepest legal ring and with one about half as deep."""
        small = floor_us(problem.m, problem.n, problem.k) < SMALL_BELOW_US
        found: list[KernelConfig] = []
        for family, space in self._spaces.items():
            if family == Sm90SmallConfig.family and not small:
                continue
            patterns = [config for config in self._patterns if config.family == family]
            axes = {axis.name: axis.values for axis in space.axes}
            tried = [
                with_axes(pattern, split_k=split, stages=stages, **order)
                for pattern in patterns
                for split in (axes["split_k"] if _may_split(pattern) else (1,))
                for order in _plain_orders(pattern)
                for stages in axes["stages"]
            ]
            legal = [tried[at] for at in np.flatnonzero(space.allows(tried, problem))] if tried else []
            found += _rings(legal)
        return found

    def _run_times(self, config: KernelConfig) -> Iterator[KernelConfig]:
        """The kernel with every choice of its run-time axes."""
        axes = [axis for axis in self._spaces[config.family].axes if not axis.compile_time]
        for values in product(*(axis.values for axis in axes)):
            yield replace(config, **{axis.name: value for axis, value in zip(axes, values, strict=True)})


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
    """With the least value of what follows from the shape."""
    least: dict[str, Any] = {"stages": 1, "split_k": 1, "l2_prefetch": 0}
    if isinstance(config, Sm90WsConfig):
        least |= {"raster": "m", "group": 1, "persistent": config.schedule == "pingpong"}
    return replace(config, **least)


def _may_split(config: KernelConfig) -> bool:
    if not isinstance(config, Sm90WsConfig):
        return True
    return config.schedule == "coop" and config.epilogue == "direct"


def _plain_orders(config: KernelConfig) -> tuple[dict[str, Any], ...]:
    """Run-time choices to compare kernels by: one wave or one CTA per tile, in plain order."""
    if not isinstance(config, Sm90WsConfig):
        return ({},)
    return tuple({"persistent": persistent} for persistent in (False, True))


def _rings(configs: Sequence[KernelConfig]) -> list[KernelConfig]:
    """Of configurations that differ in stages alone the deepest, and the deepest of about half of that."""
    depths: dict[KernelConfig, list[int]] = {}
    for config in configs:
        depths.setdefault(replace(config, stages=1), []).append(config.stages)
    kept = []
    for config, found in depths.items():
        half = [depth for depth in found if depth <= max(found) * 0.6]
        kept += [replace(config, stages=depth) for depth in {max(found), max(half, default=max(found))}]
    return kept


def _kernel(config: KernelConfig) -> tuple[str, str]:
    return config.family, config.build_name


def _kind(config: KernelConfig) -> tuple[Any, ...]:
    """What makes two kernels much alike: how wgmma sees the tile, and the split."""
    sides = (config.tile_m, config.tile_n)
    swapped = getattr(config, "swap_ab", False)
    return config.family, sides[::-1] if swapped else sides, getattr(config, "split_k", 1)


def _diverse(ranked: Sequence[tuple[KernelConfig, float]], count: int) -> list[KernelConfig]:
    """The best first; what is much like one chosen before has to be better by a margin."""
    left = dict(ranked)
    kernels: Counter[Any] = Counter()
    kinds: Counter[Any] = Counter()
    chosen: list[KernelConfig] = []
    while left and len(chosen) < count:
        margins = {one: SAME_KERNEL * kernels[_kernel(one)] + SAME_KIND * kinds[_kind(one)] for one in left}
        best = min(left, key=lambda one: left[one] + margins[one])
        del left[best]
        kernels[_kernel(best)] += 1
        kinds[_kind(best)] += 1
        chosen.append(best)
    return chosen
