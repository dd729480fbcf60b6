"""``cudal2 eval --mode server``: one shape served at random arrivals, by ours and every baseline, in three states."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudal2.atomic import write_new
from cudal2.cli import arguments as shared
from cudal2.cli.backend import gpu_arch, require_gpu
from cudal2.cli.candidates import built
from cudal2.cli.output import note, print_json, print_table
from cudal2.errors import NothingValidError, UsageError
from cudal2.problem import Problem
from cudal2.records.measurement import PROTOCOL_VERSION, STATES
from cudal2.space.config import KernelConfig

if TYPE_CHECKING:
    from cudal2.bench.server.traffic import Traffic
    from cudal2.records.fingerprint import Fingerprint
    from cudal2.records.latency import Latency, Serving
    from cudal2.settings import BenchSettings

DEFAULT_QPS = 1000.0

Choose = Callable[[argparse.Namespace, Problem, "Fingerprint"], list[KernelConfig]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--target_qps`` and ``--state``."""
    parser.add_argument(
        "--target_qps", type=float, metavar="Q", help=f"server: mean arrivals per second (default {DEFAULT_QPS:g})"
    )
    parser.add_argument(
        "--state", choices=STATES, action="append", help="server: what requests find; may be repeated (default: all)"
    )


def refuse_arguments(arguments: argparse.Namespace) -> None:
    """In offline mode.

    Raises:
        UsageError: Something was asked that only server mode has.
    """
    if arguments.target_qps is not None or arguments.state:
        raise UsageError("--target_qps and --state are for --mode server")


def traffic(arguments: argparse.Namespace, seed: int) -> Traffic:
    """The traffic asked for.

    Raises:
        UsageError: A rate that means nothing.
    """
    from cudal2.bench.server.traffic import Traffic

    return Traffic(
        target_qps=DEFAULT_QPS if arguments.target_qps is None else arguments.target_qps,
        states=tuple(dict.fromkeys(arguments.state or STATES)),
        seconds=arguments.benchmark_seconds,
        warmup_s=arguments.warmup_seconds,
        seed=seed,
    )


def run(
    arguments: argparse.Namespace, problem: Problem, settings: BenchSettings, given: list[KernelConfig], choose: Choose
) -> int:
    """Runs the command.

    Args:
        arguments: Of ``cudal2 eval``.
        problem: What is computed.
        settings: Of ``--bench``.
        given: Configurations named by the user.
        choose: Finds some where none is named.
    """
    arriving = traffic(arguments, settings.seed)
    require_gpu(arguments.gpu_device_id)
    from cudal2.bench.judge.evaluate import refuse_wrong
    from cudal2.bench.native import SOURCE
    from cudal2.bench.server.server import ServerRequest, run_server
    from cudal2.build.host import compile_shared
    from cudal2.records.latency import group_servings
    from cudal2.runners.local import LocalRunner
    from cudal2.runners.servings import fit_to_serve
    from cudal2.space.space import SearchSpace

    device, cache = arguments.gpu_device_id, shared.build_cache(arguments)
    client = compile_shared(SOURCE, cache.root)
    with LocalRunner(SearchSpace(gpu_arch(device)), settings=settings, device_index=device, cache=cache) as runner:
        environment = runner.fingerprint()
        configs = given or choose(arguments, problem, environment)
        environment = runner.fingerprint({config.family for config in configs})
        candidates = tuple(built(configs, problem, runner))
        fit, checked = fit_to_serve(runner.worker, problem, candidates, settings)
        refuse_wrong(checked)
        if not fit:
            reasons = "; ".join(sorted({f"{row.status.value}: {row.reason}" for row in checked}))
            raise NothingValidError(f"{problem.mnk}: no candidate ran ({reasons})")
        request = ServerRequest(problem, fit, settings, arriving, client)
        note(f"serving {arriving.target_qps:g} requests per second: about {_expected_s(request):.0f} s")
        rows = run_server(runner.worker, request)
    report = to_dict(rows, arriving, environment.to_dict(), _reproduce(arguments, rows, arriving))
    path = _write(report, problem, arguments.base_dir)
    servings = group_servings(rows)
    if arguments.json:
        print_json(report)
    else:
        print_servings(servings)
    _warn(servings)
    note(f"written: {path}")
    note(f"reproduce: {report['reproduce']}")
    refuse_wrong(rows)
    return 0


def _expected_s(request: Any) -> float:
    """With the contestants that every shape has: three libraries in two layouts, torch, the empty launch."""
    return float(request.traffic.expected_s(request.problem, len(request.candidates) + 8))


