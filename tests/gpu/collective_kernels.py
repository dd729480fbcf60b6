"""Corners of ``sm90_collective``; each in one precision and layout, since nvcc takes half a minute for a kernel.

Where the GPU machine has no nvcc, fill a cache elsewhere and carry it over:

    python tests/gpu/collective_kernels.py DIR
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TypeAlias

from cudal2.build.artifact import BuildResult, BuiltKernel
from cudal2.build.cache import BuildCache, resolve_toolchain
from cudal2.build.pool import BuildPool
from cudal2.codegen import build_key
from cudal2.problem import Acc, Dtype, Layout
from cudal2.space.config import Sm90CollectiveConfig

C = Sm90CollectiveConfig
Kind: TypeAlias = tuple[Acc, Layout, Dtype]
PLAIN: Kind = ("fp32", "tn", "fp16")
#: Every schedule, epilogue, scheduler and kind; run-time axes at their ends.
CORNERS: tuple[tuple[Sm90CollectiveConfig, Kind], ...] = (
    (C(128, 256, 64, cluster_m=2), PLAIN),
    (C(128, 256, 64, cluster_m=2, raster="n", max_swizzle=8), PLAIN),
    (C(256, 128, 64, cluster_n=2, raster="m", max_swizzle=2), PLAIN),
    (C(128, 128, 64, schedule="pingpong"), PLAIN),
    (C(64, 256, 64, schedule="pingpong", cluster_m=2, raster="m", max_swizzle=4), PLAIN),
    (C(64, 64, 64, schedule="warpspecialized", epilogue="nosmem"), PLAIN),
    (C(64, 32, 64, schedule="warpspecialized"), PLAIN),
    (C(128, 256, 64, scheduler="stream_k"), PLAIN),
    (C(128, 256, 64, scheduler="stream_k", split_k=8, raster="n", max_swizzle=2), PLAIN),
    (C(128, 128, 64, scheduler="stream_k", split_k=2), PLAIN),
    (C(128, 128, 64, scheduler="stream_k", split_k=3, raster="m"), PLAIN),
    (C(128, 128, 128, 3, epilogue="nosmem", scheduler="stream_k", split_k=4), ("fp32", "nn", "fp16")),
    (C(256, 64, 64, cluster_m=2, scheduler="stream_k"), ("fp16", "nn", "fp16")),
    (C(128, 192, 64, 4, cluster_m=2, cluster_n=2), ("fp32", "tn", "bf16")),
    (C(64, 128, 64, schedule="pingpong", cluster_m=4), ("fp32", "nn", "bf16")),
    (C(64, 96, 64, schedule="pingpong", epilogue="nosmem"), ("fp16", "tn", "fp16")),
    (C(64, 16, 128, 2, schedule="warpspecialized", cluster_n=2), ("fp16", "nn", "fp16")),
)
KINDS = tuple(dict.fromkeys(kind for _, kind in CORNERS))
SHAPES = (
    "65_24_72", "1_64_64", "123_457_200", "4097_33_128", "300_520_1000", "64_64_4096", "1000_104_2056", "513_1032_4104",
    "2000_1000_512", "3000_5000_264",
)  # fmt: skip


def build(store: BuildCache) -> dict[str, BuildResult]:
    """Every corner."""
    with BuildPool(store, resolve_toolchain(store)) as pool:
        return pool.build([(config, *kind) for config, kind in CORNERS])


def key(config: Sm90CollectiveConfig, kind: Kind) -> str:
    """Its kernel's place among :func:`build`'s."""
    return build_key(config, *kind)


def main(folder: str) -> int:
    """Fills a cache."""
    results = build(BuildCache(Path(folder))).values()
    failed = [f"{result.name}: {result.reason}" for result in results if not isinstance(result, BuiltKernel)]
    print(f"{len(results)} kernels in {folder}", *failed, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
