"""The shapes of the GPU tests run every corner that these name; no GPU is needed to know."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from cudal2.arch import SM90
from cudal2.launch.plan import plan_launch
from cudal2.problem import Layout, Problem
from cudal2.space.config import Sm90WsConfig
from cudal2.space.refit import off_sectors

_SPEC = importlib.util.spec_from_file_location("gpu_kernels", Path(__file__).parent / "gpu" / "gpu_kernels.py")
assert _SPEC is not None and _SPEC.loader is not None
kernels = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(kernels)


@pytest.mark.parametrize("family", ["", "SMALL_"])
def test_every_corner_takes_one_of_the_shapes(family: str) -> None:
    corners, shapes = getattr(kernels, f"{family}CORNERS"), getattr(kernels, f"{family}SHAPES")
    problems = [Problem.parse(mnk, *kind) for mnk in shapes for kind in kernels.KINDS]
    idle = [corner.name for corner in corners if not any(kernels.runnable(corner, problem) for problem in problems)]
    assert idle == []


@pytest.mark.parametrize("family", ["", "SMALL_"])
@pytest.mark.parametrize("layout", ["tn", "nn"])
def test_maps_that_fetch_less_are_tried_on_rows_off_the_sectors_and_on_them(family: str, layout: Layout) -> None:
    corners = [corner for corner in getattr(kernels, f"{family}CORNERS") if corner.l2_promotion == 128]
    problems = [Problem.parse(mnk, layout=layout) for mnk in getattr(kernels, f"{family}SHAPES")]
    assert len(corners) >= 2
    for corner in corners:
        assert {off_sectors(problem) for problem in problems if kernels.runnable(corner, problem)} == {False, True}


@pytest.mark.parametrize("corner", [c for c in kernels.CORNERS if c.resident_a], ids=lambda corner: corner.build_name)
def test_where_a_stays_some_shape_gives_a_cta_more_tiles_than_one(corner: Sm90WsConfig) -> None:
    problems = [problem for problem in map(Problem.parse, kernels.SHAPES) if kernels.runnable(corner, problem)]
    plans = [plan_launch(corner, problem, SM90.sm_count) for problem in problems]
    tiles = [plan.scalars["tiles_m"] * plan.scalars["tiles_n"] * plan.cluster / plan.grid for plan in plans]
    assert max(tiles, default=0) >= 2
