"""Whether C is right: exact 0/1 sums, a derived error bound, red zones, untouched inputs, a sample after timing.

The truth is fp64 arithmetic, never a GPU library's half-precision path. Runs on tensors of any device.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from cudal2.bench.check_data import Operands, revealing, zero_one
from cudal2.bench.inputs import BufferSets, as_math
from cudal2.bench.recorded import Recorded
from cudal2.bench.timing import Contestant
from cudal2.problem import Acc, Problem

#: Unit roundoff of an element of C: half of the last of 11 bits, and of 8.
_ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
#: What may be lost below the normal numbers: half of fp16's smallest subnormal; bf16 has fp32's exponents, and fp32
#: subnormals may be flushed.
_TINY = {torch.float16: 2.0**-25, torch.bfloat16: 2.0**-126}
#: Tensor cores add 16 products and the accumulator at once, truncating what lies 2**-24 or further below the largest.
_CHUNK = 16
_FP32_STEP = 2.0**-22
_FP32_CONSTANT = 8
#: Times the random walk of an fp16 accumulation that is allowed; its spread is 0.3, its worst of 10**9 about 2.
_FP16_SIGMAS = 6.0
_CHUNK_ELEMENTS = 2**26
_GUARD_ELEMENTS = 4_096
#: Above it the device takes longer to compare than the host to say what.
_RECORDED_BYTES = 2**28
#: Results on their way to the host at once, at most: one more would overwrite the first.
UNDER_WAY = 256
_SAMPLE_ROWS = 16
_SAMPLE_B_ELEMENTS = 2**25


@dataclass(frozen=True)
class CheckResult:
    """Outcome of a check.

    Attributes:
        ok: Whether C is right.
        max_error: Largest error over its bound; ``None`` where that means nothing (NaN, a broken red zone).
        reason: One line if not.
        stray: Whether memory was written that is not C.
    """

    ok: bool
    max_error: float | None = None
    reason: str = ""
    stray: bool = False


def error_bound(
    a: torch.Tensor, b: torch.Tensor, acc: Acc, exact_rows: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The true product and how far a sound kernel may be from it, element by element, both fp32.

    fp32 accumulator: ``u |C| + gamma (|A| |B|)``, the first term for the rounding of C to its type, u = 2**-11 for
    fp16 and 2**-8 for bf16; gamma is ``(k/16 + 8) 2**-22``, one truncated addition per 16 products, and 2**-22 on rows
    where every partial sum fits 24 bits. fp16 accumulator: ``u (|C| + 6 sqrt(k/16 + 1) sqrt(A**2 B**2))``, the random
    walk of one rounding per 16 products; a worst-case bound would pass zeros. The walk assumes operands with mean zero.

    Args:
        a: [rows, k], of the type of C.
        b: [k, columns], of the same.
        acc: Accumulator of the kernel.
        exact_rows: Rows of ``a`` that fp32 accumulates exactly.
    """
    k, roundoff = a.shape[1], _ROUNDOFF[a.dtype]
    # All of it in fp64: a process' first product of another type has more kernels to load.
    first, second = (operand.to(torch.float64, copy=True) for operand in (a, b))
    reference = (first @ second).float()
    if acc == "fp16":
        walk = (first.square_() @ second.square_()).sqrt_().float()
        error = walk * (_FP16_SIGMAS * roundoff * math.sqrt(k / _CHUNK + 1))
    else:
        gamma = torch.full((a.shape[0], 1), (k / _CHUNK + _FP32_CONSTANT) * _FP32_STEP, device=a.device)
        if exact_rows is not None:
            gamma[exact_rows] = _FP32_STEP
        error = (first.abs_() @ second.abs_()).float() * gamma
    return reference, error.add_(reference.abs(), alpha=roundoff).add_(_TINY[a.dtype])


