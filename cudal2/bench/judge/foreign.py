"""Where a foreign kernel enters: as one more contestant of a final, or alone to be checked before anything is timed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from cudal2.bench.foreign.memory import CudaPlatform
from cudal2.bench.foreign.process import ForeignError
from cudal2.bench.foreign.trial import ForeignTrial
from cudal2.bench.judge.final import Entrant, Failure
from cudal2.build.foreign import ForeignBuildError, ForeignKernel
from cudal2.errors import NothingValidError, WrongResultError
from cudal2.problem import Problem
from cudal2.records.measurement import Status
from cudal2.settings import BenchSettings

#: Its start, thousands of calls, and every order answered at the last moment.
CHECK_DEADLINE_S = 300.0


@contextmanager
def foreign_entrants(
    session: Any, kernel: ForeignKernel | None, problem: Problem, settings: BenchSettings, count: int
) -> Iterator[list[Entrant]]:
    """The kernel, if there is one, as an entrant; its process and buffers go at the end.

    Args:
        session: The child's state on the GPU.
        kernel: Its library.
        problem: What it must compute.
        settings: How it is measured.
        count: Buffer sets to rotate over.
    """
    if kernel is None:
        yield []
        return
    flush_bytes = int(settings.l2_multiple * session.info.l2_bytes)
    platform = CudaPlatform(session.device, flush_bytes, kernel.cuda_l2)
    with closing(platform), ForeignTrial(kernel, problem, settings, platform, count) as trial:
        yield [Entrant(kernel.name, kernel.name, kernel.detail, trial)]


def check_foreign(session: Any, kernel: ForeignKernel, problem: Problem, settings: BenchSettings) -> Failure | None:
    """Job: what is wrong with it, before anything is timed."""
    with foreign_entrants(session, kernel, problem, settings, count=2) as (entrant,):
        try:
            checked = entrant.call.check()
        except ForeignError as error:
            return Failure(error.status, str(error))
    return None if checked.ok else Failure(Status.CORRECTNESS, checked.reason)


def refuse_foreign(problem: Problem, name: str, failure: Failure | None) -> None:
    """A foreign kernel that failed ends the command that asked for it, once everything else is safe.

    Raises:
        WrongResultError: It computed something wrong.
        ForeignBuildError: Its library does not load.
        NothingValidError: It refused the shape, failed, hung, or was caught at something.
    """
    if failure is None:
        return
    text = f"{problem.mnk}: {name}: {failure.reason}"
    if failure.status is Status.CORRECTNESS:
        raise WrongResultError(text)
    raise ForeignBuildError(text) if failure.status is Status.COMPILE else NothingValidError(text)
