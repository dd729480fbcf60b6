"""A driver for the native client that is a few Python callbacks around a virtual clock: no GPU, no waiting.

A submission takes ``HOST_US`` of it, the work on the stream ``service_us``; both happen at once, since the callback
moves the clock.
"""

from __future__ import annotations

import ctypes

import numpy as np

from cudal2.bench.native import Submit, Submitter, address
from cudal2.bench.server.client import NativeClient

HOST_US = 2.0
#: One reading of the clock.
TICK_US = 0.5
NOT_READY = 600

_u32, _u64, _int, _ptr = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p


class FakeDriver:
    """Functions, flags, and the list of everything that was called: ``calls``.

    Args:
        service_us: Time between the end of a submission and the flag that says it is done.
    """

    def __init__(self, service_us: float = 10.0) -> None:
        self.service_us, self.tick_us = service_us, TICK_US
        self.now_ns = 1_000_000
        self.flags = np.zeros(96, np.uint32)
        self.calls: list[tuple[object, ...]] = []
        self.status: dict[str, int] = {}
        self.pending: list[tuple[int, int]] = []
        self._kept = {
            "now": ctypes.CFUNCTYPE(_u64)(self._now),
            "write_value": ctypes.CFUNCTYPE(_int, _ptr, _u64, _u32, _u32)(self._write),
            "wait_value": ctypes.CFUNCTYPE(_int, _ptr, _u64, _u32, _u32)(self._wait),
            "event_record": ctypes.CFUNCTYPE(_int, _ptr, _ptr)(self._record),
            "event_elapsed": ctypes.CFUNCTYPE(_int, ctypes.POINTER(ctypes.c_float), _ptr, _ptr)(self._elapsed),
            "graph_launch": ctypes.CFUNCTYPE(_int, _ptr, _ptr)(self._graph),
            "stream_query": ctypes.CFUNCTYPE(_int, _ptr)(self._query),
        }

    @property
    def functions(self) -> dict[str, int]:
        return {name: address(function) for name, function in self._kept.items()}

    def client(self, library) -> NativeClient:
        """On stream 7, with the load on stream 8 and events 70 and 71."""
        return NativeClient(library, self.functions, 7, 8, (70, 71), self.flags.ctypes.data)

    def named(self, *names: str) -> list[tuple[object, ...]]:
        return [call for call in self.calls if call[0] in names]

    def at_us(self) -> float:
        return self.now_ns / 1e3

    def _spend(self, time_us: float) -> None:
        self.now_ns += round(time_us * 1e3)

    def _now(self) -> int:
        self._spend(self.tick_us)
        return self.now_ns

    def _flag(self, pointer: int) -> str:
        return ("done", "gate", "load_done")[(pointer - self.flags.ctypes.data) // 128]

    def _set(self, pointer: int, value: int) -> None:
        self.flags[(pointer - self.flags.ctypes.data) // 4] = value

    def _write(self, stream, pointer, value, flags):
        self.calls.append(("write", stream, self._flag(pointer), value))
        if self._flag(pointer) == "done":
            self._spend(self.service_us)
        if not self.status.get("write"):
            self._set(pointer, value)
        return self.status.get("write", 0)

    def _wait(self, stream, pointer, value, flags):
        self.calls.append(("wait", stream, self._flag(pointer), value, int(self.flags[32])))
        return self.status.get("wait", 0)

    def _record(self, event, stream):
        self.calls.append(("record", event, stream))
        return self.status.get("record", 0)

    def _elapsed(self, ms, start, end):
        self.calls.append(("elapsed", start, end, int(self.flags[32])))
        ms[0] = 0.004
        return self.status.get("elapsed", 0)

    def _graph(self, graph, stream):
        self.calls.append(("graph", graph, stream, self.at_us()))
        return self.status.get("graph", 0)

    def _query(self, stream):
        return self.status.get("query", NOT_READY)


class Recorder:
    """A contestant of the fake driver: notes each submission, and lets time pass.

    Args:
        driver: Whose clock and list.
        sets: Buffer sets.
        host_us: What a submission takes.
        fails_at: Submission, from 0, that returns status 13.
    """

    def __init__(self, driver: FakeDriver, sets: int = 4, host_us: float = HOST_US, fails_at: int = -1) -> None:
        def submit(state, index, operands, stream):
            a, b, c = ctypes.cast(operands, ctypes.POINTER(_u64))[:3]
            driver.calls.append(("submit", index, (a, b, c), stream, driver.at_us()))
            driver._spend(host_us)
            return 13 if len(driver.named("submit")) - 1 == fails_at else 0

        operands = np.arange(3 * sets, dtype=np.uint64).reshape(sets, 3) * 256
        self.submitter = Submitter(Submit(submit), None, operands)
