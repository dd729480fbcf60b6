"""The page about shapes off the grid: what their finals say, by what TMA makes of the operands' rows, loss by loss.

    python scripts/off_grid.py [--finals cudal2/data/off_grid] [--served cudal2/data/served] [--page docs/off_grid.md]

Of what was served unseen since, in either layout of B, there is a line for each kind of rows, and the losses. With
--page the tables between the page's markers are rewritten; nothing is measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from pathlib import Path

from cudal2.cli.main import guarded, guarded_imports

with guarded_imports():
    from cudal2.cli import arguments as shared
    from cudal2.cli.output import show_section
    from cudal2.errors import RecordError
    from cudal2.paths import data_dir
    from cudal2.problem import Problem
    from cudal2.records.finals import REFERENCE
    from cudal2.records.recording import read_records
    from cudal2.records.shards import Shards
    from cudal2.report.board import Board, baseline_title, boards
    from cudal2.report.notes import rounds_text
    from cudal2.report.spread import Judged, Spread, spread
    from cudal2.report.summary import check_one_kind, load_finals
    from cudal2.settings import load_shapes
    from cudal2.space.refit import off_sectors
    from cudal2.space.shared_rules import tma_reads, tma_stores

BEGIN, END = "<!-- off_grid:begin -->", "<!-- off_grid:end -->"
#: Kinds of rows as stored, of A and B and of C, in the order of the page.
WHOLE, OFF, UNSTORED, UNREAD = "whole sectors", "off sectors", "TMA cannot store C", "TMA cannot read"
KINDS = (WHOLE, OFF, UNSTORED, UNREAD)
#: The shapes that were drawn at random and judged whatever came out, in ``configs/shapes``; and such as were judged
#: with the one kernel that the table served before: where TMA stores C, where it cannot, where it cannot read A and B.
DRAWN, SERVED, SERVED_ODD, SERVED_K = "off_grid_drawn", "off_grid_served", "off_grid_served_odd", "off_grid_served_k"
#: Whom ours stands beside: every figure but the last column is against the first.
SHOWN = (REFERENCE, "torch")


def main() -> None:
    """Prints the section, or writes it into a page."""
    arguments = parse()
    since = load_finals(arguments.served)
    lines = [*section(load(arguments.finals)), "", *served_since(since)]
    show_section(arguments.page, BEGIN, END, "\n".join(lines))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = shared.Parser(description=__doc__)
    parser.add_argument("--finals", type=Path, default=data_dir() / "off_grid", metavar="DIR", help="Parquet files")
    parser.add_argument(
        "--served", type=Path, default=data_dir() / "served", metavar="DIR", help="shards of what was served unseen"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="page whose section is rewritten")
    return parser.parse_args()


def load(folder: Path) -> Shards:
    """The finals of all families that won one.

    Raises:
        RecordError: There are none, one cannot be read, or they are of several GPUs or protocols.
    """
    found = [read_records(path, allow_mixed=True) for path in sorted(folder.glob("*.parquet"))]
    if not found:
        raise RecordError(f"{folder}: no finals here; `cudal2 record publish` writes them from judge.py's shards")
    fingerprints = tuple(dict.fromkeys(one for records in found for one in records.fingerprints))
    check_one_kind(fingerprints, f"{folder}: finals")
    return Shards(fingerprints, tuple(row for records in found for row in records.measurements))


def only_board(finals: Shards) -> Board:
    """Their leaderboard.

    Raises:
        RecordError: They are of several, or of none with the reference on it.
    """
    found = boards(finals.measurements)
    if len(found) != 1 or found[0].standing() is None:
        keys = ", ".join(board.key for board in found) or "none"
        raise RecordError(f"this page is of one leaderboard with {baseline_title(REFERENCE)}, these finals of: {keys}")
    return found[0]


def section(finals: Shards) -> list[str]:
    """Where they were measured, a line for each kind of rows, then a table for each, as Markdown."""
    board = only_board(finals)
    parts = [provenance(finals, board), "", *summary(board), "", losses(board)]
    for kind in KINDS:
        parts += ["", f"### {kind[0].upper()}{kind[1:]}", "", *shapes_table(board, kind)]
    return parts


def provenance(finals: Shards, board: Board) -> str:
    """Device, days and protocol."""
    devices = "; ".join(
        dict.fromkeys(
            f"{one.gpu} (driver {one.driver}, CUDA {one.cuda}, cuBLASLt {one.cublaslt})" for one in finals.fingerprints
        )
    )
    days = ", ".join(sorted({row.utc[:10] for row in finals.measurements}))
    protocol = finals.fingerprints[0].protocol
    return f"{board.title}. {devices}, {days}, protocol v{protocol}: {rounds_text(finals)}, every library among them."


def kind_of(problem: Problem) -> str:
    """What TMA and L2 make of the rows of A and B, and TMA of C's."""
    if not tma_reads(problem):
        return UNREAD
    if not tma_stores(problem):
        return UNSTORED
    return OFF if off_sectors(problem) else WHOLE


