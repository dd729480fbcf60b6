"""``Worker``: measures candidates in a process of its own; whatever a candidate does costs that candidate alone."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import AbstractContextManager, ExitStack, suppress
from queue import SimpleQueue
from typing import Any

from cudal2.bench import jobs
from cudal2.bench.device import DeviceInfo, gpu_key, gpu_lock
from cudal2.bench.isolation import IsolatedProcess, JobDiedError, JobFailedError, JobTimeoutError, Session
from cudal2.bench.jobs import Candidate, GpuSession, Prepared
from cudal2.build.artifact import BuiltKernel
from cudal2.closing import Closing
from cudal2.errors import WorkerError
from cudal2.launch.driver import LaunchError
from cudal2.problem import Problem
from cudal2.records.measurement import Measurement, Status
from cudal2.settings import BenchSettings
from cudal2.space.config import KernelConfig

logger = logging.getLogger(__name__)

#: Data, answers and the tuning of the reference; minutes for the very largest problems on a busy machine.
PREPARE_DEADLINE_S = 180.0
#: With all that jobs of the judge and of server mode import; a child is then forked with it. torch before nvmath, which
#: takes the libraries it finds loaded; the last ones because a child imports its parent's main module, which does.
PRELOAD = (
    "torch",
    "cudal2.bench.judge.judge",
    "cudal2.bench.server.server",
    "nvmath.bindings.cublas",
    "nvmath.bindings.cublasLt",
    "pyarrow.parquet",
    "pyarrow.compute",
    "cudal2.records.recording",
    "cudal2.runners.finals",
    "cudal2.runners.local",
    "cudal2.cli.main",
)
_KILL_AGAIN_S = 0.2
#: Candidates that a measurement is told will come next: one is bound meanwhile, one loaded.
_TOLD_AHEAD = 2


class Worker(Closing):
    """One GPU's worker; a context manager. Holds the GPU's lock while it measures, not between.

    Args:
        device_index: Index among the GPUs this process sees.
        deadline_s: Seconds one candidate may take.
        session: Makes the child's state; tests put their own here.
        preload: Modules the fork server imports in advance.
    """

    def __init__(
        self,
        device_index: int = 0,
        deadline_s: float = 10.0,
        session: Callable[[int], Session] = GpuSession,
        preload: Sequence[str] = PRELOAD,
    ) -> None:
        """Starts nothing yet."""
        self._deadline_s = deadline_s
        self._key = gpu_key(device_index)
        self._made_of = (device_index, deadline_s, session, preload)
        self._process = IsolatedProcess(session, (device_index,), preload)

    def close(self) -> None:
        """Kills the child; a later call starts a new one."""
        self._process.stop()

    @property
    def pid(self) -> int | None:
        """The child, if there is one."""
        return self._process.pid

    def start(self) -> None:
        """Brings the child up now rather than with the first job.

        Raises:
            WorkerError: It does not come up.
        """
        self._process.start()

    def sibling(self) -> Worker:
        """Another worker for the same GPU, whose process has seen nothing of this one's."""
        return Worker(*self._made_of)

    def hold(self) -> AbstractContextManager[None]:
        """Keeps other cudal2 processes off the GPU from one call to the next."""
        return gpu_lock(self._key)

    def call(self, job: Callable[..., Any], *arguments: Any, deadline_s: float = PREPARE_DEADLINE_S) -> Any:
        """Runs ``job(session, *arguments)`` in the child under the GPU's lock.

        Raises:
            WorkerError: It raised, died or took too long; subclasses in ``isolation`` tell which.
        """
        with gpu_lock(self._key):
            return self._process.call(job, *arguments, deadline_s=deadline_s)

    def device_info(self) -> DeviceInfo:
        """What the GPU is."""
        info: DeviceInfo = self.call(jobs.device_info)
        return info

    def prepare(self, problem: Problem, settings: BenchSettings, reference: bool = True) -> Prepared:
        """Brings a problem up in the child; cheap if it is up already.

        Raises:
            WorkerError: It cannot, not even in a second, fresh child.
        """
        with gpu_lock(self._key):
            return self._prepare(problem, settings, reference)

    def measure(
        self,
        problem: Problem,
        candidates: Sequence[tuple[KernelConfig, BuiltKernel]],
        settings: BenchSettings,
        pdl: bool = False,
        reference: bool = True,
    ) -> Iterator[Measurement]:
        """Measures one candidate after the other and yields each result as it comes.

        Args:
            problem: What they must compute.
            candidates: Configurations and their cubins.
            settings: How they are measured.
            pdl: Whether their launches carry the programmatic-dependent-launch attribute.
            reference: Whether cuBLASLt-AutoTuning runs in the same rounds.

        Raises:
            WorkerError: The child cannot be brought up for the problem; no candidate is to blame.
        """
        with gpu_lock(self._key):
            queue = [Candidate(problem, config, built, pdl) for config, built in candidates]
            ready_child, ahead = 0, None

            def post(place: int) -> int:
                upcoming = tuple(queue[place + 1 : place + 1 + _TOLD_AHEAD])
                return self._process.post(jobs.measure, queue[place], settings, reference, upcoming)

            try:
                for place, candidate in enumerate(queue):
                    # Outside the candidate's deadline: every child, and every call, brings the problem up first.
                    if ready_child != self._process.starts or not self._process.running:
                        self._prepare(problem, settings, reference)
                        ready_child, ahead = self._process.starts, None
                    job = ahead or post(place)
                    # The child goes on while the caller looks at this one's measurement.
                    ahead = post(place + 1) if place + 1 < len(queue) else None
                    yield self._measure(candidate, job)
            finally:
                if ahead is not None and ready_child == self._process.starts and self._process.running:
                    with suppress(WorkerError):
                        self._process.collect(ahead, self._deadline_s)

    def _measure(self, candidate: Candidate, job: int) -> Measurement:
        started = time.monotonic()
        try:
            answer = self._process.collect(job, self._deadline_s)
        except JobTimeoutError as error:
            return self._failed(candidate, Status.TIMEOUT, f"{error}: hang?", started)
        except JobDiedError as error:
            return self._failed(candidate, Status.RUNTIME, str(error), started)
        except JobFailedError as error:
            refused = error.failure.kind == LaunchError.__name__ and error.failure.fault is None
            return self._failed(candidate, Status.LAUNCH if refused else Status.RUNTIME, str(error), started)
        if not isinstance(answer, Measurement):
            return self._failed(
                candidate, Status.RUNTIME, f"returned a {type(answer).__name__}, no measurement", started
            )
        return answer

    def _failed(self, candidate: Candidate, status: Status, reason: str, started: float) -> Measurement:
        logger.info("%s on %s: %s, %s", candidate.config.name, candidate.problem.mnk, status.value, reason)
        return candidate.row(status, reason, bench_s=time.monotonic() - started)

    def _prepare(self, problem: Problem, settings: BenchSettings, reference: bool) -> Prepared:
        """A child that replaces one just killed may meet a GPU still being cleaned up: one more try."""
        self._process.start()
        arguments = (jobs.prepare, problem, settings, reference)
        try:
            prepared: Prepared = self._process.call(*arguments, deadline_s=PREPARE_DEADLINE_S)
            return prepared
        except (JobTimeoutError, JobDiedError, JobFailedError) as error:
            logger.warning("%s could not be prepared (%s): trying again in a new process", problem.mnk, error)
            self._process.stop()
        try:
            prepared = self._process.call(*arguments, deadline_s=PREPARE_DEADLINE_S)
            return prepared
        except WorkerError as error:
            raise WorkerError(f"{problem.mnk} cannot be prepared on the GPU: {error}") from error