def compare(c: torch.Tensor, reference: torch.Tensor, bound: torch.Tensor) -> CheckResult:
    """C against its reference, by chunks of rows; a NaN in C fails, one in the reference is our own mistake.

    Raises:
        ValueError: The reference or the bound is not finite.
    """
    max_error = float(largest_error(c, reference, bound))
    if max_error <= 1.0:
        return CheckResult(True, max_error)
    if not (torch.isfinite(reference).all() and torch.isfinite(bound).all()):
        raise ValueError("the reference is not finite: the check data overflowed")
    return CheckResult(False, max_error if math.isfinite(max_error) else None, _describe(c, reference, bound))


def largest_error(c: torch.Tensor, reference: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """The largest error over its bound, NaN where there is one, on the device."""
    if c.numel() <= _CHUNK_ELEMENTS or c.shape[0] == 1:
        return (c.float() - reference).abs_().div_(bound).max()
    chunks = (largest_error(c[rows], reference[rows], bound[rows]) for rows in _row_chunks(c.shape))
    return torch.stack(list(chunks)).max()


def compare_exact(c: torch.Tensor, expected: torch.Tensor) -> CheckResult:
    """C must equal the expected values bit for bit, signs of zero aside."""
    if torch.equal(c, expected):
        return CheckResult(True, 0.0)
    zero_bound = torch.zeros((), device=c.device).expand(c.shape)
    return CheckResult(False, None, _describe(c, expected.float(), zero_bound))


def _row_chunks(shape: torch.Size) -> Iterator[slice]:
    step = max(1, _CHUNK_ELEMENTS // shape[1])
    return (slice(start, start + step) for start in range(0, shape[0], step))


def _describe(c: torch.Tensor, reference: torch.Tensor, bound: torch.Tensor) -> str:
    """The first wrong element and how many there are."""
    wrong = 0
    first = None
    for rows in _row_chunks(c.shape):
        bad = ~((c[rows].float() - reference[rows]).abs_() <= bound[rows])
        count = int(bad.sum())
        if count and first is None:
            row, column = (int(index) for index in torch.nonzero(bad)[0])
            first = (rows.start + row, column)
        wrong += count
    if first is None:
        return "no element is wrong"
    got, want = float(c[first]), float(reference[first])
    return f"C[{first[0]},{first[1]}] is {got:g}, not {want:g}; {wrong} of {c.numel()} elements wrong"


class Checks:
    """Check data and reference answers of one problem; made once, used for every candidate.

    Args:
        problem: What is computed.
        device: Where.
        seed: Seed of the data.
        allocate: Where the buffers come from, as for :class:`BufferSets`; answers stay in torch's memory.

    Contestants that are to be checked are bound to :attr:`sets`.
    """

    def __init__(
        self,
        problem: Problem,
        device: torch.device | str,
        seed: int,
        allocate: Callable[[tuple[int, int]], torch.Tensor] | None = None,
    ) -> None:
        """Draws the data and computes the answers."""
        self.sets = BufferSets(problem, 2, device, seed, _GUARD_ELEMENTS, allocate)
        self.draw(seed)

    def draw(self, seed: int, swapped: bool = False) -> None:
        """New data and answers in the same buffers; ``swapped`` exchanges the buffers of the two kinds."""
        self._exact, self._revealing = (1, 0) if swapped else (0, 1)
        problem = self.sets.problem
        generator = torch.Generator(self.sets.a(0).device).manual_seed(seed)
        ones = zero_one(problem, generator)
        self._expected = (ones.a.double() @ ones.b.double()).to(ones.a.dtype)
        self._store(self._exact, ones)
        revealed = revealing(problem, generator)
        self._store(self._revealing, revealed)
        self._reference, self._bound = _by_rows(revealed, problem.acc)
        _refuse_degenerate(self._reference)
        self._remember()

    def flip(self, seed: int) -> None:
        """Changes one element of the 0/1 data's A and one of its B: the least change, which a digest may miss."""
        host = torch.Generator().manual_seed(seed)
        a, b = self.sets.a(self._exact), as_math(self.sets.b(self._exact), self.sets.problem.layout)
        for matrix in (a, b):
            row, column = (int(torch.randint(0, size, (), generator=host)) for size in matrix.shape)
            matrix[row, column] = 1.0 - matrix[row, column]
        self._expected = (a.double() @ b.double()).to(a.dtype)
        self._remember()

    def _remember(self) -> None:
        self._operands = tuple(arena.clone() for arena in self.sets.operands)
        # Of a proxy: device memory goes with the last reference, not when cycles are looked for.
        self._glance: Callable[[], torch.Tensor] = functools.partial(Checks._at_a_glance, weakref.proxy(self))
        if self.bytes <= _RECORDED_BYTES:  # a recording keeps what it works with
            self._glance = Recorded(self._glance, self._expected.device)

    @property
    def bytes(self) -> int:
        """Device memory held."""
        kept = (self._expected, self._reference, self._bound, *self._operands)
        return self.sets.bytes + sum(tensor.nbytes for tensor in kept)

    def run(self, contestant: Contestant, stream: int) -> CheckResult:
        """Launches once on each kind of data, from poisoned outputs, and looks at everything.

        The caller's current stream must be ``stream``.
        """
        return self.begin(contestant, stream)()

    def begin(self, contestant: Contestant, stream: int) -> Callable[[], CheckResult]:
        """:meth:`run`, enqueued: what it returns waits for it and says what was seen. The next run must come later."""
        self.sets.poison()
        contestant.launch(self._exact, stream)
        contestant.launch(self._revealing, stream)
        return functools.partial(self._result, fetched(self._glance()))

    def _result(self, seen: Callable[[], list[float]]) -> CheckResult:
        max_error, fault = seen()
        if max_error <= 1.0 and not fault:
            return CheckResult(True, max_error)
        exact = compare_exact(self.sets.c(self._exact), self._expected)
        if not exact.ok:
            return CheckResult(False, None, f"0/1 data: {exact.reason}")
        close = compare(self.sets.c(self._revealing), self._reference, self._bound)
        if not close.ok:
            return CheckResult(False, close.max_error, f"revealing data: {close.reason}")
        broken = self.sets.broken_red_zone() or self._changed_input()
        return CheckResult(not broken, close.max_error, broken, bool(broken))

    def _at_a_glance(self) -> torch.Tensor:
        """The largest error over its bound, and whether anything else is wrong: nearly nobody is, so one wait for all.

        Every operation costs the host some 10 us, so whole arenas are compared, not matrix by matrix.
        """
        sets = self.sets
        wrong = [
            (sets.c(self._exact) != self._expected).any(),
            *sets.touched_red_zones(),
            *(now.ne(before).any() for now, before in zip(sets.operands, self._operands, strict=True)),
        ]
        error = largest_error(sets.c(self._revealing), self._reference, self._bound)
        return torch.stack([error, torch.stack(wrong).any().float()])

    def _store(self, index: int, operands: Operands) -> None:
        self.sets.a(index).copy_(operands.a)
        as_math(self.sets.b(index), self.sets.problem.layout).copy_(operands.b)

    def _changed_input(self) -> str:
        """Which operands are not what they were; put right again for the next contestant."""
        changed = []
        for name, now, before in zip("AB", self.sets.operands, self._operands, strict=True):
            if not torch.equal(now, before):
                now.copy_(before)
                changed.append(name)
        return f"the kernel changed its input {' and '.join(changed)}" if changed else ""


class Sample:
    """Rows of one buffer set's C as the timed launches left it, over a random range of columns.

    Args:
        sets: The buffers.
        index: Which set.
        seed: Of the choice of rows and columns.
    """

    def __init__(self, sets: BufferSets, index: int, seed: int) -> None:
        """Chooses, the rows on the device: a copy from the host may wait for what is under way there."""
        problem, device = sets.problem, sets.a(index).device
        width = max(1, min(problem.n, _SAMPLE_B_ELEMENTS // problem.k))
        start = random.Random(seed).randrange(problem.n - width + 1)
        generator = torch.Generator(device).manual_seed(seed)
        self._sets, self._index, self._columns = sets, index, slice(start, start + width)
        self._rows = torch.randint(0, problem.m, (_SAMPLE_ROWS,), generator=generator, device=device)

    def largest_error(self) -> torch.Tensor:
        """:func:`largest_error` of the sample, enqueued; the host goes on."""
        sets, problem = self._sets, self._sets.problem
        a = sets.a(self._index)[self._rows]
        b = as_math(sets.b(self._index), problem.layout)[:, self._columns]
        self._c = sets.c(self._index)[self._rows, self._columns]
        self._answer = error_bound(a, b, problem.acc)
        return largest_error(self._c, *self._answer)

    def result(self) -> CheckResult:
        """What :meth:`largest_error` saw, waited for."""
        result = compare(self._c, *self._answer)
        if result.ok:
            return result
        where = f"set {self._index}, rows {self._rows.tolist()}"
        return CheckResult(False, result.max_error, f"after timing, {where}: {result.reason}")


def check_sample(sets: BufferSets, index: int, seed: int) -> CheckResult:
    """A :class:`Sample`, looked at now."""
    sample = Sample(sets, index, seed)
    sample.largest_error()
    return sample.result()


class Aftermath:
    """What the last replay left: every C it uses must be written, and a sample of one must be right.

    Args:
        sets: The buffers.
        used: How many of them a replay writes.
        index: Which one is sampled.
        seed: Of the sample.
    """

    def __init__(self, sets: BufferSets, used: int, index: int, seed: int) -> None:
        """Chooses what is looked at."""
        self._sets, self._used = sets, used
        self._sample = Sample(sets, index, seed)

    def look(self) -> None:
        """Enqueues the comparisons behind the replay; the host goes on."""
        seen = torch.stack([self._sets.unwritten_count(self._used).float(), self._sample.largest_error()])
        self._seen = fetched(seen)

    def result(self) -> CheckResult:
        """What was seen, waited for."""
        unwritten, max_error = self._seen()
        if unwritten:
            reason = f"after timing, {unwritten:.0f} of {self._used} outputs hold NaN or were not written"
            return CheckResult(False, None, reason)
        return CheckResult(True, max_error) if max_error <= 1.0 else self._sample.result()


@functools.cache
def _host_memory() -> Iterator[torch.Tensor]:
    """Pinned memory for two values each, in turn: giving it back in a context that is lost would end the process."""
    return itertools.cycle(torch.empty((UNDER_WAY, 2), pin_memory=True).unbind())


def fetched(values: torch.Tensor) -> Callable[[], list[float]]:
    """A copy of two values to the host, enqueued: what it returns waits for that alone, not for what comes behind."""
    if not values.is_cuda:
        return values.tolist
    host, copied = next(_host_memory()), torch.cuda.Event()  # type: ignore[no-untyped-call]
    host.copy_(values, non_blocking=True)
    copied.record()

    def wait() -> list[float]:
        copied.synchronize()
        return list(host.tolist())

    return wait


def _by_rows(operands: Operands, acc: Acc) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`error_bound` a slab of rows at a time, so that fp64 copies of A stay small."""
    slabs = []
    for rows in _row_chunks(torch.Size((operands.a.shape[0], max(operands.a.shape[1], operands.b.shape[1])))):
        exact = operands.exact_rows[rows] if operands.exact_rows is not None else None
        slabs.append(error_bound(operands.a[rows], operands.b, acc, exact))
    references, bounds = zip(*slabs, strict=True)
    return torch.cat(references), torch.cat(bounds)


def _refuse_degenerate(reference: torch.Tensor) -> None:
    """Answers that are all alike or all tiny would pass a kernel that does nothing."""
    largest, least = float(reference.max()), float(reference.min())
    if reference.numel() > 1 and not (largest > least and max(largest, -least) > 2.0**-6):
        raise ValueError("the check data is degenerate: every answer is alike")
