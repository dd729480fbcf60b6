"""The judge: our candidates and every baseline on one problem, checked first, then timed in shuffled rounds.

Controls who competes, what becomes of a failure, and how the rounds of several processes make one figure; the device
work is behind ``Arena``, so that the rules are tested with contestants that cheat on purpose and need no GPU.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Protocol, runtime_checkable

from cudal2.bench.correctness import UNDER_WAY, CheckResult
from cudal2.bench.rounds import RoundLimits, run_rounds
from cudal2.bench.timing import Finish
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
    def detail(self) -> str:
        """What of the record's free text only the run can tell; empty for most."""

    @property
    def launches(self) -> int:
        """Launches per replay."""

    def begin(self) -> Finish:
        """Begins one replay; what it returns waits for the microseconds per launch."""

    def warm_up(self) -> None:
        """Runs some launches whose time does not count, a whole replay's at most; may lengthen the replays to come."""

    def begin_recheck(self) -> Callable[[], CheckResult]:
        """Begins one more replay; what it returns waits, and says whether it still wrote every output, and rightly.

        Only the latter raises what an arena calls an error.
        """

    def close(self) -> None:
        """Gives the launches back."""


@runtime_checkable
class Visitor(Protocol):
    """An entrant's ``call`` that brings its own process and buffers, and is judged there."""

    def check(self) -> CheckResult:
        """Whether it is right."""

    def prepare(self, replay_ms: float) -> Prepared:
        """Launches of at least so long a replay."""


class Arena(Protocol):
    """The device, as the judge needs it."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What a contestant that cannot run raises, with a ``status`` if it knows how that counts; all else is ours."""

    def check(self, entrant: Entrant) -> CheckResult:
        """Runs it on the check data."""

    def prepare(self, entrant: Entrant, time_us: float | None = None) -> Prepared:
        """Captures launches of at least the settings' replay time; ``time_us`` is one's, where that is known."""

    def too_fast(self, time_us: float) -> str:
        """Why a time cannot be believed; empty if it can."""

    def clocks(self) -> Mapping[str, Any]:
        """Clocks, power, temperature, throttle bits, as far as they can be read."""


