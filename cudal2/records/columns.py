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


def dense_cells(shape: tuple[int, int], rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.int32]:
    """int32 [shape]: the position of each (row, column) pair in its list, -1 elsewhere."""
    cells = np.full(shape, -1, np.int32)
    cells[rows, columns] = np.arange(len(rows), dtype=np.int32)
    return cells


def or_missing(values: NDArray[Any], missing: float) -> NDArray[np.float32]:
    """The values with one more at the end, which is what index -1 reads."""
    return np.append(values, missing).astype(np.float32)
