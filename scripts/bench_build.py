"""Measures the build: seconds per kernel on one core, with and without a precompiled header, and throughput on all.

    python scripts/bench_build.py [--kernels 48] [--jobs N] [--json]

Kernels are drawn with a fixed seed from the legal ones of a few shapes; the cache is a fresh temporary folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, get_args

import numpy as np

from cudal2.build.artifact import BuiltKernel
from cudal2.build.cache import BuildCache
from cudal2.build.compiler import compile_source
from cudal2.build.cores import default_jobs
from cudal2.build.pool import BuildPool, Request
from cudal2.build.toolchain import Toolchain
from cudal2.codegen import build_key, render
from cudal2.problem import Acc, Layout, Problem
from cudal2.space.space import SearchSpace

SHAPES = ("64_4096_64", "512_512_2048", "2048_2048_2048", "8192_8192_8192")


def main() -> None:
    """Runs the three measurements and prints them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=48, help="kernels for the all-core measurement (default 48)")
    parser.add_argument("--single", type=int, default=12, help="kernels for the one-core measurements (default 12)")
    parser.add_argument("--jobs", type=int, default=default_jobs(), help="compiler processes (default: one per core)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    toolchain = Toolchain.detect()
    requests = draw(max(arguments.kernels, arguments.single))
    figures = {
        "nvrtc": toolchain.nvrtc_version,
        **one_core(requests[: arguments.single], toolchain),
        **all_cores(requests[: arguments.kernels], toolchain, arguments.jobs),
    }
    print(json.dumps(figures) if arguments.json else "\n".join(f"{key:32} {value}" for key, value in figures.items()))


def draw(count: int) -> list[Request]:
    """Different kernels in a fixed order, spread over shapes, accumulators and layouts."""
    space, rng = SearchSpace(), np.random.default_rng(0)
    kinds = [(acc, layout) for acc in get_args(Acc) for layout in get_args(Layout)]
    problems = [Problem.parse(mnk, acc, layout) for mnk in SHAPES for acc, layout in kinds]
    drawn: dict[str, Request] = {}
    while len(drawn) < count:
        for problem in problems:
            (config,) = space.sample(problem, rng)
            drawn[build_key(config, problem.acc, problem.layout)] = (config, problem.acc, problem.layout)
    return list(drawn.values())[:count]


def one_core(requests: list[Request], toolchain: Toolchain) -> dict[str, Any]:
    """Compile seconds in this process: plain, the one that makes the precompiled header, those that read it."""
    sources = [render(*request) for request in requests]
    compile_source(sources[0], toolchain)  # loads the libraries
    plain = [compile_source(source, toolchain).compile_s for source in sources]
    with tempfile.TemporaryDirectory() as folder:
        first = compile_source(sources[0], toolchain, Path(folder)).compile_s
        warm = [compile_source(source, toolchain, Path(folder)) for source in sources]
        header_bytes = sum(path.stat().st_size for path in Path(folder).iterdir())
    return {
        "plain_median_s": round(statistics.median(plain), 3),
        "plain_max_s": round(max(plain), 3),
        "first_with_header_s": round(first, 3),
        "warm_median_s": round(statistics.median(item.compile_s for item in warm), 3),
        "warm_max_s": round(max(item.compile_s for item in warm), 3),
        "header_read": f"{sum(item.pch_used for item in warm)} of {len(warm)}",
        "header_mib": round(header_bytes / 2**20),
    }


def all_cores(requests: list[Request], toolchain: Toolchain, jobs: int) -> dict[str, Any]:
    """Wall seconds from nothing to a filled cache, process start included."""
    with tempfile.TemporaryDirectory() as folder, BuildPool(BuildCache(Path(folder)), toolchain, jobs) as pool:
        begin = time.perf_counter()
        results = pool.build(requests).values()
        wall_s = time.perf_counter() - begin
    built = [result for result in results if isinstance(result, BuiltKernel)]
    return {
        "jobs": jobs,
        "kernels": len(results),
        "failed": len(results) - len(built),
        "spilling": sum(result.spill_bytes > 0 for result in built),
        "wall_s": round(wall_s, 2),
        "kernels_per_minute": round(60 * len(results) / wall_s),
        "core_seconds_per_kernel": round(wall_s * jobs / len(results), 3),
    }


if __name__ == "__main__":
    main()
