"""The few driver calls a launch needs: the primary context, a module from a cubin, memory, a captured graph.

Decides nothing about what is launched. Shares the primary context with torch, so either may allocate or synchronise.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from cuda.bindings import driver as cuda

from cudal2.errors import Cudal2Error

_RELAXED = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
#: More than a ``sem_t`` takes on any Linux.
_SEMAPHORE_BYTES = 64


class LaunchError(Cudal2Error):
    """The driver refused a call.

    Attributes:
        code: ``CUresult``.
    """

    def __init__(self, code: int, name: str, what: str) -> None:
        """Says which call failed and how."""
        super().__init__(f"{what}: {name} ({code})")
        self.code = code


def check(result: tuple[Any, ...], what: str) -> Any:
    """Takes a binding's result tuple apart.

    Raises:
        LaunchError: Its first element is not ``CUDA_SUCCESS``.
    """
    code = int(result[0])
    if code:
        raise LaunchError(code, error_name(code), what)
    return result[1] if len(result) == 2 else result[1:]


def error_name(code: int) -> str:
    """For example ``CUDA_ERROR_ILLEGAL_ADDRESS``; newer drivers may know codes the bindings lack."""
    try:
        return str(cuda.CUresult(code).name)
    except ValueError:
        return "CUDA_ERROR"


def ensure_context(device_index: int = 0) -> None:
    """Makes the device's primary context current unless this thread has a context already."""
    check(cuda.cuInit(0), "cuInit")
    if int(check(cuda.cuCtxGetCurrent(), "cuCtxGetCurrent")):
        return
    device = check(cuda.cuDeviceGet(device_index), "cuDeviceGet")
    context = check(cuda.cuDevicePrimaryCtxRetain(device), "cuDevicePrimaryCtxRetain")
    check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")


def is_capturing(stream: int) -> bool:
    """Whether what is launched on the stream becomes part of a graph."""
    active = cuda.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    return bool(check(cuda.cuStreamIsCapturing(stream), "cuStreamIsCapturing") == active)


@contextlib.contextmanager
def beside_captures() -> Iterator[None]:
    """Memory may be allocated and given back within, whatever is captured meanwhile, and is no part of it."""
    mode = check(cuda.cuThreadExchangeStreamCaptureMode(_RELAXED), "cuThreadExchangeStreamCaptureMode")
    try:
        yield
    finally:
        check(cuda.cuThreadExchangeStreamCaptureMode(mode), "cuThreadExchangeStreamCaptureMode")


def context_fault() -> str | None:
    """Waits for the device; the name of the error that has made the context useless, if any."""
    code = int(cuda.cuCtxSynchronize()[0])
    return error_name(code) if code else None


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.calloc.argtypes, libc.calloc.restype = (ctypes.c_size_t, ctypes.c_size_t), ctypes.c_void_p
    libc.sem_init.argtypes = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint
    libc.sem_trywait.argtypes = (ctypes.c_void_p,)
    libc.free.argtypes, libc.free.restype = (ctypes.c_void_p,), None
    return libc


class Module:
    """A cubin loaded into the current context, and one kernel of it.

    Raises:
        LaunchError: The image is not for this device, or has no such entry, or wants more shared memory than there is.
    """

    def __init__(self, image: bytes, entry: str, smem_bytes: int) -> None:
        """Loads and opts in to ``smem_bytes`` of dynamic shared memory."""
        self._module: Any = check(cuda.cuModuleLoadData(image), "cuModuleLoadData")
        try:
            self.function: Any = check(cuda.cuModuleGetFunction(self._module, entry.encode()), f"no kernel '{entry}'")
            opt_in = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(cuda.cuFuncSetAttribute(self.function, opt_in, smem_bytes), f"{smem_bytes} bytes of shared memory")
        except LaunchError:
            self.unload()
            raise

    def allow_large_clusters(self) -> None:
        """Opts in to clusters that not every part of the architecture can schedule."""
        opt_in = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        check(cuda.cuFuncSetAttribute(self.function, opt_in, 1), "clusters above the portable size")

    def unload(self) -> None:
        """Gives the code back; nothing may be running it. In a faulted context there is nothing left to give back."""
        if self._module is not None:
            cuda.cuModuleUnload(self._module)
            self._module = None


