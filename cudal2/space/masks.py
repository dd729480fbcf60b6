"""Exact masks for choosing a configuration axis by axis: which values still lead to a legal one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class PrefixMasks:
    """Masks of one problem, by cumulative reduction of its dense validity.

    Level ``j`` holds, for every choice of the first ``j`` axes, the values of axis ``j`` that some legal configuration
    has. It is the prefix trie of the legal configurations as arrays, so a batch of prefixes costs one gather.
    """

    def __init__(self, validity: NDArray[np.bool_]) -> None:
        """Reduces the dense validity of :meth:`SearchSpace.validity` once."""
        legal = np.flatnonzero(validity)
        levels = [validity]
        # From the few that are legal: reducing the dense array axis by axis would read all of it.
        for size, shape in ((np.prod(validity.shape[j:]), validity.shape[:j]) for j in range(validity.ndim - 1, 0, -1)):
            level = np.zeros(shape, np.bool_)
            level.ravel()[legal // size] = True
            levels.append(level)
        self._levels = tuple(reversed(levels))

    @property
    def dims(self) -> tuple[int, ...]:
        """Number of values of each axis."""
        return tuple(self._levels[-1].shape)

    def mask(self, prefix: NDArray[Any]) -> NDArray[np.bool_]:
        """Values of axis ``j`` that complete each of ``B`` prefixes.

        Args:
            prefix: Integers [B, j]: value indices of the first ``j`` axes.

        Returns:
            Booleans [B, dims[j]]; a prefix that is itself illegal gets a row without any.
        """
        level = self._levels[prefix.shape[1]]
        if prefix.shape[1] == 0:
            return np.broadcast_to(level, (prefix.shape[0], *level.shape))
        chosen: NDArray[np.bool_] = level[tuple(prefix.T)]
        return chosen

    def action_masks(self) -> NDArray[np.bool_]:
        """Per-axis masks one after the other, as MultiDiscrete environments expose them.

        They ignore how axes depend on each other: a value is allowed if any legal configuration has it.
        """
        legal = self._levels[-1]
        every = range(legal.ndim)
        return np.concatenate([legal.any(axis=tuple(other for other in every if other != axis)) for axis in every])
