"""The host half of a kernel that nvcc compiles: it fills the kernel's parameters and says how it is launched.

Parameters of the other families are packed by :mod:`cudal2.launch.plan`; CUTLASS packs its own, which are opaque but
for the words that hold addresses.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cudal2.launch.driver import LaunchError
from cudal2.launch.plan import LaunchPlan
from cudal2.problem import Problem
from cudal2.space.config import Sm90CollectiveConfig

Bytes: TypeAlias = NDArray[np.uint8]

#: ``CollectiveCall::raster``.
_RASTERS = {"heuristic": 0, "m": 1, "n": 2}
#: Fields of the parameters that hold addresses, as :class:`~cudal2.launch.plan.ParamSets` fills them.
_SLOTS = ("a_ptr", "b_ptr", "c_ptr", "tickets", "partials")
#: Where operands and workspace are said to lie until then.
_ADDRESSES = tuple(0x7F12_3400_0000 + 0x0110_0000 * index for index in range(4))
_PARAMS_ALIGNMENT = 128


class _Call(ctypes.Structure):
    """``cudal2::CollectiveCall``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("a", "b", "c", "workspace")),
        *((name, ctypes.c_int32) for name in ("m", "n", "k", "sm_count", "splits", "max_swizzle", "raster")),
        ("params_bytes", ctypes.c_uint32),
    ]


class _Launch(ctypes.Structure):
    """``cudal2::CollectiveLaunch``."""

    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        *((name, ctypes.c_uint32) for name in ("threads", "smem_bytes", "params_bytes")),
        ("slots", ctypes.c_uint32 * len(_SLOTS)),
        ("done_bytes", ctypes.c_uint64),
        ("workspace_bytes", ctypes.c_uint64),
    ]


class HostLibrary:
    """The host half, loaded.

    Args:
        path: The shared library.
        driver: Library of the driver, which the host half calls.

    Raises:
        LaunchError: Either cannot be loaded.
    """

    def __init__(self, path: Path, driver: str = "libcuda.so.1") -> None:
        """Loads both."""
        try:
            ctypes.CDLL(driver, mode=ctypes.RTLD_GLOBAL)
            library = ctypes.CDLL(str(path))
            self._plan = library.cudal2_plan
        except (OSError, AttributeError) as error:
            raise LaunchError(0, "CUDAL2_NOT_LOADED", f"host code {path}: {error}") from error

    def plan(self, config: Sm90CollectiveConfig, problem: Problem, sm_count: int) -> LaunchPlan:
        """The launch of a legal configuration on a problem.

        Raises:
            LaunchError: CUTLASS does not take the problem, or its parameters are not as we know them.
        """
        launch = _Launch()
        self._ask(config, problem, sm_count, launch, np.zeros(0, np.uint8))
        raw = np.zeros(launch.params_bytes + _PARAMS_ALIGNMENT, np.uint8)
        image = raw[-raw.ctypes.data % _PARAMS_ALIGNMENT :][: launch.params_bytes]
        self._ask(config, problem, sm_count, launch, image)
        slots = dict(zip(_SLOTS if launch.done_bytes else _SLOTS[:3], launch.slots, strict=False))
        for name, address in zip(slots, (*_ADDRESSES, _ADDRESSES[3] + launch.done_bytes), strict=False):
            if int(image.view(np.uint64)[slots[name] // 8]) != address:
                raise LaunchError(0, "CUDAL2_PARAMS", f"{name} is not where the host code of {config.name} says")
        struct, scalars = _opaque(image.tobytes(), slots)
        return LaunchPlan(
            grid=launch.grid[0],
            grid_yz=(launch.grid[1], launch.grid[2]),
            block=launch.threads,
            cluster=config.cluster_m,
            cluster_y=config.cluster_n,
            smem_bytes=launch.smem_bytes,
            struct=struct,
            scalars=scalars,
            ticket_bytes=int(launch.done_bytes),
            partial_bytes=int(launch.workspace_bytes),
        )

    def _ask(
        self, config: Sm90CollectiveConfig, problem: Problem, sm_count: int, launch: _Launch, params: Bytes
    ) -> None:
        """Fills the answer, and the parameters where there is room for them."""
        sizes = (problem.m, problem.n, problem.k, sm_count)
        options = (config.split_k, config.max_swizzle, _RASTERS[config.raster], len(params))
        call = _Call(*_ADDRESSES, *sizes, *options)
        code = self._plan(ctypes.byref(call), ctypes.byref(launch), ctypes.c_void_p(params.ctypes.data))
        if code:
            raise LaunchError(code, "CUTLASS", f"{config.name} does not take {problem.mnk}")


def _opaque(image: bytes, slots: dict[str, int]) -> tuple[np.dtype[np.void], dict[str, Any]]:
    """A struct with the addresses as fields and everything between them as others, and what those hold."""
    fields: dict[str, tuple[str, int]] = {name: ("<u8", at) for name, at in slots.items()}
    scalars: dict[str, Any] = {}
    start = 0
    for end in (*sorted(slots.values()), len(image)):
        if end > start:
            fields[f"bytes_{start}"] = (f"V{end - start}", start)
            scalars[f"bytes_{start}"] = np.void(image[start:end])
        start = end + 8
    names = list(fields)
    formats, offsets = [fields[name][0] for name in names], [fields[name][1] for name in names]
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": len(image)}), scalars
