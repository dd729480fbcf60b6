"""A child process that does risky work: it can hang, crash or lose its CUDA context without taking us along.

Knows nothing about GPUs. The child is forked from a fork server that has the slow imports behind it, so a new one is
up in a fraction of a second; it leads its own process group and dies with its parent.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from cudal2.errors import WorkerError, first_line

logger = logging.getLogger(__name__)

_START_DEADLINE_S = 120.0
_JOIN_S = 5.0
_PR_SET_PDEATHSIG = 1
_FAULT_EXIT_CODE = 70
#: What unpickling bytes that nobody pickled can raise.
_UNREADABLE = (
    pickle.UnpicklingError,
    AttributeError,
    ImportError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    TypeError,
    ValueError,
)
_UNTRUSTED = "its pipe is out of step"


class Session(Protocol):
    """What the child keeps between jobs."""

    def fault(self) -> str | None:
        """Why the child is beyond repair, if it is."""


@dataclass(frozen=True)
class Done:
    """A job came back."""

    value: Any


@dataclass(frozen=True)
class Failed:
    """A job raised.

    Attributes:
        kind: Class name of the exception.
        text: One line.
        fault: Why the child ended itself afterwards; ``None`` if it goes on.
    """

    kind: str
    text: str
    fault: str | None = None


class JobTimeoutError(WorkerError):
    """The child gave no answer in time and was killed."""


class JobDiedError(WorkerError):
    """The child died under the job."""


class JobFailedError(WorkerError):
    """The job raised, or returned what cannot be used.

    Attributes:
        failure: What the child reported.
    """

    def __init__(self, failure: Failed) -> None:
        """One line from the failure."""
        super().__init__(f"{failure.text} ({failure.fault})" if failure.fault else failure.text)
        self.failure = failure


class IsolatedProcess:
    """One child at a time, started when first needed and again after every loss.

    Args:
        session: Called in the child to make what every job gets as its first argument; must be importable.
        arguments: Arguments of ``session``.
        preload: Modules the fork server imports once; the first instance of a process decides.
    """

    def __init__(
        self, session: Callable[..., Session], arguments: tuple[Any, ...] = (), preload: Sequence[str] = ()
    ) -> None:
        """Starts nothing yet."""
        self._session = session
        self._arguments = arguments
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(preload))
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None
        self.starts = 0
        self._jobs = 0
        self._posted: set[int] = set()
        self._early: dict[int, Any] = {}

    @property
    def pid(self) -> int | None:
        """Process and process group of the running child."""
        return self._process.pid if self._process is not None else None

    @property
    def running(self) -> bool:
        """Whether there is a child."""
        return self._process is not None

    def start(self) -> None:
        """Brings a child up if there is none.

        Raises:
            WorkerError: It does not come up; the message says why.
        """
        if self._process is not None:
            return
        self._connection, theirs = self._context.Pipe()
        arguments = (theirs, self._session, self._arguments)
        self._process = self._context.Process(target=_serve, args=arguments, name="cudal2-worker", daemon=True)
        started = time.monotonic()
        self._process.start()
        theirs.close()
        self.starts += 1
        self._posted.add(0)
        try:
            self._answer(_START_DEADLINE_S, 0)
        except WorkerError as error:
            self.stop()
            raise WorkerError(f"the worker process does not start: {error}") from error
        logger.info("worker process %s is up after %.2f s", self.pid, time.monotonic() - started)

    def call(self, job: Callable[..., Any], *arguments: Any, deadline_s: float) -> Any:
        """Runs ``job(session, *arguments)`` in the child.

        Args:
            job: Importable function.
            arguments: Picklable.
            deadline_s: Seconds after which the child is killed.

        Raises:
            JobTimeoutError: No answer in time.
            JobDiedError: The child died.
            JobFailedError: The job raised.
            WorkerError: No child could be started.
        """
        return self.collect(self.post(job, *arguments), deadline_s)

    def post(self, job: Callable[..., Any], *arguments: Any) -> int:
        """Gives the child a job behind those it has, and does not wait; its number, for :meth:`collect`.

        What kills the child takes the jobs behind it along; they have no answer.

        Raises:
            WorkerError: No child could be started.
        """
        self.start()
        assert self._connection is not None
        self._jobs += 1
        self._posted.add(self._jobs)
        try:
            self._connection.send((self._jobs, job, arguments))
        except (BrokenPipeError, ConnectionResetError):
            pass  # dead between jobs: who collects is told
        except BaseException:
            self.stop()  # half a message
            raise
        return self._jobs

    def collect(self, number: int, deadline_s: float) -> Any:
        """What a posted job returned; raises as :meth:`call` does. The deadline begins now."""
        answered = False
        try:
            value = self._answer(deadline_s, number)
            answered = True
            return value
        except JobFailedError as error:
            answered = error.failure.fault is None
            raise
        finally:
            # A child whose answer nobody took (Ctrl-C included) must not answer the next job with it.
            if not answered:
                self.stop()

    def stop(self) -> None:
        """Kills the child and everything it started."""
        process, self._process = self._process, None
        self._posted.clear()
        self._early.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if process is None or process.pid is None:
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.kill()  # it had not yet made its own group, or is gone
        process.join(_JOIN_S)
        if process.is_alive():
            logger.warning("worker process %s is killed but not gone yet", process.pid)

    def _answer(self, deadline_s: float, number: int) -> Any:
        while number not in self._early:
            answered, reply = self._receive(deadline_s)
            if answered not in self._posted:
                raise JobFailedError(Failed("WorkerError", f"an answer to job {answered}, not to {number}", _UNTRUSTED))
            self._posted.remove(answered)
            self._early[answered] = reply
        reply = self._early.pop(number)
        if isinstance(reply, Failed):
            raise JobFailedError(reply)
        return reply.value

    def _receive(self, deadline_s: float) -> tuple[int, Any]:
        assert self._connection is not None
        if not self._connection.poll(deadline_s):
            raise JobTimeoutError(f"no answer within {deadline_s:g} s")
        try:
            answered, reply = pickle.loads(self._connection.recv_bytes())
            return answered, reply
        except (EOFError, OSError) as error:
            raise JobDiedError(self._cause_of_death()) from error
        except _UNREADABLE as error:
            raise JobFailedError(Failed(type(error).__name__, f"unusable answer: {error}", _UNTRUSTED)) from error

    def _cause_of_death(self) -> str:
        assert self._process is not None
        self._process.join(_JOIN_S)
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"the worker process died of {signal.Signals(-code).name}"
        return f"the worker process ended with exit code {code}"


def _serve(connection: Connection, session_type: Callable[..., Session], arguments: tuple[Any, ...]) -> None:
    """The child: makes the session, says so, then answers jobs until the pipe closes."""
    _part_from_parent()
    session = None

    def make() -> None:
        nonlocal session
        session = session_type(*arguments)

    _send(connection, 0, _attempt(make))
    if session is None:
        return
    while True:
        try:
            number, job, job_arguments = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        reply = _attempt(lambda: job(session, *job_arguments), session)  # noqa: B023 - called at once
        _send(connection, number, reply)
        if isinstance(reply, Failed) and reply.fault:
            connection.close()
            # Not a normal exit: destructors would call into a CUDA context that is lost.
            os._exit(_FAULT_EXIT_CODE)


def _attempt(action: Callable[[], Any], session: Session | None = None) -> Done | Failed:
    try:
        return Done(action())
    except Exception as error:  # the edge: whatever a job does, the parent gets one line
        fault = session.fault() if session is not None else None
        return Failed(type(error).__name__, first_line(error), fault)


def _send(connection: Connection, number: int, reply: Done | Failed) -> None:
    try:
        message = pickle.dumps((number, reply))
    except Exception as error:  # a job may return anything at all
        message = pickle.dumps((number, Failed(type(error).__name__, f"unusable answer: {first_line(error)}")))
    connection.send_bytes(message)


def _part_from_parent() -> None:
    """Own session: the terminal's Ctrl-C goes to the parent alone. Dies with the parent; keeps off its stdout."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(2, 1)
    threading.Thread(target=_die_with_parent, name="parent-watch", daemon=True).start()


def _die_with_parent() -> None:
    """Our parent by fork is the fork server; the process that asked for us shows by its end of a pipe."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.killpg(os.getpgrp(), signal.SIGKILL)
