"""Renders a configuration into the few lines of CUDA that instantiate a hand-written kernel template."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from string import Template

from cudal2.errors import ToolchainError
from cudal2.paths import kernels_dir
from cudal2.problem import Acc, Layout
from cudal2.space import geometry
from cudal2.space.config import KernelConfig

ENTRY = "cudal2_gemm"


@dataclass(frozen=True)
class KernelSource:
    """One translation unit, and what its cubin must live up to.

    Attributes:
        name: Build key, for example ``sm90_ws_128x256x64_s4_coop2_c2x1_k1_tma_o1_fp32_tn``.
        text: CUDA C++.
        digest: SHA-256 over the text and every header under ``include_dir``.
        headers: The part of it that is the headers', by :func:`headers_digest`.
        threads: Threads of one block.
        smem_bytes: Dynamic shared memory of one block.
        register_pool: Registers of one block that the kernel's setmaxnreg hands out; 0 where it uses none.
        include_dir: Where ``#include "cudal2/..."`` is found.
    """

    name: str
    text: str
    digest: str
    headers: str
    threads: int
    smem_bytes: int
    register_pool: int
    include_dir: Path


def build_key(config: KernelConfig, acc: Acc, layout: Layout) -> str:
    """Names the cubin a configuration needs: configurations that differ only at run time share one."""
    return f"{config.family}_{config.build_name}_{acc}_{layout}"


def render(config: KernelConfig, acc: Acc, layout: Layout, kernels: Path | None = None) -> KernelSource:
    """Fills the template of the configuration's family.

    Args:
        config: What to instantiate; its run-time axes leave no trace in the text.
        acc: Accumulator type.
        layout: Layout of B.
        kernels: Folder with ``<family>.cu.in`` and ``include/``; the packaged one by default.

    Raises:
        ToolchainError: The template is missing, or asks for a placeholder nobody fills.
    """
    folder = kernels if kernels is not None else kernels_dir()
    template = folder / f"{config.family}.cu.in"
    try:
        text = Template(template.read_text(encoding="utf-8")).substitute(placeholders(config, acc, layout))
    except OSError as error:
        raise ToolchainError(f"cannot read kernel template {template} ({error.strerror}): reinstall cudal2") from error
    except (KeyError, ValueError) as error:
        raise ToolchainError(f"{template}: unknown placeholder {error}: see codegen.placeholders") from error
    headers = headers_digest(folder / "include")
    return KernelSource(
        name=build_key(config, acc, layout),
        text=text,
        digest=hashlib.sha256(f"{text}\0{headers}".encode()).hexdigest(),
        headers=headers,
        threads=geometry.threads(config),
        smem_bytes=geometry.smem_bytes(config),
        register_pool=_register_pool(config),
        include_dir=folder / "include",
    )


def placeholders(config: KernelConfig, acc: Acc, layout: Layout) -> dict[str, str]:
    """Everything a template may ask for, as C++ literals; run-time axes are left out so that cubins are shared."""
    producer_registers, consumer_registers = _setmaxnreg(config)
    numbers = {
        "tile_m": config.tile_m,
        "tile_n": config.tile_n,
        "tile_k": config.tile_k,
        "stages": config.stages,
        "consumers": config.consumers,
        "cluster_m": config.cluster_m,
        "cluster_n": config.cluster_n,
        "split_k": config.split_k,
        "ctas_per_sm": config.ctas_per_sm,
        "threads": geometry.threads(config),
        "smem_bytes": geometry.smem_bytes(config),
        "setmaxnreg_producer": producer_registers,
        "setmaxnreg_consumer": consumer_registers,
    }
    flags = {
        "pingpong": config.schedule == "pingpong",
        "epilogue_tma": config.epilogue == "tma",
        "acc_fp16": acc == "fp16",
        "b_k_major": layout == "tn",
    }
    names = {
        "build_name": config.build_name,
        "schedule": config.schedule,
        "epilogue": config.epilogue,
        "acc": acc,
        "layout": layout,
    }
    return {
        **{key: str(value) for key, value in numbers.items()},
        **{key: "true" if value else "false" for key, value in flags.items()},
        **names,
    }


def headers_digest(include_dir: Path) -> str:
    """SHA-256 over names and contents of all files below a folder; a touched but unchanged file changes nothing."""
    digest = hashlib.sha256()
    for path in sorted(path for path in include_dir.rglob("*") if path.is_file()):
        contents = path.read_bytes()
        digest.update(f"{path.relative_to(include_dir).as_posix()}\0{len(contents)}\0".encode())
        digest.update(contents)
    return digest.hexdigest()


def generator_version(kernels: Path | None = None) -> str:
    """16 hex digits over the templates, their headers and this module: times of two versions must not be mixed."""
    folder = kernels if kernels is not None else kernels_dir()
    digest = hashlib.sha256(headers_digest(folder / "include").encode())
    for path in (*sorted(folder.glob("*.cu.in")), Path(__file__), Path(geometry.__file__)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _setmaxnreg(config: KernelConfig) -> tuple[int, int]:
    """Registers of a producer and a consumer thread after setmaxnreg; zeros where the template leaves it out."""
    return geometry.SETMAXNREG[config.consumers] if geometry.uses_setmaxnreg(config) else (0, 0)


def _register_pool(config: KernelConfig) -> int:
    producer_registers, consumer_registers = _setmaxnreg(config)
    return geometry.WARP_GROUP * (producer_registers + config.consumers * consumer_registers)
