"""``cudal2 space``: how many configurations each rule removes for one shape, and what is left; what names say."""

from __future__ import annotations

import argparse
from itertools import islice
from typing import Any

from cudal2.cli import arguments as shared
from cudal2.cli.candidates import require_legal
from cudal2.cli.output import print_json, print_table
from cudal2.errors import UsageError

_EPILOG = """examples:
  cudal2 space --mnk 64_4096_64                 what each rule removes, and how many are legal
  cudal2 space --axes                           the axes, their values and meaning; needs no shape
  cudal2 space --names --family sm90_small      how the names of configurations read; needs no shape
  cudal2 space --names 128x128x64_s6_pingpong2_c1x1_k1_tma_o1_stream_k_m16p    what one says
  cudal2 space --mnk 64_4096_64 --list 5        names of the first five legal configurations
  cudal2 space --mnk 64_4096_64 --explain 128x128x64_s4_coop2_c1x1_k1_tma_o1_m1

A configuration is counted under the first rule, from the top, that refuses it."""


def add(commands: Any) -> argparse.ArgumentParser:
    """Registers the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "space", help="what each legality rule removes for a shape", description=__doc__, epilog=_EPILOG
    )
    shared.add_arch(parser)
    parser.add_argument("--mnk", metavar="M_N_K", help="the shape, for example 64_4096_64; --axes, --names need none")
    shared.add_kind(parser)
    shared.add_space(parser)
    parser.add_argument(
        "--list", type=shared.positive, metavar="N", help="print the names of the first N legal ones instead"
    )
    parser.add_argument(
        "--explain", metavar="CONFIG", help="say why this configuration is illegal, or that it is legal"
    )
    parser.add_argument("--axes", action="store_true", help="print the axes of the space and their values instead")
    parser.add_argument(
        "--names",
        nargs="?",
        const="",
        metavar="CONFIG",
        help="print how names of the family's configurations read instead, or what this one says",
    )
    shared.add_json(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    from cudal2.problem import Problem

    signature = shared.signature(arguments)
    if arguments.axes:
        return _axes(shared.search_space(arguments), arguments.json)
    if arguments.names is not None:
        return _names(arguments)
    if not arguments.mnk:
        raise UsageError("no shape given: use --mnk M_N_K; only --axes and --names need none")
    problem = Problem.parse(arguments.mnk, *signature)
    if arguments.explain is not None:
        config = shared.config(arguments.explain)
        return _explain(shared.space_of(arguments, config.family, config.name), problem, config, arguments.json)
    space = shared.search_space(arguments)
    if arguments.list:
        return _list(arguments, space, problem)
    removed = space.removed_by_rule(problem)
    total = space.total
    legal = total - sum(removed.values())
    if arguments.json:
        print_json(
            {
                "mnk": problem.mnk,
                "acc": problem.acc,
                "layout": problem.layout,
                "dtype": problem.dtype,
                "removed": removed,
                "total": total,
                "legal": legal,
            }
        )
    else:
        rows = [*removed.items(), ("(all configurations)", total), ("(legal)", legal)]
        print_table(("rule", "removes"), [(name, f"{count:,}") for name, count in rows])
    if legal == 0:
        raise shared.nothing_legal(arguments, problem, "see the rules above")
    return 0


def _list(arguments: argparse.Namespace, space: Any, problem: Any) -> int:
    names = [config.name for config in islice(space.enumerate(problem), arguments.list)]
    if not names:
        raise shared.nothing_legal(arguments, problem)
    if arguments.json:
        print_json(names)
    else:
        print(*names, sep="\n")
    return 0


def _axes(space: Any, as_json: bool) -> int:
    if as_json:
        print_json(
            [
                {"axis": axis.name, "values": axis.values, "compile_time": axis.compile_time, "meaning": axis.doc}
                for axis in space.axes
            ]
        )
        return 0
    rows = [
        (axis.name, axis.listing, "compile time" if axis.compile_time else "run time", axis.doc) for axis in space.axes
    ]
    print_table(("axis", "values", "fixed at", "meaning"), rows)
    return 0


def _names(arguments: argparse.Namespace) -> int:
    from cudal2.cli.names import parts, vocabulary

    if arguments.names:
        config = shared.config(arguments.names)
        head = ("part", "axis", "value", "meaning")
        rows = [(part.text, part.axis.name, part.value, part.axis.doc) for part in parts(config)]
    else:
        head = ("part", "axis", "left_out", "meaning")
        rows = list(vocabulary(shared.search_space(arguments).family))
    if arguments.json:
        print_json([dict(zip(head, row, strict=True)) for row in rows])
    else:
        print_table(head, [tuple(str(cell) for cell in row) for row in rows])
    return 0


def _explain(space: Any, problem: Any, config: Any, as_json: bool) -> int:
    reasons = space.explain(config, problem)
    if as_json:
        print_json({"config": config.name, "mnk": problem.mnk, "legal": not reasons, "reasons": reasons})
    else:
        print(*reasons or ["legal"], sep="\n")
    require_legal(config, space, problem)
    return 0
