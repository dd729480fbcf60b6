"""Builds many configurations on all cores: one compiler process per core, each with a deadline it cannot argue with."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeAlias

from cudal2.build.artifact import BuildResult, BuiltKernel, CompileFailure
from cudal2.build.cache import BuildCache
from cudal2.build.child import kept, limit_s, serve
from cudal2.build.compiler import compile_source
from cudal2.build.cores import default_jobs
from cudal2.build.nvcc import KERNEL_BYTES
from cudal2.build.toolchain import Toolchain
from cudal2.closing import Closing
from cudal2.codegen import KernelSource, build_key, render
from cudal2.problem import Acc, Dtype, Layout
from cudal2.space.config import KernelConfig

Request: TypeAlias = tuple[KernelConfig, Acc, Layout, Dtype]
OnDone: TypeAlias = Callable[[BuildResult], None]

DEADLINE_S = 120.0
#: Making a precompiled header costs two to three compiles, so a process must have a few to come.
_PCH_PAYS_FROM = 4
_ATTEMPTS = 2
#: Seconds a compiler process has to end the nvcc that it waits for.
_NVCC_ENDS_S = 2.0


@dataclass
class _Slot:
    """A compiler process and what it is busy with."""

    process: BaseProcess
    connection: Connection
    pch_dir: Path
    source: KernelSource | None = None
    started: float = 0.0
    has_pch: bool = False
    busy_with_nvcc: bool = False


class BuildPool(Closing):
    """Compiler processes that stay up between calls, so that their start and their precompiled header are paid once.

    Args:
        cache: Where results are found and kept.
        toolchain: What compiles; one that cannot makes every miss a failure.
        jobs: Processes; by default one per usable core, fewer where memory is short.
        deadline_s: Longest compile; a longer one is killed and reported, not cached, since the machine may be to blame.
    """

    def __init__(
        self, cache: BuildCache, toolchain: Toolchain, jobs: int | None = None, deadline_s: float = DEADLINE_S
    ) -> None:
        """See the class."""
        self._cache = cache
        self._toolchain = toolchain
        self._jobs = jobs if jobs is not None else default_jobs()
        self._deadline_s = deadline_s
        self._slots: list[_Slot] = []
        self._built: dict[str, BuiltKernel] = {}
        self._context = multiprocessing.get_context("spawn")

    def build(self, requests: Iterable[Request], on_done: OnDone | None = None) -> dict[str, BuildResult]:
        """Builds what the cache lacks.

        Args:
            requests: Configurations; those that share a source are built once.
            on_done: Called with each result as it comes, cache hits first.

        Returns:
            One result per build key.

        Raises:
            CacheError: The cache cannot be written.
            ToolchainError: The kernel template is unusable.
        """
        results: dict[str, BuildResult] = {}

        def finish(result: BuildResult) -> None:
            results[result.name] = result
            if isinstance(result, BuiltKernel):
                self._built[result.name] = result
            if on_done is not None:
                on_done(result)

        missing: deque[KernelSource] = deque()
        keyed = {build_key(*request): request for request in requests}
        for key in [key for key in keyed if key in self._built]:
            # Most candidates of a search differ at run time alone from one that this process has read and verified.
            if self._built[key].cubin_path.is_file():
                finish(self._built[key])
                del keyed[key]
        for source in _sources(keyed.values()):
            found = self._cache.lookup(source, self._toolchain)
            if found is not None:
                finish(found)
            elif not self._toolchain.of(source).can_compile:
                finish(_cannot_compile(source, self._toolchain.of(source)))
            else:
                missing.append(source)
        try:
            self._compile(missing, finish)
        except BaseException:
            self.close()  # busy processes hold answers to this call, which the next one must not see
            raise
        return results

    def close(self) -> None:
        """Ends the compiler processes; a later build starts new ones."""
        for slot in self._slots:
            _end(slot)
        self._slots.clear()

    def _compile(self, missing: deque[KernelSource], finish: OnDone) -> None:
        deaths: Counter[str] = Counter()
        wanted = min(self._jobs, len(missing))
        if any(source.compiler == "nvcc" for source in missing):
            wanted = min(wanted, default_jobs(KERNEL_BYTES))
        while missing or any(slot.source for slot in self._slots):
            while len(self._slots) < wanted:
                self._slots.append(self._start())
            for slot in self._slots:
                if missing and slot.source is None:
                    slot.has_pch = slot.has_pch or len(missing) >= _PCH_PAYS_FROM * wanted
                    source = missing.popleft()
                    # A full temporary folder kills the compiler under its precompiled header, and only there.
                    self._send(slot, source, use_pch=slot.has_pch and not deaths[source.name])
            for slot, source in self._ready():
                outcome = self._receive(slot, source)
                if outcome is not None:
                    finish(outcome)
                    continue
                deaths[source.name] += 1
                if deaths[source.name] < _ATTEMPTS:
                    missing.append(source)
                else:
                    finish(_died(source, slot))

    def _ready(self) -> list[tuple[_Slot, KernelSource]]:
        """Waits until a process answers, dies or runs out of time."""
        busy = [(slot, slot.source) for slot in self._slots if slot.source is not None]
        earliest = min(slot.started + limit_s(source, self._deadline_s) for slot, source in busy)
        answered = wait([slot.connection for slot, _ in busy], timeout=max(0.0, earliest - time.monotonic()))
        now = time.monotonic()
        return [
            (slot, source)
            for slot, source in busy
            if slot.connection in answered or slot.started + limit_s(source, self._deadline_s) <= now
        ]

    def _receive(self, slot: _Slot, source: KernelSource) -> BuildResult | None:
        """Takes a result; ``None`` if the process died instead. An overdue process is ended."""
        slot.source = None
        try:
            outcome = slot.connection.recv() if slot.connection.poll() else None
        except (EOFError, OSError):
            self._drop(slot)
            return None
        if outcome is None:
            self._drop(slot)
            waited_s = limit_s(source, self._deadline_s)
            reason = f"still compiling after {waited_s:g} s"
            return CompileFailure(source.name, source.digest, reason, None, waited_s)
        if isinstance(outcome, BaseException):
            raise outcome
        result: BuildResult = outcome
        return result

    def _drop(self, slot: _Slot) -> None:
        self._slots.remove(slot)
        _end(slot)

    def _send(self, slot: _Slot, source: KernelSource, use_pch: bool) -> None:
        slot.source, slot.started, slot.busy_with_nvcc = source, time.monotonic(), source.compiler == "nvcc"
        try:
            slot.connection.send((source, use_pch))
        except (BrokenPipeError, OSError):
            return  # dead already: the wait that follows sees the closed pipe

    def _start(self) -> _Slot:
        ours, theirs = self._context.Pipe()
        pch_dir = Path(tempfile.mkdtemp(prefix="cudal2-pch-"))
        arguments = (theirs, self._cache.root, self._toolchain, pch_dir, self._deadline_s)
        process = self._context.Process(target=serve, args=arguments, name="cudal2-compiler", daemon=True)
        process.start()
        theirs.close()
        return _Slot(process, ours, pch_dir)


def build_all(
    requests: Sequence[Request],
    cache: BuildCache,
    toolchain: Toolchain,
    jobs: int | None = None,
    on_done: OnDone | None = None,
) -> dict[str, BuildResult]:
    """:meth:`BuildPool.build` with a pool for this one call; keys are those of :func:`cudal2.codegen.build_key`."""
    with BuildPool(cache, toolchain, jobs) as pool:
        return pool.build(requests, on_done)


def build_here(request: Request, cache: BuildCache, toolchain: Toolchain) -> BuildResult:
    """Builds one kernel in this process, for callers that must not start others; it has no deadline."""
    source = render(*request)
    found = cache.lookup(source, toolchain)
    if found is not None:
        return found
    if not toolchain.of(source).can_compile:
        return _cannot_compile(source, toolchain.of(source))
    return kept(source, cache, toolchain, compile_source(source, toolchain))


def _sources(requests: Iterable[Request]) -> list[KernelSource]:
    digests: dict[tuple[str, ...], str] = {}
    return [render(*request, digests=digests) for request in requests]


def _cannot_compile(source: KernelSource, toolchain: Toolchain) -> CompileFailure:
    reason = f"not in the build cache, and this machine cannot compile: {toolchain.unavailable}"
    return CompileFailure(source.name, source.digest, reason, None, 0.0)


def _died(source: KernelSource, slot: _Slot) -> CompileFailure:
    code = slot.process.exitcode
    reason = (
        f"the compiler process died {_ATTEMPTS} times (exit code {code}; -9 mostly means no memory: use fewer jobs)"
    )
    return CompileFailure(source.name, source.digest, reason, None, time.monotonic() - slot.started)


def _end(slot: _Slot) -> None:
    slot.connection.close()
    if slot.busy_with_nvcc:
        slot.process.terminate()  # it ends nvcc, which a kill would leave behind
        slot.process.join(_NVCC_ENDS_S)
    slot.process.kill()
    slot.process.join()
    shutil.rmtree(slot.pch_dir, ignore_errors=True)
