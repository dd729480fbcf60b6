"""Kernels loaded ahead, on a thread of its own: a load waits for all that the device has to do.

On an H200 it then takes some 2 ms more, in which the host has other work. Nothing of it may run beside timed replays
but the waiting: who times finishes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from cudal2.build.artifact import BuiltKernel
from cudal2.errors import Cudal2Error
from cudal2.launch.driver import ensure_context
from cudal2.launch.kernel import LoadedKernel
from cudal2.space.config import KernelConfig


class LoadsAhead:
    """Loads under way into one device's primary context.

    Args:
        device_index: Index among the GPUs this process sees.
    """

    def __init__(self, device_index: int) -> None:
        """Starts no thread yet."""
        self._thread = ThreadPoolExecutor(1, "cudal2-load", ensure_context, (device_index,))
        self._under_way: dict[str, Future[LoadedKernel]] = {}

    def begin(self, built: BuiltKernel, config: KernelConfig) -> None:
        """Begins to load a cubin, unless that is under way."""
        key = str(built.cubin_path)
        if key not in self._under_way:
            self._under_way[key] = self._thread.submit(LoadedKernel, built, config)

    def finish(self) -> Iterator[tuple[str, LoadedKernel]]:
        """Waits for every load; one that failed is left out, and says why when it is loaded again."""
        while self._under_way:
            key, load = self._under_way.popitem()
            with suppress(Cudal2Error, OSError):
                yield key, load.result()
