"""Prefix masks: every path along them is a legal configuration, and every legal configuration has a path."""

from __future__ import annotations

import numpy as np
import pytest

from cudal2.problem import Problem
from cudal2.settings import SpaceSettings, load_space
from cudal2.space.masks import PrefixMasks, is_in, shortened
from cudal2.space.space import SearchSpace

FULL = SearchSpace()
RECORD = SearchSpace(settings=load_space("sm90_record"))
SMALL = SearchSpace(
    settings=SpaceSettings(
        axes={
            "tile_m": (64, 128),
            "tile_n": (64, 128),
            "tile_k": (64,),
            "split_k": (1, 2),
            "stages": (2, 4),
            "group": (1, 4),
        }
    )
)
PROBLEMS = [Problem(64, 4096, 64), Problem(1, 8, 8), Problem(123, 457, 792), Problem(1024, 2048, 512, "fp16", "nn")]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_paths_along_the_masks_are_exactly_the_legal_configurations(problem: Problem) -> None:
    masks = PrefixMasks(SMALL.dims, SMALL.legal_flat(problem))
    paths = np.zeros((1, 0), np.int64)
    for size in SMALL.dims:
        allowed = masks.mask(paths)
        assert allowed.shape == (len(paths), size)
        assert allowed.any(axis=1).all(), "no legal prefix is a dead end"
        row, value = np.nonzero(allowed)
        paths = np.concatenate([paths[row], value[:, None]], axis=1)
    legal = np.stack(np.unravel_index(SMALL.legal_flat(problem), SMALL.dims), axis=-1)
    assert np.array_equal(paths, legal)


@pytest.mark.parametrize("space", [FULL, RECORD], ids=["full", "record"])
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_random_walks_end_in_legal_configurations(space: SearchSpace, problem: Problem) -> None:
    rng = np.random.default_rng(1)
    masks = PrefixMasks(space.dims, space.legal_flat(problem))
    assert masks.dims == space.dims
    actions = np.zeros((64, 0), np.int64)
    for _ in space.dims:
        allowed = masks.mask(actions)
        value = (allowed * rng.random(allowed.shape)).argmax(axis=1)
        actions = np.concatenate([actions, value[:, None]], axis=1)
    assert is_in(np.ravel_multi_index(tuple(actions.T), space.dims), space.legal_flat(problem)).all()
    assert space.explain(space.decode(actions[0]), problem) == []


def test_masks_follow_from_the_legal_configurations_by_definition() -> None:
    rng = np.random.default_rng(2)
    problem = PROBLEMS[3]
    valid = np.zeros(SMALL.dims, np.bool_)
    valid.ravel()[SMALL.legal_flat(problem)] = True
    masks = PrefixMasks(SMALL.dims, SMALL.legal_flat(problem))
    for length in range(valid.ndim):
        prefix = rng.integers(SMALL.dims[:length], size=(20, length))
        expected = [[valid[(*row, value)].any() for value in range(SMALL.dims[length])] for row in prefix.tolist()]
        assert masks.mask(prefix).tolist() == expected


def test_an_illegal_prefix_allows_nothing() -> None:
    masks = PrefixMasks((2, 2), np.array([0]))
    assert masks.mask(np.array([[0], [1]])).tolist() == [[True, False], [False, False]]
    assert masks.mask(np.zeros((2, 0), int)).tolist() == [[True, False], [True, False]]


def test_nothing_legal_allows_nothing() -> None:
    masks = PrefixMasks(RECORD.dims, RECORD.legal_flat(Problem(64, 64, 100)))
    assert not masks.mask(np.zeros((1, 0), int)).any()
    assert not masks.action_masks().any()


def test_action_masks_are_the_values_some_legal_configuration_has() -> None:
    problem = PROBLEMS[0]
    legal = np.stack(np.unravel_index(SMALL.legal_flat(problem), SMALL.dims), axis=-1)
    expected = [value in legal[:, axis] for axis, size in enumerate(SMALL.dims) for value in range(size)]
    assert PrefixMasks(SMALL.dims, SMALL.legal_flat(problem)).action_masks().tolist() == expected


def test_shortened_is_numpys_unique() -> None:
    rng = np.random.default_rng(5)
    for size in (0, 1, 40):
        prefixes = np.unique(rng.integers(100, size=size))
        for mine, expected in zip(shortened(prefixes, 7), np.unique(prefixes // 7, return_inverse=True), strict=True):
            assert np.array_equal(mine, expected)


def test_is_in_is_numpys_isin() -> None:
    rng = np.random.default_rng(4)
    for size in (0, 1, 30):
        ascending, values = np.unique(rng.integers(100, size=size)), rng.integers(-5, 105, size=(8, 9))
        assert np.array_equal(is_in(values, ascending), np.isin(values, ascending))
