"""``cudal2 profile``: hardware counters of kernels, read by Nsight Compute and kept beside the records."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudal2.cli import arguments as shared
from cudal2.cli.backend import gpu_arch, require_gpu
from cudal2.cli.candidates import built, legal
from cudal2.cli.output import counted, note, print_json, print_table, require_writable
from cudal2.errors import NothingValidError, UsageError
from cudal2.problem import Problem
from cudal2.space.config import KernelConfig

if TYPE_CHECKING:
    from cudal2.records.counters import Profile
    from cudal2.records.fingerprint import Fingerprint

_EPILOG = """examples:
  cudal2 profile --mnk 64_4096_64                                  what the table runs there
  cudal2 profile --shapes-file record32 --out runs/counters        what it runs on each of these
  cudal2 profile --mnk 64_4096_64 --config 64x32x64_s2_coop1_c2x1_k1_tma_o1_m1 --baseline cublaslt

Counters are those of one launch that runs alone on flushed caches at free clocks. They explain a time and are none:
`eval` measures. A counter the tool does not report is null."""

_SHOWN = ("l2_hit_rate", "l2_throughput", "dram_throughput", "tensor_active", "occupancy", "issue_rate")


def add(commands: Any) -> argparse.ArgumentParser:
    """Registers the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "profile", help="hardware counters of kernels (Nsight Compute)", description=__doc__, epilog=_EPILOG
    )
    shared.add_shapes(parser)
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

    problems = shared.problems(arguments)
    settings = load_bench(arguments.bench)
    named = [shared.config(text) for text in arguments.config or ()]
    given = list(dict.fromkeys(legal(config, problem) for problem in problems for config in named))
    if given and arguments.table:
        raise UsageError("--config and --table each say which kernels are profiled: give one of them")
    require_writable(arguments.out, "--out")
    require_gpu(arguments.device)
    from cudal2.bench.profile.counters import LaunchRequest, Work, profile
    from cudal2.bench.profile.ncu import Ncu
    from cudal2.records.counters import append_profiles
    from cudal2.records.shards import RecordLog
    from cudal2.runners.local import LocalRunner
    from cudal2.space.space import SearchSpace

    tool = Ncu.find()
    baseline, device = arguments.baseline is not None, arguments.device
    cache = shared.build_cache(arguments)
    # Closed before the tool runs: the worker's own context would share the GPU with what is profiled.
    with LocalRunner(SearchSpace(gpu_arch(device)), settings=settings, device_index=device, cache=cache) as runner:
        environment = runner.fingerprint()
        chosen = dict.fromkeys(problems, given) if given else _from_table(arguments, problems, environment)
        environment = runner.fingerprint({config.family for configs in chosen.values() for config in configs})
        runner.build((config, problem) for problem, configs in chosen.items() for config in configs)
        work = [Work(p, tuple(built(configs, p, runner)) if configs else ()) for p, configs in chosen.items()]
    request = LaunchRequest(tuple(work), settings, baseline, device)
    kernels = counted(request.contestants, "kernel")
    note(f"Nsight Compute {tool.version} on {environment.gpu}: {kernels}, each launched alone on flushed caches")
    profiles = profile(request, tool)
    with RecordLog(arguments.out, environment, {"tool": f"Nsight Compute {tool.version}"}) as log:
        append_profiles(log, profiles)
    _print(profiles, arguments.json)
    note(f"written: {log.path}")
    return 0


def _from_table(
    arguments: argparse.Namespace, problems: list[Problem], environment: Fingerprint
) -> dict[Problem, list[KernelConfig]]:
    """What the table runs on each shape; of several shapes, those where it runs a library are left out.

    Raises:
        NothingValidError: It has no kernel of ours for any, and the library alone was not asked for.
    """
    from cudal2.table import Device, KernelTable

    table = KernelTable.load(arguments.table, Device.from_fingerprint(environment), *problems[0].signature)
    chosen: dict[Problem, list[KernelConfig]] = {}
    for problem in problems:
        entry = table.best(problem.m, problem.n, problem.k)
        if entry is not None and entry.config is not None:
            note(f"{problem.mnk}: {entry.config.name}, from the table's {entry.mnk}")
            chosen[problem] = [entry.config]
        else:
            note(f"{problem.mnk}: the table has {entry.baseline if entry is not None else 'nothing near'}")
    if not chosen and arguments.baseline and len(problems) == 1:
        return {problems[0]: []}
    if not chosen:
        raise NothingValidError("the table runs no kernel of ours there: give --config, or --baseline with one shape")
    return chosen


def _print(profiles: list[Profile], as_json: bool) -> None:
    if as_json:
        print_json([profile.to_dict() for profile in profiles])
        return
    rows = []
    for profile in profiles:
        counters = profile.counters
        shares = [None if (value := getattr(counters, name)) is None else f"{value:.1%}" for name in _SHOWN]
        registers = None if counters.registers is None else round(counters.registers)
        rows.append((profile.problem.mnk, profile.name, *shares, registers, counters.waves, counters.duration_us))
    print_table(("shape", "kernel", *_SHOWN, "registers", "waves", "duration_us"), rows)
