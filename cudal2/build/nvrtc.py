"""The one door to NVRTC: no other module imports cuda.core or cuda.bindings.nvrtc, which may be missing."""

from __future__ import annotations

import io
from typing import Any

from cudal2.errors import ToolchainError, first_line

try:
    from cuda.bindings import nvrtc as _bindings
except ImportError:
    _bindings = None
try:
    from cuda.core import Program, ProgramOptions
    from cuda.core import __version__ as _core_version
except ImportError:
    Program = ProgramOptions = None
    _core_version = ""

INSTALL = "pip install 'cudal2[build]'"
#: Precompiled headers, which the build times stand on, came with CUDA 12.8.
OLDEST = (12, 8)
#: Earlier ones have no precompiled headers, or want a driver to compile.
OLDEST_CORE = 1


def version() -> tuple[int, int]:
    """Version of the NVRTC library that compiles.

    Raises:
        ToolchainError: The bindings or the library are missing, or too old.
    """
    if _bindings is None or Program is None:
        raise ToolchainError(f"cuda-bindings and cuda-core are not installed: {INSTALL}")
    if int(_core_version.partition(".")[0]) < OLDEST_CORE:
        raise ToolchainError(f"cuda-core {_core_version} is older than {OLDEST_CORE}.0: {INSTALL} --upgrade")
    try:
        status, major, minor = _bindings.nvrtcVersion()
    except (RuntimeError, OSError) as error:
        raise ToolchainError(f"the NVRTC library cannot be loaded ({first_line(error)}): {INSTALL}") from error
    if int(status) != 0:
        raise ToolchainError(f"NVRTC does not answer (error {int(status)}): {INSTALL}")
    if (major, minor) < OLDEST:
        raise ToolchainError(f"NVRTC {major}.{minor} is older than {OLDEST[0]}.{OLDEST[1]}: {INSTALL} --upgrade")
    return major, minor


def compile_cubin(text: str, name: str, options: dict[str, Any]) -> tuple[bytes, str]:
    """Compiles one translation unit.

    Args:
        text: CUDA C++.
        name: File name in diagnostics.
        options: Keyword arguments of ``cuda.core.ProgramOptions``.

    Returns:
        The cubin, empty if the source was rejected, and the log.
    """
    log = io.StringIO()
    program = Program(text, "c++", ProgramOptions(name=name, **options))
    try:
        cubin = bytes(program.compile("cubin", logs=log).code)
    except Exception as error:
        # cuda.core exports no exception type, and its private one moved between versions.
        if type(error).__name__ != "NVRTCError":
            raise
        return b"", str(error).replace("\0", "").strip()
    finally:
        program.close()
    return cubin, log.getvalue().replace("\0", "").strip()
