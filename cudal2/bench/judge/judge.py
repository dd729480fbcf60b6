"""A final from outside: one process selects, fresh ones measure, and none of their rounds serves both.

Whoever is chosen by the rounds that are reported looks better than it is. Here the candidates and cuBLASLt's algorithms
are chosen in one child; the figure comes from children that have seen nothing of it, each with buffers, checks and
captures of its own, one after the other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import statistics
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from cudal2.bench.baselines import contestants
from cudal2.bench.baselines.baseline import Baseline, SavedCall
from cudal2.bench.baselines.libraries import VendorLibraries, wake
from cudal2.bench.judge import final
from cudal2.bench.judge.arena import DeviceArena, baseline_entrants, call_entrants, our_entrants, restored, tune, tuner
from cudal2.bench.judge.final import Contest, Entered, Entrant, contest, enter, hold
from cudal2.bench.judge.foreign import foreign_entrants
from cudal2.bench.judge.request import OPTIONAL_DEADLINE_S, FinalRequest
from cudal2.bench.rounds import RoundLimits, level_medians
from cudal2.bench.timing import soak_s
from cudal2.bench.worker import PREPARE_DEADLINE_S, Worker, call_each, call_together, close_together
from cudal2.build.cores import default_jobs
from cudal2.errors import WorkerError
from cudal2.progress import track
from cudal2.records.measurement import Measurement

logger = logging.getLogger(__name__)

_ROUND_DEADLINE_S = 20.0
#: In the free text of rows that a selection timed.
SELECTION_DETAIL = "selection"


@dataclass(frozen=True)
class Selection:
    """Who goes on to the figure.

    Attributes:
        ours: Configurations of ours, each in the PDL column it was chosen for.
        tuned: cuBLASLt's best algorithm of each layout.
        rows: Every candidate of ours in the selection's rounds, failures included; empty if there was no choice.
        optional: What the optional contestants enter.
        times_us: Microseconds per launch by label, which size the replays of the figure.
    """

    ours: tuple[Entrant, ...]
    tuned: tuple[SavedCall, ...]
    rows: tuple[Measurement, ...]
    optional: tuple[Baseline, ...] = ()
    times_us: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Judgement:
    """What came of one request.

    Attributes:
        request: What was asked.
        rows: Every contestant's figure, failures included; empty if the final could not be run to its end.
        selection: The selection's rows.
        failure: Why there is no figure.
    """

    request: FinalRequest
    rows: tuple[Measurement, ...] = ()
    selection: tuple[Measurement, ...] = ()
    failure: str = ""


def bring_up(session: Any, request: FinalRequest, replay_ms: float) -> None:
    """Job: a problem's data, the libraries and their kernels; what a process meets first takes it longest."""
    for name in request.optional:
        contestants.OPTIONAL[name].load()
    settings = request.settings
    with ThreadPoolExecutor(1) as beside:
        beside.submit(wake, request.problem, session.device, settings.workspace_bytes, settings.heuristic_results)
        arena = _arena(session, request, replay_ms)
    with _libraries(session, request) as libraries:
        for entrant in baseline_entrants(request.problem, libraries, ()):
            with contextlib.suppress(*arena.errors):
                arena.check(entrant)


def select(session: Any, request: FinalRequest) -> Selection:
    """Job: tunes cuBLASLt, then times every candidate of ours beside it in short rounds and chooses."""
    settings = request.settings
    arena = _arena(session, request, settings.replay_ms)
    ours = our_entrants(request.candidates, request.pdl)
    with _libraries(session, request) as libraries:
        optional = tuple(contestants.choose(request.optional, tuner(arena), arena.buffers))
        tuned = tuple(tune(arena, libraries))
        if len(request.candidates) <= settings.finalists:
            chosen = Selection(tuple(ours), tuned, (), optional)
            return dataclasses.replace(chosen, times_us=_times_us(arena, _entrants(request, libraries, chosen), None))
        entrants = [*ours, *call_entrants(restored(libraries, tuned))]
        load_s = soak_s(request.problem, settings)
        held = contest(entrants, arena, RoundLimits(settings.selection_rounds, warmup_s=load_s, seed=settings.seed))
        chosen = Selection(choose(held, settings.finalists), tuned, _selection_rows(request, held), optional)
        return dataclasses.replace(chosen, times_us=_times_us(arena, _entrants(request, libraries, chosen), held))


def _selection_rows(request: FinalRequest, held: Contest) -> tuple[Measurement, ...]:
    return tuple(
        dataclasses.replace(
            row, process_rounds=(), detail="; ".join(part for part in (SELECTION_DETAIL, row.detail) if part)
        )
        for row in final.rows(request.problem, [held])
        if row.config is not None
    )


