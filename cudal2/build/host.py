"""Compiles one C file of ours into a shared library, by the host's own C compiler, once per source and compiler."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from cudal2.atomic import write_atomically
from cudal2.errors import ToolchainError, first_line

FLAGS = ("-std=gnu11", "-O2", "-shared", "-fPIC")
COMPILERS = ("cc", "gcc", "clang")
REMEDY = "install one, for example `apt install gcc`, or set CC"
_TIMEOUT_S = 60.0


def c_compiler() -> tuple[str, ...]:
    """The command of the C compiler: ``$CC``, or the first of ``COMPILERS`` there is.

    Raises:
        ToolchainError: There is none.
    """
    named = shlex.split(os.environ.get("CC", ""))
    for command in [named] if named else [[name] for name in COMPILERS]:
        if found := shutil.which(command[0]):
            return (found, *command[1:])
    looked = f"$CC = {named[0]}" if named else ", ".join(COMPILERS)
    raise ToolchainError(f"no C compiler ({looked}): {REMEDY}")


def describe_compiler() -> str:
    """The compiler's own first line.

    Raises:
        ToolchainError: There is none, or it does not run.
    """
    return _run([*c_compiler(), "--version"]).partition("\n")[0]


def compile_shared(source: Path, root: Path) -> Path:
    """The shared library made of ``source``, from the cache if this compiler made it before.

    Args:
        source: A C file without dependencies.
        root: The build cache's folder.

    Raises:
        ToolchainError: There is no C compiler, or it refuses the file.
        EnvironmentProblemError: The cache cannot be written.
    """
    text, command = source.read_bytes(), c_compiler()
    made_by = "\0".join((describe_compiler(), platform.machine(), *command, *FLAGS))
    digest = hashlib.sha256(made_by.encode() + b"\0" + text).hexdigest()[:24]
    library = root / "host" / f"{source.stem}.{digest}.so"
    if not library.is_file():
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / library.name
            _run([*command, *FLAGS, str(source), "-o", str(made)])
            write_atomically(library, made.read_bytes(), "set CUDAL2_CACHE_DIR to a folder you can write")
    return library


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=True)
    except subprocess.CalledProcessError as error:
        errors = [line for line in error.stderr.splitlines() if "error" in line] or error.stderr.splitlines()
        said = errors[0].strip() if errors else f"exit code {error.returncode}"
        raise ToolchainError(f"{shlex.join(command)} failed: {said}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolchainError(f"{command[0]} does not run ({first_line(error)}): set CC to a C compiler") from error
    return done.stdout
