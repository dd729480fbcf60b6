"""``KernelConfig``: one complete choice of kernel, compile-time and run-time axes together, and its names."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from cudal2.errors import UsageError

Schedule = Literal["coop", "pingpong"]
Epilogue = Literal["tma", "direct"]
Raster = Literal["m", "n"]

_TEXTS = {"schedule": get_args(Schedule), "epilogue": get_args(Epilogue), "raster": get_args(Raster)}


@dataclass(frozen=True, order=True)
class KernelConfig:
    """One point of the ``sm90_ws`` space; every field is an axis.

    Attributes:
        tile_m: Rows of C per CTA tile.
        tile_n: Columns of C per CTA tile.
        tile_k: Depth of one pipeline stage, in elements.
        stages: Pipeline stages, which is also the prefetch depth.
        schedule: ``coop``: the consumer warp groups share one tile by rows. ``pingpong``: each has its own tile.
        consumers: Consumer warp groups of 128 threads.
        cluster_m: CTAs of a cluster along M; they share B by multicast.
        cluster_n: CTAs of a cluster along N; they share A by multicast.
        split_k: CTAs of a cluster that split K and reduce through distributed shared memory.
        epilogue: ``tma``: stmatrix, then TMA store. ``direct``: predicated stores from registers.
        ctas_per_sm: CTAs that must fit one multiprocessor.
        raster: Run time. Axis along which consecutive tiles run inside a raster group.
        group: Run time. Tiles per raster group.
        persistent: Run time. Grid of one wave that loops over tiles, against one CTA per tile.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    schedule: Schedule
    consumers: int
    cluster_m: int
    cluster_n: int
    split_k: int
    epilogue: Epilogue
    ctas_per_sm: int
    raster: Raster = "m"
    group: int = 8
    persistent: bool = True

    @property
    def family(self) -> str:
        """Kernel template this configuration instantiates."""
        return "sm90_ws"

    @property
    def build_name(self) -> str:
        """Compile-time part, for example ``128x256x64_s4_coop2_c2x1_k1_tma_o1``; one cubin serves all that share it."""
        return (
            f"{self.tile_m}x{self.tile_n}x{self.tile_k}_s{self.stages}_{self.schedule}{self.consumers}"
            f"_c{self.cluster_m}x{self.cluster_n}_k{self.split_k}_{self.epilogue}_o{self.ctas_per_sm}"
        )

    @property
    def name(self) -> str:
        """Canonical name, unique over the space: the build name, then raster axis, group and ``p`` if persistent."""
        return f"{self.build_name}_{self.raster}{self.group}{'p' if self.persistent else ''}"

    @property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of the sorted JSON form; stable across versions that keep the fields."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; ``family`` included, so that a row describes itself."""
        return {"family": self.family, **asdict(self)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> KernelConfig:
        """The inverse of :meth:`to_dict`.

        Raises:
            UsageError: A field is missing, unknown or of the wrong kind, or the family is not one this version builds.
        """
        values = dict(values)
        family = values.pop("family", "sm90_ws")
        names = {field.name for field in fields(cls)}
        if family != "sm90_ws" or set(values) != names:
            wrong = sorted(set(values) ^ names)
            raise UsageError(
                f"configuration of family '{family}' has wrong or missing fields {wrong}: made by another version?"
            )
        for name, value in values.items():
            if not _can_hold(name, value):
                raise UsageError(f"{name} = {str(value)[:40]!r} can be no value of a configuration")
        return cls(**values)


def _can_hold(name: str, value: Any) -> bool:
    """Whether a field may hold the value at all; which values are on its axis is for the space to say."""
    if name in _TEXTS:
        return value in _TEXTS[name]
    if name == "persistent":
        return isinstance(value, bool)
    return type(value) is int and 0 < value < 2**31
