"""One GEMM to solve: its sizes, accumulator, operand layout and dtype, and the work it takes."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from cudal2.errors import UsageError

Acc = Literal["fp32", "fp16"]
Layout = Literal["nn", "tn"]
Dtype = Literal["fp16", "bf16"]

#: Plain digits, and few enough that Python turns them into a number at all.
_MNK = re.compile(r"([0-9]{1,19})_([0-9]{1,19})_([0-9]{1,19})")
_MAX_DIM = 2**31 - 1


def require_accumulator(acc: Acc, dtype: Dtype) -> None:
    """Refuses an accumulator that no instruction has for the operands (PTX ISA, mma and wgmma: bf16 adds in f32 only).

    Raises:
        UsageError: bf16 operands with an fp16 accumulator.
    """
    if (acc, dtype) == ("fp16", "bf16"):
        raise UsageError("no tensor core adds products of bf16 in fp16: give bf16 an fp32 accumulator (acc = fp32)")


def precision_of(acc: Acc, dtype: Dtype) -> str:
    """Both types in one word, as names and leaderboards have it: the accumulator of fp16 operands, or ``bf16``."""
    return acc if dtype == "fp16" else dtype


@dataclass(frozen=True, order=True)
class Problem:
    """C[m,n] = A[m,k] B[k,n], fp16 or bf16 in and out, A and C row-major.

    Attributes:
        m: Rows of A and C.
        n: Columns of B and C.
        k: Columns of A, rows of B.
        acc: Accumulator type; the two are separate leaderboards and never mixed. bf16 has fp32 only.
        layout: ``nn``: B is row-major [k,n]. ``tn``: B is K-major, stored [n,k].
        dtype: Element type of A, B and C; no leaderboard of one holds figures of the other.

    Raises:
        UsageError: A size is not in 1..2**31-1, a name is unknown, or no hardware has the accumulator for the dtype.
    """

    m: int
    n: int
    k: int
    acc: Acc = "fp32"
    layout: Layout = "tn"
    dtype: Dtype = "fp16"

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= _MAX_DIM:
                raise UsageError(f"{name} = {value!r}: give an integer from 1 to {_MAX_DIM}")
        for name, names in (("acc", Acc), ("layout", Layout), ("dtype", Dtype)):
            if getattr(self, name) not in get_args(names):
                raise UsageError(f"{name} = {getattr(self, name)!r}: choose one of {', '.join(get_args(names))}")
        require_accumulator(self.acc, self.dtype)

    @classmethod
    def parse(cls, mnk: str, acc: Acc = "fp32", layout: Layout = "tn", dtype: Dtype = "fp16") -> Problem:
        """Reads ``M_N_K``, for example ``64_4096_64``.

        Raises:
            UsageError: The text is not three positive integers joined by underscores.
        """
        match = _MNK.fullmatch(mnk)
        if match is None:
            raise UsageError(f"'{mnk[:80]}' is not M_N_K: give three positive integers, for example 64_4096_64")
        m, n, k = (int(group) for group in match.groups())
        return cls(m, n, k, acc, layout, dtype)

    @property
    def mnk(self) -> str:
        """The sizes as ``M_N_K``."""
        return f"{self.m}_{self.n}_{self.k}"

    @property
    def signature(self) -> tuple[Acc, Layout, Dtype]:
        """What a kernel is compiled for beside its configuration."""
        return self.acc, self.layout, self.dtype

    @property
    def precision(self) -> str:
        """:func:`precision_of` its types."""
        return precision_of(self.acc, self.dtype)

    @property
    def operands(self) -> str:
        """What a leaderboard is of: the precision, with the layout where it is not ``tn``: ``fp32``, ``bf16-nn``."""
        return self.precision if self.layout == "tn" else f"{self.precision}-{self.layout}"

    @property
    def flops(self) -> int:
        """Multiplications and additions: 2 m n k."""
        return 2 * self.m * self.n * self.k

    @property
    def alignment_bytes(self) -> int:
        """Largest power of two up to 16 that divides every row of A and of B as stored; TMA reads no rows of less."""
        return min(self.row_alignments)

    @property
    def row_alignments(self) -> tuple[int, int]:
        """The same of the rows of A, and of those of B."""
        a, b = (math.gcd(16, size) for size in self.row_bytes)
        return a, b

    @property
    def stored(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Rows and columns of A and of B as stored."""
        return (self.m, self.k), (self.n, self.k) if self.layout == "tn" else (self.k, self.n)

    @property
    def row_bytes(self) -> tuple[int, int]:
        """Bytes of a row of A and of B as stored: of K elements, or N for row-major B."""
        (_, a), (_, b) = self.stored
        return 2 * a, 2 * b

    @property
    def bytes_min(self) -> int:
        """Fewest bytes of device memory: A and B read once, C written once."""
        return 2 * (self.m * self.k + self.k * self.n + self.m * self.n)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Problem:
        """The inverse of :meth:`to_dict`."""
        return cls(**values)
