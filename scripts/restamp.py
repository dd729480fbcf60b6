"""Writes a new generator version into the shipped data, once scripts/machine_code.py has found no kernel changed.

    python scripts/restamp.py OLD [NEW] [--data cudal2/data]

OLD is the version, 16 hex digits, or several with commas between them, that becomes NEW: by default the present one of
sm90_ws. Measurements stay what they are, byte for byte; what was measured with kernels that no longer exist keeps its
own version, and so does the sanitizer's record, which says what was run.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from cudal2.cli.main import guarded, guarded_imports

with guarded_imports():
    import pyarrow.parquet as pq

    from cudal2.atomic import write_atomically
    from cudal2.cli import arguments as shared
    from cudal2.cli.output import counted
    from cudal2.codegen import generator_version
    from cudal2.errors import UsageError
    from cudal2.records.fingerprint import Fingerprint
    from cudal2.records.shards import opened
    from cudal2.table import KernelTable

FOLDERS = ("finals", "served", "quack", "repeat", "latency")


def renewed(version: str, old: set[str], new: str) -> str:
    """A version, or those of several families, with the new one in place of an old one."""
    return "+".join(new if part in old else part for part in version.split("+"))


def stamp_parquet(path: Path, old: set[str], new: str) -> bool:
    """Rewrites the metadata; whether anything changed."""
    table = pq.read_table(path)
    meta = json.loads(table.schema.metadata[b"cudal2"])
    before = json.dumps(meta, sort_keys=True)
    for fingerprint in meta["fingerprints"]:
        fingerprint["generator_version"] = renewed(fingerprint["generator_version"], old, new)
    if json.dumps(meta, sort_keys=True) == before:
        return False
    stamped = table.replace_schema_metadata({b"cudal2": json.dumps(meta, sort_keys=True).encode()})
    beside = path.with_suffix(".stamped")
    pq.write_table(stamped, beside, compression="zstd", compression_level=12, write_page_checksum=True)
    assert pq.read_table(beside).equals(table), path
    beside.replace(path)
    return True


def stamp_shard(path: Path, old: set[str], new: str) -> bool:
    """Rewrites the environment of each session of a shard; whether anything changed."""
    lines = _text(path).splitlines(keepends=True)
    for at, line in enumerate(lines):
        values: dict[str, Any] = json.loads(line)
        if values.get("kind") == "session":
            values["fingerprint"]["generator_version"] = renewed(values["fingerprint"]["generator_version"], old, new)
            values["fingerprint_sha256"] = Fingerprint.from_dict(values["fingerprint"]).sha256
            lines[at] = json.dumps(values, separators=(",", ":")) + "\n"
    return _written(path, "".join(lines))


def stamp_table(path: Path, old: set[str], new: str) -> bool:
    """Rewrites a table's header; whether anything changed."""
    table = KernelTable.load(path)
    version = renewed(table.header.soft.get("generator_version", ""), old, new)
    header = replace(table.header, soft={**table.header.soft, "generator_version": version})
    return _written(path, KernelTable(header, table.entries).to_text())


def _text(path: Path) -> str:
    with opened(path) as file:
        return file.read().decode()


def _written(path: Path, text: str) -> bool:
    if text == _text(path):
        return False
    write_atomically(path, gzip.compress(text.encode(), 9, mtime=0) if path.suffix == ".gz" else text)
    return True


def main(arguments: list[str] | None = None) -> None:
    """Stamps everything and names what changed."""
    chosen = parse(arguments)
    old = set(chosen.old.split(","))
    if not all(re.fullmatch("[0-9a-f]{16}", version) for version in (*old, chosen.new)):
        raise UsageError("a version is 16 hex digits; the header of a table names that of its kernels")
    recordings, tables = sorted(chosen.data.glob("*/*.parquet")), sorted(chosen.data.glob("tables/*.json"))
    shards = [path for folder in FOLDERS for path in sorted((chosen.data / folder).rglob("*.jsonl*"))]
    if not (recordings or tables or shards):
        raise UsageError(f"{chosen.data} holds no recordings, shards or tables: give --data the package's folder")
    changed = [path for path in recordings if stamp_parquet(path, old, chosen.new)]
    changed += [path for path in shards if stamp_shard(path, old, chosen.new)]
    changed += [path for path in tables if stamp_table(path, old, chosen.new)]
    print(f"{counted(len(changed), 'file')} now of {chosen.new}", *changed, sep="\n")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = shared.Parser(description=__doc__)
    parser.add_argument("old", metavar="OLD", help="16 hex digits, or several versions with commas between them")
    parser.add_argument("new", nargs="?", metavar="NEW", default=generator_version("sm90_ws"), help="what they become")
    parser.add_argument("--data", type=Path, default=Path("cudal2/data"), metavar="DIR", help="default: cudal2/data")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(guarded(main))
