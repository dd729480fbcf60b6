"""Chains of products, each of which reads what the one before it wrote, launched with and without overlap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from cudal2.build.artifact import BuiltKernel
from cudal2.launch.driver import Graph, ensure_context
from cudal2.launch.kernel import LoadedKernel
from cudal2.problem import Problem

LINKS = 400
SIZE = 256
PROBLEM = Problem(SIZE, SIZE, SIZE)
#: Several tiles, and K for every slice; more tiles than a wave, for stream-K.
LONG, WIDE = Problem(520, 264, 2048), Problem(2056, 1544, 1096)


def copies(config: Any) -> bool:
    """Whether a kernel is for rows that TMA cannot read."""
    return getattr(config, "padded", False)


def suiting(config: Any, problem: Problem) -> Problem:
    """The problem, or one a little smaller whose rows TMA cannot read or store, for kernels that are for such."""
    shifts = getattr(config, "epilogue", "") == "shifted"
    return Problem(problem.m, problem.n - shifts, problem.k - copies(config))


def square(config: Any) -> Problem:
    """A link of a chain, likewise."""
    return Problem(SIZE - 1, SIZE - 1, SIZE - 1) if copies(config) else PROBLEM


def ends(config: Any, kernel: BuiltKernel) -> list[torch.Tensor]:
    """Last products of the same chain: launched plainly, then with programmatic launches that fetch ahead into L2."""
    ensure_context(0)
    torch.manual_seed(0)
    problem = square(config)
    size = problem.m
    # Orthogonal: the product neither grows nor fades.
    rotation = torch.linalg.qr(torch.randn(size, size, device="cuda"))[0].half().contiguous()
    first = torch.randn(size, size, device="cuda").half()
    loaded = LoadedKernel(kernel, config)
    found = []
    for pdl in (False, True):
        ahead = {"l2_prefetch": 64 if pdl else 0} if hasattr(config, "l2_prefetch") and not copies(config) else {}
        launch = loaded.on(replace(config, **ahead), problem, 132, pdl)
        links = [first.clone(), torch.empty_like(first), torch.empty_like(first)]
        addresses = np.array([link.data_ptr() for link in links], np.uint64)
        sets = launch.params(addresses, np.full(3, rotation.data_ptr(), np.uint64), np.roll(addresses, -1))
        torch.cuda.synchronize()
        for link in range(LINKS):
            launch.launch(sets.kernel_params(link % 3), torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        found.append(links[LINKS % 3])
    loaded.close()
    assert torch.isfinite(found[0]).all() and found[0].float().abs().mean() > 0.1
    return found


def replayed(config: Any, kernel: BuiltKernel, problem: Problem) -> list[torch.Tensor]:
    """Products of the same operands: a plain one, then those of a graph's replays and of launches beside them.

    The graph has several launches in a row, which share a workspace, on a stream of its own; the others have another.
    """
    ensure_context(0)
    a, b = _operands(problem)
    loaded = LoadedKernel(kernel, config)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    launches = [loaded.on(config, problem, 132, True) for _ in streams]
    products = [torch.empty(6, problem.m, problem.n, device="cuda", dtype=torch.float16) for _ in streams]
    sets = []
    for launch, product in zip(launches, products, strict=True):
        c = np.array([one.data_ptr() for one in product], np.uint64)
        operands = (np.full(len(c), one.data_ptr(), np.uint64) for one in (a, b))
        sets.append(launch.params(*operands, c))
    handles = [stream.cuda_stream for stream in streams]

    def enqueue(which: int) -> None:
        for index in range(6):
            launches[which].launch(sets[which].kernel_params(index), handles[which])

    torch.cuda.synchronize()
    enqueue(0)
    torch.cuda.synchronize()
    first = products[0][0].clone()
    graph = Graph(handles[0], lambda: enqueue(0))
    found = [first]
    for _ in range(10):
        for product in products:
            product.fill_(float("nan"))
        torch.cuda.synchronize()
        for _ in range(20):
            graph.launch(handles[0])
            enqueue(1)
        torch.cuda.synchronize()
        found += [one.clone() for product in products for one in product]
    graph.destroy()
    loaded.close()
    return found


def is_product(found: torch.Tensor, problem: Problem) -> bool:
    """Whether this is what :func:`replayed` multiplies, to the rounding of fp16."""
    a, b = _operands(problem)
    return bool(torch.allclose(found.double(), a.double() @ b.double().t(), rtol=2e-3, atol=1e-2))


def _operands(problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(1)
    draw = {"device": "cuda", "generator": generator, "dtype": torch.float16}
    return torch.randn(problem.m, problem.k, **draw), torch.randn(problem.n, problem.k, **draw)
