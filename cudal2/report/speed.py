"""What building, measuring and searching cost, in Markdown, from the benchmark records that ship and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudal2.paths import data_dir
from cudal2.records.benchmark import Benchmark

Figures = Mapping[str, Any]
#: Promise, what was reached, command, date and machine.
Row = tuple[str, str, str, str]


@dataclass(frozen=True)
class Bar:
    """A speed that was promised.

    Attributes:
        benchmark: Which benchmark measures it.
        promise: What must be reached.
        reached: What was, in words.
        kept: Whether that is enough.
        needs: Figure that a run which was cut short may lack; nothing is said of the promise then.
    """

    benchmark: str
    promise: str
    reached: Callable[[Figures], str]
    kept: Callable[[Figures], bool]
    needs: str = ""


def _one_core_text(figures: Figures) -> str:
    return (
        f"{figures['warm_wall_s']:.2f} s, at most {figures['warm_wall_max_s']:.2f} s"
        f" ({figures['plain_wall_s']:.2f} s without the precompiled header)"
    )


def _all_cores_text(figures: Figures) -> str:
    failed = f", {figures['failed']} failed" if figures["failed"] else ""
    return f"{figures['kernels']} in {figures['wall_s']:.1f} s on {figures['jobs']}{failed}"


def _step_text(figures: Figures) -> str:
    return f"{figures['overhead_ms']:.1f} ms, at most {figures['overhead_max_ms']:.1f}, {len(figures['steps'])} shapes"


def _judgement_text(figures: Figures) -> str:
    most = max(figures["alone_s"].values())
    return (
        f"{figures['each_s']:.1f} s each for {figures['judged']} shapes together; alone, process starts included, "
        f"{figures['alone_median_s']:.1f} s, at most {most:.1f} s"
    )


def _repeat_text(figures: Figures) -> str:
    return "; ".join(
        f"{key}: {one['agree']} of {one['pairs']} pairs over {one['shapes']} shapes, at most"
        f" {one['largest_disagreement']:.1%} apart, {one['reversed']} verdicts reversed"
        for key, one in figures["columns"].items()
    )


BARS = (
    Bar("build", "compile: <= 1.5 s a kernel on one core", _one_core_text, lambda it: it["warm_wall_max_s"] <= 1.5),
    Bar(
        "build",
        "compile: >= 200 kernels in <= 60 s on 16 cores",
        _all_cores_text,
        lambda it: it["kernels"] >= 200 and it["wall_s"] <= 60.0 and it["jobs"] <= 16,
    ),
    Bar(
        "measure",
        "live: >= 10,000 checked measurements per GPU-hour, shapes under 100 us",
        lambda it: f"{it['measurements_per_hour']:,} ({it['correct']} of {it['measured']} correct)",
        lambda it: it["measurements_per_hour"] >= 10_000,
    ),
    Bar(
        "replay",
        "replay: >= 1,000 PPO steps/s on one core, updates included",
        lambda it: f"{it['steps_per_s']:,}",
        lambda it: it["steps_per_s"] >= 1_000,
    ),
    Bar(
        "replay",
        "the training of `demo.sh`: <= 180 s on two cores",
        lambda it: f"{it['train_s']:.0f} s for {it['steps']:,} steps on one",
        lambda it: it["train_s"] <= 180.0,
    ),
    Bar(
        "judge",
        "a full judgement, autotuning and all processes, of a shape under 100 us: <= 3 s",
        _judgement_text,
        lambda it: it["each_s"] <= 3.0,
        "alone_s",
    ),
    Bar(
        "judge",
        "the judge's overhead in a search step, beyond timed kernels: <= 5 ms",
        _step_text,
        lambda it: it["overhead_ms"] <= 5.0,
        "overhead_ms",
    ),
    Bar(
        "repeat",
        "two complete runs of a shape agree within the printed interval, 95 % of pairs",
        _repeat_text,
        lambda it: all(one["agree"] >= 0.95 * one["pairs"] for one in it["columns"].values()),
    ),
)


def shipped_benchmarks() -> Path:
    """Directory of the benchmark records that ship with the package."""
    return data_dir() / "benchmarks"


def speed_markdown(benchmarks: Mapping[str, Benchmark], others: Sequence[Row] = ()) -> str:
    """One row per promise whose benchmark was run, then promises that are kept elsewhere; empty if there are none."""
    rows = [
        (bar.promise, _verdict(bar, run.figures), f"`{run.command}`", f"{run.utc[:10]}, {run.machine}")
        for bar in BARS
        if (run := benchmarks.get(bar.benchmark)) is not None and (not bar.needs or bar.needs in run.figures)
    ]
    rows += others
    return f"### Speed\n\n{_table(('promised', 'reached', 'command', 'measured'), rows, '---')}" if rows else ""


def _verdict(bar: Bar, figures: Figures) -> str:
    return ("" if bar.kept(figures) else "**missed:** ") + bar.reached(figures)


def search_markdown(benchmarks: Mapping[str, Benchmark]) -> str:
    """Strategies by budget on shapes the policy was not trained on; empty if that was not run."""
    run = benchmarks.get("search")
    if run is None:
        return ""
    ratios: dict[str, dict[int, float]] = {}
    for score in run.figures["scores"]:
        ratios.setdefault(score["strategy"], {})[score["budget"]] = score["geomean_ratio"]
    budgets = sorted({budget for row in ratios.values() for budget in row})
    rows = [(name, *(f"{row[budget]:.3f}" for budget in budgets)) for name, row in ratios.items()]
    figures = run.figures
    text = (
        "Geomean of cuBLASLt-AutoTuning's time over that of the best of the first B measurements, over"
        f" {figures['shapes']} recorded shapes in {figures['folds']} folds:\nthe policy was not trained on the shape it"
        " proposes for, nor do nearest neighbours know it. What there is to find:"
        f" {figures['optimum']['geomean_ratio']:.3f}. `{run.command}`, {run.utc[:10]}, replay on {run.machine}."
    )
    head = ("strategy", *(f"B = {budget}" for budget in budgets))
    return f"### Search at equal budget, held-out shapes\n\n{text}\n\n{_table(head, rows, '---:')}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> str:
    lines = [head, ("---", *[align] * (len(head) - 1)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
