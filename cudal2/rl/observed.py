"""Hardware counters as the environment shows them: of configurations it has measured, and that were profiled before.

Counters come from ``cudal2 profile``, never from a timing run: reading them replays a kernel and moves its time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from cudal2.problem import Problem
from cudal2.records.counters import Counters, ProfileBook
from cudal2.rl.observation import BOUND
from cudal2.rl.scoring import Outcome, Scorer
from cudal2.space.space import SearchSpace

_REGISTERS_MAX = 255.0


class ObservedCounters:
    """Counters of a scorer's measurements, as observation values.

    Args:
        scorer: What was measured.
        book: Profiles; ``None`` for an environment without them.
    """

    def __init__(self, scorer: Scorer, book: ProfileBook | None) -> None:
        self._scorer = scorer
        self._known = _by_key(book, scorer.space, scorer.problems) if book is not None else {}

    def __bool__(self) -> bool:
        """Whether any configuration of these problems was profiled."""
        return bool(self._known)

    def of(self, index: int, flat: int, outcome: Outcome | None) -> dict[str, float]:
        """Counters of one proposal; empty if it was refused unmeasured."""
        if outcome is None:
            return {}
        built = {} if outcome.registers is None else {"registers": outcome.registers / _REGISTERS_MAX}
        return {**self._known.get((index, flat), {}), **built}

    def of_best(self, index: int) -> dict[str, float]:
        """Counters of a problem's best measurement so far; empty before the first, or if it was not profiled."""
        return self._known.get((index, int(self._scorer.best_flat[index])), {})


def digest(book: ProfileBook | None) -> str | None:
    """What a training run that sees these counters depends on."""
    if book is None:
        return None
    values = [profile.to_dict() for profile in book.profiles()]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _by_key(
    book: ProfileBook, space: SearchSpace, problems: Sequence[Problem]
) -> dict[tuple[int, int], dict[str, float]]:
    indices = {problem: index for index, problem in enumerate(problems)}
    return {
        (indices[profile.problem], space.flat(profile.config)): _observed(profile.counters)
        for profile in book.profiles()
        if profile.problem in indices and profile.config is not None and space.holds(profile.config)
    }


def _observed(counters: Counters) -> dict[str, float]:
    """Those with an entry in the observation that the tool reported."""
    registers = None if counters.registers is None else counters.registers / _REGISTERS_MAX
    values = {
        "l2_hit_rate": counters.l2_hit_rate,
        "tma_throughput": counters.tma_throughput,
        "dram_throughput": counters.dram_throughput,
        "tensor_active": counters.tensor_active,
        "registers": registers,
    }
    return {name: min(value, BOUND) for name, value in values.items() if value is not None}
