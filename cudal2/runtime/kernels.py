"""The kernels one GPU has loaded, and which of them a table assigns to a problem."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial

import numpy as np

from cudal2.arch import SM90, Arch, arch_of
from cudal2.build.artifact import CompileFailure
from cudal2.build.cache import BuildCache, resolve_toolchain
from cudal2.build.pool import build_here
from cudal2.codegen import build_key
from cudal2.errors import Cudal2Error, NotLoadedError
from cudal2.launch.driver import GraphWatch, LaunchError, is_capturing
from cudal2.launch.kernel import KernelLaunch, LoadedKernel
from cudal2.launch.plan import LaunchPlan, MapSpec, ParamSets, Words
from cudal2.launch.tensor_map import encode
from cudal2.problem import Problem
from cudal2.space.config import KernelConfig
from cudal2.space.defaults import fallback_config
from cudal2.table import Device, KernelTable

logger = logging.getLogger(__name__)

#: Streams a route keeps a launch for; a launch belongs to one stream, so that threads need no lock.
_MAX_STREAMS = 64

#: Device memory that the workspaces of all routes may take: ever new shapes with copies would fill the GPU.
_MAX_WORKSPACE_BYTES = 2 * 2**30

#: Launches with a workspace that captured graphs hold, and what says when a graph is gone; ``None`` if nothing does.
_in_graphs: list[tuple[KernelLaunch, GraphWatch | None]] = []
_in_graphs_lock = threading.Lock()
_held_bytes = 0
_held_lock = threading.RLock()  # a workspace may be given back while another is counted

Loader = Callable[[KernelConfig, Problem], LoadedKernel]


class NoWorkspaceError(Cudal2Error):
    """There is no device memory for a launch's workspace."""


def _hold(size_bytes: int) -> None:
    """Counts a workspace that is made, or with a negative size one that is given back."""
    global _held_bytes
    with _held_lock:
        if size_bytes > 0 and _held_bytes + size_bytes > _MAX_WORKSPACE_BYTES:
            raise NoWorkspaceError(
                f"{size_bytes} bytes of workspace besides the {_held_bytes} of other shapes and streams are more than "
                f"{_MAX_WORKSPACE_BYTES}: cudal2.runtime.reset() gives those back"
            )
        _held_bytes += size_bytes


