"""What a kernel table is made of: the device it is for, its header and one entry per shape."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from cudal2.arch import Arch
from cudal2.codegen import generator_version
from cudal2.errors import Cudal2Error, TableError
from cudal2.problem import Acc, Dtype, Layout, Problem, precision_of
from cudal2.records.fingerprint import Fingerprint, joined_texts
from cudal2.space.config import KernelConfig
from cudal2.space.families import FAMILIES

#: 1 had no ``torch_us``, and the runner-up's time as it was instead of over the winner's.
TABLE_SCHEMA = 2

#: The baseline that serves where no configuration does; it gets B as ours does.
TORCH = "torch"

Evidence = Literal["transferred", "searched", "exhaustive", "final"]
#: Ascending worth: chosen for a neighbour or the other layout, seen by a search, best of all legal ones, best of an
#: interleaved final.
EVIDENCE: tuple[Evidence, ...] = get_args(Evidence)

#: Nominal memory sizes of GPUs in GB; what a driver reports lies within a few percent of one of them.
_MEMORY_CLASSES_GB = (8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 141, 180, 288)
_SOFT = ("gpu", "driver", "cuda", "cublaslt", "nvrtc", "generator_version")
#: What ``gpu`` in the header begins with where nobody had the device and another was timed.
TUNED_ELSEWHERE = "tuned on "


@dataclass(frozen=True)
class Device:
    """What decides whether a table fits a GPU; the product name does not, since it varies with driver and image.

    Attributes:
        capability: Compute capability (major, minor).
        sm_count: Multiprocessors the process sees; a MIG slice has fewer.
        memory_gb: Nominal memory size; it tells an H100 from an H200 with as many multiprocessors.
    """

    capability: tuple[int, int]
    sm_count: int
    memory_gb: int

    @classmethod
    def from_memory(cls, capability: tuple[int, int], sm_count: int, memory_gib: float) -> Device:
        """From the memory size the driver reports, in GiB."""
        memory_gb = min(_MEMORY_CLASSES_GB, key=lambda nominal: abs(math.log(nominal / memory_gib)))
        return cls(capability, sm_count, memory_gb)

    @classmethod
    def from_fingerprint(cls, fingerprint: Fingerprint) -> Device:
        """The device of a recording."""
        return cls.from_memory(fingerprint.capability, fingerprint.sm_count, fingerprint.memory_gib)

    @classmethod
    def of_arch(cls, arch: Arch) -> Device:
        """The reference part of an architecture."""
        return cls(arch.capability, arch.sm_count, arch.memory_gb)

    @property
    def name(self) -> str:
        """For example ``sm90_132sm_141gb``."""
        major, minor = self.capability
        return f"sm{major}{minor}_{self.sm_count}sm_{self.memory_gb}gb"


@dataclass(frozen=True)
class Header:
    """What holds for every entry.

    Attributes:
        device: Must match.
        acc: Must match.
        layout: Must match.
        soft: Environment of the measurements, several values joined by ``+``; a difference is worth a warning, not a
            refusal.
        dtype: Must match.
        schema: Of the file to write; older ones are read.
    """

    device: Device
    acc: Acc
    layout: Layout
    soft: dict[str, str]
    dtype: Dtype = "fp16"
    schema: int = TABLE_SCHEMA

    @classmethod
    def from_fingerprint(cls, fingerprint: Fingerprint, acc: Acc, layout: Layout, dtype: Dtype = "fp16") -> Header:
        """The header of a table made from measurements of this environment."""
        soft = {name: str(getattr(fingerprint, name)) for name in _SOFT}
        soft["protocol"] = str(fingerprint.protocol)
        return cls(Device.from_fingerprint(fingerprint), acc, layout, soft, dtype)

    @property
    def tuned_elsewhere(self) -> bool:
        """Whether its times are of another GPU than the one it is for."""
        return all(gpu.startswith(TUNED_ELSEWHERE) for gpu in self.soft.get("gpu", "").split("+"))

    @property
    def kind(self) -> str:
        """The hard part as text, which is also the conventional file name: ``sm90_132sm_141gb_fp32_tn``."""
        return f"{self.device.name}_{self.precision}_{self.layout}"

    @property
    def precision(self) -> str:
        """:func:`precision_of` its types."""
        return precision_of(self.acc, self.dtype)

    def problem(self, m: int, n: int, k: int) -> Problem:
        """These sizes by this table's types and layout."""
        return Problem(m, n, k, self.acc, self.layout, self.dtype)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        device = {**asdict(self.device), "capability": list(self.device.capability)}
        hard = {"schema": self.schema, "device": device, "acc": self.acc, "layout": self.layout, "dtype": self.dtype}
        return {**hard, "soft": dict(sorted(self.soft.items()))}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Header:
        """The inverse of :meth:`to_dict`.

        Raises:
            TableError: The schema is none that this version reads, or a field is missing or unknown.
        """
        if values.get("schema") not in range(1, TABLE_SCHEMA + 1):
            raise TableError(
                f"table schema {values.get('schema')!r} is not 1 to {TABLE_SCHEMA}: written by another version"
            )
        values = {**values, "schema": TABLE_SCHEMA}
        wrong = sorted(set(values) ^ {field.name for field in fields(cls)})
        if wrong:
            raise TableError(f"header has wrong or missing fields {wrong}")
        device = dict(values["device"])
        major, minor = device.pop("capability")
        numbers = (major, minor, *device.values())
        if not all(type(number) is int and number >= 0 for number in numbers) or 0 in device.values():
            raise TableError(f"device {values['device']} is no GPU")
        if not all(isinstance(text, str) for text in values["soft"].values()):
            raise TableError("header has a soft field that is not text")
        Problem(1, 1, 1, values["acc"], values["layout"], values["dtype"])
        return cls(**{**values, "device": Device(capability=(major, minor), **device)})

    def joined(self, other: Header) -> Header:
        """The header of entries of both tables."""
        shared = {name: joined_texts(self.soft[name], other.soft[name]) for name in self.soft if name in other.soft}
        return replace(self, soft={**other.soft, **self.soft, **shared})

    def narrowed(self, families: Iterable[str]) -> Header:
        """Without the present generator versions of other kernel families than these; of none, as it is."""
        others = set(FAMILIES) - set(families)
        if len(others) == len(FAMILIES) or "generator_version" not in self.soft:
            return self
        left = sorted(self.versions - {generator_version(name) for name in others})
        return replace(self, soft={**self.soft, "generator_version": "+".join(left)})

    @property
    def versions(self) -> frozenset[str]:
        """Generator versions: one per kernel family, several of one where its entries are of different ones."""
        return frozenset(self.soft.get("generator_version", "").split("+")) - {""}

    def soft_differences(self, soft: dict[str, str]) -> list[str]:
        """One line per soft field that differs; "unknown" never matches."""
        names = (name for name in soft if not _alike(self.soft.get(name, ""), soft[name]))
        return [f"{name}: measured with {self.soft.get(name)}, here {soft[name]}" for name in names]


