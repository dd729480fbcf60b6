"""``cudal2 profile``: hardware counters of a shape's kernels, read by Nsight Compute and kept beside the records."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudal2.cli import arguments as shared
from cudal2.cli.backend import require_gpu
from cudal2.cli.candidates import built, legal
from cudal2.cli.output import counted, note, print_json, print_table
from cudal2.errors import NothingValidError
from cudal2.problem import Problem
from cudal2.space.config import KernelConfig

if TYPE_CHECKING:
    from cudal2.records.counters import Profile
    from cudal2.records.fingerprint import Fingerprint

_EPILOG = """examples:
  cudal2 profile --mnk 64_4096_64                                  what the table runs there
  cudal2 profile --mnk 64_4096_64 --config 64x32x64_s2_coop1_c2x1_k1_tma_o1_m1 --baseline cublaslt

Counters are those of one launch that runs alone on flushed caches at free clocks. They explain a time and are none:
`eval` measures. A counter the tool does not report is null."""

_SHOWN = ("l2_hit_rate", "l2_throughput", "dram_throughput", "tensor_active", "occupancy", "issue_rate")


def add(commands: Any) -> argparse.ArgumentParser:
    """Registers the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "profile", help="hardware counters of a shape's kernels (Nsight Compute)", description=__doc__, epilog=_EPILOG
    )
    parser.add_argument("--mnk", required=True, metavar="M_N_K", help="the shape, for example 64_4096_64")
    shared.add_kind(parser)
    parser.add_argument(
        "--config", action="append", metavar="NAME|JSON", help="instead of the table's; may be repeated"
    )
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="kernel table (default: the first on the search path)"
    )
    parser.add_argument("--baseline", choices=("cublaslt",), help="profile the library's first heuristic answer too")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/counters"), metavar="DIR", help="where profiles go (default %(default)s)"
    )
    parser.add_argument("--device", type=shared.index, default=0, metavar="N", help="which GPU (default 0)")
    parser.add_argument(
        "--bench", default="offline", metavar="FILE", help="seed and workspace; YAML, or a name in configs/bench"
    )
    shared.add_cache(parser)
    shared.add_json(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    from cudal2.settings import load_bench

    problem = Problem.parse(arguments.mnk, arguments.acc, arguments.layout)
    settings = load_bench(arguments.bench)
    given = list(dict.fromkeys(legal(shared.config(text), problem) for text in arguments.config or ()))
    require_gpu(arguments.device)
    from cudal2.bench.counters import LaunchRequest, profile
    from cudal2.bench.ncu import Ncu
    from cudal2.records.counters import append_profiles
    from cudal2.records.shards import RecordLog
    from cudal2.runners.local import LocalRunner
    from cudal2.space.space import SearchSpace

    tool = Ncu.find()
    baseline = arguments.baseline is not None
    device, cache = arguments.device, shared.build_cache(arguments)
    # Closed before the tool runs: the worker's own context would share the GPU with what is profiled.
    with LocalRunner(SearchSpace(), settings=settings, device_index=device, cache=cache) as runner:
        environment = runner.fingerprint()
        configs = given or _from_table(arguments, problem, environment, baseline)
        candidates = built(configs, problem, runner) if configs else []
    contestants = counted(len(candidates) + baseline, "kernel")
    note(f"Nsight Compute {tool.version} on {environment.gpu}: {contestants}, each launched alone on flushed caches")
    profiles = profile(LaunchRequest(problem, tuple(candidates), settings, baseline, device), tool)
    with RecordLog(arguments.out, environment, {"tool": f"Nsight Compute {tool.version}"}) as log:
        append_profiles(log, profiles)
    _print(profiles, arguments.json)
    note(f"written: {log.path}")
    return 0


def _from_table(
    arguments: argparse.Namespace, problem: Problem, environment: Fingerprint, baseline: bool
) -> list[KernelConfig]:
    """What the table runs; nothing where it runs a library and the library is what was asked for.

    Raises:
        NothingValidError: It has no kernel of ours for the shape.
    """
    from cudal2.table import Device, KernelTable

    table = KernelTable.load(arguments.table, Device.from_fingerprint(environment), problem.acc, problem.layout)
    entry = table.best(problem.m, problem.n, problem.k)
    if entry is not None and entry.config is not None:
        note(f"{entry.config.name}, from the table's {entry.mnk}")
        return [entry.config]
    found = f"the table has {entry.baseline}" if entry is not None else "the table has nothing near"
    if not baseline:
        raise NothingValidError(f"{problem.mnk}: {found}: give --config, or --baseline cublaslt")
    note(f"{found}: the baseline alone is profiled")
    return []


def _print(profiles: list[Profile], as_json: bool) -> None:
    if as_json:
        print_json([profile.to_dict() for profile in profiles])
        return
    rows = []
    for profile in profiles:
        counters = profile.counters
        shares = [None if (value := getattr(counters, name)) is None else f"{value:.1%}" for name in _SHOWN]
        rows.append((profile.name, *shares, counters.registers, counters.waves, counters.duration_us))
    print_table(("kernel", *_SHOWN, "registers", "waves", "duration_us"), rows)
