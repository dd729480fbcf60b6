"""The finals as one HTML page that needs nothing but itself: no network, no files beside it, no plotting library."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from string import Template
from typing import Any

from cudal2.floor import CLASS_NAMES
from cudal2.records.finals import REFERENCE, Final
from cudal2.records.fingerprint import Fingerprint
from cudal2.records.latency import Latency
from cudal2.records.shards import Rows, Shards, shard_files
from cudal2.report import markup, server_page
from cudal2.report.board import Board, Standing, baseline_title, boards
from cudal2.report.cells import SPREAD_HEAD, class_cell, failures_table, interval, kernel_name, spread_cells
from cudal2.report.clocks import clocks_of, pooled
from cudal2.report.markup import Cell, Picture, number, words
from cudal2.report.notes import lead, notes
from cudal2.report.serving import NONE_SERVED, ServerBoard, server_boards
from cudal2.report.spread import Judged, Spread
from cudal2.report.summary import WORST

_TEMPLATE = Path(__file__).with_name("page.html.in")


@dataclass(frozen=True)
class Source:
    """One file the figures come from.

    Attributes:
        name: File name.
        sha256: Digest of its bytes.
    """

    name: str
    sha256: str


def sources(directory: Path) -> list[Source]:
    """The shards of a directory (or one such file) with their digests."""
    return [Source(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in shard_files(directory)]


def page(
    shards: Shards,
    pictures: Mapping[str, Sequence[Picture]],
    command: str,
    files: Sequence[Source] = (),
    latencies: Rows[Latency] = NONE_SERVED,
) -> str:
    """The page; the same input gives the same bytes.

    Args:
        shards: The finals.
        pictures: Drawings by leaderboard; may be empty.
        command: What makes this page again.
        files: Where the finals and servings were read from.
        latencies: Servings.
    """
    found, served = boards(shards.measurements), server_boards(latencies.rows)
    fingerprints = tuple(dict.fromkeys((*shards.fingerprints, *latencies.fingerprints)))
    gpus = ", ".join(dict.fromkeys(fingerprint.gpu for fingerprint in fingerprints)) or "an unknown GPU"
    rows = len(shards.measurements) + len(latencies.rows)
    parts = [
        markup.paragraph(lead(shards, found)),
        _navigation(found, served),
        _overview(found, served),
        markup.heading("How to read this", "notes"),
        markup.items(notes(found, served)),
        *(_board(board, pictures.get(board.key, ())) for board in found),
        *(server_page.section(board, pictures.get(board.key, ())) for board in served),
        _environment(fingerprints, rows, command, files),
    ]
    title = markup.escape(f"cudal2: half-precision GEMM on {gpus}")
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(title=title, body="\n".join(parts))


def _navigation(found: Sequence[Board], served: Sequence[ServerBoard]) -> str:
    links = [("#notes", "How to read this"), *((f"#{_anchor(board)}", board.title) for board in found)]
    links += [(f"#{server_page.anchor(board)}", board.title) for board in served]
    links.append(("#environment", "Environment and data"))
    return f"<nav>{''.join(f'<a href={markup.escape(to)}>{markup.escape(text)}</a>' for to, text in links)}</nav>"


def _anchor(board: Board) -> str:
    return board.key.replace("/", "-")


_HEAD = (*SPREAD_HEAD, "total time", "ours of floor", "theirs of floor")
_RIVALS_HEAD = (*SPREAD_HEAD, "total time", "of floor", f"{baseline_title(REFERENCE)} of floor")


def _spread(found: Spread | None, entered: int = 0) -> list[Cell]:
    """A spread of device times: under ``_HEAD``."""
    cells = spread_cells(found, entered)
    if found is None or found.total is None:
        return [*cells, *[number(None)] * 3]
    return [
        *cells,
        number(found.total, below=f"{found.other_us / 1e3:.2f} / {found.ours_us / 1e3:.2f} ms"),
        number(found.floor_ours, ".0%"),
        number(found.floor_other, ".0%"),
    ]


def _overview(found: Sequence[Board], served: Sequence[ServerBoard]) -> str:
    rows = [_row(board.title, standing) for board in found if (standing := board.standing()) is not None]
    rows += [_row(one.title, sooner) for one in served if (sooner := one.standing()) is not None]
    if not rows:
        return markup.paragraph(f"No shape was measured against {baseline_title(REFERENCE)}.")
    return markup.heading(f"Speed-up over {baseline_title(REFERENCE)}", "overview") + markup.table(
        ("leaderboard", *SPREAD_HEAD), rows, name="table-overview"
    )


def _row(title: str, standing: Standing[Any]) -> list[Cell]:
    return [words(title), *spread_cells(standing.overall, standing.entered)]


def _board(board: Board, pictures: Sequence[Picture]) -> str:
    anchor = _anchor(board)
    parts = [markup.heading(board.title, anchor), _standings(board)]
    standing = board.standing()
    if standing is not None:
        against = baseline_title(REFERENCE)
        parts += [
            markup.heading(f"By class of floor, against {against}", level=3),
            _classes(board, standing),
            markup.heading(f"Worst {min(WORST, standing.overall.n)} against {against}", level=3),
            markup.table(_WORST_HEAD, [_worst(shape) for shape in standing.shapes[:WORST]], name=f"worst-{anchor}"),
        ]
    if pictures:
        drawn = (markup.drawing(picture) for picture in pictures)
        parts += [markup.heading("Pictures", level=3), f'<div class="figures">{"".join(drawn)}</div>']
    parts += [markup.heading("Every shape", level=3), _shapes(board), _failures(board)]
    return "\n".join(part for part in parts if part)


def _standings(board: Board) -> str:
    """Everyone over all shapes, everyone by class, and how everyone else stands to the reference."""
    anchor = _anchor(board)
    parts = [markup.paragraph("No kernel of ours has a time on this leaderboard.")]
    if board.standings:
        overall = [[_title(one), *_spread(one.overall, one.entered)] for one in board.standings]
        classes = [[_title(one), *(class_cell(one.by_class[name]) for name in CLASS_NAMES)] for one in board.standings]
        parts = [
            markup.table(("against", *_HEAD), overall, name=f"standings-{anchor}"),
            markup.heading("Geomean by class of floor, and won / tied / lost of the shapes", level=3),
            markup.table(("against", *CLASS_NAMES), classes, name=f"geomeans-{anchor}"),
        ]
    if board.rivals:
        rivals = [[_title(one), *_spread(one.overall, one.entered)] for one in board.rivals]
        parts += [
            markup.heading(f"The others against {baseline_title(REFERENCE)}, ours left out", level=3),
            markup.table(("contestant", *_RIVALS_HEAD), rivals, name=f"rivals-{anchor}"),
        ]
    return "\n".join(parts)


def _title(standing: Standing[Judged]) -> Cell:
    return words(baseline_title(standing.baseline))


def _classes(board: Board, standing: Standing[Judged]) -> str:
    """Each class in full, and what the chip did meanwhile."""
    judged = standing.by_problem
    rows = []
    for name in CLASS_NAMES:
        inside = [
            final for final in board.finals if final.problem in judged and judged[final.problem].floor_class == name
        ]
        clocks = pooled(clocks_of(final) for final in inside)
        rows.append(
            [
                words(name),
                *_spread(standing.by_class[name]),
                number(clocks.median_mhz, ".0f"),
                Cell(clocks.held_by, clocks.held_share),
            ]
        )
    head = ("class", *_HEAD, "MHz", "clock held by")
    return markup.table(head, rows, name=f"classes-{_anchor(board)}")


_WORST_HEAD = ("shape", "speed-up", "95 %", "verdict", "floor us", "ours us", "theirs us", "faster", "our kernel")


def _worst(shape: Judged) -> list[Cell]:
    found = shape.comparison
    return [
        words(shape.problem.mnk),
        number(found.ratio, style=found.verdict),
        words(interval(shape)),
        words(found.verdict, found.verdict),
        number(shape.floor_us),
        number(shape.ours.median_us),
        number(shape.other.median_us),
        words(shape.other.contestant if found.ratio < 1.0 else "ours"),
        words(kernel_name(shape.ours.config, shape.ours.contestant), "code"),
    ]


def _shapes(board: Board) -> str:
    """Every final of the board, lowest ratio against the reference first, unserved shapes before all."""
    names = [standing.baseline for standing in board.standings]
    head = ["M", "N", "K", "B", "class", "floor us", "ours us", "TFLOP/s", "of floor"]
    for name in names:
        head += [f"over {baseline_title(name)}"] + (["95 %", "verdict"] if name == REFERENCE else [])
    rows = [(final, board.comparisons(final)) for final in board.finals]
    rows.sort(key=lambda pair: pair[1][REFERENCE].ratio if REFERENCE in pair[1] else 0.0)
    cells = [_shape_row(final, found, names) for final, found in rows]
    head += ["our kernel", "MHz", "clock held by", "W"]
    return markup.table(head, cells, sortable=True, name=f"shapes-{_anchor(board)}")


def _shape_row(final: Final, found: Mapping[str, Judged], names: Sequence[str]) -> list[Cell]:
    problem, ours = final.problem, final.ours
    judged = next(iter(found.values()), None)
    cells = [number(problem.m, "d"), number(problem.n, "d"), number(problem.k, "d"), words(problem.layout)]
    if judged is None or ours is None:
        cells += [number(None)] * 5
    else:
        cells += [
            Cell(judged.floor_class, judged.floor_us),
            number(judged.floor_us),
            number(ours.median_us),
            number(problem.flops / ours.median_us / 1e6, ".1f"),
            number(judged.floor_us / ours.median_us, ".0%"),
        ]
    for name in names:
        cells += _against(found.get(name), name == REFERENCE)
    kernel = (
        words(kernel_name(ours.config, ours.contestant), "code")
        if ours is not None
        else words("none of ours ran", "loss")
    )
    clocks, last = clocks_of(final), final.rows[0]
    held = Cell(clocks.held_by, clocks.held_share)
    return [*cells, kernel, number(clocks.median_mhz, ".0f"), held, number(last.power_w, ".0f")]


def _against(shape: Judged | None, reference: bool) -> Iterator[Cell]:
    verdict = shape.comparison.verdict if shape is not None else ""
    yield number(shape.ratio if shape is not None else None, style=verdict)
    if reference:
        yield words(interval(shape) if shape is not None else markup.NONE)
        yield words(verdict or markup.NONE, verdict)


def _failures(board: Board) -> str:
    """Contestants without a time and why, ours and theirs; said even if there are none."""
    if not board.failures:
        return markup.paragraph("No contestant failed a check, could not run, or was set aside for an impossible time.")
    return markup.heading("Without a time", level=3) + failures_table(board.failures, f"failures-{_anchor(board)}")


def _environment(fingerprints: Sequence[Fingerprint], count: int, command: str, files: Sequence[Source]) -> str:
    environments = [fingerprint.to_dict() for fingerprint in fingerprints]
    rows = [
        [words(name.replace("_", " ")), *(words(_plain(environment[name])) for environment in environments)]
        for name in (field.name for field in fields(Fingerprint))
    ]
    rows.append([words("sha256"), *(words(fingerprint.sha256, "code") for fingerprint in fingerprints)])
    sessions = [f"environment {at}" for at in range(1, len(fingerprints) + 1)]
    parts = [
        markup.heading("Environment and data", "environment"),
        markup.table(("fingerprint", *sessions), rows, name="fingerprint"),
        markup.paragraph("Every ratio is taken inside one session, so environments may differ from shape to shape."),
        markup.heading("Data", level=3),
        markup.paragraph(f"{count} rows with every raw time" + (", from:" if files else ".")),
    ]
    if files:
        listed = [[words(file.name, "code"), words(file.sha256, "code")] for file in files]
        parts.append(markup.table(("file", "sha256"), listed, name="files"))
    parts += [
        markup.heading("Make this page again", level=3),
        markup.code(command),
        markup.paragraph("The same data gives the same page, byte for byte. To measure a shape on your own GPU:"),
        markup.code("python -m cudal2 eval --mnk 64_4096_64 --acc_precise fp32 --pdl both --config KERNEL"),
    ]
    return "\n".join(parts)


def _plain(value: object) -> str:
    return ".".join(str(part) for part in value) if isinstance(value, list) else str(value)
