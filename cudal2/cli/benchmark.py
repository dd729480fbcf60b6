"""What the ``scripts/bench_*.py`` share: ``--json`` and ``--out``, and how their figures are printed and kept."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cudal2 import __version__
from cudal2.cli.arguments import out_file
from cudal2.cli.output import note, print_json
from cudal2.records.benchmark import Benchmark, processor

#: Options that say where things are, not what is measured; a recorded command does without them.
_PLACES = ("--out", "--cache-dir", "--records")


def add_output(parser: argparse.ArgumentParser) -> None:
    """``--json`` and ``--out``; read back by :func:`finish`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--out", type=out_file, metavar="FILE", help="keep the figures there, with command, date and machine"
    )


def finish(
    name: str, figures: Mapping[str, Any], text: str, arguments: argparse.Namespace, machine: str | None = None
) -> None:
    """Prints figures as asked and keeps them if asked.

    Args:
        name: The benchmark.
        figures: What was measured.
        text: The same for a reader.
        arguments: Those of :func:`add_output`.
        machine: What was measured on; this machine's processor by default.
    """
    if arguments.json:
        print_json(figures)
    else:
        print(text)
    if arguments.out:
        keep(name, figures, arguments, machine)
        note(f"kept in {arguments.out}")


def keep(name: str, figures: Mapping[str, Any], arguments: argparse.Namespace, machine: str | None = None) -> None:
    """Keeps figures if that was asked; for a benchmark that goes on, what it has so far."""
    if arguments.out:
        utc = datetime.now(timezone.utc).isoformat(timespec="seconds")
        Benchmark(name, command(sys.argv), utc, machine or processor(), __version__, figures).save(arguments.out)


def command(argv: Sequence[str]) -> str:
    """The command line that measures the same again, free of this machine's places."""
    words = ["python", f"scripts/{Path(argv[0]).name}"]
    given = iter(argv[1:])
    for word in given:
        if word in _PLACES:
            next(given, None)
        elif word != "--json" and not word.startswith(tuple(f"{place}=" for place in _PLACES)):
            words.append(word)
    return shlex.join(words)
