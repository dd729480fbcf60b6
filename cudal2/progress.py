"""How far a long step has got, on stderr: a rich bar on a terminal, else plain lines a few seconds apart.

stdout stays free for data. rich is optional; without it a terminal gets the plain lines too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from types import TracebackType
from typing import Any, TextIO, TypeVar

try:
    from rich import console as rich_console
    from rich import progress as rich_progress
except ImportError:
    rich_progress = None  # type: ignore[assignment]

Item = TypeVar("Item")

PLAIN_INTERVAL_S = 5.0


class Progress:
    """Context manager around one long step; ``advance`` it as work completes.

    Example:
        >>> with Progress("building", total=2) as progress:
        ...     progress.advance(note="64x64x64")
    """

    def __init__(
        self,
        description: str,
        total: int | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Draws nothing before the ``with`` block begins.

        Args:
            description: What is going on, for example ``building``.
            total: Units of work, if known.
            stream: Where to draw; stderr by default.
            clock: Source of monotonic seconds.
        """
        self.description = description
        self.total = total
        self.done = 0
        self.note = ""
        self._stream = stream or sys.stderr
        self._clock = clock
        self._started_s = self._written_s = clock()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        """Begins to draw."""
        self._started_s = self._written_s = self._clock()
        if rich_progress is not None and self._stream.isatty():
            self._bar = rich_progress.Progress(
                rich_progress.TextColumn("{task.description}", markup=False),
                rich_progress.BarColumn(),
                rich_progress.MofNCompleteColumn(),
                rich_progress.TimeElapsedColumn(),
                rich_progress.TimeRemainingColumn(),
                rich_progress.TextColumn("{task.fields[note]}", markup=False),
                console=rich_console.Console(file=self._stream),
            )
            self._task = self._bar.add_task(self.description, total=self.total, note="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves the last state on the screen; an interrupted step says how far it got."""
        if self._bar is not None:
            self._bar.stop()
        else:
            self._write_line("done" if kind is None else "stopped")

    def advance(self, units: int = 1, note: str | None = None) -> None:
        """Counts finished work.

        Args:
            units: Finished since the last call.
            note: A few words to show beside the count, for example the best so far; ``None`` keeps the last.
        """
        self.done += units
        self.note = self.note if note is None else note
        if self._bar is not None:
            self._bar.update(self._task, advance=units, note=self.note)
        elif self._clock() - self._written_s >= PLAIN_INTERVAL_S:
            self._write_line()

    def _write_line(self, state: str = "") -> None:
        self._written_s = self._clock()
        count = f"{self.done}/{self.total}" if self.total is not None else str(self.done)
        words = (f"{self.description}: {count}", f"{self._written_s - self._started_s:.0f} s", self.note, state)
        self._stream.write(", ".join(word for word in words if word) + "\n")
        self._stream.flush()


def track(iterable: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
    """Yields from an iterable and shows how far it has got.

    Args:
        iterable: What to yield from.
        description: What is going on.
        total: Its length, where ``len`` does not give it.
    """
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    with Progress(description, total) as progress:
        for item in iterable:
            yield item
            progress.advance()
