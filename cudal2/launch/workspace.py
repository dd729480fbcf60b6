"""Workspaces lent from one kernel to the next: memory is neither taken nor given back while the device works."""

from __future__ import annotations

from cuda.bindings import driver as cuda

from cudal2.launch.driver import ZeroedBuffer, check

#: Sizes are rounded up to it, which the driver does as well, so that more of them fit the next kernel.
_UNIT_BYTES = 2 * 2**20
#: Idle ones that are kept when a larger one is made: two each of the kernel before, of this one and of the next.
_KEPT = 6


class Workspaces:
    """Workspaces of kernels that are all launched on one stream.

    ``cuMemFree`` waits for all that the device has to do, and what the host would have done meanwhile comes after.

    Args:
        stream: Handle; what is lent is cleared there, behind the launches of those who had it before.
    """

    def __init__(self, stream: int) -> None:
        """Has none yet."""
        self._stream = stream
        self._idle: list[ZeroedBuffer] = []

    def spare(self, size_bytes: int) -> int:
        """How many of a size can be had without memory being made, which the device would clear at once."""
        return sum(buffer.size_bytes >= size_bytes for buffer in self._idle)

    def take(self, size_bytes: int) -> Workspace:
        """A workspace that is zero for what is enqueued from now on; back here when nothing refers to it.

        Raises:
            LaunchError: There is not enough memory.
        """
        fitting = [buffer for buffer in self._idle if buffer.size_bytes >= size_bytes]
        if not fitting:
            # Not sorted in place: a workspace may come back in the middle of it, when cycles are looked for.
            smallest = sorted(self._idle, key=lambda buffer: buffer.size_bytes)
            for buffer in smallest[: max(0, len(smallest) - _KEPT + 1)]:
                self._idle.remove(buffer)
            return Workspace(self._idle, ZeroedBuffer(-(-size_bytes // _UNIT_BYTES) * _UNIT_BYTES))
        buffer = min(fitting, key=lambda buffer: buffer.size_bytes)
        check(cuda.cuMemsetD8Async(buffer.address, 0, size_bytes, self._stream), "cuMemsetD8Async")
        self._idle.remove(buffer)
        return Workspace(self._idle, buffer)


class Workspace:
    """Lent memory.

    Args:
        idle: Where it goes with the last reference.
        buffer: The memory.

    Attributes:
        address: Where it lies.
    """

    def __init__(self, idle: list[ZeroedBuffer], buffer: ZeroedBuffer) -> None:
        """Takes the memory over."""
        self._idle, self._buffer = idle, buffer
        self.address = buffer.address

    def __del__(self) -> None:
        """Host work alone."""
        self._idle.append(self._buffer)
