"""``SearchSpace``: the legal configurations of a problem as ascending flat indices, and all that follows from them.

They are joined rule by rule: the choices made so far are extended by the axes that the next rule reads, and it judges
them at once. So what is held is about what is legal, however large the product of the axes; rules that read few axes
and forbid much come first.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cudal2.arch import SM90, Arch
from cudal2.errors import NothingValidError, UsageError
from cudal2.problem import Problem
from cudal2.settings import SpaceSettings
from cudal2.space.axes import Axis
from cudal2.space.config import KernelConfig
from cudal2.space.families import family_on
from cudal2.space.masks import is_in
from cudal2.space.narrowing import limit_rule, narrowed_axes
from cudal2.space.rule import Rule

Flats = NDArray[np.int64]

#: Flat indices kept, in bytes.
_CACHE_BYTES = 160 * 2**20
#: Partial choices that a rule judges at once: few enough for the processor's cache.
_JOINED_AT_ONCE = 2**16


class _Partial(NamedTuple):
    """Choices on some of the axes, as flat indices with the first value of the others."""

    chosen: frozenset[int]
    flats: Flats


_NO_FLATS = np.zeros(0, np.int64)
_NOTHING_CHOSEN = _Partial(frozenset(), np.zeros(1, np.int64))


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
        kept = _kept(self.rules)
        self._kept_rules, self._later_rules = kept, [rule for rule in self.rules if rule not in kept]
        self._position = {axis.name: at for at, axis in enumerate(self.axes)}
        # Text as objects, which compare with plain text element by element.
        self._values = [
            np.array(axis.values, object if isinstance(axis.values[0], str) else None) for axis in self.axes
        ]
        self._strides = np.cumprod((1, *self.dims[:0:-1]), dtype=np.int64)[::-1]
        self._size_free: dict[tuple[str, ...], _Partial] = {}
        self._legal: OrderedDict[Problem, Flats] = OrderedDict()

    @property
    def dims(self) -> tuple[int, ...]:
        """Number of values of each axis: the ``nvec`` of a MultiDiscrete action."""
        return tuple(len(axis) for axis in self.axes)

    @property
    def total(self) -> int:
        """Number of configurations, legal or not."""
        return math.prod(self.dims)

    @property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of the axes, their values and the limits."""
        limits = [[_plain(limit.when), _plain(limit.only), limit.flops_above] for limit in self.settings.limits]
        axes = [[axis.name, list(axis.values)] for axis in self.axes]
        text = json.dumps({"arch": self.arch.name, "axes": axes, "limits": limits}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def legal_flat(self, problem: Problem) -> Flats:
        """Flat indices of the legal configurations, ascending; read-only and kept."""
        if problem not in self._legal:
            legal = self._ascending(self._narrowed(self._begun(problem), self._later_rules, problem))
            # numpy's permutation shuffles an empty array in place, and so refuses a read-only one.
            legal.setflags(write=not legal.size)
            self._legal[problem] = legal
            while len(self._legal) > 1 and sum(kept.nbytes for kept in self._legal.values()) > _CACHE_BYTES:
                self._legal.popitem(last=False)
        self._legal.move_to_end(problem)
        return self._legal[problem]

    def possible_flat(self, problem: Problem) -> Flats:
        """Flat indices of what only the rules on m, n and k can forbid, ascending: a superset of the legal."""
        return self._ascending(self._possible(problem))

    def explain(self, config: KernelConfig, problem: Problem, by_size: bool | None = None) -> list[str]:
        """Why a configuration is not legal, one sentence per broken rule; empty if it is.

        Args:
            config: Which one.
            problem: What for.
            by_size: As for :meth:`allowed`.
        """
        if config.family != self.family.name:
            return [f"family: {config.family} is not {self.family.name}, the one of this space"]
        reasons = []
        for axis in self.axes:
            value = getattr(config, axis.name)
            if value not in axis.values:
                reasons.append(f"{axis.name} = {value!r} is not in this space: {axis.listing}")
        if any(getattr(config, axis.name) not in axis.values for axis in self.family.axes):
            return reasons  # the rules reckon with values of the full axes only
        asked = (rule for rule in self.rules if by_size is None or rule.by_size == by_size)
        broken = [rule for rule in asked if not np.all(rule.allows(config, problem, self.arch))]
        return reasons + [f"{rule.name}: {rule.reason(config, problem, self.arch)}" for rule in broken]

    def allows(self, configs: Sequence[KernelConfig], problem: Problem) -> NDArray[np.bool_]:
        """Which of many configurations are legal; as :meth:`explain`, without reasons, all at once."""
        held = np.array([self.holds(config) for config in configs], bool)
        flats = np.array([self.flat(configs[at]) for at in np.flatnonzero(held).tolist()], np.int64)
        held[held] = self.allowed(flats, problem)
        return held

    def allowed(self, flats: Flats, problem: Problem, by_size: bool | None = None) -> NDArray[np.bool_]:
        """Which of some configurations, by flat index, are legal; without enumerating the others.

        Args:
            flats: Flat indices, in any order.
            problem: What for.
            by_size: Only the rules that depend on the sizes, or only those that do not; all of them by default.
        """
        kept = np.arange(len(flats))
        for rule in self.rules:
            if by_size is None or rule.by_size == by_size:
                read = {name: self._column(self._position[name], flats[kept], ()) for name in rule.axes}
                kept = kept[np.broadcast_to(rule.allows(SimpleNamespace(**read), problem, self.arch), kept.shape)]
        allowed = np.zeros(len(flats), bool)
        allowed[kept] = True
        return allowed

    def holds(self, config: KernelConfig) -> bool:
        """Whether it is a configuration of this space, legal or not."""
        if config.family != self.family.name:
            return False
        return all(getattr(config, axis.name) in axis.values for axis in self.axes)

    def buildable(self, config: KernelConfig, problem: Problem) -> bool:
        """Whether every rule that reads no run-time axis allows it, so that some run-time choice may be legal."""
        if any(getattr(config, axis.name) not in axis.values for axis in self.family.axes if axis.compile_time):
            return False  # the rules reckon with values of the full axes only
        run_time = {axis.name for axis in self.family.axes if not axis.compile_time}
        fixed = (rule for rule in self.rules if run_time.isdisjoint(rule.axes))
        return all(np.all(rule.allows(config, problem, self.arch)) for rule in fixed)

    def removed_by_rule(self, problem: Problem) -> dict[str, int]:
        """Configurations each rule removes, in rule order and not counting those an earlier rule removed already.

        The counts and ``legal_count`` add up to ``total``.
        """
        partial, left = _NOTHING_CHOSEN, self.total
        removed = dict.fromkeys((rule.name for rule in self.rules), 0)
        for rule in self.rules:
            partial = self._joined(partial, rule, problem)
            now = len(partial.flats) * math.prod(len(self.axes[at]) for at in self._free(partial))
            removed[rule.name] += left - now
            left = now
        return removed

    def legal_count(self, problem: Problem) -> int:
        """Number of legal configurations."""
        return len(self.legal_flat(problem))

    def enumerate(self, problem: Problem) -> Iterator[KernelConfig]:
        """The legal configurations in ascending flat order."""
        for flat in self.legal_flat(problem).tolist():
            yield self.from_flat(flat)

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

    def neighbours(self, config: KernelConfig, among: Flats) -> list[KernelConfig]:
        """The configurations one step away on one axis that are among the given ones (flat, ascending)."""
        action = np.array(self.encode(config))
        steps = np.repeat(np.eye(len(action), dtype=np.int64), 2, axis=0)
        steps[::2] *= -1
        near = action + steps
        near = near[((near >= 0) & (near < self.dims)).all(axis=1)]
        return [self.decode(step) for step in near[is_in(near @ self._strides, among)].tolist()]

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
        """Index in C order over the axes.

        Raises:
            UsageError: A field has a value that is not on its axis.
        """
        return int(np.ravel_multi_index(self.encode(config), self.dims))

    def axis(self, name: str) -> Axis:
        """The axis of this name, which the family has."""
        return next(axis for axis in self.axes if axis.name == name)

    def stride(self, name: str) -> int:
        """By how much one value further on an axis raises the flat index."""
        return int(self._strides[self._position[name]])

    def from_flat(self, flat: int) -> KernelConfig:
        """The inverse of :meth:`flat`."""
        return self.decode([int(at) for at in np.unravel_index(flat, self.dims)])

    def _possible(self, problem: Problem) -> _Partial:
        """What the size-free rules leave, over the axes they read."""
        later = (rule for rule in self._later_rules if not rule.by_size)
        return self._narrowed(self._begun(problem), later, problem)

    def _begun(self, problem: Problem) -> _Partial:
        """What the size-free rules leave that do not only multiply, over the axes they read; kept."""
        key = (problem.acc, problem.layout, problem.dtype)
        if key not in self._size_free:
            self._size_free[key] = self._narrowed(_NOTHING_CHOSEN, self._kept_rules, problem)
        return self._size_free[key]

    def _narrowed(self, partial: _Partial, rules: Iterable[Rule], problem: Problem) -> _Partial:
        """What rules leave of partial choices."""
        for rule in rules:
            partial = self._joined(partial, rule, problem)
        return partial

    def _joined(self, partial: _Partial, rule: Rule, problem: Problem) -> _Partial:
        """Extends partial choices by the axes that a rule reads and keeps what it allows."""
        read = [self._position[name] for name in rule.axes]
        new = [at for at in read if at not in partial.chosen]
        rows = max(1, _JOINED_AT_ONCE // math.prod(len(self.axes[at]) for at in new))
        parts = []
        for start in range(0, len(partial.flats), rows):
            flats = partial.flats[start : start + rows]
            columns = {self.axes[at].name: self._column(at, flats, new) for at in read}
            allowed = rule.allows(SimpleNamespace(**columns), problem, self.arch)
            grid = self._extended(flats, new)
            parts.append(grid[np.broadcast_to(allowed, grid.shape)])
        return _Partial(partial.chosen.union(new), np.concatenate([_NO_FLATS, *parts]))

    def _column(self, at: int, flats: Flats, new: Sequence[int]) -> NDArray[Any]:
        """Values of one axis, to broadcast over partial choices and the axes that extend them."""
        values = self._values[at]
        if at in new:
            return values.reshape([-1 if other == at else 1 for other in (None, *new)])
        chosen = values[flats // self._strides[at] % len(values)]
        return np.asarray(chosen.reshape(-1, *(1 for _ in new)))

    def _extended(self, flats: Flats, axes: Iterable[int]) -> Flats:
        """All values of some axes added: one dimension more for each."""
        steps = (np.arange(self.dims[at]) * self._strides[at] for at in axes)
        return np.asarray(reduce(np.add.outer, steps, flats))

    def _ascending(self, partial: _Partial) -> Flats:
        """All configurations that extend partial choices."""
        free, last = self._free(partial), max(partial.chosen, default=-1)
        ahead = np.sort(self._extended(partial.flats, (at for at in free if at < last)), axis=None)
        # Axes behind all chosen ones keep the order, and are not worth sorting.
        return self._extended(ahead, (at for at in free if at > last)).reshape(-1)

    def _free(self, partial: _Partial) -> list[int]:
        """The axes not chosen yet."""
        return [at for at in range(len(self.axes)) if at not in partial.chosen]

    def _nothing_valid(self, problem: Problem) -> str:
        """What the sizes of the problem removed, and one sentence that says why."""
        name = f"{problem.mnk} {problem.precision} {problem.layout}"
        left = f"no configuration of space '{self.settings.name}' is legal for {name}"
        possible = self._possible(problem).flats
        if possible.size == 0:
            return f"{left}, nor for any other sizes: narrow the space less"
        by_size = {rule.name for rule in self.rules if rule.by_size}
        removed = self.removed_by_rule(problem).items()
        causes = ", ".join(f"{name} {count}" for name, count in removed if count and name in by_size)
        reason = self.explain(self.from_flat(int(possible.min())), problem)[0]
        return f"{left}; removed by its sizes: {causes}; {reason}"


def _kept(rules: Iterable[Rule]) -> list[Rule]:
    """The rules that do not depend on the sizes, but for the last ones that bring in axes: they would only multiply."""
    kept = [rule for rule in rules if not rule.by_size]
    while kept and not set(kept[-1].axes).issubset(name for rule in kept[:-1] for name in rule.axes):
        kept.pop()
    return kept


def _plain(values_by_axis: Mapping[str, tuple[Any, ...]]) -> dict[str, list[Any]]:
    return {name: list(values) for name, values in values_by_axis.items()}
