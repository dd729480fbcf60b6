"""A foreign kernel on one problem: checked, sized and replayed in its own process, on buffers that are ours.

Nothing it says is taken for true. Outputs are poisoned before and looked at right after it says "done"; operands change
in place from replay to replay; the judge's clock runs beside its own.
"""

from __future__ import annotations

import math
import secrets
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from cudal2.bench.correctness import CheckResult, Checks, check_sample
from cudal2.bench.foreign.memory import Platform, arena_of
from cudal2.bench.foreign.process import ForeignError, ForeignProcess, quoted
from cudal2.bench.inputs import BufferSets
from cudal2.bench.sizing import launches_for, split_launches
from cudal2.bench.timing import Finish
from cudal2.build.foreign import ForeignKernel
from cudal2.closing import Closing
from cudal2.problem import Problem
from cudal2.records.measurement import LEAST_US, MOST_US, Status
from cudal2.settings import BenchSettings

#: Its context, and torch where it needs that.
_START_DEADLINE_S = 120.0
#: What a stream is kept busy for before a checked launch: a launch elsewhere is long over by then.
_HOLD_MS = 2.0
_LEAK_CALLS, _LEAK_SECONDS = 1_000, 2.0
#: The driver hands memory out in blocks of 2 MiB; half of one tells growth from none.
_LEAK_BYTES = 2**20
#: Empty graphs, and launches in each, that tell what submission, wake-ups and context switches cost.
_IDLE_EXCHANGES, _IDLE_LAUNCHES = 9, 1_000
#: What the judge's clock may see beyond the reported time and an empty exchange, milliseconds and a share.
_CLOCK_SLACK_MS, _CLOCK_SLACK = 0.4, 0.01
#: Least length of a graph that a replay runs several times.
_GRAPH_MS = 2.0
_SIZING_MARGIN = 1.05
#: A single launch looks slower than one of many, so the number grows in steps; it stops growing where the judge's clock
#: has seen so many times what is wanted, whatever the other clock says.
_SIZING_STEP, _SIZING_OVERRUN = 100, 5.0
#: Launches that tell whether operands seen before are faster, pairs of runs, and how much faster is too much.
_CACHE_LAUNCHES, _CACHE_PAIRS, _CACHE_RATIO = 256, 3, 1.25
_SEED_BITS = 63


@dataclass(frozen=True)
class Replay:
    """One timed replay.

    Attributes:
        device_ms: What the kernel's process says it took.
        wall_ms: From the order to the answer on the judge's clock.
    """

    device_ms: float
    wall_ms: float


class _Watched:
    """A set whose operands are drawn where the foreign process cannot reach, and copied into it.

    Args:
        sets: The timed buffers.
        index: Which of them.
        generator: Source of the data.
    """

    def __init__(self, sets: BufferSets, index: int, generator: torch.Generator) -> None:
        self.index = index
        self._a, self._b = (
            torch.empty_like(shared).normal_(generator=generator) for shared in (sets.a(index), sets.b(index))
        )
        sets.a(index).copy_(self._a)
        sets.b(index).copy_(self._b)

    def changed(self, sets: BufferSets) -> str:
        """Which operands are not what they were; empty if both are."""
        pairs = (("A", sets.a(self.index), self._a), ("B", sets.b(self.index), self._b))
        return " and ".join(name for name, now, before in pairs if not torch.equal(now, before))


