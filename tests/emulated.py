"""Kernels as CPU libraries: what the tests share that compile a rendered kernel against emulated instructions."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from cudal2.paths import kernels_dir
from cudal2.problem import Dtype, Problem
from cudal2.space.config import KernelConfig
from cudal2.space.space import SearchSpace

EMULATION = Path(__file__).parent / "emulation"
COMPILER = shutil.which("g++")
#: Elements around C that nobody may touch.
GUARD = 512
#: Rules that forbid what is only a worse spelling of another configuration; the kernel must be right all the same.
HARMLESS = {"raster_single", "group_too_big", "stages_depth", "tile_k_padding", "persistent_single_wave"}

#: Of this process, until it ends.
_PRECOMPILED = tempfile.TemporaryDirectory(prefix="emulation-")

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="the emulation is compiled by g++")


def library(
    folder: Path, text: str, driver: Path, includes: Sequence[Path], *options: str, emulation: Path | None = None
) -> ctypes.CDLL:
    """A rendered kernel and the driver that includes it, as a library whose ``run`` says what went wrong.

    ``emulation`` is a header beside the driver that includes no kernel's: it is compiled once for all kernels.
    """
    (folder / "kernel.cu").write_text(text)
    made = folder / "kernel.so"
    first = ["-include", str(_precompiled(emulation, options))] if emulation else []
    _compile(*options, "-shared", *first, *(f"-I{place}" for place in (folder, *includes)), driver, "-o", made)
    loaded = ctypes.CDLL(str(made))
    loaded.run.restype = ctypes.c_char_p
    return loaded


@cache
def _precompiled(header: Path, options: tuple[str, ...]) -> Path:
    """A header that has the given one precompiled beside it."""
    first = Path(_PRECOMPILED.name) / header.name
    first.write_text(f'#include "{header}"\n')
    _compile(*options, f"-I{header.parent}", f"-I{EMULATION}", "-x", "c++-header", first, "-o", f"{first}.gch")
    return first


def _compile(*arguments: str | Path) -> None:
    command = [str(COMPILER), "-std=c++17", "-O1", "-w", "-fPIC", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def broken_kernels(folder: Path, header: str, old: str, new: str) -> Path:
    """A copy of kernels/ in which a header has other words."""
    kernels = Path(shutil.copytree(kernels_dir(), folder / "kernels"))
    path = kernels / "include" / "cudal2" / header
    assert old in path.read_text(), f"{header} no longer holds what this breaks"
    path.write_text(path.read_text().replace(old, new))
    return kernels


def elements(values: np.ndarray, dtype: Dtype) -> np.ndarray:
    """Bit patterns of the values, rounded to nearest, ties to even."""
    if dtype == "fp16":
        return values.astype(np.float16).view(np.uint16)
    words = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)


def broken_rules(config: KernelConfig, problem: Problem) -> set[str]:
    """Names of the rules that a configuration breaks, the harmless left out."""
    reasons = SearchSpace(family=config.family).explain(config, problem)
    return {reason.partition(":")[0] for reason in reasons} - HARMLESS