@dataclass
class Contest:
    """What one process saw, by label; plain values, so that it can leave the process.

    Attributes:
        entrants: Everyone who entered, without what only this process could call.
        failures: Why an entrant has no time.
        errors: Largest error over its bound in the checks.
        launches: Launches per counted round.
        times: Microseconds per launch of every counted round, right or not.
        details: What the launches say of themselves.
        clocks: After each counted round.
        seconds: Wall time of it all.
        utc: ISO time at its end.
    """

    entrants: tuple[Entrant, ...]
    failures: dict[str, Failure] = field(default_factory=dict)
    errors: dict[str, float | None] = field(default_factory=dict)
    launches: dict[str, int] = field(default_factory=dict)
    times: dict[str, list[float]] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)
    clocks: list[Mapping[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    utc: str = ""

    def last_clocks(self) -> dict[str, Any]:
        """Clocks after the last round, under their names in records."""
        return {name: value for name, value in (self.clocks[-1] if self.clocks else {}).items() if name in _CLOCK_UNITS}

    def clocks_text(self) -> str:
        """Clocks of every round, for the record's free text."""
        rows = (
            "/".join(str(sample[name]) for sample in self.clocks) + _CLOCK_UNITS[name] for name in self.last_clocks()
        )
        return " ".join(rows)


@dataclass
class Entered:
    """Entrants that are checked and captured, ready for their rounds.

    Attributes:
        held: What was seen so far.
        visited: Whether one of them has a process of its own, which must find the device idle and leave it so.
        prepared: Everyone who is right, by label.
    """

    held: Contest
    visited: bool = False
    prepared: dict[str, Prepared] = field(default_factory=dict)

    def close(self) -> None:
        """Gives the launches back."""
        while self.prepared:
            self.prepared.popitem()[1].close()


def contest(entrants: Sequence[Entrant], arena: Arena, limits: RoundLimits) -> Contest:
    """Checks and times the entrants in this process.

    Args:
        entrants: Everyone, with unique labels.
        arena: Where.
        limits: How long, and the seed of the orders.
    """
    return hold(enter(entrants, arena), arena, limits)


def enter(entrants: Sequence[Entrant], arena: Arena, known_us: Mapping[str, float] | None = None) -> Entered:
    """Checks the entrants, then captures the launches of those who are right; nobody who has a known time is timed.

    One's graph runs once while the next one's is captured: a check in between would wait for it, as it must where an
    entrant has a process of its own.

    Args:
        entrants: Everyone, with unique labels.
        arena: Where.
        known_us: Microseconds per launch by label, for the lengths of replays.
    """
    started = time.monotonic()
    visited = any(isinstance(entrant.call, Visitor) for entrant in entrants)
    entered = Entered(Contest(tuple(dataclasses.replace(entrant, call=None) for entrant in entrants)), visited)
    try:
        right = (entrant for entrant in entrants if _is_right(entrant, arena, entered.held))
        for entrant in right if visited else list(right):
            prepared = _prepare(entrant, arena, entered.held, (known_us or {}).get(entrant.label))
            if prepared is not None:
                entered.prepared[entrant.label] = prepared
    except BaseException:
        entered.close()
        raise
    entered.held.seconds = time.monotonic() - started
    return entered


def hold(entered: Entered, arena: Arena, limits: RoundLimits) -> Contest:
    """Times who entered, looks at what they wrote, and gives their launches back.

    Args:
        entered: From :func:`enter`, on the same arena.
        arena: Where.
        limits: How long, and the seed of the orders.
    """
    started = time.monotonic()
    held, prepared = entered.held, entered.prepared
    try:
        if prepared:
            timed = {label: functools.partial(_begin, one, entered.visited) for label, one in prepared.items()}
            warmup = {label: functools.partial(_warm_up, one, limits.warmup_s > 0) for label, one in prepared.items()}
            held.times, held.clocks = run_rounds(timed, limits, arena.clocks, warmup=warmup)
        while prepared:
            begun = dict(itertools.islice(prepared.items(), UNDER_WAY))
            rechecks = {label: _begin_recheck(one, entered.visited) for label, one in begun.items()}
            for label, recheck in rechecks.items():
                _inspect(label, prepared[label], recheck, arena, held)
                prepared.pop(label).close()  # while those behind it are under way
        held.launches = {label: count * limits.parts for label, count in held.launches.items()}
    finally:
        entered.close()
    held.seconds += time.monotonic() - started
    held.utc = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    return held


def rows(problem: Problem, contests: Sequence[Contest]) -> list[Measurement]:
    """One row per entrant and PDL column it counts for, failures included; one who failed anywhere has no time.

    Args:
        problem: What was computed.
        contests: One per process, in order, all of the same entrants.
    """
    entrants = contests[0].entrants
    common = {
        "problem": problem,
        "bench_s": sum(held.seconds for held in contests) / max(1, len(entrants)),
        "utc": contests[-1].utc,
        **contests[-1].last_clocks(),
    }
    reference = _reference_times(contests)
    return [
        _row(entrant, contests, {**common, "pdl": pdl, "ref_times_us": reference})
        for pdl in _columns(entrants)
        for entrant in entrants
        if entrant.pdl is None or entrant.pdl == pdl
    ]


def _is_right(entrant: Entrant, arena: Arena, held: Contest) -> bool:
    """Checks; no time is ever taken of a wrong result."""
    try:
        checked = arena.check(entrant)
    except arena.errors as error:
        held.failures[entrant.label] = _failed(error, Status.LAUNCH)
        return False
    held.errors[entrant.label] = checked.max_error
    if not checked.ok:
        held.failures[entrant.label] = Failure(Status.CORRECTNESS, checked.reason)
    return checked.ok


def _prepare(entrant: Entrant, arena: Arena, held: Contest, known_us: float | None) -> Prepared | None:
    """Captures, and times where no time is known."""
    try:
        prepared = arena.prepare(entrant, known_us)
    except arena.errors as error:
        held.failures[entrant.label] = _failed(error, Status.LAUNCH)
        return None
    held.launches[entrant.label] = prepared.launches
    return prepared


def _warm_up(launches: Prepared, heat: bool) -> None:
    """Where nothing is to be heated, whole replays before those that count would only take time."""
    launches.warm_up()
    if heat:
        launches.begin()()


def _begin(launches: Prepared, alone: bool) -> Finish:
    """A replay under way, or over where nothing else may run beside it."""
    finish = launches.begin()
    if not alone:
        return finish
    time_us = finish()
    return lambda: time_us


def _begin_recheck(launches: Prepared, alone: bool) -> Callable[[], CheckResult]:
    """A recheck under way, or one that begins when it is asked for where nothing else may run beside it."""
    return (lambda: launches.begin_recheck()()) if alone else launches.begin_recheck()


def _inspect(label: str, launches: Prepared, recheck: Callable[[], CheckResult], arena: Arena, held: Contest) -> None:
    """What only shows after timing: results that went wrong on the way, times that cannot be."""
    held.details[label], held.launches[label] = launches.detail, launches.launches
    try:
        rechecked = recheck()
    except arena.errors as error:
        held.failures[label] = _failed(error, Status.RUNTIME)
        return
    if not rechecked.ok:
        held.failures[label] = Failure(Status.CORRECTNESS, rechecked.reason)
        return
    reason = arena.too_fast(min(held.times[label]))
    if reason:
        held.failures[label] = Failure(Status.QUARANTINED, reason)


def _failed(error: Exception, otherwise: Status) -> Failure:
    return Failure(getattr(error, "status", otherwise), first_line(error))


def _columns(entrants: Sequence[Entrant]) -> list[bool]:
    """PDL columns that something competes in; baselines alone make the column without."""
    return sorted({entrant.pdl for entrant in entrants if entrant.pdl is not None}) or [False]


def _failure(label: str, contests: Sequence[Contest]) -> Failure | None:
    """The first process's that had one; who is missing from a process has failed there."""
    for held in contests:
        if label in held.failures:
            return held.failures[label]
        if label not in held.times:
            return Failure(Status.LAUNCH, "it did not enter the rounds of every process")
    return None


def _good_times(label: str, contests: Sequence[Contest]) -> tuple[float, ...]:
    """Times that count, in order over all processes."""
    if _failure(label, contests) is not None:
        return ()
    return tuple(time_us for held in contests for time_us in held.times.get(label, ()))


def _reference_times(contests: Sequence[Contest]) -> tuple[float, ...]:
    """Times of the better cuBLASLt-AutoTuning layout."""
    entered = (entrant for entrant in contests[0].entrants if entrant.contestant in names_of(REFERENCE))
    times = [_good_times(entrant.label, contests) for entrant in entered]
    return min((row for row in times if row), key=statistics.median, default=())


def _row(entrant: Entrant, contests: Sequence[Contest], common: dict[str, Any]) -> Measurement:
    label, built = entrant.label, entrant.built
    failure, times = _failure(label, contests), _good_times(label, contests)
    if failure is not None:
        common = {**common, "ref_times_us": ()}
    errors = [error for held in contests if (error := held.errors.get(label)) is not None]
    return Measurement(
        **common,
        contestant=entrant.contestant,
        config=entrant.config,
        status=failure.status if failure else Status.CORRECT,
        reason=failure.reason if failure else "",
        times_us=times,
        process_rounds=tuple(len(held.times[label]) for held in contests) if times else (),
        launches=min((held.launches[label] for held in contests if label in held.launches), default=0),
        max_error=max(errors, default=None),
        registers=built.registers if built else None,
        spill_bytes=built.spill_bytes if built else None,
        smem_bytes=built.smem_bytes if built else None,
        detail="; ".join(part for part in (entrant.detail, *_told(label, contests)) if part),
    )


def _told(label: str, contests: Sequence[Contest]) -> list[str]:
    """Free text of each process: what the launches say, then the clocks."""
    return [text for held in contests for text in (held.details.get(label, ""), held.clocks_text())]
