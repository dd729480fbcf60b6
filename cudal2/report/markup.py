"""Escaped HTML pieces: every text goes through here, so that nothing in a record can become markup."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape as escape

#: Stands where there is no number.
NONE = "-"


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: What is read.
        value: What it is sorted by, and the number behind the text; ``None`` for words.
        style: CSS class: ``win``, ``tie``, ``loss``, ``code`` or nothing.
        below: A second, smaller line.
    """

    text: str
    value: float | None = None
    style: str = ""
    below: str = ""

    def html(self) -> str:
        """The ``td``."""
        classes = " ".join(part for part in ("number" if self.value is not None else "", self.style) if part)
        attributes = f' class="{escape(classes)}"' if classes else ""
        if self.value is not None:
            attributes += f' data-v="{self.value!r}"'
        below = f"<small>{escape(self.below)}</small>" if self.below else ""
        return f"<td{attributes}>{escape(self.text)}{below}</td>"


@dataclass(frozen=True)
class Picture:
    """A drawn figure, ready to stand in a page.

    Attributes:
        name: Short, for file names.
        caption: What it shows and how to read it.
        svg: The drawing.
        wide: Whether it takes the width of the page.
    """

    name: str
    caption: str
    svg: bytes
    wide: bool = False


def number(value: float | None, pattern: str = ".3f", style: str = "", below: str = "") -> Cell:
    """A number; a dash where there is none."""
    if value is None:
        return Cell(NONE, None, f"number {style}".rstrip(), below)
    return Cell(format(value, pattern), value, style, below)


def words(text: str, style: str = "") -> Cell:
    """A text."""
    return Cell(text, None, style)


def table(header: Sequence[str], rows: Sequence[Sequence[Cell]], *, sortable: bool = False, name: str = "") -> str:
    """A table that scrolls sideways rather than break the page; headers of number columns stand to the right."""
    numeric = [bool(rows) and all(_numeric(row[at]) for row in rows) for at in range(len(header))]
    heads = "".join(
        f'<th scope="col"{" class=number" if right else ""}>{escape(title)}</th>'
        for title, right in zip(header, numeric, strict=True)
    )
    body = "\n".join(f"<tr>{''.join(cell.html() for cell in row)}</tr>" for row in rows)
    attributes = (' class="sortable"' if sortable else "") + (f' id="{escape(name)}"' if name else "")
    return (
        f'<div class="wide"><table{attributes}><thead><tr>{heads}</tr></thead><tbody>\n{body}\n</tbody></table></div>'
    )


def _numeric(cell: Cell) -> bool:
    return cell.value is not None or cell.text == NONE


def paragraph(text: str) -> str:
    """A paragraph."""
    return f"<p>{escape(text)}</p>"


def items(texts: Sequence[str]) -> str:
    """A list; what stands before the first colon is set in bold."""
    parts = [text.partition(": ") for text in texts]
    lines = (
        f"<li><b>{escape(head)}:</b> {escape(tail)}</li>" if mark else f"<li>{escape(head)}</li>"
        for head, mark, tail in parts
    )
    return f"<ul>{''.join(lines)}</ul>"


def heading(text: str, name: str = "", level: int = 2) -> str:
    """A heading with an anchor."""
    anchor = f' id="{escape(name)}"' if name else ""
    return f"<h{level}{anchor}>{escape(text)}</h{level}>"


def code(text: str) -> str:
    """A command to copy."""
    return f"<pre>{escape(text)}</pre>"


def drawing(picture: Picture) -> str:
    """An SVG inside the page, in a document of its own so that ids of two drawings cannot clash."""
    data = base64.b64encode(picture.svg).decode()
    style = ' class="full"' if picture.wide else ""
    caption = escape(picture.caption)
    return (
        f'<figure{style}><div class="wide"><img alt="{caption}" data-name="{escape(picture.name)}" '
        f'src="data:image/svg+xml;base64,{data}"></div><figcaption>{caption}</figcaption></figure>'
    )
