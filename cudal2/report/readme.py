"""Result tables in Markdown, written between two markers of the README from shipped measurements and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from cudal2.floor import CLASS_NAMES
from cudal2.records.benchmark import Benchmark
from cudal2.records.finals import REFERENCE, latest_finals
from cudal2.records.fingerprint import Fingerprint
from cudal2.records.latency import Latency
from cudal2.records.shards import Rows, Shards
from cudal2.report.board import Board, Standing, baseline_title, boards, operands_title
from cudal2.report.notes import judged_again, rounds_text, selected_beforehand
from cudal2.report.section import replace_section
from cudal2.report.serving import FIGURES, NONE_SERVED, ServerBoard, figures, server_boards
from cudal2.report.speed import Row, search_markdown, speed_markdown
from cudal2.report.spread import Judged, Spread
from cudal2.table import KernelTable

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
#: Around the few figures at the top of a page; a page may be without them.
SUMMARY_BEGIN, SUMMARY_END = "<!-- summary:begin -->", "<!-- summary:end -->"
#: Shapes listed one by one before the rest is counted.
_LISTED = 5
#: Whose latencies are here; every other baseline's are on the page. Of boards behind the first the reference alone is.
_SERVED, _SHORT = (REFERENCE, "torch"), (REFERENCE,)
_NO_FINALS = Shards((), ())


def results_markdown(shards: Shards, tables: Sequence[KernelTable] = (), latencies: Rows[Latency] = NONE_SERVED) -> str:
    """Where it was measured, then one board per mode and operands with both PDL columns, the losses, what is served.

    Args:
        shards: Finals.
        tables: Kernel tables that were made from them.
        latencies: Servings.
    """
    columns: dict[tuple[str, str], list[Board]] = {}
    for board in boards(shards.measurements):
        mode, operands, _ = board.key.split("/")
        columns.setdefault((mode, operands), []).append(board)
    parts = [_provenance(shards)]
    for (mode, operands), found in columns.items():
        lines = [_all_losses(found)]
        lines += [_served(table) for table in tables if _stands_by(table, mode, columns) == operands]
        rows = _table(found, () if not parts[1:] else _SHORT)
        parts += [f"### {mode.capitalize()}, {operands_title(operands)}", rows, "\n".join(lines)]
    by_operands: dict[str, list[ServerBoard]] = {}
    for served in server_boards(latencies.rows):
        by_operands.setdefault(served.operands, []).append(served)
    parts += [_server(operands, served) for operands, served in by_operands.items()]
    return "\n\n".join(parts)


def _stands_by(table: KernelTable, mode: str, columns: Collection[tuple[str, str]]) -> str:
    """The operands of the boards that a table is listed with: its own, else those of the other layout."""
    operands = table.header.problem(1, 1, 1).operands
    return operands if (mode, operands) in columns else table.header.precision


def _operands(board: Board) -> str:
    return board.key.split("/")[1]


def _pdl(board: Board) -> str:
    return board.key.rpartition("/")[2]


def update_readme(
    path: Path,
    shards: Shards,
    benchmarks: Mapping[str, Benchmark],
    tables: Sequence[KernelTable],
    latencies: Rows[Latency] = NONE_SERVED,
    quack: Shards = _NO_FINALS,
) -> bool:
    """Rewrites what stands between the markers; says whether anything changed.

    Args:
        path: The README.
        shards: Finals.
        benchmarks: Runs of ``scripts/bench_*.py`` by name; one that is missing has no row.
        tables: Kernel tables that were made from the finals.
        latencies: Servings.
        quack: Finals with QuACK among the contestants.

    Raises:
        UsageError: The file lacks the markers.
    """
    parts = (
        results_markdown(shards, tables, latencies),
        beside_markdown("quack", quack),
        speed_markdown(benchmarks, _kernels_speed(shards)),
        search_markdown(benchmarks),
    )
    changed = replace_section(path, BEGIN, END, "\n\n".join(part for part in parts if part))
    if SUMMARY_BEGIN in path.read_text(encoding="utf-8"):
        changed |= replace_section(path, SUMMARY_BEGIN, SUMMARY_END, summary_markdown(shards, latencies))
    return changed


def summary_markdown(shards: Shards, latencies: Rows[Latency] = NONE_SERVED) -> str:
    """A line per leaderboard of the operands with most shapes, against the reference; of server mode best and worst.

    Our PDL on comes before off, and operands stand in the order of the boards.

    Args:
        shards: Finals.
        latencies: Servings.
    """
    every = boards(shards.measurements)
    order = list(dict.fromkeys(_operands(board) for board in every))
    ordered = sorted(every[::-1], key=lambda board: order.index(_operands(board)))
    offline = [(board.title, one) for board in ordered if (one := board.standing())]
    most = max((standing.entered for _, standing in offline), default=0)
    served = [(board.title, found) for board in server_boards(latencies.rows) if (found := board.standing())]
    served.sort(key=lambda item: item[1].overall.geomean or 0.0, reverse=True)
    shown: list[tuple[str, Standing[Any]]] = [item for item in offline if item[1].entered == most]
    shown += [*served[:1], *served[1:][-1:]]
    gpus = ", ".join(dict.fromkeys(fingerprint.gpu for fingerprint in shards.fingerprints))
    rows = [[f"{gpus}, against {baseline_title(REFERENCE)}", "shapes", "geomean", "won / tied / lost", "worst"]]
    rows[0].append(f"geomean by floor, {CLASS_NAMES[0]} to {CLASS_NAMES[-1]}")
    rows.append(["---", *["---:"] * (len(rows[0]) - 1)])
    for title, standing in shown:
        cells = _row(title, standing)
        rows.append([title, *(cells[at] for at in (2, 3, 5, 8)), " / ".join(cells[-len(CLASS_NAMES) :])])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _kernels_speed(shards: Shards) -> list[Row]:
    """The promise that the finals keep or break."""
    standings = {board.key: board.standing() for board in boards(shards.measurements)}
    reached = ", ".join(f"{_ratio(found.overall.geomean)} ({key})" for key, found in standings.items() if found)
    if not reached:
        return []
    promise = f"kernels: geomean >= 1.00 over {baseline_title(REFERENCE)}, interleaved"
    gpus = ", ".join(dict.fromkeys(fingerprint.gpu for fingerprint in shards.fingerprints))
    return [(promise, reached, "`python scripts/judge.py`", f"{_span(shards)}, {gpus}")]


def _span(shards: Shards) -> str:
    dates = sorted(row.utc for row in shards.measurements if row.utc)
    return " to ".join(dict.fromkeys(date[:10] for date in (dates[0], dates[-1]))) if dates else "undated"


def _provenance(shards: Shards) -> str:
    devices = "; ".join(dict.fromkeys(_device(fingerprint) for fingerprint in shards.fingerprints))
    protocol = ", ".join(sorted({str(fingerprint.protocol) for fingerprint in shards.fingerprints}))
    finals = latest_finals(shards.measurements).values()
    beforehand = selected_beforehand(row for final in finals for row in final.rows)
    ours = "the configuration that another process selected" if beforehand else "the fastest finalist"
    again = judged_again(shards.measurements)
    return (
        f"Measured {_span(shards)} on {devices}. Protocol v{protocol}: {rounds_text(shards)}, all"
        " contestants interleaved, CUDA graphs over rotating buffers that outsize the L2, N(0,1) data, clocks free."
        " Everything down to the next marker is written by `python -m cudal2 report --readme README.md` from the"
        " measurements in `cudal2/data`, no figure by hand; `python -m cudal2 report` shows every board against every"
        " baseline.\n\n"
        "- *Geomean, mean, worst*: of the speed-up, the median over rounds of baseline time / our time; above 1 ours is"
        f" faster. Ours is {ours}, cuBLAS and cuBLASLt the better of their NN and TN runs.\n"
        "- *Won, tied, lost*: its 95 % interval lies above 1, holds 1, lies below 1. *Lost* again as a share; a shape"
        " only the baseline solved is lost. *Slower*: ours takes over 5 % longer.\n"
        "- *Of floor*: what launch and sustained rates of the chip allow (`cudal2/floor.py`) over the time of ours /"
        " theirs. The last five columns: geomean of the speed-up by class of that floor, with the number of shapes.\n"
        "- *Our PDL*: on helps short kernels launched back to back, and no kernel that runs alone (docs/protocol.md 8)."
        " Read the row that matches how you launch."
        f"{f'{chr(10)}- *Again*: {again}' if again else ''}"
    )


def _device(fingerprint: Fingerprint) -> str:
    lt = fingerprint.cublaslt
    return f"{fingerprint.gpu} (driver {fingerprint.driver}, CUDA {fingerprint.cuda}, cuBLASLt {lt})"


def _table(found: Sequence[Board], shown: Collection[str]) -> str:
    """Every baseline of each PDL column, or those shown, since the command prints the others.

    The head counts the shapes of each class, column by column if they differ.
    """
    firsts = [board.standings[0] for board in found if board.standings]
    if not firsts:
        return "No shape was served by a kernel of ours."
    counts = {name: "/".join(dict.fromkeys(_count(first, name) for first in firsts)) for name in CLASS_NAMES}
    head = [
        "our PDL",
        "against",
        "shapes",
        "geomean",
        "mean",
        "won / tied / lost",
        "lost",
        "slower",
        "worst",
        "of floor",
    ]
    rows = [[*head, *(f"{name} ({counts[name]})" for name in CLASS_NAMES)]]
    rows.append(["---", "---", *["---:"] * (len(rows[0]) - 2)])
    every = ((board, standing) for board in found for standing in board.standings)
    rows += [_row(_pdl(board), standing) for board, standing in every if not shown or standing.baseline in shown]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _count(standing: Standing[Judged], name: str) -> str:
    found = standing.by_class[name]
    return str(found.n if found else 0)


def _row(column: str, standing: Standing[Any]) -> list[str]:
    found = standing.overall
    return [
        column,
        baseline_title(standing.baseline),
        str(found.n) if found.n == standing.entered else f"{found.n} of {standing.entered}",
        _ratio(found.geomean),
        _ratio(found.mean),
        f"{found.win} / {found.tie} / {found.lost}",
        f"{found.loss_share:.0%}",
        f"{found.slower:.0%}",
        _ratio(found.worst),
        f"{_ratio(found.floor_ours, '.0%')} / {_ratio(found.floor_other, '.0%')}",
        *(_class(standing.by_class[name]) for name in CLASS_NAMES),
    ]


def _server(operands: str, found: Sequence[ServerBoard]) -> str:
    """Host latency per state and rate: the reference and torch by their p50, the tails and device time beside it."""
    head = ["state", "against", "shapes", "geomean", "mean", "won / tied / lost", "lost", "slower", "worst"]
    rows = [[*head, *(f"{name} (theirs / ours us)" for name in FIGURES)]]
    rows.append(["---", "---", *["---:"] * (len(rows[0]) - 2)])
    for board in found:
        for standing in (one for one in board.standings if one.baseline in _SERVED):
            cells = _row(f"{board.state}, {board.target_qps:g}/s", standing)
            tails = figures(standing.shapes).values()
            rows.append([*cells[:9], *(f"{one.ratio:.3f} ({one.other_us:.1f} / {one.ours_us:.1f})" for one in tails)])
    text = (
        "Host latency of one request at a time at random arrivals, from just before the submission to the completion as"
        " a native client sees it; our PDL is off. Won, tied, lost, mean and worst are of the p50, by the interval over"
        " blocks of requests; then p50, p95, p99 and the device time of a launch alone, each as geomean of theirs over"
        " ours and of both in us."
        " Where p50 differs and the device column does not, the submission makes the difference, not the kernel."
    )
    remarks = " ".join(line for board in found if (line := _server_remarks(board)))
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    parts = (f"### Server, {operands_title(operands)}", text, table, remarks and f"- {remarks}")
    return "\n\n".join(part for part in parts if part)


def _server_remarks(board: ServerBoard) -> str:
    """The floor under every contestant, what was lost, what was too fast an arrival."""
    parts = [f"a launch of nothing takes {board.empty_us:.1f} us."] if board.empty_us is not None else []
    standing = board.standing()
    if standing is not None and standing.losses:
        lost = _listed([f"{shape.problem.mnk} {_ratio(shape.ratio)}" for shape in standing.losses])
        parts.append(f"Lost to {baseline_title(REFERENCE)}, worst first: {lost}.")
    if board.unserved:
        parts.append(f"No kernel of ours served: {_listed(board.unserved)}.")
    if board.overloaded:
        parts.append(f"Requests waited for each other on: {_listed(board.overloaded)}.")
    return f"{board.state}, {board.target_qps:g}/s: {' '.join(parts)}" if parts else ""


def _class(found: Spread | None) -> str:
    return _ratio(found.geomean if found else None)


def beside_markdown(name: str, shards: Shards) -> str:
    """Finals that an optional contestant took part in, against it and the reference; empty without any."""
    found = [board for board in boards(shards.measurements) if board.standing(name) is not None]
    title = f"### Beside {baseline_title(name)}, in finals of their own"
    return "\n\n".join((title, _table(found, (REFERENCE, name)), _all_losses(found, name))) if found else ""


def _all_losses(found: Sequence[Board], baseline: str = REFERENCE) -> str:
    """A line of both PDL columns."""
    return "- " + " ".join(f"PDL {_pdl(board)}: {_losses(board, baseline)}" for board in found)


def _losses(board: Board, baseline: str = REFERENCE) -> str:
    """Which shapes were lost to a baseline, the worst by name, and which were not even served."""
    lines = []
    standing = board.standing(baseline)
    if standing is not None:
        found, losses = standing.overall, standing.losses
        other = baseline_title(baseline)
        lines.append(f"{found.ours_us / 1e3:.2f} ms in total, {other} {found.other_us / 1e3:.2f} ms.")
        lost = _listed([f"{shape.problem.mnk} {_ratio(shape.ratio)}" for shape in losses])
        lines.append(f"Lost to it, worst first: {lost}." if losses else "Nothing lost to it.")
    if board.unserved:
        lines.append(f"No kernel of ours ran on: {_listed([mnk for mnk, _ in board.unserved])}.")
    if board.failures:
        lines.append(f"{len(board.failures)} contestants have no time.")
    return " ".join(lines)


def _listed(names: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def _served(table: KernelTable) -> str:
    """What the table makes of it: the faster PDL column, or ``torch.matmul``; and where a library is ahead of ours."""
    name = table.path.name if table.path else table.header.kind
    ahead = [entry for entry in table.entries if entry.baseline is not None]
    left = sum(entry.config is None for entry in ahead)
    ours = len(table) - left
    with_pdl = sum(entry.pdl for entry in table.entries)
    rest = f", `torch.matmul` on {left}" if left else ""
    behind = f" A library is ahead of ours on {len(ahead)}: {_listed([entry.mnk for entry in ahead])}." if ahead else ""
    found = Counter(entry.evidence for entry in table.entries)
    elsewhere = "Timed on another GPU" if table.header.tuned_elsewhere else "Measured with the other layout of B only"
    origins = {
        elsewhere: found["transferred"],
        "Chosen by a search, not judged in a final": found["searched"] + found["exhaustive"],
        "Without a time of cuBLASLt": table.never_beside_library,
    }
    origin = "".join(f" {words}: {count}." for words, count in origins.items() if count)
    served = f"serves a kernel of ours on {ours} of {len(table)} shapes ({with_pdl} with PDL){rest}."
    return f"- `{name}` {served}{behind}{origin}"


def _ratio(value: float | None, pattern: str = ".3f") -> str:
    return "-" if value is None else format(value, pattern)
