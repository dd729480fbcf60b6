"""Which operands our kernels are offered, and why not: shapes, strides, types and places, without a device."""

import numpy as np
import pytest
import torch

from cudal2.errors import UsageError
from cudal2.problem import Problem
from cudal2.runtime.operands import Operand, derive_problem, overlap


@pytest.mark.parametrize(
    ("a", "b", "layout"),
    [
        (((128, 512), (512, 1)), ((512, 256), (256, 1)), "nn"),
        (((128, 512), (512, 1)), ((512, 256), (1, 512)), "tn"),
        (((1, 512), (7, 1)), ((512, 256), (1, 512)), "tn"),
        (((128, 512), (512, 1)), ((512, 1), (1, 512)), "tn"),
        (((128, 512), (512, 1)), ((512, 1), (1, 1)), "tn"),
        (((128, 512), (512, 1)), ((512, 1), (1, 9)), "tn"),
        (((128, 1), (1, 1)), ((1, 256), (256, 1)), "tn"),
        (((128, 1), (1, 77)), ((1, 256), (1, 1)), "tn"),
    ],
)
def test_the_layout_follows_from_the_strides(a, b, layout):
    problem = derive_problem(Operand(*a), Operand(*b))
    assert problem == Problem(a[0][0], b[0][1], a[0][1], "fp32", layout)


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (((128, 512), (1, 128)), ((512, 256), (256, 1)), "a has strides (1, 128)"),
        (((128, 512), (1024, 1)), ((512, 256), (256, 1)), "a has strides (1024, 1)"),
        (((128, 512), (0, 1)), ((512, 256), (256, 1)), "a has strides (0, 1)"),
        (((128, 512), (512, 1)), ((512, 256), (512, 1)), "b has strides (512, 1)"),
        (((128, 512), (512, 1)), ((512, 256), (1, 1024)), "b has strides (1, 1024)"),
        (((128, 512), (512, 1)), ((512, 256), (512, 2)), "b has strides (512, 2)"),
        (((128, 512), (512, 1)), ((512, 1), (2, 1)), "b has strides (2, 1)"),
        (((128, 0), (1, 1)), ((0, 256), (256, 1)), "a size is 0"),
        (((2, 128, 512), (65536, 512, 1)), ((512, 256), (256, 1)), "a has 3 dimensions"),
        (((128, 512), (512, 1)), ((512,), (1,)), "b has 1 dimensions"),
    ],
)
def test_other_strides_are_named(a, b, reason):
    assert reason in derive_problem(Operand(*a), Operand(*b))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": "bfloat16"}, "b is bfloat16, a is float16; one type is served"),
        ({"dtype": "float32"}, "b is float32; float16 and bfloat16 are served"),
        ({"device": "cuda:1"}, "b is on cuda:1, a on cuda:0"),
    ],
)
def test_other_dtypes_and_devices_are_named(change, reason):
    a, b = Operand((128, 512), (512, 1)), Operand((512, 256), (256, 1), **change)
    assert derive_problem(a, b) == reason


def test_bf16_is_served_with_fp32_accumulation_only():
    a, b = Operand((128, 512), (512, 1), "bfloat16"), Operand((512, 256), (1, 512), "bfloat16")
    assert derive_problem(a, b) == Problem(128, 256, 512, "fp32", "tn", "bf16")
    assert "no tensor core adds products of bf16 in fp16" in derive_problem(a, b, acc="fp16")
    out = Operand((128, 256), (256, 1))
    assert derive_problem(a, b, out) == "out is float16, a is bfloat16; one type is served"


def test_out_is_checked_too():
    a, b = Operand((128, 512), (512, 1)), Operand((512, 256), (256, 1))
    assert isinstance(derive_problem(a, b, Operand((128, 256), (256, 1))), Problem)
    assert "out has strides (1, 128)" in derive_problem(a, b, Operand((128, 256), (1, 128)))
    assert "out is float32" in derive_problem(a, b, Operand((128, 256), (256, 1), dtype="float32"))
    with pytest.raises(UsageError, match="out is 128 x 128, the result is 128 x 256"):
        derive_problem(a, b, Operand((128, 128), (128, 1)))


def test_inner_sizes_must_agree():
    with pytest.raises(UsageError, match="a is 128 x 512 and b is 256 x 256: the inner sizes differ"):
        derive_problem(Operand((128, 512), (512, 1)), Operand((256, 256), (256, 1)))


def test_sizes_beyond_32_bits_are_a_reason():
    a, b = Operand((2**31, 8), (8, 1)), Operand((8, 8), (8, 1))
    assert "m = 2147483648" in derive_problem(a, b)


def strided_views():
    base = torch.zeros(64 * 64, dtype=torch.float16)
    square = base.view(64, 64)
    yield square
    yield square.t()
    yield square[:, :32]
    yield square[:, ::2]
    yield square[::2]
    yield square[:1]
    yield square[:, :1]
    yield square[:, :1].t()
    yield base[8 : 8 + 32 * 64].view(32, 64)
    yield square[:1].expand(64, 64)
    yield base[:64].view(64, 1).t()


def test_a_layout_addresses_the_elements_torch_addresses():
    """What is served must be read right: recompute each element's offset from the layout alone."""
    served = 0
    for view in strided_views():
        k, n = view.shape
        problem = derive_problem(Operand((8, k), (k, 1)), Operand((k, n), view.stride()))
        if isinstance(problem, Problem):
            served += 1
            rows, columns = np.indices((k, n))
            offsets = columns * k + rows if problem.layout == "tn" else rows * n + columns
            np.testing.assert_array_equal(offsets, rows * view.stride(0) + columns * view.stride(1))
    assert served == 5


def test_overlap_is_of_half_open_ranges():
    assert overlap((100, 10), (109, 1))
    assert not overlap((100, 10), (110, 5))
    assert not overlap((110, 5), (100, 10))


def test_a_problem_keeps_its_accumulator():
    problem = derive_problem(Operand((128, 512), (512, 1)), Operand((512, 256), (1, 512)), acc="fp16")
    assert problem == Problem(128, 256, 512, acc="fp16")
