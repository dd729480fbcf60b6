"""How the commands print: data to stdout, everything else to stderr."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

from cudal2.errors import EnvironmentProblemError


def note(text: str) -> None:
    """One line for the reader, on stderr; a stderr that is closed or full changes no exit code."""
    if sys.stderr is not None:
        try:
            print(text, file=sys.stderr, flush=True)
        except OSError:
            give_up(sys.stderr)


def require_writable(directory: Path, flag: str) -> None:
    """Before minutes of measuring, whose results could not be kept; makes nothing.

    Raises:
        EnvironmentProblemError: No file can be made there.
    """
    if not writable(directory):
        raise EnvironmentProblemError(f"cannot write to {directory}: choose another {flag}")


def writable(directory: Path) -> bool:
    """Whether files can be made in a folder, which is there or can be made itself."""
    existing = next(place for place in (directory, *directory.absolute().parents) if place.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def give_up(stream: TextIO | None) -> None:
    """Sends what a stream still holds nowhere if it cannot be written: the exit would try again and change its code."""
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        # No file below it, no second try.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def complain(text: str) -> None:
    """An error as exactly one line, whatever was in the names and values that it quotes."""
    note("error: " + "".join(character if character.isprintable() else " " for character in text))


def show_section(page: Path | None, begin: str, end: str, section: str) -> None:
    """Prints the part of a page that a script writes, or puts it there between its markers.

    Raises:
        UsageError: The page lacks the markers.
    """
    from cudal2.report.section import replace_section

    if page is None:
        print(section)
    else:
        replace_section(page, begin, end, section)


def counted(count: int, noun: str) -> str:
    """``1 shape``, ``2 shapes``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def pip_install(extra: str = "") -> str:
    """The command that installs what an extra needs, from the checkout this runs in or for the installed package."""
    root = Path(__file__).parents[2]
    extras = f"[{extra}]" if extra else ""
    what = f"-e '{root}{extras}'" if (root / "pyproject.toml").is_file() else f"'cudal2{extras}'"
    return f"pip install {what}"


def print_json(value: Any) -> None:
    """The only thing on stdout when a command was given ``--json``."""
    print(json.dumps(value, indent=2, sort_keys=False))


def print_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Aligned columns; numbers to the right, times (``*_us``) with the digits that kernel tables keep."""
    # Fewer would round what is in a table a second time, and print one time in two ways.
    digits = [4 if title.endswith("_us") else 3 for title in header]
    cells = [[_text(value, places) for value, places in zip(row, digits, strict=True)] for row in rows]
    widths = [max([len(title), *(len(row[column]) for row in cells)]) for column, title in enumerate(header)]
    right = [bool(cells) and all(_is_number(row[column]) for row in cells) for column in range(len(header))]
    for row in (list(header), *cells):
        parts = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, right, strict=True)
        ]
        print("  ".join(parts).rstrip())


def _text(value: Any, digits: int) -> str:
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(".", "", 1).replace("-", "", 1).replace(",", "").rstrip("x%").isdigit()
