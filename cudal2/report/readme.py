"""Result tables in Markdown, written between two markers of the README from shipped measurements and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from cudal2.errors import UsageError
from cudal2.records.benchmark import Benchmark
from cudal2.records.finals import REFERENCE
from cudal2.records.fingerprint import Fingerprint
from cudal2.records.shards import Shards
from cudal2.report.board import baseline_title
from cudal2.report.speed import Row, search_markdown, speed_markdown
from cudal2.report.summary import Detail, Judged, details, summarise
from cudal2.table import KernelTable

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
#: Losses listed one by one before the rest is counted.
_LOSSES_LISTED = 12


def results_markdown(shards: Shards, tables: Sequence[KernelTable] = ()) -> str:
    """Where it was measured, then one board per mode and accumulator with both PDL columns, the losses, what is served.

    Args:
        shards: Finals.
        tables: Kernel tables that were made from them.
    """
    report, detail = summarise(shards.measurements), details(shards.measurements)
    columns: dict[tuple[str, str], list[str]] = {}
    for key in sorted({*report, *detail}):
        mode, acc, pdl = key.split("/")
        columns.setdefault((mode, acc), []).append(pdl)
    parts = [_provenance(shards)]
    for (mode, acc), pdls in columns.items():
        figures = {pdl: report.get(f"{mode}/{acc}/{pdl}", {}) for pdl in pdls}
        lines = [f"- PDL {pdl}: {_losses(detail[f'{mode}/{acc}/{pdl}'])}" for pdl in pdls]
        lines += [_served(table) for table in tables if table.header.acc == acc]
        parts += [f"### {mode.capitalize()}, {acc} accumulation", _table(figures), "\n".join(lines)]
    return "\n\n".join(parts)


def update_readme(
    path: Path, shards: Shards, benchmarks: Mapping[str, Benchmark], tables: Sequence[KernelTable]
) -> bool:
    """Rewrites what stands between the markers; says whether anything changed.

    Args:
        path: The README.
        shards: Finals.
        benchmarks: Runs of ``scripts/bench_*.py`` by name; one that is missing has no row.
        tables: Kernel tables that were made from the finals.

    Raises:
        UsageError: The file lacks the markers.
    """
    text = path.read_text()
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"{path} has no '{BEGIN}' ... '{END}' to write the results between")
    parts = (
        results_markdown(shards, tables),
        speed_markdown(benchmarks, _kernels_speed(shards)),
        search_markdown(benchmarks),
    )
    section = "\n\n".join(part for part in parts if part)
    new = f"{head}{BEGIN}\n{section}\n{END}{tail}"
    if new != text:
        path.write_text(new)
    return new != text


def _kernels_speed(shards: Shards) -> list[Row]:
    """The promise that the finals keep or break."""
    boards = {key: board[REFERENCE] for key, board in summarise(shards.measurements).items() if REFERENCE in board}
    if not boards:
        return []
    promise = f"kernels: geomean >= 1.00 over {baseline_title(REFERENCE)}, interleaved"
    reached = ", ".join(f"{_ratio(entry['geomean'])} ({key})" for key, entry in boards.items())
    gpus = ", ".join(dict.fromkeys(fingerprint.gpu for fingerprint in shards.fingerprints))
    return [(promise, reached, "`python scripts/judge.py`", f"{_span(shards)}, {gpus}")]


def _span(shards: Shards) -> str:
    dates = sorted(row.utc for row in shards.measurements if row.utc)
    return " to ".join(dict.fromkeys(_date(date) for date in (dates[0], dates[-1]))) if dates else "undated"


def _provenance(shards: Shards) -> str:
    devices = "; ".join(dict.fromkeys(_device(fingerprint) for fingerprint in shards.fingerprints))
    rounds = sorted({len(row.times_us) for row in shards.measurements if row.ok})
    count = "-".join(str(number) for number in dict.fromkeys((rounds[0], rounds[-1]))) if rounds else "0"
    protocol = ", ".join(sorted({str(fingerprint.protocol) for fingerprint in shards.fingerprints}))
    return (
        f"Measured {_span(shards)} on {devices}. Protocol v{protocol}: {count} shuffled rounds, all contestants"
        " interleaved, CUDA graphs over rotating buffers that outsize the L2, N(0,1) data, clocks free.\n"
        "A speed-up is the median over rounds of baseline time / our time; ours is the fastest finalist, cuBLAS and"
        " cuBLASLt the better of their NN and TN runs. The last five columns are geomeans by class of shape: the time"
        " that launch and sustained rates of the chip allow (`cudal2/floor.py`). Everything down to the next marker is"
        " written by\n"
        "`python -m cudal2 report --readme README.md` from the measurements in `cudal2/data`, no figure by hand."
    )


def _device(fingerprint: Fingerprint) -> str:
    lt = fingerprint.cublaslt
    return f"{fingerprint.gpu} (driver {fingerprint.driver}, CUDA {fingerprint.cuda}, cuBLASLt {lt})"


def _date(utc: str) -> str:
    return datetime.fromisoformat(utc.replace("Z", "+00:00")).date().isoformat()


def _table(boards: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Every baseline of each PDL column; the head counts the shapes of each class, column by column if they differ."""
    found = [entry["by_class"] for board in boards.values() for entry in list(board.values())[:1]]
    if not found:
        return "No shape was served by a kernel of ours."
    counts = {name: "/".join(dict.fromkeys(str(by_class[name]["n"]) for by_class in found)) for name in found[0]}
    head = ["our PDL", "against", "shapes", "geomean", "faster on", "worst", *(f"{n} ({counts[n]})" for n in counts)]
    rows = [head, ["---", "---", *["---:"] * (len(head) - 2)]]
    rows += [_row(pdl, name, entry) for pdl, board in boards.items() for name, entry in board.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(pdl: str, name: str, entry: dict[str, Any]) -> list[str]:
    figures = [str(entry["n"]), _ratio(entry["geomean"]), f"{entry['win']:.0%}", _ratio(entry["min"])]
    return [pdl, baseline_title(name), *figures, *(_ratio(value["geomean"]) for value in entry["by_class"].values())]


def _losses(detail: Detail) -> str:
    """Wins, ties and losses against the reference, and which shapes were lost."""
    counts = detail.verdicts()
    lost = [shape for shape in detail.shapes if shape.comparison.verdict == "loss"]
    lines = []
    if detail.shapes:
        tally = f"{counts['win']} won, {counts['tie']} tied, {counts['loss']} lost"
        lines.append(f"against {baseline_title(REFERENCE)}, by the 95 % interval of the ratio: {tally}.")
    if lost:
        listed = ", ".join(_loss(shape) for shape in lost[:_LOSSES_LISTED])
        more = f", and {len(lost) - _LOSSES_LISTED} more" if len(lost) > _LOSSES_LISTED else ""
        lines.append(f"Lost, worst first: {listed}{more}.")
    if detail.unserved:
        lines.append(f"No kernel of ours ran on: {', '.join(mnk for mnk, _ in detail.unserved)}.")
    return " ".join(lines)


def _served(table: KernelTable) -> str:
    """What the table makes of it: the faster PDL column, or the library."""
    name = table.path.name if table.path else table.header.kind
    library = [entry.mnk for entry in table.entries if entry.config is None]
    ours = len(table) - len(library)
    with_pdl = sum(entry.pdl for entry in table.entries)
    rest = f", the library on {len(library)}: {', '.join(library)}" if library else ""
    return f"- `{name}` serves a kernel of ours on {ours} of {len(table)} shapes ({with_pdl} with PDL){rest}."


def _loss(shape: Judged) -> str:
    return f"{shape.problem.mnk} {_ratio(shape.ratio)}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
