"""Where a tool of the CUDA toolkit is; starts nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path


def find_tool(
    name: str, homes: Sequence[Path], within: Sequence[str] = ("bin",), more: Sequence[Path] = ()
) -> Path | None:
    """The first executable of ``$PATH``, the toolkits and the further folders.

    Args:
        name: Of the executable.
        homes: Toolkits to look in after ``$CUDA_HOME`` and ``$CUDA_PATH``.
        within: Folders of a toolkit that may hold it.
        more: Folders that hold it themselves.
    """
    named = [Path(home) for variable in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(variable))]
    folders = [home / folder for home in (*named, *homes) for folder in within]
    places = [os.environ.get("PATH", ""), *map(str, (*folders, *more))]
    found = next((path for place in places if (path := shutil.which(name, path=place))), None)
    return Path(found) if found is not None else None
