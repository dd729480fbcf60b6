"""What a foreign kernel is judged on: memory of the judge's that another process can map, and nothing beside it."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch
from cuda.bindings import driver as cuda

from cudal2.bench.inputs import BufferSets
from cudal2.launch.driver import LaunchError, check

#: A handle opens the whole block that the driver cut an allocation from; whole blocks hold nobody else's data.
_BLOCK_BYTES = 2**21
_ELEMENT_BYTES = 2
_HANDLE_BYTES = 64


class Platform(Protocol):
    """Memory that is shared, and the device around it; tests put host memory in its place."""

    @property
    def device(self) -> torch.device:
        """Where tensors live."""

    @property
    def command(self) -> list[str]:
        """Program of the foreign process."""

    @property
    def options(self) -> dict[str, Any]:
        """What its device is made from."""

    def empty(self, shape: tuple[int, int]) -> torch.Tensor:
        """fp16, or room for any other two-byte elements, in an allocation of its own."""

    def handle(self, tensor: torch.Tensor) -> tuple[str, int]:
        """What another process opens the allocation by, and where in it the tensor begins, in bytes."""

    def synchronize(self) -> None:
        """Waits for the judge's work."""

    def free_bytes(self) -> int:
        """Free memory of the whole device."""

    def left_behind(self) -> str:
        """What of a foreign kernel's settings reaches the judge; empty if nothing; put right."""

    def close(self) -> None:
        """Frees all of it."""


class CudaPlatform:
    """Allocations of the driver's, outside torch's pools, and CUDA IPC.

    Args:
        device: The GPU.
        flush_bytes: What the other process reads through L2 before a replay.
        torch_too: Whether the other process loads torch.
    """

    def __init__(self, device: torch.device, flush_bytes: int, torch_too: bool) -> None:
        self.device = device
        self.command = [sys.executable, "-m", "cudal2.bench.foreign.child"]
        self.options = {"device": device.index, "flush_bytes": flush_bytes, "torch": torch_too}
        self._bases: list[int] = []
        self._persisting_bytes = self._persisting()

    def empty(self, shape: tuple[int, int]) -> torch.Tensor:
        """fp16, uninitialised.

        Raises:
            torch.OutOfMemoryError: It does not fit.
        """
        size_bytes = math.ceil(math.prod(shape) * _ELEMENT_BYTES / _BLOCK_BYTES) * _BLOCK_BYTES
        try:
            base = int(check(cuda.cuMemAlloc(size_bytes), "cuMemAlloc"))
        except LaunchError:
            torch.cuda.empty_cache()
            try:
                base = int(check(cuda.cuMemAlloc(size_bytes), "cuMemAlloc"))
            except LaunchError as error:
                raise torch.OutOfMemoryError(f"{size_bytes} bytes to share with a foreign kernel: {error}") from error
        self._bases.append(base)
        return torch.as_tensor(_Described(base, shape), device=self.device)

    def handle(self, tensor: torch.Tensor) -> tuple[str, int]:
        """The IPC handle in hexadecimal, and the offset."""
        pointer = tensor.data_ptr()
        base = next(base for base in reversed(sorted(self._bases)) if base <= pointer)
        ipc = check(cuda.cuIpcGetMemHandle(base), "cuIpcGetMemHandle")
        return ctypes.string_at(int(ipc.getPtr()), _HANDLE_BYTES).hex(), pointer - base

    def synchronize(self) -> None:
        """Waits for this process's work on the device; it cannot wait for another's."""
        torch.cuda.synchronize(self.device)

    def free_bytes(self) -> int:
        """As the driver counts it, for all processes together."""
        return int(check(cuda.cuMemGetInfo(), "cuMemGetInfo")[0])

    def left_behind(self) -> str:
        """A change of the judge's own persisting-L2 limit; persisting lines are reset either way."""
        now = self._persisting()
        check(cuda.cuCtxResetPersistingL2Cache(), "cuCtxResetPersistingL2Cache")
        if now == self._persisting_bytes:
            return ""
        limit = cuda.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE
        check(cuda.cuCtxSetLimit(limit, self._persisting_bytes), "cuCtxSetLimit")
        return f"the judge's persisting-L2 limit at {now} bytes, which was {self._persisting_bytes}"

    def close(self) -> None:
        """The other process must be gone."""
        self.synchronize()
        for base in self._bases:
            cuda.cuMemFree(base)
        self._bases.clear()

    def _persisting(self) -> int:
        return int(check(cuda.cuCtxGetLimit(cuda.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE), "cuCtxGetLimit"))


class _Described:
    """Memory as torch takes it over without copying."""

    def __init__(self, pointer: int, shape: tuple[int, int]) -> None:
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "<f2", "data": (pointer, False), "version": 3}


def arena_of(sets: BufferSets, handle: Callable[[torch.Tensor], tuple[str, int]]) -> dict[str, Any]:
    """The buffer sets as the other process maps them: per operand a handle, an offset and a pitch, and the count."""
    places: dict[str, Any] = {"count": sets.count}
    for name, first, pointers in (
        ("a", sets.a(0), sets.a_pointers),
        ("b", sets.b(0), sets.b_pointers),
        ("c", sets.c(0), sets.c_pointers),
    ):
        opened, offset = handle(first)
        places[name] = {"handle": opened, "offset": offset, "pitch": int(pointers[1]) - int(pointers[0])}
    return places
