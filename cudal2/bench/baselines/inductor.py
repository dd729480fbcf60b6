"""Triton through ``torch.compile`` (max-autotune, GEMM backends TRITON alone) as a contestant.

The compiled function allocates its result. What is timed instead is what it launched: the kernels that the compiler
chose, recorded while it ran once and launched again on the operands at hand. Nothing is allocated or copied then, and
the launches can be captured.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from cudal2.bench.baselines.baseline import LAYOUTS, BothLayouts, NotSupportedError
from cudal2.bench.baselines.contestants import reasons
from cudal2.bench.inputs import TORCH_DTYPES, as_math
from cudal2.problem import Layout, Problem

logger = logging.getLogger(__name__)

_MODE = "max-autotune-no-cudagraphs"
#: Beside the mode's. A K cut in pieces ("decompose_k") is a batched product by a library and a Triton kernel that adds;
#: where it is offered, Triton's own templates are not.
_OPTIONS = {"max_autotune_gemm_backends": "TRITON", "triton.num_decompose_k_splits": 0}
#: How far apart two runs of the same kernels may be, relative to the result; sums left from another run are off by 1.
_SAME = 0.01
#: Constants of Triton's GEMM template that say which variant was chosen.
_CONSTANTS = re.compile(r"\b(BLOCK_[MNK]|GROUP_M|SPLIT_K)\s*:\s*tl\.constexpr\s*=\s*(\d+)")


class Operand(Enum):
    """What a recorded argument stands for."""

    A = 0
    B = 1
    C = 2


@dataclass(frozen=True)
class Step:
    """One recorded launch.

    Attributes:
        kernel: Inductor's ``CachingAutotuner``.
        arguments: Its arguments in order, operands replaced; what is left of tensors are intermediates.
        keywords: Its keyword arguments but the stream.
    """

    kernel: Any
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The kernel's variant, for records."""
        config = (getattr(self.kernel, "configs", None) or [None])[0]
        source = getattr(getattr(self.kernel, "fn", None), "src", "")
        parts = [f"{name}={value}" for name, value in _CONSTANTS.findall(source)]
        parts += [f"{name}={getattr(config, name)}" for name in ("num_warps", "num_stages") if hasattr(config, name)]
        return " ".join(parts)

    def launch(self, operands: Sequence[torch.Tensor], stream: int) -> None:
        """Enqueues it on operands in the order of :class:`Operand`.

        Raises:
            NotSupportedError: The kernel does not take its arguments again.
        """
        arguments = (operands[one.value] if isinstance(one, Operand) else one for one in self.arguments)
        # Private to torch: another version may want something else.
        with reasons("a compiled kernel cannot be launched again"):
            self.kernel.run(*arguments, stream=stream, **self.keywords)


@dataclass(frozen=True)
class InductorGemm:
    """The compiled product in one layout as a baseline; plain values, compiled by the process that launches it.

    Attributes:
        problem: What is computed; its own layout plays no part.
        layout: How B is stored.
        detail: What was compiled.
    """

    problem: Problem
    layout: Layout
    detail: str = ""

    @property
    def name(self) -> str:
        """Name in records."""
        return f"triton_{self.layout}"

    def on(self, buffers: BothLayouts) -> BoundInductor:
        """Bound to buffers; compiles if this process has not yet.

        Raises:
            NotSupportedError: It does not compile, or to something that cannot be launched again.
        """
        steps = compile_steps(self.problem, self.layout, buffers.sets.a(0).device)
        tensors = [(a, as_math(b, self.layout), c) for a, b, c in buffers.tensors(self.layout)]
        return BoundInductor(self, steps, tensors)


class BoundInductor:
    """Recorded launches on known buffers."""

    def __init__(
        self,
        baseline: InductorGemm,
        steps: Sequence[Step],
        tensors: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
    ) -> None:
        self.name, self.detail = baseline.name, baseline.detail
        self._steps = steps
        self._tensors = tensors

    def launch(self, set_index: int, stream: int) -> None:
        """Enqueues one product.

        Raises:
            NotSupportedError: The kernels do not take their arguments again.
        """
        for step in self._steps:
            step.launch(self._tensors[set_index], stream)


def choose(problem: Problem, device: torch.device) -> list[InductorGemm]:
    """Compiles for both layouts of B; one that does not compile is left out with a warning."""
    chosen = []
    for layout in LAYOUTS:
        try:
            steps = compile_steps(problem, layout, device)
        except NotSupportedError as error:
            logger.warning("triton does not compete in layout %s: %s", layout, error)
            continue
        detail = (
            f"torch {torch.__version__} torch.compile {_MODE} backends=TRITON layout={layout} accumulate=fp32 "
            f"kernels={len(steps)} {' '.join(step.text for step in steps)}"
        )
        chosen.append(InductorGemm(problem, layout, detail.strip()))
    return chosen


