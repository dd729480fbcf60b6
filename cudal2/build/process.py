"""A command in a process group of its own: whatever it starts ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any


@contextlib.contextmanager
def process_group(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """The running command; it and all that it started are killed at the end of the block, Ctrl-C included.

    Args:
        command: Program and arguments; its stdin is empty.
        **options: Of :class:`subprocess.Popen`.

    Raises:
        OSError: It cannot be started.
    """
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **options)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