def to_dict(rows: Sequence[Latency], arriving: Traffic, environment: Mapping[str, Any], command: str) -> dict[str, Any]:
    """The serving as plain values: figures and comparisons per state, then every raw latency."""
    from cudal2.records.latency import group_servings

    return {
        "protocol": PROTOCOL_VERSION,
        "mode": "server",
        "problem": rows[0].problem.to_dict(),
        "environment": dict(environment),
        "traffic": asdict(arriving),
        "reproduce": command,
        "states": {serving.state: _state(serving) for serving in group_servings(rows)},
        "rows": [row.to_dict() for row in rows],
    }


def _state(serving: Serving) -> dict[str, Any]:
    ours = serving.ours
    return {
        "ours": _figure(ours) if ours else None,
        "others": {row.contestant: _figure(row) for row in serving.rows if row.config is None},
        "speedups": {name: _speedup(serving, name) for name in serving.baselines} if ours else {},
    }


def _figure(row: Latency) -> dict[str, Any]:
    if not row.ok:
        return {"status": row.status.value, "reason": row.reason}
    quantiles = {f"p{round(share * 100)}_us": row.quantile_us(share) for share in (0.5, 0.95, 0.99)}
    figure = {
        **quantiles, "sojourn_p99_us": row.sojourn_us(0.99), "device_median_us": row.device_median_us, "load": row.load,
    }  # fmt: skip
    return {**figure, "config": row.config.name} if row.config else figure


def _speedup(serving: Serving, name: str) -> dict[str, Any]:
    found = serving.against(name)
    assert found is not None
    return {
        "p50": {**asdict(found.p50), "verdict": found.p50.verdict},
        "p95": found.p95,
        "p99": found.p99,
        "device": {**asdict(found.device), "verdict": found.device.verdict},
    }


def print_servings(servings: Sequence[Serving]) -> None:
    """Every contestant's latencies by state, soonest first, and ours against it with the 95 % interval."""
    from cudal2.records.latency import compare_latencies

    table: list[tuple[Any, ...]] = []
    for serving in servings:
        ours = serving.ours
        for row in sorted((row for row in serving.rows if row.ok), key=lambda row: row.quantile_us(0.5)):
            quantiles = (row.quantile_us(share) for share in (0.5, 0.95, 0.99))
            ratios: tuple[Any, ...] = (None,) * 4
            if ours is not None and row is not ours:
                found = compare_latencies(ours, row)
                interval = f"{found.p50.low:.3f}..{found.p50.high:.3f}"
                ratios = (found.p50.ratio, interval, found.p50.verdict, found.device.ratio)
            table.append((serving.state, _name(row), *quantiles, row.device_median_us, *ratios))
        table += [(serving.state, _name(row), *(None,) * 7, row.reason) for row in serving.rows if not row.ok]
    header = (
        "state",
        "contestant",
        "p50_us",
        "p95_us",
        "p99_us",
        "device_us",
        "ours_is",
        "95%",
        "verdict",
        "on_device",
    )
    print_table(header, table)


def _name(row: Latency) -> str:
    python = " (from Python)" if row.detail.endswith("called from Python") else ""
    return row.config.name if row.config is not None else f"{row.contestant}{python}"


def _warn(servings: Sequence[Serving]) -> None:
    from cudal2.records.latency import MOST_LOAD

    busy = max((row for serving in servings for row in serving.rows if row.ok), key=lambda row: row.load, default=None)
    if busy is not None and busy.load > MOST_LOAD:
        note(
            f"{_name(busy)} serves {busy.load:.0%} of the time, over {MOST_LOAD:.0%}: arrivals wait for each other and "
            "states have no room; use a lower --target_qps"
        )


def _reproduce(arguments: argparse.Namespace, rows: Sequence[Latency], arriving: Traffic) -> str:
    """The command that serves the same kernels the same arrivals again; the seed is in the file of ``--bench``."""
    problem = rows[0].problem
    words = ["python", "-m", "cudal2", "eval", "--mode", "server", "--mnk", problem.mnk]
    words += ["--acc_precise", problem.acc, "--dtype", problem.dtype, "--layout", problem.layout]
    words += ["--target_qps", f"{arriving.target_qps:g}"]
    words += [word for state in arriving.states for word in ("--state", state)]
    names = dict.fromkeys(row.config.name for row in rows if row.config is not None)
    words += [word for name in names for word in ("--config", name)]
    words += ["--warmup_seconds", f"{arriving.warmup_s:g}", "--benchmark_seconds", f"{arriving.seconds:g}"]
    words += ["--bench", arguments.bench, "--gpu_device_id", str(arguments.gpu_device_id)]
    return shlex.join(words)


def _write(report: Mapping[str, Any], problem: Problem, base_dir: Path) -> Path:
    text = json.dumps(report, indent=None, allow_nan=False) + "\n"
    return write_new(base_dir / f"{problem.mnk}_{problem.precision}_server.json", text, "choose another --base_dir")
