"""A built kernel in the current context, and its launches on one problem: a few microseconds of host time each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from cuda.bindings import driver as cuda

from cudal2.arch import SM90
from cudal2.build.artifact import BuiltKernel
from cudal2.launch.collective import HostLibrary
from cudal2.launch.driver import LaunchError, Module, ZeroedBuffer, error_name
from cudal2.launch.plan import LaunchPlan, ParamSets, Words, plan_launch
from cudal2.launch.slim import without_unread_variables
from cudal2.launch.tensor_map import MapCache
from cudal2.problem import Problem
from cudal2.space.config import KernelConfig, Sm90CollectiveConfig
from cudal2.space.families import family_of


class Memory(Protocol):
    """Device memory that lives as long as the object."""

    @property
    def address(self) -> int:
        """Where it lies."""


#: Gives so many bytes of device memory that are zero for what is enqueued from then on.
Allocate = Callable[[int], Memory]


class LoadedKernel:
    """A cubin loaded for launching; configurations that differ only at run time share one.

    Args:
        built: The cubin.
        config: Any configuration of it; its compile-time axes give the shared memory.

    Raises:
        LaunchError: The driver cannot load it.
    """

    def __init__(self, built: BuiltKernel, config: KernelConfig) -> None:
        """Loads into the current context."""
        self.built = built
        geometry = family_of(config).geometry
        self._host = HostLibrary(built.library_path) if built.library_path is not None else None
        image = without_unread_variables(built.cubin_path.read_bytes())
        self._module = Module(image, built.entry, geometry.smem_bytes(config))
        if geometry.cluster_size(config) > SM90.cluster_size_portable:
            self._module.allow_large_clusters()

    @property
    def function(self) -> Any:
        """The driver's handle."""
        return self._module.function

    def on(
        self,
        config: KernelConfig,
        problem: Problem,
        sm_count: int,
        pdl: bool = False,
        allocate: Allocate = ZeroedBuffer,
    ) -> KernelLaunch:
        """Prepares launches of one configuration of this cubin on one problem."""
        return KernelLaunch(self.function, self.plan(config, problem, sm_count), pdl, allocate)

    def plan(self, config: KernelConfig, problem: Problem, sm_count: int) -> LaunchPlan:
        """The launch of one configuration of this cubin on one problem.

        Raises:
            LaunchError: Its host code does not take the problem.
        """
        if self._host is None:
            return plan_launch(config, problem, sm_count)
        assert isinstance(config, Sm90CollectiveConfig), config.family
        return self._host.plan(config, problem, sm_count)

    def close(self) -> None:
        """Unloads; nothing may be running it."""
        self._module.unload()


class KernelLaunch:
    """One configuration on one problem, ready to be enqueued.

    Args:
        function: The driver's handle.
        plan: Grid, cluster, shared memory.
        pdl: Whether a launch may begin before the previous kernel on its stream has ended.
        allocate: Where a workspace comes from; memory of its own by default.

    Attributes:
        workspace: Address of the workspace of a plan that has one, else 0. Launches that may run at once, on other
            streams or in graphs of their own, each need a ``KernelLaunch`` of their own.

    Raises:
        LaunchError: There is no memory for the workspace.
    """

    def __init__(self, function: Any, plan: LaunchPlan, pdl: bool, allocate: Allocate = ZeroedBuffer) -> None:
        """Builds the launch configuration once."""
        self.plan = plan
        self._buffer = allocate(plan.workspace_bytes) if plan.workspace_bytes else None
        self.workspace = self._buffer.address if self._buffer is not None else 0
        self._function = function
        self._stream = 0
        self._config = _launch_config(plan, pdl)

    def params(self, a: Words, b: Words, c: Words, maps: MapCache | None = None) -> ParamSets:
        """Parameter structs for the operands at the given device addresses, one per buffer set.

        Raises:
            LaunchError: An address or a size that TMA cannot take.
        """
        maps = maps if maps is not None else MapCache()
        return ParamSets(self.plan, a, b, c, maps.maps, self.workspace)

    def handles(self, stream: int) -> tuple[int, int]:
        """Addresses of the ``CUlaunchConfig`` on ``stream`` and of the ``CUfunction``, for callers outside Python.

        Valid while this object lives and launches on no other stream.
        """
        self._config.hStream = self._stream = stream
        return int(self._config.getPtr()), int(self._function)

    def launch(self, kernel_params: int, stream: int) -> None:
        """Enqueues on ``stream``; ``kernel_params`` comes from :meth:`ParamSets.kernel_params`.

        Raises:
            LaunchError: The driver refused; nothing was enqueued.
        """
        if stream != self._stream:
            self._config.hStream = stream
            self._stream = stream
        code = int(cuda.cuLaunchKernelEx(self._config, self._function, kernel_params, 0)[0])
        if code:
            raise LaunchError(code, error_name(code), "cuLaunchKernelEx")


def _launch_config(plan: LaunchPlan, pdl: bool) -> Any:
    config = cuda.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = plan.grid, *plan.grid_yz
    config.blockDimX, config.blockDimY, config.blockDimZ = plan.block, 1, 1
    config.sharedMemBytes = plan.smem_bytes
    attributes = []
    if plan.cluster * plan.cluster_y > 1:
        cluster = cuda.CUlaunchAttribute()
        cluster.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = (
            plan.cluster,
            plan.cluster_y,
            1,
        )
        attributes.append(cluster)
    if pdl:
        overlap = cuda.CUlaunchAttribute()
        overlap.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        overlap.value.programmaticStreamSerializationAllowed = 1
        attributes.append(overlap)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config
