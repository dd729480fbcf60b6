"""The two rules of tile order, for families that choose it: of orders that come to the same, one is legal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudal2.arch import Arch
from cudal2.problem import Problem
from cudal2.space.rule import Choice, Rule

#: Tiles, or clusters of them, along m and along n; elementwise on arrays.
Tiles = Callable[[Choice, Problem], tuple[Any, Any]]


def raster_rules(tiles: Tiles, tiling: tuple[str, ...], noun: str) -> tuple[Rule, Rule]:
    """``raster_single`` and ``group_too_big``.

    Args:
        tiles: What the raster orders.
        tiling: The axes that ``tiles`` reads.
        noun: What reasons call it, in the plural.
    """

    def along_raster(c: Choice, problem: Problem) -> Any:
        tiles_m, tiles_n = tiles(c, problem)
        return np.where(np.equal(c.raster, "m"), tiles_m, tiles_n)

    def matters(c: Choice, problem: Problem, arch: Arch) -> Any:
        tiles_m, tiles_n = tiles(c, problem)
        return ((tiles_m > 1) & (tiles_n > 1)) | (np.equal(c.raster, "m") & np.equal(c.group, 1))

    def matters_reason(c: Any, problem: Problem, arch: Arch) -> str:
        tiles_m, tiles_n = tiles(c, problem)
        return (
            f"{int(tiles_m)} x {int(tiles_n)} {noun} are one line: raster {c.raster} group {c.group} runs in the same "
            "order as raster m group 1"
        )

    def group_fits(c: Choice, problem: Problem, arch: Arch) -> Any:
        return (c.group < along_raster(c, problem)) | np.equal(c.group, 1)

    def group_fits_reason(c: Any, problem: Problem, arch: Arch) -> str:
        other = "n" if c.raster == "m" else "m"
        return (
            f"raster group {c.group} covers all {int(along_raster(c, problem))} {noun} along {c.raster}: the same "
            f"order as raster {other} group 1"
        )

    axes = (*tiling, "raster", "group")
    return (
        Rule("raster_single", axes, matters, matters_reason, by_size=True),
        Rule("group_too_big", axes, group_fits, group_fits_reason, by_size=True),
    )
