"""Finals in the CSV columns of CUDA-L2, each cell a speed-up of ours, so that what reads its tables reads these."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from cudal2.records.finals import LAYOUT_SUFFIXES, Final, compare_rows

#: Column and baseline; ``max`` is against the better of the two layouts.
CSV_COLUMNS = {
    "torch.matmul": "torch",
    "cuBLAS-tn": "cublas_tn",
    "cuBLAS-nn": "cublas_nn",
    "cuBLAS-max": "cublas",
    "cuBLASLt-heuristic-tn": "cublaslt_heuristic_tn",
    "cuBLASLt-heuristic-nn": "cublaslt_heuristic_nn",
    "cuBLASLt-heuristic-max": "cublaslt_heuristic",
    "cuBLASLt-auto-tuning-tn": "cublaslt_auto_tn",
    "cuBLASLt-auto-tuning-nn": "cublaslt_auto_nn",
    "cuBLASLt-auto-tuning-max": "cublaslt_auto",
}


def csv_text(finals: Iterable[Final]) -> str:
    """One line per final under the header; a cell stays empty where ours or the baseline has no time.

    The finals must be of one leaderboard: the columns have no room to tell two apart.
    """
    finals = list(finals)
    if len({final.key for final in finals}) > 1:
        raise ValueError("finals of several leaderboards in one table")
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["mnk", *CSV_COLUMNS])
    for final in finals:
        writer.writerow([final.problem.mnk, *(_cell(final, name) for name in CSV_COLUMNS.values())])
    return buffer.getvalue()


def _cell(final: Final, name: str) -> str:
    ours = final.ours
    other = final.named(name) if name.endswith(LAYOUT_SUFFIXES) else final.baseline(name)
    return f"{compare_rows(ours, other).ratio:.4f}" if ours and other else ""
