"""The GPU as server mode needs it: the native client on its stream, and the three states it finds the device in."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import torch
from cuda.bindings import driver as cuda

from cudal2.bench.context import ProblemContext
from cudal2.bench.inputs import set_bytes
from cudal2.bench.native import Operands, Submitter, driver_function, launch_submitter
from cudal2.bench.server.client import DRIVER, Between, NativeClient
from cudal2.launch.driver import Graph, check
from cudal2.launch.empty import EmptyKernel
from cudal2.records.measurement import State

#: L2 sizes that the flush of idle_cold reads.
FLUSH_L2_MULTIPLE = 2.0
#: Time a flush is given before an arrival: some 60 us of reading at 3.5 TB/s, its launch, and as much again.
FLUSH_US = 150.0
#: Buffer sets of the warm state: as many as fit in half the L2, within these.
WARM_SETS = (2, 8)
WARM_L2_SHARE = 0.5
#: The load copies a buffer of 64 MiB onto another in slices: more than the L2, little enough per slice to share the
#: chip with; some 100 us per graph, three in flight.
LOAD_BYTES = 64 * 2**20
LOAD_SLICES = 8
LOAD_PASSES = 2
LOAD_DEPTH = 3
LOAD_GUARD_US = 20.0
#: Rows that the flush reduces by themselves: enough to need no scratch memory, which a graph could not keep.
_FLUSH_ROWS = 8192


class ServerDevice:
    """A context manager over the client, its events and graphs.

    Args:
        library: ``native.c``, compiled.
        context: The problem's buffers; its stream is the one served.
        l2_bytes: L2 of the device.
    """

    def __init__(self, library: Path, context: ProblemContext, l2_bytes: int) -> None:
        """Allocates; everything is on torch's current stream and one more."""
        device = context.sets.a(0).device
        self.stream = context.stopwatch.stream
        self._sets, self._l2_bytes = context.sets, l2_bytes
        self._load_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._flags = torch.zeros(96, dtype=torch.int32, pin_memory=True)
        self._events = [check(cuda.cuEventCreate(0), "cuEventCreate") for _ in range(2)]
        self._empty = EmptyKernel()
        self._flush = self._flush_graph(device)
        self._load = self._load_graph(device)
        start, end = (int(event) for event in self._events)
        functions = {field: driver_function(name) for field, name in DRIVER.items()}
        self.client = NativeClient(
            library, functions, self.stream, int(self._load_stream.cuda_stream), (start, end), self._flags.data_ptr()
        )

    def __enter__(self) -> ServerDevice:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Gives everything back, unless the context is lost."""
        if kind is None:
            self.settle()
            self._flush.destroy()
            self._load.destroy()
            self._empty.close()
            for event in self._events:
                cuda.cuEventDestroy(event)

    def empty(self, operands: Operands) -> Submitter:
        """A contestant that computes nothing."""
        return launch_submitter(*self._empty.handles(self.stream), operands, self._empty)

    def enter(self, state: State) -> int:
        """Puts the state in force; the buffer sets that requests rotate over in it."""
        self.settle()
        if state == "idle_cold":
            self.client.surround(Between(flush=self._flush.handle, flush_us=FLUSH_US))
        elif state == "loaded":
            self.client.surround(Between(load=self._load.handle, load_depth=LOAD_DEPTH, load_guard_us=LOAD_GUARD_US))
        else:
            self.client.surround(Between())
        return warm_sets(set_bytes(self._sets.problem), self._l2_bytes) if state == "warm" else self._sets.count

    def settle(self) -> None:
        """Waits for the device.

        Raises:
            LaunchError: The context is lost.
        """
        check(cuda.cuCtxSynchronize(), "cuCtxSynchronize")

    def _flush_graph(self, device: torch.device) -> Graph:
        columns = int(FLUSH_L2_MULTIPLE * self._l2_bytes) // (4 * _FLUSH_ROWS)
        self._flushed = torch.zeros((_FLUSH_ROWS, columns), dtype=torch.int32, device=device)
        self._sink = torch.zeros(_FLUSH_ROWS, dtype=torch.int32, device=device)

        def enqueue() -> None:
            torch.amax(self._flushed, dim=1, out=self._sink)

        enqueue()  # the first call loads the kernel, which cannot be captured
        return Graph(self.stream, enqueue)

    def _load_graph(self, device: torch.device) -> Graph:
        self._source, self._target = (
            torch.zeros((LOAD_SLICES, LOAD_BYTES // LOAD_SLICES), dtype=torch.uint8, device=device) for _ in range(2)
        )

        def enqueue() -> None:
            for index in range(LOAD_PASSES * LOAD_SLICES):
                self._target[index % LOAD_SLICES].copy_(self._source[index % LOAD_SLICES], non_blocking=True)

        self.settle()
        with torch.cuda.stream(self._load_stream):
            enqueue()
            self.settle()
            return Graph(int(self._load_stream.cuda_stream), enqueue)


def warm_sets(set_size_bytes: int, l2_bytes: int) -> int:
    """Buffer sets that stay in the L2 together; two of a problem that does not fit, since addresses must change."""
    fewest, most = WARM_SETS
    return max(fewest, min(most, int(WARM_L2_SHARE * l2_bytes) // set_size_bytes))
