"""``hgemm``: a drop-in for ``torch.matmul`` on fp16 and bf16 CUDA matrices that launches the kernel table's winner.

Anything the table or its kernels do not serve goes to ``torch.matmul``, with the reason logged once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch

from cudal2.codegen import generator_version
from cudal2.errors import EnvironmentProblemError, NothingValidError, TableError, UsageError
from cudal2.launch.driver import ensure_context
from cudal2.problem import Acc, Dtype, Layout, Problem
from cudal2.runtime.kernels import DeviceKernels, NoWorkspaceError, Route, forget_parameters
from cudal2.runtime.operands import ALIGNMENT_BYTES, Operand, derive_problem, overlap
from cudal2.table import Device, KernelTable

logger = logging.getLogger(__name__)

TableLike: TypeAlias = KernelTable | Path | str | None
Key: TypeAlias = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device, torch.layout]

#: Distinct fallbacks that are logged; a program with ever new shapes would fill its log otherwise.
_MAX_SAID = 500

#: Anything else stands for a tensor (a fake one, a distributed one) and has no address to launch with.
_PLAIN = (torch.Tensor, torch.nn.Parameter)

_thread = threading.local()
_said: set[str] = set()
_counts: Counter[str] = Counter()


def hgemm(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None = None,
    table: TableLike = None,
    *,
    acc: Acc = "fp32",
    strict: bool = False,
) -> torch.Tensor:
    """Multiplies two matrices by the fastest kernel known for their shape, on the current stream.

    Never synchronises, and can be captured in a CUDA graph once the kernel is loaded (:func:`warmup`). Differentiable,
    and traceable by ``torch.compile``. Allocates nothing but the result; and a workspace, some 32 MiB at most where the
    kernel splits K through one, 512 MiB more where it copies operands that TMA cannot read: at the first call of a
    shape on a stream, and in every call that a graph captures, given back once the graph is gone and another such call
    is captured. All together take 2 GiB at most; where that is taken, or the memory is, ``torch.matmul`` steps in, and
    :func:`reset` gives back what no graph holds.

    Args:
        a: [m, k], fp16 or bf16, dense row-major.
        b: [k, n], of the same type, dense: row-major, or K-major as the ``.t()`` of a row-major [n, k].
        out: [m, n], of the same type, where to put the result; must not overlap ``a`` or ``b``.
        table: A table or its file; by default the first fit on the search path (:meth:`KernelTable.load`).
        acc: Accumulator; fp32 for bf16.
        strict: Raise where ``torch.matmul`` would have to step in. Sizes of which TMA cannot read the rows, and which
            are like none that was measured, are an untuned kernel's, not an error.

    Raises:
        UsageError: The shapes do not match, or ``out`` cannot hold the result.
        TableError: The table given is for another device, accumulator, layout or type.
        NotLoadedError: A CUDA graph is being captured and the kernel is not loaded.
        NothingValidError: With ``strict``: why no kernel of ours can do it.
    """
    tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    if not tensors or not (out is None or isinstance(out, torch.Tensor)):
        kinds = ", ".join(f"{name} is a {type(given).__name__}" for name, given in (("a", a), ("b", b), ("out", out)))
        raise UsageError(f"hgemm takes torch tensors: {kinds}")
    needs_grad = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    if out is not None and needs_grad:
        raise UsageError("out= does not go with tensors that require gradients")
    traced = torch.compiler.is_compiling() or type(a) not in _PLAIN or type(b) not in _PLAIN
    if not traced and not needs_grad:
        return _run(a, b, out, table, acc, strict)
    if a.dim() != 2 or b.dim() != 2:
        return torch.matmul(a, b, out=out)
    if table is not None:
        raise UsageError(
            "under torch.compile or autograd the default table is used: set CUDAL2_TABLE_PATH instead of table="
        )
    if out is not None:
        _hgemm_out(a, b, out, acc, strict)
        return out
    return cast(torch.Tensor, _hgemm(a, b, acc, strict))


def warmup(
    shapes: Iterable[str | tuple[int, int, int]],
    table: TableLike = None,
    *,
    acc: Acc = "fp32",
    layout: Layout = "tn",
    dtype: Dtype = "fp16",
    device: int | None = None,
    strict: bool = False,
) -> dict[str, str]:
    """Loads the kernels of these shapes, compiling those that are not in the build cache.

    Args:
        shapes: As ``M_N_K`` or (m, n, k).
        table: As in :func:`hgemm`.
        acc: Accumulator.
        layout: Layout of B.
        dtype: Type of the matrices.
        device: Index of the GPU; the current one by default.
        strict: As in :func:`hgemm`.

    Returns:
        Shape -> name of the kernel that will run, or ``torch.matmul: `` and the reason.

    Raises:
        EnvironmentProblemError: There is no GPU.
    """
    if not torch.cuda.is_available():
        raise EnvironmentProblemError("torch sees no CUDA GPU to load kernels on: hgemm calls torch.matmul here")
    index = torch.cuda.current_device() if device is None else device
    done = {}
    with _on(index):
        for shape in shapes:
            sizes = Problem.parse(shape) if isinstance(shape, str) else Problem(*shape)
            route = _device_route(index, Problem(sizes.m, sizes.n, sizes.k, acc, layout, dtype), table, strict)
            done[sizes.mnk] = f"torch.matmul: {route.reason}" if route.reason else route.name
    return done


def stats() -> dict[str, int]:
    """Calls by what served them: a kernel's name, or ``torch.matmul: `` and the reason; threads may lose a few."""
    return dict(_counts)


