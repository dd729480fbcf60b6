"""Measures the build: seconds per kernel on one core, with and without a precompiled header, and throughput on all.

    python scripts/bench_build.py [--kernels 48] [--single 12] [--jobs N] [--json] [--out FILE]

Kernels are drawn with a fixed seed from the legal ones of a few shapes; the cache is a fresh temporary folder.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, get_args

from cudal2.cli.main import guarded, guarded_imports

with guarded_imports():
    import numpy as np

    from cudal2.build.artifact import BuiltKernel
    from cudal2.build.cache import BuildCache
    from cudal2.build.compiler import Compilation, compile_source
    from cudal2.build.cores import default_jobs
    from cudal2.build.pool import BuildPool, Request
    from cudal2.build.toolchain import Toolchain
    from cudal2.cli.arguments import Parser, positive
    from cudal2.cli.benchmark import add_output, finish
    from cudal2.codegen import KernelSource, build_key, render
    from cudal2.problem import Acc, Layout, Problem
    from cudal2.space.space import SearchSpace

SHAPES = ("64_4096_64", "512_512_2048", "2048_2048_2048", "8192_8192_8192")


def main() -> None:
    """Runs the three measurements and prints them."""
    parser = Parser(description=__doc__)
    parser.add_argument(
        "--kernels", type=positive, default=48, help="kernels for the all-core measurement (default 48)"
    )
    parser.add_argument(
        "--single", type=positive, default=12, help="kernels for the one-core measurements (default 12)"
    )
    parser.add_argument(
        "--jobs", type=positive, default=default_jobs(), help="compiler processes (default: one per core)"
    )
    add_output(parser)
    arguments = parser.parse_args()
    toolchain = Toolchain.detect()
    requests = draw(max(arguments.kernels, arguments.single))
    figures = {
        "nvrtc": toolchain.nvrtc_version,
        **one_core(requests[: arguments.single], toolchain),
        **all_cores(requests[: arguments.kernels], toolchain, arguments.jobs),
    }
    text = "\n".join(f"{key:32} {value}" for key, value in figures.items())
    finish("build", figures, text, arguments)


def draw(count: int) -> list[Request]:
    """Different kernels in a fixed order, spread over shapes, accumulators and layouts."""
    space, rng = SearchSpace(), np.random.default_rng(0)
    kinds = [(acc, layout) for acc in get_args(Acc) for layout in get_args(Layout)]
    problems = [Problem.parse(mnk, acc, layout) for mnk in SHAPES for acc, layout in kinds]
    drawn: dict[str, Request] = {}
    while len(drawn) < count:
        for problem in problems:
            (config,) = space.sample(problem, rng)
            drawn[build_key(config, *problem.signature)] = (config, *problem.signature)
    return list(drawn.values())[:count]


def one_core(requests: list[Request], toolchain: Toolchain) -> dict[str, Any]:
    """Compiles in this process: plain, the one that makes the precompiled header, those that read it.

    CPU seconds are the ones to compare: wall seconds grow with whatever else runs.
    """
    sources = [render(*request) for request in requests]
    compile_source(sources[0], toolchain)  # loads the libraries
    plain = [timed(source, toolchain, None) for source in sources]
    with tempfile.TemporaryDirectory() as folder:
        first = timed(sources[0], toolchain, Path(folder))
        warm = [timed(source, toolchain, Path(folder)) for source in sources]
        header_bytes = sum(path.stat().st_size for path in Path(folder).rglob("*.pch"))
    return {
        **spread("plain", plain),
        **spread("first_with_header", [first]),
        **spread("warm", warm),
        "header_read": f"{sum(result.pch_used for result, _ in warm)} of {len(warm)}",
        "header_mib": round(header_bytes / 2**20),
    }


def timed(source: KernelSource, toolchain: Toolchain, pch_dir: Path | None) -> tuple[Compilation, float]:
    """A compile, and the CPU seconds it took."""
    begin = time.process_time()
    result = compile_source(source, toolchain, pch_dir)
    return result, time.process_time() - begin


def spread(name: str, runs: list[tuple[Compilation, float]]) -> dict[str, float]:
    """Median and maximum, CPU and wall."""
    cpu_s, wall_s = [cpu for _, cpu in runs], [result.compile_s for result, _ in runs]
    return {
        f"{name}_cpu_s": round(statistics.median(cpu_s), 3),
        f"{name}_cpu_max_s": round(max(cpu_s), 3),
        f"{name}_wall_s": round(statistics.median(wall_s), 3),
        f"{name}_wall_max_s": round(max(wall_s), 3),
    }


def all_cores(requests: list[Request], toolchain: Toolchain, jobs: int) -> dict[str, Any]:
    """Wall seconds from nothing to a filled cache, process start included."""
    cpu_before_s = children_cpu_s()
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
        "cpu_s_per_kernel": round((children_cpu_s() - cpu_before_s) / len(results), 3),
    }


def children_cpu_s() -> float:
    """CPU seconds of the child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(guarded(main))