def _alike(mine: str, theirs: str) -> bool:
    """Known, and all that we have, present generator versions of other kernel families left aside."""
    ours, others = set(mine.split("+")), set(theirs.split("+"))
    if theirs == "unknown" or not others <= ours:
        return False
    return ours == others or ours - others <= {generator_version(name) for name in FAMILIES}


@dataclass(frozen=True)
class Entry:
    """What serves one shape, a configuration of ours or else ``torch.matmul``; and the baseline that is ahead, if any.

    cuBLASLt's autotuned routine is no library call: :func:`cudal2.hgemm` cannot run it. So a shape that is lost to it
    keeps a configuration that was faster than ``torch.matmul`` in the same rounds.

    Attributes:
        m: Rows of A and C.
        n: Columns of B and C.
        k: Columns of A.
        config: What to launch; ``None`` where ``torch.matmul`` was faster or, if it was not timed, a baseline was.
        baseline: The baseline that was faster than ours; ``None`` where none was.
        median_us: Median time of the configuration, else of the baseline; ``None`` for one that was not timed.
        ref_us: Median time of cuBLASLt-AutoTuning in the same rounds, if measured.
        evidence: How the winner was found.
        pdl: Whether it was measured with, and is to be launched with, programmatic dependent launch.
        reason: By what a baseline is ahead, or why it is preferred; empty without one.
        runner_up_ratio: Time of the next best configuration over this one's, if there was one, compared as they were
            chosen: each over its reference's of the same rounds where all have one, else as timed. Under 1 by no more
            than the noise within which the smaller kernel is chosen.
        torch_us: Median time of ``torch.matmul`` with B stored as ours has it, in the same rounds, if measured.
    """

    m: int
    n: int
    k: int
    config: KernelConfig | None
    baseline: str | None
    median_us: float | None
    ref_us: float | None
    evidence: Evidence
    pdl: bool = False
    reason: str = ""
    runner_up_ratio: float | None = None
    torch_us: float | None = None

    def __post_init__(self) -> None:
        """Refuses entries that serve nothing, or what was measured slower than what could serve instead.

        Raises:
            TableError: The fields contradict each other.
        """
        Problem(self.m, self.n, self.k)
        if self.config is None and self.baseline is None:
            raise TableError(f"{self.mnk}: an entry holds a configuration, a baseline, or both")
        if (self.baseline is None) == bool(self.reason):
            raise TableError(f"{self.mnk}: a baseline needs its reason, a configuration alone has none")
        if self.config is not None and self.median_us is None:
            raise TableError(f"{self.mnk}: a configuration needs its median time")
        for value in (self.median_us, self.ref_us, self.torch_us, self.runner_up_ratio):
            if value is not None and not (isinstance(value, (int, float)) and 0.0 < value < math.inf):
                raise TableError(f"{self.mnk}: {str(value)[:40]} is no time or ratio of times")
        if self.config is not None and self.baseline is not None and self.torch_us is None:
            raise TableError(
                f"{self.mnk}: a configuration serves beside a faster baseline only if torch.matmul is slower"
            )
        if self.config is not None and self.median_us and self.torch_us and self.torch_us < self.median_us:
            raise TableError(f"{self.mnk}: torch.matmul took {self.torch_us} us, the configuration {self.median_us} us")
        if (
            not isinstance(self.pdl, bool)
            or not isinstance(self.baseline or "", str)
            or not isinstance(self.reason, str)
        ):
            raise TableError(f"{self.mnk}: pdl is true or false, baseline and reason are text")
        if self.evidence not in EVIDENCE:
            raise TableError(f"{self.mnk}: evidence '{self.evidence}' is none of {', '.join(EVIDENCE)}")

    @property
    def mnk(self) -> str:
        """The sizes as ``M_N_K``."""
        return f"{self.m}_{self.n}_{self.k}"

    @property
    def kernel_name(self) -> str:
        """The configuration's name, or the baseline's."""
        return self.config.name if self.config is not None else str(self.baseline)

    @property
    def speedup(self) -> float | None:
        """Over cuBLASLt-AutoTuning, under 1 where that is ahead; ``None`` if one of the two was not timed."""
        return self.ref_us / self.median_us if self.ref_us and self.median_us else None

    @property
    def served_us(self) -> float | None:
        """Median time of what serves: the configuration's, else ``torch.matmul``'s, else the baseline's."""
        return self.median_us if self.config is not None else self.torch_us or self.median_us

    def left_to(self, baseline: str, reason: str) -> Entry:
        """Without its configuration, for a reason."""
        median_us = self.torch_us if baseline == TORCH else self.ref_us
        ours: dict[str, Any] = {"config": None, "pdl": False, "runner_up_ratio": None}
        return replace(self, **ours, baseline=baseline, median_us=median_us, reason=reason)

    def without_torch(self) -> Entry:
        """As if ``torch.matmul`` had not been timed."""
        left = self.left_to(self.baseline, self.reason) if self.config is not None and self.baseline else self
        return replace(left, torch_us=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values without the sizes, empty ones left out; the configuration describes itself."""
        names = ("baseline", "median_us", "ref_us", "torch_us", "evidence", "runner_up_ratio")
        values = {name: getattr(self, name) for name in names}
        values |= {"pdl": self.pdl or None, "reason": self.reason or None}
        values["config"] = self.config.to_dict() if self.config is not None else None
        rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in values.items()}
        return {name: value for name, value in sorted(rounded.items()) if value is not None}

    @classmethod
    def from_dict(cls, mnk: str, values: dict[str, Any], schema: int = TABLE_SCHEMA) -> Entry:
        """The inverse of :meth:`to_dict`, and the entry of an older schema.

        Raises:
            TableError: A field is missing, unknown or impossible.
        """
        values = dict(values)
        if schema == 1:
            # As timed in other rounds than the winner's, at other clocks: no ratio can be had of it.
            values.pop("runner_up_us", None)
        try:
            sizes = Problem.parse(mnk)
            config = KernelConfig.from_dict(values.pop("config")) if "config" in values else None
            optional: dict[str, Any] = {"baseline": None, "median_us": None, "ref_us": None, **values}
            return cls(sizes.m, sizes.n, sizes.k, config, **optional)
        except (Cudal2Error, TypeError, ValueError) as error:
            raise TableError(f"entry {mnk}: {error}") from error
