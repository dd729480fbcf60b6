"""The compiler process: takes sources, leaves entries in the cache, answers with them."""

from __future__ import annotations

import logging
import math
import shutil
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from cudal2.build.artifact import BuildResult, CompileFailure
from cudal2.build.cache import BuildCache
from cudal2.build.compiler import Compilation, compile_source
from cudal2.build.nvcc import KERNEL_DEADLINE_S
from cudal2.build.toolchain import Toolchain
from cudal2.codegen import KernelSource
from cudal2.errors import Cudal2Error

log = logging.getLogger(__name__)

#: After the parent's deadline, so that it fires only where no parent is left to enforce that one.
_ORPHAN_MARGIN_S = 10


def serve(connection: Connection, cache_root: Path, toolchain: Toolchain, pch_dir: Path, deadline_s: float) -> None:
    """Answers each source with its result until the other end hangs up; our own failures travel as exceptions."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through the block that holds nvcc
    compiler = _Compiler(BuildCache(cache_root), toolchain, pch_dir)
    try:
        while True:
            source, use_pch = connection.recv()
            # The default action of SIGALRM ends the process even inside the compiler, where no Python runs.
            signal.alarm(math.ceil(limit_s(source, deadline_s)) + _ORPHAN_MARGIN_S)
            answer = compiler.answer(source, use_pch)
            signal.alarm(0)
            connection.send(answer)
    except (EOFError, OSError):
        return  # the parent closed the pipe, or died
    finally:
        shutil.rmtree(pch_dir, ignore_errors=True)
        # Nothing is held any more, and an exception while the interpreter ends would be printed.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def limit_s(source: KernelSource, deadline_s: float) -> float:
    """Longest compile of a source: nvcc has a deadline of its own, and there is an answer when it is over."""
    return deadline_s if source.compiler == "nvrtc" else deadline_s + KERNEL_DEADLINE_S


def kept(source: KernelSource, cache: BuildCache, toolchain: Toolchain, compilation: Compilation) -> BuildResult:
    """The compilation as the cache holds it, or beside the cache where the machine may be to blame."""
    if compilation.final:
        return cache.publish(source, toolchain, compilation)
    return CompileFailure(source.name, source.digest, compilation.reason, None, compilation.compile_s)


class _Compiler:
    """Compiles into the cache, with a precompiled header while that works."""

    def __init__(self, cache: BuildCache, toolchain: Toolchain, pch_dir: Path) -> None:
        self._cache = cache
        self._toolchain = toolchain
        self._pch_dir: Path | None = pch_dir

    def answer(self, source: KernelSource, use_pch: bool) -> BuildResult | Cudal2Error:
        try:
            compilation = compile_source(source, self._toolchain, self._pch_dir if use_pch else None)
            if compilation.pch_failed:
                log.warning("no precompiled headers: %s cannot hold one; builds take longer", self._pch_dir)
                self._pch_dir = None
            return kept(source, self._cache, self._toolchain, compilation)
        except Cudal2Error as error:
            return error
        except Exception as error:
            return Cudal2Error(f"compiling {source.name}: {type(error).__name__}: {error}")
