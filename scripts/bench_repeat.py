"""Judges the same kernels in several complete runs and says how the figures agree.

    python scripts/bench_repeat.py [--shapes-file repeat24] [--runs 3] [--minutes 9] [--records DIR] [--out FILE]

Every run tunes the libraries anew and measures in processes of its own; ours is the best recorded configuration of each
shape in all of them. Two runs agree if the ratio of each to cuBLASLt-AutoTuning lies in the interval that the other
prints. Every row is kept in --records, and a shape that a run has judged there is not judged again: the same command
goes on where it stopped, and needs no GPU once all is there.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cudal2.cli.main import guarded, guarded_imports

with guarded_imports():
    from cudal2.build.pool import BuildPool
    from cudal2.cli import arguments as shared
    from cudal2.cli.backend import require_gpu
    from cudal2.cli.benchmark import add_output, finish
    from cudal2.cli.eval import PDL_COLUMNS
    from cudal2.cli.output import note
    from cudal2.errors import NothingValidError
    from cudal2.problem import Problem
    from cudal2.records.finals import REFERENCE, Comparison, latest_finals
    from cudal2.records.measurement import Measurement
    from cudal2.records.recording import bundled_recording, read_records
    from cudal2.records.shards import RecordLog, Shards, read_shards, shard_files
    from cudal2.runners.finals import already_judged, best_configs, run_finals
    from cudal2.runners.local import LocalRunner
    from cudal2.settings import load_bench, load_shapes
    from cudal2.space.config import KernelConfig
    from cudal2.space.space import SearchSpace

Plan = list[tuple[Problem, list[KernelConfig]]]
#: Ratio and interval by leaderboard and shape.
Run = Mapping[tuple[str, str], Comparison]


def main() -> None:
    """Judges run after run, then compares them."""
    arguments = parse()
    plan = planned(arguments)
    left = [to_do(folder, plan) for folder in folders(arguments)]
    families = {config.family for _, configs in plan for config in configs}
    machine = judge_runs(arguments, left, families) if any(left) else gpu_of(folders(arguments)[0])
    runs = [comparisons(recorded(folder).measurements) for folder in folders(arguments) if shard_files(folder)]
    if len(runs) < 2:
        raise NothingValidError("fewer than two runs have figures: run the same command again")
    figures = agreement(runs)
    if not figures["columns"]:
        raise NothingValidError("no shape has a figure in every run: the lines above say why")
    finish("repeat", figures, text(figures), arguments, machine)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = shared.Parser(description=__doc__)
    parser.add_argument("--shapes-file", default="repeat24", help="YAML, or a name in configs/shapes")
    parser.add_argument("--runs", type=shared.positive, default=3, help="complete runs (default 3)")
    parser.add_argument(
        "--recording",
        type=Path,
        help="whose best configurations run: .parquet, or a directory of shards (default: the shipped one)",
    )
    parser.add_argument("--records", type=Path, default=Path("runs/repeat"), help="where every row is kept")
    parser.add_argument("--pdl", choices=tuple(PDL_COLUMNS), default="both", help="PDL columns (default both)")
    parser.add_argument("--bench", default="offline", help="how to time: YAML, or a name in configs/bench")
    parser.add_argument("--minutes", type=shared.minutes, help="begin no batch of finals after this long")
    parser.add_argument("--device", type=shared.index, default=0, help="which GPU (default 0)")
    shared.add_cache(parser)
    add_output(parser)
    return parser.parse_args()


def planned(arguments: argparse.Namespace) -> Plan:
    """The best recorded configuration of every shape.

    Raises:
        NothingValidError: A shape was not recorded.
    """
    records = read_records(arguments.recording or bundled_recording(), allow_mixed=True)
    best = best_configs(records.measurements, 1)
    problems = load_shapes(arguments.shapes_file).problems()
    unknown = [problem.mnk for problem in problems if problem not in best]
    if unknown:
        raise NothingValidError(f"the recording has nothing for {', '.join(unknown)}: name shapes that it holds")
    return [(problem, best[problem]) for problem in problems]


def folders(arguments: argparse.Namespace) -> list[Path]:
    """One folder of records per run."""
    return [arguments.records / f"run{number}" for number in range(1, arguments.runs + 1)]


def recorded(folder: Path) -> Shards:
    """What a run holds; its sessions name the families of their own shapes, which may differ."""
    return read_shards(folder, allow_mixed=True)


def to_do(folder: Path, plan: Plan) -> Plan:
    """What a run has not judged yet."""
    done = already_judged(recorded(folder).measurements) if shard_files(folder) else set()
    return [(problem, configs) for problem, configs in plan if problem not in done]


def gpu_of(folder: Path) -> str:
    """The GPU that a run was made on."""
    return recorded(folder).fingerprint.gpu


def judge_runs(arguments: argparse.Namespace, left: Sequence[Plan], families: Iterable[str]) -> str:
    """Judges what is left of each run, of kernels of these families; the GPU's name."""
    require_gpu(arguments.device)
    settings, cache = load_bench(arguments.bench), shared.build_cache(arguments)
    end = time.monotonic() + (arguments.minutes * 60.0 if arguments.minutes else math.inf)
    with (
        LocalRunner(SearchSpace(), settings=settings, device_index=arguments.device, cache=cache) as runner,
        BuildPool(cache, runner.toolchain) as pool,
    ):
        fingerprint = runner.fingerprint(families)
        for number, (folder, plan) in enumerate(zip(folders(arguments), left, strict=True), start=1):
            if not plan:
                continue
            with RecordLog(folder, fingerprint, {"command": "scripts/bench_repeat.py", "run": number}) as log:
                columns, seconds = PDL_COLUMNS[arguments.pdl], end - time.monotonic()
                outcome = run_finals(runner.worker, pool, plan, settings, log, columns, seconds=seconds)
            note(f"run {number}: {len(outcome.judged)} judged, {len(outcome.left)} left")
            for problem, reason in outcome.failed.items():
                note(f"run {number}: {problem.mnk} failed: {reason}")
    return fingerprint.gpu


