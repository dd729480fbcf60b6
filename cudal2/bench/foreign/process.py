"""The judge's end of a foreign kernel's process: orders out, answers in, a deadline for each, and nothing left behind.

Answers are lines of JSON on a pipe of their own; what the library prints goes to the log. Anything else than the answer
to the order just given ends the process.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from cudal2.build.foreign import last_lines
from cudal2.records.measurement import Status

_STOP_S = 10.0
_MAX_ANSWER_BYTES = 2**16
#: What a line of ours quotes of foreign code.
_QUOTED_CHARS = 300


def quoted(said: object) -> str:
    """What foreign code says, as part of one of our lines: short, and nothing that moves a cursor."""
    text = str(said)[:_QUOTED_CHARS]
    return "".join(character if character.isprintable() else " " for character in text)


class ForeignError(Exception):
    """A foreign kernel that cannot go on; its process is gone or of no more use.

    Attributes:
        status: How that counts.
        answered: Whether its process said so itself and lives on.
    """

    def __init__(self, status: Status, reason: str, answered: bool = False) -> None:
        """One line."""
        super().__init__(reason)
        self.status = status
        self.answered = answered


#: What the outcomes of a call count as.
_STATUSES = {
    "refused": Status.CONSTRAINTS,
    "threw": Status.RUNTIME,
    "failed": Status.LAUNCH,
    "error": Status.RUNTIME,
}
_WORDS = {
    "refused": "does not take this shape: the entry ",
    "threw": "the entry ",
    "failed": "the launch fails: ",
    "error": "",
}


def _search_path() -> tuple[str, str]:
    """This very package first, wherever this process has it from."""
    return str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")


class ForeignProcess:
    """One process for one foreign kernel; a context manager.

    Args:
        command: Program that runs :func:`cudal2.bench.foreign.child.run`.
        options: What it needs to make its device.
        log: Takes all it prints; overwritten.

    Raises:
        OSError: It does not start.
    """

    def __init__(self, command: Sequence[str], options: Mapping[str, Any], log: Path) -> None:
        """Starts it; the first order is answered when it is up."""
        self.log = log
        theirs_in, self._orders = os.pipe()
        self._answers, theirs_out = os.pipe()
        self._number = 0
        self._unread = b""
        text = json.dumps({**options, "commands": theirs_in, "replies": theirs_out})
        try:
            with log.open("wb") as output:
                self._process = subprocess.Popen(
                    [*command, text],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(theirs_in, theirs_out),
                    start_new_session=True,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(part for part in _search_path() if part)},
                )
        except BaseException:
            os.close(self._orders)
            os.close(self._answers)
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)

    def __enter__(self) -> ForeignProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The guard of the library's host."""
        return self._process.pid

    def ask(self, order: str, deadline_s: float, **arguments: Any) -> Any:
        """Has a method of the child's ``Host`` called.

        Raises:
            ForeignError: It failed, died, hung or answered nonsense; the process is ended unless it merely refused.
        """
        self._number += 1
        message = json.dumps({"number": self._number, "do": order, "with": arguments}).encode() + b"\n"
        answer = self._exchange(message, deadline_s)
        if "outcome" not in answer:
            return answer.get("value")
        outcome, text = str(answer["outcome"]), quoted(answer.get("text", ""))
        raise ForeignError(_STATUSES.get(outcome, Status.RUNTIME), self._line(_WORDS.get(outcome, "") + text), True)

    def stop(self) -> None:
        """Ends it and everything it started, however far that has detached itself."""
        for descriptor in (self._orders, self._answers):
            with suppress(OSError):
                os.close(descriptor)
        self._orders = self._answers = -1
        try:
            self._process.wait(_STOP_S)  # the guard sees our end of the pipe close
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S)

    def _exchange(self, message: bytes, deadline_s: float) -> dict[str, Any]:
        if self._orders < 0:
            raise ForeignError(Status.RUNTIME, "its process was ended before")
        try:
            os.write(self._orders, message)
            line = self._line_within(deadline_s)
        except BrokenPipeError:
            line = b""
        except TimeoutError:
            self.stop()
            raise ForeignError(Status.TIMEOUT, self._line(f"no answer within {deadline_s:g} s: hang?")) from None
        except BaseException:
            self.stop()
            raise
        if not line:
            raise ForeignError(Status.RUNTIME, self._cause_of_death())
        try:
            answer = json.loads(line)
            if answer["number"] == self._number:
                return dict(answer)
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        self.stop()
        raise ForeignError(Status.RUNTIME, self._line("its process answers what was not asked"))

    def _line_within(self, deadline_s: float) -> bytes:
        """The next line; empty if the other end is closed.

        Raises:
            TimeoutError: None came in time.
        """
        until = time.monotonic() + deadline_s
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError
            piece = os.read(self._answers, _MAX_ANSWER_BYTES)
            self._unread += piece
            if not piece or len(self._unread) > _MAX_ANSWER_BYTES:
                return self._unread and b"?\n"
        line, _, self._unread = self._unread.partition(b"\n")
        return line or b"?"

    def _cause_of_death(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)  # the guard ends as the host did, unless we hang up first
        self.stop()
        code = self._process.returncode
        if code is None:
            return self._line("its process does not answer and does not end")
        if code > 128:
            with suppress(ValueError):
                return self._line(f"its process died of {signal.Signals(code - 128).name}")
        return self._line(f"its process ended with exit code {code}")

    def _line(self, text: str) -> str:
        """With the last words of the library, and where the others are."""
        last = next((line.strip() for line in reversed(last_lines(self.log)) if line.strip()), "")
        said = f" ({quoted(last[:160])})" if last and last not in text else ""
        return f"{text}{said}; log: {self.log}"
