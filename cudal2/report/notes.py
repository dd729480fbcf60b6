"""What a reader must know before believing a ratio, in sentences that hold for the finals at hand."""

from __future__ import annotations

from collections.abc import Sequence

from cudal2.floor import SUSTAINED
from cudal2.records.measurement import Measurement
from cudal2.records.shards import Shards
from cudal2.report.board import Board, baseline_title

#: NVML's reasons for a clock below its maximum, by bit.
_THROTTLE = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}
_IDLE = 0x1
_TIES = (
    "a ratio is the median over rounds of the baseline's time over ours in the same round, so above 1 ours is faster. "
    "Its 95 % interval is a percentile bootstrap over rounds. Won: the interval lies above 1; lost: below; tied: it "
    "holds 1, and the measurement cannot tell the two apart. Of shapes that are equal, about one in twenty is called "
    "won or lost by chance; nothing is corrected for looking at many shapes."
)
_FLOOR = (
    f"by the floor of a shape, the slowest of {SUSTAINED.tensor_flops / 1e12:.0f} TFLOP/s, "
    f"{SUSTAINED.hbm_bytes / 1e12:.1f} TB/s of device memory, L2 traffic and one launch ({SUSTAINED.launch_us:g} us), "
    "each taken alone. Numbers under a class: won / tied / lost. Tiny shapes may pass 100 % of the floor: launches "
    "that overlap cost less than the launch the floor counts."
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
    rounds = _span([str(count) for count in sorted({len(row.times_us) for row in shards.measurements if row.ok})])
    return (
        f"C = A B, fp16 in and out, {len(shapes)} shapes, measured {span}. Protocol v{protocol} (docs/protocol.md): "
        f"results checked before and after timing; all contestants of a shape interleaved in {rounds or 'no'} shuffled "
        "rounds; CUDA graphs over rotating buffers that outsize the L2; N(0,1) data; clocks free and logged."
    )


def _span(values: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys((values[0], values[-1]))) if values else ""


def notes(found: Sequence[Board]) -> list[str]:
    """One note each, its subject before a colon."""
    server = any(board.key.startswith("server/") for board in found)
    host = "on the server leaderboards." if server else "not measured here: server mode is missing."
    absent = sorted({baseline_title(name) for board in found for name in board.absent})
    texts = [
        f"Ratio and ties: {_TIES}",
        "Total time: the baseline's time summed over the shapes, over ours; the largest shapes dominate it.",
        f"Classes: {_FLOOR}",
        "Layouts: ours takes B as column B says, tn for [N,K], nn for [K,N]; cuBLAS and cuBLASLt are measured with B "
        "in both layouts and the faster one counts; torch.matmul takes B as ours does.",
        f"Choice: ours is the best of at most {_most_entered(found)} configurations that entered a final; a library is "
        "the better of its layouts. Both are chosen by the rounds that are reported, so both are slightly flattered.",
        f"PDL: {_PDL}",
        "Two clocks: every time here is device time between events. Host time, from submission to completion as a "
        f"caller sees it, is {host}",
    ]
    if found:
        texts.append(f"GPU clocks: free, not locked; {_clocks(found)}.")
    if absent:
        texts.append(f"Not measured: {', '.join(absent)} have no figures on at least one leaderboard here.")
    return texts


def _most_entered(found: Sequence[Board]) -> int:
    counts = (sum(row.config is not None for row in final.rows) for board in found for final in board.finals)
    return max(counts, default=0)


def _clocks(found: Sequence[Board]) -> str:
    rows = [final.rows[0] for board in found for final in board.finals]
    mhz = [row.sm_clock_mhz for row in rows if row.sm_clock_mhz is not None]
    watts = [row.power_w for row in rows if row.power_w is not None]
    if len(mhz) < len(rows) or len(watts) < len(rows):
        return "they were not recorded for every shape"
    held = sum(bool((row.throttle or 0) & ~_IDLE) for row in rows)
    return (
        f"after the last round the SM clock was {min(mhz)} to {max(mhz)} MHz and the board drew {min(watts):.0f} to "
        f"{max(watts):.0f} W; in {held} of {len(rows)} finals something held the clock down (last columns below)"
    )


def held_by(row: Measurement) -> str:
    """What held the SM clock below its maximum after the last round, as NVML says."""
    if row.throttle is None:
        return "unknown"
    return ", ".join(name for bit, name in _THROTTLE.items() if row.throttle & bit) or "nothing"
