"""A stand-in for Nsight Compute: an executable ``ncu`` that prints what a test tells it to."""

from __future__ import annotations

from pathlib import Path

RAW = Path(__file__).parent / "data" / "ncu_raw.txt"
VERSION = "NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 36398880) (public-release)\n"


def install(folder: Path, body: str = f"cat {RAW}", version: str = VERSION) -> Path:
    """``folder/ncu``: answers ``--version``, else runs the shell commands of ``body``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "ncu"
    (folder / "version").write_text(version)
    path.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then cat {folder}/version; exit; fi\n{body}\n')
    path.chmod(0o755)
    return path
