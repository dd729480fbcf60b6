"""``cudal2 render``: the CUDA source of one configuration, as the compiler gets it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cudal2.cli import arguments as shared
from cudal2.cli.candidates import require_legal
from cudal2.cli.output import note
from cudal2.errors import UsageError
from cudal2.space.config import KernelConfig

_EPILOG = """examples:
  cudal2 render --mnk 64_4096_64                                         the first legal configuration
  cudal2 render --config 128x256x64_s4_coop2_c2x1_k1_tma_o1 --acc fp16   a configuration by name
  cudal2 render --mnk 64_4096_64 --out kernel.cu"""


def add(commands: Any) -> argparse.ArgumentParser:
    """Registers the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "render", help="print the CUDA source of a configuration", description=__doc__, epilog=_EPILOG
    )
    shared.add_arch(parser)
    parser.add_argument(
        "--mnk", metavar="M_N_K", help="a shape; without --config, its first legal configuration is rendered"
    )
    parser.add_argument("--config", metavar="NAME|JSON", help="a configuration by name or as JSON")
    shared.add_kind(parser)
    shared.add_space(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write there instead of to stdout")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    from cudal2.codegen import render

    config = _config(arguments)
    source = render(config, *shared.signature(arguments))
    kind = f"{arguments.dtype}, {arguments.acc} accumulator, layout {arguments.layout}"
    note(f"{config.name}: {kind}, digest {source.digest[:16]}")
    if arguments.out:
        arguments.out.write_text(source.text)
    else:
        print(source.text, end="")
    return 0


def _config(arguments: argparse.Namespace) -> KernelConfig:
    from cudal2.problem import Problem

    if arguments.config:
        config = shared.config(arguments.config)
        problem = Problem.parse(arguments.mnk or "1_1_1", *shared.signature(arguments))
        space = shared.space_of(arguments, config.family, config.name)
        require_legal(config, space, problem, any_size=not arguments.mnk)
        return config
    if not arguments.mnk:
        raise UsageError("nothing to render: give --config, or --mnk for the first legal configuration of a shape")
    problem = Problem.parse(arguments.mnk, *shared.signature(arguments))
    first = next(shared.search_space(arguments).enumerate(problem), None)
    if first is None:
        raise shared.nothing_legal(arguments, problem)
    return first
