"""What the chip did while a final was timed: SM clock and throttle reasons of its rounds, as NVML gave them."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from cudal2.records.finals import Final
from cudal2.records.measurement import Measurement

#: NVML's reasons for a clock below its maximum, by bit.
THROTTLE = {
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}
_IDLE = 0x1
#: Samples of every round in a row's free text, joined by slashes.
_ROUNDS = {"mhz": r"(?<![\d./])([\d/]+)MHz", "bits": r"(?<![\d./])([\d/]+)throttle"}


@dataclass(frozen=True)
class Clocks:
    """Samples over rounds, one each.

    Attributes:
        mhz: SM clock after each round.
        bits: NVML's throttle reasons after each round; as many, or none where they are unknown.
    """

    mhz: tuple[int, ...]
    bits: tuple[int, ...]

    @property
    def median_mhz(self) -> float | None:
        """Median SM clock; ``None`` if unknown."""
        return statistics.median(self.mhz) if self.mhz else None

    @property
    def held_share(self) -> float | None:
        """Share of rounds in which something held the clock down; ``None`` if unknown."""
        return sum(bool(bits & ~_IDLE) for bits in self.bits) / len(self.bits) if self.bits else None

    @property
    def held_by(self) -> str:
        """What held it, most frequent first, with the share of rounds."""
        if not self.bits:
            return "unknown"
        found = Counter(name for bits in self.bits for bit, name in THROTTLE.items() if bits & bit)
        return ", ".join(f"{name} {count / len(self.bits):.0%}" for name, count in found.most_common()) or "nothing"


def clocks_of(final: Final) -> Clocks:
    """The rounds of one final; where only the last round was recorded, that one."""
    rows = [row for row in final.rows if row.ok]
    return pooled(_of_row(row) for row in rows[:1])


def pooled(several: Iterable[Clocks]) -> Clocks:
    """The samples of several finals together."""
    several = list(several)
    return Clocks(tuple(mhz for one in several for mhz in one.mhz), tuple(bit for one in several for bit in one.bits))


def _of_row(row: Measurement) -> Clocks:
    mhz, bits = (_samples(pattern, row.detail) for pattern in _ROUNDS.values())
    if not mhz and row.sm_clock_mhz is not None:
        mhz = (row.sm_clock_mhz,)
    if not bits and row.throttle is not None:
        bits = (row.throttle,)
    return Clocks(mhz, bits)


def _samples(pattern: str, text: str) -> tuple[int, ...]:
    return tuple(int(value) for group in re.findall(pattern, text) for value in group.split("/") if value)
