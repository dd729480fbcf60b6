"""Exact masks and a prior over the legal configurations, axis by axis, for many problems at once.

The configurations that any problem of the same kind may use form one trie, shared by all. A problem is one number per
node: the logarithm of the analytic model's weight of the legal configurations below it, -inf if there are none. So a
problem costs 4 bytes a node, and those held at once :data:`ARENA_BYTES`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from cudal2.errors import NothingValidError, UsageError
from cudal2.problem import Problem
from cudal2.search.analytic import log_weights
from cudal2.space.masks import is_in, shortened
from cudal2.space.space import SearchSpace

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]

#: Numbers of all problems held at once, in bytes; the least recently used problem makes room. A problem of a space with
#: several hundred million configurations takes about 20 MB, and a batch of 128 environments as many problems.
ARENA_BYTES = 2**32


class MaskBank:
    """Exact masks and priors of a list of problems.

    A node stands for the values chosen so far: :meth:`root` for none, :meth:`step` goes down one axis.

    Args:
        problems: What the indices stand for.
        space: The search space.
        allowed: Flat indices of a problem's legal configurations, ascending.
        max_rows: Most problems held at once; by default as many as fit ``ARENA_BYTES``.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        space: SearchSpace,
        allowed: Callable[[Problem], Ints],
        max_rows: int | None = None,
    ) -> None:
        self.problems = tuple(problems)
        self.dims = space.dims
        self.width = max(self.dims)
        self._space = space
        self._allowed = allowed
        self._leaves = _possible(space, self.problems)
        self._children, self._parents = _trie(self._leaves, self.dims)
        # Each level ends with a node for what is not in the trie; it is never legal.
        sizes = [len(table) for table in self._children[1:]] + [len(self._leaves) + 1]
        self._first = np.concatenate(([0], np.cumsum(sizes)))
        nodes = int(self._first[-1])
        rows = min(len(self.problems), max_rows or max(1, ARENA_BYTES // (4 * nodes)))
        self._arena = np.empty((rows, nodes), np.float32)
        self._slots = np.full(len(self.problems), -1, np.int64)
        self._used: OrderedDict[int, int] = OrderedDict()
        self._strides = np.array([int(np.prod(self.dims[axis + 1 :])) for axis in range(len(self.dims))], np.int64)

    def flat(self, actions: Ints) -> Ints:
        """Flat index of each row of an action array.

        Raises:
            UsageError: A row has another number of axes, or an index outside its axis, which would stand for another
                configuration.
        """
        if actions.shape[1:] != (len(self.dims),) or actions.dtype.kind not in "iu":
            raise UsageError(f"actions are whole numbers, one for each of {len(self.dims)} axes")
        if (actions < 0).any() or (actions >= self.dims).any():
            raise UsageError(f"an action lies outside its axis: the axes have {self.dims} values")
        return np.asarray(actions.astype(np.int64) @ self._strides)

    def actions(self, flat: Ints) -> Ints:
        """The inverse of :meth:`flat`."""
        return np.stack(np.unravel_index(flat, self.dims), axis=-1).astype(np.int64)

    def legal(self, index: Ints, flat: Ints) -> Bools:
        """Whether each configuration is legal for its problem."""
        node = np.where(is_in(flat, self._leaves), np.searchsorted(self._leaves, flat), len(self._leaves))
        return np.asarray(np.isfinite(self._arena[self._rows(index), self._first[len(self.dims) - 1] + node]))

    def root(self, size: int) -> Ints:
        """The nodes of a batch where nothing is chosen yet."""
        return np.zeros(size, np.int64)

    def step(self, axis: int, node: Ints, value: Ints) -> Ints:
        """The nodes after choosing a value of an axis."""
        return self._children[axis][node, value]

    def level(self, index: Ints, axis: int, node: Ints) -> Floats:
        """Prior logits of one axis at each node: ``[batch, dims[axis]]``, -inf for what leads to nothing legal."""
        return np.asarray(self._arena[self._rows(index)[:, None], self._first[axis] + self._children[axis][node]])

    def along(self, index: Ints, actions: Ints) -> Floats:
        """Prior logits of every axis along given actions: ``[batch, axes, width]``, -inf beyond an axis's values."""
        priors = np.full((*actions.shape, self.width), -np.inf, np.float32)
        rows, node = self._rows(index)[:, None], self.root(len(index))
        for axis, size in enumerate(self.dims):
            below = self._children[axis][node]
            priors[:, axis, :size] = self._arena[rows, self._first[axis] + below]
            node = below[np.arange(len(node)), actions[:, axis]]
        return priors

    def candidates(self, index: int) -> Ints:
        """Flat indices of one problem's legal configurations, ascending."""
        row = self._arena[self._rows(np.array([index]))[0]]
        return np.asarray(self._leaves[np.isfinite(row[self._first[len(self.dims) - 1] : -1])])

    def _rows(self, index: Ints) -> Ints:
        wanted = np.unique(index).tolist()
        if len(wanted) > len(self._arena):
            raise UsageError(
                f"a batch of {len(wanted)} problems exceeds the {len(self._arena)} masks held at once: lower n_envs "
                "and batch_size, train on fewer shapes, or narrow the space"
            )
        for problem in wanted:
            if self._slots[problem] < 0:
                self._load(problem, set(wanted))
            else:
                self._used.move_to_end(problem)
        return self._slots[index]

    def _load(self, index: int, keep: set[int]) -> None:
        slot = len(self._used)
        if slot == len(self._arena):
            oldest = next(problem for problem in self._used if problem not in keep)
            slot = self._used.pop(oldest)
            self._slots[oldest] = -1
        self._arena[slot] = self._weighted(self.problems[index])
        self._used[index] = slot
        self._slots[index] = slot

    def _weighted(self, problem: Problem) -> Floats:
        """The problem's number of every node.

        Raises:
            NothingValidError: No configuration is legal, so no mask would leave a choice.
        """
        legal = self._allowed(problem)
        if not legal.size:
            raise NothingValidError(
                f"{problem.mnk}: no legal configuration; `cudal2 space --mnk {problem.mnk}` says which rules remove all"
            )
        assert is_in(legal, self._leaves).all(), "a legal configuration is missing from the trie"
        weights: NDArray[np.float64] = np.zeros(len(self._leaves))
        weights[np.searchsorted(self._leaves, legal)] = np.exp(log_weights(self._space, problem, legal))
        levels = [np.append(weights, 0.0)]
        for parents in reversed(self._parents[1:]):
            weights = np.bincount(parents, weights).astype(np.float64)
            levels.insert(0, np.append(weights, 0.0))
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.concatenate(levels)), np.float32)


def _possible(space: SearchSpace, problems: Sequence[Problem]) -> Ints:
    """Flat indices of what is legal for some size, over the accumulators and layouts of the problems."""
    kinds = {(problem.acc, problem.layout, problem.dtype): problem for problem in problems}
    return shortened(np.sort(np.concatenate([space.possible_flat(problem) for problem in kinds.values()])), 1)[0]


def _trie(leaves: Ints, dims: Sequence[int]) -> tuple[list[Ints], list[Ints]]:
    """Per axis: the child of each node by value, and the parent of each child.

    Nodes of a level are numbered by ascending prefix. A value that leads nowhere points at the level's last node, which
    itself leads nowhere.
    """
    children, parents = [], []
    for size in reversed(dims):
        above, parent = shortened(leaves, size)
        table = np.full((len(above) + 1, size), len(leaves), np.int64)
        table[parent, leaves % size] = np.arange(len(leaves))
        children.append(table)
        parents.append(parent)
        leaves = above
    return children[::-1], parents[::-1]
