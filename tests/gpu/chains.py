"""Chains of products, each of which reads what the one before it wrote, launched with and without overlap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from cudal2.build.artifact import BuiltKernel
from cudal2.launch.driver import ensure_context
from cudal2.launch.kernel import LoadedKernel
from cudal2.problem import Problem

LINKS = 400
SIZE = 256
PROBLEM = Problem(SIZE, SIZE, SIZE)


def ends(config: Any, kernel: BuiltKernel) -> list[torch.Tensor]:
    """Last products of the same chain: launched plainly, then with programmatic launches that fetch ahead into L2."""
    ensure_context(0)
    torch.manual_seed(0)
    # Orthogonal: the product neither grows nor fades.
    rotation = torch.linalg.qr(torch.randn(SIZE, SIZE, device="cuda"))[0].half().contiguous()
    first = torch.randn(SIZE, SIZE, device="cuda").half()
    loaded = LoadedKernel(kernel, config)
    found = []
    for pdl in (False, True):
        ahead = {"l2_prefetch": 64 if pdl else 0} if hasattr(config, "l2_prefetch") else {}
        launch = loaded.on(replace(config, **ahead), PROBLEM, 132, pdl)
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
