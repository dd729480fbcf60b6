"""The judge's arena on a GPU: one problem's buffers, check data and stopwatch, and who may compete on them."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from cudal2.bench.baselines.autotune import AutoTuner, Exploration
from cudal2.bench.baselines.baseline import (
    LAYOUTS,
    Baseline,
    BothLayouts,
    LibraryCall,
    NotSupportedError,
    SavedCall,
    TorchMatmul,
)
from cudal2.bench.baselines.libraries import VendorLibraries, library_errors
from cudal2.bench.context import ProblemContext
from cudal2.bench.correctness import Aftermath, CheckResult
from cudal2.bench.device import Clocks
from cudal2.bench.foreign.process import ForeignError
from cudal2.bench.judge.final import Entrant, Prepared, Visitor
from cudal2.bench.sizing import sized_graph, sizing_us
from cudal2.bench.timing import Contestant, Finish, TimedGraph, soak_s, too_fast
from cudal2.build.artifact import BuiltKernel
from cudal2.errors import WorkerError
from cudal2.launch.driver import context_fault
from cudal2.launch.kernel import LoadedKernel
from cudal2.problem import Problem
from cudal2.space.config import KernelConfig

logger = logging.getLogger(__name__)

_TUNING_ROUNDS = 7
#: The oldest clocks a round may carry: NVML may take as long as a round of a selection, not as one of a final.
_CLOCKS_AGE_S = 0.1


class RefusedError(Exception):
    """A contestant that cannot run here; the CUDA context is unharmed."""


Load = Callable[[BuiltKernel, KernelConfig], LoadedKernel]


class DeviceArena:
    """One problem on one GPU.

    Args:
        context: Buffers, check data, stopwatch.
        clocks: Reads NVML.
        load: Loads a cubin, or knows it loaded.
        replay_ms: Device time of one replay, at least.
    """

    errors: tuple[type[Exception], ...] = (RefusedError, ForeignError)

    def __init__(self, context: ProblemContext, clocks: Clocks, load: Load, replay_ms: float) -> None:
        self.replay_ms = replay_ms
        self.context = context
        self.buffers = BothLayouts(context.sets)
        self._check_buffers = BothLayouts(context.checks.sets)
        self._clocks = clocks
        self._load = load

    def check(self, entrant: Entrant) -> CheckResult:
        """Runs an entrant on the check data."""
        with refusals(entrant.label):
            if isinstance(entrant.call, Visitor):
                return entrant.call.check()
            if entrant.config is not None and entrant.built is not None:
                kernel = self._load(entrant.built, entrant.config)
                return self.context.check(kernel, entrant.config, bool(entrant.pdl))
            return self.check_call(entrant.call)

    def check_call(self, call: Baseline) -> CheckResult:
        """Runs a library call on the check data."""
        return self.context.checks.run(call.on(self._check_buffers), self.context.stopwatch.stream)

    def prepare(self, entrant: Entrant, time_us: float | None = None) -> Prepared:
        """Captures launches that run for the replay time, timed for that first unless ``time_us`` is known."""
        with refusals(entrant.label):
            if isinstance(entrant.call, Visitor):
                return entrant.call.prepare(self.replay_ms)
            contestant = self._bind(entrant)
            context = self.context
            graph = sized_graph(context.stopwatch, contestant, self.replay_ms, time_us)
            return DevicePrepared(graph, context, self.replay_ms)

    def time_us(self, entrant: Entrant) -> float:
        """Microseconds per launch of a short graph: enough to size others by."""
        with refusals(entrant.label):
            return sizing_us(self.context.stopwatch, self._bind(entrant))

    def too_fast(self, time_us: float) -> str:
        """Why a time cannot be believed; empty if it can."""
        return too_fast(self.context.problem, time_us, self.context.settings.quarantine_fraction)

    def clocks(self) -> Mapping[str, Any]:
        """What NVML read just now, what it does not know left out."""
        sample = dataclasses.asdict(self._clocks.recent(_CLOCKS_AGE_S))
        return {name: value for name, value in sample.items() if value is not None}

    def _bind(self, entrant: Entrant) -> Contestant:
        if entrant.config is not None and entrant.built is not None:
            kernel = self._load(entrant.built, entrant.config)
            return self.context.candidate(kernel, entrant.config, bool(entrant.pdl))
        bound: Contestant = entrant.call.on(self.buffers)
        return bound


class DevicePrepared:
    """An entrant's graph, and how to look at what it writes."""

    detail = ""

    def __init__(self, graph: TimedGraph, context: ProblemContext, replay_ms: float) -> None:
        self._graph = graph
        self._context = context
        self._replay_ms = replay_ms

    @property
    def launches(self) -> int:
        """Launches per replay."""
        return self._graph.launches

    def begin(self) -> Finish:
        """Begins one replay; what it returns waits for the microseconds per launch."""
        return self._graph.begin()

    def warm_up(self) -> None:
        """Runs the graph once, and sees to it that a replay still lasts as long as it must."""
        self._graph.lengthen(self._replay_ms)

    def begin_recheck(self) -> Callable[[], CheckResult]:
        """One more replay from poisoned outputs: every one must be written, and a sample of one must be right."""
        sets, seed = self._context.sets, self._context.settings.seed
        used = self._graph.sets_used
        aftermath = Aftermath(sets, used, seed % used, seed)
        sets.poison()
        self._graph.run_once()
        aftermath.look()
        return aftermath.result

    def close(self) -> None:
        """Gives the graph back."""
        self._graph.close()


