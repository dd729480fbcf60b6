"""``cudal2 report``: every figure, from the records in one place; measures nothing."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudal2.atomic import write_atomically
from cudal2.cli import arguments as shared
from cudal2.cli.output import note, pip_install, print_json, print_table
from cudal2.errors import UsageError

if TYPE_CHECKING:
    from cudal2.records.latency import Latency
    from cudal2.records.shards import Rows, Shards
    from cudal2.report.board import Board
    from cudal2.report.serving import ServerBoard
    from cudal2.report.tables import Table

_EPILOG = """examples:
  cudal2 report                       every baseline, the classes, the worst shapes (finals shipped with the package)
  cudal2 report --losses              every shape against cuBLASLt-AutoTuning, slowest of ours first
  cudal2 report --html finals.html    everything on one page that needs no network and no other file
  cudal2 report --finals DIR --plots plots    heat map, ECDF, floor, FLOPs and roofline of other finals, as PNG
  cudal2 report --csv tables          CUDA-L2's columns, one file per leaderboard
  cudal2 report --run runs/mine       a training run, drawn into runs/mine/plot.png

A leaderboard is mode/accumulator/PDL, for example offline/fp32/on; in server mode state and requests per second stand
in the place of PDL, server/fp32/warm@1000; bf16, which accumulates in fp32, stands as bf16 in the place of the
accumulator. There B is stored as [N,K]; of B as [K,N] the leaderboards are offline/fp32-nn/on and so on. Figures of two
leaderboards are never mixed.
A speed-up is the baseline's time over ours in the same rounds, above 1 where ours is faster; won, tied and lost go
by its 95 % interval, and a shape that only the baseline solved is lost. docs/protocol.md says how it is measured."""


def add(commands: Any) -> argparse.ArgumentParser:
    """Registers the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "report", help="speed-ups, losses and plots from records", description=__doc__, epilog=_EPILOG
    )
    source = parser.add_argument_group("what to report on")
    source.add_argument(
        "--finals", type=Path, metavar="DIR", help="finals (default: those shipped, unless --latency is given)"
    )
    source.add_argument(
        "--latency",
        type=Path,
        metavar="DIR",
        help="servings of server mode (default: those shipped, unless --finals is given)",
    )
    source.add_argument("--run", dest="training", type=Path, metavar="DIR", help="this training run, and no finals")
    printed = parser.add_argument_group("what to print on stdout (default: the tables)")
    printed.add_argument("--losses", action="store_true", help="every shape, slowest of ours first")
    shared.add_json(parser)
    written = parser.add_argument_group("what to write")
    written.add_argument("--html", type=shared.out_file, metavar="FILE", help="one self-contained page with everything")
    written.add_argument(
        "--plots", type=shared.out_folder, metavar="DIR", help="the pictures of every leaderboard, as PNG"
    )
    written.add_argument(
        "--plot", type=shared.out_file, metavar="FILE", help="one picture of the speed-ups, .png or .svg"
    )
    written.add_argument(
        "--board", metavar="KEY", help="with --plot: which leaderboard, mode/acc/pdl (default: the first)"
    )
    written.add_argument("--csv", type=shared.out_folder, metavar="DIR", help="every leaderboard in CUDA-L2's columns")
    written.add_argument("--readme", type=Path, metavar="FILE", help="the tables between the markers of this file")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    _refuse_contradictions(arguments)
    if arguments.training:
        return _draw_run(arguments.training, arguments.plot)
    from cudal2.report.board import boards
    from cudal2.report.notes import judged_again
    from cudal2.report.serving import server_boards
    from cudal2.report.summary import summarise, summarise_servings
    from cudal2.report.tables import every_shape, report_tables, server_tables

    _require_markers(arguments.readme)
    shards, latencies = _load(arguments)
    found, served = boards(shards.measurements), server_boards(latencies.rows)
    if not found and not served:
        note("nothing to report: no final and no serving is in these records")
    if arguments.readme:
        _write_readme(shards, latencies, arguments.readme)
    if arguments.plot:
        _draw_speedups(found, arguments.board, arguments.plot)
    if arguments.plots:
        _draw_boards(found, served, arguments.plots)
    if arguments.csv:
        _write_csv(found, arguments.csv)
    if arguments.html:
        _write_page(shards, latencies, arguments, arguments.html)
    drawn = any((arguments.readme, arguments.plot, arguments.plots, arguments.csv, arguments.html))
    if (arguments.json or arguments.losses or not drawn) and (again := judged_again(shards.measurements)):
        note(again)
    if arguments.json:
        print_json({**summarise(shards.measurements), **summarise_servings(served)})
    elif arguments.losses:
        table = every_shape(found, served)
        print_table(table.header, table.rows)
    elif not drawn:
        _print_tables([*report_tables(found), *server_tables(served)])
    return 0


def _refuse_contradictions(arguments: argparse.Namespace) -> None:
    """Nothing that was asked for is left out in silence.

    Raises:
        UsageError: Two arguments that exclude each other, or one that goes with an absent one.
    """
    if arguments.training:
        others = ("finals", "latency", "losses", "json", "html", "plots", "board", "csv", "readme")
        if given := [f"--{name}" for name in others if getattr(arguments, name)]:
            raise UsageError(f"--run draws a training run and nothing else: leave out {', '.join(given)}")
    if arguments.json and arguments.losses:
        raise UsageError("--json holds every loss already: leave out --losses")
    if arguments.board and not arguments.plot:
        raise UsageError("--board goes with --plot FILE")


