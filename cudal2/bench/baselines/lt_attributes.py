"""What is inside cuBLASLt's 64 opaque bytes: an algorithm's capabilities, and its configuration read and written.

Needs the bindings' module only, no handle and no GPU work.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudal2.bench.baselines.enumeration import Configuration

#: ``sizeof(cublasLtMatmulAlgo_t)``.
ALGORITHM_BYTES = 64
#: Configuration attributes by the library's names, in the order in which they are set; the algorithm's number is apart.
_ATTRIBUTES = (
    "TILE_ID", "SPLITK_NUM", "REDUCTION_SCHEME", "CTA_SWIZZLING", "CUSTOM_OPTION", "STAGES_ID", "INNER_SHAPE_ID",
    "CLUSTER_SHAPE_ID",
)  # fmt: skip
#: cublasLtReductionScheme_t: in place, compute type, output type.
_REDUCTIONS = (1, 2, 4)
#: Splits of K that are tried: all small ones, then coarser; no part of K gets shorter than ``_SHORTEST_PART``.
_SPLITS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48, 64)
_SHORTEST_PART = 64
_TWO_SIZES = re.compile(r"(\d+)x(\d+|AUTO)")
_ENUMERATIONS = {"TILE_ID": "MatmulTile", "STAGES_ID": "MatmulStages", "CLUSTER_SHAPE_ID": "ClusterShape"}

Data = NDArray[np.uint8]
Options = dict[str, dict[Hashable, tuple[float, ...]]]


class LtAttributes:
    """Reads and writes attributes of algorithms.

    Args:
        lt: The ``cublasLt`` binding module.
    """

    def __init__(self, lt: Any) -> None:
        self._lt = lt
        # One buffer per attribute, made once: thousands of configurations are written.
        self._fields: dict[str, tuple[int, NDArray[Any], int]] = {}
        for name in ("ID", *_ATTRIBUTES):
            number = int(lt.MatmulAlgoConfigAttribute[name])
            buffer = np.zeros(1, lt.get_matmul_algo_config_attribute_dtype(number))
            self._fields[name] = (number, buffer, buffer.ctypes.data)
        self._written = np.zeros(1, np.uint64)

    def configuration(self, data: Data) -> Configuration:
        """What is set in an algorithm."""
        get = {name: self._get(data, name) for name in self._fields}
        return Configuration(
            id=get["ID"],
            cluster=get["CLUSTER_SHAPE_ID"],
            split=(get["SPLITK_NUM"], get["REDUCTION_SCHEME"]),
            tile=get["TILE_ID"],
            stages=get["STAGES_ID"],
            custom=get["CUSTOM_OPTION"],
            swizzle=get["CTA_SWIZZLING"],
            inner=get["INNER_SHAPE_ID"],
        )

    def configure(self, data: Data, configuration: Configuration) -> bool:
        """Sets everything in an algorithm of that number; whether the library took it."""
        for name, value in _values(configuration).items():
            number, buffer, pointer = self._fields[name]
            buffer[0] = value
            try:
                self._lt.matmul_algo_config_set_attribute(data.ctypes.data, number, pointer, buffer.nbytes)
            except self._lt.cuBLASLtError:
                if value:  # zero is what an attribute unknown to this version stands at
                    return False
        return True

    def options(self, data: Data, k: int, reductions: int) -> Options:
        """What an algorithm can be set to, by the axes of :class:`Configuration`.

        Args:
            data: The algorithm as initialised.
            k: Depth of the problem, which bounds its split.
            reductions: Mask of the reduction schemes allowed.
        """
        lt = self._lt
        custom, swizzle = (sum(self._capability(data, name)) for name in ("CUSTOM_OPTION_MAX", "CTA_SWIZZLING_SUPPORT"))
        splits: dict[Hashable, tuple[float, ...]] = {(1, 0): (0.0, 0.0)}
        if any(self._capability(data, "SPLITK_SUPPORT")):
            mask = sum(self._capability(data, "REDUCTION_SCHEME_MASK")) & reductions
            schemes = [scheme for scheme in _REDUCTIONS if scheme & mask]
            parts = [split for split in _SPLITS if split * _SHORTEST_PART <= k]
            splits |= {(part, scheme): (math.log2(part), scheme / 8) for part in parts for scheme in schemes}
        return {
            # No capability lists cluster and inner shapes: the library's check decides.
            "cluster": _coordinates(lt.ClusterShape, map(int, lt.ClusterShape)),
            "split": splits,
            "tile": _coordinates(lt.MatmulTile, self._capabilities(data, "TILE_IDS")),
            "stages": _coordinates(lt.MatmulStages, self._capabilities(data, "STAGES_IDS")),
            "custom": _numbers(custom),
            "swizzle": _numbers(swizzle),
            "inner": _numbers(max(map(int, lt.MatmulInnerShape))),
        }

    def describe(self, configuration: Configuration) -> str:
        """A configuration in the library's words, for records."""
        values = {"ID": configuration.id, **_values(configuration)}
        named = {name: self._value_name(name, values[name]) for name in values}
        order = sorted(named, key=lambda name: self._fields[name][0])
        return " ".join(f"{name.lower()}={named[name]}" for name in order)

    def _get(self, data: Data, name: str) -> int:
        """A configuration attribute; 0 where this library version does not know it."""
        number, buffer, pointer = self._fields[name]
        try:
            self._lt.matmul_algo_config_get_attribute(
                data.ctypes.data, number, pointer, buffer.nbytes, self._written.ctypes.data
            )
        except self._lt.cuBLASLtError:
            return 0
        return int(buffer[0])

    def _capability(self, data: Data, name: str, count: int = 1) -> list[int]:
        """A capability of so many numbers; empty where this library version does not know it."""
        number = int(self._lt.MatmulAlgoCapAttribute[name])
        values = np.zeros(count, self._lt.get_matmul_algo_cap_attribute_dtype(number))
        try:
            self._lt.matmul_algo_cap_get_attribute(
                data.ctypes.data, number, values.ctypes.data if count else 0, values.nbytes, self._written.ctypes.data
            )
        except self._lt.cuBLASLtError:
            return []
        return [int(value) for value in values]

    def _capabilities(self, data: Data, name: str) -> list[int]:
        """A capability that is a list: its size is asked for first. ``[0]``, the library's "undefined", for none."""
        self._written[0] = 0
        self._capability(data, name, 0)
        number = int(self._lt.MatmulAlgoCapAttribute[name])
        size = np.dtype(self._lt.get_matmul_algo_cap_attribute_dtype(number)).itemsize
        return self._capability(data, name, int(self._written[0]) // size) or [0]

    def _value_name(self, attribute: str, value: int) -> str:
        """Readable name where the library has an enumeration for it; newer libraries may know values it lacks."""
        enum = getattr(self._lt, _ENUMERATIONS.get(attribute, ""), None)
        try:
            return str(enum(value).name) if enum else str(value)
        except ValueError:
            return str(value)


def _values(configuration: Configuration) -> dict[str, int]:
    values = (
        configuration.tile, *configuration.split, configuration.swizzle, configuration.custom, configuration.stages,
        configuration.inner, configuration.cluster,
    )  # fmt: skip
    return dict(zip(_ATTRIBUTES, values, strict=True))


def _numbers(most: int) -> dict[Hashable, tuple[float, ...]]:
    return {value: (float(value),) for value in range(most + 1)}


def _coordinates(enum: Any, values: Iterable[int]) -> dict[Hashable, tuple[float, ...]]:
    """Places of values of an enumeration; what it does not name lies at the origin."""
    places = _places(enum)
    return {value: places.get(value, (0.0, 0.0)) for value in values}


@functools.lru_cache
def _places(enum: Any) -> dict[int, tuple[float, ...]]:
    """Logarithms of the two sizes in the names of an enumeration: TILE_128x64, SHAPE_2x1x1, STAGES_64xAUTO.

    Kept: there are hundreds of names, and every algorithm of every problem asks for them.
    """
    found = {int(member): _TWO_SIZES.search(str(member.name)) for member in enum}
    return {value: _logarithms(*match.groups()) for value, match in found.items() if match}


def _logarithms(*sizes: str) -> tuple[float, ...]:
    return tuple(0.0 if size == "AUTO" else math.log2(int(size)) for size in sizes)
