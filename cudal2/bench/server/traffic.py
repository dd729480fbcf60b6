"""Arrivals: when requests come, drawn before anything is measured and the same for every contestant."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cudal2 import floor
from cudal2.errors import UsageError
from cudal2.problem import Problem
from cudal2.records.measurement import STATES, State

#: Requests per block: fewer have no median worth the name, more only add to p99.
REQUESTS = (10, 400)
#: One request in so many is served again for its device time.
_DEVICE_SHARE = 5
#: What a request keeps the client besides the kernel, to plan by.
_HOST_US = 30.0
_FASTEST_QPS = 1e6


@dataclass(frozen=True)
class Traffic:
    """What arrives, and for how long.

    Attributes:
        target_qps: Mean arrivals per second; the gaps are exponential.
        states: What the requests find the device in, in this order.
        seconds: Time all contestants and states together may take, within the limits of ``REQUESTS``.
        warmup_s: Time of requests that do not count, before the others.
        blocks: Blocks per contestant and state, in shuffled order between contestants.
        seed: Seed of arrivals and orders.
    """

    target_qps: float = 1000.0
    states: tuple[State, ...] = STATES
    seconds: float = 10.0
    warmup_s: float = 0.0
    blocks: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.target_qps <= _FASTEST_QPS:
            raise UsageError(
                f"--target_qps {self.target_qps:g}: give a mean number of arrivals per second, up to {_FASTEST_QPS:g}"
            )

    def requests(self, problem: Problem, contestants: int) -> int:
        """Requests per block that fill ``seconds``."""
        blocks = self.blocks * len(self.states) * max(1, contestants)
        fitting = self.seconds * 1e6 / self._interval_us(problem) / blocks / (1 + 1 / _DEVICE_SHARE)
        fewest, most = REQUESTS
        return max(fewest, min(most, int(fitting)))

    def device_requests(self, requests: int) -> int:
        """Requests per block of the pass for device times."""
        return max(2, requests // _DEVICE_SHARE)

    def expected_s(self, problem: Problem, contestants: int) -> float:
        """What it will take, roughly."""
        requests = self.requests(problem, contestants)
        served = (requests + self.device_requests(requests)) * self.blocks * len(self.states) * max(1, contestants)
        return self.warmup_s + served * self._interval_us(problem) / 1e6

    def arrivals_us(self, block: int, requests: int) -> NDArray[np.float64]:
        """Arrivals of a block, microseconds from its start; a shorter list is the beginning of a longer one."""
        gaps = np.random.default_rng((self.seed, block)).exponential(1e6 / self.target_qps, requests)
        return np.cumsum(gaps)

    def _interval_us(self, problem: Problem) -> float:
        """Between two requests, on average: the arrivals', or what serving takes if that is more."""
        return max(1e6 / self.target_qps, 2.0 * floor.floor_us(problem.m, problem.n, problem.k) + _HOST_US)
