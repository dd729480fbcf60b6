"""Checks whose comparisons are replayed as a graph see what they saw before."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cudal2.bench import recorded  # noqa: E402
from cudal2.bench.correctness import Checks  # noqa: E402
from cudal2.bench.inputs import as_math  # noqa: E402
from cudal2.problem import Problem  # noqa: E402

pytestmark = pytest.mark.gpu

PROBLEM = Problem(192, 136, 320)


class Contestant:
    """Multiplies by torch, and then does something else to the buffers."""

    name = detail = "torch"

    def __init__(self, checks: Checks, then: Any = lambda index, sets: None) -> None:
        self.sets, self.then = checks.sets, then

    def launch(self, index: int, stream: int) -> None:
        sets = self.sets
        torch.matmul(sets.a(index), as_math(sets.b(index), PROBLEM.layout), out=sets.c(index))
        self.then(index, sets)


def test_recorded_checks_pass_what_is_right_and_find_every_fault() -> None:
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    with torch.cuda.stream(torch.cuda.Stream()) as _:
        stream = torch.cuda.current_stream().cuda_stream
        checks = Checks(PROBLEM, torch.device("cuda", 0), 1)
        right = Contestant(checks)
        errors = [checks.run(right, stream).max_error for _ in range(recorded._RUNS + 4)]
        assert checks._glance._graph is not None  # type: ignore[attr-defined]
        assert errors == [errors[0]] * len(errors) and 0.0 < errors[0] <= 1.0
        faults = {
            "NaN": lambda index, sets: sets.c(index).fill_(float("nan")),
            "0/1 data": lambda index, sets: sets.c(index)[3, 5].add_(1.0),
            "revealing data": lambda index, sets: sets.c(1)[7, 1].add_(8.0),
            "changed its input A": lambda index, sets: sets.a(index)[1, 1].add_(1.0),
            "changed its input B": lambda index, sets: sets.b(index)[2, 2].add_(1.0),
            "written after C": lambda index, sets: sets._c[index, -1:].fill_(1.0),
            "written before C": lambda index, sets: sets._c[index, :1].fill_(1.0),
        }
        for reason, fault in faults.items():
            found = checks.run(Contestant(checks, fault), stream)
            assert not found.ok and (reason in found.reason or reason == "NaN"), (reason, found.reason)
            assert checks.run(right, stream).max_error == errors[0], f"after {reason}"
        checks.draw(7)
        again = [checks.run(right, stream) for _ in range(recorded._RUNS + 2)]
        assert all(one.ok for one in again) and again[0].max_error != errors[0]
