"""The checks against numerical models of sound and unsound kernels, and against contestants that cheat; CPU only."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable

import pytest
import torch

from cudal2.bench import correctness
from cudal2.bench.check_data import Operands, revealing, zero_one
from cudal2.bench.correctness import (
    Aftermath,
    Checks,
    _refuse_degenerate,
    check_sample,
    compare,
    compare_exact,
    error_bound,
)
from cudal2.bench.inputs import BufferSets, as_math
from cudal2.problem import Acc, Dtype, Layout, Problem

DEPTHS = (64, 72, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)
Model = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def fp32_model(a: torch.Tensor, b: torch.Tensor, chunk: int = 16) -> torch.Tensor:
    """One addition to an fp32 accumulator per 16 products, as the tensor core does."""
    acc = torch.zeros(a.shape[0], b.shape[1])
    for start in range(0, a.shape[1], chunk):
        acc += a[:, start : start + chunk].float() @ b[start : start + chunk].float()
    return acc.to(a.dtype)


def truncating_fp32_model(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same with every addend cut off 24 bits below the largest: the worst a tensor core is known to do."""
    acc = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    for start in range(0, a.shape[1], 16):
        products = a[:, start : start + 16].double()[:, :, None] * b[start : start + 16].double()[None]
        terms = torch.cat([products, acc[:, None]], 1)
        acc = _truncate(terms, terms.abs().amax(1, keepdim=True)).sum(1)
        acc = _truncate(acc, acc.abs())
    return acc.to(a.dtype)


