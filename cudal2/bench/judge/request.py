"""What a final is asked: the problem, who competes, and how long each process goes on."""

from __future__ import annotations

from dataclasses import dataclass

from cudal2.bench.rounds import RoundLimits
from cudal2.build.artifact import BuiltKernel
from cudal2.build.foreign import ForeignKernel
from cudal2.floor import floor_us, heats
from cudal2.problem import Problem
from cudal2.settings import BenchSettings
from cudal2.space.config import KernelConfig

#: What each optional contestant may take to compile and tune when nothing of it is cached.
OPTIONAL_DEADLINE_S = 240.0
#: Check data, tuning and captures of the largest shapes; the rounds come on top.
_SETUP_DEADLINE_S = 240.0
#: Above this one it draws enough power for its clocks to fall within the first rounds.
_WARMING_FLOOR_US = 5.0


@dataclass(frozen=True)
class FinalRequest:
    """One final.

    Attributes:
        problem: What is computed.
        candidates: Configurations of ours and their cubins, built for the problem's accumulator and layout.
        settings: How it is measured.
        pdl: PDL columns; with both, ours runs in each and the baselines, which choose by themselves, count for both.
        limits: Rounds and seconds of the figure, the seconds shared by its processes; ``None`` takes the settings'
            ``final_rounds``.
        optional: Names of optional contestants.
        foreign: A kernel that is not ours, in a process of its own, judged in the same rounds.
    """

    problem: Problem
    candidates: tuple[tuple[KernelConfig, BuiltKernel], ...]
    settings: BenchSettings
    pdl: tuple[bool, ...] = (False,)
    limits: RoundLimits | None = None
    optional: tuple[str, ...] = ()
    foreign: ForeignKernel | None = None

    @property
    def heats(self) -> bool:
        """Whether its rounds run the chip into its power limit."""
        return heats(self.problem.m, self.problem.n, self.problem.k)

    @property
    def ready_together(self) -> bool:
        """Whether its processes may all hold its buffers and captures while one of them times."""
        return not self.heats and self.foreign is None

    @property
    def soak_s(self) -> float:
        """Seconds of untimed rounds in each process before those that count."""
        floor = floor_us(self.problem.m, self.problem.n, self.problem.k)
        if floor <= _WARMING_FLOOR_US:
            return 0.0
        return self.settings.presoak_s if self.heats else self.settings.warm_s

    @property
    def parts(self) -> int:
        """Replays that a round's time is split into; one where a foreign kernel's clock needs its length."""
        return 1 if self.foreign is not None else self.settings.final_parts

    @property
    def figure_replay_ms(self) -> float:
        """Device time of one replay of a figure, at least."""
        return self.settings.final_replay_ms / self.parts

    @property
    def setup_deadline_s(self) -> float:
        """Seconds after which preparing it hangs, the rounds not counted."""
        return _SETUP_DEADLINE_S + OPTIONAL_DEADLINE_S * len(self.optional)

    @property
    def rounds(self) -> RoundLimits:
        """How long the figure goes on, in all processes together."""
        return self.limits or RoundLimits(self.settings.final_rounds, seed=self.settings.seed)

    def process_limits(self, number: int) -> RoundLimits:
        """How long process ``number`` goes on: its share of the seconds, and other orders than in the others."""
        whole, share = self.rounds, 1.0 / self.settings.final_processes
        return RoundLimits(
            rounds=whole.rounds,
            warmup_s=max(whole.warmup_s * share, self.soak_s),
            benchmark_s=None if whole.benchmark_s is None else whole.benchmark_s * share,
            seed=whole.seed + number,
            parts=self.parts,
        )
