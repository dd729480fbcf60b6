"""What runs in the worker's child: one CUDA context with its streams, caches and problems, and the jobs it answers.

The parent passes plain frozen values in and gets them back; tensors never cross.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

import torch

from cudal2.bench.candidate import KernelContestant
from cudal2.bench.context import ProblemContext
from cudal2.bench.correctness import Aftermath, CheckResult
from cudal2.bench.device import Clocks, DeviceInfo, describe, wake_nvml
from cudal2.bench.sizing import LateGraph
from cudal2.bench.timing import Rough, Timed, interleave, keep_busy, soak_s, too_fast
from cudal2.build.artifact import BuiltKernel
from cudal2.errors import EnvironmentProblemError
from cudal2.launch.driver import LaunchError, context_fault, ensure_context
from cudal2.launch.kernel import LoadedKernel
from cudal2.launch.workspace import Workspaces
from cudal2.problem import Problem
from cudal2.records.measurement import Measurement, Status
from cudal2.settings import BenchSettings
from cudal2.space.config import KernelConfig

#: Share of device memory that problems waiting for more candidates may keep.
_CONTEXT_SHARE = 0.4
#: As many as a bank of kernels for all shapes holds.
_KERNELS_KEPT = 512
#: Of a candidate: for what is checked, and for what is timed.
_WORKSPACES_EACH = 2
#: The oldest clocks that a search step may carry; clocks, power and temperature change more slowly.
_CLOCKS_AGE_S = 0.2


@dataclass(frozen=True)
class Candidate:
    """One thing to measure.

    Attributes:
        problem: What it must compute.
        config: The configuration.
        built: Its cubin.
        pdl: Whether its launches carry the programmatic-dependent-launch attribute.
    """

    problem: Problem
    config: KernelConfig
    built: BuiltKernel
    pdl: bool = False

    def row(self, status: Status, reason: str = "", **values: Any) -> Measurement:
        """A measurement of this candidate."""
        return Measurement(
            problem=self.problem,
            contestant=self.config.family,
            config=self.config,
            status=status,
            reason=reason,
            pdl=self.pdl,
            registers=self.built.registers,
            spill_bytes=self.built.spill_bytes,
            smem_bytes=self.built.smem_bytes,
            compile_s=self.built.compile_s,
            utc=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            **values,
        )


@dataclass(frozen=True)
class Prepared:
    """What a problem came with.

    Attributes:
        reference_us: cuBLASLt-AutoTuning alone; ``None`` if no reference was asked for.
        reference: Which algorithm that is.
        reference_launches: Launches of its replays.
    """

    reference_us: float | None = None
    reference: str = ""
    reference_launches: int = 0


@dataclass(frozen=True)
class _Step:
    """A candidate bound to a problem's buffers."""

    candidate: Candidate
    context: ProblemContext
    check: KernelContestant
    graph: LateGraph


@dataclass(frozen=True)
class _Checking:
    """A candidate's check under way: what says how long its last launch took, and what waits for the verdict."""

    step: _Step
    roughly: Rough
    result: Callable[[], CheckResult]


