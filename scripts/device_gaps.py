"""Where the device stands still in search steps, by what comes before and after: part of step_breakdown.

Events around everything that a step enqueues; between the last of one thing and the first of the next there is nothing
for the device to do but uploads of graphs.
"""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cudal2.cli.main import guarded
from cudal2.errors import UsageError

if TYPE_CHECKING:
    from cudal2.bench.jobs import Candidate
    from cudal2.settings import BenchSettings

#: What a step enqueues, in order; replays follow.
_PLACES = ("check", "sizing", "first of the reference", "first of the candidate")


class Marks:
    """Events of a run of steps, in order."""

    def __init__(self) -> None:
        """Marks nothing yet."""
        self._events: list[tuple[str, bool, Any]] = []

    def wrap(self, owner: Any, name: str, label: str) -> None:
        """Puts an event before and one behind what a function enqueues."""
        function = getattr(owner, name)

        def marked(*arguments: Any, **keywords: Any) -> Any:
            self._mark(label, True)
            result = function(*arguments, **keywords)
            self._mark(label, False)
            return result

        setattr(owner, name, marked)

    def _mark(self, label: str, begins: bool) -> None:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append((label, begins, event))

    def gaps_ms(self, steps: int) -> dict[str, float]:
        """Milliseconds per step between the end of one thing and the beginning of the next, and of all in all."""
        import torch

        torch.cuda.synchronize()
        found: dict[str, float] = defaultdict(float)
        number = -1
        for (label, begins, event), (following, _, later) in itertools.pairwise(self._events):
            ms = event.elapsed_time(later) / steps
            if begins:
                number = 0 if label == "check" else number + 1
                found[f"device: {_place(number, label)}"] += ms
            else:
                found[f"idle before {_place(0 if following == 'check' else number + 1, following)}"] += ms
        return dict(found)


def _place(number: int, label: str) -> str:
    return _PLACES[number] if number < len(_PLACES) else label


def device_gaps(session: Any, candidates: Sequence[Candidate], settings: BenchSettings) -> list[str]:
    """Job: one step for each candidate, in the same order as a search's, and the device's time by place."""
    from cudal2.bench import timing
    from cudal2.bench.correctness import Aftermath, Checks

    kept = timing.Stopwatch.begin, Checks.begin, Aftermath.look
    marks = Marks()
    marks.wrap(timing.Stopwatch, "begin", "replay")
    marks.wrap(Checks, "begin", "check")
    marks.wrap(Aftermath, "look", "look")
    try:
        for place, candidate in enumerate(candidates):
            session.measure(candidate, settings, True, candidates[place + 1 : place + 3])
    finally:
        timing.Stopwatch.begin, Checks.begin, Aftermath.look = kept  # type: ignore[method-assign]
    gaps = marks.gaps_ms(len(candidates))
    return [f"  {name:40s}{ms:8.3f} ms" for name, ms in gaps.items()]


def main() -> None:
    """Says what to run."""
    raise UsageError(
        "scripts/device_gaps.py is a part of scripts/step_breakdown.py, which prints its figures: run that"
    )


if __name__ == "__main__":
    sys.exit(guarded(main))
