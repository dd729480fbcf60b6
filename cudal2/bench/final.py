"""The judge: our candidates and every baseline on one problem, checked first, then timed in shuffled rounds.

Controls who competes and what becomes of a failure; the device work is behind ``Arena``, so that the rules are tested
with contestants that cheat on purpose and need no GPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Protocol

from cudal2.bench.correctness import CheckResult
from cudal2.bench.rounds import RoundLimits, run_rounds
from cudal2.build.artifact import BuiltKernel
from cudal2.errors import first_line
from cudal2.problem import Problem
from cudal2.records.finals import REFERENCE, names_of
from cudal2.records.measurement import Measurement, Status
from cudal2.space.config import KernelConfig

#: What is kept of the clocks of every round, by the field of a measurement, and its unit in the record's text.
_CLOCK_UNITS = {"sm_clock_mhz": "MHz", "power_w": "W", "temperature_c": "C", "throttle": "throttle"}


@dataclass(frozen=True)
class Entrant:
    """One contestant as it enters.

    Attributes:
        label: Unique in the final; orders are drawn over labels.
        contestant: Name in records.
        detail: What exactly is run.
        call: What the arena binds to buffers.
        config: Ours only.
        built: Ours only.
        pdl: Ours only: whether launches carry the attribute; a library chooses by itself and counts for both columns.
    """

    label: str
    contestant: str
    detail: str
    call: Any = field(repr=False, default=None)
    config: KernelConfig | None = None
    built: BuiltKernel | None = None
    pdl: bool | None = None


@dataclass(frozen=True)
class Failure:
    """Why an entrant has no time."""

    status: Status
    reason: str


class Prepared(Protocol):
    """An entrant's captured launches."""

    @property
    def launches(self) -> int:
        """Launches per replay."""

    def time_us(self) -> float:
        """Microseconds per launch of one replay."""

    def recheck(self) -> CheckResult:
        """Whether one more replay still writes every output, and rightly."""

    def close(self) -> None:
        """Gives the launches back."""


class Arena(Protocol):
    """The device, as the judge needs it."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What a contestant that cannot run raises; anything else is our own failure."""

    def check(self, entrant: Entrant) -> CheckResult:
        """Runs it on the check data."""

    def prepare(self, entrant: Entrant) -> Prepared:
        """Captures launches of at least the settings' replay time."""

    def too_fast(self, time_us: float) -> str:
        """Why a time cannot be believed; empty if it can."""

    def clocks(self) -> Mapping[str, Any]:
        """Clocks, power, temperature, throttle bits, as far as they can be read."""


def contest(problem: Problem, entrants: Sequence[Entrant], arena: Arena, limits: RoundLimits) -> list[Measurement]:
    """Judges the entrants; one row per entrant and PDL column it counts for, failures included.

    Args:
        problem: What is computed.
        entrants: Everyone, with unique labels.
        arena: Where.
        limits: How long, and the seed of the orders.
    """
    started = time.monotonic()
    ledger = _Ledger()
    prepared: dict[str, Prepared] = {}
    try:
        for entrant in entrants:
            admitted = _admit(entrant, arena, ledger)
            if admitted is not None:
                prepared[entrant.label] = admitted
        if prepared:
            timed = {label: launches.time_us for label, launches in prepared.items()}
            ledger.times, ledger.clocks = run_rounds(timed, limits, arena.clocks)
        for label, launches in prepared.items():
            _inspect(label, launches, arena, ledger)
    finally:
        for launches in prepared.values():
            launches.close()
    common = {
        "problem": problem,
        "bench_s": (time.monotonic() - started) / max(1, len(entrants)),
        "utc": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        **ledger.last_clocks(),
    }
    reference = _reference_times(entrants, ledger)
    return [
        _row(entrant, ledger, {**common, "pdl": pdl, "ref_times_us": reference})
        for pdl in _columns(entrants)
        for entrant in entrants
        if entrant.pdl is None or entrant.pdl == pdl
    ]


@dataclass
class _Ledger:
    """What has happened so far, by label."""

    failures: dict[str, Failure] = field(default_factory=dict)
    errors: dict[str, float | None] = field(default_factory=dict)
    launches: dict[str, int] = field(default_factory=dict)
    times: dict[str, list[float]] = field(default_factory=dict)
    clocks: list[Mapping[str, Any]] = field(default_factory=list)

    def good_times(self, label: str) -> tuple[float, ...]:
        """Times that count."""
        return () if label in self.failures else tuple(self.times.get(label, ()))

    def last_clocks(self) -> dict[str, Any]:
        """Clocks after the last round, under their names in records."""
        return {name: value for name, value in (self.clocks[-1] if self.clocks else {}).items() if name in _CLOCK_UNITS}

    def rounds_text(self) -> str:
        """Clocks of every round, for the record's free text."""
        rows = (
            "/".join(str(sample[name]) for sample in self.clocks) + _CLOCK_UNITS[name] for name in self.last_clocks()
        )
        return " ".join(rows)


def _admit(entrant: Entrant, arena: Arena, ledger: _Ledger) -> Prepared | None:
    """Checks, then captures; no time is ever taken of a wrong result."""
    try:
        checked = arena.check(entrant)
        ledger.errors[entrant.label] = checked.max_error
        if not checked.ok:
            ledger.failures[entrant.label] = Failure(Status.CORRECTNESS, checked.reason)
            return None
        prepared = arena.prepare(entrant)
    except arena.errors as error:
        ledger.failures[entrant.label] = Failure(Status.LAUNCH, first_line(error))
        return None
    ledger.launches[entrant.label] = prepared.launches
    return prepared


def _inspect(label: str, launches: Prepared, arena: Arena, ledger: _Ledger) -> None:
    """What only shows after timing: results that went wrong on the way, times that cannot be."""
    try:
        rechecked = launches.recheck()
    except arena.errors as error:
        ledger.failures[label] = Failure(Status.RUNTIME, first_line(error))
        return
    if not rechecked.ok:
        ledger.failures[label] = Failure(Status.CORRECTNESS, rechecked.reason)
        return
    reason = arena.too_fast(min(ledger.times[label]))
    if reason:
        ledger.failures[label] = Failure(Status.QUARANTINED, reason)


def _columns(entrants: Sequence[Entrant]) -> list[bool]:
    """PDL columns that something competes in; baselines alone make the column without."""
    return sorted({entrant.pdl for entrant in entrants if entrant.pdl is not None}) or [False]


def _reference_times(entrants: Sequence[Entrant], ledger: _Ledger) -> tuple[float, ...]:
    """Times of the better cuBLASLt-AutoTuning layout."""
    rows = [ledger.good_times(entrant.label) for entrant in entrants if entrant.contestant in names_of(REFERENCE)]
    return min((row for row in rows if row), key=statistics.median, default=())


def _row(entrant: Entrant, ledger: _Ledger, common: dict[str, Any]) -> Measurement:
    label, built = entrant.label, entrant.built
    failure = ledger.failures.get(label)
    if failure is not None:
        common = {**common, "ref_times_us": ()}
    return Measurement(
        **common,
        contestant=entrant.contestant,
        config=entrant.config,
        status=failure.status if failure else Status.CORRECT,
        reason=failure.reason if failure else "",
        times_us=ledger.good_times(label),
        launches=ledger.launches.get(label, 0),
        max_error=ledger.errors.get(label),
        registers=built.registers if built else None,
        spill_bytes=built.spill_bytes if built else None,
        smem_bytes=built.smem_bytes if built else None,
        detail="; ".join(part for part in (entrant.detail, ledger.rounds_text()) if part),
    )
