"""Host memory in the GPU's place: the judge of foreign kernels is tested with real processes and real libraries.

Run as a program it is the foreign process; imported, it is the judge's side and the compiler of libraries written in C.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cudal2.bench.foreign import child

LEAK, SETTING, NO_GRAPHS = "TEST_LEAK", "TEST_SETTING", "TEST_NO_GRAPHS"
#: Set while a capture is going on, for ``host_cuda``.
CAPTURING = "TEST_CAPTURING"
#: Timed replays so far, the judge's rehearsal aside, for ``host_cheats``: real ones tell by captures and events.
REPLAYS = "TEST_REPLAYS"
CHEATS = Path(__file__).with_name("host_cheats.c")
CUDA = Path(__file__).with_name("host_cuda")


class HostDevice:
    """Every launch runs at once; files are device memory."""

    stream = 0

    def __init__(self, options: dict[str, Any]) -> None:
        self._kept: list[Any] = []
        self._captured: Callable[[], None] = lambda: None
        self._graphs = NO_GRAPHS not in os.environ
        self._captured_before = False
        self._replays: int | None = None

    def open(self, handle: str) -> int:
        with open(handle, "r+b") as file:
            mapped = mmap.mmap(file.fileno(), 0)
        self._kept.append(mapped)
        return ctypes.addressof(ctypes.c_char.from_buffer(mapped))

    def allocate(self, size_bytes: int) -> int:
        self._kept.append(ctypes.create_string_buffer(max(1, size_bytes)))
        return ctypes.addressof(self._kept[-1])

    def hold(self, milliseconds: float) -> None:
        pass

    def poison(self, pointer: int, elements: int) -> None:
        ctypes.memset(pointer, 0xFF, 2 * elements)

    def wait(self) -> None:
        pass

    def capture(self, enqueue: Callable[[], None]) -> None:
        first, self._captured_before = not self._captured_before, True
        if not first and self._replays is None:
            self._replays = 0
        if not self._graphs and not first:
            os.environ[CAPTURING] = "1"
            try:
                enqueue()
            finally:
                del os.environ[CAPTURING]
            raise RuntimeError("operation not permitted when stream is capturing")
        self._captured = enqueue

    def run(self) -> None:
        self._captured()

    def time_ms(self, enqueue: Callable[[], None]) -> float:
        if self._replays is not None:
            self._replays += 1
            os.environ[REPLAYS] = str(self._replays)
        started = time.perf_counter()
        enqueue()
        return (time.perf_counter() - started) * 1e3

    def left_behind(self) -> str:
        getenv = ctypes.CDLL(None).getenv
        getenv.restype = ctypes.c_char_p
        return (getenv(SETTING.encode()) or b"").decode()


class HostPlatform:
    """Files in a folder."""

    def __init__(self, folder: Path) -> None:
        import torch

        self._torch = torch
        self.device = torch.device("cpu")
        self.command = [sys.executable, __file__]
        self.options: dict[str, Any] = {}
        self._folder = folder
        self._bases: dict[int, Path] = {}

    def empty(self, shape: tuple[int, int]) -> Any:
        path = self._folder / f"memory-{len(self._bases)}"
        size = shape[0] * shape[1]
        path.write_bytes(bytes(2 * size))
        tensor = self._torch.from_file(str(path), shared=True, size=size, dtype=self._torch.float16)
        self._bases[tensor.data_ptr()] = path
        return tensor.view(shape)

    def handle(self, tensor: Any) -> tuple[str, int]:
        base = max(base for base in self._bases if base <= tensor.data_ptr())
        return str(self._bases[base]), tensor.data_ptr() - base

    def synchronize(self) -> None:
        pass

    def free_bytes(self) -> int:
        leaked = Path(os.environ[LEAK])
        return 2**40 - (leaked.stat().st_size if leaked.exists() else 0)

    def left_behind(self) -> str:
        return ""

    def close(self) -> None:
        self._bases.clear()


def build(folder: Path, entry: str) -> Path:
    """A library with an entry of ``host_cheats.c``."""
    library = folder / "kernel.so"
    flags = ["-O2", "-mf16c", "-w", "-shared", "-fPIC", "-pthread", f"-DENTRY={entry}", f"-DIS_{entry}"]
    subprocess.run(["gcc", *flags, "-o", str(library), str(CHEATS)], check=True, timeout=60)
    return library


def build_entry(folder: Path, entry: str) -> Path:
    """A library with an entry of ``host_cuda/capture.cc`` inside the code that foreign sources are compiled into."""
    from cudal2.build.foreign import ForeignSource, _wrapper

    library, wrapper = folder / "kernel.so", folder / "entry.cc"
    wrapper.write_text(_wrapper(ForeignSource(CUDA / "capture.cc", entry), "tn", None))
    flags = ["-O2", "-std=c++17", "-mf16c", "-shared", "-fPIC", f"-I{CUDA}"]
    subprocess.run(["g++", *flags, "-o", str(library), str(wrapper)], check=True, timeout=60)
    return library


if __name__ == "__main__":
    sys.exit(child.run(sys.argv[1:], HostDevice))
