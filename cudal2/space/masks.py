"""Exact masks for choosing a configuration axis by axis: which values still lead to a legal one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def is_in(values: NDArray[np.int64], ascending: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each value, in an array of any shape, is among ascending ones: ``np.isin`` without sorting."""
    if not ascending.size:
        return np.zeros(values.shape, np.bool_)
    return np.asarray(ascending.take(np.searchsorted(ascending, values), mode="clip") == values)


def shortened(prefixes: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Takes the last axis from distinct prefixes, given as ascending flat indices over their axes.

    Args:
        prefixes: The prefixes.
        size: Number of values of their last axis.

    Returns:
        The prefixes without it, distinct and ascending, and which of these each given one extends.
    """
    shorter = prefixes // size
    first = np.append(True, shorter[1:] != shorter[:-1])[: len(shorter)]
    return shorter[first], np.cumsum(first) - 1


class PrefixMasks:
    """Masks of one problem: the prefix trie of its legal configurations.

    Level ``j`` holds the choices of the first ``j + 1`` axes that some legal configuration begins with, as ascending
    flat indices over these axes, so a batch of prefixes costs one search.
    """

    def __init__(self, dims: Sequence[int], legal: NDArray[np.int64]) -> None:
        """Takes the axes' sizes and the ascending flat indices of :meth:`SearchSpace.legal_flat`."""
        self.dims = tuple(dims)
        levels = [legal]
        for size in self.dims[:0:-1]:
            levels.append(shortened(levels[-1], size)[0])
        self._levels = tuple(reversed(levels))

    def mask(self, prefix: NDArray[Any]) -> NDArray[np.bool_]:
        """Values of axis ``j`` that complete each of ``B`` prefixes.

        Args:
            prefix: Integers [B, j]: value indices of the first ``j`` axes.

        Returns:
            Booleans [B, dims[j]]; a prefix that is itself illegal gets a row without any.
        """
        at = prefix.shape[1]
        chosen = np.zeros(len(prefix), np.int64)
        for value, size in zip(prefix.T, self.dims, strict=False):
            chosen = chosen * size + value
        return is_in(chosen[:, None] * self.dims[at] + np.arange(self.dims[at]), self._levels[at])

    def action_masks(self) -> NDArray[np.bool_]:
        """Per-axis masks one after the other, as MultiDiscrete environments expose them.

        They ignore how axes depend on each other: a value is allowed if any legal configuration has it.
        """
        levels = zip(self._levels, self.dims, strict=True)
        return np.concatenate([np.bincount(level % size, minlength=size) > 0 for level, size in levels])