def _truncate(values: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    unit = torch.ldexp(torch.ones_like(largest), torch.frexp(largest)[1] - 24)
    return torch.trunc(values / unit) * unit


def fp16_model(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    acc = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float16)
    for start in range(0, a.shape[1], 16):
        acc = (acc.float() + a[:, start : start + 16].float() @ b[start : start + 16].float()).half()
    return acc.to(a.dtype)


def bf16_model(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    acc = torch.zeros(a.shape[0], b.shape[1], dtype=torch.bfloat16)
    for start in range(0, a.shape[1], 16):
        acc = (acc.float() + a[:, start : start + 16].float() @ b[start : start + 16].float()).bfloat16()
    return acc.to(a.dtype)


def narrow_partials_model(split: int, interleaved: bool = False) -> Model:
    """fp32 inside each share of K, the type of C between them."""

    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        tiles = torch.arange(a.shape[1]) // 16
        share = tiles % split if interleaved else tiles * split // (int(tiles.max()) + 1)
        partials = [fp32_model(a[:, share == index], b[share == index]).float() for index in range(split)]
        return torch.stack(partials).sum(0).to(a.dtype)

    return multiply


def skips_last_tile(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return fp32_model(a[:, :-64], b[:-64])


class FakeContestant:
    """Multiplies on the CPU by a model, possibly not honestly."""

    name = "fake"
    detail = ""

    def __init__(self, sets: BufferSets, model: Model = fp32_model) -> None:
        self.sets = sets
        self.model = model
        self.calls = 0

    def launch(self, set_index: int, stream: int) -> None:
        self.calls += 1
        self.sets.c(set_index).copy_(self.product(set_index))

    def product(self, set_index: int) -> torch.Tensor:
        return self.model(self.sets.a(set_index), as_math(self.sets.b(set_index), self.sets.problem.layout))


def checks(
    m: int = 16, n: int = 24, k: int = 128, acc: Acc = "fp32", layout: Layout = "tn", dtype: Dtype = "fp16"
) -> Checks:
    return Checks(Problem(m, n, k, acc, layout, dtype), "cpu", seed=1)


def max_error(model: Model, operands: Operands, acc: Acc) -> float:
    reference, bound = error_bound(operands.a, operands.b, acc, operands.exact_rows)
    worst = compare(model(operands.a, operands.b), reference, bound).max_error
    assert worst is not None
    return worst


def revealing_operands(k: int, acc: Acc = "fp32", m: int = 16, n: int = 16, dtype: Dtype = "fp16") -> Operands:
    return revealing(Problem(m, n, k, acc, dtype=dtype), torch.Generator().manual_seed(k))


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("k", DEPTHS)
def test_revealing_data_passes_fp32_and_fails_everything_narrower(k: int, dtype: Dtype) -> None:
    operands = revealing_operands(k, dtype=dtype)
    assert max_error(fp32_model, operands, "fp32") <= 1.0
    assert max_error(truncating_fp32_model, operands, "fp32") <= 1.0
    # An order of magnitude between right and wrong, or the bound would be a matter of luck.
    assert max_error(fp16_model, operands, "fp32") > 10.0
    assert max_error(bf16_model, operands, "fp32") > 10.0
    for split in (2, 4):
        assert max_error(narrow_partials_model(split), operands, "fp32") > 10.0
        assert max_error(narrow_partials_model(split, interleaved=True), operands, "fp32") > 10.0
    assert max_error(skips_last_tile, operands, "fp32") > 10.0


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize(("m", "n"), [(1, 64), (64, 1), (1, 1), (2, 3)])
def test_even_a_single_row_or_column_reveals(m: int, n: int, dtype: Dtype) -> None:
    for k in (64, 4096):
        operands = revealing_operands(k, m=m, n=n, dtype=dtype)
        assert max_error(fp32_model, operands, "fp32") <= 1.0
        assert max_error(fp16_model, operands, "fp32") > 10.0


@pytest.mark.parametrize("k", DEPTHS)
def test_the_fp16_bound_passes_fp16_accumulation_and_little_else(k: int) -> None:
    operands = revealing_operands(k, "fp16", m=32, n=32)
    assert max_error(fp16_model, operands, "fp16") <= 0.7
    assert max_error(fp32_model, operands, "fp16") <= 0.7
    assert max_error(lambda a, b: torch.zeros(a.shape[0], b.shape[1]), operands, "fp16") > 10.0
    if k > 64:
        assert max_error(skips_last_tile, operands, "fp16") > 1.5


@pytest.mark.parametrize(("acc", "dtype"), [("fp32", "fp16"), ("fp16", "fp16"), ("fp32", "bf16")])
@pytest.mark.parametrize("k", DEPTHS)
def test_zero_one_sums_are_exact_for_the_honest_accumulator(k: int, acc: Acc, dtype: Dtype) -> None:
    operands = zero_one(Problem(16, 16, k, acc, dtype=dtype), torch.Generator().manual_seed(0))
    sums = operands.a.double() @ operands.b.double()
    expected = sums.to(operands.a.dtype)
    if dtype == "bf16" or acc == "fp16":
        assert torch.equal(expected.double(), sums), "a rounded sum would hide a missing product"
    model = fp32_model if acc == "fp32" else fp16_model
    assert compare_exact(model(operands.a, operands.b), expected).ok
    missing = compare_exact(skips_last_tile(operands.a, operands.b), expected)
    assert not missing.ok and "wrong" in missing.reason


@pytest.mark.parametrize(("acc", "dtype"), [("fp32", "fp16"), ("fp16", "fp16"), ("fp32", "bf16")])
@pytest.mark.parametrize("layout", ["tn", "nn"])
@pytest.mark.parametrize(("m", "n", "k"), [(16, 24, 128), (1, 64, 64), (65, 24, 72), (3, 1, 200)])
def test_an_honest_contestant_passes(m: int, n: int, k: int, layout: Layout, acc: Acc, dtype: Dtype) -> None:
    made = checks(m, n, k, acc, layout, dtype)
    assert made.sets.c(0).dtype is (torch.bfloat16 if dtype == "bf16" else torch.float16)
    result = made.run(FakeContestant(made.sets, fp32_model if acc == "fp32" else fp16_model), 0)
    assert result.ok and result.reason == ""
    assert result.max_error is not None and 0.0 <= result.max_error <= 1.0


class WritesNothing(FakeContestant):
    def launch(self, set_index: int, stream: int) -> None:
        pass


class SkipsATile(FakeContestant):
    def launch(self, set_index: int, stream: int) -> None:
        self.sets.c(set_index)[:, :-8] = self.product(set_index)[:, :-8]


class WritesZeros(FakeContestant):
    def launch(self, set_index: int, stream: int) -> None:
        self.sets.c(set_index).zero_()


class WritesNan(FakeContestant):
    def launch(self, set_index: int, stream: int) -> None:
        super().launch(set_index, stream)
        self.sets.c(set_index)[3, 5] = torch.nan


class CopiesTheOtherSet(FakeContestant):
    """Returns what it computed for its first operands, whatever the operands."""

    def product(self, set_index: int) -> torch.Tensor:
        return super().product(0)


class RightOnFirstCall(FakeContestant):
    def product(self, set_index: int) -> torch.Tensor:
        return super().product(set_index) if self.calls == 1 else torch.full_like(self.sets.c(set_index), 1.0)


class ChangesItsInput(FakeContestant):
    def launch(self, set_index: int, stream: int) -> None:
        super().launch(set_index, stream)
        self.sets.b(set_index)[0, 0] += 1.0


class WritesBehindC(FakeContestant):
    def launch(self, set_index: int, stream: int) -> None:
        super().launch(set_index, stream)
        c = self.sets.c(set_index)
        torch.as_strided(c, (2,), (1,), c.storage_offset() + c.numel()).fill_(1.0)


CHEATS = {
    WritesNothing: "is nan",
    SkipsATile: "is nan",
    WritesZeros: "0/1 data: C[0,0] is 0",
    WritesNan: "C[3,5] is nan",
    CopiesTheOtherSet: "revealing data",
    RightOnFirstCall: "revealing data",
    ChangesItsInput: "changed its input B",
    WritesBehindC: "elements written after C",
}


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.__name__)
def test_a_cheat_is_caught_with_its_reason(cheat: type[FakeContestant], dtype: Dtype) -> None:
    made = checks(dtype=dtype)
    result = made.run(cheat(made.sets), 0)
    assert not result.ok and CHEATS[cheat] in result.reason and "\n" not in result.reason
    assert result.stray == (cheat in (ChangesItsInput, WritesBehindC))
    assert made.run(FakeContestant(made.sets), 0).ok


@pytest.mark.parametrize(("model", "dtype"), [(fp16_model, "fp16"), (fp16_model, "bf16"), (bf16_model, "bf16")])
@pytest.mark.parametrize("k", [64, 4096])
def test_a_narrow_accumulator_under_an_fp32_label_fails_by_the_revealing_data_alone(
    k: int, model: Model, dtype: Dtype
) -> None:
    made = checks(k=k, dtype=dtype)
    result = made.run(FakeContestant(made.sets, model), 0)
    assert not result.ok and result.reason.startswith("revealing data")
    assert result.max_error is not None and result.max_error > 10.0


def test_stale_outputs_of_an_earlier_right_kernel_do_not_help() -> None:
    made = checks()
    assert made.run(FakeContestant(made.sets), 0).ok
    assert not made.run(WritesNothing(made.sets), 0).ok


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("layout", ["tn", "nn"])
def test_the_sample_after_timing_sees_a_wrong_row(layout: Layout, dtype: Dtype) -> None:
    sets = BufferSets(Problem(16, 40, 256, layout=layout, dtype=dtype), 3, "cpu", seed=5)
    honest = FakeContestant(sets)
    honest.launch(2, 0)
    assert check_sample(sets, 2, seed=0).ok
    sets.c(2)[:, 7] *= 1.01
    result = check_sample(sets, 2, seed=0)
    assert not result.ok and result.reason.startswith("after timing, set 2, rows ")
    assert not check_sample(sets, 1, seed=0).ok  # never written: NaN


def test_what_a_replay_left_is_looked_at_when_it_is_done() -> None:
    problem = Problem(32, 48, 64)
    sets = BufferSets(problem, 3, "cpu")
    for ruin, reason in (
        (lambda: None, ""),
        (lambda: sets.c(2)[31, 47].fill_(math.nan), "1 of 3 outputs hold NaN or were not written"),
        (lambda: sets.c(1).mul_(1.5), "after timing, set 1, rows ["),
    ):
        aftermath = Aftermath(sets, 3, index=1, seed=0)
        for index in range(3):
            sets.c(index).copy_((sets.a(index).float() @ as_math(sets.b(index), problem.layout).float()).half())
        ruin()
        aftermath.look()
        result = aftermath.result()
        assert result.ok is (not reason) and reason in result.reason


def test_a_reference_that_is_not_finite_is_our_mistake_not_a_wildcard() -> None:
    c = torch.ones(2, 2, dtype=torch.float16)
    with pytest.raises(ValueError, match="not finite"):
        compare(c, torch.tensor([[1.0, torch.nan], [1.0, 1.0]]), torch.full((2, 2), 0.1))


def test_chunks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    reference, bound = torch.randn(37, 8), torch.full((37, 8), 0.01)
    c = (reference + 0.02 * torch.rand(37, 8)).half()
    whole = compare(c, reference, bound)
    monkeypatch.setattr("cudal2.bench.correctness._CHUNK_ELEMENTS", 24)
    assert compare(c, reference, bound) == whole and not whole.ok


@pytest.mark.parametrize("answers", [[0.0, 0.0], [3.0, 3.0], [1e-3, -1e-3], [math.nan, 1.0], [math.nan, math.nan]])
def test_answers_that_pass_a_kernel_that_does_nothing_are_refused(answers: list[float]) -> None:
    with pytest.raises(ValueError, match="degenerate"):
        _refuse_degenerate(torch.tensor([answers]))


@pytest.mark.parametrize("answers", [[0.0, 1.0], [-1.0, -2.0], [0.0, -0.1], [3.0]])
def test_answers_that_differ_are_not(answers: list[float]) -> None:
    _refuse_degenerate(torch.tensor([answers]))


@pytest.mark.parametrize("acc", ["fp32", "fp16"])
def test_check_data_is_seeded_and_not_degenerate(acc: Acc) -> None:
    problem = Problem(32, 32, 256, acc)
    one, same, other = (revealing(problem, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one.a, same.a) and torch.equal(one.b, same.b) and not torch.equal(one.b, other.b)
    product = one.a.double() @ one.b.double()
    assert (product > 0).any() and (product < 0).any()
    assert torch.linalg.matrix_rank(product) >= 24  # the rows that cancel end to end are alike


@pytest.mark.parametrize("recorded_bytes", [0, 2**28])
def test_what_a_problem_holds_goes_with_it(monkeypatch: pytest.MonkeyPatch, recorded_bytes: int) -> None:
    """Another problem may need the memory before cycles are looked for."""
    monkeypatch.setattr(correctness, "_RECORDED_BYTES", recorded_bytes)
    problem = Problem(64, 64, 64)
    checks = Checks(problem, "cpu", 1)
    assert checks.run(FakeContestant(checks.sets), 0).ok
    held = [weakref.ref(checks), weakref.ref(checks.sets)]
    gc.disable()
    try:
        del checks
        assert [one() for one in held] == [None, None]
    finally:
        gc.enable()
