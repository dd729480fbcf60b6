"""The process of a foreign kernel: loads its library, launches when told, and knows nothing of right or wrong.

It is not trusted: answers, times and the very memory of this process are the foreign code's to change. The judge holds
the buffers, the expected answers and a clock of its own elsewhere (:mod:`cudal2.bench.foreign.process`).

Two processes, in fact: a guard, into which nothing foreign is loaded and which takes every orphan of the other in, and
the host of the library. When the host ends or the judge is gone, the guard kills whatever is left below it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_IOLBF = 1
#: What the library may write into any one file, the log of its prints included.
_FILE_BYTES = 2**24
_WHAT_BYTES = 512
_LAUNCHES_AT_ONCE = 100
#: Outcomes of ``cudal2_foreign_launch``, build/foreign_entry.cu.in.
_OUTCOMES = ("launched", "refused", "threw", "failed")


class LaunchedError(Exception):
    """A call that came back with anything but success.

    Attributes:
        outcome: One of the outcomes.
    """

    def __init__(self, outcome: str, what: str) -> None:
        """Says what."""
        super().__init__(what)
        self.outcome = outcome


class Device(Protocol):
    """The device, as the host of a library needs it; tests put host memory in its place."""

    @property
    def stream(self) -> int:
        """Handle of the stream that every call gets."""

    def open(self, handle: str) -> int:
        """Address of an allocation of the judge's."""

    def allocate(self, size_bytes: int) -> int:
        """Address of new memory."""

    def hold(self, milliseconds: float) -> None:
        """Keeps the stream busy."""

    def poison(self, pointer: int, elements: int) -> None:
        """Enqueues NaN into memory of fp16 or bf16."""

    def wait(self) -> None:
        """Waits for everything this process has put on the device, on any stream."""

    def capture(self, enqueue: Callable[[], None]) -> None:
        """Makes a graph of what is enqueued, in place of the last one."""

    def run(self) -> None:
        """Enqueues the graph."""

    def time_ms(self, enqueue: Callable[[], None]) -> float:
        """Device milliseconds of what is enqueued, from a cold L2."""

    def left_behind(self) -> str:
        """What outlasts a call, after "it left "; empty if nothing does."""


class Host:
    """Answers the judge's commands.

    Args:
        device: Where to launch.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._launch: Any = None
        self._arenas: dict[str, tuple[Any, Any, Any, int]] = {}
        self._sizes = (0, 0, 0)
        self._workspace = (0, 0)
        self._once: Callable[[], None] = device.run
        self._repeats = 1

    def open(self, arenas: dict[str, Any], sizes: Sequence[int], workspace_bytes: int) -> None:
        """Maps the judge's buffers: per arena and operand a handle, an offset, a pitch in bytes, and the sets."""
        m, n, k = sizes
        self._sizes = (m, n, k)
        self._workspace = (self._device.allocate(workspace_bytes), workspace_bytes)
        for name, arena in arenas.items():
            pointers = []
            for operand in ("a", "b", "c"):
                place = arena[operand]
                first = self._device.open(place["handle"]) + place["offset"]
                addresses = (first + index * place["pitch"] for index in range(arena["count"]))
                pointers.append((ctypes.c_void_p * arena["count"])(*addresses))
            self._arenas[name] = (pointers[0], pointers[1], pointers[2], arena["count"])

    def rehearse(self, launches: int) -> None:
        """Prepares a graph that does nothing: what a replay costs by itself, before anything foreign is here."""

        def enqueue() -> None:
            for _ in range(launches):
                self._device.hold(0.0)

        self._device.capture(enqueue)

    def load(self, library: str) -> None:
        """Loads the library, which runs its static initialisers."""
        self._launch = ctypes.CDLL(library).cudal2_foreign_launch
        pointer, number = ctypes.c_void_p, ctypes.c_int
        self._launch.argtypes = [
            *([pointer] * 3), *([number] * 5), pointer, ctypes.c_size_t, pointer, ctypes.c_char_p, ctypes.c_size_t,
        ]  # fmt: skip

    def call(self, arena: str, index: int, hold_ms: float) -> None:
        """One launch behind a stream kept busy and a poisoned C: who does not queue up is overwritten."""
        c = self._arenas[arena][2][index]
        self._device.hold(hold_ms)
        self._device.poison(c, self._sizes[0] * self._sizes[1])
        self._enqueue(arena, 1, index)
        self._device.wait()

    def repeat(self, arena: str, calls: int, seconds: float) -> int:
        """So many launches, or as many as fit the time; returns how many."""
        started, done, step = time.monotonic(), 0, 1
        while done < calls:
            self._enqueue(arena, step)
            self._device.wait()
            done += step
            elapsed = time.monotonic() - started
            if elapsed >= seconds:
                break
            fitting = int((seconds - elapsed) * done / max(elapsed, 1e-6))
            step = max(1, min(calls - done, _LAUNCHES_AT_ONCE, fitting))
        return done

    def prepare(self, arena: str, launches: int, repeats: int) -> str:
        """Captures launches, to be run so often; where that cannot be, says why and runs them as a loop.

        Whatever goes wrong in a capture is a reason for the loop only: what fails outside one too, fails when it runs.
        """

        def enqueue() -> None:
            self._enqueue(arena, launches)

        self._repeats = repeats
        try:
            self._device.capture(enqueue)
        except Exception as error:
            self._device.wait()
            self._once = enqueue
            return str(error) or type(error).__name__
        self._once = self._device.run
        return ""

    def replay(self) -> float:
        """Runs what was prepared; device milliseconds."""

        def enqueue() -> None:
            for _ in range(self._repeats):
                self._once()

        elapsed = self._device.time_ms(enqueue)
        self._device.wait()
        return elapsed

    def left_behind(self) -> str:
        """Settings of the context that outlast a call."""
        return self._device.left_behind()

    def _enqueue(self, arena: str, launches: int, index: int | None = None) -> None:
        a, b, c, count = self._arenas[arena]
        if index is not None:
            a, b, c = ((ctypes.c_void_p * 1)(pointers[index]) for pointers in (a, b, c))
            count = 1
        what = ctypes.create_string_buffer(_WHAT_BYTES)
        outcome = self._launch(
            a, b, c, count, launches, *self._sizes, *self._workspace, self._device.stream, what, _WHAT_BYTES
        )
        if outcome:
            name = _OUTCOMES[outcome] if 0 < outcome < len(_OUTCOMES) else "failed"
            raise LaunchedError(name, what.value.decode(errors="replace") or f"outcome {outcome}")


