"""Renders a configuration into the few lines of CUDA that instantiate a hand-written kernel template."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from cudal2.errors import ToolchainError
from cudal2.paths import kernels_dir
from cudal2.problem import Acc, Dtype, Layout, precision_of, require_accumulator
from cudal2.space.config import KernelConfig
from cudal2.space.families import FAMILIES, Compiler, Family, family_of

ENTRY = "cudal2_gemm"
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


@dataclass(frozen=True)
class KernelSource:
    """One translation unit, and what its cubin must live up to.

    Attributes:
        name: Build key, for example ``sm90_ws_128x256x64_s4_coop2_c2x1_k1_tma_o1_fp32_tn``.
        text: CUDA C++.
        digest: SHA-256 over the text and every header it includes from ``include_dir``.
        headers: The part of it that is the headers', by :func:`headers_digest`.
        threads: Threads of one block.
        smem_bytes: Dynamic shared memory of one block.
        register_pool: Registers of one block that the kernel's setmaxnreg hands out; 0 where it uses none.
        include_dir: Where ``#include "cudal2/..."`` is found.
        compiler: What compiles it.
    """

    name: str
    text: str
    digest: str
    headers: str
    threads: int
    smem_bytes: int
    register_pool: int
    include_dir: Path
    compiler: Compiler = "nvrtc"


def build_key(config: KernelConfig, acc: Acc, layout: Layout, dtype: Dtype = "fp16") -> str:
    """Names the cubin a configuration needs: configurations that differ only at run time share one."""
    return f"{config.family}_{config.build_name}_{precision_of(acc, dtype)}_{layout}"


def render(
    config: KernelConfig,
    acc: Acc,
    layout: Layout,
    dtype: Dtype = "fp16",
    kernels: Path | None = None,
    digests: dict[tuple[str, ...], str] | None = None,
) -> KernelSource:
    """Fills the template of the configuration's family.

    Args:
        config: What to instantiate; its run-time axes leave no trace in the text.
        acc: Accumulator type.
        layout: Layout of B.
        dtype: Type of A, B and C.
        kernels: Folder with ``<family>.cu.in`` and ``include/``; the packaged one by default.
        digests: Of headers, by what includes them: shared by many sources, they are read once.

    Raises:
        ToolchainError: The template is missing, or asks for a placeholder nobody fills.
        UsageError: No hardware has the accumulator for the dtype.
    """
    require_accumulator(acc, dtype)
    folder = kernels if kernels is not None else kernels_dir()
    family = family_of(config)
    constants = family.geometry.constants(config, acc, layout, dtype)
    try:
        literals = {name: _literal(value) for name, value in constants.items()}
        text = Template(_template(family, folder)).substitute(literals)
    except (KeyError, ValueError) as error:
        raise ToolchainError(
            f"{family.name}.cu.in: unknown placeholder {error}: the family's geometry.constants fills them"
        ) from error
    included, digests = tuple(_INCLUDE.findall(text)), {} if digests is None else digests
    if included not in digests:
        digests[included] = headers_digest(text, folder / "include")
    headers = digests[included]
    return KernelSource(
        name=build_key(config, acc, layout, dtype),
        text=text,
        digest=hashlib.sha256(f"{text}\0{headers}".encode()).hexdigest(),
        headers=headers,
        threads=family.geometry.threads(config),
        smem_bytes=family.geometry.smem_bytes(config),
        register_pool=family.geometry.register_pool(config),
        include_dir=folder / "include",
        compiler=family.compiler,
    )


def headers_digest(text: str, include_dir: Path) -> str:
    """SHA-256 over names and contents of the headers a source includes from a folder, and those that they include.

    Raises:
        ToolchainError: One of them is missing.
    """
    contents: dict[str, bytes] = {}
    _collect(text, include_dir, contents)
    digest = hashlib.sha256()
    for name, content in sorted(contents.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def generator_version(*families: str, kernels: Path | None = None) -> str:
    """What decides the code of each family's kernels, as 16 hex digits: times of two versions must not be mixed.

    Over the template, the headers it includes and the module that derives its constants; other families leave no trace.

    Args:
        families: Names of families; several versions are joined by ``+`` in the order of the names.
        kernels: Folder with the templates and ``include/``; the packaged one by default.
    """
    folder = kernels if kernels is not None else kernels_dir()
    return "+".join(_version(FAMILIES[name], folder) for name in sorted(set(families)))


def _version(family: Family, folder: Path) -> str:
    template = _template(family, folder)
    digest = hashlib.sha256(headers_digest(template, folder / "include").encode())
    digest.update(template.encode() + b"\0" + family.geometry_file.read_bytes())
    return digest.hexdigest()[:16]


def _template(family: Family, folder: Path) -> str:
    path = folder / f"{family.name}.cu.in"
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ToolchainError(f"cannot read kernel template {path} ({error.strerror}): reinstall cudal2") from error


def _literal(value: Any) -> str:
    """A value in C++."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _collect(text: str, include_dir: Path, contents: dict[str, bytes]) -> None:
    """Adds what a text includes; other people's headers, in angle brackets, are in the toolchain's signature."""
    for name in _INCLUDE.findall(text):
        if name in contents:
            continue
        try:
            contents[name] = (include_dir / name).read_bytes()
        except OSError as error:
            raise ToolchainError(f"cannot read kernel header {include_dir / name}: reinstall cudal2") from error
        _collect(contents[name].decode(), include_dir, contents)
