"""What a problem may be."""

from __future__ import annotations

import pytest

from cudal2.errors import UsageError
from cudal2.problem import Problem


@pytest.mark.parametrize("acc", ["fp32", "fp16"])
def test_a_problem_comes_back_from_its_plain_values(acc):
    problem = Problem.parse("64_4096_64", acc, "nn")
    assert (problem.dtype, Problem.from_dict(problem.to_dict())) == ("fp16", problem)
    bf16 = Problem.parse("64_4096_64", "fp32", "nn", "bf16")
    assert Problem.from_dict(bf16.to_dict()) == bf16 != problem


def test_bf16_has_no_fp16_accumulator_and_the_message_says_what_to_give():
    with pytest.raises(UsageError, match=r"no tensor core adds products of bf16 in fp16: .*acc = fp32"):
        Problem(64, 64, 64, "fp16", dtype="bf16")


def test_an_unknown_dtype_is_one_line_with_the_choices():
    with pytest.raises(UsageError, match=r"dtype = 'fp8': choose one of fp16, bf16"):
        Problem(64, 64, 64, dtype="fp8")
