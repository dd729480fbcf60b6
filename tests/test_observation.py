"""The observation vector: its documented layout, its bounds, and what it may depend on."""

import numpy as np
import pytest

from cudal2.problem import Problem
from cudal2.rl import observation as obs
from cudal2.settings import SpaceSettings
from cudal2.space.space import SearchSpace

#: All values that the observation shows; of the axes that it does not show, few.
HIDDEN = {"group": (1, 8), "l2_prefetch": (0,), "l2_promotion": (256,), "store_hint": ("normal",), "resident_a": (0,)}
SPACE = SearchSpace(settings=SpaceSettings(axes={**HIDDEN, "producer_registers": (0,), "store_buffers": (2,)}))


def features(m, n, k, space=SPACE, **kwargs):
    problem = Problem(m, n, k, **kwargs)
    return obs.static_features(space, problem, space.legal_flat(problem))


def test_layout_is_the_documented_one():
    slices = (obs.SHAPE, obs.ANALYTIC_BEST, obs.ANALYTIC_TOP, obs.HARDWARE, obs.COUNTER, obs.HISTORY)
    assert [part.start for part in slices] == [0] + [part.stop for part in slices[:-1]]
    assert obs.HISTORY.stop == obs.FEATURES == obs.PROBLEM_INDEX == obs.SIZE - 1 == 97
    for text in ("29-51", "52-74", "75-82", "83-92", "93-96", "97   "):
        assert text in obs.__doc__


def test_values_at_a_known_shape():
    row = features(1024, 1024, 1024)
    assert row.dtype == np.float32 and row.shape == (obs.FEATURES,)
    assert row[:5] == pytest.approx([0, 0, 0, 0, 0])
    assert row[7] == 0 and list(row[8:12]) == [1, 1, 1, 1]
    # 128x128 tiles: 64 CTAs on 132 multiprocessors.
    assert row[20] == pytest.approx(np.log2(64 / 132) / 8) and row[22] == pytest.approx(64 / 132)


def test_flags_tell_ragged_shapes_accumulators_and_layouts():
    assert list(features(1000, 1016, 1000)[8:12]) == [1, 0, 0, 0]
    assert features(64, 64, 64, acc="fp16")[12] == 1 and features(64, 64, 64)[12] == 0
    assert features(64, 64, 64, layout="nn")[13] == 1 and features(64, 64, 64)[13] == 0


@pytest.mark.parametrize("mnk", ["64_64_64", "16384_16384_16384", "64_16384_64", "8_8_8"])
def test_every_shape_stays_within_the_bounds(mnk):
    problem = Problem.parse(mnk)
    row = features(problem.m, problem.n, problem.k)
    assert np.isfinite(row).all() and np.abs(row).max() < obs.BOUND


def test_analytic_block_holds_one_hots_of_legal_values():
    row = features(128, 4096, 2048)
    for block in (row[obs.ANALYTIC_BEST], row[obs.ANALYTIC_TOP]):
        for start, stop in ((0, 4), (4, 12), (12, 15)):
            assert block[start:stop].sum() == pytest.approx(1)
        clusters = block[17:19]  # less one; of up to four CTAs along M and N
        assert block.min() >= 0 and clusters.max() <= 3 and np.delete(block, (17, 18)).max() <= 1
    assert set(row[obs.ANALYTIC_BEST][:15]) == {0.0, 1.0}


def test_a_narrowed_space_keeps_the_positions():
    narrow = SearchSpace(settings=SpaceSettings(axes={"tile_m": (128,), "tile_n": (256,)}))
    block = features(4096, 4096, 4096, narrow)[obs.ANALYTIC_BEST]
    assert list(block[:4]) == [0, 1, 0, 0] and block[4 + 7] == 1


def test_counters_carry_presence_bits_and_are_absent_before_a_measurement():
    assert not features(64, 64, 64)[obs.COUNTER].any()
    row = np.zeros(obs.SIZE, np.float32)
    obs.write_history(row, 0.5, 0.2, -2.0, {"registers": 0.5, "l2_hit_rate": 0.0})
    assert list(row[obs.COUNTER]) == [1, 0, 0, 0, 0, 0, 0, 0, 1, 0.5]
    assert row[obs.HISTORY] == pytest.approx([0.5, 0.2, -2.0, 1.0])


def test_the_table_gives_fresh_rows_with_the_problem_index():
    problems = (Problem(64, 64, 64), Problem(128, 64, 64))
    table = obs.ObservationTable(SPACE, problems, lambda i: SPACE.legal_flat(problems[i]))
    rows = table.batch(np.array([1, 0, 1]))
    assert list(rows[:, obs.PROBLEM_INDEX]) == [1, 0, 1]
    rows[:] = 0
    assert table.batch(np.array([1]))[0, obs.PROBLEM_INDEX] == 1