def comparisons(rows: Iterable[Measurement]) -> Run:
    """Ours against the reference in each of a run's finals."""
    found = {at: final.against(REFERENCE) for at, final in latest_finals(rows).items()}
    return {at: comparison for at, comparison in found.items() if comparison is not None}


def agreement(runs: Sequence[Run]) -> dict[str, Any]:
    """How the runs agree, by leaderboard, over the shapes that have a figure in all of them."""
    shared_by_all = sorted(set.intersection(*(set(run) for run in runs)))
    by_key: dict[str, dict[str, list[Comparison]]] = {}
    for key, mnk in shared_by_all:
        by_key.setdefault(key, {})[mnk] = [run[key, mnk] for run in runs]
    return {
        "runs": len(runs),
        "columns": {key: _column(shapes) for key, shapes in by_key.items()},
        "shapes": [
            {
                "shape": mnk,
                "key": key,
                "ratios": [round(one.ratio, 4) for one in found],
                "intervals": [[round(one.low, 4), round(one.high, 4)] for one in found],
                "verdicts": [one.verdict for one in found],
            }
            for key, shapes in by_key.items()
            for mnk, found in shapes.items()
        ],
    }


def _column(shapes: Mapping[str, Sequence[Comparison]]) -> dict[str, Any]:
    pairs = [(mnk, *pair) for mnk, found in shapes.items() for pair in itertools.combinations(found, 2)]
    worst = max(pairs, key=lambda pair: _apart(pair[1], pair[2]))
    return {
        "shapes": len(shapes),
        "pairs": len(pairs),
        "agree": sum(_holds(one, other) and _holds(other, one) for _, one, other in pairs),
        "overlap": sum(one.low <= other.high and other.low <= one.high for _, one, other in pairs),
        "reversed": sum({one.verdict, other.verdict} == {"win", "loss"} for _, one, other in pairs),
        "largest_disagreement": round(_apart(worst[1], worst[2]), 4),
        "largest_at": worst[0],
    }


def _holds(one: Comparison, other: Comparison) -> bool:
    """Whether the other's ratio lies in this one's interval."""
    return one.low <= other.ratio <= one.high


def _apart(one: Comparison, other: Comparison) -> float:
    """The larger ratio over the smaller one, less 1."""
    return max(one.ratio, other.ratio) / min(one.ratio, other.ratio) - 1.0


def text(figures: Mapping[str, Any]) -> str:
    """One line per shape and leaderboard, then the sums."""
    lines = [
        f"{one['shape']:>18} {one['key']}  "
        + "  ".join(
            f"{ratio:.3f} [{low:.3f}, {high:.3f}]"
            for ratio, (low, high) in zip(one["ratios"], one["intervals"], strict=True)
        )
        for one in figures["shapes"]
    ]
    for key, column in figures["columns"].items():
        lines.append(
            f"{key}: {column['agree']} of {column['pairs']} pairs of runs agree, {column['overlap']} intervals overlap,"
            f" {column['reversed']} verdicts reversed; furthest apart {column['largest_disagreement']:.1%}"
            f" ({column['largest_at']})"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(guarded(main))
