"""The compiler process: takes sources, leaves entries in the cache, answers with them."""

from __future__ import annotations

import signal
from multiprocessing.connection import Connection
from pathlib import Path

from cudal2.build.cache import BuildCache
from cudal2.build.compiler import compile_source
from cudal2.build.toolchain import Toolchain
from cudal2.errors import Cudal2Error


def serve(connection: Connection, cache_root: Path, toolchain: Toolchain, pch_dir: Path) -> None:
    """Answers each source with its result until the other end hangs up; our own failures travel as exceptions."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    cache = BuildCache(cache_root)
    while True:
        try:
            source, use_pch = connection.recv()
        except (EOFError, OSError):
            return
        try:
            compilation = compile_source(source, toolchain, pch_dir if use_pch else None)
            connection.send(cache.publish(source, toolchain, compilation))
        except Cudal2Error as error:
            connection.send(error)
        except Exception as error:
            connection.send(Cudal2Error(f"compiling {source.name}: {type(error).__name__}: {error}"))
