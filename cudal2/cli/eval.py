"""``cudal2 eval``: one shape on the GPU; correctness first, then ours and every baseline in shuffled rounds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cudal2.cli import arguments as shared
from cudal2.cli.backend import require_gpu
from cudal2.errors import UsageError
from cudal2.problem import Problem

_EPILOG = """examples:
  ./eval_one_file.sh --mnk 64_4096_64 --acc_precise fp32 --device_type h200 --warmup_seconds 5 \\
      --benchmark_seconds 10 --base_dir ./results --gpu_device_id 0 --mode offline
  cudal2 eval --mnk 64_4096_64 --config 64x32x64_s2_coop1_c2x1_k1_tma_o1_m1

Writes M_N_K.json and the CUDA-L2 columns as M_N_K.csv into --base_dir; deletes nothing. Exit code 1: a wrong kernel."""

#: GPU names that --device_type may promise, and the compute capability they stand for.
DEVICE_TYPES = {"h100": "9.0", "h200": "9.0", "gh200": "9.0", "h20": "9.0", "a100": "8.0", "3090": "8.6"}


def add(commands: Any) -> argparse.ArgumentParser:
    """Registers the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "eval", help="check and benchmark one shape against the libraries", description=__doc__, epilog=_EPILOG
    )
    parser.add_argument("--mnk", required=True, metavar="M_N_K", help="the shape, for example 64_4096_64")
    parser.add_argument("--acc_precise", "--acc", choices=("fp32", "fp16"), default="fp32", help="accumulator")
    parser.add_argument("--layout", choices=("tn", "nn"), default="tn", help="B as [N,K] (tn, default) or [K,N] (nn)")
    parser.add_argument(
        "--device_type", type=device_type, default="h200", metavar="NAME", help="h200, h100, gh200, h20"
    )
    parser.add_argument("--warmup_seconds", type=seconds, default=5.0, metavar="S", help="rounds that do not count")
    parser.add_argument(
        "--benchmark_seconds", type=seconds, default=10.0, metavar="S", help="no round begins after this"
    )
    parser.add_argument("--base_dir", type=Path, default=Path("results"), metavar="DIR", help="where results go")
    parser.add_argument("--gpu_device_id", type=int, default=0, metavar="N", help="which GPU (default 0)")
    parser.add_argument("--mode", choices=("offline", "server"), default="offline", help="back to back, or arrivals")
    parser.add_argument("--target_qps", type=float, metavar="Q", help="with server: mean arrivals per second")
    parser.add_argument(
        "--config", action="append", metavar="NAME|JSON", help="instead of the table's; may be repeated"
    )
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="kernel table (default: the first on the search path)"
    )
    parser.add_argument("--pdl", choices=("on", "off", "both"), default="both", help="programmatic dependent launch")
    parser.add_argument(
        "--bench", default="offline", metavar="FILE", help="how to time; YAML, or a name in configs/bench"
    )
    shared.add_cache(parser)
    shared.add_json(parser)
    return parser


def device_type(text: str) -> str:
    """``--device_type``: a GPU this version has kernels for."""
    name = text.lower()
    if name not in DEVICE_TYPES:
        raise UsageError(f"--device_type {text}: unknown; use one of {', '.join(DEVICE_TYPES)}")
    if DEVICE_TYPES[name] != "9.0":
        raise UsageError(f"--device_type {text}: this version has kernels for Hopper only (h200, h100, gh200, h20)")
    return name


def seconds(text: str) -> float:
    """A number of seconds, zero or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise UsageError(f"'{text}' is not a number of seconds")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    problem = Problem.parse(arguments.mnk, arguments.acc_precise, arguments.layout)
    if arguments.mode == "server":
        raise UsageError("--mode server is not available in this version; use --mode offline")
    require_gpu(arguments.gpu_device_id)
    raise UsageError(f"eval of {problem.mnk} is not wired yet")
