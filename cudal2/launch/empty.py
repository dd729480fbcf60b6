"""A kernel that does nothing: what a launch costs by itself, on the host's clock and on the device's."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as cuda

from cudal2.launch.driver import Module

#: PTX, which the driver compiles: this must run where there is no compiler of ours.
_PTX = b".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry empty()\n{\n    ret;\n}\n\0"


class EmptyKernel:
    """One warp that returns at once.

    Raises:
        LaunchError: The driver cannot compile it.
    """

    def __init__(self) -> None:
        """Loads into the current context."""
        self._module = Module(_PTX, "empty", 0)
        self._config: Any = cuda.CUlaunchConfig()
        self._config.gridDimX = self._config.gridDimY = self._config.gridDimZ = 1
        self._config.blockDimX, self._config.blockDimY, self._config.blockDimZ = 32, 1, 1

    def handles(self, stream: int) -> tuple[int, int]:
        """As :meth:`cudal2.launch.kernel.KernelLaunch.handles`."""
        self._config.hStream = stream
        return int(self._config.getPtr()), int(self._module.function)

    def close(self) -> None:
        """Unloads; it must not be running."""
        self._module.unload()
