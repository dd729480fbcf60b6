"""``cudal2 table``: look into kernel tables, make them from records, merge them, take them to other operands."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudal2.cli import arguments as shared
from cudal2.cli.output import counted, note, print_json, print_table
from cudal2.errors import NothingValidError, UsageError
from cudal2.problem import precision_of

if TYPE_CHECKING:
    from cudal2.records.fingerprint import Fingerprint
    from cudal2.table import KernelTable

_EPILOG = """examples:
  cudal2 table show                                     the table shipped with the package
  cudal2 table lookup --mnk 64_4096_64 --table runs/a/table.json
  cudal2 table make runs/a/records --out a.json         winners of recorded measurements
  cudal2 table make runs/a/records --counters runs/counters --out a.json   less what the guard rules take
  cudal2 table make recording.parquet --shapes-file sm80_odd --out h200.json   merged into the table there
  cudal2 table make recording.parquet --arch sm80 --out a100.json          for a GPU that nobody had at hand
  cudal2 table merge runs/a/table.json runs/b/table.json --out best.json
  cudal2 table transfer tn.json --layout nn --out nn.json   for shapes that nobody measured with B row-major
  cudal2 table transfer tn.json --dtype bf16 --out bf16.json"""


def add(commands: Any) -> argparse.ArgumentParser:
    """Registers the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "table", help="show, look up, make, merge and transfer kernel tables", description=__doc__, epilog=_EPILOG
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=shared.Parser)
    _add_show(actions)
    _add_lookup(actions)
    _add_make(actions)
    _add_merge(actions)
    _add_transfer(actions)
    return parser


def _add_show(actions: Any) -> None:
    parser = actions.add_parser("show", help="every entry, one line per shape", description="Prints every entry.")
    _add_source(parser)


def _add_lookup(actions: Any) -> None:
    text = "Prints the kernel that serves a shape: the exact entry, else a near shape's, refitted. "
    text += "`cudal2 space --names KERNEL` reads its name."
    parser = actions.add_parser("lookup", help="what serves one shape", description=text)
    parser.add_argument("--mnk", required=True, metavar="M_N_K", help="the shape")
    _add_source(parser)


def _add_make(actions: Any) -> None:
    text = "Writes the winners of recorded measurements: shards, recordings or finals."
    parser = actions.add_parser("make", help="a table from records", description=text)
    parser.add_argument("records", nargs="+", type=Path, metavar="PATH", help="directory of shards, .jsonl or .parquet")
    parser.add_argument(
        "--evidence", choices=("searched", "exhaustive"), default="searched", help="what they amount to"
    )
    parser.add_argument("--allow-mixed", action="store_true", help="accept shards of several environments")
    parser.add_argument(
        "--arch",
        type=shared.arch,
        metavar="NAME",
        help="for another architecture's reference part, of kernels that run there; it says where they were timed",
    )
    parser.add_argument("--shapes-file", metavar="FILE", help="only these shapes: YAML, or a name in configs/shapes")
    parser.add_argument("--counters", type=Path, metavar="DIR", help="profiles for the guard rules (`cudal2 profile`)")
    parser.add_argument(
        "--guards",
        metavar="FILE",
        help="rules that give a shape to the library: YAML, a name in configs/guards, or none "
        "(default: 'default' with --counters, else none)",
    )
    _add_out(parser)
    shared.add_kind(parser)


def _add_merge(actions: Any) -> None:
    text = "Keeps the better entry of each shape: more evidence first, then less time."
    parser = actions.add_parser("merge", help="best of several tables", description=text)
    parser.add_argument("tables", nargs="+", type=Path, metavar="FILE", help="of one device, layout and precision")
    _add_out(parser)


def _add_transfer(actions: Any) -> None:
    text = "Takes the choices of a table for other accumulators, layouts or types; what is measured there stays."
    parser = actions.add_parser("transfer", help="a table for other operands", description=text)
    parser.add_argument("table", type=Path, metavar="FILE", help="of one layout and type")
    parser.add_argument("--acc", choices=("fp32", "fp16"), help="the accumulator to make it for (default: its own)")
    parser.add_argument("--layout", choices=("tn", "nn"), help="the layout to make it for (default: its own)")
    parser.add_argument("--dtype", choices=("fp16", "bf16"), help="the type to make it for (default: its own)")
    _add_out(parser)


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--table", type=Path, metavar="FILE", help="a table (default: the first on the search path)")
    shared.add_kind(parser)
    shared.add_json(parser)


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", required=True, type=shared.out_file, metavar="FILE", help="where to; a table there is merged into"
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    actions = {"show": _show, "lookup": _lookup, "make": _make, "merge": _merge, "transfer": _transfer}
    return actions[arguments.action](arguments)


def _load(arguments: argparse.Namespace) -> KernelTable:
    from cudal2.table import KernelTable

    table = KernelTable.load(arguments.table, None, *shared.signature(arguments))
    elsewhere = f", {table.header.soft['gpu']}" if table.header.tuned_elsewhere else ""
    note(f"table {table.path}: {table.header.kind}, {_shapes(table)}{elsewhere}")
    return table


def _show(arguments: argparse.Namespace) -> int:
    table = _load(arguments)
    if arguments.json:
        print_json(table.to_dict())
        return 0
    print_entries(table)
    return 0