def reset() -> None:
    """Forgets tables, routes, counts and what was logged, so that tables are read again; kernels stay loaded."""
    for cached in (_route, _default_table, _table_file):
        cached.cache_clear()
    forget_parameters()
    _said.clear()
    _counts.clear()


def _run(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, table: TableLike, acc: Acc, strict: bool
) -> torch.Tensor:
    found = _route(_key(a), _key(b), None if out is None else _key(out), table, acc, strict)
    if isinstance(found, str):
        return _matmul(a, b, out, found, strict)
    if found.reason:
        return _matmul(a, b, out, found.reason, strict, quiet=found.expected)
    reason = _misplaced(a, b, out)
    if reason:
        return _matmul(a, b, out, reason, strict)
    index = a.get_device()
    with _on(index):
        c = torch.empty(found.shape, dtype=a.dtype, device=a.device) if out is None else out
        try:
            found.launch(a.data_ptr(), b.data_ptr(), c.data_ptr(), torch.cuda.current_stream(index).cuda_stream)
        except NoWorkspaceError as error:
            return _matmul(a, b, out, str(error), strict)
    _counts[found.name] += 1
    return c


def _key(tensor: torch.Tensor) -> Key:
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    return tensor.shape, strides, tensor.dtype, tensor.device, tensor.layout


def _operand(key: Key) -> Operand:
    shape, strides, dtype, device, layout = key
    kind = str(dtype if layout is torch.strided else layout).removeprefix("torch.")
    return Operand(tuple(shape), strides, kind, str(device))


@lru_cache(maxsize=4096)
def _route(a: Key, b: Key, out: Key | None, table: TableLike, acc: Acc, strict: bool) -> Route | str:
    problem = derive_problem(_operand(a), _operand(b), None if out is None else _operand(out), acc)
    if isinstance(problem, str):
        return problem
    index = a[3].index
    with _on(index):
        return _device_route(index, problem, table, strict)


def _device_route(index: int, problem: Problem, table: TableLike, strict: bool) -> Route:
    kernels = _device_kernels(index)
    if table is None:
        found = _default_table(kernels.device, *problem.signature)
        if isinstance(found, str):
            return Route(problem, found)
        table = found
    else:
        table = table if isinstance(table, KernelTable) else _table_file(Path(table))
        table.check(kernels.device, *problem.signature)
    return kernels.route(problem, table, torch.cuda.is_current_stream_capturing(), strict)


@cache
def _device_kernels(index: int) -> DeviceKernels:
    properties = torch.cuda.get_device_properties(index)
    capability = (properties.major, properties.minor)
    return DeviceKernels(
        Device.from_memory(capability, properties.multi_processor_count, properties.total_memory / 2**30)
    )


@cache
def _default_table(device: Device, acc: Acc, layout: Layout, dtype: Dtype) -> KernelTable | str:
    try:
        table = KernelTable.load(None, device, acc, layout, dtype)
    except TableError as error:
        return str(error)
    _say_what_differs(table)
    return table


