"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

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
