"""``cudal2 eval``: one shape on the GPU; correctness first, then ours and every baseline in shuffled rounds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudal2.arch import SM80, SM86, SM90, arch_of
from cudal2.bench.baselines import contestants
from cudal2.cli import arguments as shared
from cudal2.cli import eval_server, foreign, output
from cudal2.cli.backend import gpu_arch, require_gpu
from cudal2.cli.candidates import built, legal
from cudal2.cli.output import note, print_json, print_table
from cudal2.errors import NothingValidError, TableError, UsageError
from cudal2.problem import Problem
from cudal2.space.config import KernelConfig

if TYPE_CHECKING:
    from cudal2.bench.judge.evaluate import Evaluation
    from cudal2.build.foreign import ForeignKernel
    from cudal2.records.fingerprint import Fingerprint
    from cudal2.settings import BenchSettings

_EPILOG = """examples:
  ./eval_one_file.sh --mnk 64_4096_64 --acc_precise fp32 --device_type h200 --warmup_seconds 5 \\
      --benchmark_seconds 10 --base_dir ./results --gpu_device_id 0 --mode offline
  cudal2 eval --mnk 64_4096_64 --config 64x32x64_s2_coop1_c2x1_k1_tma_o1_m1
  cudal2 eval --mnk 64_4096_64 --dtype bf16
  cudal2 eval --mnk 64_4096_64 --mode server --target_qps 1000
  cudal2 eval --mnk 64_4096_64 --source mine.cu --entry gemm

Writes JSON with every raw time, and the CUDA-L2 columns as CSV, into --base_dir; deletes and replaces nothing.
Prints, and keeps in the JSON, the command that measures the same kernels again.
Exit code 1: a kernel of ours, or the one of --source, computed something wrong; 3: that one does not take the shape,
fails or is caught cheating. If its first check shows it, nothing is timed."""

PDL_COLUMNS = {"off": (False,), "on": (True,), "both": (False, True)}
#: Time, not this, ends a benchmark.
MAX_ROUNDS = 1_000
DEFAULT_BENCH = "offline"
#: GPU names that --device_type may promise, and the architecture they stand for.
DEVICE_TYPES = {"h100": SM90, "h200": SM90, "gh200": SM90, "h20": SM90, "a100": SM80, "3090": SM86}


def add(commands: Any) -> argparse.ArgumentParser:
    """Registers the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "eval", help="check and benchmark one shape against the libraries", description=__doc__, epilog=_EPILOG
    )
    parser.add_argument("--mnk", required=True, metavar="M_N_K", help="the shape, for example 64_4096_64")
    parser.add_argument("--acc_precise", "--acc", choices=("fp32", "fp16"), default="fp32", help="accumulator")
    shared.add_dtype(parser)
    parser.add_argument("--layout", choices=("tn", "nn"), default="tn", help="B as [N,K] (tn, default) or [K,N] (nn)")
    parser.add_argument("--device_type", type=device_type, default="h200", metavar="NAME", help=", ".join(DEVICE_TYPES))
    parser.add_argument(
        "--warmup_seconds", type=seconds, default=5.0, metavar="S", help="rounds that do not count, in all processes"
    )
    parser.add_argument("--benchmark_seconds", type=seconds, default=10.0, metavar="S", help="rounds that do, likewise")
    parser.add_argument("--base_dir", type=Path, default=Path("results"), metavar="DIR", help="where results go")
    parser.add_argument("--gpu_device_id", type=shared.index, default=0, metavar="N", help="which GPU (default 0)")
    parser.add_argument("--mode", choices=("offline", "server"), default="offline", help="back to back, or arrivals")
    eval_server.add_arguments(parser)
    parser.add_argument(
        "--config", action="append", metavar="NAME|JSON", help="instead of the table's; may be repeated"
    )
    shared.add_family(parser)
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="kernel table (default: the first on the search path)"
    )
    parser.add_argument(
        "--pdl", choices=tuple(PDL_COLUMNS), help="offline: programmatic dependent launch (default both)"
    )
    parser.add_argument(
        "--bench", default=DEFAULT_BENCH, metavar="FILE", help="how to time; YAML, or a name in configs/bench"
    )
    shared.add_optional(parser)
    foreign.add_arguments(parser)
    shared.add_cache(parser)
    shared.add_json(parser)
    return parser


def device_type(text: str) -> str:
    """``--device_type``: a GPU this version has kernels for."""
    name = text.lower()
    if name not in DEVICE_TYPES:
        raise UsageError(f"--device_type {text}: unknown; use one of {', '.join(DEVICE_TYPES)}")
    return name