def print_entries(table: KernelTable) -> None:
    """One line per shape: what serves it, and what is ahead of ours if anything is."""
    print_table(
        ("shape", "kernel", "median_us", "cublaslt_auto_us", "speedup", "torch_us", "pdl", "evidence", "reason"),
        [
            (
                e.mnk,
                e.kernel_name,
                e.median_us,
                e.ref_us,
                e.speedup,
                e.torch_us,
                "on" if e.pdl else "off",
                e.evidence,
                e.reason,
            )
            for e in table.entries
        ],
    )


def _lookup(arguments: argparse.Namespace) -> int:
    from cudal2.problem import Problem

    problem = Problem.parse(arguments.mnk)
    sizes = (problem.m, problem.n, problem.k)
    table = _load(arguments)
    entry = table.best(*sizes)
    note(table.explain(*sizes))
    if entry is None:
        raise NothingValidError(
            f"the table has nothing for {problem.mnk}: hgemm calls torch.matmul, "
            "with strict=True an untuned kernel if there is any"
        )
    if arguments.json:
        print_json({"exact": entry.mnk == problem.mnk, "mnk": entry.mnk, **entry.to_dict()})
    else:
        print(entry.kernel_name)
    return 0


def _make(arguments: argparse.Namespace) -> int:
    from cudal2.records.recording import read_records
    from cudal2.settings import load_shapes
    from cudal2.table import KernelTable, tuned_elsewhere

    guards = _guards(arguments)
    wanted = set(load_shapes(arguments.shapes_file).shapes) if arguments.shapes_file else None
    acc, layout, dtype = shared.signature(arguments)
    tables = []
    for path in arguments.records:
        records = read_records(path, arguments.allow_mixed)
        rows, fingerprint = records.measurements, records.fingerprint
        rows = tuple(row for row in rows if wanted is None or row.problem.mnk in wanted)
        if arguments.arch is not None:
            table = tuned_elsewhere(rows, fingerprint, arguments.arch, acc, layout, dtype)
        else:
            table = KernelTable.from_measurements(
                rows, fingerprint, acc, layout, evidence=arguments.evidence, dtype=dtype
            )
        if not len(table):
            where = f" on the shapes of {arguments.shapes_file}" if wanted is not None else ""
            where += f" that runs on {arguments.arch.name}" if arguments.arch is not None else ""
            raise NothingValidError(f"{path} holds no {precision_of(acc, dtype)} {layout} kernel{where}")
        _say_what_differs(path, records.fingerprints, table)
        tables.append(table)
    made = reduce(KernelTable.merge, tables).save_merged(arguments.out, guards)
    note(f"{arguments.out}: {_shapes(made)}")
    return 0


def _say_what_differs(path: Path, fingerprints: Sequence[Fingerprint], table: KernelTable) -> None:
    """Of the environments of its records; generator versions only where a family has several."""
    versions, soft = table.header.versions, table.header.soft
    found = {name: sorted({str(getattr(one, name)) for one in fingerprints}) for name in soft}
    found["generator_version"] = sorted(versions) if len(versions) > max(1, len(table.families)) else []
    mixed = [f"{name}: {' and '.join(texts)}" for name, texts in found.items() if len(texts) > 1]
    if mixed:
        note(f"{path}: measured in different environments, whose times are compared here: {'; '.join(mixed)}")


def _guards(arguments: argparse.Namespace) -> Callable[[KernelTable], KernelTable] | None:
    """What the rules asked for make of a table, with a line for each; ``None`` if there are none."""
    from cudal2.records.counters import ProfileBook
    from cudal2.settings import load_guards
    from cudal2.table.guards import guard

    settings = load_guards(arguments.guards or ("default" if arguments.counters else "none"))
    book = ProfileBook.load(arguments.counters) if arguments.counters else None

    def guarded(table: KernelTable) -> KernelTable:
        lost = sum(entry.config is None for entry in table.entries)
        note(f"guards {settings.name}: {lost} of {len(table)} shapes had gone to the library by time alone")
        made, results = guard(table, settings.rules, book)
        for result in results:
            note(f"guards {settings.name}: {result.summary}")
        return made

    return guarded if settings.rules else None


def _merge(arguments: argparse.Namespace) -> int:
    from cudal2.table import KernelTable

    merged = KernelTable.load(arguments.tables[0])
    for path in arguments.tables[1:]:
        merged = merged.merge(KernelTable.load(path))
    merged = merged.save_merged(arguments.out)
    note(f"{arguments.out}: {_shapes(merged)}")
    return 0


def _shapes(table: KernelTable) -> str:
    """How many, and on what their choices rest: a final judged them, a search saw them, another table had them."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in table.evidence.items())
    if table.never_beside_library:
        kinds += f"; {table.never_beside_library} without a time of cuBLASLt"
    return f"{counted(len(table), 'shape')} ({kinds})" if kinds else counted(len(table), "shape")


def _transfer(arguments: argparse.Namespace) -> int:
    from cudal2.table import KernelTable

    table = KernelTable.load(arguments.table)
    header = table.header
    acc, layout, dtype = arguments.acc or header.acc, arguments.layout or header.layout, arguments.dtype or header.dtype
    if (acc, layout, dtype) == header.problem(1, 1, 1).signature:
        raise UsageError(
            f"{arguments.table} is for {acc}, {layout} and {dtype} already: give another --acc, --layout or --dtype"
        )
    made = table.for_operands(acc, layout, dtype).save_merged(arguments.out)
    note(f"{arguments.out}: {_shapes(made)}")
    return 0