def call_each(
    worker: Worker, job: Callable[..., Any], items: Sequence[Any], processes: int, deadline_s: float
) -> Iterator[WorkerError | None]:
    """Runs a job once for each item in fresh processes beside each other, for what takes long and is not timed.

    Args:
        worker: Whose GPU they get; its own process is left alone.
        job: Importable function of a session and an item.
        items: Picklable.
        processes: How many at once, at most.
        deadline_s: Seconds each item may take.

    Yields:
        For each item as it ends: why it failed, or ``None``.
    """
    processes = min(processes, len(items))
    with worker.hold(), ExitStack() as stack, ThreadPoolExecutor(processes) as pool:
        siblings = [stack.enter_context(worker.sibling()) for _ in range(processes)]
        idle: SimpleQueue[Worker] = SimpleQueue()
        for sibling in siblings:
            idle.put(sibling)

        def one(item: Any) -> WorkerError | None:
            process = idle.get()
            try:
                process._process.call(job, item, deadline_s=deadline_s)
            except WorkerError as error:
                return error
            finally:
                idle.put(process)
            return None

        calls = [pool.submit(one, item) for item in items]
        try:
            for call in as_completed(calls):
                yield call.result()
        except BaseException:
            _end(calls, siblings)
            raise


def call_together(
    job: Callable[..., Any], arguments: Mapping[Worker, tuple[Any, ...]], deadline_s: float = PREPARE_DEADLINE_S
) -> None:
    """Runs one job in several workers at the same time, for what takes long and is not timed.

    Args:
        job: Importable function.
        arguments: Its arguments for each worker, all of one GPU.
        deadline_s: Seconds each may take.

    Raises:
        WorkerError: It raised, died or took too long in one of them.
    """
    # The lock is taken here, once: it counts its holders by process, not by thread.
    with next(iter(arguments)).hold(), ThreadPoolExecutor(len(arguments)) as pool:
        calls = [
            pool.submit(worker._process.call, job, *given, deadline_s=deadline_s) for worker, given in arguments.items()
        ]
        try:
            for call in calls:
                call.result()
        except WorkerError:
            raise  # the others end what they are at, and stay up
        except BaseException:
            _end(calls, arguments)
            raise


def close_together(workers: Sequence[Worker]) -> None:
    """Kills the children of all: one after the other each takes a tenth of a second to be gone."""
    with ThreadPoolExecutor(len(workers)) as pool:
        list(pool.map(Worker.close, workers))


def _end(calls: Sequence[Future[Any]], workers: Iterable[Worker]) -> None:
    """Ctrl-C reaches the main thread alone, and a pool of threads waits for what its workers are at.

    Again until all threads are free: one may be about to start a process that is not there to be killed yet.
    """
    for call in calls:
        call.cancel()
    while True:
        _kill(workers)
        if not wait(calls, _KILL_AGAIN_S).not_done:
            return


def _kill(workers: Iterable[Worker]) -> None:
    for worker in workers:
        if worker.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
