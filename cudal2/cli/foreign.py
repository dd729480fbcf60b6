"""Kernels that are not ours on the command line: the arguments that bring one, and how it compares with the others."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudal2.cli.output import note, print_table
from cudal2.errors import UsageError
from cudal2.problem import Problem

if TYPE_CHECKING:
    from cudal2.build.foreign import ForeignKernel
    from cudal2.records.finals import Final
    from cudal2.settings import BenchSettings

_CUDA_L2_ENTRY = r"\b(cuda_l2_\w+_{acc})\s*\("


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--source`` and what goes with it."""
    group = parser.add_argument_group("a kernel of yours, judged in the same rounds (docs/foreign.md)")
    group.add_argument("--source", type=Path, metavar="FILE.cu", help="built with nvcc, run in a process of its own")
    group.add_argument("--entry", metavar="NAME", help="its function; read out of the source with --legacy-cuda-l2")
    group.add_argument(
        "--legacy-cuda-l2", action="store_true", help="the function takes torch tensors, as CUDA-L2's kernels do"
    )
    group.add_argument("--nvcc-flags", metavar="FLAGS", default="", help="more flags, as one word: --nvcc-flags='-lx'")


def refuse_arguments(arguments: argparse.Namespace) -> None:
    """Without a source.

    Raises:
        UsageError: Something was asked that goes with one.
    """
    for option in ("entry", "legacy_cuda_l2", "nvcc_flags"):
        if arguments.source is None and getattr(arguments, option):
            raise UsageError(f"--{option.replace('_', '-')} goes with --source FILE.cu")


def build(arguments: argparse.Namespace, problem: Problem, settings: BenchSettings) -> ForeignKernel | None:
    """The kernel that was brought, built; ``None`` if none was.

    Raises:
        UsageError: A source without an entry.
        ToolchainError: It does not build, or nothing here can build it.
    """
    if arguments.source is None:
        return None
    from cudal2.build.foreign import ForeignSource, build_foreign

    if arguments.legacy_cuda_l2 and problem.dtype != "fp16":
        raise UsageError(
            f"--legacy-cuda-l2: CUDA-L2's kernels take fp16 tensors alone: leave out --dtype {problem.dtype}"
        )
    entry = arguments.entry or _cuda_l2_entry(arguments, problem)
    try:
        flags = tuple(shlex.split(arguments.nvcc_flags))
    except ValueError as error:
        raise UsageError(f"--nvcc-flags: {error}") from None
    source = ForeignSource(arguments.source, entry, flags, arguments.legacy_cuda_l2)
    kernel = build_foreign(source, problem, settings.workspace_bytes)
    note(f"built: {kernel.detail} ({kernel.compile_s:.1f} s of nvcc; log: {kernel.log_path})")
    return kernel


def options(arguments: argparse.Namespace) -> list[str]:
    """The arguments again, for a command that measures the same."""
    if arguments.source is None:
        return []
    words = ["--source", str(arguments.source.resolve())]
    words += ["--entry", arguments.entry] if arguments.entry else []
    words += ["--legacy-cuda-l2"] if arguments.legacy_cuda_l2 else []
    return [*words, *([f"--nvcc-flags={arguments.nvcc_flags}"] if arguments.nvcc_flags else [])]


def print_comparison(finals: list[Final]) -> None:
    """Each foreign kernel against ours and every library, with the 95 % interval."""
    from cudal2.records.finals import compare_rows

    rows: list[tuple[Any, ...]] = []
    for final in finals:
        for brought in (row for row in final.foreign if row.ok):
            ours = [final.ours] if final.ours is not None else []
            libraries = [row for row in final.rows if row.ok and row.config is None and row not in final.foreign]
            for other in [*ours, *sorted(libraries, key=lambda row: row.median_us)]:
                found = compare_rows(brought, other)
                name = other.config.name if other.config is not None else other.contestant
                interval = f"{found.low:.3f}..{found.high:.3f}"
                rows.append(("on" if final.pdl else "off", brought.contestant, name, found.ratio, interval))
            note(f"{brought.contestant}: {brought.detail}")
    if rows:
        print_table(("pdl", "kernel", "against", "it_is", "95%"), rows)


def _cuda_l2_entry(arguments: argparse.Namespace, problem: Problem) -> str:
    if not arguments.legacy_cuda_l2:
        raise UsageError("--source needs --entry NAME, the function to call (docs/foreign.md)")
    try:
        text = arguments.source.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"--source {arguments.source} cannot be read ({error.strerror})") from error
    found = sorted(set(re.findall(_CUDA_L2_ENTRY.format(acc=problem.acc), text)))
    if len(found) != 1:
        what = f"holds {', '.join(found)}" if found else f"holds no cuda_l2_<device>_{problem.acc}"
        raise UsageError(f"--source {arguments.source} {what}: name its function with --entry")
    return str(found[0])
