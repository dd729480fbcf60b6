"""Encodes TMA tensor maps by the driver, for many buffers of one geometry at a time.

Through ctypes: the driver wants the map 64-byte aligned, which objects of the Python bindings are not.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from cudal2.launch.driver import LaunchError, error_name
from cudal2.launch.plan import MAP_WORDS, MapSpec, Words
from cudal2.problem import Dtype

#: CU_TENSOR_MAP_DATA_TYPE_FLOAT16 and _BFLOAT16 (CUDA driver API, CUtensorMapDataType).
DATA_TYPES: dict[Dtype, int] = {"fp16": 6, "bf16": 9}
_INTERLEAVE_NONE = 0
_SWIZZLES = {32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle by span in bytes
_L2_PROMOTIONS = {64: 1, 128: 2, 256: 3}  # CUtensorMapL2promotion by bytes
_OOB_ZEROS = 0  # CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
_MAP_ALIGNMENT = 64
_RANK = 2


@functools.cache
def _encode_tiled() -> Any:
    function = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    u64s, u32s = ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint32)
    function.argtypes = [
        ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, u64s, u64s, u32s, u32s,
        ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int,
    ]  # fmt: skip
    function.restype = ctypes.c_int
    return function


def modes(spec: MapSpec) -> tuple[int, int, int, int]:
    """Interleave, swizzle, L2 promotion and out-of-bounds fill, as ``cuTensorMapEncodeTiled`` takes them."""
    return _INTERLEAVE_NONE, _SWIZZLES[spec.swizzle_bytes], _L2_PROMOTIONS[spec.promotion_bytes], _OOB_ZEROS


def encode(spec: MapSpec, address: int) -> Words:
    """One tensor map as 16 words.

    Raises:
        LaunchError: The driver refused; the legality rules should have.
    """
    raw = np.zeros(MAP_WORDS * 8 + _MAP_ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % _MAP_ALIGNMENT
    code = _encode_tiled()(
        raw.ctypes.data + offset,
        DATA_TYPES[spec.dtype],
        _RANK,
        address,
        (ctypes.c_uint64 * 2)(spec.columns, spec.rows),
        (ctypes.c_uint64 * 1)(spec.row_bytes),
        (ctypes.c_uint32 * 2)(spec.box_columns, spec.box_rows),
        (ctypes.c_uint32 * 2)(1, 1),
        *modes(spec),
    )
    if code:
        raise LaunchError(code, error_name(code), f"cuTensorMapEncodeTiled of {spec} at {address:#x}")
    return raw[offset : offset + MAP_WORDS * 8].view(np.uint64)


def encode_all(spec: MapSpec, addresses: Words) -> Words:
    """Maps of equal matrices at several addresses, one row each.

    The map is opaque, but on sm_90 its first word is the address. Where the first two and the last map bear that out,
    the others are filled in without asking the driver: 1 us in all instead of 3 us each.
    """
    maps = np.tile(encode(spec, int(addresses[0])), (len(addresses), 1))
    maps[:, 0] = addresses
    for index in {0, min(1, len(addresses) - 1), len(addresses) - 1}:
        if not np.array_equal(maps[index], encode(spec, int(addresses[index]))):
            return np.stack([encode(spec, int(address)) for address in addresses])
    return maps


class MapCache:
    """Encoded maps of one problem's buffers; candidates with the same box share them."""

    def __init__(self) -> None:
        """Starts empty."""
        self._maps: dict[tuple[MapSpec, int, int, int], Words] = {}

    def maps(self, spec: MapSpec, addresses: Words) -> Words:
        """:func:`encode_all`, once per geometry and arena."""
        key = (spec, len(addresses), int(addresses[0]), int(addresses[-1]))
        if key not in self._maps:
            self._maps[key] = encode_all(spec, addresses)
        return self._maps[key]