def _require_markers(page: Path | None) -> None:
    """Before the work whose tables would have no place."""
    from cudal2.report.readme import BEGIN, END
    from cudal2.report.section import split_section

    if page is not None:
        split_section(page, BEGIN, END)


def _load(arguments: argparse.Namespace) -> tuple[Shards, Rows[Latency]]:
    """What was named, or both of what ships."""
    from cudal2.records.shards import Shards
    from cudal2.report.serving import NONE_SERVED, load_latencies
    from cudal2.report.summary import check_one_kind, load_finals

    shipped = not (arguments.finals or arguments.latency)
    shards = load_finals(arguments.finals) if shipped or arguments.finals else Shards((), ())
    latencies = load_latencies(arguments.latency) if shipped or arguments.latency else NONE_SERVED
    check_one_kind((*shards.fingerprints, *latencies.fingerprints), "finals and servings")
    return shards, latencies


def _print_tables(tables: Sequence[Table]) -> None:
    for at, table in enumerate(tables):
        print(f"{chr(10) if at else ''}{table.title}")
        print_table(table.header, table.rows)


def _draw_speedups(found: Sequence[Board], key: str | None, path: Path) -> None:
    from cudal2.records.finals import REFERENCE
    from cudal2.report.board import baseline_title
    from cudal2.report.plots import save_speedups

    chosen = next((board for board in found if key in (None, board.key)), None)
    if chosen is None:
        raise UsageError(
            f"no leaderboard '{key or ''}': the finals hold {', '.join(board.key for board in found) or 'none'}"
        )
    standing = chosen.standing()
    title = f"{chosen.title}, against {baseline_title(REFERENCE)}"
    note(f"plot: {save_speedups(standing.shapes if standing else (), title, path)}")


def _draw_boards(found: Sequence[Board], served: Sequence[ServerBoard], directory: Path) -> None:
    from cudal2.report.plots import save_board, save_server_board

    paths = [path for board in found for path in save_board(board, directory)]
    paths += [path for serving in served for path in save_server_board(serving, directory)]
    for path in paths:
        note(f"plot: {path}")


def _write_csv(found: Sequence[Board], directory: Path) -> None:
    from cudal2.records.speedup_csv import csv_text

    for board in found:
        path = directory / f"{board.key.replace('/', '-')}.csv"
        write_atomically(path, csv_text(board.finals))
        note(f"table: {path}")


def _write_readme(shards: Shards, latencies: Rows[Latency], path: Path) -> None:
    from cudal2.paths import data_dir
    from cudal2.records.benchmark import load_benchmarks
    from cudal2.report.readme import update_readme
    from cudal2.report.speed import shipped_benchmarks
    from cudal2.report.summary import load_finals
    from cudal2.table import KernelTable
    from cudal2.table.files import table_files

    tables = [KernelTable.load(path) for path in table_files(data_dir() / "tables")]
    benchmarks, quack = load_benchmarks(shipped_benchmarks()), load_finals(data_dir() / "quack")
    changed = update_readme(path, shards, benchmarks, tables, latencies, quack)
    note(f"{path}: {'rewritten' if changed else 'already up to date'}")


def _write_page(shards: Shards, latencies: Rows[Latency], arguments: argparse.Namespace, path: Path) -> None:
    from cudal2.records.latency import shipped_latencies
    from cudal2.report.board import boards
    from cudal2.report.page import page, sources
    from cudal2.report.serving import server_boards
    from cudal2.report.summary import shipped_finals

    try:
        from cudal2.report.plots import board_pictures, server_pictures

        pictures = {board.key: board_pictures(board) for board in boards(shards.measurements)}
        pictures |= {board.key: server_pictures(board) for board in server_boards(latencies.rows)}
    except ModuleNotFoundError as error:
        pictures = {}
        note(f"the page has no pictures, since the package '{error.name}' is missing: {pip_install('report')}")
    given = [("--finals", arguments.finals), ("--latency", arguments.latency)]
    named = [part for flag, value in given if value for part in (flag, str(value))]
    command = ["python", "-m", "cudal2", "report", *named, "--html", path.name]
    read = [value for _, value in given if value] or [shipped_finals(), shipped_latencies()]
    files = [file for source in read for file in sources(source)]
    text = page(shards, pictures, shlex.join(command), files, latencies)
    write_atomically(path, text)
    note(f"page: {path}")


def _draw_run(run_dir: Path, path: Path | None) -> int:
    from cudal2.report.run_plots import read_curve, save_run
    from cudal2.table import KernelTable

    curve = read_curve(run_dir)
    table = KernelTable.load(run_dir / "table.json")
    speedups = {
        entry.mnk: entry.ref_us / entry.median_us for entry in table.entries if entry.ref_us and entry.median_us
    }
    note(f"plot: {save_run(curve, speedups, path or run_dir / 'plot.png')}")
    return 0
