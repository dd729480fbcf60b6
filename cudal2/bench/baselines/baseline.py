"""Baselines as contestants: what to call, bound to the buffer sets it is timed or checked on.

Libraries are offered B in both layouts, made from the same data: a caller could hold either, so the transposition is
not timed. Which calls a library has is ``libraries``' business.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from cudal2.bench.baselines.enumeration import Algorithm
from cudal2.bench.inputs import BufferSets, as_math
from cudal2.bench.native import GemmExArguments, MatmulArguments, Operands, Submitter, library_submitter
from cudal2.bench.timing import Contestant
from cudal2.errors import EnvironmentProblemError
from cudal2.problem import Layout, Problem

logger = logging.getLogger(__name__)

LAYOUTS: tuple[Layout, ...] = ("tn", "nn")


class NotSupportedError(Exception):
    """A library that has nothing for this problem; its baseline is recorded as failed with this reason."""


class BothLayouts:
    """Device addresses of the buffer sets with B in either layout; the second copy of B is made when first asked for.

    Args:
        sets: The buffers.
    """

    def __init__(self, sets: BufferSets) -> None:
        self.sets = sets
        self._other: torch.Tensor | None = None
        self._pointers: dict[Layout, list[tuple[int, int, int]]] = {}
        self._operands: dict[Layout, Operands] = {}
        self._tensors: dict[Layout, list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]] = {}

    def pointers(self, layout: Layout) -> list[tuple[int, int, int]]:
        """Addresses of A, B and C per set; the same list each time, since hundreds of calls share thousands of sets."""
        if layout not in self._pointers:
            own = layout == self.sets.problem.layout
            b = [int(pointer) for pointer in self.sets.b_pointers] if own else self._other_pointers()
            a, c = ([int(pointer) for pointer in row] for row in (self.sets.a_pointers, self.sets.c_pointers))
            self._pointers[layout] = list(zip(a, b, c, strict=True))
        return self._pointers[layout]

    def operands(self, layout: Layout) -> Operands:
        """:meth:`pointers` as an array, [sets, 3]."""
        if layout not in self._operands:
            self._operands[layout] = np.array(self.pointers(layout), np.uint64)
        return self._operands[layout]

    def tensors(self, layout: Layout) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """A, B as stored, and C per set; the same list each time."""
        if layout not in self._tensors:
            columns = (
                self._every(self.sets.a),
                self._every(functools.partial(self.b, layout)),
                self._every(self.sets.c),
            )
            self._tensors[layout] = list(zip(*columns, strict=True))
        return self._tensors[layout]

    def b(self, layout: Layout, index: int) -> torch.Tensor:
        """B of a set as stored in that layout."""
        if layout == self.sets.problem.layout:
            return self.sets.b(index)
        rows, columns = self.sets.b(0).shape
        return self._transposed()[index, : rows * columns].view(columns, rows)

    def _every(self, matrix: Callable[[int], torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """A matrix of every set: views made one by one in Python take 10 us each, of thousands of sets."""
        first, second = matrix(0), matrix(1)
        pitch = (second.data_ptr() - first.data_ptr()) // first.element_size()
        return first.as_strided((self.sets.count, *first.shape), (pitch, *first.stride())).unbind(0)

    def _other_pointers(self) -> list[int]:
        arena = self._transposed()
        stride = arena.stride(0) * arena.element_size()
        return [arena.data_ptr() + index * stride for index in range(self.sets.count)]

    def _transposed(self) -> torch.Tensor:
        if self._other is None:
            first = self.sets.b(0)
            rows, columns = first.shape
            pitch = int(self.sets.b_pointers[1] - self.sets.b_pointers[0]) // first.element_size()
            stored = first.as_strided((self.sets.count, rows, columns), (pitch, columns, 1))
            self._other = torch.empty((self.sets.count, pitch), dtype=first.dtype, device=first.device)
            other = self._other.as_strided((self.sets.count, columns, rows), (pitch, rows, 1))
            other.copy_(stored.transpose(1, 2))
        return self._other


class Baseline(Protocol):
    """Something to call; bound to buffers it competes."""

    @property
    def name(self) -> str:
        """Name in records; libraries measured in both layouts end in ``_tn`` or ``_nn``."""

    @property
    def detail(self) -> str:
        """What exactly is called, for records."""

    def on(self, buffers: BothLayouts) -> Contestant:
        """Bound to buffers."""


@dataclass(frozen=True)
class BoundCall:
    """A library call on known addresses; it keeps the buffers, whose second copy of B may be nobody else's."""

    name: str
    detail: str
    enqueue: Callable[[int, int, int, int], None]
    addresses: Sequence[tuple[int, int, int]] = field(repr=False)
    operands: Operands = field(repr=False)
    arguments: MatmulArguments | GemmExArguments | None = field(default=None, repr=False)
    buffers: BothLayouts | None = field(default=None, repr=False, compare=False)

    def submitter(self, stream: int) -> Submitter | None:
        """How C enqueues it; a handle's stream is the one it was last launched on from Python."""
        if self.arguments is None:
            return None
        try:
            return library_submitter(self.arguments, self.operands)
        except EnvironmentProblemError as error:
            logger.debug("%s is submitted from Python: %s", self.name, error)
            return None

    def launch(self, set_index: int, stream: int) -> None:
        """Enqueues one product."""
        a, b, c = self.addresses[set_index]
        self.enqueue(a, b, c, stream)