class ForeignTrial(Closing):
    """One foreign kernel on one problem; a context manager.

    Args:
        kernel: Its library.
        problem: What it must compute.
        settings: How it is measured.
        platform: Shared memory and the device.
        count: Buffer sets to rotate over.
    """

    def __init__(
        self, kernel: ForeignKernel, problem: Problem, settings: BenchSettings, platform: Platform, count: int
    ) -> None:
        self.kernel = kernel
        self.problem = problem
        self._settings = settings
        self._platform = platform
        self.sets = BufferSets(problem, count, platform.device, settings.seed, allocate=platform.empty)
        self._checks = Checks(problem, platform.device, settings.seed + 1, platform.empty)
        # Not from the settings: whoever can tell the operands and rows to come need not compute them.
        self._generator = torch.Generator(platform.device).manual_seed(secrets.randbits(_SEED_BITS))
        self._watched: _Watched
        self._process: ForeignProcess | None = None
        self.idle_ms = 0.0

    def close(self) -> None:
        """Ends the process; the platform may be closed then."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    @property
    def name(self) -> str:
        """Name in records."""
        return self.kernel.name

    @property
    def detail(self) -> str:
        """What it is."""
        return self.kernel.detail

    def check(self) -> CheckResult:
        """Right on data that changes in place, in one stream's order, without leaks or settings left behind.

        Raises:
            ForeignError: It cannot be run, or does what it must not.
        """
        self._start()
        seed, worst = self._settings.seed + 1, 0.0
        for step in range(3):
            if step == 1:
                self._checks.draw(seed + 1, swapped=True)
            elif step == 2:
                self._checks.flip(seed)
            checked = self._checks.run(self, 0)
            if not checked.ok:
                return replace(checked, reason=f"{checked.reason}{' (operands changed in place)' if step else ''}")
            worst = max(worst, checked.max_error or 0.0)
        self._refuse_leaks()
        self.refuse_settings()
        return CheckResult(True, worst)

    def launch(self, set_index: int, stream: int) -> None:
        """One call on the check data: behind a busy stream, then over a C poisoned in that stream."""
        self._platform.synchronize()
        self._ask("call", arena="check", index=set_index, hold_ms=_HOLD_MS)

    def prepare(self, replay_ms: float) -> ForeignPrepared:
        """Launches that take at least so long, captured if they can be.

        Raises:
            ForeignError: It cannot be run, or it answers from memory.
        """
        launches, time_us = self._size(replay_ms)
        self._refuse_remembered_answers()
        captured, repeats = split_launches(launches, launches_for(time_us, _GRAPH_MS), self.sets.count)
        why = self._capture(captured, repeats)
        self.replay(captured * repeats)
        return ForeignPrepared(self, captured * repeats, f"loop, host time included: {why}" if why else "graph")

    def replay(self, launches: int, fresh: bool = True) -> Replay:
        """One replay from poisoned outputs; every output is looked at as soon as it is said to be done.

        Args:
            launches: As captured.
            fresh: Whether operands are drawn anew first.

        Raises:
            ForeignError: It failed, or an output is missing or wrong.
        """
        used = min(launches, self.sets.count)
        self._renew(used, fresh)
        started = time.perf_counter()
        device_ms = self._ask("replay")
        wall_ms = (time.perf_counter() - started) * 1e3
        unwritten = self.sets.unwritten(used)
        if unwritten:
            reason = f"when it said it was done, {unwritten} of {used} outputs held NaN or were not written"
            raise ForeignError(Status.CORRECTNESS, reason)
        sample = check_sample(self.sets, self._watched.index, secrets.randbits(_SEED_BITS))
        if not sample.ok:
            raise ForeignError(Status.CORRECTNESS, sample.reason)
        changed = self._watched.changed(self.sets)
        if changed:
            raise ForeignError(Status.CORRECTNESS, f"while it was timed, it changed its input {changed}")
        if not isinstance(device_ms, float) or not LEAST_US <= device_ms * 1e3 <= MOST_US:
            raise ForeignError(Status.QUARANTINED, f"it reports a time of {quoted(device_ms)} ms")
        return Replay(device_ms, wall_ms)

    def refuse_settings(self) -> None:
        """Nothing about L2 may outlast a call, in its process or in ours.

        Raises:
            ForeignError: Something does.
        """
        left = self._ask("left_behind") or self._platform.left_behind()
        if left:
            raise ForeignError(Status.RUNTIME, f"it left {quoted(left)}")

    def _start(self) -> None:
        """A fresh process; what an exchange costs is measured before anything foreign is in it."""
        if self._process is not None:
            self._process.stop()
        platform, kernel = self._platform, self.kernel
        self._process = ForeignProcess(platform.command, platform.options, kernel.library.parent / "run.log")
        problem = self.problem
        self._ask(
            "open",
            arenas={
                "timing": arena_of(self.sets, platform.handle),
                "check": arena_of(self._checks.sets, platform.handle),
            },
            sizes=(problem.m, problem.n, problem.k),
            workspace_bytes=kernel.workspace_bytes,
        )
        self._ask("rehearse", launches=_IDLE_LAUNCHES)
        self.idle_ms = statistics.median(self._idle_ms() for _ in range(_IDLE_EXCHANGES))
        try:
            self._ask("load", library=str(kernel.library))
        except ForeignError as error:
            if error.answered:
                raise ForeignError(Status.COMPILE, f"the library does not load: {error}") from error
            raise

    def _idle_ms(self) -> float:
        self._renew(self.sets.count)
        started = time.perf_counter()
        device_ms = float(self._ask("replay"))
        return (time.perf_counter() - started) * 1e3 - device_ms

    def _renew(self, used: int, fresh: bool = True) -> None:
        """New operands, poisoned outputs; one of the first ``used`` sets is the one that is looked at."""
        if fresh:
            self.sets.draw(self._generator)
            self._watched = _Watched(self.sets, secrets.randbelow(used), self._generator)
        self.sets.poison()
        self._platform.synchronize()

    def _size(self, replay_ms: float) -> tuple[int, float]:
        """Launches whose replay takes at least so long, and the time of one in microseconds."""
        launches = 1
        while True:
            self._capture(launches)
            replay = self.replay(launches)
            time_us = replay.device_ms * 1e3 / launches
            if replay.device_ms >= replay_ms or replay.wall_ms - self.idle_ms > _SIZING_OVERRUN * replay_ms:
                return launches, time_us
            wanted = launches_for(time_us, _SIZING_MARGIN * replay_ms)
            launches = max(launches + 1, min(_SIZING_STEP * launches, wanted))

    def _capture(self, launches: int, repeats: int = 1) -> str:
        return quoted(self._ask("prepare", arena="timing", launches=launches, repeats=repeats))

    def _refuse_leaks(self) -> None:
        """Device memory before and after many calls, seen from here; twice, since others may allocate meanwhile."""
        self._ask("repeat", arena="check", calls=10, seconds=_LEAK_SECONDS)
        for _ in range(2):
            before = self._platform.free_bytes()
            calls = self._ask("repeat", arena="check", calls=_LEAK_CALLS, seconds=_LEAK_SECONDS)
            lost = before - self._platform.free_bytes()
            if lost < _LEAK_BYTES:
                return
        raise ForeignError(Status.RUNTIME, f"it leaks device memory: {lost / 2**20:.1f} MiB over {quoted(calls)} calls")

    def _refuse_remembered_answers(self) -> None:
        """Work on operands seen a moment ago must take as long as on new ones; twice, since times are noisy."""
        launches = min(self.sets.count, _CACHE_LAUNCHES)
        self._capture(launches)
        for _ in range(2):
            pairs = [(self.replay(launches), self.replay(launches, fresh=False)) for _ in range(_CACHE_PAIRS)]
            best_ms = [min(replay.device_ms for replay in column) for column in zip(*pairs, strict=True)]
            new, seen = (value * 1e3 / launches for value in best_ms)
            if new <= _CACHE_RATIO * seen:
                return
        reason = f"{new:.3f} us on new operands, {seen:.3f} us on operands it has seen: it remembers answers"
        raise ForeignError(Status.QUARANTINED, reason)

    def _ask(self, order: str, **arguments: Any) -> Any:
        assert self._process is not None
        starting = order in ("open", "load")
        return self._process.ask(order, _START_DEADLINE_S if starting else self._settings.deadline_s, **arguments)


class ForeignPrepared:
    """A foreign kernel's launches, ready to be timed in the rounds of a contest.

    Args:
        trial: What they run in.
        launches: Launches per replay.
        measure: How they are submitted.
    """

    def __init__(self, trial: ForeignTrial, launches: int, measure: str) -> None:
        self._trial = trial
        self.launches = launches
        self._measure = measure
        self._replays: list[Replay] = []
        self._failure: ForeignError | None = None

    @property
    def detail(self) -> str:
        """How it was measured, and what the judge's own clock says."""
        text = f"measure={self._measure}"
        if not self._replays:
            return text
        wall_ms = statistics.median(replay.wall_ms for replay in self._replays) - self._trial.idle_ms
        return f"{text}; {wall_ms * 1e3 / self.launches:.3f} us on the judge's clock"

    def begin(self) -> Finish:
        """One replay, run to its end."""
        time_us = self.time_us()
        return lambda: time_us

    def time_us(self) -> float:
        """Microseconds per launch of one replay; infinite once it has failed, which :meth:`recheck` raises."""
        if self._failure is None:
            try:
                self._replays.append(self._trial.replay(self.launches))
                return self._replays[-1].device_ms * 1e3 / self.launches
            except ForeignError as failure:
                self._failure = failure
        return math.inf

    def warm_up(self) -> None:
        """One whole replay: every one is looked at."""
        self.time_us()

    def begin_recheck(self) -> Callable[[], CheckResult]:
        """Nothing more runs: every replay has been looked at."""
        return self.recheck

    def recheck(self) -> CheckResult:
        """What came up in the rounds, and whether the two clocks agree.

        Raises:
            ForeignError: Something did, or they do not.
        """
        if self._failure is not None:
            raise self._failure
        doubt = self._clocks_disagree()
        if doubt:
            raise ForeignError(Status.QUARANTINED, doubt)
        self._trial.refuse_settings()
        return CheckResult(True)

    def close(self) -> None:
        """Nothing: the process goes with the trial."""

    def _clocks_disagree(self) -> str:
        if not self._replays:
            return "it was never replayed"
        device_ms = statistics.median(replay.device_ms for replay in self._replays)
        wall_ms = statistics.median(replay.wall_ms for replay in self._replays)
        beyond_ms = wall_ms - self._trial.idle_ms - device_ms
        slack_ms = _CLOCK_SLACK_MS + _CLOCK_SLACK * device_ms
        if device_ms <= wall_ms and beyond_ms <= slack_ms:
            return ""
        return (
            f"it reports {device_ms:.3f} ms for {self.launches} launches, the judge's clock saw {wall_ms:.3f} ms with "
            f"{self._trial.idle_ms:.3f} ms for the exchange"
        )