def serve(host: Host, commands: int, replies: int) -> None:
    """Answers one line of JSON with another until the judge hangs up."""
    with os.fdopen(commands, "rb") as incoming:
        for line in incoming:
            order = json.loads(line)
            reply = {"number": order["number"], **_attempt(getattr(host, order["do"]), order["with"])}
            data = json.dumps(reply).encode() + b"\n"
            while data:
                data = data[os.write(replies, data) :]


def _attempt(action: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": action(**arguments)}
    except LaunchedError as error:
        return {"outcome": error.outcome, "text": str(error)}
    except Exception as error:  # the edge: whatever a library does to us, the judge gets one line
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return {"outcome": "error", "text": lines[0] if lines else type(error).__name__}


def run(arguments: Sequence[str], make_device: Callable[[dict[str, Any]], Device]) -> int:
    """The program: options as JSON, pipes as numbers of open files."""
    options = json.loads(arguments[0])
    commands, replies = int(options["commands"]), int(options["replies"])
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: _end_below())
    host = os.fork()
    if host:
        os.close(replies)
        return _guard(host, commands)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # By lines: what a library printed before it crashed is in the log.
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _IOLBF, 0)
    serve(Host(make_device(options)), commands, replies)
    # Not a normal exit: destructors of the library are nobody's business any more.
    os._exit(0)


def _guard(host: int, commands: int) -> int:
    """Waits for the host's end or the judge's; leaves nothing behind; ends as the host ended."""
    watched = select.poll()
    watched.register(commands, 0)  # a hang-up is always reported
    watched.register(os.pidfd_open(host), select.POLLIN)
    watched.poll()
    ended, status = os.waitpid(host, os.WNOHANG)
    _end_below()
    if not ended:
        return 0
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _end_below() -> None:
    """Kills children until there are none: orphans of the killed become ours and are next."""
    while children := _children():
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in children:
            with suppress(ChildProcessError):
                os.waitpid(child, 0)


def _children() -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
                if int(parent) == os.getpid():
                    found.append(int(entry.name))
    return found


def _cuda(options: dict[str, Any]) -> Device:
    from cudal2.bench.foreign.device import CudaDevice

    return CudaDevice(int(options["device"]), int(options["flush_bytes"]), bool(options["torch"]))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], _cuda))
