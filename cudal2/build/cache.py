"""The build cache: a folder per toolchain and source, written elsewhere and renamed into place, never seen half-done.

    ROOT/<target>-<toolchain signature>/toolchain.json
    ROOT/<target>-<toolchain signature>/<build key>.<source digest>/{source.cu,kernel.cubin,build.json,log.txt}
                                                                        and kernel.so where the kernel has host code

Failed compiles are entries too. A cache carried to a machine that cannot compile is found there all the same.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import socket
import time
import uuid
from pathlib import Path
from typing import Any

from cudal2.arch import SM90, Arch
from cudal2.build.artifact import BuildResult, BuiltKernel, CompileFailure
from cudal2.build.compiler import Compilation
from cudal2.build.toolchain import Toolchain
from cudal2.codegen import KernelSource
from cudal2.errors import CacheError, ToolchainError
from cudal2.paths import cache_dir

log = logging.getLogger(__name__)

_TEMP = "tmp"
#: What reading a file of ours that is not as we wrote it may raise.
_DAMAGE = (OSError, ValueError, KeyError, TypeError, RecursionError)
_DIGEST_CHARS = 24
#: A write takes milliseconds; the margin is for containers that share a host name but not their process ids.
_DEAD_WRITER_AGE_S = 60.0


class BuildCache:
    """Cubins and compile failures on disk, shared by any number of processes.

    Args:
        root: Where; ``<cache folder>/build`` by default. It need not exist, nor be writable for reading.
    """

    def __init__(self, root: Path | None = None) -> None:
        """See the class."""
        self.root = root if root is not None else cache_dir() / "build"
        self._sweep()

    def lookup(self, source: KernelSource, toolchain: Toolchain) -> BuildResult | None:
        """What an earlier build of this source by this toolchain ended in; ``None`` if there was none.

        A damaged entry is moved aside, said so once, and counts as none. Where the toolchain cannot compile, an entry
        of any recorded toolchain serves.

        Raises:
            CacheError: A damaged entry cannot be moved aside.
        """
        for folder in self._folders(toolchain.of(source)):
            entry = folder / _entry_name(source)
            if not entry.is_dir():
                continue
            try:
                return _read_entry(entry, source)
            except _DAMAGE as error:
                self._move_aside(entry, error)
        return None

    def publish(self, source: KernelSource, toolchain: Toolchain, compilation: Compilation) -> BuildResult:
        """Stores a build and returns it as the cache now holds it, which is another process's if that one was first.

        Raises:
            CacheError: The cache cannot be written.
        """
        toolchain = toolchain.of(source)
        folder = self._folder(toolchain)
        final = folder / _entry_name(source)
        try:
            self._record(toolchain, folder)
            temp = self._new_temp()
            try:
                _write_entry(temp, source, compilation)
                _rename_unless_present(temp, final)
            finally:
                shutil.rmtree(temp, ignore_errors=True)
        except OSError as error:
            remedy = "make room or set CUDAL2_CACHE_DIR to a writable folder"
            raise CacheError(f"cannot write the build cache {self.root} ({error.strerror}): {remedy}") from error
        found = self.lookup(source, toolchain)
        if found is None:
            raise CacheError(f"build cache entry {final} does not read back: rm -r '{final}'")
        return found

    def recorded_toolchains(self, target: str) -> list[dict[str, Any]]:
        """Toolchains that filled this cache for an architecture, the latest first."""
        records = []
        for path in self.root.glob(f"{target}-*/toolchain.json"):
            try:
                records.append((path.stat().st_mtime, path.parent.name, _read_toolchain(path)))
            except _DAMAGE as error:
                log.warning("build cache: %s is unreadable (%s) and is left out", path, error)
        return [record for _, _, record in sorted(records, key=lambda item: item[:2], reverse=True)]

    def _folder(self, toolchain: Toolchain) -> Path:
        return self.root / f"{toolchain.target}-{toolchain.signature}"

    def _folders(self, toolchain: Toolchain) -> list[Path]:
        if toolchain.can_compile:
            return [self._folder(toolchain)]
        records = self.recorded_toolchains(toolchain.target)
        return [self.root / f"{toolchain.target}-{record['signature']}" for record in records]

    def _record(self, toolchain: Toolchain, folder: Path) -> None:
        """Leaves word of the toolchain before its first entry."""
        path = folder / "toolchain.json"
        if _is_toolchain(path):
            return
        folder.mkdir(parents=True, exist_ok=True)
        temp = self._new_temp() / path.name
        _write_durably(temp, json.dumps(toolchain.to_dict(), indent=1, sort_keys=True).encode())
        os.replace(temp, path)
        temp.parent.rmdir()

    def _new_temp(self) -> Path:
        """A folder on the same file system, named after its writer so that a dead writer's is known as such."""
        temp = self.root / _TEMP / f"{os.getpid()}-{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        temp.mkdir(parents=True)
        return temp

    def _sweep(self) -> None:
        """Removes what killed writers of this host left."""
        host = socket.gethostname()
        for temp in self.root.glob(f"{_TEMP}/*-{host}-*"):
            pid = temp.name.partition("-")[0]
            if pid.isdigit() and not _alive(int(pid)) and _age_s(temp) > _DEAD_WRITER_AGE_S:
                log.info("build cache: removing %s, left by a writer that died", temp)
                shutil.rmtree(temp, ignore_errors=True)

    def _move_aside(self, entry: Path, error: Exception) -> None:
        aside = entry.parent / f"{entry.name}.corrupt-{uuid.uuid4().hex[:8]}"
        try:
            entry.rename(aside)
        except FileNotFoundError:
            return  # another process was faster
        except OSError as failure:
            raise CacheError(f"build cache entry {entry} is damaged ({error}): rm -r '{entry}'") from failure
        log.warning("build cache: %s was damaged (%s); moved to %s", entry.name, error, aside.name)


