"""From shapes and strides to a problem our kernels can take, or the reason they cannot. No torch, no device."""

from __future__ import annotations

from dataclasses import dataclass

from cudal2.errors import UsageError
from cudal2.problem import Acc, Dtype, Layout, Problem

#: TMA and the vector stores want operands to start on such a boundary.
ALIGNMENT_BYTES = 16
#: By torch's names without ``torch.``.
DTYPES: dict[str, Dtype] = {"float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class Operand:
    """What of a tensor decides how it can be read.

    Attributes:
        shape: Sizes.
        strides: Elements between neighbours along each axis.
        dtype: Torch's name without ``torch.``.
        device: Torch's name, for example ``cuda:0``.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str = "float16"
    device: str = "cuda:0"


def derive_problem(a: Operand, b: Operand, out: Operand | None = None, acc: Acc = "fp32") -> Problem | str:
    """The problem these operands pose to our kernels, or one line why another library has to solve it.

    Raises:
        UsageError: The operands cannot be multiplied by anything, or ``out`` cannot hold the result.
    """
    if len(a.shape) == len(b.shape) == 2:
        _check_sizes(a.shape, b.shape, out)
    reason = _foreign(a, b, out)
    if reason:
        return reason
    (m, k), (_, n) = a.shape, b.shape
    if 0 in (m, n, k):
        return "a size is 0"
    layout = b_layout(b)
    if not _dense(a.shape, a.strides):
        return f"a has strides {a.strides}, not the {(k, 1)} of a dense row-major matrix"
    if layout is None:
        return f"b has strides {b.strides}: neither dense row-major {(n, 1)} nor dense K-major {(1, k)}"
    if out is not None and not _dense(out.shape, out.strides):
        return f"out has strides {out.strides}, not the {(n, 1)} of a dense row-major matrix"
    try:
        return Problem(m, n, k, acc, layout, DTYPES[a.dtype])
    except UsageError as error:
        return str(error)


def b_layout(b: Operand) -> Layout | None:
    """``tn`` if K is contiguous, ``nn`` if N is; where a size of 1 leaves both open, ``tn``, which asks less of N."""
    k, n = b.shape
    if _dense((n, k), b.strides[::-1]):
        return "tn"
    return "nn" if _dense((k, n), b.strides) else None


def overlap(first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Whether two address ranges (start, bytes) share memory."""
    return first[0] < second[0] + second[1] and second[0] < first[0] + first[1]


def _check_sizes(a: tuple[int, ...], b: tuple[int, ...], out: Operand | None) -> None:
    """Matrices that nothing can multiply, or an ``out`` that torch.matmul would resize behind the caller's back."""
    (m, k), (inner, n) = a, b
    if k != inner:
        raise UsageError(f"a is {m} x {k} and b is {inner} x {n}: the inner sizes differ")
    if out is not None and out.shape != (m, n):
        raise UsageError(f"out is {' x '.join(map(str, out.shape))}, the result is {m} x {n}")


def _foreign(a: Operand, b: Operand, out: Operand | None) -> str:
    named = [("a", a), ("b", b)] + ([("out", out)] if out is not None else [])
    for name, operand in named:
        if len(operand.shape) != 2:
            return f"{name} has {len(operand.shape)} dimensions; 2 are served"
        if operand.dtype not in DTYPES:
            return f"{name} is {operand.dtype}; {' and '.join(DTYPES)} are served"
        if operand.dtype != a.dtype:
            return f"{name} is {operand.dtype}, a is {a.dtype}; one type is served"
        if operand.device != a.device:
            return f"{name} is on {operand.device}, a on {a.device}"
        if not operand.device.startswith("cuda"):
            return f"{name} is on {operand.device}; CUDA tensors are served"
    return ""


def _dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Row-major without gaps; the stride along an axis of size 1 means nothing."""
    rows, columns = shape
    return (columns == 1 or strides[1] == 1) and (rows == 1 or strides[0] == columns)
