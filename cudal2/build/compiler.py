"""Compiles one source and reads what ptxas says of it; a cubin that would be slow or would hang counts as a failure."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from cudal2.build import nvcc, nvrtc
from cudal2.build.toolchain import Toolchain
from cudal2.codegen import ENTRY, KernelSource, headers_digest
from cudal2.errors import ToolchainError

_ENTRY_REPORT = "Compiling entry function '"
_REGISTERS = re.compile(r"Used (\d+) registers")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores")
_STATIC_SMEM = re.compile(r"(\d+) bytes smem")
#: A full disk under the precompiled header says nothing of the kernel, and must not be cached as if it did.
_PCH_FAILED = re.compile(r"PCH (?:file|directory)")
_LOST_HEADER = re.compile(r"(?:could not|cannot) open source file \S+")
#: What nvcc's parts say of a source; a host compiler that is missing, or no memory, says nothing of this kind.
_NVCC_ERROR = re.compile(r"(?:\(\d+\)|:\d+): error|ptxas (?:error|fatal)")
_PCH_USED = re.compile(r'using precompiled header file "')
#: ptxas calls these "info"; each one costs more than any axis of the space could win back.
_FATAL_REMARKS = re.compile(
    r"^.*(?:wgmma\.mma_async instructions are serialized|'setmaxnreg' ignored|\(C7508\)|\(C7510\)).*$", re.M
)


@dataclass(frozen=True)
class Compilation:
    """What came out of the compiler, not yet in the cache.

    Attributes:
        cubin: Empty if there is a reason.
        reason: Why the result is unusable, one line; empty if it is fine.
        log: Everything the compiler said.
        registers: Registers per thread.
        spill_bytes: Local memory per thread.
        static_smem_bytes: Shared memory the kernel declares statically.
        compile_s: Seconds.
        pch_used: Whether a precompiled header was read, not made.
        pch_failed: Whether it could be neither; the source was then compiled without.
        library: The host half of what nvcc compiles, a shared library; empty without one.
        final: Whether another try would end in the same: not where nvcc failed without a word about the source.
    """

    cubin: bytes
    reason: str
    log: str
    registers: int
    spill_bytes: int
    static_smem_bytes: int
    compile_s: float
    pch_used: bool
    pch_failed: bool = False
    library: bytes = b""
    final: bool = True


def compile_source(source: KernelSource, toolchain: Toolchain, pch_dir: Path | None = None) -> Compilation:
    """Compiles in this process, with no deadline of its own.

    Args:
        source: What to compile.
        toolchain: By what.
        pch_dir: Folder for precompiled headers; NVRTC keeps them valid for this process alone, so never share it.

    Raises:
        ToolchainError: A header is missing, or one of ours changed since the source was rendered.
    """
    begin = time.perf_counter()
    toolchain = toolchain.of(source)
    library, pch_failed = b"", False
    if source.compiler == "nvcc":
        assert toolchain.nvcc is not None, toolchain.unavailable
        folders = (source.include_dir, *toolchain.include_dirs)
        cubin, library, log = nvcc.compile_kernel(toolchain.nvcc, source.text, toolchain.target, folders)
    else:
        cubin, log = _compile(source, toolchain, pch_dir)
        pch_failed = not cubin and pch_dir is not None and _PCH_FAILED.search(log) is not None
        if pch_failed:
            cubin, log = _compile(source, toolchain, None)
    if lost := _LOST_HEADER.search(log):
        name = "nvcc" if source.compiler == "nvcc" else "NVRTC"
        raise ToolchainError(
            f"{name} {lost.group(0)}: the header packages are damaged: {nvrtc.INSTALL} --force-reinstall"
        )
    if headers_digest(source.text, source.include_dir) != source.headers:
        raise ToolchainError(f"the kernel headers in {source.include_dir} changed during the build: run it again")
    compile_s = time.perf_counter() - begin
    usage = _entry_report(log)
    registers, stack_bytes = _number(_REGISTERS, usage), _number(_STACK, usage)
    reason = _rejection(source, log) if not cubin else _unfitness(source, log, registers)
    return Compilation(
        cubin=b"" if reason else cubin,
        reason=reason,
        log=log,
        registers=registers,
        spill_bytes=stack_bytes,
        static_smem_bytes=_number(_STATIC_SMEM, usage),
        compile_s=compile_s,
        pch_used=_PCH_USED.search(log) is not None,
        pch_failed=pch_failed,
        library=b"" if reason else library,
        final=bool(cubin) or source.compiler == "nvrtc" or _NVCC_ERROR.search(log) is not None,
    )


def _compile(source: KernelSource, toolchain: Toolchain, pch_dir: Path | None) -> tuple[bytes, str]:
    if pch_dir is not None and pch_dir.is_dir():
        # NVRTC goes on reading a precompiled header after an edit of what it was made from.
        pch_dir = pch_dir / source.headers[:16]
        pch_dir.mkdir(exist_ok=True)
    # One name for all: NVRTC looks a precompiled header up by the name of the source.
    return nvrtc.compile_cubin(source.text, f"{ENTRY}.cu", toolchain.options(source.include_dir, pch_dir))


def _entry_report(log: str) -> str:
    """The part of ptxas' report on our kernel: a header may bring kernels of its own."""
    return log.partition(f"{_ENTRY_REPORT}{ENTRY}'")[2].partition(_ENTRY_REPORT)[0]


def _number(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.search(text)
    return int(match.group(1)) if match else 0


def _rejection(source: KernelSource, log: str) -> str:
    """First error of a rejected source, on one line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    first = next((line for line in lines if re.search(r"\b(?:error|fatal)\b", line)), lines[-1] if lines else "no log")
    name = "nvcc" if source.compiler == "nvcc" else "NVRTC"
    return f"rejected by {name}: {' '.join(first.split())}"


def _unfitness(source: KernelSource, log: str, registers: int) -> str:
    """Why a cubin must not be run although it compiled; empty if it may."""
    if remark := _FATAL_REMARKS.search(log):
        return f"ptxas: {remark.group(0).partition(':')[2].strip() or remark.group(0).strip()}"
    if not registers:
        return f"ptxas reported no entry function '{ENTRY}'"
    if registers * source.threads < source.register_pool:
        return (
            f"setmaxnreg would hang: {registers} registers x {source.threads} threads = {registers * source.threads}, "
            f"the warp groups ask for {source.register_pool}"
        )
    return ""