class GpuSession:
    """The child's state on one GPU.

    Args:
        device_index: Index among the GPUs this process sees.

    Raises:
        EnvironmentProblemError: There is no such GPU.
    """

    def __init__(self, device_index: int) -> None:
        """Creates the CUDA context; everything runs on one stream, which is made torch's current one."""
        with ThreadPoolExecutor(1) as beside:
            beside.submit(wake_nvml)
            if not torch.cuda.is_available() or device_index >= torch.cuda.device_count():
                raise EnvironmentProblemError(f"torch sees no CUDA GPU number {device_index}")
            torch.cuda.set_device(device_index)
            ensure_context(device_index)
        self.device = torch.device("cuda", device_index)
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        torch.cuda.set_stream(self._stream)
        self._workspaces = Workspaces(int(self._stream.cuda_stream))
        torch.backends.cuda.matmul.allow_tf32 = False  # reference answers are fp32 or better
        self.info: DeviceInfo = describe(device_index)
        self.clocks = Clocks(device_index)
        self._contexts: OrderedDict[tuple[Problem, BenchSettings, float], ProblemContext] = OrderedDict()
        self._kernels: OrderedDict[str, LoadedKernel] = OrderedDict()
        self._spent: list[LateGraph] = []
        self._ahead: _Step | None = None
        self._checking: _Checking | None = None
        #: What a job leaves for a later one.
        self.kept: dict[Any, Any] = {}

    def fault(self) -> str | None:
        """The CUDA error that made the context useless, if any."""
        return context_fault()

    def context(self, problem: Problem, settings: BenchSettings, replay_ms: float | None = None) -> ProblemContext:
        """The problem's buffers and answers; the least recently used problems make room."""
        key = (problem, settings, replay_ms or settings.replay_ms)
        context = self._contexts.pop(key, None)
        if context is None:
            self._make_room(self.info.memory_bytes * _CONTEXT_SHARE)
            # Not tried again within: the error's frames hold what was allocated.
            with contextlib.suppress(torch.OutOfMemoryError):
                context = self._new_context(*key)
        if context is None:
            self._make_room(0)
            self._give_back_spent()
            gc.collect()
            context = self._new_context(*key)
        self._contexts[key] = context
        return context

    def kernel(self, built: BuiltKernel, config: KernelConfig) -> LoadedKernel:
        """The cubin, loaded; the least recently used are unloaded."""
        key = str(built.cubin_path)
        kernel = self._kernels.pop(key, None)
        if kernel is None:
            kernel = LoadedKernel(built, config)
            if len(self._kernels) >= _KERNELS_KEPT:
                torch.cuda.synchronize(self.device)
                self._kernels.popitem(last=False)[1].close()
        self._kernels[key] = kernel
        return kernel

    def prepare(self, problem: Problem, settings: BenchSettings, reference: bool) -> Prepared:
        """Brings a problem up, and tunes the reference if one is wanted."""
        context = self.context(problem, settings)
        if not reference:
            return Prepared()
        tuned = context.reference()
        return Prepared(tuned.median_us, tuned.detail, tuned.graph.launches)

    def measure(
        self, candidate: Candidate, settings: BenchSettings, reference: bool, upcoming: Sequence[Candidate] = ()
    ) -> Measurement:
        """Checks one candidate, times it beside the reference, checks what the timed launches wrote.

        Whatever the host can do while the device replays is done then: the candidate's graph is captured during the
        first replay of the reference; during the others the first of the ``upcoming`` candidates, which the step before
        has loaded, is bound and its short graph captured, and the cubin of the second loaded. Its check begins when all
        of this candidate's is on the host, where nothing that it does can change it. A problem that heats the chip is
        replayed untimed before that: cool, candidates rank otherwise than in a final.
        """
        started = time.perf_counter()
        step = self._step(self.context(candidate.problem, settings), candidate)
        try:
            status, reason, values = self._measured(step, reference, upcoming)
        finally:
            self._spent.append(step.graph)  # given back while the next one's replays run
        load_s = soak_s(candidate.problem, settings)
        return candidate.row(
            status,
            reason,
            bench_s=time.perf_counter() - started,
            detail=f"after {load_s:g} s under load" if load_s and "launches" in values else "",
            **values,
        )

    def _measured(
        self, step: _Step, reference: bool, upcoming: Sequence[Candidate]
    ) -> tuple[Status, str, dict[str, Any]]:
        """What a row says besides: verdict, reason, and what was seen."""
        context, graph = step.context, step.graph
        checking, self._checking = self._checking, None
        if checking is None or checking.step is not step:
            checking = self._begin_check(step)
        checked = checking.result()
        if checked.stray:
            self._forget(context)  # it may have written anywhere: the answers are no longer to be trusted
        if not checked.ok:
            return Status.CORRECTNESS, checked.reason, {"max_error": checked.max_error}
        graph.start(checking.roughly.time_us())
        # The check has run the kernel, and the middle one of the replays counts: no run of the graph is given away.
        times, after = self._replay(step, reference, upcoming)
        status, reason = _verdict(context, after, times[0])
        self._check_ahead()
        good = status is Status.CORRECT
        seen = {
            "times_us": times[0] if good else (),
            "ref_times_us": times[1] if good and reference else (),
            "launches": graph.timed.launches,
            "max_error": checked.max_error,
        }
        return status, reason, seen | asdict(self.clocks.recent(math.inf))

    def _replay(
        self, step: _Step, reference: bool, upcoming: Sequence[Candidate]
    ) -> tuple[list[tuple[float, ...]], CheckResult]:
        """Microseconds per launch of the candidate and of the reference if wanted; what the candidate's last left."""
        candidate, context, graph = step.candidate, step.context, step.graph
        settings = context.settings
        rng = random.Random(f"{settings.seed} {candidate.problem} {candidate.config.name}")
        looked: list[Aftermath] = []

        def meanwhile() -> None:
            used = graph.timed.sets_used
            looked.append(Aftermath(context.sets, used, rng.randrange(used), rng.randrange(2**31)))
            looked[0].look()
            self.clocks.recent(_CLOCKS_AGE_S)
            self._look_ahead(context, upcoming)

        timed: list[Timed] = [graph, *([context.reference().graph] if reference else [])]
        keep_busy(timed, soak_s(candidate.problem, settings))
        times = interleave(timed, settings.replays, rng, first=len(timed) - 1, last=0, meanwhile=meanwhile)
        return times, looked[0].result()

    def _begin_check(self, step: _Step) -> _Checking:
        roughly = step.context.stopwatch.rough(step.check)
        return _Checking(step, roughly, step.context.begin_check(roughly))

    def _check_ahead(self) -> None:
        """Begins the next step's check: a row takes as long to get to the caller as the check takes the device."""
        if self._ahead is not None:
            # It says why when it is its turn; torch raises a fault that shows at once, which is not this step's either.
            with contextlib.suppress(LaunchError, RuntimeError):
                self._checking = self._begin_check(self._ahead)

    def _step(self, context: ProblemContext, candidate: Candidate) -> _Step:
        """What was bound ahead, or is now."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return self._bind(context, candidate)
        if ahead.candidate == candidate and ahead.context is context:
            return ahead
        self._spent.append(ahead.graph)
        return self._bind(context, candidate)

    def _bind(self, context: ProblemContext, candidate: Candidate) -> _Step:
        kernel, config, pdl = self.kernel(candidate.built, candidate.config), candidate.config, candidate.pdl
        timed = context.candidate(kernel, config, pdl)
        graph = LateGraph(context.stopwatch, timed, context.settings.replay_ms, context.likely_us)
        return _Step(candidate, context, context.checked(kernel, config, pdl), graph)

    def _look_ahead(self, context: ProblemContext, upcoming: Sequence[Candidate]) -> None:
        """What the next steps would wait for: graphs are given back, the first is bound and the second loaded.

        Loading comes last: it waits for all that the device has to do.
        """
        self._give_back_spent()
        for candidate in upcoming[:1]:
            with contextlib.suppress(LaunchError):  # it says why when it is its turn
                if candidate.problem == context.problem and self._may_bind(context, candidate):
                    self._ahead = self._bind(context, candidate)
        for candidate in upcoming:
            with contextlib.suppress(LaunchError, OSError):
                self.kernel(candidate.built, candidate.config)

    def _give_back_spent(self) -> None:
        """Graphs of steps that are over, which know their problem's buffers."""
        while self._spent:
            self._spent.pop().close()

    def _may_bind(self, context: ProblemContext, candidate: Candidate) -> bool:
        """Whether it is loaded, and needs no new memory cleared, for which replays under way would make room.

        What others had before is cleared behind the replays.
        """
        kernel = self._kernels.get(str(candidate.built.cubin_path))
        if kernel is None:
            return False
        size_bytes = context.workspace_bytes(kernel, candidate.config)
        return not size_bytes or self._workspaces.spare(size_bytes) >= _WORKSPACES_EACH

    def _new_context(self, problem: Problem, settings: BenchSettings, replay_ms: float) -> ProblemContext:
        return ProblemContext(problem, settings, self.info, self.device, replay_ms, self._workspaces.take)

    def _forget(self, context: ProblemContext) -> None:
        for key in [key for key, kept in self._contexts.items() if kept is context]:
            del self._contexts[key]
        context.close()

    def _make_room(self, budget_bytes: float) -> None:
        while self._contexts and sum(context.bytes for context in self._contexts.values()) > budget_bytes:
            torch.cuda.synchronize(self.device)
            self._contexts.popitem(last=False)[1].close()


def _verdict(context: ProblemContext, checked: CheckResult, times_us: tuple[float, ...]) -> tuple[Status, str]:
    """What the outputs of the last timed replay and the times themselves say."""
    if not checked.ok:
        return Status.CORRECTNESS, checked.reason
    doubt = too_fast(context.problem, statistics.median(times_us), context.settings.quarantine_fraction)
    return (Status.QUARANTINED, doubt) if doubt else (Status.CORRECT, "")


def prepare(session: Any, problem: Problem, settings: BenchSettings, reference: bool) -> Prepared:
    """Job: :meth:`GpuSession.prepare`."""
    prepared: Prepared = session.prepare(problem, settings, reference)
    return prepared


def measure(
    session: Any, candidate: Candidate, settings: BenchSettings, reference: bool, upcoming: Sequence[Candidate]
) -> Measurement:
    """Job: :meth:`GpuSession.measure`."""
    measurement: Measurement = session.measure(candidate, settings, reference, upcoming)
    return measurement


def device_info(session: Any) -> DeviceInfo:
    """Job: what the GPU is."""
    info: DeviceInfo = session.info
    return info
