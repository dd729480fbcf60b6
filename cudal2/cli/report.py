"""``cudal2 report``: every figure, from the records in one place; measures nothing."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudal2.cli import arguments as shared
from cudal2.cli.output import note, pip_install, print_json, print_table
from cudal2.errors import UsageError

if TYPE_CHECKING:
    from cudal2.records.shards import Shards

_EPILOG = """examples:
  cudal2 report                         speed-ups over every baseline, from the finals shipped with the package
  cudal2 report --json                  the same as one object keyed mode/acc/pdl
  cudal2 report --losses                every shape against cuBLASLt-AutoTuning, slowest of ours first
  cudal2 report --plot finals.png       the same as a picture
  cudal2 report --plots plots           heat map, ECDF, floor, FLOPs and roofline of every leaderboard, as PNG
  cudal2 report --csv tables            CUDA-L2's columns, one file per leaderboard
  cudal2 report --html finals.html      everything on one page that needs no network and no other file
  cudal2 report --readme README.md      write the tables between the markers of that file
  cudal2 report --run runs/mine         draw a training run into runs/mine/plot.png"""


def add(commands: Any) -> argparse.ArgumentParser:
    """Registers the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "report", help="speed-ups, losses and plots from records", description=__doc__, epilog=_EPILOG
    )
    parser.add_argument("--finals", type=Path, metavar="DIR", help="finals to report on (default: the shipped ones)")
    parser.add_argument(
        "--board", metavar="KEY", help="with --plot: which leaderboard, mode/acc/pdl (default: the first)"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write everything as one self-contained page")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw every leaderboard into PNG files there")
    parser.add_argument("--losses", action="store_true", help="list every shape, slowest of ours first")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the speed-ups into this .png or .svg")
    parser.add_argument("--csv", type=Path, metavar="DIR", help="write every leaderboard in CUDA-L2's columns there")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="rewrite the generated tables of this file")
    parser.add_argument("--run", dest="training", type=Path, metavar="DIR", help="draw this training run instead")
    shared.add_json(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    if arguments.training:
        return _draw_run(arguments.training, arguments.plot)
    from cudal2.report.summary import load_finals, summarise

    shards = load_finals(arguments.finals)
    summary = summarise(shards.measurements)
    if arguments.readme:
        from cudal2.paths import data_dir
        from cudal2.records.benchmark import load_benchmarks
        from cudal2.report.readme import update_readme
        from cudal2.report.speed import shipped_benchmarks
        from cudal2.table import KernelTable
        from cudal2.table.files import table_files

        tables = [KernelTable.load(path) for path in table_files(data_dir() / "tables")]
        changed = update_readme(arguments.readme, shards, load_benchmarks(shipped_benchmarks()), tables)
        note(f"{arguments.readme}: {'rewritten' if changed else 'already up to date'}")
    if arguments.plot:
        _draw_finals(shards, arguments.board, arguments.plot)
    if arguments.plots:
        _draw_boards(shards, arguments.plots)
    if arguments.csv:
        _write_tables(shards, arguments.csv)
    if arguments.html:
        _write_page(shards, arguments.finals, arguments.html)
    if arguments.json:
        print_json(summary)
    elif arguments.losses:
        _print_losses(shards)
    elif not any((arguments.readme, arguments.plot, arguments.plots, arguments.csv, arguments.html)):
        _print_summary(summary)
    return 0


def _print_summary(summary: dict[str, dict[str, dict[str, Any]]]) -> None:
    rows = []
    for board, baselines in summary.items():
        for name, entry in baselines.items():
            by_class = [value["geomean"] for value in entry["by_class"].values()]
            rows.append((board, name, entry["n"], entry["geomean"], f"{entry['win']:.0%}", entry["min"], *by_class))
    classes = next((list(entry["by_class"]) for boards in summary.values() for entry in boards.values()), [])
    print_table(("board", "against", "shapes", "geomean", "win", "min", *classes), rows)


def _print_losses(shards: Shards) -> None:
    from cudal2.report.summary import details

    rows: list[tuple[Any, ...]] = []
    for board, detail in details(shards.measurements).items():
        for shape in detail.shapes:
            config = shape.ours.config.name if shape.ours.config else None
            rows.append((board, shape.problem.mnk, shape.ratio, shape.comparison.verdict, shape.floor_us, config))
        rows += [(board, mnk, None, "unserved", None, reason) for mnk, reason in detail.unserved]
    print_table(("board", "shape", "speedup", "verdict", "floor_us", "kernel"), rows)


def _draw_finals(shards: Shards, board: str | None, path: Path) -> None:
    from cudal2.report.plots import save_speedups
    from cudal2.report.summary import details

    boards = details(shards.measurements)
    chosen = board or next(iter(boards), "")
    if chosen not in boards:
        raise UsageError(f"no leaderboard '{chosen}': the finals hold {', '.join(boards) or 'none'}")
    note(f"plot: {save_speedups(boards[chosen].shapes, f'{chosen}, against cuBLASLt-AutoTuning', path)}")


def _draw_boards(shards: Shards, directory: Path) -> None:
    from cudal2.report.board import boards
    from cudal2.report.plots import save_board

    for board in boards(shards.measurements):
        for path in save_board(board, directory):
            note(f"plot: {path}")


def _write_tables(shards: Shards, directory: Path) -> None:
    from cudal2.records.speedup_csv import csv_text
    from cudal2.report.board import boards

    directory.mkdir(parents=True, exist_ok=True)
    for board in boards(shards.measurements):
        path = directory / f"{board.key.replace('/', '-')}.csv"
        path.write_text(csv_text(board.finals), encoding="utf-8")
        note(f"table: {path}")


def _write_page(shards: Shards, finals: Path | None, path: Path) -> None:
    from cudal2.report.board import boards
    from cudal2.report.page import page, sources
    from cudal2.report.summary import shipped_finals

    try:
        from cudal2.report.plots import board_pictures

        pictures = {board.key: board_pictures(board) for board in boards(shards.measurements)}
    except ModuleNotFoundError as error:
        pictures = {}
        note(f"the page has no pictures, since the package '{error.name}' is missing: {pip_install('report')}")
    command = ["python", "-m", "cudal2", "report", *(["--finals", str(finals)] if finals else []), "--html", path.name]
    text = page(shards, pictures, shlex.join(command), sources(finals or shipped_finals()))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
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
