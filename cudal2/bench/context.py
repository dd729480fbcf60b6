"""Everything that candidates of one problem share: buffers, check data and answers, tensor maps, the reference."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cudal2.bench.baselines.reference import Reference
from cudal2.bench.candidate import KernelContestant
from cudal2.bench.correctness import CheckResult, Checks
from cudal2.bench.device import DeviceInfo
from cudal2.bench.inputs import BufferSets, most_launches, rotation_count
from cudal2.bench.timing import Contestant, Stopwatch
from cudal2.floor import floor_us
from cudal2.launch.driver import ZeroedBuffer
from cudal2.launch.kernel import Allocate, LoadedKernel
from cudal2.launch.tensor_map import MapCache
from cudal2.problem import Problem
from cudal2.settings import BenchSettings
from cudal2.space.config import KernelConfig


class ProblemContext:
    """One problem on the device, ready for candidates.

    Args:
        problem: What is computed.
        settings: How it is measured.
        info: The device.
        device: Where.
        replay_ms: Length of a replay, which bounds the rotation.
        allocate: Where candidates' workspaces come from.
    """

    def __init__(
        self,
        problem: Problem,
        settings: BenchSettings,
        info: DeviceInfo,
        device: torch.device,
        replay_ms: float,
        allocate: Allocate = ZeroedBuffer,
    ) -> None:
        """Allocates, draws the data and computes the answers; no reference is made yet."""
        self.problem = problem
        self.settings = settings
        self._floor_us = floor_us(problem.m, problem.n, problem.k)
        self._sm_count = info.sm_count
        count = rotation_count(problem, info.l2_bytes, settings.l2_multiple, most_launches(replay_ms))
        self.sets = BufferSets(problem, count, device, settings.seed)
        self.checks = Checks(problem, device, settings.seed + 1)
        self.stopwatch = Stopwatch(self.sets, int(settings.l2_multiple * info.l2_bytes))
        self._maps, self._check_maps = MapCache(), MapCache()
        self._allocate = allocate
        self._reference: Reference | None = None

    @property
    def bytes(self) -> int:
        """Device memory held, roughly: the reference may keep B a second time."""
        return self.sets.bytes * (2 if self._reference else 1) + self.checks.bytes

    def reference(self) -> Reference:
        """cuBLASLt-AutoTuning on the same buffers, tuned when first asked for."""
        if self._reference is None:
            self._reference = Reference(self.problem, self.settings, self.stopwatch, self.checks)
        return self._reference

    def workspace_bytes(self, kernel: LoadedKernel, config: KernelConfig) -> int:
        """Device memory that binding a configuration allocates and clears.

        Raises:
            LaunchError: Its host code does not take the problem.
        """
        return kernel.plan(config, self.problem, self._sm_count).workspace_bytes

    def candidate(self, kernel: LoadedKernel, config: KernelConfig, pdl: bool) -> KernelContestant:
        """A configuration bound to the timing buffers."""
        return KernelContestant(kernel, config, self.sets, self._sm_count, pdl, self._maps, self._allocate)

    @property
    def likely_us(self) -> float:
        """What a launch may take: as long as the reference, or the floor twice."""
        return self._reference.median_us if self._reference is not None else 2.0 * self._floor_us

    def checked(self, kernel: LoadedKernel, config: KernelConfig, pdl: bool) -> KernelContestant:
        """A configuration bound to the check data."""
        sets, maps = self.checks.sets, self._check_maps
        return KernelContestant(kernel, config, sets, self._sm_count, pdl, maps, self._allocate)

    def check(self, kernel: LoadedKernel, config: KernelConfig, pdl: bool) -> CheckResult:
        """Whether a configuration is right on the check data."""
        return self.begin_check(self.checked(kernel, config, pdl))()

    def begin_check(self, contestant: Contestant) -> Callable[[], CheckResult]:
        """:meth:`check` of what is bound to the check data, enqueued; what it returns waits for it."""
        return self.checks.begin(contestant, self.stopwatch.stream)

    def close(self) -> None:
        """Gives the reference's graph and handles back; memory goes with the object."""
        if self._reference is not None:
            self._reference.close()