class ZeroedBuffer:
    """Device memory that was zero when it was made, given back with the object.

    May be made while a stream is captured, of which it then is no part.

    Args:
        size_bytes: How much.

    Attributes:
        address: Where it lies.
        size_bytes: How much there is.

    Raises:
        LaunchError: There is not enough memory.
    """

    def __init__(self, size_bytes: int) -> None:
        """Allocates and clears, and waits until that is done."""
        self.size_bytes = size_bytes
        with beside_captures():
            self.address = int(check(cuda.cuMemAlloc(size_bytes), f"a workspace of {size_bytes} bytes"))
            stream = check(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING), "cuStreamCreate")
            check(cuda.cuMemsetD8Async(self.address, 0, size_bytes, stream), "cuMemsetD8Async")
            check(cuda.cuStreamSynchronize(stream), "cuStreamSynchronize")
            check(cuda.cuStreamDestroy(stream), "cuStreamDestroy")

    def __del__(self) -> None:
        """Waits for what uses it, as ``cuMemFree`` does; in a faulted context there is nothing to give back."""
        address, self.address = getattr(self, "address", 0), 0
        if address:
            with contextlib.suppress(LaunchError), beside_captures():
                cuda.cuMemFree(address)


class GraphWatch:
    """Says when the graph that a stream is being captured into is gone, with every executable made of it.

    The graph owns a user object whose destructor posts a semaphore. The driver holds it until launches under way have
    finished, and calls it on a thread of its own, where neither Python nor the driver may be called (CUDA C++
    Programming Guide, "CUDA User Objects").

    Args:
        stream: Handle of a stream that is being captured.

    Raises:
        LaunchError: The driver refused; nothing is watched.
    """

    def __init__(self, stream: int) -> None:
        """Gives the graph its user object."""
        graph = check(cuda.cuStreamGetCaptureInfo(stream), "cuStreamGetCaptureInfo")[2]
        libc = _libc()
        # Not memory of Python's: a graph may outlive the interpreter.
        self._semaphore = int(libc.calloc(1, _SEMAPHORE_BYTES))
        libc.sem_init(self._semaphore, 0, 0)
        destroy = cuda.CUhostFn(ctypes.cast(libc.sem_post, ctypes.c_void_p).value)
        unsynchronised = cuda.CUuserObject_flags.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
        made = check(cuda.cuUserObjectCreate(self._semaphore, destroy, 1, unsynchronised), "cuUserObjectCreate")
        move = cuda.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE
        try:
            check(cuda.cuGraphRetainUserObject(graph, made, 1, move), "cuGraphRetainUserObject")
        except LaunchError:
            cuda.cuUserObjectRelease(made, 1)
            raise

    def over(self) -> bool:
        """Whether it is gone; host work only."""
        if self._semaphore and not _libc().sem_trywait(self._semaphore):
            _libc().free(self._semaphore)
            self._semaphore = 0
        return not self._semaphore


class Graph:
    """What ``enqueue`` put on ``stream``, captured once and replayed as one submission.

    Args:
        stream: Handle of a stream that is not the legacy default stream.
        enqueue: Launches on that stream; must neither synchronise nor allocate.
        strict: Whether the driver refuses what may synchronise or allocate, for code that is not ours.

    Raises:
        LaunchError: Something enqueued cannot be captured.
    """

    def __init__(self, stream: int, enqueue: Callable[[], None], strict: bool = False) -> None:
        """Captures, instantiates and uploads."""
        # Relaxed: a library may query the device while it is captured; nothing else runs in this process.
        modes = cuda.CUstreamCaptureMode
        mode = modes.CU_STREAM_CAPTURE_MODE_GLOBAL if strict else modes.CU_STREAM_CAPTURE_MODE_RELAXED
        check(cuda.cuStreamBeginCapture(stream, mode), "cuStreamBeginCapture")
        try:
            enqueue()
        except BaseException:
            code, graph = cuda.cuStreamEndCapture(stream)
            if not int(code):
                cuda.cuGraphDestroy(graph)
            raise
        graph = check(cuda.cuStreamEndCapture(stream), "cuStreamEndCapture")
        try:
            # Never cuGraphExecUpdate: a kernel launched without a cluster size keeps that of the graph before, and the
            # last CTAs of a grid that is no multiple of it do not run; of equal kernels without PDL, updated graphs of
            # 96 launches took 3 to 15 % longer than new ones (driver 580.159).
            self._exec: Any = check(cuda.cuGraphInstantiate(graph, 0), "cuGraphInstantiate")
        finally:
            cuda.cuGraphDestroy(graph)
        check(cuda.cuGraphUpload(self._exec, stream), "cuGraphUpload")

    @property
    def handle(self) -> int:
        """Address of the ``CUgraphExec``, for callers outside Python."""
        return int(self._exec)

    def launch(self, stream: int) -> None:
        """Enqueues one replay."""
        check(cuda.cuGraphLaunch(self._exec, stream), "cuGraphLaunch")

    def destroy(self) -> None:
        """Gives the graph back; no replay may be running."""
        if self._exec is not None:
            cuda.cuGraphExecDestroy(self._exec)
            self._exec = None
