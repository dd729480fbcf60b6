"""``LocalRunner``: the GPU of this machine behind the ``Runner`` interface. Rules, then builds, then measurements."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudal2.bench.worker import Worker
from cudal2.build.artifact import BuildResult, BuiltKernel
from cudal2.build.cache import BuildCache, resolve_toolchain
from cudal2.build.pool import BuildPool
from cudal2.build.toolchain import Toolchain
from cudal2.closing import Closing
from cudal2.codegen import build_key, generator_version
from cudal2.errors import WorkerError
from cudal2.problem import Problem
from cudal2.records.fingerprint import Fingerprint
from cudal2.records.measurement import Measurement, Status
from cudal2.records.shards import RecordLog, require_environment
from cudal2.settings import BenchSettings
from cudal2.space.config import KernelConfig
from cudal2.space.space import SearchSpace

OnDone = Callable[[Measurement], None]
#: A row outlives this process at once, and the machine after at most this long: a sync costs as much as a measurement.
_SYNC_S = 0.5


class LocalRunner(Closing):
    """Builds and measures on one GPU; a context manager.

    Args:
        space: What is legal.
        problems: Problems it was started for; it answers any.
        settings: How candidates are checked and timed.
        pdl: Whether launches carry the programmatic-dependent-launch attribute.
        reference: Whether cuBLASLt-AutoTuning runs in the same rounds as every candidate.
        device_index: Which GPU.
        cache: Build cache; the user's by default.
        toolchain: Compiler; found on this machine, or what filled the cache, by default.
        jobs: Compiler processes.
        worker: The GPU's worker; its own by default.
        on_done: Called with every measurement as it comes.

    Raises:
        ToolchainError: Nothing can compile and the cache is empty.
    """

    nondeterministic = True

    def __init__(
        self,
        space: SearchSpace,
        problems: Sequence[Problem] = (),
        *,
        settings: BenchSettings | None = None,
        pdl: bool = False,
        reference: bool = True,
        device_index: int = 0,
        cache: BuildCache | None = None,
        toolchain: Toolchain | None = None,
        jobs: int | None = None,
        worker: Worker | None = None,
        on_done: OnDone | None = None,
    ) -> None:
        """Starts neither compilers nor the worker yet."""
        self.space = space
        self.problems = tuple(problems)
        self.settings = settings or BenchSettings()
        self.pdl = pdl
        self.cost_s = 0.0
        self._reference = reference
        self._on_done = on_done
        self.cache = cache or BuildCache()
        self.toolchain = toolchain or resolve_toolchain(self.cache, space.arch)
        self._pool = BuildPool(self.cache, self.toolchain, jobs)
        self.worker = worker or Worker(device_index, self.settings.deadline_s)
        self._log: RecordLog | None = None
        self._synced_at = time.monotonic()
        self._references: dict[Problem, float] = {}

    def close(self) -> None:
        """Ends compilers and worker and closes the records."""
        self.worker.close()
        self._pool.close()
        if self._log is not None:
            self._sync()
            self._log.close()
            self._log = None

    def fingerprint(self, families: Iterable[str] = ()) -> Fingerprint:
        """The environment its measurements are made in; starts the worker.

        Args:
            families: Kernel families that are measured; the space's by default.
        """
        info = self.worker.device_info()
        return Fingerprint(
            gpu=info.name,
            capability=info.capability,
            sm_count=info.sm_count,
            memory_gib=round(info.memory_bytes / 2**30),
            driver=info.driver,
            cuda=info.cuda,
            cublaslt=info.cublaslt,
            nvrtc=self.toolchain.nvrtc_version,
            generator_version=generator_version(*(tuple(families) or (self.space.family.name,))),
        )

    def record_to(self, directory: Path, session: dict[str, Any] | None = None) -> RecordLog:
        """Appends every later measurement to a new shard in ``directory``.

        Raises:
            EnvironmentProblemError: It cannot be written.
            RecordError: The shards there are of another environment.
        """
        fingerprint = self.fingerprint()
        require_environment(directory, fingerprint)
        self._log = RecordLog(directory, fingerprint, {"settings": asdict(self.settings), **(session or {})})
        return self._log

    def allowed(self, problem: Problem) -> NDArray[np.int64]:
        """Every legal configuration."""
        return self.space.legal_flat(problem)

    def reference_us(self, problem: Problem) -> float:
        """cuBLASLt-AutoTuning, measured alone once; measurements carry the reference of their own rounds.

        Raises:
            WorkerError: The problem cannot be brought up on the GPU.
        """
        if problem not in self._references:
            reference_us = self.worker.prepare(problem, self.settings, reference=True).reference_us
            if reference_us is None:
                raise WorkerError(f"{problem.mnk}: the worker gave no reference time")
            self._references[problem] = reference_us
        return self._references[problem]

    def build(self, work: Iterable[tuple[KernelConfig, Problem]]) -> dict[str, BuildResult]:
        """Fills the build cache ahead of measuring; results by :func:`cudal2.codegen.build_key`.

        Raises:
            CacheError: The cache cannot be written.
        """
        return self._pool.build([(config, *problem.signature) for config, problem in work])

    def run(self, problem: Problem, configs: Sequence[KernelConfig]) -> list[Measurement]:
        """One measurement per configuration, in the order asked."""
        rows = dict(self.stream(problem, configs))
        return [rows[index] for index in range(len(configs))]

    def stream(self, problem: Problem, configs: Sequence[KernelConfig]) -> Iterator[tuple[int, Measurement]]:
        """Measurements as they are made, each with the position of its configuration.

        What the rules forbid and what does not build comes first; everything is built before anything is timed, since
        compilers would disturb the clock.
        """
        started = time.monotonic()
        try:
            for index, row in self._measurements(problem, configs):
                self._keep(row)
                yield index, row
        finally:
            self._sync()
            self.cost_s += time.monotonic() - started

    def _measurements(self, problem: Problem, configs: Sequence[KernelConfig]) -> Iterator[tuple[int, Measurement]]:
        legal: list[int] = []
        for index, allowed in enumerate(self.space.allows(configs, problem)):
            if allowed:
                legal.append(index)
            else:
                reasons = "; ".join(self.space.explain(configs[index], problem))
                yield index, self._failure(problem, configs[index], Status.CONSTRAINTS, reasons)
        results = self.build((configs[index], problem) for index in legal)
        built: list[tuple[int, BuiltKernel]] = []
        for index in legal:
            result = results[build_key(configs[index], *problem.signature)]
            if isinstance(result, BuiltKernel):
                built.append((index, result))
            else:
                yield index, self._compile_failure(problem, configs[index], result)
        candidates = [(configs[index], kernel) for index, kernel in built]
        rows = self.worker.measure(problem, candidates, self.settings, self.pdl, self._reference)
        yield from zip((index for index, _ in built), rows, strict=True)

    def _compile_failure(self, problem: Problem, config: KernelConfig, result: BuildResult) -> Measurement:
        assert not isinstance(result, BuiltKernel)
        log = f"log: {result.log_path}" if result.log_path else ""
        row = self._failure(problem, config, Status.COMPILE, result.reason)
        return replace(row, compile_s=result.compile_s, detail=log)

    def _failure(self, problem: Problem, config: KernelConfig, status: Status, reason: str) -> Measurement:
        utc = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        return Measurement(problem, config.family, config, status, reason, pdl=self.pdl, utc=utc)

    def _keep(self, row: Measurement) -> None:
        if self._on_done is not None:
            self._on_done(row)
        if self._log is not None:
            self._log.write(row)
            if time.monotonic() - self._synced_at > _SYNC_S:
                self._sync()

    def _sync(self) -> None:
        if self._log is not None:
            self._log.sync()
        self._synced_at = time.monotonic()
