"""QuACK's Hopper GEMM (package ``quack-kernels``, CuTe DSL) as a contestant: the best of a list of configurations.

It takes B stored as [N,K], accumulates in fp32, and launches on torch's current stream with programmatic dependent
launch, which is its default.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cudal2.atomic import write_atomically
from cudal2.bench.baselines.autotune import AutoTuner
from cudal2.bench.baselines.baseline import BothLayouts, NotSupportedError
from cudal2.bench.baselines.contestants import Ahead, reasons
from cudal2.bench.inputs import TORCH_DTYPES
from cudal2.paths import cache_dir
from cudal2.problem import Dtype, Layout

logger = logging.getLogger(__name__)

PACKAGE = "quack-kernels"
_LAYOUT: Layout = "tn"


@dataclass(frozen=True)
class QuackConfig:
    """One configuration of ``quack.gemm.gemm``, persistent and without a split of K, which 2-D operands do not take.

    Attributes:
        tile_m: Rows of C per tile.
        tile_n: Columns of C per tile.
        cluster_m: Blocks per cluster along M.
        cluster_n: Blocks per cluster along N.
        pingpong: Whether two consumer groups take turns on tiles of their own.
    """

    tile_m: int
    tile_n: int
    cluster_m: int
    cluster_n: int
    pingpong: bool


#: What is tried: large cooperative tiles with and without multicast, ping-pong, and small tiles for small shapes. Found
#: on 48 shapes of the grid on an H200 with quack-kernels 0.6.5, where their best was 1.079x cuBLASLt-AutoTuning.
CONFIGS = tuple(
    QuackConfig(*values)
    for values in (
        (128, 256, 2, 1, False),
        (128, 256, 1, 1, False),
        (256, 128, 2, 1, False),
        (128, 192, 1, 1, True),
        (128, 192, 2, 1, True),
        (128, 128, 1, 1, True),
        (64, 256, 1, 1, True),
        (128, 160, 1, 1, True),
        (64, 128, 1, 1, False),
        (64, 128, 1, 1, True),
        (64, 64, 1, 1, False),
        (128, 64, 1, 1, False),
        (128, 128, 1, 1, False),
        (128, 128, 2, 1, True),
        (64, 192, 1, 1, True),
        (128, 224, 1, 1, False),
        (128, 256, 1, 2, False),
        (64, 256, 1, 1, False),
    )
)


@dataclass(frozen=True)
class QuackGemm:
    """One configuration as a baseline; plain values, compiled by the process that launches it.

    Attributes:
        config: The configuration.
        tried: How many configurations it was chosen from; 0 if it was not.
    """

    config: QuackConfig
    tried: int = 0

    @property
    def name(self) -> str:
        """Name in records."""
        return f"quack_{_LAYOUT}"

    @property
    def detail(self) -> str:
        """Version, configuration, and how many it was chosen from."""
        config = self.config
        return (
            f"{PACKAGE} {_version()} layout={_LAYOUT} tile={config.tile_m}x{config.tile_n} "
            f"cluster={config.cluster_m}x{config.cluster_n} pingpong={config.pingpong} persistent=True pdl=on "
            f"accumulate=fp32" + (f" of={self.tried}" if self.tried else "")
        )

    def on(self, buffers: BothLayouts) -> BoundQuack:
        """Bound to buffers.

        Raises:
            NotSupportedError: The package does not load.
        """
        return BoundQuack(self, load(), buffers.tensors(_LAYOUT))


class BoundQuack:
    """A configuration on known buffers; runs on torch's current stream, which must be the one asked for."""

    def __init__(
        self,
        baseline: QuackGemm,
        gemm: Callable[..., Any],
        tensors: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
    ) -> None:
        self.name, self.detail = baseline.name, baseline.detail
        self._config = baseline.config
        self._gemm = gemm
        self._tensors = tensors

    def launch(self, set_index: int, stream: int) -> None:
        """Enqueues one product; the first launch of a process compiles.

        Raises:
            NotSupportedError: It cannot be compiled or launched.
        """
        a, b, c = self._tensors[set_index]
        config = self._config
        with reasons("QuACK"):
            self._gemm(
                a, b, c, None, None, config.tile_m, config.tile_n, config.cluster_m, config.cluster_n,
                pingpong=config.pingpong, persistent=True,
            )  # fmt: skip


def ahead(dtype: Dtype) -> Ahead | None:
    """Every configuration for operands of a type; ``None`` if its cache has them."""
    made = (_version(), torch.__version__, str(torch.version.cuda), dtype, *CONFIGS)
    marker = _cache() / f"{dtype}-{hashlib.sha256(repr(made).encode()).hexdigest()[:16]}.compiled"
    if marker.is_file():
        return None
    items = tuple((config, dtype) for config in CONFIGS)
    return Ahead(compile_one, items, lambda: write_atomically(marker, repr(made)))


def compile_one(session: Any, item: tuple[QuackConfig, Dtype]) -> None:
    """Job: compiles one configuration into QuACK's own cache, which serves every shape, by one small launch."""
    config, dtype = item
    operands = [torch.zeros((256, 256), dtype=TORCH_DTYPES[dtype], device=session.device) for _ in range(3)]
    BoundQuack(QuackGemm(config), load(), [(operands[0], operands[1], operands[2])]).launch(0, 0)


def choose(tuner: AutoTuner) -> list[QuackGemm]:
    """The fastest right configuration, found as cuBLASLt's algorithms are; all are compiled before any is timed."""
    try:
        load()
    except NotSupportedError as error:
        logger.warning("quack does not compete: %s", error)
        return []
    best = tuner.screened([QuackGemm(config) for config in CONFIGS], 1)
    if not best:
        logger.warning("quack does not compete: none of its %d configurations runs here (-v says why)", len(CONFIGS))
    return [QuackGemm(call.config, len(CONFIGS)) for call in best]


@functools.lru_cache(maxsize=1)
def _version() -> str:
    return importlib.metadata.version(PACKAGE)


def _cache() -> Path:
    return Path(os.environ.get("QUACK_CACHE_DIR") or cache_dir() / "quack")


def load() -> Callable[..., Any]:
    """QuACK's GEMM, imported.

    Raises:
        NotSupportedError: The package does not load.
    """
    # Read when its compiler and its cache are imported.
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")
    os.environ.setdefault("QUACK_CACHE_DIR", str(_cache()))
    with reasons(f"{PACKAGE} does not load"):
        from quack.gemm import gemm
    found: Callable[..., Any] = gemm
    return found
