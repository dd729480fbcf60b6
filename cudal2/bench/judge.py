"""A final from outside: what to judge, handed to the worker's child; all of it ``contest`` on a ``DeviceArena``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cudal2.bench.arena import DeviceArena, baseline_entrants, our_entrants
from cudal2.bench.final import contest
from cudal2.bench.libraries import VendorLibraries
from cudal2.bench.rounds import RoundLimits
from cudal2.bench.worker import Worker
from cudal2.build.artifact import BuiltKernel
from cudal2.problem import Problem
from cudal2.records.measurement import Measurement
from cudal2.settings import BenchSettings
from cudal2.space.config import KernelConfig

#: Check data, tuning and captures of the largest shapes; the rounds come on top.
_SETUP_DEADLINE_S = 240.0
_ROUND_DEADLINE_S = 20.0


@dataclass(frozen=True)
class FinalRequest:
    """One final.

    Attributes:
        problem: What is computed.
        candidates: Configurations of ours and their cubins, built for the problem's accumulator and layout.
        settings: How it is measured.
        pdl: PDL columns; with both, ours runs in each and the baselines, which choose by themselves, count for both.
        limits: Rounds; ``None`` takes the settings' ``final_rounds``.
    """

    problem: Problem
    candidates: tuple[tuple[KernelConfig, BuiltKernel], ...]
    settings: BenchSettings
    pdl: tuple[bool, ...] = (False,)
    limits: RoundLimits | None = field(default=None)

    @property
    def rounds(self) -> RoundLimits:
        """How long it goes on."""
        return self.limits or RoundLimits(self.settings.final_rounds, seed=self.settings.seed)

    @property
    def deadline_s(self) -> float:
        """After which something hangs."""
        rounds = self.rounds
        spent = rounds.warmup_s + (rounds.benchmark_s or 0.0)
        return _SETUP_DEADLINE_S + spent + _ROUND_DEADLINE_S * min(rounds.rounds, 10)


def judge(session: Any, request: FinalRequest) -> list[Measurement]:
    """Job: runs one final in the child that owns the GPU."""
    settings = request.settings
    context = session.context(request.problem, settings, settings.final_replay_ms)
    arena = DeviceArena(context, session.clocks, session.kernel)
    with VendorLibraries(
        request.problem, session.device, settings.workspace_bytes, settings.heuristic_results
    ) as libraries:
        entrants = [*our_entrants(request.candidates, request.pdl), *baseline_entrants(arena, libraries)]
        return contest(request.problem, entrants, arena, request.rounds)


def run_final(worker: Worker, request: FinalRequest) -> list[Measurement]:
    """Runs one final; every contestant's rows, failures included.

    Raises:
        WorkerError: The child died, hung, or lost its context; nothing of this final is kept.
    """
    rows: list[Measurement] = worker.call(judge, request, deadline_s=request.deadline_s)
    return rows
