"""Result tables in Markdown, written between two markers of the README from the shipped finals and nothing else."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from cudal2.errors import UsageError
from cudal2.records.finals import REFERENCE
from cudal2.records.fingerprint import Fingerprint
from cudal2.records.shards import Shards
from cudal2.report.summary import Detail, Judged, details, summarise

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
TITLES = {
    "cublaslt_auto": "cuBLASLt-AutoTuning",
    "cublaslt_heuristic": "cuBLASLt-heuristic",
    "cublas": "cuBLAS",
    "torch": "torch.matmul",
    "quack": "QuACK",
    "triton": "Triton",
    "cuda_l2": "CUDA-L2",
}
#: Losses listed one by one before the rest is counted.
_LOSSES_LISTED = 12


def results_markdown(shards: Shards) -> str:
    """The section between the markers: where it was measured, one table per leaderboard, the losses."""
    report, detail = summarise(shards.measurements), details(shards.measurements)
    parts = [_provenance(shards)]
    for key in sorted({*report, *detail}):
        parts += [f"### {_title(key)}", _table(report.get(key, {})), _losses(detail[key])]
    return "\n\n".join(part for part in parts if part)


def update_readme(path: Path, shards: Shards) -> bool:
    """Rewrites what stands between the markers; says whether anything changed.

    Raises:
        UsageError: The file lacks the markers.
    """
    text = path.read_text()
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"{path} has no '{BEGIN}' ... '{END}' to write the results between")
    new = f"{head}{BEGIN}\n{results_markdown(shards)}\n{END}{tail}"
    if new != text:
        path.write_text(new)
    return new != text


def _provenance(shards: Shards) -> str:
    dates = sorted(row.utc for row in shards.measurements if row.utc)
    span = " to ".join(dict.fromkeys(_date(date) for date in (dates[0], dates[-1]))) if dates else "undated"
    devices = "; ".join(dict.fromkeys(_device(fingerprint) for fingerprint in shards.fingerprints))
    rounds = sorted({len(row.times_us) for row in shards.measurements if row.ok})
    count = "-".join(str(number) for number in dict.fromkeys((rounds[0], rounds[-1]))) if rounds else "0"
    protocol = ", ".join(sorted({str(fingerprint.protocol) for fingerprint in shards.fingerprints}))
    return (
        f"Measured {span} on {devices}. Protocol v{protocol}: {count} shuffled rounds, all contestants interleaved,\n"
        "CUDA graphs over rotating buffers that outsize the L2, N(0,1) data, clocks free. A speed-up is the median\n"
        "over rounds of baseline time / our time; each library is the better of its NN and TN runs.\n"
        "Made by `python -m cudal2 report --readme README.md`."
    )


def _device(fingerprint: Fingerprint) -> str:
    lt = fingerprint.cublaslt
    return f"{fingerprint.gpu} (driver {fingerprint.driver}, CUDA {fingerprint.cuda}, cuBLASLt {lt})"


def _date(utc: str) -> str:
    return datetime.fromisoformat(utc.replace("Z", "+00:00")).date().isoformat()


def _title(key: str) -> str:
    mode, acc, pdl = key.split("/")
    return f"{mode.capitalize()}, {acc} accumulation, our PDL {pdl}"


def _table(board: dict[str, dict[str, Any]]) -> str:
    if not board:
        return "No shape was served by a kernel of ours."
    classes = next(iter(board.values()))["by_class"]
    head = [
        "against",
        "shapes",
        "geomean",
        "faster on",
        "worst",
        *(f"{name} ({classes[name]['n']})" for name in classes),
    ]
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    for name, entry in board.items():
        by_class = (_ratio(value["geomean"]) for value in entry["by_class"].values())
        rows.append(
            [
                TITLES[name],
                str(entry["n"]),
                _ratio(entry["geomean"]),
                f"{entry['win']:.0%}",
                _ratio(entry["min"]),
                *by_class,
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _losses(detail: Detail) -> str:
    """Wins, ties and losses against the reference, and which shapes were lost."""
    counts = detail.verdicts()
    lost = [shape for shape in detail.shapes if shape.comparison.verdict == "loss"]
    lines = []
    if detail.shapes:
        tally = f"{counts['win']} won, {counts['tie']} tied, {counts['loss']} lost"
        lines.append(f"Against {TITLES[REFERENCE]}, by the 95 % interval of the ratio: {tally}.")
    if lost:
        listed = ", ".join(_loss(shape) for shape in lost[:_LOSSES_LISTED])
        more = f", and {len(lost) - _LOSSES_LISTED} more" if len(lost) > _LOSSES_LISTED else ""
        lines.append(f"Lost, worst first: {listed}{more}; there the table serves the library.")
    if detail.unserved:
        lines.append(f"No kernel of ours ran on: {', '.join(mnk for mnk, _ in detail.unserved)}.")
    return " ".join(lines)


def _loss(shape: Judged) -> str:
    return f"{shape.problem.mnk} {_ratio(shape.ratio)}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
