"""``client.c`` from Python: its structs, what it calls, and the contestants it can submit by itself. No torch.

Server mode times what happens between an arrival and the completion, so that nothing of Python may run in between.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudal2.bench.baselines.cublaslt import GemmExArguments, MatmulArguments
from cudal2.errors import EnvironmentProblemError
from cudal2.launch import tensor_map
from cudal2.launch.driver import LaunchError, error_name
from cudal2.launch.kernel import KernelLaunch
from cudal2.launch.plan import MapSpec, ParamSets

SOURCE = Path(__file__).with_name("client.c")
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
Operands = NDArray[np.uint64]


class _TensorMap(ctypes.Structure):
    _fields_ = [
        ("map", _Address),
        ("sizes", ctypes.c_uint64 * 2),
        ("row_bytes", ctypes.c_uint64),
        ("box", ctypes.c_uint32 * 2),
        *((name, ctypes.c_int32) for name in ("dtype", "interleave", "swizzle", "l2_promotion", "fill")),
    ]


class _Kernel(ctypes.Structure):
    _fields_ = [
        *((name, _Address) for name in ("encode", "launch", "config", "function", "params")),
        ("slots", _Address * 3),
        ("maps", _TensorMap * 3),
    ]


class _Matmul(ctypes.Structure):
    _fields_ = [
        *((name, _Address) for name in ("matmul", "handle", "desc", "alpha", "first", "second", "beta", "out")),
        *((name, _Address) for name in ("algorithm", "workspace")),
        ("workspace_bytes", ctypes.c_uint64),
    ]


class _Gemm(ctypes.Structure):
    _fields_ = [
        *((name, _Address) for name in ("gemm", "handle", "alpha", "beta")),
        *((name, ctypes.c_int32) for name in ("op_first", "m", "n", "k", "ld_first", "ld_second", "ld_out")),
        *((name, ctypes.c_int32) for name in ("type", "compute", "algorithm")),
    ]


class _Contestant(ctypes.Structure):
    _fields_ = [(name, _Address) for name in ("submit", "state", "sets")]


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


#: A contestant that is submitted by a function of ours in Python: (state, set, operands, stream) -> status.
Submit = ctypes.CFUNCTYPE(ctypes.c_int, _Address, ctypes.c_uint32, _Address, _Address)


@dataclass(frozen=True)
class Submitter:
    """A contestant as the client calls it.

    Attributes:
        submit: Name of a function of ``client.c``, or a function pointer.
        state: What that function takes; a ctypes structure, or nothing.
        operands: Addresses of A, B and C, one row per buffer set.
        kept: What must live as long: addresses of it are in ``state``.
        raised: Exceptions of a function in Python, which C cannot pass on.
    """

    submit: Any
    state: Any
    operands: Operands
    kept: Any = field(default=None, repr=False)
    raised: list[Exception] = field(default_factory=list)

    def on(self, operands: Operands) -> Submitter:
        """The same on other buffers."""
        return replace(self, operands=operands)


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


def address(function: Any) -> int:
    """Where a foreign function or a callback is."""
    return int(ctypes.cast(function, _Address).value or 0)


def driver_function(name: str) -> int:
    """A function of the driver.

    Raises:
        EnvironmentProblemError: The driver is missing, or too old to have it.
    """
    return _function("libcuda.so.1", name)


def loaded_function(stem: str, name: str) -> int:
    """A function of the one library of that name this process has loaded, which is the one that made our handles.

    Args:
        stem: Such as ``libcublasLt.so``.
        name: The function.

    Raises:
        EnvironmentProblemError: None is loaded, or several.
    """
    columns = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    paths = {row[5] for row in columns if len(row) == 6 and Path(row[5]).name.startswith(stem)}
    if len(paths) != 1:
        found = ", ".join(sorted(paths)) or "none"
        raise EnvironmentProblemError(f"one {stem} must be loaded, found {found}: unset LD_LIBRARY_PATH and LD_PRELOAD")
    return _function(paths.pop(), name)


@functools.cache
def _function(library: str, name: str) -> int:
    try:
        return address(getattr(ctypes.CDLL(library), name))
    except (OSError, AttributeError) as error:
        raise EnvironmentProblemError(f"server mode needs {name}: {error}") from error


def kernel_submitter(launch: KernelLaunch, stream: int, operands: Operands) -> Submitter:
    """A kernel of ours; its tensor maps are encoded per request."""
    config, function = launch.handles(stream)
    params, plan = ParamSets.blank(launch.plan), launch.plan
    maps = (_map(spec, params.field(name)) for name, spec in (("a", plan.a), ("b", plan.b), ("c", plan.c)))
    encode, submit = (driver_function(name) for name in ("cuTensorMapEncodeTiled", "cuLaunchKernelEx"))
    slots = (_Address * 3)(*(params.field(name) or None for name in ("a_ptr", "b_ptr", "c_ptr")))
    state = _Kernel(encode, submit, config, function, params.kernel_params(0), slots)
    state.maps = (_TensorMap * 3)(*maps)
    return Submitter("cudal2_submit_kernel", state, operands, (launch, params))


def launch_submitter(config: int, function: int, operands: Operands, kept: Any) -> Submitter:
    """A kernel without parameters."""
    state = _Kernel(0, driver_function("cuLaunchKernelEx"), config, function)
    return Submitter("cudal2_submit_kernel", state, operands, kept)


def _map(spec: MapSpec | None, slot: int) -> _TensorMap:
    if spec is None:
        return _TensorMap()
    shape = (ctypes.c_uint64 * 2)(spec.columns, spec.rows)
    box = (ctypes.c_uint32 * 2)(spec.box_columns, spec.box_rows)
    return _TensorMap(slot, shape, spec.row_bytes, box, tensor_map.DATA_TYPES[spec.dtype], *tensor_map.modes(spec))


def library_submitter(arguments: MatmulArguments | GemmExArguments, operands: Operands) -> Submitter:
    """A call of cuBLASLt or cuBLAS.

    Raises:
        EnvironmentProblemError: The library is not loaded, or twice.
    """
    if isinstance(arguments, MatmulArguments):
        function = loaded_function("libcublasLt.so", "cublasLtMatmul")
        return Submitter("cudal2_submit_matmul", _Matmul(function, *astuple(arguments)), operands, arguments)
    function = loaded_function("libcublas.so", "cublasGemmEx")
    return Submitter("cudal2_submit_gemm", _Gemm(function, *astuple(arguments)), operands, arguments)


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
        library: ``client.c``, compiled.
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
        try:
            self._library = ctypes.CDLL(str(library))
        except OSError as error:
            remedy = "remove it, or set CUDAL2_CACHE_DIR to a folder programs may be loaded from"
            raise EnvironmentProblemError(f"{library} cannot be loaded ({error}): {remedy}") from error
        # One cache line and more between flags that the device and the host write.
        done, gate, load_done = (flags + 128 * index for index in range(3))
        self._state = _Client(
            stream=stream, load_stream=load_stream, start=events[0], end=events[1], done=done, gate=gate,
            load_done=load_done, **{"now": address(self._library.cudal2_now), **functions},
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
        self._check(self._library.cudal2_submit(*self._who(submitter), ctypes.c_uint32(index)), submitter)

    def serve(self, submitter: Submitter, arrivals_us: NDArray[np.float64], sets: int) -> Served:
        """Serves requests as they arrive, over the first ``sets`` buffer sets in turn.

        Raises:
            LaunchError: A submission, or the stream, failed.
        """
        arrivals, count = _nanoseconds(arrivals_us)
        latency, queue, host = (np.zeros(len(arrivals), np.uint64) for _ in range(3))
        unflushed = ctypes.c_uint32()
        code = self._library.cudal2_serve(
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
        code = self._library.cudal2_time(
            *self._who(submitter), _pointer(arrivals), count, ctypes.c_uint32(sets), _pointer(device_ms)
        )
        self._check(code, submitter)
        return device_ms.astype(np.float64) * 1e3

    def _who(self, submitter: Submitter) -> tuple[Any, Any]:
        submit = submitter.submit
        function = getattr(self._library, submit) if isinstance(submit, str) else submit
        state = ctypes.addressof(submitter.state) if submitter.state is not None else 0
        contestant = _Contestant(address(function), state, submitter.operands.ctypes.data)
        return ctypes.byref(self._state), ctypes.byref(contestant)

    def _check(self, code: int, submitter: Submitter) -> None:
        if not code:
            return
        if submitter.raised:
            raise submitter.raised.pop()
        what = (self._state.failed or b"the client").decode()
        # A library's status is none of the driver's.
        library = what == "submission" and submitter.submit != "cudal2_submit_kernel"
        raise LaunchError(code, "CUBLAS_STATUS" if library else error_name(code), what)


def _nanoseconds(times_us: NDArray[np.float64]) -> tuple[NDArray[np.uint64], Any]:
    return np.ascontiguousarray(np.round(times_us * 1e3), np.uint64), ctypes.c_uint32(len(times_us))


def _pointer(array: NDArray[Any]) -> Any:
    return ctypes.c_void_p(array.ctypes.data)
