"""A table for an architecture that nobody had at hand, from times of another GPU; it says so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cudal2.arch import Arch
from cudal2.problem import Acc, Dtype, Layout
from cudal2.records.fingerprint import Fingerprint
from cudal2.records.measurement import Measurement
from cudal2.space.families import FAMILIES
from cudal2.space.space import SearchSpace
from cudal2.table.entry import TUNED_ELSEWHERE, Device, Header
from cudal2.table.kernel_table import KernelTable
from cudal2.table.selection import select


def tuned_elsewhere(
    measurements: Iterable[Measurement],
    fingerprint: Fingerprint,
    arch: Arch,
    acc: Acc = "fp32",
    layout: Layout = "tn",
    dtype: Dtype = "fp16",
) -> KernelTable:
    """The winners among kernels that run on ``arch``, for its reference part.

    Every entry's evidence is ``transferred``, and none has a reference: libraries run other routines on the other GPU.

    Args:
        measurements: Rows of any kind.
        fingerprint: Their environment; of several, :meth:`Fingerprint.joined`.
        arch: The architecture to make the table for.
        acc: Accumulator of the table; other rows are left out.
        layout: Layout of the table; other rows are left out.
        dtype: Type of A, B and C of the table; other rows are left out.
    """
    spaces = {name: SearchSpace(arch, family=name) for name, family in FAMILIES.items() if family.runs_on(arch)}
    rows = []
    for row in measurements:
        space = spaces.get(row.config.family) if row.config is not None else None
        if space is not None and row.config is not None and row.ok and not space.explain(row.config, row.problem):
            rows.append(replace(row, ref_times_us=()))
    header = Header.from_fingerprint(fingerprint, acc, layout, dtype)
    soft = {**header.soft, "gpu": f"{TUNED_ELSEWHERE}{fingerprint.gpu}"}
    entries = [replace(entry, evidence="transferred") for entry in select(rows, acc, layout, dtype=dtype)]
    return KernelTable(replace(header, device=Device.of_arch(arch), soft=soft), entries).narrowed()
