"""A few configurations of different kinds for a shape nobody searched."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from math import prod

from cudal2.arch import Arch
from cudal2.errors import NothingValidError
from cudal2.problem import Problem
from cudal2.space.config import KernelConfig, Sm80MmaConfig, Sm90CollectiveConfig, Sm90SmallConfig, Sm90WsConfig
from cudal2.space.estimate import estimate_us
from cudal2.space.families import FAMILIES, SM80_MMA, family_on
from cudal2.space.refit import suited
from cudal2.space.rule import ceil_div, share_k_tiles
from cudal2.space.shared_rules import tma_reads
from cudal2.space.sm80_mma import geometry as sm80_mma
from cudal2.space.space import SearchSpace

#: Large tiles, small ones, a split of K, many CTAs for output-bound shapes.
_SM90_WS = (
    Sm90WsConfig(128, 256, 64, 4, "coop", 2, 1, 1, 1, "tma", 1, "m", 8, True),
    Sm90WsConfig(128, 128, 64, 6, "pingpong", 2, 1, 1, 1, "tma", 1, "m", 8, True),
    Sm90WsConfig(128, 128, 64, 4, "coop", 2, 1, 1, 1, "tma", 1, "m", 1, False),
    Sm90WsConfig(64, 128, 64, 4, "coop", 1, 1, 1, 1, "tma", 1, "m", 1, False),
    Sm90WsConfig(64, 64, 64, 6, "coop", 1, 1, 1, 1, "tma", 1, "m", 1, False),
    Sm90WsConfig(64, 64, 64, 4, "coop", 1, 1, 1, 4, "direct", 1, "m", 1, False),
    Sm90WsConfig(64, 32, 64, 6, "coop", 1, 1, 1, 1, "direct", 1, "m", 1, False),
    Sm90WsConfig(64, 64, 64, 2, "coop", 1, 1, 1, 1, "direct", 1, "m", 1, False),
)
#: For K in one shot, for a long K in one CTA and over clusters, and for tiles of less than 64 rows.
_SM90_SMALL = (
    Sm90SmallConfig(64, 64, 64, 4, "wgmma", 4, 1),
    Sm90SmallConfig(64, 32, 64, 1, "wgmma", 4, 1),
    Sm90SmallConfig(64, 32, 64, 4, "wgmma", 4, 1),
    Sm90SmallConfig(64, 32, 128, 4, "wgmma", 4, 8),
    Sm90SmallConfig(32, 32, 64, 1, "mma", 4, 1),
    Sm90SmallConfig(32, 32, 64, 2, "mma", 4, 1),
)
#: Large tiles, small ones, splits of K, and for n of any alignment.
_SM90_COLLECTIVE = (
    Sm90CollectiveConfig(128, 256, 64, cluster_m=2),
    Sm90CollectiveConfig(128, 128, 64, schedule="pingpong"),
    Sm90CollectiveConfig(128, 128, 64, scheduler="stream_k", split_k=4),
    Sm90CollectiveConfig(64, 64, 64, schedule="warpspecialized"),
    Sm90CollectiveConfig(64, 64, 64, schedule="warpspecialized", epilogue="nosmem"),
)
_FIXED: dict[str, tuple[KernelConfig, ...]] = {
    Sm90WsConfig.family: _SM90_WS,
    Sm90SmallConfig.family: _SM90_SMALL,
    Sm90CollectiveConfig.family: _SM90_COLLECTIVE,
}
#: Tile of C, warps and CTAs per SM, largest tile first.
_SM80_MMA = (
    (128, 128, 2, 2, 2),
    (128, 128, 2, 4, 1),
    (128, 64, 2, 2, 2),
    (64, 64, 2, 2, 3),
    (32, 64, 1, 4, 4),
    (32, 32, 2, 2, 4),
    (16, 64, 1, 4, 4),
)
#: CTAs up to which a default of few tiles splits K, and by how much.
_SPLIT_CTAS, _SPLITS = 264, (2, 4, 8, 16)


def default_configs(problem: Problem, arch: Arch, family: str = "") -> list[KernelConfig]:
    """Legal ones of the named family, or of the first on the architecture that has any.

    Raises:
        NothingValidError: None of them is legal here.
    """
    reasons: set[str] = set()
    for name in [family] if family else [one.name for one in FAMILIES.values() if one.runs_on(arch)]:
        space = SearchSpace(arch, family=name)
        fixed = _FIXED[name] if name in _FIXED else sm80_mma_configs(problem)
        configs = [suited(config, problem) for config in fixed]
        legal = [config for config in configs if not space.explain(config, problem)]
        if legal:
            return legal
        reasons |= {reason for config in configs for reason in space.explain(config, problem)}
    raise NothingValidError(
        f"{problem.mnk}: no default configuration is legal ({min(reasons)}): give one with --config"
    )


def sm80_mma_configs(problem: Problem) -> tuple[Sm80MmaConfig, ...]:
    """For any sizes: stages as deep as K allows, copies as wide as rows do; largest tile first, whole before split.

    They store C by 16 bytes; :func:`suited` says what to do where its rows do not begin so.
    """
    tile_k = next((depth for depth in (64, 32) if depth <= problem.k), 16)
    stages = min(4 if tile_k == 64 else 5, max(2, ceil_div(problem.k, tile_k) + 1))
    whole = tuple(
        Sm80MmaConfig(
            tile_m=tile_m,
            tile_n=tile_n,
            tile_k=tile_k if tile_m * tile_n <= 64 * 64 else min(tile_k, 32),
            stages=stages,
            warps_m=warps_m,
            warps_n=warps_n,
            smem_layout="swizzle",
            fragments=2 if tile_k >= 32 else 1,
            prefetch="plain",
            epilogue="wide",
            copy_bytes=problem.alignment_bytes,
            ctas_per_sm=ctas_per_sm,
            raster="m",
            group=8 if ceil_div(problem.m, tile_m) > 8 and problem.n > tile_n else 1,
        )
        for tile_m, tile_n, warps_m, warps_n, ctas_per_sm in _SM80_MMA
    )
    return whole + tuple(sliced for config in whole if (sliced := _sliced(config, problem)).split_k > 1)


def _sliced(config: Sm80MmaConfig, problem: Problem) -> Sm80MmaConfig:
    """With K split until there are some two CTAs for each SM of a large GPU, or two K tiles for each CTA."""
    most = min(_SPLIT_CTAS // prod(sm80_mma.tiles(config, problem.m, problem.n)), share_k_tiles(config, problem) // 2)
    sliced = replace(config, split_k=max((value for value in _SPLITS if value <= most), default=1))
    return replace(sliced, stages=min(config.stages, max(2, share_k_tiles(sliced, problem) + 1)))


def fallback_config(problem: Problem, arch: Arch) -> KernelConfig | None:
    """What to run, untuned, where TMA cannot read the rows and the architecture has it; ``None`` elsewhere.

    The one that the analytic model finds fastest, of those that copy operands first and those that do without.
    """
    if tma_reads(problem) or family_on(arch) is SM80_MMA:
        return None
    configs: list[KernelConfig] = []
    for family in (Sm90WsConfig.family, Sm80MmaConfig.family):
        with suppress(NothingValidError):
            configs += default_configs(problem, arch, family)
    if not configs:
        return None
    return min(configs, key=lambda config: estimate_us(config, problem, arch))
