"""``cudal2 build``: compile configurations into the cache; needs no GPU, so that the GPU machine only measures."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from cudal2.cli import arguments as shared
from cudal2.cli.candidates import legal_of, require_legal
from cudal2.cli.output import counted, note, print_json, print_table
from cudal2.errors import NothingValidError, ToolchainError, UsageError
from cudal2.problem import Problem
from cudal2.space.config import KernelConfig

if TYPE_CHECKING:
    from cudal2.space.space import SearchSpace

_EPILOG = """examples:
  cudal2 build --mnk 64_4096_64 --space sm90_record         every legal configuration of a narrowed space
  cudal2 build --shapes-file record32 --space sm90_record --jobs 16
  cudal2 build --plan plan.jsonl --jobs 16                  the kernels of a sweep plan (scripts/shortlist.py)
  cudal2 build --mnk 256_256_256 --config 128x128x64_s4_coop2_c1x1_k1_tma_o1_m1"""


def add(commands: Any) -> argparse.ArgumentParser:
    """Registers the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "build", help="compile kernels into the cache, no GPU needed", description=__doc__, epilog=_EPILOG
    )
    shared.add_arch(parser)
    shared.add_shapes(parser)
    shared.add_plan(parser)
    shared.add_kind(parser)
    shared.add_space(parser)
    parser.add_argument(
        "--config", action="append", metavar="NAME|JSON", help="only this configuration; may be repeated"
    )
    parser.add_argument("--limit", type=shared.positive, metavar="N", help="at most N legal configurations per shape")
    parser.add_argument("--jobs", type=shared.positive, metavar="N", help="compiler processes (default: one per core)")
    shared.add_cache(parser)
    shared.add_json(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    from cudal2.build.cache import resolve_toolchain
    from cudal2.build.pool import build_all
    from cudal2.progress import Progress

    requests = _requests(arguments)
    cache = shared.build_cache(arguments)
    toolchain = resolve_toolchain(cache, arguments.arch)
    note(f"{counted(len(requests), 'kernel')} to build or find in {cache.root}; what differs at run time shares one")
    started = time.perf_counter()
    with Progress("build", total=len(requests)) as progress:
        results = build_all(requests, cache, toolchain, arguments.jobs, on_done=lambda _: progress.advance())
    return _summary(list(results.values()), time.perf_counter() - started, arguments.json)


def _requests(arguments: argparse.Namespace) -> list[Any]:
    """Each compile-time choice once: run-time axes share a cubin."""
    if arguments.plan:
        return _planned(arguments)
    given = [shared.config(text) for text in arguments.config or ()]
    spaces = {config: shared.space_of(arguments, config.family, config.name) for config in given}
    if given and not shared.chosen_shapes(arguments):
        for config, space in spaces.items():
            require_legal(config, space, Problem(1, 1, 1, *shared.signature(arguments)), any_size=True)
        return [(config, *shared.signature(arguments)) for config in given]
    requests: dict[str, Any] = {}
    problems = shared.problems(arguments)
    if len(given) == len(problems) == 1:
        require_legal(given[0], spaces[given[0]], problems[0])
    for problem in problems:
        for config in islice(_legal(arguments, spaces, problem), arguments.limit):
            requests.setdefault(config.build_name, (config, *problem.signature))
    if not requests:
        if given:
            raise UsageError("no configuration given is legal for any of these shapes: the lines above say why")
        raise shared.nothing_legal(arguments, problems[0])
    return list(requests.values())


def _planned(arguments: argparse.Namespace) -> list[Any]:
    from cudal2.codegen import build_key
    from cudal2.runners.plan import families_of, read_plan
    from cudal2.space.space import SearchSpace

    shared.plan_alone(arguments, "config")
    work = read_plan(arguments.plan)
    spaces = {family: SearchSpace(arguments.arch, family=family) for family in families_of(work)}
    requests: dict[str, Any] = {}
    for problem, configs in work:
        for config in legal_of(((config, spaces[config.family]) for config in configs), problem):
            requests.setdefault(build_key(config, *problem.signature), (config, *problem.signature))
    if not requests:
        raise NothingValidError(f"no configuration of plan {arguments.plan} is legal for its shape")
    return list(requests.values())


def _legal(
    arguments: argparse.Namespace, given: dict[KernelConfig, SearchSpace], problem: Problem
) -> Iterator[KernelConfig]:
    """Of those given; of the whole space if none was."""
    if not given:
        yield from shared.search_space(arguments).enumerate(problem)
    yield from legal_of(given.items(), problem)


def _summary(results: list[Any], seconds: float, as_json: bool) -> int:
    from cudal2.build.artifact import CompileFailure

    failures = [result for result in results if isinstance(result, CompileFailure)]
    built = [result for result in results if not isinstance(result, CompileFailure)]
    spilling = sum(result.spill_bytes > 0 for result in built)
    if as_json:
        print_json(
            {
                "kernels": len(results),
                "usable": len(built),
                "failed": [
                    {"name": item.name, "reason": item.reason, "log": str(item.log_path or "")} for item in failures
                ],
                "spilling": spilling,
                "seconds": round(seconds, 3),
                "compile_seconds": round(sum(result.compile_s for result in results), 3),
            }
        )
    else:
        reasons = Counter(failure.reason for failure in failures)
        print_table(("outcome", "kernels"), [("usable", len(built)), ("of these spilling", spilling), *reasons.items()])
        for failure in [item for item in failures if item.log_path][:3]:
            note(f"log of {failure.name}: {failure.log_path}")
        note(f"{seconds:.1f} s")
    if untried := [failure for failure in failures if failure.untried]:
        # Whatever the cache already held: what was asked for is not there, and a second try here changes nothing.
        raise ToolchainError(f"{len(untried):,} of {counted(len(results), 'kernel')} not compiled: {untried[0].reason}")
    if not built:
        # A compiler that rejects a source leaves a log; without one it is this machine that cannot.
        error = NothingValidError if any(failure.log_path for failure in failures) else ToolchainError
        raise error(f"none of {len(results)} kernels compiled; first reason: {failures[0].reason}")
    return 0
