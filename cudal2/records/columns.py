"""Arrow columns as numpy arrays: the vectorised steps by which a recording loads in well under a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def mapped(table: pa.Table, name: str, code_of: Mapping[Any, int]) -> NDArray[np.int64]:
    """A column's values as codes, -1 for null and for any other value."""
    encoded = table.column(name).combine_chunks()
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    codes = np.array([*(code_of.get(value, -1) for value in encoded.dictionary.to_pylist()), -1], np.int64)
    positions = np.asarray(encoded.indices.cast(pa.int64()).fill_null(len(codes) - 1))
    return np.asarray(codes[positions])


def numbers(table: pa.Table, name: str) -> NDArray[np.float64]:
    """A column of numbers or booleans, null as NaN."""
    return np.asarray(table.column(name).cast(pa.float64()).to_numpy(), np.float64)


def list_medians(table: pa.Table, name: str) -> NDArray[np.float32]:
    """Median of each row's list, NaN where it is empty."""
    lists = table.column(name).combine_chunks()
    starts = np.asarray(lists.offsets)[:-1]
    lengths = np.asarray(lists.value_lengths())
    values = np.asarray(lists.values, np.float64)
    medians = np.full(len(lengths), np.nan, np.float32)
    for length in np.unique(lengths[lengths > 0]):
        rows = np.flatnonzero(lengths == length)
        medians[rows] = np.median(values[starts[rows, None] + np.arange(length)], axis=1)
    return medians


class Cells:
    """Which (problem, configuration) pairs have a value, and where it is; reads like an array that is -1 elsewhere.

    A space of millions of configurations of which a few hundred are recorded costs what is recorded.

    Args:
        shape: Problems and configurations.
        rows: Problem of each pair.
        columns: Flat configuration of each pair.
        positions: Where its value is; by default the pairs' own order.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        rows: NDArray[np.int64],
        columns: NDArray[np.int64],
        positions: NDArray[np.int64] | None = None,
    ) -> None:
        self.shape = shape
        keys = rows.astype(np.int64) * shape[1] + columns
        order = np.argsort(keys, kind="stable")
        # One key that no pair has, so that a search always lands on something.
        self._keys = np.append(keys[order], np.iinfo(np.int64).max)
        self._positions = np.append(order if positions is None else positions[order], -1)

    def __getitem__(self, at: tuple[Any, Any]) -> NDArray[np.int64]:
        """Positions of pairs, -1 where nothing is recorded; rows and columns broadcast."""
        keys = np.asarray(at[0], np.int64) * self.shape[1] + np.asarray(at[1], np.int64)
        found = np.searchsorted(self._keys, keys)
        return np.where(self._keys[found] == keys, self._positions[found], -1)

    def pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Row, column and position of every pair, sorted by row and column."""
        rows, columns = np.divmod(self._keys[:-1], self.shape[1])
        return rows, columns, self._positions[:-1]

    def row(self, row: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Columns, ascending, and positions of one row."""
        start, stop = np.searchsorted(self._keys, (row * self.shape[1], (row + 1) * self.shape[1]))
        return self._keys[start:stop] - row * self.shape[1], self._positions[start:stop]


def or_missing(values: NDArray[Any], missing: float) -> NDArray[np.float32]:
    """The values with one more at the end, which is what index -1 reads."""
    return np.append(values, missing).astype(np.float32)
