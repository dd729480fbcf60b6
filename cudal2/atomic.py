"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TextIO

from cudal2.errors import EnvironmentProblemError


def write_atomically(path: Path, contents: bytes | str, remedy: str = "") -> None:
    """Writes beside ``path``, makes it durable, renames; what was there stays until then.

    Args:
        path: The file; its folder is made if absent.
        contents: Text is written as UTF-8.
        remedy: What the user can do if it fails.

    Raises:
        EnvironmentProblemError: The file cannot be written.
    """
    data = contents.encode() if isinstance(contents, str) else contents
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(partial, 0o644)
            os.replace(partial, path)
        finally:
            Path(partial).unlink(missing_ok=True)
    except OSError as error:
        advice = f": {remedy}" if remedy else ""
        raise EnvironmentProblemError(f"cannot write {path}: {error.strerror}{advice}") from error


def write_new(path: Path, text: str, remedy: str) -> Path:
    """``name.ext``, or ``name.2.ext`` and so on if that exists; the open itself decides, so no two processes clash.

    Args:
        path: The file, if there is none; its folder is made if absent.
        text: What it holds.
        remedy: What the user can do if it fails.

    Returns:
        The file.

    Raises:
        EnvironmentProblemError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            candidate = path if number == 1 else path.with_name(f"{path.stem}.{number}{path.suffix}")
            try:
                with candidate.open("x", encoding="utf-8") as file:
                    _write_whole(file, text)
                return candidate
            except FileExistsError:
                number += 1
    except OSError as error:
        raise EnvironmentProblemError(f"cannot write to {path.parent} ({error.strerror}): {remedy}") from error


def _write_whole(file: TextIO, text: str) -> None:
    """On a full disk or an interrupt no half of it is left."""
    try:
        file.write(text)
        file.flush()
    except BaseException:
        Path(file.name).unlink()
        raise
