"""``Runner``: the seam between a search and whatever answers it, a GPU or a recording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cudal2.problem import Problem
from cudal2.records.measurement import Measurement
from cudal2.space.config import KernelConfig
from cudal2.space.space import SearchSpace


class Runner(Protocol):
    """Answers configurations with measurements and keeps account of what they cost.

    A candidate that fails is a :class:`Measurement` with its status and reason; an exception means the runner failed.
    """

    @property
    def space(self) -> SearchSpace:
        """The space whose axes and flat indices :meth:`allowed` speaks."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Problems it can answer; a GPU answers any, and lists those it was started for."""

    @property
    def nondeterministic(self) -> bool:
        """Whether the same question can get another answer."""

    @property
    def cost_s(self) -> float:
        """Seconds of building and measuring so far; for a recording, what they took when recorded."""

    def allowed(self, problem: Problem) -> NDArray[np.int64]:
        """Flat indices of the configurations that may be asked for, ascending."""

    def reference_us(self, problem: Problem) -> float:
        """Median time of cuBLASLt-AutoTuning on the problem."""

    def run(self, problem: Problem, configs: Sequence[KernelConfig]) -> list[Measurement]:
        """One measurement per configuration, in the order asked."""