def _entrants(request: FinalRequest, libraries: VendorLibraries, selection: Selection) -> list[Entrant]:
    """Everyone in a figure who runs in the judge's process."""
    baselines = baseline_entrants(request.problem, libraries, selection.tuned)
    return [*selection.ours, *baselines, *call_entrants(selection.optional)]


def _times_us(arena: DeviceArena, entrants: Sequence[Entrant], held: Contest | None) -> dict[str, float]:
    """Of everyone, from the rounds of a selection or by a short graph; who cannot be timed will say why in a figure."""
    seen = held.times if held is not None else {}
    found = {label: statistics.median(times) for label, times in seen.items() if times}
    for entrant in entrants:
        if entrant.label not in found:
            with contextlib.suppress(*arena.errors):
                if entrant.config is None or arena.check(entrant).ok:  # the libraries' came up with the process
                    found[entrant.label] = arena.time_us(entrant)
    return found


def choose(held: Contest, count: int) -> tuple[Entrant, ...]:
    """The ``count`` fastest of ours in each PDL column; where none passed, all, so that the final says why."""
    chosen: list[Entrant] = []
    for pdl in (False, True):
        column = [entrant for entrant in held.entrants if entrant.pdl is pdl]
        passed = [entrant for entrant in column if entrant.label not in held.failures]
        costs = level_medians([held.times[entrant.label] for entrant in passed])
        ranked = sorted(zip(costs, passed, strict=True), key=lambda pair: pair[0])
        chosen += [entrant for _, entrant in ranked[:count]] or column
    return tuple(chosen)


def ready(session: Any, request: FinalRequest, selection: Selection) -> None:
    """Job: checks and captures what :func:`figure` will time in this process."""
    while session.kept:  # of a shape that failed elsewhere
        _, entered, held_open = session.kept.popitem()[1]
        with held_open:
            entered.close()
    session.kept[request] = _ready(session, request, selection)
    fault = session.fault()  # waits for the device, which must stand still when another process times
    if fault is not None:
        raise WorkerError(f"the CUDA context is lost: {fault}")


def figure(session: Any, request: FinalRequest, selection: Selection, limits: RoundLimits) -> Contest:
    """Job: the selected and every baseline in the rounds of one process."""
    arena, entered, held_open = session.kept.pop(request, None) or _ready(session, request, selection)
    with held_open:
        return hold(entered, arena, limits)


def _ready(
    session: Any, request: FinalRequest, selection: Selection
) -> tuple[DeviceArena, Entered, contextlib.ExitStack]:
    """A figure's arena, who entered, and what must stay open while they are timed."""
    settings, problem = request.settings, request.problem
    arena = _arena(session, request, request.figure_replay_ms)
    with contextlib.ExitStack() as stack:
        visitors = foreign_entrants(session, request.foreign, problem, settings, arena.context.sets.count)
        libraries = stack.enter_context(_libraries(session, request))
        foreign = stack.enter_context(visitors)
        entrants = [*_entrants(request, libraries, selection), *foreign]
        return arena, enter(entrants, arena, selection.times_us), stack.pop_all()


def _arena(session: Any, request: FinalRequest, replay_ms: float) -> DeviceArena:
    context = session.context(request.problem, request.settings, replay_ms)
    return DeviceArena(context, session.clocks, session.kernel, replay_ms)


def _libraries(session: Any, request: FinalRequest) -> VendorLibraries:
    settings = request.settings
    return VendorLibraries(request.problem, session.device, settings.workspace_bytes, settings.heuristic_results)


def judge(
    worker: Worker,
    requests: Sequence[FinalRequest],
    on_selected: Callable[[Sequence[Measurement]], None] = lambda rows: None,
) -> Generator[Judgement, None, None]:
    """Selects for all requests in the worker's process, then measures all of them in each fresh process.

    A process is started once for all requests, and all processes come up together, before anything is timed. What
    kills a process costs the request it was at; the others go on in another fresh one.

    Args:
        worker: The GPU; its process selects, and is given back.
        requests: Finals of one and the same settings.
        on_selected: Called with the rows of each selection as soon as it is made.

    Yields:
        Each request's judgement, as its last process is done with it.
    """
    settings = requests[0].settings
    with worker.hold(), contextlib.ExitStack() as stack:
        _compile_ahead(worker, requests)
        fresh = [stack.enter_context(worker.sibling()) for _ in range(settings.final_processes)]
        stack.callback(close_together, fresh)
        _bring_up_together(worker, fresh, requests)
        selections: dict[FinalRequest, Selection] = {}
        for request in requests:
            try:
                selections[request] = worker.call(select, request, deadline_s=request.setup_deadline_s)
            except WorkerError as error:
                yield Judgement(request, failure=str(error))
            else:
                on_selected(selections[request].rows)
        leaving = stack.enter_context(_leaving(worker))
        together = [request for request in selections if request.ready_together]
        for request in together:
            yield _judged_together(fresh, request, selections.pop(request), leaving.join)
        leaving.join()
        yield from _judged_in_turn(fresh, selections)


