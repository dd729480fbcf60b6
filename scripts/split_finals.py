"""Splits runs of scripts/judge.py into what their figures are read from and what their selections timed.

    python scripts/split_finals.py RUNS... --finals DIR --selected 'h200_{family}_selected{nth}_fp32_tn.parquet'

Each of RUNS is a directory of shards or one shard. A shard of the same name in --finals keeps its header and the rows
of finals, byte for byte. Rows that belong to no final, all candidates of a shape interleaved, become recordings:
``{family}`` in --selected is the kernel family, ``{nth}`` 1 for the first selection of each shape, 2 for the second, so
that what was timed in the same rounds stands in files of one number.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from cudal2.atomic import write_atomically
from cudal2.cli import arguments as shared
from cudal2.cli.main import guarded
from cudal2.cli.output import counted, note
from cudal2.codegen import generator_version
from cudal2.errors import UsageError
from cudal2.problem import Problem
from cudal2.records.finals import group_finals
from cudal2.records.fingerprint import Fingerprint
from cudal2.records.measurement import Measurement
from cudal2.records.recording import Recording
from cudal2.records.shards import read_shards, shard_files


def split_shard(path: Path, finals: Path) -> list[Measurement]:
    """Writes a shard's finals, if it has any, into a shard of the same name; returns the other rows.

    Raises:
        UsageError: That would overwrite the shard itself.
    """
    if path.resolve().parent == finals.resolve():
        raise UsageError(f"{path} is in --finals itself: give another directory, so that nothing measured is lost")
    rows = read_shards(path).measurements
    judged = {id(row) for final in group_finals(rows) for row in final.rows}
    header, *lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for line, row in zip(lines, rows, strict=False) if id(row) in judged]
    if kept:
        write_atomically(finals / path.name, b"".join((header, *kept)))
    return [row for row in rows if id(row) not in judged]


def publish(sessions: Iterable[tuple[Fingerprint, Sequence[Measurement]]], pattern: str) -> None:
    """Writes the recordings, each with its family's generator version alone where that is the present one."""
    rows: dict[tuple[str, int], list[Measurement]] = defaultdict(list)
    environments: dict[tuple[str, int], dict[Fingerprint, None]] = defaultdict(dict)
    seen: dict[Problem, dict[str, int]] = defaultdict(dict)
    for fingerprint, measured in sessions:
        for row in measured:
            if row.config is not None:
                times = seen[row.problem]
                key = row.config.family, times.setdefault(row.utc, len(times) + 1)
                rows[key].append(row)
                environments[key][_of_family(fingerprint, generator_version(row.config.family))] = None
    for key, measured in sorted(rows.items()):
        path = Path(pattern.replace("{family}", key[0]).replace("{nth}", str(key[1])))
        Recording.publish(measured, path, environments[key])
        note(f"{path}: {counted(len({row.problem for row in measured}), 'shape')}, {path.stat().st_size / 1e6:.2f} MB")


def _of_family(fingerprint: Fingerprint, version: str) -> Fingerprint:
    known = version in fingerprint.generator_version.split("+")
    return replace(fingerprint, generator_version=version) if known else fingerprint


def main(arguments: Sequence[str] | None = None) -> None:
    """Splits everything and says where it went."""
    chosen = parse(arguments)
    paths = [path for run in chosen.runs for path in shard_files(run)]
    if not paths:
        raise UsageError(f"no shards (*.jsonl) in {', '.join(map(str, chosen.runs))}")
    if not ("{family}" in chosen.selected and "{nth}" in chosen.selected):
        raise UsageError(
            "--selected needs {family} and {nth} in its name: a recording holds one family and no row twice"
        )
    ordered = sorted(paths, key=lambda path: path.name)
    sessions = [(read_shards(path).fingerprint, split_shard(path, chosen.finals)) for path in ordered]
    note(f"{chosen.finals}: {counted(len(paths), 'shard')}")
    publish(sessions, chosen.selected)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = shared.Parser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUNS", help="directories of finals, or shards")
    parser.add_argument("--finals", type=Path, required=True, metavar="DIR", help="where shards of finals go")
    parser.add_argument("--selected", required=True, metavar="FILE", help="a .parquet, {family} and {nth} in its name")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(guarded(main))
