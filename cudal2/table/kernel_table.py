"""``KernelTable``: loads, checks, searches, merges and saves the winners of one device, layout and precision.

The file is JSON with sorted keys, one line per shape, configurations spelt out and a checksum over all of it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cudal2.arch import SM90, arch_of
from cudal2.atomic import write_atomically
from cudal2.errors import Cudal2Error, TableError
from cudal2.problem import Acc, Dtype, Layout, Problem, require_accumulator
from cudal2.records.fingerprint import Fingerprint
from cudal2.records.measurement import Measurement, Mode
from cudal2.space.config import KernelConfig
from cudal2.space.refit import refit
from cudal2.space.shared_rules import tma_reads
from cudal2.space.space import SearchSpace
from cudal2.table.entry import EVIDENCE, Device, Entry, Evidence, Header
from cudal2.table.files import locked, search_path, table_files
from cudal2.table.neighbours import NEAREST_FACTOR, neighbours, passed_over
from cudal2.table.selection import better, select

logger = logging.getLogger(__name__)


class KernelTable:
    """The winners of one device, layout and precision; immutable, so that threads may share it.

    Args:
        header: What holds for every entry.
        entries: At most one per shape.
        path: Where it, or the table that its choices were taken over from, was loaded from.

    Raises:
        TableError: Two entries are of one shape.
    """

    def __init__(self, header: Header, entries: Iterable[Entry], path: Path | None = None) -> None:
        """Sorts and indexes the entries."""
        self.header = header
        self.entries = tuple(sorted(entries, key=lambda entry: (entry.m, entry.n, entry.k)))
        self.path = path
        self._by_shape = {(entry.m, entry.n, entry.k): entry for entry in self.entries}
        if len(self._by_shape) != len(self.entries):
            raise TableError("a table holds one entry per shape; merge the entries first")
        self._arch = replace(arch_of(header.device.capability) or SM90, sm_count=header.device.sm_count)
        self._spaces: dict[str, SearchSpace] = {}
        self._best: dict[tuple[int, int, int], Entry | None] = {}
        self.sha256 = _checksum(header, self.entries)

    def __len__(self) -> int:
        """Number of shapes."""
        return len(self.entries)

    @classmethod
    def load(
        cls,
        path: Path | str | None = None,
        device: Device | None = None,
        acc: Acc = "fp32",
        layout: Layout = "tn",
        dtype: Dtype = "fp16",
    ) -> KernelTable:
        """Reads a table.

        Args:
            path: A file; by default the first fit on the search path: ``$CUDAL2_TABLE_PATH`` (folders or files),
                ``$XDG_DATA_HOME/cudal2/tables``, the tables shipped with the package.
            device: The GPU it must be for; ``None`` takes any, to look at a table on a machine without that GPU.
            acc: Accumulator it must be for; with a path, checked only together with ``device``.
            layout: Layout of B, as ``acc``.
            dtype: Type of A, B and C, as ``acc``. Where the search path has no bf16 table, the choices of the fp16 one.

        Raises:
            TableError: There is none, it is corrupt, or it is for another device, accumulator, layout or type.
        """
        if path is None:
            return cls._search(device, acc, layout, dtype)
        table = cls._read(Path(path))
        if device is not None:
            table.check(device, acc, layout, dtype)
        return table

    @classmethod
    def from_measurements(
        cls,
        measurements: Iterable[Measurement],
        fingerprint: Fingerprint,
        acc: Acc = "fp32",
        layout: Layout = "tn",
        mode: Mode = "offline",
        pdl: bool | None = None,
        evidence: Evidence = "searched",
        incumbent: KernelTable | None = None,
        dtype: Dtype = "fp16",
    ) -> KernelTable:
        """Chooses a winner per shape: the fastest, ties to the incumbent and then to the smaller kernel.

        Args:
            measurements: Searched rows and finals; where a shape has a final, its latest one decides alone.
            fingerprint: Their environment; of several, :meth:`Fingerprint.joined`.
            acc: Accumulator of the table; other rows are left out.
            layout: Layout of the table; other rows are left out.
            mode: Protocol mode; other rows are left out.
            pdl: Only kernels with, or without, programmatic dependent launch; by default whichever is faster.
            evidence: What rows outside finals amount to: ``searched``, or ``exhaustive`` if every legal one is there.
            incumbent: The table in use.
            dtype: Type of A, B and C of the table; other rows are left out.
        """
        held = incumbent.entries if incumbent is not None else ()
        incumbents = {entry.mnk: entry.config for entry in held if entry.config is not None}
        entries = select(measurements, acc, layout, mode, pdl, evidence, incumbents, dtype)
        return cls(Header.from_fingerprint(fingerprint, acc, layout, dtype), entries).narrowed()

    def check(self, device: Device, acc: Acc, layout: Layout, dtype: Dtype = "fp16") -> None:
        """Makes sure the table is for this device, accumulator, layout and type.

        Raises:
            TableError: It is not; the message names both.
        """
        wanted = Header(device, acc, layout, {}, dtype).kind
        if wanted != self.header.kind:
            raise TableError(f"{self._label} is for {self.header.kind}, not for {wanted}: make one with `cudal2 train`")

    def lookup(self, m: int, n: int, k: int) -> Entry | None:
        """The entry of exactly this shape."""
        return self._by_shape.get((m, n, k))

    def best(self, m: int, n: int, k: int) -> Entry | None:
        """The entry to use: the exact one, else the most promising neighbour's refitted to the shape, else ``None``.

        A neighbour's entry keeps its sizes and times, and its evidence becomes ``transferred``.
        """
        shape = (m, n, k)
        if shape not in self._best:
            self._best[shape] = self._usable(self.header.problem(m, n, k))[0]
        return self._best[shape]

    def explain(self, m: int, n: int, k: int) -> str:
        """In words: what :meth:`best` chooses and why, and which neighbours it passed over."""
        entry, notes = self._usable(self.header.problem(m, n, k))
        notes = [*notes[:3], f"{len(notes) - 3} more passed over"] if len(notes) > 4 else notes
        if entry is None:
            return "; ".join([f"{m}_{n}_{k}: no entry to use", *notes])
        how = "exact" if (entry.m, entry.n, entry.k) == (m, n, k) else f"from {entry.mnk}"
        time = f", {entry.median_us:.4f} us there" if entry.median_us else ""
        why = "hgemm calls torch.matmul, because" if entry.config is None else f"{entry.baseline} is ahead:"
        reason = f", {why} {entry.reason}" if entry.reason else ""
        reason += f", torch.matmul {entry.torch_us:.3f} us" if entry.torch_us and entry.baseline else ""
        reason += ", without a time of cuBLASLt" if entry.config is not None and entry.ref_us is None else ""
        return "; ".join([f"{m}_{n}_{k}: {entry.kernel_name} ({how}, {entry.evidence}{time}{reason})", *notes])

    def merge(self, other: KernelTable) -> KernelTable:
        """The better entry of each shape: more evidence first, then what serves in less time by more than noise.

        What a search timed beside cuBLASLt-AutoTuning overtakes a final where its speed-up is higher by more than twice
        what complete finals of a shape differ.

        Raises:
            TableError: The other table is for another device, accumulator, layout or type.
        """
        other.check(self.header.device, self.header.acc, self.header.layout, self.header.dtype)
        for difference in self.header.soft_differences(self._comparable(other)):
            logger.warning("merging tables measured in different environments: %s", difference)
        entries = dict(self._by_shape)
        for shape, entry in other._by_shape.items():
            entries[shape] = better(entries[shape], entry) if shape in entries else entry
        return KernelTable(self.header.joined(other.header), entries.values()).narrowed()

    def _comparable(self, other: KernelTable) -> dict[str, str]:
        """The environment of another table; its generator versions only if of a family in both neither has all."""
        shared = self.families & other.families
        mine, theirs = (table.header.narrowed(shared).versions for table in (self, other))
        alike = not shared or mine <= theirs or theirs <= mine
        return {name: text for name, text in other.header.soft.items() if not (alike and name == "generator_version")}

    def narrowed(self) -> KernelTable:
        """With a header that names what its own kernels were measured with: :meth:`Header.narrowed`."""
        return KernelTable(self.header.narrowed(self.families), self.entries, self.path)

    @property
    def evidence(self) -> dict[Evidence, int]:
        """Entries by what they rest on, the weightiest first."""
        found = Counter(entry.evidence for entry in self.entries)
        return {kind: found[kind] for kind in reversed(EVIDENCE) if found[kind]}

    @property
    def never_beside_library(self) -> int:
        """Kernels of ours without a time of cuBLASLt-AutoTuning: nothing says which of the two is faster there."""
        return sum(entry.config is not None and entry.ref_us is None for entry in self.entries)

    @property
    def families(self) -> set[str]:
        """Kernel families of its entries."""
        return {entry.config.family for entry in self.entries if entry.config is not None}

    def for_operands(
        self, acc: Acc | None = None, layout: Layout | None = None, dtype: Dtype | None = None
    ) -> KernelTable:
        """The same choices for another accumulator, layout of B or type, as far as they are legal there.

        Their times stay those of this table and their evidence becomes ``transferred``, so that in a merge whatever was
        measured there wins. Of 83 shapes on an H200 whose choice for ``tn``, as taken over, was timed in selections of
        ``nn`` it took 0.8 % more time than the best there, 10 % at most; of 52 more, searched since they had tiles that
        do not suit ``nn``, 4.6 %, 64 % at most. Nothing says yet how far behind another type's are. For
        another layout or accumulator ``torch.matmul`` runs other routines: its times are not taken over, and where only
        they spoke for ours against a baseline, ours is not either.

        Args:
            acc: By default its own, as the others.
            layout: B stored as.
            dtype: Type of A, B and C; bytes and registers stay the same.

        Raises:
            UsageError: The type has no such accumulator.
        """
        mine = self.header
        header = replace(mine, acc=acc or mine.acc, layout=layout or mine.layout, dtype=dtype or mine.dtype)
        require_accumulator(header.acc, header.dtype)
        made = KernelTable(header, (), self.path)
        alike = (header.acc, header.layout) == (mine.acc, mine.layout)
        given = self.entries if alike else (entry.without_torch() for entry in self.entries)
        entries = [made._taken_over(entry, replace(header, layout=mine.layout)) for entry in given]
        return KernelTable(header, [entry for entry in entries if entry is not None], self.path).narrowed()

    def _taken_over(self, entry: Entry, theirs: Header) -> Entry | None:
        """Another table's entry for the operands of this one, if its kernel, or much the same one, is legal there."""
        problem, source = (header.problem(entry.m, entry.n, entry.k) for header in (self.header, theirs))
        config = self._fitted(entry.config, source, problem) if entry.config is not None else None
        if entry.config is not None and (config is None or _copies(config) != _copies(entry.config)):
            return None  # what has to be copied first here, or only there, has other times
        if entry.config is None and problem.row_alignments != source.row_alignments:
            return None  # the library runs other routines
        return replace(entry, config=config, evidence="transferred")

    def save(self, path: Path | str) -> None:
        """Writes the table, replacing what is there.

        Raises:
            EnvironmentProblemError: The file cannot be written.
        """
        write_atomically(Path(path), self.to_text())

    def save_merged(self, path: Path | str, last: Callable[[KernelTable], KernelTable] | None = None) -> KernelTable:
        """Merges into the table at ``path``, if any, under its lock, and returns the result: two writers lose nothing.

        Args:
            path: Where.
            last: Turns the merged table into the one that is written.

        Raises:
            EnvironmentProblemError: The file cannot be written.
            TableError: The table there is corrupt or for another device, accumulator, layout or type.
        """
        path = Path(path)
        with locked(path):
            merged = KernelTable.load(path).merge(self) if path.exists() else self
            merged = last(merged) if last is not None else merged
            merged.save(path)
        return merged

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        header = {**self.header.to_dict(), "sha256": self.sha256}
        return {"header": header, "entries": {entry.mnk: entry.to_dict() for entry in self.entries}}

    def to_text(self) -> str:
        """The file's text: one line for the header and one per shape, in the order of the sizes."""
        values = self.to_dict()
        lines = (f"{json.dumps(mnk)}: {json.dumps(entry, sort_keys=True)}" for mnk, entry in values["entries"].items())
        header = json.dumps(values["header"], sort_keys=True)
        return f'{{\n"header": {header},\n"entries": {{\n' + ",\n".join(lines) + "\n}\n}\n"

    @property
    def _label(self) -> str:
        return f"table {self.path}" if self.path else "the table"

    @classmethod
    def _read(cls, path: Path) -> KernelTable:
        try:
            values = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique)
            header = dict(values["header"])
            checksum = header.pop("sha256", None)
            made = Header.from_dict(header)
            entries = [Entry.from_dict(mnk, entry, header["schema"]) for mnk, entry in values["entries"].items()]
            table = cls(made, entries, path)
        except OSError as error:
            raise TableError(f"cannot read table {path}: {error.strerror}") from error
        except Cudal2Error as error:
            raise TableError(f"table {path}: {error}") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            what = f"{path} is no kernel table, or a damaged one ({type(error).__name__}: {error})"
            raise TableError(f"{what}: restore it, or name another") from error
        # Over what the file says: fields that configurations have had since are not part of it.
        if checksum not in (None, _sha256({"header": header, "entries": values["entries"]})):
            raise TableError(
                f'table {path} does not match its checksum: restore it, or drop its "sha256" if the edit is meant'
            )
        return table

    @classmethod
    def _search(cls, device: Device | None, acc: Acc, layout: Layout, dtype: Dtype) -> KernelTable:
        require_accumulator(acc, dtype)
        places, seen = search_path(), []
        for place in places:
            tables = [cls._read(path) for path in table_files(place)]
            seen += [table.header.kind for table in tables]
            fits = [table for table in tables if table.header.problem(1, 1, 1).signature == (acc, layout, dtype)]
            fits = [table for table in fits if device is None or table.header.device == device]
            if device is None:
                fits = [table for table in fits if not table.header.tuned_elsewhere] or fits
            if len(fits) > 1:
                names = ", ".join(str(table.path) for table in fits)
                raise TableError(f"several tables fit ({names}): name one")
            if fits:
                logger.info("kernel table: %s", fits[0].path)
                return fits[0]
        if dtype != "fp16":
            table = cls._search(device, acc, layout, "fp16")
            logger.warning("no %s table for %s: the choices of %s, made for fp16", dtype, layout, table.path)
            return table.for_operands(dtype=dtype)
        wanted = f"{device.name if device else 'any device'}, {acc}, {layout}"
        found = f"there are {', '.join(sorted(set(seen)))}" if seen else "there are none"
        looked = ", ".join(map(str, places))
        raise TableError(f"no kernel table for {wanted} ({found} in {looked}): make one with `cudal2 train`")

    def _usable(self, problem: Problem) -> tuple[Entry | None, list[str]]:
        notes: list[str] = []
        exact = self.lookup(problem.m, problem.n, problem.k)
        if exact is not None:
            config = self._fitted(exact.config, problem, problem) if exact.config is not None else None
            if config == exact.config:
                return exact, notes
            if config is not None:
                return replace(exact, config=config, evidence="transferred"), notes
            assert exact.config is not None
            notes.append(passed_over(exact, exact.config, problem, self._space(exact.config)))
        others = (entry for entry in self.entries if entry is not exact)
        entry, passed = neighbours(others, self.header, problem, self._space)
        if entry is None and exact is None and not passed:
            able = "" if tma_reads(problem) else " whose choice holds for rows that TMA cannot read"
            notes.append(f"no measured shape{able} is within {NEAREST_FACTOR:g}x of it in each size")
        return entry, notes + passed

    def _fitted(self, config: KernelConfig, source: Problem, problem: Problem) -> KernelConfig | None:
        """:func:`~cudal2.space.refit.refit` on this device."""
        return refit(config, source, problem, self._space(config))

    def _space(self, config: KernelConfig) -> SearchSpace:
        """The full space of a configuration's family on this device."""
        if config.family not in self._spaces:
            self._spaces[config.family] = SearchSpace(self._arch, family=config.family)
        return self._spaces[config.family]


def _copies(config: KernelConfig) -> bool:
    return getattr(config, "padded", False)


def _checksum(header: Header, entries: tuple[Entry, ...]) -> str:
    return _sha256({"header": header.to_dict(), "entries": {entry.mnk: entry.to_dict() for entry in entries}})


def _sha256(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses what a bad merge of two files leaves behind."""
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"'{next(name for name in names if names.count(name) > 1)}' occurs twice")
    return values
