"""``SearchSpace``: the legal configurations of a problem as one dense boolean array, and all that follows from it."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudal2.arch import SM90, Arch
from cudal2.errors import NothingValidError, UsageError
from cudal2.problem import Problem
from cudal2.settings import SpaceSettings
from cudal2.space.config import KernelConfig
from cudal2.space.families import family_on
from cudal2.space.narrowing import limit_rule, narrowed_axes
from cudal2.space.rule import Rule

#: Dense arrays kept, in bytes: a full space takes 20 MB a problem, the recorded one 4 MB for each of its 32.
_CACHE_BYTES = 160 * 2**20
#: Axes that decide in which order tiles run, and nothing else.
_ORDER_AXES = frozenset({"raster", "group"})


class SearchSpace:
    """All configurations of one kernel family, possibly narrowed, and which of them a problem may use.

    A configuration is also a tuple of value indices in axis order (``encode``) and a flat index in C order (``flat``).

    Attributes:
        arch: Limits it stays within.
        settings: How it is narrowed.
        family: The kernel family.
        axes: The axes with the values kept.
        rules: The legality rules, then one named ``subspace`` for each limit of the settings.
    """

    def __init__(self, arch: Arch = SM90, settings: SpaceSettings | None = None, family: str = "") -> None:
        """Narrows the full space, which ``None`` keeps, of a family: the named one, the settings', or the arch's first.

        Raises:
            UsageError: The settings name an unknown axis or a value that is not on its axis, or the family does not
                run on the architecture or is not the settings'.
        """
        self.arch = arch
        self.settings = settings or SpaceSettings()
        self.family = family_on(arch, family or self.settings.family)
        if self.settings.family not in ("", self.family.name):
            raise UsageError(f"space '{self.settings.name}' is of family {self.settings.family}, not {family}")
        self.axes = narrowed_axes(self.family.axes, self.settings.axes)
        limits = (limit_rule(self.family.axes, limit, self.settings.name) for limit in self.settings.limits)
        self.rules = (*self.family.rules, *limits)
        self._position = {axis.name: at for at, axis in enumerate(self.axes)}
        self._static: dict[tuple[str, str], tuple[NDArray[np.bool_], list[NDArray[np.bool_]]]] = {}
        self._dense: OrderedDict[Problem, NDArray[np.bool_]] = OrderedDict()

    @property
    def dims(self) -> tuple[int, ...]:
        """Number of values of each axis: the ``nvec`` of a MultiDiscrete action."""
        return tuple(len(axis) for axis in self.axes)

    @property
    def total(self) -> int:
        """Number of configurations, legal or not."""
        return int(np.prod(self.dims))

    @property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of the axes, their values and the limits."""
        limits = [[_plain(limit.when), _plain(limit.only), limit.flops_above] for limit in self.settings.limits]
        axes = [[axis.name, list(axis.values)] for axis in self.axes]
        text = json.dumps({"arch": self.arch.name, "axes": axes, "limits": limits}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def validity(self, problem: Problem) -> NDArray[np.bool_]:
        """Which configurations are legal: a read-only boolean array of shape ``dims``."""
        if problem in self._dense:
            self._dense.move_to_end(problem)
            return self._dense[problem]
        whole, by_order = self._conditions(problem)
        # About one in a hundred is legal but for its tile order: only those are spread over the raster axes.
        at: list[Any] = list(np.nonzero(whole))
        for name in _ORDER_AXES:
            at[self._position[name]] = slice(None)
        index = tuple(at)
        valid = np.zeros(self.dims, np.bool_)
        valid[index] = True
        for part in by_order:
            valid[index] &= np.broadcast_to(part, self.dims)[index]
        valid.setflags(write=False)
        self._dense[problem] = valid
        while len(self._dense) > 1 and len(self._dense) * self.total > _CACHE_BYTES:
            self._dense.popitem(last=False)
        return valid

    def possible(self, problem: Problem) -> NDArray[np.bool_]:
        """Which configurations only the rules on m, n and k can forbid: a superset of the legal; of shape ``dims``."""
        conditions = [self._broadcast(rule, problem) for rule in self.rules if not rule.by_size]
        return np.broadcast_to(reduce(np.logical_and, conditions), self.dims)

    def explain(self, config: KernelConfig, problem: Problem) -> list[str]:
        """Why a configuration is not legal, one sentence per broken rule; empty if it is."""
        if config.family != self.family.name:
            return [f"family: {config.family} is not {self.family.name}, the one of this space"]
        reasons = []
        for axis in self.axes:
            value = getattr(config, axis.name)
            if value not in axis.values:
                reasons.append(f"{axis.name} = {value!r} is not in this space: {axis.listing}")
        if any(getattr(config, axis.name) not in axis.values for axis in self.family.axes):
            return reasons  # the rules reckon with values of the full axes only
        broken = [rule for rule in self.rules if not np.all(rule.allows(config, problem, self.arch))]
        return reasons + [f"{rule.name}: {rule.reason(config, problem, self.arch)}" for rule in broken]

    def buildable(self, config: KernelConfig, problem: Problem) -> bool:
        """Whether every rule that reads no run-time axis allows it, so that some run-time choice may be legal."""
        run_time = {axis.name for axis in self.family.axes if not axis.compile_time}
        fixed = (rule for rule in self.rules if run_time.isdisjoint(rule.axes))
        return all(np.all(rule.allows(config, problem, self.arch)) for rule in fixed)

    def removed_by_rule(self, problem: Problem) -> dict[str, int]:
        """Configurations each rule removes, in rule order and not counting those an earlier rule removed already.

        The counts and ``legal_count`` add up to ``total``.
        """
        kept = np.ones((1,) * len(self.axes), np.bool_)
        left, removed = self.total, dict.fromkeys((rule.name for rule in self.rules), 0)
        for rule in self.rules:
            kept = kept & self._broadcast(rule, problem)
            now = int(np.count_nonzero(kept)) * (self.total // kept.size)
            removed[rule.name] += left - now
            left = now
        return removed

    def legal_count(self, problem: Problem) -> int:
        """Number of legal configurations."""
        return int(np.count_nonzero(self.validity(problem)))

    def legal_flat(self, problem: Problem) -> NDArray[np.intp]:
        """Flat indices of the legal configurations, ascending."""
        return np.flatnonzero(self.validity(problem))

    def enumerate(self, problem: Problem) -> Iterator[KernelConfig]:
        """The legal configurations in ascending flat order."""
        for action in np.argwhere(self.validity(problem)).tolist():
            yield self.decode(action)

    def sample(
        self, problem: Problem, rng: np.random.Generator, size: int = 1, replace: bool = True
    ) -> list[KernelConfig]:
        """Legal configurations drawn uniformly.

        Args:
            problem: Decides what is legal.
            rng: Source of the draw.
            size: How many.
            replace: Whether one may come twice; if not, there are at most as many as are legal.

        Raises:
            NothingValidError: No configuration is legal; the message says which rules removed them.
        """
        legal = self.legal_flat(problem)
        if legal.size == 0:
            raise NothingValidError(self._nothing_valid(problem))
        drawn = rng.choice(legal, size if replace else min(size, legal.size), replace=replace)
        return [self.from_flat(int(flat)) for flat in drawn]

    def neighbours(self, config: KernelConfig, problem: Problem) -> list[KernelConfig]:
        """The legal configurations that differ by one step on one axis."""
        action, valid = self.encode(config), self.validity(problem)
        near = []
        for at, size in enumerate(self.dims):
            for value in (action[at] - 1, action[at] + 1):
                step = (*action[:at], value, *action[at + 1 :])
                if 0 <= value < size and valid[step]:
                    near.append(self.decode(step))
        return near

    def encode(self, config: KernelConfig) -> tuple[int, ...]:
        """Value indices in axis order.

        Raises:
            UsageError: A field has a value that is not on its axis, or the family is another.
        """
        if config.family != self.family.name:
            raise UsageError(f"{config.name} is of family {config.family}; this space holds {self.family.name}")
        return tuple(axis.index(getattr(config, axis.name)) for axis in self.axes)

    def decode(self, action: Sequence[int] | NDArray[Any]) -> KernelConfig:
        """The inverse of :meth:`encode`."""
        return self.family.config(**{axis.name: axis.values[at] for axis, at in zip(self.axes, action, strict=True)})

    def flat(self, config: KernelConfig) -> int:
        """Index in the flattened dense array.

        Raises:
            UsageError: A field has a value that is not on its axis.
        """
        return int(np.ravel_multi_index(self.encode(config), self.dims))

    def from_flat(self, flat: int) -> KernelConfig:
        """The inverse of :meth:`flat`."""
        return self.decode([int(at) for at in np.unravel_index(flat, self.dims)])

    def _conditions(self, problem: Problem) -> tuple[NDArray[np.bool_], list[NDArray[np.bool_]]]:
        """All rules that do not read the tile order as one array, and those that do; the size-free ones are kept."""
        key = (problem.acc, problem.layout)
        if key not in self._static:
            self._static[key] = self._combined((rule for rule in self.rules if not rule.by_size), problem)
        whole, by_order = self._static[key]
        sized, sized_by_order = self._combined((rule for rule in self.rules if rule.by_size), problem)
        every = np.broadcast_to(whole & sized, [1 if axis.name in _ORDER_AXES else len(axis) for axis in self.axes])
        return every, by_order + sized_by_order

    def _combined(self, rules: Iterable[Rule], problem: Problem) -> tuple[NDArray[np.bool_], list[NDArray[np.bool_]]]:
        whole = [np.ones((1,) * len(self.axes), np.bool_)]
        by_order: list[NDArray[np.bool_]] = []
        for rule in rules:
            (whole if _ORDER_AXES.isdisjoint(rule.axes) else by_order).append(self._broadcast(rule, problem))
        # Smallest first, so that most of the work happens on small arrays.
        return reduce(np.logical_and, sorted(whole, key=lambda part: part.size)), by_order

    def _broadcast(self, rule: Rule, problem: Problem) -> NDArray[np.bool_]:
        """The rule over all combinations of its own axes, with length 1 along the others."""
        choice = SimpleNamespace(**{name: self._along(name) for name in rule.axes})
        allowed = np.asarray(rule.allows(choice, problem, self.arch), np.bool_)
        return allowed.reshape((1,) * (len(self.axes) - allowed.ndim) + allowed.shape)

    def _along(self, name: str) -> NDArray[Any]:
        at = self._position[name]
        values = self.axes[at].values
        kind = object if isinstance(values[0], str) else np.bool_ if isinstance(values[0], bool) else np.int64
        return np.array(values, kind).reshape([-1 if other == at else 1 for other in range(len(self.axes))])

    def _nothing_valid(self, problem: Problem) -> str:
        """What the sizes of the problem removed, and one sentence that says why."""
        name = f"{problem.mnk} {problem.acc} {problem.layout}"
        left = f"no configuration of space '{self.settings.name}' is legal for {name}"
        possible = np.argwhere(self.possible(problem))
        if possible.size == 0:
            return f"{left}, nor for any other sizes: narrow the space less"
        by_size = {rule.name for rule in self.rules if rule.by_size}
        removed = self.removed_by_rule(problem).items()
        causes = ", ".join(f"{name} {count}" for name, count in removed if count and name in by_size)
        return f"{left}; removed by its sizes: {causes}; {self.explain(self.decode(possible[0].tolist()), problem)[0]}"


def _plain(values_by_axis: Mapping[str, tuple[Any, ...]]) -> dict[str, list[Any]]:
    return {name: list(values) for name, values in values_by_axis.items()}
