"""Server mode on one shape: every contestant serves the same arrivals, in shuffled blocks, from one native client.

Each is checked first through the very path that is timed, and what its requests wrote is looked at afterwards.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudal2.bench.baselines.baseline import BothLayouts, LibraryCall
from cudal2.bench.baselines.libraries import VendorLibraries, library_errors
from cudal2.bench.context import ProblemContext
from cudal2.bench.correctness import check_sample
from cudal2.bench.judge.arena import DeviceArena, RefusedError, baseline_entrants, our_entrants, refusals, tune
from cudal2.bench.judge.final import Entrant, Failure
from cudal2.bench.native import Operands, Submitter, kernel_submitter, library_submitter
from cudal2.bench.rounds import shuffled_order
from cudal2.bench.server.client import NativeClient, Served, python_submitter
from cudal2.bench.server.device import ServerDevice
from cudal2.bench.server.traffic import Traffic
from cudal2.bench.worker import Worker
from cudal2.build.artifact import BuiltKernel
from cudal2.errors import first_line
from cudal2.problem import Layout, Problem
from cudal2.records.latency import EMPTY, Latency
from cudal2.records.measurement import State, Status
from cudal2.settings import BenchSettings
from cudal2.space.config import KernelConfig

_SETUP_DEADLINE_S = 240.0
#: Contestants besides ours, to plan by: three libraries in two layouts, torch, the empty launch, and room for more.
_OTHERS = 12
#: Requests before a block that do not count: the host's caches have forgotten the contestant's code.
_WARMUP_REQUESTS = 5

Candidates = tuple[tuple[KernelConfig, BuiltKernel], ...]


@dataclass(frozen=True)
class ServerRequest:
    """What to serve.

    Attributes:
        problem: What is computed.
        candidates: Configurations of ours and their cubins; they launch without PDL, which means nothing alone.
        settings: Seed, workspace, L2 policy.
        traffic: Arrivals.
        client: ``native.c``, compiled.
    """

    problem: Problem
    candidates: Candidates
    settings: BenchSettings
    traffic: Traffic
    client: Path

    @property
    def deadline_s(self) -> float:
        """After which something hangs."""
        return _SETUP_DEADLINE_S + 3.0 * self.traffic.expected_s(self.problem, len(self.candidates) + _OTHERS)


def run_server(worker: Worker, request: ServerRequest) -> list[Latency]:
    """Serves one shape; every contestant's row in every state, failures included.

    Raises:
        WorkerError: The child died, hung, or lost its context; nothing of this serving is kept.
    """
    rows: list[Latency] = worker.call(serve, request, deadline_s=request.deadline_s)
    return rows


def serve(session: Any, request: ServerRequest) -> list[Latency]:
    """Job: serves one shape in the child that owns the GPU."""
    settings = request.settings
    context = session.context(request.problem, settings, settings.replay_ms)
    arena = DeviceArena(context, session.clocks, session.kernel, settings.replay_ms)
    libraries = VendorLibraries(request.problem, session.device, settings.workspace_bytes, settings.heuristic_results)
    with libraries, ServerDevice(request.client, context, session.info.l2_bytes) as device:
        entrants = [
            Entrant(EMPTY, EMPTY, "a kernel that returns at once"),
            *our_entrants(request.candidates, (False,)),
            *baseline_entrants(request.problem, libraries, tune(arena, libraries)),
        ]
        return _Service(request, arena, device, session).run(entrants)


@dataclass
class _Tally:
    """What one contestant did in one state."""

    served: list[Served] = field(default_factory=list)
    device_us: list[NDArray[np.float64]] = field(default_factory=list)


class _Launched:
    """A contestant as the checks launch it: by the client, like every request."""

    def __init__(self, client: NativeClient, submitter: Submitter, entrant: Entrant) -> None:
        self.name, self.detail = entrant.contestant, entrant.detail
        self._client, self._submitter = client, submitter

    def launch(self, set_index: int, stream: int) -> None:
        """Enqueues one product."""
        self._client.submit(self._submitter, set_index)


class _Service:
    """One shape's contestants on one device, from the checks to the rows."""

    def __init__(self, request: ServerRequest, arena: DeviceArena, device: ServerDevice, session: Any) -> None:
        self._request, self._traffic = request, request.traffic
        self._arena, self._device, self._session = arena, device, session
        self._context: ProblemContext = arena.context
        self._checked = BothLayouts(self._context.checks.sets)
        self._submitters: dict[str, Submitter] = {}
        self._failures: dict[str, Failure] = {}
        self._errors: dict[str, float | None] = {}
        self._tallies: dict[tuple[State, str], _Tally] = defaultdict(_Tally)
        self._clocks: dict[State, list[Any]] = {}
        self._utc: dict[State, str] = {}

    def run(self, entrants: Sequence[Entrant]) -> list[Latency]:
        """Checks everyone, then serves state after state."""
        started = time.monotonic()
        for entrant in entrants:
            self._admit(entrant)
        requests = self._traffic.requests(self._request.problem, len(self._submitters))
        for state in self._traffic.states:
            sets = self._device.enter(state)
            self._warm_up(requests, sets)
            self._serve(state, requests, sets)
            self._time(state, self._traffic.device_requests(requests), sets)
            self._utc[state] = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        each_s = (time.monotonic() - started) / max(1, len(entrants) * len(self._traffic.states))
        return [self._row(entrant, state, each_s) for state in self._traffic.states for entrant in entrants]

    def _admit(self, entrant: Entrant) -> None:
        """Through the client's own submission, from poisoned outputs: no time is ever taken of a wrong result."""
        label = entrant.label
        try:
            with refusals(label):
                submitter = self._submitter(entrant, self._arena.buffers)
                if label != EMPTY:
                    checked = _Launched(self._device.client, self._submitter(entrant, self._checked), entrant)
                    result = self._context.checks.run(checked, self._device.stream)
                    self._errors[label] = result.max_error
                    if not result.ok:
                        self._failures[label] = Failure(Status.CORRECTNESS, result.reason)
                        return
        except RefusedError as error:
            self._failures[label] = Failure(Status.LAUNCH, first_line(error))
            return
        self._submitters[label] = submitter

    def _submitter(self, entrant: Entrant, buffers: BothLayouts) -> Submitter:
        call, stream = entrant.call, self._device.stream
        if entrant.config is not None and entrant.built is not None:
            kernel = self._session.kernel(entrant.built, entrant.config)
            launch = kernel.on(entrant.config, self._request.problem, self._session.info.sm_count)
            return kernel_submitter(launch, stream, self._operands(buffers))
        if entrant.label == EMPTY:
            return self._device.empty(self._operands(buffers))
        bound = call.on(buffers)
        # From Python once: that gives cuBLAS' handle its stream, and loads kernels, which a shut gate would block.
        bound.launch(0, stream)
        if isinstance(call, LibraryCall) and call.arguments is not None:
            return library_submitter(call.arguments, self._operands(buffers, call.layout))
        refusing = (*library_errors(), RuntimeError)
        return python_submitter(lambda index: bound.launch(index, stream), refusing, self._operands(buffers))

    def _operands(self, buffers: BothLayouts, layout: Layout | None = None) -> Operands:
        return buffers.operands(layout or self._request.problem.layout)

    def _order(self, index: int, warmup: bool = False) -> list[str]:
        names = sorted(set(self._submitters) - set(self._failures))
        return shuffled_order(names, self._traffic.seed, index, warmup)

    def _warm_up(self, requests: int, sets: int) -> None:
        """At least one round of the shortest block; as many as ``warmup_s`` takes before the first state."""
        started, index = time.monotonic(), 0
        limit_s = 0.0 if self._utc else self._traffic.warmup_s
        while index == 0 or time.monotonic() - started < limit_s:
            for label in self._order(index, warmup=True):
                with self._failing(label):
                    arrivals = self._traffic.arrivals_us(index, min(requests, _WARMUP_REQUESTS))
                    self._device.client.serve(self._submitters[label], arrivals, sets)
            index += 1

    def _serve(self, state: State, requests: int, sets: int) -> None:
        self._clocks[state] = []
        for block in range(self._traffic.blocks):
            arrivals = self._traffic.arrivals_us(block, requests)
            for label in self._order(block):
                with self._failing(label):
                    self._make_ready(state, label, sets)
                    served = self._device.client.serve(self._submitters[label], arrivals, sets)
                    self._device.settle()
                    self._tallies[state, label].served.append(served)
                    self._look_at(label, min(requests, sets), last=block == self._traffic.blocks - 1)
            self._clocks[state].append(self._session.clocks.sample())

    def _time(self, state: State, requests: int, sets: int) -> None:
        for block in range(self._traffic.blocks):
            arrivals = self._traffic.arrivals_us(block, requests)
            for label in self._order(self._traffic.blocks + block):
                with self._failing(label):
                    self._make_ready(state, label, sets)
                    times = self._device.client.device_us(self._submitters[label], arrivals, sets)
                    self._tallies[state, label].device_us.append(times)
        for label in self._order(0):
            times = np.concatenate(self._tallies[state, label].device_us)
            reason = self._arena.too_fast(float(np.median(times))) if label != EMPTY else ""
            if reason:
                self._failures[label] = Failure(Status.QUARANTINED, reason)

    def _make_ready(self, state: State, label: str, sets: int) -> None:
        """Poisons the outputs; in the warm state only those in use, so that they and the operands stay in the L2."""
        buffers = self._context.sets
        warm = state == "warm"
        if not warm:
            buffers.poison()
        at_once = np.zeros(2 * sets if warm else _WARMUP_REQUESTS)
        self._device.client.serve(self._submitters[label], at_once, sets)
        for index in range(sets if warm else min(sets, _WARMUP_REQUESTS)):
            buffers.c(index).fill_(math.nan)
        self._device.settle()

    def _look_at(self, label: str, used: int, last: bool) -> None:
        """Every C of a block must be written; rows of one of them, in the last block, right."""
        if label == EMPTY:
            return
        unwritten = self._context.sets.unwritten(used)
        if unwritten:
            reason = f"after serving, {unwritten} of {used} outputs hold NaN or were not written"
            self._failures[label] = Failure(Status.CORRECTNESS, reason)
        elif last:
            sample = check_sample(self._context.sets, self._traffic.seed % used, self._traffic.seed)
            if not sample.ok:
                self._failures[label] = Failure(Status.CORRECTNESS, sample.reason)

    @contextmanager
    def _failing(self, label: str) -> Iterator[None]:
        """Turns what a contestant raises while it serves into its failure."""
        try:
            with refusals(label):
                yield
        except RefusedError as error:
            self._failures[label] = Failure(Status.RUNTIME, first_line(error))

    def _row(self, entrant: Entrant, state: State, bench_s: float) -> Latency:
        label, failure = entrant.label, self._failures.get(entrant.label)
        tally = self._tallies[state, label] if failure is None else _Tally()
        submitter = self._submitters.get(label)
        called = "called from Python" if submitter and not isinstance(submitter.submit, str) else ""
        return Latency(
            problem=self._request.problem,
            contestant=entrant.contestant,
            config=entrant.config,
            state=state,
            target_qps=self._traffic.target_qps,
            seed=self._traffic.seed,
            status=failure.status if failure else Status.CORRECT,
            reason=failure.reason if failure else "",
            latency_us=_rounded(served.latency_us for served in tally.served),
            queue_us=_rounded(served.queue_us for served in tally.served),
            host_us=tuple(round(float(np.median(served.host_us)), 2) for served in tally.served),
            device_us=_rounded(tally.device_us),
            unflushed=sum(served.unflushed for served in tally.served),
            max_error=self._errors.get(label),
            bench_s=round(bench_s, 3),
            utc=self._utc[state],
            detail="; ".join(part for part in (entrant.detail, called) if part),
            **_clock_rows(self._clocks[state]),
        )


def _rounded(blocks: Iterable[NDArray[np.float64]]) -> tuple[tuple[float, ...], ...]:
    """To 0.01 us: finer than the clocks, and short on disk."""
    return tuple(tuple(float(value) for value in np.round(block, 2)) for block in blocks)


def _clock_rows(samples: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
    """By field of the record; a field that NVML did not know even once is left out."""
    rows = {
        name: tuple(getattr(sample, name) for sample in samples)
        for name in ("sm_clock_mhz", "power_w", "temperature_c", "throttle")
    }
    return {name: row for name, row in rows.items() if None not in row}