@contextmanager
def refusals(label: str) -> Iterator[None]:
    """Turns what a contestant raises into a refusal, unless it took the CUDA context with it.

    Raises:
        RefusedError: It cannot run.
        WorkerError: Nothing can run any more.
    """
    refusing: tuple[type[Exception], ...] = (*library_errors(), RuntimeError)
    try:
        yield
    except refusing as error:
        fault = context_fault()
        if fault is not None:
            raise WorkerError(f"{label} broke the CUDA context: {fault}") from error
        raise RefusedError(str(error)) from error


def our_entrants(candidates: Sequence[tuple[KernelConfig, BuiltKernel]], columns: Sequence[bool]) -> list[Entrant]:
    """Each candidate once per PDL column."""
    return [
        Entrant(
            label=f"{config.name} pdl={'on' if pdl else 'off'}",
            contestant=config.family,
            detail="",
            config=config,
            built=built,
            pdl=pdl,
        )
        for config, built in candidates
        for pdl in columns
    ]


def baseline_entrants(problem: Problem, libraries: VendorLibraries, tuned: Sequence[SavedCall]) -> list[Entrant]:
    """torch.matmul, cuBLAS, cuBLASLt's first answer and cuBLASLt-AutoTuning, the libraries in both layouts.

    Args:
        problem: What is computed.
        libraries: cuBLAS and cuBLASLt for it.
        tuned: What :func:`tune` chose, here or in another process.
    """
    calls: list[Baseline] = [*_torch(problem), *(libraries.cublas(layout) for layout in LAYOUTS)]
    calls += [answers[0] for layout in LAYOUTS if (answers := _offered(libraries, layout))]
    return call_entrants([*calls, *restored(libraries, tuned)])


def call_entrants(calls: Iterable[Baseline]) -> list[Entrant]:
    """Library calls as they enter."""
    return [Entrant(call.name, call.name, call.detail, call) for call in calls]


def restored(libraries: VendorLibraries, tuned: Sequence[SavedCall]) -> list[LibraryCall]:
    """The chosen algorithms as calls of this process; one that the library refuses is left out."""
    calls = []
    for saved in tuned:
        try:
            calls.append(libraries.restore(saved))
        except NotSupportedError as error:
            logger.warning("%s does not compete: %s", saved.name, error)
    return calls


def _torch(problem: Problem) -> list[Baseline]:
    try:
        return [TorchMatmul(problem)]
    except NotSupportedError as error:
        logger.warning("torch.matmul does not compete: %s", error)
        return []


def _offered(libraries: VendorLibraries, layout: Any) -> list[LibraryCall]:
    try:
        return libraries.cublaslt(layout)
    except library_errors() as error:
        logger.warning("cuBLASLt does not compete in layout %s: %s", layout, error)
        return []


def tuner(arena: DeviceArena) -> AutoTuner:
    """Screens and compares calls on the arena's buffers."""
    settings = arena.context.settings
    return AutoTuner(
        arena.context.stopwatch,
        arena.buffers,
        library_errors(),
        lambda call: arena.check_call(call).reason,
        settings.replay_ms,
        _TUNING_ROUNDS,
        settings.seed,
        Exploration(settings.enumerated_results, settings.enumeration_s),
        context_fault,
        soak_s(arena.context.problem, settings),
    )


def tune(arena: DeviceArena, libraries: VendorLibraries) -> list[SavedCall]:
    """cuBLASLt-AutoTuning: the fastest right algorithm of each layout."""
    calls = [call for layout in LAYOUTS for call in _offered(libraries, layout)]
    chosen = [tuned.call for tuned in tuner(arena).choose(calls, libraries.enumerated()).values()]
    return [saved for call in chosen if (saved := call.saved) is not None]
