"""The part of a page that a command writes: what stands between two markers."""

from __future__ import annotations

from pathlib import Path

from cudal2.atomic import write_atomically
from cudal2.errors import UsageError


def replace_section(path: Path, begin: str, end: str, section: str) -> bool:
    """Rewrites what stands between two markers; says whether anything changed.

    Args:
        path: The page.
        begin: Marker on a line of its own.
        end: The marker that follows it.
        section: Text between them, without the line ends beside them.

    Raises:
        UsageError: The page lacks the markers.
    """
    head, old, tail = split_section(path, begin, end)
    new = f"\n{section}\n"
    if new != old:
        write_atomically(path, f"{head}{begin}{new}{end}{tail}")
    return new != old


def split_section(path: Path, begin: str, end: str) -> tuple[str, str, str]:
    """What stands before, between and behind two markers.

    Raises:
        UsageError: The page lacks the markers.
    """
    head, found, rest = path.read_text(encoding="utf-8").partition(begin)
    section, closed, tail = rest.partition(end)
    if not found or not closed:
        raise UsageError(f"{path} has no '{begin}' ... '{end}' to write between")
    return head, section, tail
