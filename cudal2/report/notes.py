"""What a reader must know before believing a ratio, in sentences that hold for the finals at hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cudal2.floor import SUSTAINED
from cudal2.records.finals import REFERENCE, by_shape, group_finals
from cudal2.records.measurement import Measurement
from cudal2.records.shards import Shards
from cudal2.report.board import Board, baseline_title, boards_of
from cudal2.report.clocks import clocks_of, pooled
from cudal2.report.serving import ServerBoard
from cudal2.report.spread import NOTICEABLE

_TIES = (
    "a ratio is the median over rounds of the baseline's time over ours in the same round, so above 1 ours is faster. "
    "Its 95 % interval reaches from the lowest to the highest end of percentile bootstraps over the rounds of each "
    "measuring process, and 1 % further, 2 % above floors of 10 us: what complete runs differ by. Won: the interval "
    "lies above 1; lost: below; tied: it holds 1, and the measurement cannot tell the two apart. Of equal shapes "
    "chance calls at most one in twenty won or lost in nine rounds of one process, one in 32 in three rounds of each "
    "of two; in one process, what differs from process to process comes on top. "
    "Nothing is corrected for looking at many shapes."
)
_COUNTS = (
    "means and totals are over the shapes that both sides solved, and their number stands beside them. A shape that "
    "only the baseline solved is unserved: it has no ratio and counts as lost in every share. Slower and faster by "
    f"> 5 %: one side takes more than {NOTICEABLE:g} times as long as the other. Optional contestants (QuACK, Triton, "
    "foreign kernels) are compared on the shapes they were entered on, and on no other."
)
_TERMS = (
    "accumulators, operand types, layouts of B, modes and PDL columns are leaderboards of their own; a speed-up across "
    "two is refused, and so is one over a torch that was allowed to sum in half precision under an fp32 label."
)
_HOST = (
    "offline leaderboards hold device time between events, server leaderboards the host's: a native client submits one "
    "request at a time at random arrivals and waits for it; device time, of a launch alone, stands beside it. Idle "
    "cold: nothing of the operands in the L2; warm: as much as fits; loaded: copies on another stream. A ratio is the "
    "median over blocks of requests of their block's median over ours; p95 and p99 are plain ratios, p99 of a few "
    "hundred requests rests on a few of them. Our PDL is off there."
)
_NO_HOST = (
    "every time here is device time between events. Host time, from submission to completion as a caller sees it, is "
    "not measured here: there are no servings."
)
_FLOOR = (
    f"by the floor of a shape, the slowest of {SUSTAINED.tensor_flops / 1e12:.0f} TFLOP/s, "
    f"{SUSTAINED.hbm_bytes / 1e12:.1f} TB/s of device memory, L2 traffic and one launch ({SUSTAINED.launch_us:g} us), "
    "each taken alone. Of floor: the geometric mean of floor over time, 100 % being what the chip allows. Tiny shapes "
    "may pass 100 %: launches that overlap cost less than the launch the floor counts."
)
_PDL = (
    "with programmatic dependent launch a kernel's prologue overlaps the end of the kernel before it. That helps short "
    "kernels launched back to back and does nothing for one that runs alone. The two are never mixed; the libraries "
    "choose for themselves and count for both."
)


def lead(shards: Shards, found: Sequence[Board]) -> str:
    """What was measured, when, and how, in three lines."""
    if not found:
        return "There are no finals in these records: nothing has been compared yet."
    dates = sorted({row.utc[:10] for row in shards.measurements if row.utc})
    span = _span(dates) or "at an unknown date"
    shapes = {final.problem.mnk for board in found for final in board.finals}
    protocol = ", ".join(sorted({str(fingerprint.protocol) for fingerprint in shards.fingerprints}))
    dtypes = " or ".join(sorted({final.problem.dtype for board in found for final in board.finals}, reverse=True))
    rounds, again = rounds_text(shards), judged_again(shards.measurements)
    return (
        f"C = A B, {dtypes} in and out, {len(shapes)} shapes, measured {span}. "
        f"Protocol v{protocol} (docs/protocol.md): "
        f"results checked before and after timing; all contestants of a shape interleaved in {rounds}; "
        "CUDA graphs over rotating buffers that outsize the L2; N(0,1) data; clocks free and logged."
        f"{f' {again}' if again else ''}"
    )


def judged_again(records: Sequence[Measurement]) -> str:
    """Of which shapes there are several finals, and what the first of each said; empty if there are none."""
    finals = group_finals(records)
    newest, first = by_shape(finals), by_shape(reversed(finals))
    again = {name for name, final in newest.items() if final.utc != first[name].utc}
    if not again:
        return ""
    said = []
    for board in boards_of(first.values()):
        standing = board.standing()
        if standing is not None and any(key == board.key for key, _ in again):
            found = standing.overall
            said.append(f"{board.key} {found.geomean:.3f}, {found.win} / {found.tie} / {found.lost}")
    shapes = len({mnk for _, mnk in again})
    return (
        f"{shapes} shape{'' if shapes == 1 else 's'} judged more than once: the newest final counts. By the first of "
        f"each, geomean against {baseline_title(REFERENCE)} and won / tied / lost: {'; '.join(said)}."
    )


def rounds_text(shards: Shards) -> str:
    """``9 shuffled rounds``, and of how many processes if several; rounds of a selection are no rounds of a final."""
    good = [row for final in group_finals(shards.measurements) for row in final.rows if row.ok]
    rounds = _span([str(count) for count in sorted({len(row.times_us) for row in good})])
    processes = sorted({len(row.process_rounds) or 1 for row in good})
    several = f" of {_span([str(count) for count in processes])} processes" if processes[-1:] > [1] else ""
    return f"{rounds or 'no'} shuffled rounds{several}"


def _span(values: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys((values[0], values[-1]))) if values else ""


def notes(found: Sequence[Board], served: Sequence[ServerBoard] = ()) -> list[str]:
    """One note each, its subject before a colon."""
    absent = sorted({baseline_title(name) for board in found for name in board.absent})
    texts = [
        f"Ratio and ties: {_TIES}",
        f"Shapes counted: {_COUNTS}",
        f"Never compared: {_TERMS}",
        "Total time: theirs over ours, each summed over the shapes; the largest shapes dominate it.",
        f"Classes: {_FLOOR}",
        "Layouts: ours takes B as [N,K], tn, where a leaderboard names no layout, else as [K,N], nn; cuBLAS and "
        "cuBLASLt are measured with B in both layouts and the faster one counts; torch.matmul takes B as ours does.",
        f"Choice: {_choice(found)}",
        f"PDL: {_PDL}",
        f"Two clocks: {_HOST if served else _NO_HOST}",
    ]
    if found:
        texts.append(f"GPU clocks: free, not locked; {_clocks(found)}.")
    if absent:
        texts.append(f"Not measured: {', '.join(absent)} have no figures on at least one leaderboard here.")
    return texts


def selected_beforehand(rows: Iterable[Measurement]) -> bool:
    """Whether each kernel of ours was selected by a process whose rounds are not among its times."""
    ours = [row for row in rows if row.config is not None and row.ok]
    return bool(ours) and all(row.process_rounds for row in ours)


def _choice(found: Sequence[Board]) -> str:
    if selected_beforehand(row for board in found for final in board.finals for row in final.rows):
        return (
            "ours was selected by another process, none of whose rounds counts here. A library is the better of its "
            "layouts by the rounds that are reported, so it is slightly flattered."
        )
    most = _most_entered(found)
    entered = f"{most} configuration{'' if most == 1 else 's'}"
    return (
        f"ours is the best of at most {entered} that entered a final; a library is the better of its layouts. Both are "
        "chosen by the rounds that are reported, so both are slightly flattered."
    )


def _most_entered(found: Sequence[Board]) -> int:
    counts = (sum(row.config is not None for row in final.rows) for board in found for final in board.finals)
    return max(counts, default=0)


def _clocks(found: Sequence[Board]) -> str:
    """SM clock and what held it, over every round of every final."""
    clocks = pooled(clocks_of(final) for board in found for final in board.finals)
    if clocks.median_mhz is None or clocks.held_share is None:
        return "they were not recorded"
    return (
        f"after a round the SM clock was {min(clocks.mhz)} to {max(clocks.mhz)} MHz, median {clocks.median_mhz:.0f}; "
        f"in {clocks.held_share:.0%} of rounds something held it down ({clocks.held_by}), class by class below"
    )
