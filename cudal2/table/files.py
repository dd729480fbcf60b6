"""Where table files are looked for, and how one writer at a time is let in."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cudal2.errors import EnvironmentProblemError
from cudal2.paths import data_dir

PATH_VARIABLE = "CUDAL2_TABLE_PATH"


def search_path() -> list[Path]:
    """Folders and files in order: ``$CUDAL2_TABLE_PATH`` (several, as in ``$PATH``), the user's, the package's."""
    own = [Path(part).expanduser() for part in os.environ.get(PATH_VARIABLE, "").split(os.pathsep) if part]
    xdg = os.environ.get("XDG_DATA_HOME")
    user = (Path(xdg) if xdg else Path.home() / ".local" / "share") / "cudal2" / "tables"
    return [*own, user, data_dir() / "tables"]


def table_files(place: Path) -> list[Path]:
    """The table files of one place on the search path."""
    return sorted(place.glob("*.json")) if place.is_dir() else [place] if place.is_file() else []


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds ``.NAME.lock`` beside the file; the kernel drops the lock of a holder that dies.

    Raises:
        EnvironmentProblemError: The folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = (path.parent / f".{path.name}.lock").open("a")
    except OSError as error:
        raise EnvironmentProblemError(f"cannot write {path.parent}: {error.strerror}") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
