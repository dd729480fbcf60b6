"""Measures the judge on this machine's GPU: checked measurements per hour over shapes under 100 us.

    python scripts/bench_measure.py [--candidates 40] [--cache-dir DIR] [--json] [--out FILE]

Candidates are drawn with a fixed seed from the legal ones and built beforehand; each is checked, timed beside
cuBLASLt-AutoTuning and checked again, as in a search. Bringing a problem up, once per shape, is shown apart.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

from cudal2.cli.main import guarded, guarded_imports

with guarded_imports():
    import numpy as np

    from cudal2.cli import arguments as shared
    from cudal2.cli.backend import require_gpu
    from cudal2.cli.benchmark import add_output, finish
    from cudal2.problem import Problem
    from cudal2.records.measurement import Measurement
    from cudal2.runners.local import LocalRunner
    from cudal2.settings import BenchSettings
    from cudal2.space.space import SearchSpace

SHAPES = ("64_64_64", "64_4096_64", "256_256_1024", "1024_1024_1024", "64_2048_16384", "4096_2048_1024")


def main() -> None:
    """Measures shape by shape and prints one line each and the total."""
    parser = shared.Parser(description=__doc__)
    parser.add_argument("--candidates", type=shared.positive, default=40, help="candidates per shape (default 40)")
    parser.add_argument("--device", type=shared.index, default=0, help="which GPU (default 0)")
    shared.add_cache(parser)
    add_output(parser)
    arguments = parser.parse_args()
    require_gpu(arguments.device)
    space, rng, settings = SearchSpace(), np.random.default_rng(0), BenchSettings()
    problems = [Problem.parse(mnk) for mnk in SHAPES]
    drawn = {problem: space.sample(problem, rng, arguments.candidates) for problem in problems}
    cache = shared.build_cache(arguments)
    with LocalRunner(space, problems, settings=settings, device_index=arguments.device, cache=cache) as runner:
        runner.build([(config, problem) for problem, configs in drawn.items() for config in configs])
        machine = runner.fingerprint().gpu
        shapes = []
        for problem, configs in drawn.items():
            started = time.monotonic()
            runner.reference_us(problem)
            prepared = time.monotonic()
            rows = runner.run(problem, configs)
            shapes.append(summary(problem, rows, prepared - started, time.monotonic() - prepared))
    finish("measure", totals(shapes), text(shapes), arguments, machine)


def totals(shapes: list[dict[str, Any]]) -> dict[str, Any]:
    """The rate over all shapes; a search measures hundreds per shape, so bringing one up is shown apart."""
    measured, seconds = sum(one["measured"] for one in shapes), sum(one["seconds"] for one in shapes)
    return {
        "measurements_per_hour": round(3600 * measured / seconds),
        "measured": measured,
        "correct": sum(one["correct"] for one in shapes),
        "prepare_s_per_shape": round(sum(one["prepare_s"] for one in shapes) / len(shapes), 2),
        "shapes": shapes,
    }


def text(shapes: list[dict[str, Any]]) -> str:
    """One line per shape, and the rate."""
    lines = ["  ".join(f"{key} {value}" for key, value in one.items()) for one in shapes]
    return "\n".join([*lines, f"{totals(shapes)['measurements_per_hour']} checked measurements per GPU-hour"])


def summary(problem: Problem, rows: list[Measurement], prepare_s: float, seconds: float) -> dict[str, Any]:
    """One shape: how long, and how much of it the candidates' timed replays took; the reference's come on top."""
    good = [row for row in rows if row.ok]
    replays_ms = [sum(row.times_us) * row.launches / 1e3 for row in good]
    return {
        "shape": problem.mnk,
        "measured": len(rows),
        "correct": len(good),
        "seconds": round(seconds, 2),
        "prepare_s": round(prepare_s, 2),
        "each_ms": round(1e3 * seconds / len(rows), 1),
        "replays_ms": round(statistics.median(replays_ms), 1) if replays_ms else 0.0,
    }


if __name__ == "__main__":
    sys.exit(guarded(main))
