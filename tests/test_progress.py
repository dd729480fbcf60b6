"""Progress: plain lines off a terminal, a rich bar on one, and the state of an interrupted step."""

from __future__ import annotations

import io
import re

import pytest

from cudal2 import progress
from cudal2.progress import Progress, track


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_plain_lines_come_a_few_seconds_apart() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress("building", 40, stream, clock) as bar:
        for step in range(40):
            clock.now_s += 0.5
            bar.advance(note=f"kernel {step}")
    lines = stream.getvalue().splitlines()
    assert lines == [
        "building: 10/40, 5 s, kernel 9",
        "building: 20/40, 10 s, kernel 19",
        "building: 30/40, 15 s, kernel 29",
        "building: 40/40, 20 s, kernel 39",
        "building: 40/40, 20 s, kernel 39, done",
    ]


def test_an_interrupted_step_says_how_far_it_got() -> None:
    stream = io.StringIO()
    with pytest.raises(KeyboardInterrupt), Progress("recording", stream=stream, clock=Clock()) as bar:
        bar.advance(3)
        raise KeyboardInterrupt
    assert stream.getvalue() == "recording: 3, 0 s, stopped\n"


def test_a_note_stays_until_the_next() -> None:
    bar = Progress("searching", stream=io.StringIO(), clock=Clock())
    with bar:
        bar.advance(note="best 3.1 us")
        bar.advance()
    assert (bar.done, bar.note) == (2, "best 3.1 us")


def test_a_terminal_gets_a_bar() -> None:
    pytest.importorskip("rich")
    stream = Terminal()
    with Progress("building", 3, stream) as bar:
        bar.advance(3, note="64x64x64 [note]")
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "building" in text
    assert "3/3" in text
    assert "64x64x64 [note]" in text, "a note is shown as it is, never read as markup"


def test_a_terminal_without_rich_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "rich_progress", None)
    stream = Terminal()
    with Progress("building", 1, stream, Clock()) as bar:
        bar.advance()
    assert stream.getvalue() == "building: 1/1, 0 s, done\n"


def test_track_yields_everything_and_counts_it_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track([1, 2, 3], "reading")) == [1, 2, 3]
    assert list(track((at for at in range(2)), "writing", total=2)) == [0, 1]
    output = capsys.readouterr()
    assert output.out == ""
    assert "reading: 3/3" in output.err
    assert "writing: 2/2" in output.err
