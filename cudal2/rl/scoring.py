"""Scores batches of proposals: static check first, then memory, then one runner call per problem for what is new.

Both the single environment and the batched one go through here, so a proposal is worth the same in either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cudal2.errors import UsageError
from cudal2.problem import Problem
from cudal2.records.measurement import Measurement, Status
from cudal2.rl.masks import MaskBank
from cudal2.rl.reward import REWARD_MIN, clipped
from cudal2.runners.base import Runner
from cudal2.runners.replay import ReplayRunner
from cudal2.search.base import log_ratio
from cudal2.space.config import KernelConfig
from cudal2.space.masks import PrefixMasks

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@runtime_checkable
class Builds(Protocol):
    """A runner that can compile for several problems at once; measuring then finds everything built."""

    def build(self, work: Iterable[tuple[KernelConfig, Problem]]) -> object:
        """Fills the build cache."""


class Outcome(NamedTuple):
    """What is remembered of one measured configuration."""

    log_ratio: float
    time_us: float
    status: Status
    reason: str
    registers: int | None
    pdl: bool


@dataclass(frozen=True)
class Scores:
    """One batch of proposals, scored.

    Attributes:
        rewards: clip(log(t_ref / t), -2, 1) of each proposal; -2 for every failure and for what is not legal.
        outcomes: What was measured; ``None`` for a proposal that was refused unmeasured.
        refused: Why, by position in the batch.
        fresh: Measurements this batch cost.
    """

    rewards: Floats
    outcomes: tuple[Outcome | None, ...]
    refused: dict[int, str] = field(default_factory=dict)
    fresh: int = 0


class Scorer:
    """Memory of everything measured in a run, over one list of problems.

    Args:
        runner: Where measurements come from.
        problems: What problem indices stand for; by default all the runner has.
        max_masks: Most problems whose masks are held at once.

    Attributes:
        masks: Exact masks of the problems.
        best_log_ratio: Best log(t_ref / t) per problem so far; -inf before the first correct measurement.
        best_flat: Its configuration, flat; -1 before.
    """

    def __init__(self, runner: Runner, problems: Sequence[Problem] | None = None, max_masks: int | None = None) -> None:
        self.runner = runner
        self.space = runner.space
        self.problems = tuple(problems or runner.problems)
        if not self.problems:
            raise UsageError("no problem to search for: name at least one shape")
        self.masks = MaskBank(self.problems, self.space, runner.allowed, max_masks)
        self.best_log_ratio = np.full(len(self.problems), -math.inf)
        self.best_flat = np.full(len(self.problems), -1, np.int64)
        self._marginals: dict[int, NDArray[np.bool_]] = {}
        self._known: dict[int, Outcome] = {}
        self._log: list[tuple[Any, ...]] = []
        self._replay_index = _replay_index(runner, self.problems)

    @property
    def distinct(self) -> int:
        """Unique configurations measured so far, failures included."""
        return len(self._known)

    def measured(self) -> Iterator[tuple[int, int, Outcome]]:
        """Everything measured so far, in order: problem index, flat configuration, outcome."""
        for key, outcome in self._known.items():
            yield (*divmod(key, self.space.total), outcome)

    def best(self, index: int) -> Outcome | None:
        """The best measurement of a problem so far."""
        flat = int(self.best_flat[index])
        return self._known[index * self.space.total + flat] if flat >= 0 else None

    def score(self, index: Ints, flat: Ints) -> Scores:
        """Scores configurations (flat) of problems (by index); a repeated proposal costs nothing."""
        legal = self.masks.legal(index, flat)
        keys = (index * self.space.total + flat).tolist()
        fresh = sorted({key for key, ok in zip(keys, legal, strict=True) if ok and key not in self._known})
        if fresh:
            self._learn(np.array(fresh, np.int64))
        outcomes = tuple(self._known[key] if ok else None for key, ok in zip(keys, legal, strict=True))
        values = [outcome.log_ratio if outcome else REWARD_MIN for outcome in outcomes]
        refused = {row: self.refusal(int(index[row]), int(flat[row])) for row in np.flatnonzero(~legal).tolist()}
        return Scores(clipped(values), outcomes, refused, len(fresh))

    def action_masks(self, index: int) -> NDArray[np.bool_]:
        """Values that occur in any legal configuration of a problem, axis after axis; computed once."""
        if index not in self._marginals:
            masks = PrefixMasks(self.space.dims, self.runner.allowed(self.problems[index])).action_masks()
            masks.setflags(write=False)
            self._marginals[index] = masks
        return self._marginals[index]

    def refusal(self, index: int, flat: int) -> str:
        """Why a configuration may not be measured on a problem."""
        reasons = self.space.explain(self.space.from_flat(flat), self.problems[index])
        return "; ".join(reasons) or "legal, but the recording does not hold it"

    def state(self) -> dict[str, Any]:
        """Plain values to continue from."""
        return {"measured": list(self._log)}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what :meth:`state` held."""
        self._known.clear()
        self._log.clear()
        self.best_log_ratio[:] = -math.inf
        self.best_flat[:] = -1
        for key, ratio, time_us, status, reason, registers, pdl in state["measured"]:
            self._remember(key, Outcome(ratio, time_us, Status(status), reason, registers, pdl))

    def remember(self, rows: Iterable[Measurement]) -> None:
        """Takes over measurements made before, so that they are not repeated; what does not belong here is left out."""
        indices = {problem: index for index, problem in enumerate(self.problems)}
        for row in rows:
            config, index = row.config, indices.get(row.problem)
            if config is None or index is None or not self.space.holds(config):
                continue
            key = index * self.space.total + self.space.flat(config)
            if key not in self._known:
                self._remember(key, self._outcome(row))

    def _learn(self, keys: Ints) -> None:
        index, flat = np.divmod(keys, self.space.total)
        if isinstance(self.runner, ReplayRunner):
            outcomes = self._replayed(self.runner, index, flat)
        else:
            outcomes = self._measured(index, flat)
        for key, outcome in zip(keys.tolist(), outcomes, strict=True):
            self._remember(key, outcome)

    def _remember(self, key: int, outcome: Outcome) -> None:
        self._known[key] = outcome
        self._log.append((key, *outcome[:2], outcome.status.value, *outcome[3:]))
        index, flat = divmod(key, self.space.total)
        if outcome.status is Status.CORRECT and outcome.log_ratio > self.best_log_ratio[index]:
            self.best_log_ratio[index] = outcome.log_ratio
            self.best_flat[index] = flat

    def _replayed(self, runner: ReplayRunner, index: Ints, flat: Ints) -> list[Outcome]:
        """Array look-ups; only a failure reads its whole row, for the reason."""
        recorded = self._replay_index[index]
        times = runner.times_us(recorded, flat).astype(np.float64)
        passed = ~np.isnan(times)
        runner.charge(recorded[passed], flat[passed])
        with np.errstate(invalid="ignore"):
            ratios = np.log(runner.ref_times_us(recorded, flat).astype(np.float64) / times)
        pdl = runner.recording.pdl
        outcomes = [
            Outcome(ratio, time_us, Status.CORRECT, "", None, pdl)
            for ratio, time_us in zip(ratios.tolist(), times.tolist(), strict=True)
        ]
        for row in np.flatnonzero(~passed).tolist():
            problem, config = self.problems[index[row]], self.space.from_flat(int(flat[row]))
            outcomes[row] = self._outcome(runner.run(problem, [config])[0])
        return outcomes

    def _measured(self, index: Ints, flat: Ints) -> list[Outcome]:
        """Builds the batch in one go, then measures problem by problem, each interleaved with its reference."""
        configs = [self.space.from_flat(int(one)) for one in flat]
        if isinstance(self.runner, Builds):
            self.runner.build([(config, self.problems[at]) for config, at in zip(configs, index.tolist(), strict=True)])
        outcomes: dict[int, Outcome] = {}
        for at in np.unique(index).tolist():
            rows = np.flatnonzero(index == at).tolist()
            measured = self.runner.run(self.problems[at], [configs[row] for row in rows])
            outcomes |= {row: self._outcome(one) for row, one in zip(rows, measured, strict=True)}
        return [outcomes[row] for row in range(len(index))]

    def _outcome(self, row: Measurement) -> Outcome:
        # Asking a live runner for a problem's own reference costs a measurement; rows usually carry theirs.
        needed = row.ok and row.speedup is None
        ratio = log_ratio(row, self.runner.reference_us(row.problem) if needed else math.nan)
        return Outcome(ratio, row.median_us if row.ok else math.nan, row.status, row.reason, row.registers, row.pdl)


def _replay_index(runner: Runner, problems: Sequence[Problem]) -> Ints:
    if not isinstance(runner, ReplayRunner):
        return np.arange(len(problems))
    return np.array([runner.problem_index(problem) for problem in problems], np.int64)
