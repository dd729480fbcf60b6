"""Splits runs of scripts/judge.py into what their figures are read from and what their selections timed.

    python scripts/split_finals.py RUNS... --finals DIR --selected 'h200_{family}_selected{nth}_fp32_tn.parquet'

Each of RUNS is a directory of shards or one shard. A shard of the same name in --finals keeps its header and the rows
of finals, byte for byte. Rows that belong to no final, all candidates of a shape interleaved, become recordings:
``{family}`` in --selected is the kernel family, ``{nth}`` 1 for the first selection of each shape, 2 for the second, so
that what was timed in the same rounds stands in files of one number. Files that are there are written anew, unless they
hold rows that RUNS do not.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from cudal2.cli.main import guarded, guarded_imports

with guarded_imports():
    from cudal2.atomic import write_atomically
    from cudal2.cli import arguments as shared
    from cudal2.cli.output import counted, note
    from cudal2.codegen import generator_version
    from cudal2.errors import UsageError
    from cudal2.problem import Problem
    from cudal2.records.finals import group_finals
    from cudal2.records.fingerprint import Fingerprint
    from cudal2.records.measurement import Measurement
    from cudal2.records.recording import Recording, read_records
    from cudal2.records.shards import read_shards, shard_files

#: Rows of a recording and the environments they were measured in, in order.
Selected: TypeAlias = tuple[list[Measurement], dict[Fingerprint, None]]


def split_shard(path: Path) -> tuple[bytes, Fingerprint, list[Measurement]]:
    """A shard with the rows of finals alone, empty if it has none; its environment; the other rows."""
    shard = read_shards(path)
    rows = shard.measurements
    judged = {id(row) for final in group_finals(rows) for row in final.rows}
    header, *lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for line, row in zip(lines, rows, strict=False) if id(row) in judged]
    others = [row for row in rows if id(row) not in judged]
    return b"".join((header, *kept)) if kept else b"", shard.fingerprint, others


def by_selection(sessions: Iterable[tuple[Fingerprint, Sequence[Measurement]]], pattern: str) -> dict[Path, Selected]:
    """What goes into which recording, each with its family's generator version alone where that is the present one."""
    found: dict[Path, Selected] = {}
    seen: dict[Problem, dict[str, int]] = defaultdict(dict)
    for fingerprint, measured in sessions:
        for row in measured:
            if row.config is not None:
                times, family = seen[row.problem], row.config.family
                nth = times.setdefault(row.utc, len(times) + 1)
                path = Path(pattern.replace("{family}", family).replace("{nth}", str(nth)))
                rows, environments = found.setdefault(path, ([], {}))
                rows.append(row)
                environments[_of_family(fingerprint, generator_version(family))] = None
    return dict(sorted(found.items()))


def require_nothing_lost(selected: Mapping[Path, Selected]) -> None:
    """What recordings hold may move from one to another, and no more.

    Raises:
        UsageError: One holds what RUNS do not.
    """
    given = {_identity(row) for rows, _ in selected.values() for row in rows}
    for path in filter(Path.exists, selected):
        held = read_records(path, allow_mixed=True).measurements
        if lost := sum(_identity(row) not in given for row in held):
            raise UsageError(f"{path} holds {counted(lost, 'row')} that RUNS do not: give all runs, or another name")


def _identity(row: Measurement) -> tuple[object, ...]:
    return row.problem, row.config, row.pdl, row.utc


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
    if not chosen.selected.endswith(".parquet"):
        raise UsageError(f"--selected {chosen.selected}: a recording is a .parquet")
    for path in paths:
        if path.resolve().parent == chosen.finals.resolve():
            raise UsageError(f"{path} is in --finals itself: give another directory, so that nothing measured is lost")
    split = {path: split_shard(path) for path in sorted(paths, key=lambda path: path.name)}
    selected = by_selection(((fingerprint, rows) for _, fingerprint, rows in split.values()), chosen.selected)
    require_nothing_lost(selected)
    shards = {path.name: contents for path, (contents, *_) in split.items() if contents}
    for name, contents in shards.items():
        write_atomically(chosen.finals / name, contents)
    note(f"{chosen.finals}: {counted(len(shards), 'shard')}")
    for path, (rows, environments) in selected.items():
        Recording.publish(rows, path, environments)
        note(f"{path}: {counted(len({row.problem for row in rows}), 'shape')}, {path.stat().st_size / 1e6:.2f} MB")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = shared.Parser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUNS", help="directories of finals, or shards")
    parser.add_argument("--finals", type=Path, required=True, metavar="DIR", help="where shards of finals go")
    parser.add_argument("--selected", required=True, metavar="FILE", help="a .parquet, {family} and {nth} in its name")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(guarded(main))