def seconds(text: str) -> float:
    """A number of seconds, zero or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text[:80]}' is not a number of seconds")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    from cudal2.settings import load_bench

    problem = Problem.parse(arguments.mnk, arguments.acc_precise, arguments.layout, arguments.dtype)
    settings = load_bench(arguments.bench)
    promised = DEVICE_TYPES[arguments.device_type]
    given = [legal(shared.config(text), problem, promised) for text in arguments.config or ()]
    contestants.require(arguments.optional)
    _refuse_contradictions(arguments)
    output.require_writable(arguments.base_dir, "--base_dir")
    if arguments.mode == "server":
        return eval_server.run(arguments, problem, settings, given, _from_table)
    brought = foreign.build(arguments, problem, settings)
    require_gpu(arguments.gpu_device_id)
    from cudal2.bench.judge.evaluate import refuse_failed_foreign, reproduce_command, to_dict, write

    evaluation, environment = _evaluate(arguments, problem, settings, given, brought)
    command = reproduce_command(evaluation, _options(arguments))
    paths = write(evaluation, arguments.base_dir, environment.to_dict(), command)
    if arguments.json:
        print_json(to_dict(evaluation, environment.to_dict(), command))
    else:
        _print(evaluation)
    for path in paths:
        note(f"written: {path}")
    note(f"reproduce: {command}")
    refuse_failed_foreign(evaluation.rows)
    return 0


def _evaluate(
    arguments: argparse.Namespace,
    problem: Problem,
    settings: BenchSettings,
    given: list[KernelConfig],
    brought: ForeignKernel | None,
) -> tuple[Evaluation, Fingerprint]:
    """The shape judged, and where: what is given or the table's, against everyone."""
    from cudal2.bench.judge.evaluate import evaluate
    from cudal2.bench.rounds import RoundLimits
    from cudal2.progress import Progress
    from cudal2.runners.local import LocalRunner
    from cudal2.space.space import SearchSpace

    device, cache = arguments.gpu_device_id, shared.build_cache(arguments)
    arch, columns = gpu_arch(device), PDL_COLUMNS[arguments.pdl or "both"]
    limits = RoundLimits(MAX_ROUNDS, arguments.warmup_seconds, arguments.benchmark_seconds, settings.seed)
    with LocalRunner(SearchSpace(arch), settings=settings, device_index=device, cache=cache) as runner:
        environment = runner.fingerprint()
        if arguments.device_type not in environment.gpu.lower():
            note(f"--device_type {arguments.device_type}, but GPU {device} is {environment.gpu}: reported as that")
        try:
            candidates = built(given or _from_table(arguments, problem, environment), problem, runner)
        except NothingValidError as error:
            if brought is None:
                raise
            note(f"{error}; nothing of ours takes part")
            candidates = []
        environment = runner.fingerprint({config.family for config, _ in candidates})
        with Progress("eval", len(candidates) * len(columns) + 1) as progress:
            evaluation = evaluate(
                runner.worker,
                problem,
                candidates,
                settings,
                columns,
                limits,
                lambda step: progress.advance(note=step),
                arguments.optional,
                brought,
            )
    return evaluation, environment


def _refuse_contradictions(arguments: argparse.Namespace) -> None:
    """Nothing that was asked for is left out in silence.

    Raises:
        UsageError: Two arguments that exclude each other.
    """
    kinds = [f"--{name}" for name in ("config", "family", "table") if getattr(arguments, name)]
    if len(kinds) > 1:
        raise UsageError(f"{' and '.join(kinds)} each say which kernels of ours take part: give one of them")
    foreign.refuse_arguments(arguments)
    if arguments.mode == "offline":
        eval_server.refuse_arguments(arguments)
        return
    if arguments.optional:
        raise UsageError("--with is for --mode offline: its compilers launch from Python")
    if arguments.source:
        raise UsageError("--source is for --mode offline: its process answers too slowly to be sent requests")
    if arguments.pdl in ("on", "both"):
        raise UsageError("--pdl is for --mode offline: a launch that runs alone has none before it to overlap with")


def _options(arguments: argparse.Namespace) -> list[str]:
    """What else a command must be given to measure the same; the seed is in the file of ``--bench``."""
    bench = ["--bench", arguments.bench] if arguments.bench != DEFAULT_BENCH else []
    optional = ["--with", ",".join(arguments.optional)] if arguments.optional else []
    device = ["--gpu_device_id", str(arguments.gpu_device_id)] if arguments.gpu_device_id else []
    return [*bench, *optional, *foreign.options(arguments), *device]


def _from_table(arguments: argparse.Namespace, problem: Problem, environment: Fingerprint) -> list[KernelConfig]:
    """What the table says to run; a few of different kinds where none fits this GPU or ``--family`` is given."""
    from cudal2.bench.judge.evaluate import table_configs
    from cudal2.space.defaults import default_configs
    from cudal2.table import Device, KernelTable

    arch = arch_of(environment.capability) or SM90
    if arguments.family:
        return default_configs(problem, arch, arguments.family)
    device = Device.from_fingerprint(environment)
    try:
        table = KernelTable.load(arguments.table, device, *problem.signature)
    except TableError as error:
        if arguments.table:
            raise
        note(f"{error}; trying default configurations")
        return default_configs(problem, arch)
    configs, why = table_configs(problem, table, arch)
    note(why)
    return configs


def _print(evaluation: Evaluation) -> None:
    """Every contestant's median, fastest first, and ours against it with the 95 % interval."""
    from cudal2.records.finals import compare_rows

    rows: list[tuple[Any, ...]] = []
    for final in evaluation.finals:
        ours, pdl = final.ours, "on" if final.pdl else "off"
        for row in sorted((row for row in final.rows if row.ok), key=lambda row: row.median_us):
            found = compare_rows(ours, row) if ours is not None and row is not ours else None
            interval = (
                (found.ratio, f"{found.low:.3f}..{found.high:.3f}", found.verdict) if found else (None, None, None)
            )
            name = row.config.name if row.config is not None else row.contestant
            rows.append((pdl, name, row.median_us, row.problem.flops / row.median_us / 1e6, *interval))
        rows += [(pdl, row.contestant, None, None, None, None, row.reason) for row in final.rows if not row.ok]
    print_table(("pdl", "contestant", "median_us", "tflops", "ours_is", "95%", "verdict"), rows)
    foreign.print_comparison(evaluation.finals)
