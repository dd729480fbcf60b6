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
    text = path.read_text(encoding="utf-8")
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise UsageError(f"{path} has no '{begin}' ... '{end}' to write between")
    new = f"{head}{begin}\n{section}\n{end}{tail}"
    if new != text:
        write_atomically(path, new)
    return new != text
