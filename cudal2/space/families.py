"""The kernel families: what belongs to each, and where it runs. Everything else is generic over them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from cudal2.arch import Arch
from cudal2.errors import UsageError
from cudal2.problem import Acc, Dtype, Layout
from cudal2.space.axes import SM80_MMA_AXES, SM90_COLLECTIVE_AXES, SM90_SMALL_AXES, SM90_WS_AXES, Axis
from cudal2.space.config import KernelConfig, Sm80MmaConfig, Sm90CollectiveConfig, Sm90SmallConfig, Sm90WsConfig
from cudal2.space.rule import Rule
from cudal2.space.sm80_mma import geometry as sm80_mma_geometry
from cudal2.space.sm80_mma.rules import RULES as SM80_MMA_RULES
from cudal2.space.sm90_collective import geometry as sm90_collective_geometry
from cudal2.space.sm90_collective.rules import RULES as SM90_COLLECTIVE_RULES
from cudal2.space.sm90_small import geometry as sm90_small_geometry
from cudal2.space.sm90_small.rules import RULES as SM90_SMALL_RULES
from cudal2.space.sm90_ws import geometry as sm90_ws_geometry
from cudal2.space.sm90_ws.rules import RULES as SM90_WS_RULES

Compiler = Literal["nvrtc", "nvcc"]


class Geometry(Protocol):
    """What a family derives from its configurations; a module of functions."""

    __file__: str | None

    def threads(self, config: Any) -> int:
        """Threads of one CTA."""

    def smem_bytes(self, config: Any) -> int:
        """Dynamic shared memory of one CTA."""

    def register_pool(self, config: Any) -> int:
        """Registers of one CTA that setmaxnreg hands out; 0 where it is not used."""

    def cluster_size(self, config: Any) -> int:
        """CTAs of one cluster."""

    def grid_ctas(self, config: Any, m: int, n: int, sm_count: int) -> int:
        """CTAs to launch."""

    def constants(self, config: Any, acc: Acc, layout: Layout, dtype: Dtype) -> dict[str, Any]:
        """Values of the template's placeholders."""


@dataclass(frozen=True)
class Family:
    """One kernel template and its space.

    Attributes:
        config: Class of its configurations.
        axes: Their fields and the values these may take.
        rules: Which configurations are legal.
        geometry: What a configuration implies.
        oldest: Lowest compute capability it runs on.
        newest: Highest one.
        compiler: What compiles its kernels; nvcc leaves a library for the host beside each cubin.
    """

    config: type[KernelConfig]
    axes: tuple[Axis, ...]
    rules: tuple[Rule, ...]
    geometry: Geometry
    oldest: tuple[int, int]
    newest: tuple[int, int]
    compiler: Compiler = "nvrtc"

    def __reduce__(self) -> tuple[Any, ...]:
        """By name: a family is one object, and its geometry is a module, which cannot be pickled."""
        return _named, (self.name,)

    @property
    def name(self) -> str:
        """As configurations, records and ``--family`` spell it."""
        return self.config.family

    @property
    def geometry_file(self) -> Path:
        """The source of ``geometry``, which decides the template's constants."""
        return Path(str(self.geometry.__file__))

    def runs_on(self, arch: Arch) -> bool:
        """Whether its kernels can be compiled for the architecture."""
        return self.oldest <= arch.capability <= self.newest


SM90_WS = Family(Sm90WsConfig, SM90_WS_AXES, SM90_WS_RULES, sm90_ws_geometry, (9, 0), (9, 0))
SM90_SMALL = Family(Sm90SmallConfig, SM90_SMALL_AXES, SM90_SMALL_RULES, sm90_small_geometry, (9, 0), (9, 0))
SM80_MMA = Family(Sm80MmaConfig, SM80_MMA_AXES, SM80_MMA_RULES, sm80_mma_geometry, (8, 0), (9, 0))
SM90_COLLECTIVE = Family(
    Sm90CollectiveConfig, SM90_COLLECTIVE_AXES, SM90_COLLECTIVE_RULES, sm90_collective_geometry, (9, 0), (9, 0), "nvcc"
)

#: By name, the one to prefer on an architecture that runs several first.
FAMILIES = {family.name: family for family in (SM90_WS, SM90_SMALL, SM80_MMA, SM90_COLLECTIVE)}


def _named(name: str) -> Family:
    return FAMILIES[name]


def family_of(config: KernelConfig) -> Family:
    """The family of a configuration."""
    return FAMILIES[config.family]


def family_on(arch: Arch, name: str = "") -> Family:
    """The family of this name, or without one the architecture's first choice.

    Raises:
        UsageError: There is none of this name, or it does not run there.
    """
    runnable = [family for family in FAMILIES.values() if family.runs_on(arch)]
    if not name:
        return runnable[0]
    found = next((family for family in runnable if family.name == name), None)
    if found is None:
        raise UsageError(
            f"kernel family '{name}' does not run on {arch.name}: choose {' or '.join(f.name for f in runnable)}"
        )
    return found
