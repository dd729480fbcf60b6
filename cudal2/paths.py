"""Where kernels, settings, package data and the build cache are, in a checkout and in an installed wheel."""

from __future__ import annotations

import os
from pathlib import Path

from cudal2.errors import EnvironmentProblemError

_PACKAGE = Path(__file__).resolve().parent


def kernels_dir() -> Path:
    """Directory of the CUDA templates and headers.

    Raises:
        EnvironmentProblemError: Neither the wheel's copy nor a checkout's ``kernels/`` is there.
    """
    return _shipped("kernels")


def configs_dir() -> Path:
    """Directory of the YAML settings.

    Raises:
        EnvironmentProblemError: Neither the wheel's copy nor a checkout's ``configs/`` is there.
    """
    return _shipped("configs")


def data_dir() -> Path:
    """Directory of the recordings and tables that ship with the package."""
    return _PACKAGE / "data"


def cache_dir() -> Path:
    """Build cache: ``$CUDAL2_CACHE_DIR``, else ``cudal2`` in the user's XDG cache directory; not created here."""
    own = os.environ.get("CUDAL2_CACHE_DIR")
    if own:
        return Path(own).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "cudal2"


def _shipped(name: str) -> Path:
    candidates = (_PACKAGE / f"_{name}", _PACKAGE.parent / name)
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    looked = " and ".join(str(candidate) for candidate in candidates)
    raise EnvironmentProblemError(
        f"{name}/ is missing (looked at {looked}): install cudal2 again or run it from its checkout"
    )
