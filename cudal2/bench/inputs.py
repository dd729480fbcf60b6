"""Operands on the device: seeded data, rotating buffer sets, poisoned outputs, red zones.

Decides what the data is and where it lies; what a right answer is belongs to ``correctness``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from cudal2.problem import Dtype, Layout, Problem

#: 256 bytes: the most any library assumes of a pointer.
_PITCH_ELEMENTS = 128
_ELEMENT_BYTES = 2
#: A bit pattern (203.25 in fp16, 1.5e16 in bf16) that no test data contains: red zones hold it before and after.
_SENTINEL = 0x5A5A

TORCH_DTYPES: dict[Dtype, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}


def set_bytes(problem: Problem) -> int:
    """Device memory of one buffer set."""
    sizes = (problem.m * problem.k, problem.n * problem.k, problem.m * problem.n)
    return sum(_pitch(size) for size in sizes) * _ELEMENT_BYTES


def rotation_count(problem: Problem, l2_bytes: int, l2_multiple: float, most_launches: int) -> int:
    """Buffer sets to rotate over: enough to exceed ``l2_multiple`` L2 sizes, at most one per launch, at least two."""
    enough = math.ceil(l2_multiple * l2_bytes / set_bytes(problem)) + 1
    return max(2, min(enough, most_launches))


def most_launches(replay_ms: float, shortest_us: float = 1.3) -> int:
    """Launches that fit one replay: back-to-back kernels start at best every ``shortest_us`` (1.3 us in a graph)."""
    return max(1, math.ceil(replay_ms * 1e3 / shortest_us))


class BufferSets:
    """``count`` sets of A, B and C in three arenas; A and B hold N(0,1) data, C starts as NaN.

    Args:
        problem: Sizes and layout of B.
        count: Sets.
        device: Where they live.
        seed: Seed of the data; equal seeds give equal data on equal devices.
        guard_elements: Red zone before and after each C, for checks; none for timing.
        allocate: Makes tensors of a shape, two bytes an element; torch's allocator by default.

    Raises:
        torch.OutOfMemoryError: They do not fit.
    """

    def __init__(
        self,
        problem: Problem,
        count: int,
        device: torch.device | str,
        seed: int = 0,
        guard_elements: int = 0,
        allocate: Callable[[tuple[int, int]], torch.Tensor] | None = None,
    ) -> None:
        """Allocates and fills."""
        self.problem = problem
        self.count = count
        self._guard = _pitch(guard_elements)
        dtype = TORCH_DTYPES[problem.dtype]
        make = allocate or (lambda shape: torch.empty(shape, dtype=dtype, device=device))
        sizes = (problem.m * problem.k, problem.k * problem.n, 2 * self._guard + problem.m * problem.n)
        self._a, self._b, self._c = (make((count, _pitch(size))).view(dtype) for size in sizes)
        self.draw(torch.Generator(device).manual_seed(seed))
        self.poison()

    def draw(self, generator: torch.Generator) -> None:
        """Fills every A and B anew, in place."""
        self._a.normal_(generator=generator)
        self._b.normal_(generator=generator)

    @property
    def operands(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Every A and every B with the padding between them, [sets, elements] each."""
        return self._a, self._b

    @property
    def bytes(self) -> int:
        """Device memory of all sets."""
        return sum(arena.nbytes for arena in (self._a, self._b, self._c))

    def a(self, index: int) -> torch.Tensor:
        """A of a set, [m, k]."""
        return _matrix(self._a[index], (self.problem.m, self.problem.k))

    def b(self, index: int) -> torch.Tensor:
        """B of a set as stored: [k, n] for ``nn``, [n, k] for ``tn``."""
        return _matrix(self._b[index], stored_shape(self.problem))

    def c(self, index: int) -> torch.Tensor:
        """C of a set, [m, n]."""
        return _matrix(self._c[index, self._guard :], (self.problem.m, self.problem.n))

    @property
    def a_pointers(self) -> NDArray[np.uint64]:
        """Device address of A in each set."""
        return _pointers(self._a, 0)

    @property
    def b_pointers(self) -> NDArray[np.uint64]:
        """Device address of B in each set."""
        return _pointers(self._b, 0)

    @property
    def c_pointers(self) -> NDArray[np.uint64]:
        """Device address of C in each set."""
        return _pointers(self._c, self._guard)

    def poison(self) -> None:
        """Fills every C with NaN and its red zones with the sentinel: what is not written, or written beyond, shows."""
        self._c.fill_(math.nan)
        for zone in self._red_zones:
            if zone.numel():
                zone.fill_(_SENTINEL)

    def broken_red_zone(self) -> str:
        """What was written outside C, in one line; empty if nothing."""
        for side, zone in zip(("before", "after"), self._red_zones, strict=True):
            broken = int((zone != _SENTINEL).sum())
            if broken:
                return f"{broken} elements written {side} C"
        return ""

    def touched_red_zones(self) -> list[torch.Tensor]:
        """Whether anything was written in each, on the device."""
        return [(zone != _SENTINEL).any() for zone in self._red_zones]

    def unwritten(self, used: int) -> int:
        """How many of the first ``used`` sets hold a NaN in C."""
        return int(self.unwritten_count(used))

    def unwritten_count(self, used: int) -> torch.Tensor:
        """:meth:`unwritten` on the device; a maximum is NaN where any element is."""
        body = self._c[:used, self._guard : self._guard + self.problem.m * self.problem.n]
        return torch.isnan(body.amax(dim=1)).sum()

    @functools.cached_property
    def _red_zones(self) -> tuple[torch.Tensor, torch.Tensor]:
        bits = self._c.view(torch.int16)
        after = self._guard + self.problem.m * self.problem.n
        return bits[:, : self._guard], bits[:, after:]


def stored_shape(problem: Problem) -> tuple[int, int]:
    """Shape of B in memory."""
    return (problem.k, problem.n) if problem.layout == "nn" else (problem.n, problem.k)


def as_math(b: torch.Tensor, layout: Layout) -> torch.Tensor:
    """B as [k, n], whatever its storage."""
    return b if layout == "nn" else b.t()


def _matrix(row: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    view: torch.Tensor = row[: shape[0] * shape[1]].view(shape)
    return view


def _pitch(elements: int) -> int:
    return -(-elements // _PITCH_ELEMENTS) * _PITCH_ELEMENTS


def _pointers(arena: torch.Tensor, offset_elements: int) -> NDArray[np.uint64]:
    start = arena.data_ptr() + offset_elements * _ELEMENT_BYTES
    stride = arena.stride(0) * _ELEMENT_BYTES
    return start + stride * np.arange(arena.shape[0], dtype=np.uint64)
