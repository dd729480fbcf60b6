"""Digests of the machine code of a family's kernels, to compare two versions of its generator: equal code, equal times.

    python scripts/machine_code.py --write before.json      # with the old version
    python scripts/machine_code.py --compare before.json    # with the new one

Covers every configuration of the family in the shipped tables and as many random legal ones as asked for. A digest is
over the sections that the GPU executes or the driver reads: code, constants, and attributes such as registers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import struct
import sys
import tempfile
from pathlib import Path

from cudal2.cli.main import guarded, guarded_imports

with guarded_imports():
    import numpy as np

    from cudal2.atomic import write_atomically
    from cudal2.build.artifact import BuiltKernel
    from cudal2.build.cache import BuildCache, resolve_toolchain
    from cudal2.build.pool import BuildPool
    from cudal2.cli import arguments as shared
    from cudal2.codegen import generator_version
    from cudal2.errors import NothingValidError, UsageError
    from cudal2.paths import data_dir
    from cudal2.problem import Acc, Dtype, Layout, Problem
    from cudal2.space.config import KernelConfig
    from cudal2.space.families import FAMILIES
    from cudal2.space.space import SearchSpace
    from cudal2.table import KernelTable

KINDS: tuple[tuple[Acc, Layout, Dtype], ...] = (
    ("fp32", "tn", "fp16"), ("fp32", "nn", "fp16"), ("fp16", "tn", "fp16"), ("fp16", "nn", "fp16"),
    ("fp32", "tn", "bf16"),
)  # fmt: skip
#: ELF sections that begin so are code, parameters and constants. Left out are symbol tables, notes, and the globals
#: that a header's constants become although no code reads them (.nv.global.init, their addresses in .nv.constant4).
SECTIONS = (".text.", ".nv.constant0.", ".nv.constant2.", ".nv.constant3.", ".nv.shared.")
ATTRIBUTES = ".nv.info"

Request = tuple[KernelConfig, Acc, Layout, Dtype]


def sections(cubin: bytes) -> dict[str, bytes]:
    """Contents of an ELF file's sections by name."""
    start, size, count, names = struct.unpack_from("<Q", cubin, 40)[0], *struct.unpack_from("<3H", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, start + size * index) for index in range(count)]
    texts = headers[names][4]
    found = {}
    for name, kind, _, _, offset, length in headers:
        title = cubin[texts + name : cubin.index(b"\0", texts + name)].decode()
        found[title] = b"" if kind == 8 else cubin[offset : offset + length]
    return found


def attributes(section: bytes) -> bytes:
    """What an ``.nv.info`` section says of a kernel, registers among it, less the symbol's number, which may change."""
    kept, at = b"", 0
    while at < len(section):
        form, name, size = struct.unpack_from("<BBH", section, at)
        value = section[at + 4 : at + 4 + size] if form == 4 else b""
        at += 4 + len(value)
        kept += bytes([form, name]) + (value[4:] if len(value) == 8 else value or size.to_bytes(2, "little"))
    return kept


def digest(cubin: bytes) -> str:
    """Over code, constants and attributes."""
    found = sections(cubin)
    kept = {name: text for name, text in found.items() if name.startswith(SECTIONS)}
    kept |= {name: attributes(text) for name, text in found.items() if name.startswith(ATTRIBUTES)}
    assert any(name.startswith(".text.") for name in kept), "no code in the cubin"
    whole = b"".join(f"{name}\0{len(text)}\0".encode() + text for name, text in sorted(kept.items()))
    return hashlib.sha256(whole).hexdigest()


def requests(family: str, random: int) -> list[Request]:
    """What the shipped tables use, and random legal configurations, one kind after the other."""
    found: list[Request] = []
    for path in sorted((data_dir() / "tables").glob("*.json")):
        table = KernelTable.load(path)
        header = table.header
        configs = [entry.config for entry in table.entries if entry.config is not None]
        found += [(one, header.acc, header.layout, header.dtype) for one in configs if one.family == family]
    rng = np.random.default_rng(0)
    space = SearchSpace(family=family)
    for kind in KINDS:
        problem = Problem(4096, 4096, 4096, *kind)
        found += [(one, *kind) for one in space.sample(problem, rng, random // len(KINDS))]
    if not found:
        raise NothingValidError(f"no shipped table has a kernel of {family}, and --random {random} finds none")
    return found


def digests(wanted: list[Request]) -> dict[str, str]:
    """Digest of each kernel by its build key."""
    with tempfile.TemporaryDirectory() as folder:
        store = BuildCache(Path(folder))
        with BuildPool(store, resolve_toolchain(store)) as pool:
            built = pool.build(wanted)
        failed = [f"{name}: {one.reason}" for name, one in built.items() if not isinstance(one, BuiltKernel)]
        if failed:
            raise NothingValidError(f"{len(failed)} of {len(built)} kernels do not compile; first: {failed[0]}")
        kernels = {name: one for name, one in built.items() if isinstance(one, BuiltKernel)}
        return {name: digest(one.cubin_path.read_bytes()) for name, one in kernels.items()}


def main(arguments: list[str] | None = None) -> int:
    """Writes digests, or says which differ; 1 if any does."""
    chosen = parse(arguments)
    return compare(chosen.compare) if chosen.compare else write(chosen.write, chosen.family, chosen.random)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = shared.Parser(description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, metavar="FILE", help="keep the digests of this version's kernels")
    what.add_argument("--compare", type=Path, metavar="FILE", help="with what --write kept")
    parser.add_argument("--family", choices=tuple(FAMILIES), default="sm90_ws", help="kernel family (default sm90_ws)")
    parser.add_argument(
        "--random", type=shared.positive, default=60, metavar="N", help="random configurations (default 60)"
    )
    return parser.parse_args(arguments)


def write(path: Path, family: str, random: int) -> int:
    """Keeps the digests of this version."""
    wanted = requests(family, random)
    kernels = [{"config": one.to_dict(), "kind": kind} for one, *kind in wanted]
    values = {"version": generator_version(family), "kernels": kernels, "digests": digests(wanted)}
    write_atomically(path, json.dumps(values))
    print(f"{len(values['digests'])} kernels of version {values['version']}")
    return 0


def compare(path: Path) -> int:
    """Compiles the same kernels again and names those whose code is another."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        version, old = values["version"], dict(values["digests"])
        wanted = [(KernelConfig.from_dict(one["config"]), *one["kind"]) for one in values["kernels"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} holds no digests of kernels ({error!r}): --write makes them") from error
    new = digests(wanted)
    differing = sorted(name for name in old if new.get(name) != old[name])
    print(f"{len(old)} kernels, {len(differing)} differ from version {version}", *differing, sep="\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(guarded(main))
