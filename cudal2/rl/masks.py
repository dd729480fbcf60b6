"""Which values of each axis still lead to a legal configuration, for many problems at once.

Level ``j`` of a problem holds one bit per prefix ``a_0..a_j``: whether any legal configuration starts with it. All
levels of one problem are one packed row; rows live in a bounded arena and the least recently used problem makes room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from cudal2.errors import NothingValidError, UsageError
from cudal2.problem import Problem

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Arena size. A full ``sm90_ws`` problem takes about 1 MB, a recorded subspace a few kB.
ARENA_BYTES = 2**30


class MaskBank:
    """Exact masks of a list of problems.

    Args:
        problems: What the indices stand for.
        dims: Values per axis.
        allowed: Dense validity of a problem, of shape ``dims``.
        max_rows: Most problems held at once; by default as many as fit ``ARENA_BYTES``.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        dims: Sequence[int],
        allowed: Callable[[Problem], Bools],
        max_rows: int | None = None,
    ) -> None:
        self.problems = tuple(problems)
        self.dims = tuple(dims)
        self.width = max(self.dims)
        self._allowed = allowed
        cells = np.cumprod(self.dims, dtype=np.int64)
        # Levels start on a byte, so that each is packed on its own.
        level_bytes = -(-cells // 8)
        self._level_bits = np.concatenate(([0], np.cumsum(level_bytes)[:-1])) * 8
        row_bytes = int(level_bytes.sum())
        rows = min(len(self.problems), max_rows or max(1, ARENA_BYTES // row_bytes))
        self._arena = np.zeros((rows, row_bytes), np.uint8)
        self._slots = np.full(len(self.problems), -1, np.int64)
        self._used: OrderedDict[int, int] = OrderedDict()
        self._strides = np.array([int(np.prod(self.dims[j + 1 :])) for j in range(len(self.dims))], np.int64)
        self._value = np.arange(self.width, dtype=np.int64)
        self._real = self._value[None, :] < np.asarray(self.dims)[:, None]

    def flat(self, actions: Ints) -> Ints:
        """Flat index of each row of an action array."""
        return actions @ self._strides

    def actions(self, flat: Ints) -> Ints:
        """The inverse of :meth:`flat`."""
        return np.stack(np.unravel_index(flat, self.dims), axis=-1).astype(np.int64)

    def legal(self, index: Ints, flat: Ints) -> Bools:
        """Whether each configuration is legal for its problem."""
        return self._bits(self._rows(index), self._level_bits[-1] + flat)

    def level(self, index: Ints, axis: int, prefix: Ints) -> Bools:
        """Mask of one axis: ``[batch, dims[axis]]``, given the flat index of the axes before it."""
        size = self.dims[axis]
        bits = self._level_bits[axis] + prefix[:, None] * size + self._value[None, :size]
        return self._bits(self._rows(index)[:, None], bits)

    def along(self, index: Ints, actions: Ints) -> Bools:
        """Masks of every axis along given actions: ``[batch, axes, width]``, ``False`` beyond an axis's values."""
        prefix = np.zeros_like(actions)
        for axis in range(1, len(self.dims)):
            prefix[:, axis] = prefix[:, axis - 1] * self.dims[axis - 1] + actions[:, axis - 1]
        first = self._level_bits[None, :] + prefix * np.asarray(self.dims)[None, :]
        value = np.minimum(self._value[None, :], np.asarray(self.dims)[:, None] - 1)
        return self._bits(self._rows(index)[:, None, None], first[:, :, None] + value[None]) & self._real[None]

    def candidates(self, index: int) -> Ints:
        """Flat indices of one problem's legal configurations, ascending."""
        row = self._arena[self._rows(np.array([index]))[0], self._level_bits[-1] // 8 :]
        return np.flatnonzero(np.unpackbits(row, count=int(np.prod(self.dims)), bitorder="little"))

    def _bits(self, rows: Ints, bits: Ints) -> Bools:
        bytes_read = self._arena[rows, bits >> 3]
        return np.asarray((bytes_read >> (bits & 7).astype(np.uint8)) & 1, np.bool_)

    def _rows(self, index: Ints) -> Ints:
        wanted = np.unique(index)
        if len(wanted) > len(self._arena):
            raise UsageError(
                f"a batch of {len(wanted)} problems exceeds the {len(self._arena)} masks held at once: lower batch_size"
            )
        for problem in wanted.tolist():
            if self._slots[problem] < 0:
                self._load(problem, set(wanted.tolist()))
            else:
                self._used.move_to_end(problem)
        return self._slots[index]

    def _load(self, index: int, keep: set[int]) -> None:
        slot = len(self._used)
        if slot == len(self._arena):
            oldest = next(problem for problem in self._used if problem not in keep)
            slot = self._used.pop(oldest)
            self._slots[oldest] = -1
        self._arena[slot] = pack_levels(self._allowed(self.problems[index]), self.problems[index])
        self._used[index] = slot
        self._slots[index] = slot


def pack_levels(validity: Bools, problem: Problem) -> NDArray[np.uint8]:
    """All prefix levels of one problem, packed.

    Raises:
        NothingValidError: No configuration is legal, so no mask would leave a choice.
    """
    if not validity.any():
        raise NothingValidError(
            f"{problem.mnk}: no legal configuration; `cudal2 space --mnk {problem.mnk}` says which rule removes them"
        )
    levels: list[Bools] = [validity]
    for _ in range(validity.ndim - 1):
        levels.insert(0, np.asarray(levels[0].any(axis=-1)))
    return np.concatenate([np.packbits(level.ravel(), bitorder="little") for level in levels])