def served_since(served: Shards) -> list[str]:
    """Of the finals whose shapes are not on the grid, for each layout: a line for each kind of rows, and the losses."""
    grid = set(load_shapes("grid").shapes)
    rows = tuple(row for row in served.measurements if row.problem.mnk not in grid)
    parts = ["### Served unseen since"]
    for board in boards(rows):
        parts += ["", f"{board.title}.", "", *table_heads()]
        every = {final.problem for final in board.finals}
        kinds = {**by_kind(every), "all": every}
        parts += [line(board, name, problems) for name, problems in kinds.items() if problems]
        parts += ["", losses(board)]
    return parts


def spread_of(board: Board, baseline: str, problems: Collection[Problem]) -> Spread | None:
    """Ours against a baseline over some shapes, those that only the baseline solved included."""
    standing = board.standing(baseline)
    chosen = [shape for shape in standing.shapes if shape.problem in problems] if standing else []
    missed = [one for one in board.finals if one.ours is None and one.baseline(baseline) is not None]
    return spread(chosen, sum(one.problem in problems for one in missed))


def by_kind(problems: Collection[Problem]) -> dict[str, set[Problem]]:
    """Problems by kind of rows, in the order of the page."""
    return {kind: {problem for problem in problems if kind_of(problem) == kind} for kind in KINDS}


def groups(board: Board) -> dict[str, set[Problem]]:
    """The judged shapes by kind of rows, all of them, those that chance chose, and those served unseen."""
    every = {final.problem for final in board.finals}
    found = by_kind(every)
    names = (DRAWN, SERVED, SERVED_ODD, SERVED_K)
    drawn, served, odd, odd_k = (every & set(load_shapes(name).problems()) for name in names)
    return {
        **found,
        "all": every,
        "drawn at random": drawn,
        "drawn, TMA cannot read": drawn & found[UNREAD],
        "served unseen": served,
        "served unseen, N not a multiple of 8": odd,
        "served unseen, K not a multiple of 8": odd_k,
    }


def summary(board: Board) -> list[str]:
    """A line for each kind of rows, and for those drawn at random, of all kinds."""
    return [*table_heads(), *(line(board, name, problems) for name, problems in groups(board).items())]


def table_heads() -> list[str]:
    """Of a table with a line for each kind of rows."""
    heads = [f"over {baseline_title(name)} | won / tied / lost | worst" for name in SHOWN]
    return [f"| rows | shapes | {' | '.join(heads)} |", f"| --- |{' ---: |' * (1 + 3 * len(SHOWN))}"]


def line(board: Board, name: str, problems: Collection[Problem]) -> str:
    """One such line."""
    spreads = [figures(spread_of(board, baseline, problems)) for baseline in SHOWN]
    return f"| {name} | {len(problems)} | {' | '.join(spreads)} |"


def figures(found: Spread | None) -> str:
    """Three cells of a spread."""
    if found is None or found.geomean is None or found.worst is None:
        return "- | - | -"
    return f"{found.geomean:.3f} | {found.win} / {found.tie} / {found.lost} | {found.worst:.3f}"


def losses(board: Board) -> str:
    """Every shape lost to the reference, worst first, and every one that none of ours solved."""
    standing = board.standing()
    lost = [f"{one.problem.mnk} {one.ratio:.3f}" for one in (standing.losses if standing else ())]
    said = f"Lost to {baseline_title(REFERENCE)}, worst first: {', '.join(lost) or 'none'}."
    return said + "".join(f" None of ours ran on {mnk}: {reason}." for mnk, reason in board.unserved)


def shapes_table(board: Board, kind: str) -> list[str]:
    """A line for each shape of a kind, lowest ratio first."""
    standing = board.standing()
    beside = {final.problem: board.comparisons(final) for final in board.finals}
    shapes = [shape for shape in (standing.shapes if standing else ()) if kind_of(shape.problem) == kind]
    reference, *others = map(baseline_title, SHOWN)
    return [
        f"| shape | ours | us | {reference} us | ratio [95 %] | | over {' | over '.join(others)} |",
        f"| --- | --- |{' ---: |' * 3} --- |{' ---: |' * len(others)}",
        *(f"| {' | '.join(cells(shape, beside[shape.problem]))} |" for shape in shapes),
    ]


def cells(shape: Judged, beside: dict[str, Judged]) -> list[str]:
    """One shape; what is lost to another baseline is said there, too."""
    found, config = shape.comparison, shape.ours.config
    name = f"`{config.name}`" if config is not None else shape.ours.contestant
    times = [f"{shape.ours_us:.2f}", f"{shape.other_us:.2f}"]
    ratio = f"{found.ratio:.3f} [{found.low:.3f}, {found.high:.3f}]"
    return [shape.problem.mnk, name, *times, ratio, verdict(shape), *(beyond(beside.get(one)) for one in SHOWN[1:])]


def verdict(shape: Judged) -> str:
    """Won, tied or lost; a loss stands out."""
    return {"win": "won", "tie": "tied", "loss": "**lost**"}[shape.comparison.verdict]


def beyond(shape: Judged | None) -> str:
    """A ratio, and its verdict unless it is won."""
    if shape is None:
        return "-"
    return f"{shape.ratio:.3f}" if shape.comparison.verdict == "win" else f"{shape.ratio:.3f} {verdict(shape)}"


if __name__ == "__main__":
    sys.exit(guarded(main))