@contextlib.contextmanager
def _leaving(worker: Worker) -> Iterator[threading.Thread]:
    """The worker's process ends meanwhile, with all its memory; to be waited for before anything is timed."""
    thread = threading.Thread(target=worker.close, name="cudal2-leaving")
    thread.start()
    try:
        yield thread
    finally:
        thread.join()


def _judged_together(
    fresh: Sequence[Worker], request: FinalRequest, selection: Selection, alone: Callable[[], None]
) -> Judgement:
    """All processes check and capture at the same time, then each has its rounds while the others stand still.

    ``alone`` waits until no other process is left.
    """
    try:
        call_together(ready, dict.fromkeys(fresh, (request, selection)), request.setup_deadline_s)
    except WorkerError as error:
        logger.info("%s: a process was not ready at once: %s", request.problem.mnk, error)
    alone()
    try:
        contests = [_figure_in(process, request, selection, number) for number, process in enumerate(fresh)]
    except WorkerError as error:
        return Judgement(request, selection=selection.rows, failure=str(error))
    return Judgement(request, tuple(final.rows(request.problem, contests)), selection.rows)


def _judged_in_turn(fresh: Sequence[Worker], selections: Mapping[FinalRequest, Selection]) -> Iterator[Judgement]:
    """Every shape in one process, then in the next, so that only one holds their buffers."""
    contests: dict[FinalRequest, list[Contest]] = {request: [] for request in selections}
    for number, process in enumerate(fresh):
        for request, selection in selections.items():
            if request not in contests:
                continue
            try:
                contests[request].append(_figure_in(process, request, selection, number))
            except WorkerError as error:
                del contests[request]
                yield Judgement(request, selection=selection.rows, failure=str(error))
                continue
            if process is fresh[-1]:
                rows = tuple(final.rows(request.problem, contests[request]))
                yield Judgement(request, rows, selection.rows)
        process.close()


def run_final(worker: Worker, request: FinalRequest) -> Judgement:
    """Runs one final.

    Raises:
        WorkerError: A child died, hung, or lost its context; there is no figure.
    """
    (judgement,) = judge(worker, [request])
    if judgement.failure:
        raise WorkerError(judgement.failure)
    return judgement


def _compile_ahead(worker: Worker, requests: Sequence[FinalRequest]) -> None:
    """What the optional contestants will need, on all cores, before anyone waits for it."""
    asked = dict.fromkeys((name, request.problem.dtype) for request in requests for name in request.optional)
    for name, dtype in asked:
        work = contestants.OPTIONAL[name].ahead(dtype)
        if work is None:
            continue
        ends = call_each(worker, work.compile, work.items, default_jobs(), OPTIONAL_DEADLINE_S)
        failures = [error for error in track(ends, f"compiling {name}", len(work.items)) if error is not None]
        for error in failures:
            logger.info("%s: a configuration does not compile: %s", name, error)
        if len(failures) < len(work.items):
            work.finished()


def _bring_up_together(worker: Worker, fresh: Sequence[Worker], requests: Sequence[FinalRequest]) -> None:
    """The first problem, and all whose data is small enough to wait in every process for its turn."""
    for request in (requests[0], *(request for request in requests[1:] if not request.heats)):
        settings = request.settings
        arguments = {process: (request, request.figure_replay_ms) for process in fresh}
        try:
            call_together(bring_up, {worker: (request, settings.replay_ms), **arguments}, PREPARE_DEADLINE_S)
        except WorkerError as error:
            # The request may be to blame, or a neighbour: whoever it is will be named when it is its turn.
            logger.warning("%s: a process did not come up at once: %s", request.problem.mnk, error)
            return


def _figure_in(process: Worker, request: FinalRequest, selection: Selection, number: int) -> Contest:
    limits = request.process_limits(number)
    spent_s = limits.warmup_s + (limits.benchmark_s or 0.0)
    deadline_s = request.setup_deadline_s + spent_s + _ROUND_DEADLINE_S * min(limits.rounds, 10)
    held: Contest = process.call(figure, request, selection, limits, deadline_s=deadline_s)
    return held
