"""cudal2 searches for the fastest half-precision GEMM kernel for each (M, N, K) on a GPU, and checks it.

Importing this package costs numpy and PyYAML at most: the names below are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cudal2.problem import Problem
    from cudal2.runtime import hgemm
    from cudal2.space.config import KernelConfig
    from cudal2.table import KernelTable

__version__ = "0.1.0"

__all__ = ["KernelConfig", "KernelTable", "Problem", "__version__", "hgemm"]

_HOMES = {
    "KernelConfig": "cudal2.space.config",
    "KernelTable": "cudal2.table",
    "Problem": "cudal2.problem",
    "hgemm": "cudal2.runtime",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cudal2' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
