"""The client of ``native.c`` from Python: its struct, what it calls, and a contestant that calls back. No torch.

Server mode times what happens between an arrival and the completion, so that nothing of Python may run in between.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudal2.bench.native import Library, Operands, Submit, Submitter, address
from cudal2.launch.driver import LaunchError, error_name

#: Functions of the driver the client calls, by the name of its field. The ``_v2`` ones need no module parameter.
DRIVER = {
    "write_value": "cuStreamWriteValue32_v2",
    "wait_value": "cuStreamWaitValue32_v2",
    "event_record": "cuEventRecord",
    "event_elapsed": "cuEventElapsedTime",
    "graph_launch": "cuGraphLaunch",
    "stream_query": "cuStreamQuery",
}

_Address = ctypes.c_void_p


class _Client(ctypes.Structure):
    _fields_ = [
        *((name, _Address) for name in ("now", *DRIVER)),
        *((name, _Address) for name in ("stream", "load_stream", "start", "end", "done", "gate", "load_done")),
        ("flush", _Address),
        ("flush_ns", ctypes.c_uint64),
        ("load", _Address),
        ("load_guard_ns", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("load_depth", "sequence", "load_sequence")),
        ("failed", ctypes.c_char_p),
    ]


@dataclass(frozen=True)
class Served:
    """What one block of requests took, in order.

    Attributes:
        latency_us: From just before the submission to the completion as the host sees it.
        queue_us: From the arrival to the submission.
        host_us: The submission alone: time the calling thread is busy.
        unflushed: Requests that came before the flush had an end.
    """

    latency_us: NDArray[np.float64]
    queue_us: NDArray[np.float64]
    host_us: NDArray[np.float64]
    unflushed: int


@dataclass(frozen=True)
class Between:
    """What goes on between requests; graphs as addresses, 0 for none.

    Attributes:
        flush: Reads through the L2 after every request.
        flush_us: Time that must be left for it before the next arrival; else it is skipped.
        load: Keeps the device busy on another stream.
        load_depth: How many of them are kept in flight.
        load_guard_us: None is submitted this shortly before an arrival: the host must be free.
    """

    flush: int = 0
    flush_us: float = 0.0
    load: int = 0
    load_depth: int = 0
    load_guard_us: float = 0.0


def python_submitter(
    launch: Callable[[int], None], refusing: tuple[type[Exception], ...], operands: Operands
) -> Submitter:
    """A contestant that only Python can call; what it raises ends the block with status 1.

    Args:
        launch: Takes the number of the buffer set.
        refusing: What it may raise.
        operands: Not looked at; their number is that of the sets.
    """

    def submit(state: int, index: int, operands: int, stream: int) -> int:
        try:
            launch(index)
        except refusing as error:
            raised.append(error)
            return 1
        return 0

    raised: list[Exception] = []
    return Submitter(Submit(submit), None, operands, raised=raised)


class NativeClient:
    """The client on one stream.

    Args:
        library: ``native.c``, compiled.
        functions: Addresses of the driver's functions by field; of the clock too if it is not to be the real one.
        stream: Requests are served on it.
        load_stream: The background load runs on it.
        events: Two events that keep the time.
        flags: Address of 384 bytes of pinned host memory, zero.

    Raises:
        EnvironmentProblemError: The library cannot be loaded.
    """

    def __init__(
        self,
        library: Path,
        functions: Mapping[str, int],
        stream: int,
        load_stream: int,
        events: tuple[int, int],
        flags: int,
    ) -> None:
        self._library = Library(library)
        # One cache line and more between flags that the device and the host write.
        done, gate, load_done = (flags + 128 * index for index in range(3))
        self._state = _Client(
            stream=stream, load_stream=load_stream, start=events[0], end=events[1], done=done, gate=gate,
            load_done=load_done, **{"now": address(self._library.function("cudal2_now")), **functions},
        )  # fmt: skip

    def surround(self, between: Between) -> None:
        """What goes on between requests from now on."""
        state = self._state
        state.flush, state.flush_ns = between.flush, round(between.flush_us * 1e3)
        state.load, state.load_depth = between.load, between.load_depth
        state.load_guard_ns = round(between.load_guard_us * 1e3)

    def submit(self, submitter: Submitter, index: int) -> None:
        """Enqueues one launch and does not wait.

        Raises:
            LaunchError: It was refused.
        """
        self._check(self._library.function("cudal2_submit")(*self._who(submitter), ctypes.c_uint32(index)), submitter)

    def serve(self, submitter: Submitter, arrivals_us: NDArray[np.float64], sets: int) -> Served:
        """Serves requests as they arrive, over the first ``sets`` buffer sets in turn.

        Raises:
            LaunchError: A submission, or the stream, failed.
        """
        arrivals, count = _nanoseconds(arrivals_us)
        latency, queue, host = (np.zeros(len(arrivals), np.uint64) for _ in range(3))
        unflushed = ctypes.c_uint32()
        code = self._library.function("cudal2_serve")(
            *self._who(submitter), _pointer(arrivals), count, ctypes.c_uint32(sets), _pointer(latency), _pointer(queue),
            _pointer(host), ctypes.byref(unflushed),
        )  # fmt: skip
        self._check(code, submitter)
        return Served(latency / 1e3, queue / 1e3, host / 1e3, unflushed.value)

    def device_us(self, submitter: Submitter, arrivals_us: NDArray[np.float64], sets: int) -> NDArray[np.float64]:
        """Device time of each request alone, between two events with nothing of the host in between.

        Raises:
            LaunchError: A submission, or the stream, failed.
        """
        arrivals, count = _nanoseconds(arrivals_us)
        device_ms = np.zeros(len(arrivals), np.float32)
        code = self._library.function("cudal2_time")(
            *self._who(submitter), _pointer(arrivals), count, ctypes.c_uint32(sets), _pointer(device_ms)
        )
        self._check(code, submitter)
        return device_ms.astype(np.float64) * 1e3

    def _who(self, submitter: Submitter) -> tuple[Any, Any]:
        return ctypes.byref(self._state), self._library.contestant(submitter)

    def _check(self, code: int, submitter: Submitter) -> None:
        if not code:
            return
        what = (self._state.failed or b"the client").decode()
        raise submitter.error(code) if what == "submission" else LaunchError(code, error_name(code), what)


def _nanoseconds(times_us: NDArray[np.float64]) -> tuple[NDArray[np.uint64], Any]:
    return np.ascontiguousarray(np.round(times_us * 1e3), np.uint64), ctypes.c_uint32(len(times_us))


def _pointer(array: NDArray[Any]) -> Any:
    return ctypes.c_void_p(array.ctypes.data)
