"""What a build ends in: a cubin with its resource use, or a failure with its reason; both are values, both cached."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from cudal2.codegen import ENTRY


@dataclass(frozen=True)
class BuiltKernel:
    """A cubin in the cache.

    Attributes:
        name: Build key of its source.
        digest: Digest of its source, headers included.
        cubin_path: The cubin.
        registers: Registers per thread at entry.
        spill_bytes: Local memory per thread; anything but 0 means the accumulators did not fit.
        smem_bytes: Shared memory of one block, dynamic and static.
        threads: Threads of one block.
        compile_s: Seconds the compiler took.
        log_path: What the compiler said.
        entry: Symbol of the kernel.
        library_path: Host code that fills the kernel's parameters, for kernels that nvcc compiles.
    """

    name: str
    digest: str
    cubin_path: Path
    registers: int
    spill_bytes: int
    smem_bytes: int
    threads: int
    compile_s: float
    log_path: Path
    entry: str = ENTRY
    library_path: Path | None = None


@dataclass(frozen=True)
class CompileFailure:
    """A source that yields no usable cubin.

    Attributes:
        name: Build key of the source.
        digest: Digest of the source, headers included.
        reason: One line.
        log_path: What the compiler said; ``None`` if it was never run or never came back.
        compile_s: Seconds the compiler took.
    """

    name: str
    digest: str
    reason: str
    log_path: Path | None
    compile_s: float

    @property
    def untried(self) -> bool:
        """Whether no compiler was run, since this machine has none for it."""
        return self.log_path is None and not self.compile_s


BuildResult: TypeAlias = BuiltKernel | CompileFailure