@dataclass(eq=False)
class Route:
    """What a call of one problem does: launch this, or leave it to another library for this reason.

    Attributes:
        problem: What is computed.
        reason: Why not our kernel; empty if it is ours.
        expected: Whether the table itself names the other library, which is no news to anyone.
        kernel: The loaded cubin; ``None`` with a reason.
        config: Its configuration on this problem.
        sm_count: Multiprocessors to spread a persistent grid over.
        pdl: Whether to launch with programmatic dependent launch.
    """

    problem: Problem
    reason: str = ""
    expected: bool = False
    kernel: LoadedKernel | None = None
    config: KernelConfig | None = None
    sm_count: int = 0
    pdl: bool = False
    _launches: dict[int, KernelLaunch] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Derives what every call needs."""
        self.shape = (self.problem.m, self.problem.n)
        self.name = self.config.name if self.config is not None else ""

    @cached_property
    def plan(self) -> LaunchPlan:
        """Grid, shared memory and tensor-map geometry, the same for every call."""
        assert self.config is not None and self.kernel is not None, self.reason
        return self.kernel.plan(self.config, self.problem, self.sm_count)

    def launch(self, a: int, b: int, c: int, stream: int) -> None:
        """Enqueues on the stream; no synchronisation, nor allocation on the device but that of a workspace.

        A kernel that needs one has a workspace for each stream, made by the first call there, and one for each call
        that a graph captured. Those of graphs that are gone are given back when the next such call is captured.

        Raises:
            LaunchError: The driver refused; nothing was enqueued.
            NoWorkspaceError: There is no memory for a workspace; nothing was enqueued.
        """
        launch = self._launches.get(stream)
        if launch is None:
            launch = self._prepare(stream)
        elif launch.workspace and is_capturing(stream):
            launch = self._captured(stream)
        launch.launch(_params(self, a, b, c, launch.workspace).kernel_params(0), stream)

    def _prepare(self, stream: int) -> KernelLaunch:
        if self.plan.workspace_bytes and is_capturing(stream):
            return self._captured(stream)
        if len(self._launches) >= _MAX_STREAMS:
            self._launches = {}
        return self._launches.setdefault(stream, self._new_launch())

    def _captured(self, stream: int) -> KernelLaunch:
        """One more launch of its own: a graph may be replayed beside the stream it was captured on, at any time."""
        with _in_graphs_lock:
            _in_graphs[:] = [(held, watch) for held, watch in _in_graphs if watch is None or not watch.over()]
            launch = self._new_launch()
            try:
                _in_graphs.append((launch, GraphWatch(stream)))
            except LaunchError as error:
                logger.warning("a graph keeps a workspace of %d bytes for good: %s", self.plan.workspace_bytes, error)
                _in_graphs.append((launch, None))
        return launch

    def _new_launch(self) -> KernelLaunch:
        assert self.kernel is not None, self.reason
        size_bytes = self.plan.workspace_bytes
        if not size_bytes:
            return KernelLaunch(self.kernel.function, self.plan, self.pdl)
        _hold(size_bytes)
        try:
            launch = KernelLaunch(self.kernel.function, self.plan, self.pdl)
        except LaunchError as error:
            _hold(-size_bytes)
            raise NoWorkspaceError(str(error)) from error
        weakref.finalize(launch, _hold, -size_bytes)
        return launch

    def packed(self, a: int, b: int, c: int, workspace: int = 0) -> ParamSets:
        """Parameters for operands and workspace at these addresses; host work only."""
        one, two, three = (np.array([address], np.uint64) for address in (a, b, c))
        return ParamSets(self.plan, one, two, three, lambda spec, at: _map(spec, int(at[0])), workspace)


@lru_cache(maxsize=4096)
def _params(route: Route, a: int, b: int, c: int, workspace: int) -> ParamSets:
    """Allocators hand out the same addresses again and again; what is keyed by them stays true whatever lies there."""
    return route.packed(a, b, c, workspace)


@lru_cache(maxsize=8192)
def _map(spec: MapSpec, address: int) -> Words:
    return encode(spec, address)[None]


def forget_parameters() -> None:
    """Lets go of routes that are kept for their parameters, and so of their workspaces."""
    _params.cache_clear()


class DeviceKernels:
    """Modules of one GPU, loaded once and never unloaded; safe to share between threads.

    Args:
        device: What the GPU is.
        load: Builds and loads a kernel in the current context; another one for tests.
    """

    def __init__(self, device: Device, load: Loader | None = None) -> None:
        """Loads nothing yet."""
        self.device = device
        self._arch = replace(arch_of(device.capability) or SM90, sm_count=device.sm_count)
        self._load = load or partial(build_and_load, arch=self._arch)
        self._lock = threading.Lock()
        self._loaded: dict[str, LoadedKernel | str] = {}

    def route(self, problem: Problem, table: KernelTable, capturing: bool = False, unmeasured: bool = False) -> Route:
        """What to do with a problem.

        Args:
            problem: What is computed.
            table: Of this device, accumulator and layout.
            capturing: Whether a CUDA graph is being captured, when nothing may be loaded.
            unmeasured: Whether an untuned kernel is better than another library's where the table has none to use.

        Raises:
            NotLoadedError: The kernel has to be loaded first, and a graph is being captured.
        """
        entry = table.best(problem.m, problem.n, problem.k)
        config = entry.config if entry is not None else fallback_config(problem, self._arch)
        if entry is None and not (config and unmeasured):
            why = table.explain(problem.m, problem.n, problem.k)
            remedy = f"`python -m cudal2.train --arch {self._arch.name} --shapes {problem.mnk}` finds one"
            return Route(problem, f"{why}; {'strict=True runs an untuned one' if config else remedy}")
        if config is None:
            assert entry is not None
            return Route(problem, f"the table prefers {entry.baseline}: {entry.reason}", expected=True)
        kernel = self._kernel(config, problem, capturing)
        if isinstance(kernel, str):
            return Route(problem, f"{config.name} cannot be loaded: {kernel}")
        pdl = entry is not None and entry.pdl
        return Route(problem, "", False, kernel, config, self.device.sm_count, pdl)

    def _kernel(self, config: KernelConfig, problem: Problem, capturing: bool) -> LoadedKernel | str:
        key = build_key(config, *problem.signature)
        if key in self._loaded:
            return self._loaded[key]
        if capturing:
            raise NotLoadedError(
                f"the kernel of {problem.mnk} is not loaded and a CUDA graph is being captured: "
                f"call cudal2.runtime.warmup(['{problem.mnk}']) before the capture, with strict=True if the call has it"
            )
        with self._lock:
            if key not in self._loaded:
                self._loaded[key] = self._try_load(config, problem)
        return self._loaded[key]

    def _try_load(self, config: KernelConfig, problem: Problem) -> LoadedKernel | str:
        try:
            return self._load(config, problem)
        except Cudal2Error as error:
            return str(error)


def build_and_load(config: KernelConfig, problem: Problem, arch: Arch = SM90) -> LoadedKernel:
    """Takes the cubin from the build cache, compiling it if it is not there, and loads it.

    Raises:
        LaunchError: The driver cannot load it, or it does not build.
        ToolchainError: It is not in the cache and this machine cannot compile.
    """
    cache = BuildCache()
    built = build_here((config, *problem.signature), cache, resolve_toolchain(cache, arch))
    if isinstance(built, CompileFailure):
        raise LaunchError(0, "CUDAL2_NOT_BUILT", built.reason)
    logger.info("loading %s for %s", built.name, problem.mnk)
    return LoadedKernel(built, config)
