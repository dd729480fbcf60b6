"""The floor model against an independent computation of all 1,000 grid shapes (tests/data/floors.csv, in whole ns)."""

import csv
from collections import Counter
from pathlib import Path

import pytest

from cudal2 import floor

ROWS = list(csv.DictReader((Path(__file__).parent / "data" / "floors.csv").open()))
SHAPES = [(int(row["m"]), int(row["n"]), int(row["k"])) for row in ROWS]


def test_floors_equal_the_reference_table():
    assert len(ROWS) == 1000
    for shape, row in zip(SHAPES, ROWS, strict=True):
        assert floor.floor_us(*shape) == pytest.approx(float(row["floor_us"]), abs=1.1e-3), shape
        assert floor.floor_burst_us(*shape) == pytest.approx(float(row["floor_burst_us"]), abs=1.1e-3), shape


def test_classes_split_the_grid_as_published():
    counts = Counter(floor.floor_class(*shape) for shape in SHAPES)
    assert [counts[name] for name in floor.CLASS_NAMES] == [322, 187, 293, 138, 60]


def test_class_edges_are_exclusive_above():
    # 64x64x64 sits at the 2.2 us launch floor; 16384 cubed is tensor-bound for 11 ms.
    assert floor.floor_class(64, 64, 64) == "<2.3us"
    assert floor.floor_class(16384, 16384, 16384) == ">1ms"


@pytest.mark.parametrize("shape", [(64, 64, 64), (1000, 7, 3), (4096, 4096, 4096)])
def test_physical_bound_is_below_the_burst_floor_and_symmetric(shape):
    m, n, k = shape
    assert 0 < floor.physical_us(m, n, k) <= floor.floor_burst_us(m, n, k) <= floor.floor_us(m, n, k)
    assert floor.physical_us(m, n, k) == floor.physical_us(n, m, k)


def test_physical_bound_by_hand():
    # 8192 cubed: 2 * 8192^3 / 1e15 = 1,099.5 us; 0.5 ms would be twice what the chip can do.
    assert floor.physical_us(8192, 8192, 8192) == pytest.approx(1099.5, abs=0.1)