def resolve_toolchain(cache: BuildCache, arch: Arch = SM90) -> Toolchain:
    """The toolchain of this machine, or on one that has none, the latest that filled the cache.

    Raises:
        ToolchainError: There is none, and the cache holds nothing either.
    """
    try:
        return Toolchain.detect(arch)
    except ToolchainError as error:
        records = cache.recorded_toolchains(arch.target)
        if not records:
            raise
        log.info("cannot compile here, using what %s holds: %s", cache.root, error)
        return Toolchain(
            target=arch.target,
            nvrtc_version=str(records[0]["nvrtc_version"]),
            versions=tuple(sorted(records[0]["versions"].items())),
            include_dirs=(),
            signature=str(records[0]["signature"]),
            unavailable=str(error),
        )


def _entry_name(source: KernelSource) -> str:
    return f"{source.name}.{source.digest[:_DIGEST_CHARS]}"


def _write_entry(folder: Path, source: KernelSource, compilation: Compilation) -> None:
    values = {
        "name": source.name,
        "digest": source.digest,
        "reason": compilation.reason,
        "registers": compilation.registers,
        "spill_bytes": compilation.spill_bytes,
        "smem_bytes": source.smem_bytes + compilation.static_smem_bytes,
        "threads": source.threads,
        "compile_s": round(compilation.compile_s, 4),
        "cubin_sha256": hashlib.sha256(compilation.cubin).hexdigest(),
    }
    if compilation.library:
        values["library_sha256"] = hashlib.sha256(compilation.library).hexdigest()
        _write_durably(folder / "kernel.so", compilation.library)
    _write_durably(folder / "source.cu", source.text.encode())
    _write_durably(folder / "log.txt", compilation.log.encode())
    if not compilation.reason:
        _write_durably(folder / "kernel.cubin", compilation.cubin)
    _write_durably(folder / "build.json", json.dumps(values, indent=1, sort_keys=True).encode())
    _sync(folder)


def _is_toolchain(path: Path) -> bool:
    """Whether a readable record lies there; a damaged one is written anew."""
    try:
        _read_toolchain(path)
    except _DAMAGE:
        return False
    return True


def _read_toolchain(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if path.parent.name != f"{record['target']}-{record['signature']}" or not isinstance(record["versions"], dict):
        raise ValueError("it is not what was written")
    return {**record, "nvrtc_version": str(record["nvrtc_version"])}


def _read_entry(entry: Path, source: KernelSource) -> BuildResult:
    values = json.loads((entry / "build.json").read_text(encoding="utf-8"))
    if values["digest"] != source.digest:
        raise ValueError("it belongs to another source")
    if not isinstance(values["reason"], str) or not isinstance(values["compile_s"], (int, float)):
        raise ValueError("its result is not what was written")
    log_path = entry / "log.txt"
    if values["reason"]:
        return CompileFailure(values["name"], values["digest"], values["reason"], log_path, values["compile_s"])
    counts = [values[name] for name in ("registers", "spill_bytes", "smem_bytes", "threads")]
    if not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError("its resource use is not what was written")
    cubin_path, library_path = entry / "kernel.cubin", entry / "kernel.so" if source.compiler == "nvcc" else None
    _require(cubin_path, values["cubin_sha256"])
    if library_path is not None:
        _require(library_path, values["library_sha256"])
    return BuiltKernel(
        name=values["name"],
        digest=values["digest"],
        cubin_path=cubin_path,
        registers=values["registers"],
        spill_bytes=values["spill_bytes"],
        smem_bytes=values["smem_bytes"],
        threads=values["threads"],
        compile_s=values["compile_s"],
        log_path=log_path,
        library_path=library_path,
    )


def _require(path: Path, sha256: str) -> None:
    if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        raise ValueError(f"its {path.name} is not the one that was written")


def _rename_unless_present(temp: Path, final: Path) -> None:
    """Publishes a folder; losing the race is fine, since both sides built the same thing."""
    try:
        os.rename(temp, final)
    except OSError:
        if not final.is_dir():
            raise
        return
    _sync(final.parent)


def _write_durably(path: Path, contents: bytes) -> None:
    with path.open("wb") as file:
        file.write(contents)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Makes names durable, not only contents."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
