"""``Benchmark``: one run of a ``scripts/bench_*.py``, kept with the command, date and machine it stands for."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from cudal2.atomic import write_atomically
from cudal2.errors import RecordError


@dataclass(frozen=True)
class Benchmark:
    """Figures, and where they come from.

    Attributes:
        name: What was measured: ``build``, ``measure``, ``judge``, ``repeat``, ``replay`` or ``search``.
        command: What to type to measure it again.
        utc: ISO date or time at the end.
        machine: GPU where one is measured, else processor and cores.
        version: cudal2 version.
        figures: What the script printed.
    """

    name: str
    command: str
    utc: str
    machine: str
    version: str
    figures: Mapping[str, Any]

    def save(self, path: Path) -> None:
        """Writes it as JSON, replacing what is there."""
        write_atomically(path, json.dumps(asdict(self), indent=2) + "\n")


def load_benchmarks(directory: Path) -> dict[str, Benchmark]:
    """Every ``*.json`` of a directory by name; empty if there are none, since any of them may not have been run yet.

    Raises:
        RecordError: One is damaged.
    """
    found: dict[str, Benchmark] = {}
    for path in sorted(directory.glob("*.json")):
        try:
            benchmark = Benchmark(**json.loads(path.read_text(encoding="utf-8")))
            date.fromisoformat(benchmark.utc[:10])
        except (ValueError, TypeError) as error:
            raise RecordError(f"{path} is no benchmark record: {error}; write it again with --out") from error
        found[benchmark.name] = benchmark
    return found


def processor() -> str:
    """This machine's processor and the cores this process may use, for example ``AMD EPYC 9554, 16 cores``."""
    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{model}, {cores} core{'s' if cores > 1 else ''}"