@dataclass(frozen=True)
class SavedCall:
    """A cuBLASLt call as plain values: ``VendorLibraries.restore`` makes it again, in another process too.

    Attributes:
        name: Name in records.
        detail: What exactly is called.
        layout: Storage of B it was chosen for.
        algorithm: The library's opaque bytes, and what is known of them.
        library_version: cuBLASLt's; the bytes mean nothing to another.
    """

    name: str
    detail: str
    layout: Layout
    algorithm: Algorithm
    library_version: int


@dataclass(frozen=True)
class LibraryCall:
    """A baseline that takes device addresses.

    Attributes:
        name: Name in records.
        detail: What exactly is called.
        layout: Storage of B it was prepared for.
        enqueue: Takes the addresses of A, B and C, and a stream.
        algorithm: cuBLASLt only.
        library_version: cuBLASLt only.
        arguments: What the C function behind ``enqueue`` takes besides, for callers outside Python.
    """

    name: str
    detail: str
    layout: Layout
    enqueue: Callable[[int, int, int, int], None]
    algorithm: Algorithm | None = None
    library_version: int = 0
    arguments: MatmulArguments | GemmExArguments | None = field(default=None, repr=False)

    @property
    def saved(self) -> SavedCall | None:
        """What another process makes the same call from; ``None`` for a library that chooses anew each time."""
        if self.algorithm is None:
            return None
        return SavedCall(self.name, self.detail, self.layout, self.algorithm, self.library_version)

    def on(self, buffers: BothLayouts) -> BoundCall:
        """Bound to buffers."""
        addresses, operands = buffers.pointers(self.layout), buffers.operands(self.layout)
        return BoundCall(self.name, self.detail, self.enqueue, addresses, operands, self.arguments, buffers)

    def renamed(self, name: str, detail: str = "") -> LibraryCall:
        """The same call under another name."""
        return dataclasses.replace(self, name=name, detail=" ".join(part for part in (self.detail, detail) if part))


class TorchMatmul:
    """``torch.matmul(a, b, out=c)`` with B as the problem stores it, under the precision flags of the leaderboard.

    Args:
        problem: What to compute.

    Raises:
        NotSupportedError: fp16 accumulation, and this torch cannot be told to use it.
    """

    name = "torch"

    def __init__(self, problem: Problem) -> None:
        matmul = torch.backends.cuda.matmul
        matmul.allow_fp16_reduced_precision_reduction = problem.acc == "fp16"
        matmul.allow_bf16_reduced_precision_reduction = False
        if hasattr(matmul, "allow_fp16_accumulation"):
            matmul.allow_fp16_accumulation = problem.acc == "fp16"
        elif problem.acc == "fp16":
            raise NotSupportedError("torch before 2.7 has no fp16 accumulation")
        reduction = f"allow_{problem.dtype}_reduced_precision_reduction"
        self.detail = (
            f"torch {torch.__version__} layout={problem.layout} {reduction}={getattr(matmul, reduction)} "
            f"allow_fp16_accumulation={getattr(matmul, 'allow_fp16_accumulation', False)}"
        )

    def on(self, buffers: BothLayouts) -> BoundTorch:
        """Bound to buffers."""
        return BoundTorch(self.detail, buffers)


class BoundTorch:
    """``torch.matmul`` on known buffers; runs on torch's current stream, which must be the one asked for."""

    name = "torch"

    def __init__(self, detail: str, buffers: BothLayouts) -> None:
        self.detail = detail
        layout = buffers.sets.problem.layout
        self._tensors = [(a, as_math(b, layout), c) for a, b, c in buffers.tensors(layout)]

    def launch(self, set_index: int, stream: int) -> None:
        """Enqueues one product."""
        a, b, c = self._tensors[set_index]
        torch.matmul(a, b, out=c)
