"""``cudal2``: the parser of all commands, and how an error becomes one line and an exit code.

Exit codes: 0 fine, 1 wrong result, 2 usage or environment, 3 nothing valid, 130 interrupted.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from cudal2 import __version__
from cudal2.cli import build, doctor, eval, profile, record, render, report, search, space, table, train
from cudal2.cli.arguments import Parser
from cudal2.cli.output import complain, give_up, note, pip_install
from cudal2.errors import Cudal2Error

COMMANDS = (space, render, build, record, search, train, table, eval, profile, report, doctor)
INTERRUPTED = 130
#: Extra that brings each package; the message names the command that installs it. Empty: no extra is needed.
EXTRAS = {
    "numpy": "",
    "yaml": "",
    "cuda": "build",
    "gymnasium": "train",
    "matplotlib": "report",
    "nvmath": "cuda",
    "pyarrow": "records",
    "pynvml": "cuda",
    "stable_baselines3": "train",
    "tensorboard": "train",
    "torch": "train",
}

_EPILOG = "exit codes: 0 fine, 1 wrong result, 2 usage or environment, 3 nothing valid, 130 interrupted"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    return guarded(lambda: _run(argv))


def guarded(action: Callable[[], int | None]) -> int:
    """The exit code of an action, a command or a script; an error is one line on stderr."""
    try:
        return action() or 0
    except Cudal2Error as error:
        complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        note("interrupted: everything measured so far is on disk")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader went away (`| head`): not an error.
        give_up(sys.stdout)
        return 0
    except OSError as error:
        complain(f"{error.filename or 'input/output'}: {error.strerror or error}")
        give_up(sys.stdout)
        return Cudal2Error.exit_code
    except ModuleNotFoundError as error:
        return _missing(error)


@contextmanager
def guarded_imports() -> Iterator[None]:
    """Around the imports of a script, which come before :func:`guarded`: a missing package ends it in the same way."""
    try:
        yield
    except ModuleNotFoundError as error:
        sys.exit(_missing(error))


def _run(argv: Sequence[str] | None) -> int:
    try:
        arguments = parser().parse_args(argv)
        logging.basicConfig(level=_level(arguments.verbose), format="%(message)s", stream=sys.stderr)
        return int(arguments.run(arguments))
    finally:
        # Here and not at exit, where a reader that has left could no longer be told from an error.
        if sys.stdout is not None:
            sys.stdout.flush()


def _missing(error: ModuleNotFoundError) -> int:
    extra = EXTRAS.get((error.name or "").split(".")[0])
    if extra is None:
        raise error
    complain(f"this needs the package '{error.name}': {pip_install(extra)}")
    return Cudal2Error.exit_code


def _level(verbose: int) -> int:
    return (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]


def parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    root = Parser(
        prog="cudal2",
        description="Searches for the fastest half-precision GEMM kernel for a shape and a GPU.",
        epilog=_EPILOG,
    )
    root.add_argument("--version", action="version", version=f"cudal2 {__version__}")
    commands = root.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for module in COMMANDS:
        command = module.add(commands)
        command.add_argument(
            "-v", "--verbose", action="count", default=0, help="say more on stderr; twice for everything"
        )
        command.set_defaults(run=module.run)
    return root
