"""``native.c`` from Python: contestants that C can submit by itself, and launches submitted in a row. No torch.

A launch from Python takes the host some 8 us, from C about one; a graph of a thousand is captured for every candidate.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cudal2.build.host import compile_shared
from cudal2.errors import EnvironmentProblemError, ToolchainError
from cudal2.launch import tensor_map
from cudal2.launch.driver import LaunchError, error_name
from cudal2.launch.kernel import KernelLaunch
from cudal2.launch.plan import MapSpec, ParamSets
from cudal2.paths import cache_dir

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("native.c")

_Address = ctypes.c_void_p
Operands = NDArray[np.uint64]


@dataclass(frozen=True)
class MatmulArguments:
    """What ``cublasLtMatmul`` takes besides operands and stream, as addresses, in its order; C and D are one."""

    handle: int
    desc: int
    alpha: int
    first: int
    second: int
    beta: int
    out: int
    algorithm: int
    workspace: int
    workspace_bytes: int


@dataclass(frozen=True)
class GemmExArguments:
    """What ``cublasGemmEx`` takes besides operands; its stream is the handle's, set by a launch from Python."""

    handle: int
    alpha: int
    beta: int
    op_first: int
    m: int
    n: int
    k: int
    ld_first: int
    ld_second: int
    ld_out: int
    element: int
    compute: int
    algorithm: int


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


class _Bound(ctypes.Structure):
    _fields_ = [(name, _Address) for name in ("launch", "config", "function", "params")]


class _Contestant(ctypes.Structure):
    _fields_ = [(name, _Address) for name in ("submit", "state", "sets")]


#: A contestant that is submitted by a function of ours in Python: (state, set, operands, stream) -> status.
Submit = ctypes.CFUNCTYPE(ctypes.c_int, _Address, ctypes.c_uint32, _Address, _Address)


@dataclass(frozen=True)
class Submitter:
    """A contestant as the client calls it.

    Attributes:
        submit: Name of a function of ``native.c``, or a function pointer.
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

    def error(self, code: int) -> Exception:
        """What a submission that gave this status raises; a library's status is none of the driver's."""
        if self.raised:
            return self.raised.pop()
        driver = self.submit in ("cudal2_submit_kernel", "cudal2_submit_bound")
        return LaunchError(code, error_name(code) if driver else "CUBLAS_STATUS", "submission")


@runtime_checkable
class NativeContestant(Protocol):
    """A contestant that C may submit."""

    def submitter(self, stream: int) -> Submitter | None:
        """How, on its buffers and this stream; ``None`` if only Python can. Valid while the contestant lives."""


class Library:
    """``native.c``, loaded.

    Args:
        path: The shared library.

    Raises:
        EnvironmentProblemError: It cannot be loaded.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            remedy = "remove it, or set CUDAL2_CACHE_DIR to a folder programs may be loaded from"
            raise EnvironmentProblemError(f"{path} cannot be loaded ({error}): {remedy}") from error

    def function(self, name: str) -> Any:
        """One of its functions."""
        return getattr(self._library, name)

    def contestant(self, submitter: Submitter) -> Any:
        """The submitter as its functions take it, by reference."""
        submit = submitter.submit
        function = self.function(submit) if isinstance(submit, str) else submit
        state = ctypes.addressof(submitter.state) if submitter.state is not None else 0
        return ctypes.byref(_Contestant(address(function), state, submitter.operands.ctypes.data))

    def enqueue(self, submitter: Submitter, launches: int, sets: int, stream: int) -> None:
        """Launches that rotate over the first ``sets`` buffer sets, not waited for.

        Raises:
            LaunchError: One was refused; those before it are on the stream.
        """
        count, of = ctypes.c_uint32(launches), ctypes.c_uint32(sets)
        code = self.function("cudal2_enqueue")(self.contestant(submitter), count, of, _Address(stream))
        if code:
            raise submitter.error(code)


@functools.cache
def library() -> Library | None:
    """``native.c``, compiled at first use; ``None``, said once, where that cannot be: Python then submits, slower."""
    try:
        return Library(compile_shared(SOURCE, cache_dir() / "build"))
    except (ToolchainError, EnvironmentProblemError) as error:
        logger.info("graphs are captured from Python, which takes longer: %s", error)
        return None


def address(function: Any) -> int:
    """Where a foreign function or a callback is."""
    return int(ctypes.cast(function, _Address).value or 0)


def driver_function(name: str) -> int:
    """A function of the driver.

    Raises:
        EnvironmentProblemError: The driver is missing, or too old to have it.
    """
    return _function("libcuda.so.1", name)


@functools.cache
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
        raise EnvironmentProblemError(f"submitting without Python needs {name}: {error}") from error


def bound_submitter(launch: KernelLaunch, params: ParamSets, stream: int) -> Submitter:
    """A kernel of ours on buffers its parameters were made for."""
    config, function = launch.handles(stream)
    state = _Bound(driver_function("cuLaunchKernelEx"), config, function, params.kernel_params(0))
    return Submitter("cudal2_submit_bound", state, np.zeros((len(params.structs), 3), np.uint64), (launch, params))


def kernel_submitter(launch: KernelLaunch, stream: int, operands: Operands) -> Submitter:
    """A kernel of ours; its tensor maps of operands are encoded per request."""
    config, function = launch.handles(stream)
    params, plan = ParamSets.blank(launch.plan, launch.workspace, tensor_map.encode_all), launch.plan
    specs = {"a": plan.a, "b": plan.b, "c": plan.c}
    maps = (_map(None if name in plan.copy_bytes else spec, params.field(name)) for name, spec in specs.items())
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