@functools.lru_cache(maxsize=len(LAYOUTS))
def compile_steps(problem: Problem, layout: Layout, device: torch.device) -> tuple[Step, ...]:
    """Compiles and tunes, then runs once more and records what is launched.

    Raises:
        NotSupportedError: It does not compile, or to something that cannot be launched again.
    """
    a, b = _operands(problem, layout, device)
    with reasons("torch.compile"):
        matmul, kernels = _compiled()
        matmul(a, b)
        with _recording(kernels) as launches:
            c = matmul(a, b)
    if c.shape != (problem.m, problem.n) or not c.is_contiguous():
        raise NotSupportedError(f"torch.compile laid C out as {tuple(c.shape)} with strides {c.stride()}")
    if not launches:
        raise NotSupportedError("torch.compile launched no Triton kernel")
    operands = {Operand.A: a, Operand.B: b, Operand.C: c}
    steps = tuple(
        Step(kernel, tuple(_named(argument, operands) for argument in arguments), keywords)
        for kernel, arguments, keywords, _ in launches
    )
    _launch_elsewhere(problem, layout, device, steps, matmul, stream=launches[-1][-1])
    return steps


def _operands(problem: Problem, layout: Layout, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """New data: A [m, k] and B [k, n], the latter a view of how it is stored."""
    stored = (problem.k, problem.n) if layout == "nn" else (problem.n, problem.k)
    dtype = TORCH_DTYPES[problem.dtype]
    a, b = (torch.randn(shape, device=device).to(dtype) for shape in ((problem.m, problem.k), stored))
    return a, as_math(b, layout)


def _launch_elsewhere(
    problem: Problem,
    layout: Layout,
    device: torch.device,
    steps: Sequence[Step],
    matmul: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    stream: int,
) -> None:
    """Other operands and another C must give what the compiled function does: nothing of it was left unrecorded.

    Raises:
        NotSupportedError: They do not.
    """
    a, b = _operands(problem, layout, device)
    c = a.new_full((problem.m, problem.n), torch.nan)
    for step in steps:
        step.launch((a, b, c), stream)
    expected = matmul(a, b)
    if not (c.float() - expected.float()).norm() <= _SAME * expected.float().norm():
        raise NotSupportedError("torch.compile multiplies by more than its Triton kernels: they alone are wrong")


def _compiled() -> tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], type]:
    """``torch.mm`` compiled when first called, and the class whose ``run`` launches its kernels."""
    import torch._dynamo
    import torch._inductor
    from torch._inductor import select_algorithm
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    # One line per variant tried, on the user's terminal.
    select_algorithm.PRINT_AUTOTUNE = False
    # Every shape is a compilation of the same function, and the compiler gives up on a function after eight.
    torch._dynamo.reset()
    known = torch._inductor.list_options()
    chosen = {name: value for name, value in _OPTIONS.items() if name in known}
    options = {**torch._inductor.list_mode_options(_MODE), **chosen}
    return torch.compile(_matmul, fullgraph=True, dynamic=False, options=options), CachingAutotuner


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.mm(a, b)


@contextmanager
def _recording(kernels: type) -> Iterator[list[tuple[Any, tuple[Any, ...], dict[str, Any], int]]]:
    """Notes every launch of Inductor's kernels. Private to torch, hence checked like any other contestant."""
    launches: list[tuple[Any, tuple[Any, ...], dict[str, Any], int]] = []
    original = kernels.run  # type: ignore[attr-defined]

    def run(self: Any, *arguments: Any, stream: Any, **keywords: Any) -> Any:
        launches.append((self, arguments, keywords, stream))
        return original(self, *arguments, stream=stream, **keywords)

    kernels.run = run  # type: ignore[attr-defined]
    try:
        yield launches
    finally:
        kernels.run = original  # type: ignore[attr-defined]


def _named(argument: Any, operands: Mapping[Operand, torch.Tensor]) -> Any:
    """The operand that an argument is.

    Raises:
        NotSupportedError: It points into the middle of one.
    """
    if not isinstance(argument, torch.Tensor):
        return argument
    for operand, tensor in operands.items():
        offset = argument.data_ptr() - tensor.data_ptr()
        if offset == 0:
            return operand
        if 0 < offset < tensor.nbytes:
            raise NotSupportedError(f"a compiled kernel takes part of {operand.name} alone")
    return argument
