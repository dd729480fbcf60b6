"""The page about counters: what those that ship say of ours and of cuBLASLt, and what the guard rules make of them.

    python scripts/counters.py [--counters cudal2/data/counters] [--finals cudal2/data/finals] [--page docs/counters.md]

With --page the table and the example between the page's markers are rewritten; nothing is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from pathlib import Path

from cudal2.cli import main as cli

with cli.guarded_imports():
    from cudal2.cli import arguments as shared
    from cudal2.cli.output import show_section
    from cudal2.errors import RecordError
    from cudal2.floor import floor_us
    from cudal2.paths import data_dir
    from cudal2.problem import Problem
    from cudal2.records.counters import Profile, ProfileBook

BEGIN, END = "<!-- counters:begin -->", "<!-- counters:end -->"
#: Counters shown, with their heads; fractions as percent.
SHOWN = {
    "l2_hit_rate": "L2 hit rate", "l2_throughput": "L2", "dram_throughput": "memory", "tensor_active": "tensor pipe",
    "occupancy": "occupancy", "issue_rate": "issue rate",
}  # fmt: skip


def main() -> None:
    """Prints the section, or writes it into a page."""
    arguments = parse()
    book = ProfileBook.load(arguments.counters)
    page = "\n".join([*table(book), "", *example(arguments.counters, arguments.finals)])
    show_section(arguments.page, BEGIN, END, page)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = shared.Parser(description=__doc__)
    parser.add_argument("--counters", type=Path, default=data_dir() / "counters", metavar="DIR", help="profiles")
    parser.add_argument("--finals", type=Path, default=data_dir() / "finals", metavar="DIR", help="what is guarded")
    parser.add_argument("--page", type=Path, metavar="FILE", help="page whose section is rewritten")
    return parser.parse_args()


def table(book: ProfileBook) -> list[str]:
    """A line for each shape with a kernel of ours and the library's beside it, by floor, as Markdown.

    Raises:
        RecordError: The profiles say nothing of where they were read.
    """
    if book.fingerprint is None:
        raise RecordError("these counters name no GPU: read them with `cudal2 profile --out DIR`")
    pairs = sorted(beside_library(book).items(), key=lambda pair: (floor_of(pair[0]), pair[0]))
    tools = ", ".join(sorted({one.tool for one in book.profiles()}))
    days = ", ".join(sorted({one.utc[:10] for one in book.profiles()}))
    return [
        f"{book.fingerprint.gpu}, driver {book.fingerprint.driver}, Nsight Compute {tools}, {days};"
        " ours / cuBLASLt's first heuristic answer, percent.",
        "",
        f"| shape | floor us | ours | {' | '.join(SHOWN.values())} |",
        f"| --- | ---: | --- | {' | '.join(['---:'] * len(SHOWN))} |",
        *(
            f"| {problem.mnk} | {floor_of(problem):.4g} | {ours.name} | {' | '.join(cells(ours, theirs))} |"
            for problem, (ours, theirs) in pairs
        ),
    ]


def beside_library(book: ProfileBook) -> dict[Problem, tuple[Profile, Profile]]:
    """A profile of ours and the library's, by shape that has both."""
    profiles = book.profiles()
    theirs = {one.problem: one for one in profiles if one.config is None}
    return {
        one.problem: (one, theirs[one.problem]) for one in profiles if one.config is not None and one.problem in theirs
    }


def cells(ours: Profile, theirs: Profile) -> list[str]:
    """``ours / theirs`` for each counter shown; what the tool did not report is a dash."""
    return [
        " / ".join("-" if value is None else f"{100 * value:.0f}" for value in values)
        for values in ((getattr(one.counters, name) for one in (ours, theirs)) for name in SHOWN)
    ]


def floor_of(problem: Problem) -> float:
    """Lower bound, microseconds."""
    return floor_us(problem.m, problem.n, problem.k)


def example(counters: Path, finals: Path) -> list[str]:
    """A guarded table's making, as a user sees it; of the entries that a rule about counters took, the first.

    Raises:
        RecordError: The table could not be made.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()) as said:
        out = Path(folder) / "guarded.json"
        made = ["table", "make", str(finals), "--allow-mixed", "--counters", str(counters), "--out", str(out)]
        if cli.main(made):
            *_, error = said.getvalue().splitlines()
            raise RecordError(f"no guarded table of {finals}: {error.removeprefix('error: ')}")
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            cli.main(["table", "show", "--table", str(out)])
    taken = [line.strip() for line in shown.getvalue().splitlines() if "l2_hit_rate" in line]
    lines = [line for line in said.getvalue().splitlines() if line.startswith("guards ")]
    return [
        "```text",
        "$ python -m cudal2 table make cudal2/data/finals --allow-mixed --counters cudal2/data/counters"
        " --out guarded.json",
        *lines,
        *(["$ python -m cudal2 table show --table guarded.json", *taken[:1]] if taken else []),
        "```",
    ]


if __name__ == "__main__":
    sys.exit(cli.guarded(main))
