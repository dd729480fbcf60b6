"""Finds NVRTC, nvcc and the CUTLASS and CUDA headers, and signs them: another toolchain makes another cubin."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata, util
from pathlib import Path
from typing import Any

from cudal2.arch import SM90, Arch
from cudal2.build import nvrtc
from cudal2.build.nvcc import KERNEL_FLAGS, Nvcc
from cudal2.codegen import KernelSource
from cudal2.errors import ToolchainError

#: NDEBUG is not a matter of taste: a device-side assert makes ptxas serialise the wgmma pipeline.
OPTIONS: dict[str, Any] = {
    "std": "c++17",
    "define_macro": ["NDEBUG"],
    "device_as_default_execution_space": True,
    "ptxas_options": ["-v"],
}


@dataclass(frozen=True)
class Toolchain:
    """What turns a source into a cubin.

    Attributes:
        target: NVRTC's architecture, for example ``sm_90a``.
        nvrtc_version: Version of NVRTC, with the patch level where its package tells.
        versions: Versions of the header packages.
        include_dirs: Header folders, in search order.
        signature: 16 hex digits over target, versions and options; machine paths leave no trace in it.
        unavailable: Why this machine cannot compile; empty if it can.
        nvcc: What compiles instead of NVRTC, with the same headers.
    """

    target: str
    nvrtc_version: str
    versions: tuple[tuple[str, str], ...]
    include_dirs: tuple[Path, ...]
    signature: str
    unavailable: str = ""
    nvcc: Nvcc | None = None

    @classmethod
    def detect(cls, arch: Arch = SM90) -> Toolchain:
        """Looks at the installed packages, then at ``$CUTLASS_DIR`` and ``$CUDA_HOME``.

        Raises:
            ToolchainError: Something is missing; the message names the command that installs it.
        """
        major, minor = nvrtc.version()
        nvrtc_version = _package_version("nvidia-cuda-nvrtc", major) or f"{major}.{minor}"
        cutlass_dir, cutlass_version = _find_cutlass()
        cuda_dir, cuda_version = _find_header("nvidia-cuda-runtime", major, "cuda_runtime_api.h")
        cccl_dir, cccl_version = _find_header("nvidia-cuda-cccl", major, "cuda/std/type_traits")
        versions = (("cccl", cccl_version), ("cuda_runtime", cuda_version), ("cutlass", cutlass_version))
        return cls(
            target=arch.target,
            nvrtc_version=nvrtc_version,
            versions=versions,
            include_dirs=tuple(dict.fromkeys((cutlass_dir, cuda_dir, *_cccl_roots(cccl_dir)))),
            signature=_sign(arch.target, nvrtc_version, versions),
        )

    def of(self, source: KernelSource) -> Toolchain:
        """The one that compiles a source: itself, or nvcc with its headers, which may be unavailable."""
        return self if source.compiler == "nvrtc" or self.nvcc is not None else _by_nvcc(self)

    @property
    def can_compile(self) -> bool:
        """False on a machine that only reads what another one built."""
        return not self.unavailable

    def options(self, include_dir: Path, pch_dir: Path | None) -> dict[str, Any]:
        """Keyword arguments of ``cuda.core.ProgramOptions`` for one source."""
        options = {
            **OPTIONS,
            "arch": self.target,
            "include_path": [str(path) for path in (include_dir, *self.include_dirs)],
            # Where there is a driver, NVRTC keeps a cache of its own and answers from it without ptxas' report.
            "no_cache": True,
        }
        if pch_dir is not None:
            options.update(pch=True, pch_dir=str(pch_dir), pch_messages=True)
        return options

    def to_dict(self) -> dict[str, Any]:
        """What a cache keeps of the toolchain that filled it."""
        return {
            "target": self.target,
            "nvrtc_version": self.nvrtc_version,
            "versions": dict(self.versions),
            "options": OPTIONS if self.nvcc is None else list(KERNEL_FLAGS),
            "signature": self.signature,
        }


@functools.lru_cache(maxsize=16)
def _by_nvcc(toolchain: Toolchain) -> Toolchain:
    if not toolchain.can_compile:
        return toolchain
    try:
        nvcc = Nvcc.detect()
    except ToolchainError as error:
        return replace(toolchain, unavailable=str(error))
    versions = (*toolchain.versions, ("nvcc", nvcc.version))
    text = json.dumps([toolchain.target, versions, KERNEL_FLAGS])
    return replace(toolchain, versions=versions, signature=hashlib.sha256(text.encode()).hexdigest()[:16], nvcc=nvcc)


def _sign(target: str, nvrtc_version: str, versions: tuple[tuple[str, str], ...]) -> str:
    text = json.dumps([target, nvrtc_version, versions, OPTIONS], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _distributions(package: str, major: int) -> Iterator[metadata.Distribution]:
    """The package as CUDA 13 names it, then as CUDA 12 did."""
    for name in (package, f"{package}-cu{major}"):
        try:
            yield metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue


def _package_version(package: str, major: int) -> str:
    return next((distribution.version for distribution in _distributions(package, major)), "")


def _find_header(package: str, major: int, header: str) -> tuple[Path, str]:
    """Folder that holds a header, and a version for the signature."""
    for distribution in _distributions(package, major):
        for file in distribution.files or ():
            if file.as_posix().endswith(f"/{header}"):
                path = Path(str(distribution.locate_file(file)))
                return path.parents[header.count("/")].resolve(), distribution.version
    for root in _cuda_roots():
        for folder in (root / "include", root / "include" / "cccl"):
            if (folder / header).is_file():
                return folder, f"toolkit-{major}"
    raise ToolchainError(f"<{header}> not found: {nvrtc.INSTALL} (or pip install {package}, or set CUDA_HOME)")


def _cccl_roots(cccl_dir: Path) -> tuple[Path, ...]:
    """CCCL's own root and, inside a folder of the toolkit's headers, that too: they say <cccl/cuda/std/...>."""
    return (cccl_dir, cccl_dir.parent) if cccl_dir.name == "cccl" else (cccl_dir,)


def _cuda_roots() -> list[Path]:
    homes = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    return [Path(home) for home in homes if home]


def _find_cutlass() -> tuple[Path, str]:
    header = Path("cute") / "arch" / "mma_sm90_gmma.hpp"
    candidates = []
    # find_spec does not import: cutlass_library's own start-up is slow and chatty.
    spec = util.find_spec("cutlass_library")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        candidates.append((Path(location) / "source" / "include", _package_version("nvidia-cutlass", 0)))
    if home := os.environ.get("CUTLASS_DIR"):
        candidates.append((Path(home) / "include", f"checkout-{_cutlass_macro_version(Path(home))}"))
    for folder, version in candidates:
        if (folder / header).is_file():
            return folder.resolve(), version
    raise ToolchainError(
        f"the CUTLASS headers were not found: {nvrtc.INSTALL} (or pip install nvidia-cutlass, or set CUTLASS_DIR)"
    )


def _cutlass_macro_version(home: Path) -> str:
    """A checkout has no package version: hash the header that spells it."""
    path = home / "include" / "cutlass" / "version.h"
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8] if path.is_file() else "unknown"