@lru_cache(maxsize=64)
def _table_file(path: Path) -> KernelTable:
    table = KernelTable.load(path)
    _say_what_differs(table)
    return table


def _say_what_differs(table: KernelTable) -> None:
    versions = {"generator_version": generator_version(*table.families)} if table.families else {}
    here = {"cuda": str(torch.version.cuda)} | versions
    if table.header.tuned_elsewhere:
        _say_once(f"table {table.path}: {table.header.soft['gpu']}, nothing was measured on a GPU like this one")
    for difference in table.header.soft_differences(here):
        _say_once(f"table {table.path}: {difference}; its choices serve, its times may differ: measure anew to know")


def _misplaced(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None) -> str:
    """Why these very addresses do not do; shapes and strides have been found good."""
    named = {"a": a, "b": b} if out is None else {"a": a, "b": b, "out": out}
    for name, tensor in named.items():
        if tensor.data_ptr() % ALIGNMENT_BYTES:
            return f"{name} does not start on a {ALIGNMENT_BYTES}-byte boundary"
    if out is not None and any(overlap(_extent(out), _extent(operand)) for operand in (a, b)):
        return "out overlaps an operand"
    return ""


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def _matmul(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, reason: str, strict: bool, quiet: bool = False
) -> torch.Tensor:
    if strict:
        raise NothingValidError(f"hgemm: {reason}")
    _counts[f"torch.matmul: {reason}"] += 1
    if not quiet:
        _say_once(f"hgemm calls torch.matmul: {reason}")
    if out is not None and any(_shares_memory(out, operand) for operand in (a, b)):
        # torch.matmul would read operands that it has overwritten already, and say nothing.
        return out.copy_(torch.matmul(a, b))
    return torch.matmul(a, b, out=out)


def _shares_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.layout is not torch.strided or other.layout is not torch.strided or one.device != other.device:
        return False
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _say_once(message: str) -> None:
    if message not in _said and len(_said) < _MAX_SAID:
        _said.add(message)
        logger.warning("%s", message)


def _on(index: int) -> contextlib.AbstractContextManager[Any]:
    """Makes the GPU current, and its primary context if this thread has none yet."""
    guard = contextlib.nullcontext() if torch.cuda.current_device() == index else torch.cuda.device(index)
    if not getattr(_thread, "bound", False):
        with guard:
            ensure_context(index)
        _thread.bound = True
    return guard


@torch.library.custom_op("cudal2::hgemm", mutates_args=())
def _hgemm(a: torch.Tensor, b: torch.Tensor, acc: str, strict: bool) -> torch.Tensor:
    return _run(a, b, None, None, cast(Acc, acc), strict)


@_hgemm.register_fake
def _hgemm_fake(a: torch.Tensor, b: torch.Tensor, acc: str, strict: bool) -> torch.Tensor:
    _check(a.shape[1] == b.shape[0], f"a is {tuple(a.shape)} and b is {tuple(b.shape)}")
    return a.new_empty((a.shape[0], b.shape[1]))


def _save_operands(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, ctx.acc, _ = inputs
    ctx.save_for_backward(a, b)


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
    a, b = ctx.saved_tensors
    grad_a = _hgemm(grad.contiguous(), b.t(), ctx.acc, False) if ctx.needs_input_grad[0] else None
    grad_b = _hgemm(a.t(), grad, ctx.acc, False) if ctx.needs_input_grad[1] else None
    return grad_a, grad_b, None, None


_hgemm.register_autograd(_gradients, setup_context=_save_operands)


@torch.library.custom_op("cudal2::hgemm_out", mutates_args=("out",))
def _hgemm_out(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, acc: str, strict: bool) -> None:
    _run(a, b, out, None, cast(Acc, acc), strict)


@_hgemm_out.register_fake
def _hgemm_out_fake(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, acc: str, strict: bool) -> None:
    shapes = f"a is {tuple(a.shape)}, b is {tuple(b.shape)} and out is {tuple(out.shape)}"
    _check(a.shape[1] == b.shape[0] and out.shape == (a.shape[0], b.shape[1]), shapes)


def _check(holds: bool, shapes: str) -> None:
    torch._check(holds, lambda: f"hgemm: {shapes}")  # type: ignore[no-untyped-call]
