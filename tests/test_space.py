"""The search space: what is legal against one-by-one judgement, narrowing, sampling, neighbours, no duplicates."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from cudal2.arch import SM90
from cudal2.errors import NothingValidError, UsageError
from cudal2.floor import floor_us
from cudal2.launch.plan import plan_launch
from cudal2.problem import Problem
from cudal2.settings import Limit, SpaceSettings, load_shapes, load_space
from cudal2.space.axes import SM90_WS_AXES, Axis
from cudal2.space.config import KernelConfig, Sm90WsConfig
from cudal2.space.families import FAMILIES, SM90_WS
from cudal2.space.masks import is_in
from cudal2.space.rule import Rule
from cudal2.space.sm90_ws import geometry
from cudal2.space.sm90_ws.rules import RULES
from cudal2.space.space import SearchSpace

FULL = SearchSpace()
RECORD = SearchSpace(settings=load_space("sm90_record"))
NARROW = SearchSpace(
    settings=SpaceSettings(
        axes={
            "tile_m": (64, 128),
            "tile_n": (96,),
            "tile_k": (64,),
            "consumers": (1, 2),
            "cluster_m": (1, 2),
            "cluster_n": (1,),
            "split_k": (1, 2),
            "stages": (2, 4),
            "ctas_per_sm": (1,),
            "group": (1, 4),
            "l2_prefetch": (0, 64),
            "producer_registers": (0,),
            "store_hint": ("normal",),
            "store_buffers": (2,),
            "resident_a": (0, 2),
            "l2_promotion": (256,),
        }
    )
)
#: Ragged, tiny, skewed and unservable shapes among plain ones.
PROBLEMS = [
    Problem(64, 4096, 64),
    Problem(8192, 8192, 8192),
    Problem(64, 64, 16384),
    Problem(1, 8, 8),
    Problem(1, 1, 1),
    Problem(123, 456, 789),
    Problem(123, 457, 792),
    Problem(123, 457, 792, layout="nn"),
    Problem(1000, 1000, 1000, acc="fp16"),
    Problem(300, 5000, 136, acc="fp16", layout="nn"),
    Problem(2**31 - 1, 8, 8),
    Problem(2**31 - 1, 2**31 - 1, 2**31 - 8),
]


def test_axes_are_the_fields_of_a_configuration() -> None:
    config = FULL.decode([0] * len(FULL.dims))
    assert {axis.name for axis in SM90_WS_AXES} == set(asdict(config))
    run_time = [axis.name for axis in SM90_WS_AXES if not axis.compile_time]
    assert run_time == ["raster", "group", "persistent", "l2_prefetch", "l2_promotion"]
    assert FULL.total == math.prod(len(axis.values) for axis in SM90_WS_AXES)


@pytest.mark.parametrize("axis", SM90_WS_AXES, ids=lambda axis: axis.name)
def test_compile_time_axes_are_those_of_the_build_name(axis: Axis) -> None:
    config = Sm90WsConfig(128, 128, 64, 4, "coop", 2, 1, 1, 1, "tma", 1)
    other = next(value for value in axis.values if value != getattr(config, axis.name))
    changed = replace(config, **{axis.name: other})
    assert (changed.build_name != config.build_name) == axis.compile_time
    assert changed.name != config.name


@pytest.fixture(scope="module")
def narrow() -> list[KernelConfig]:
    """All of it, legal or not, by flat index."""
    return [NARROW.from_flat(flat) for flat in range(NARROW.total)]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_legal_equals_one_by_one_judgement_exhaustively(problem: Problem, narrow: list[KernelConfig]) -> None:
    judges = [_judge_of_one(rule, problem) for rule in NARROW.rules]
    alone = [flat for flat, config in enumerate(narrow) if all(judge(config) for judge in judges)]
    assert NARROW.legal_flat(problem).tolist() == alone
    explained = {*alone, *range(0, NARROW.total, 97)}
    assert {flat for flat in explained if NARROW.explain(narrow[flat], problem) == []} == set(alone)


def _judge_of_one(rule: Rule, problem: Problem) -> Callable[[KernelConfig], bool]:
    """What a rule says of one configuration, from the axes that it names alone; the same choice is judged once."""

    @cache
    def met(*values: object) -> bool:
        return bool(np.all(rule.allows(SimpleNamespace(**dict(zip(rule.axes, values, strict=True))), problem, SM90)))

    return lambda config: met(*(getattr(config, name) for name in rule.axes))


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize("space", [FULL, RECORD], ids=["full", "record"])
def test_legal_equals_one_by_one_judgement_on_samples(space: SearchSpace, problem: Problem) -> None:
    rng = np.random.default_rng(11)
    legal = space.legal_flat(problem)
    assert (np.diff(legal) > 0).all()
    near = legal[rng.integers(legal.size, size=60)] if legal.size else legal
    # One changed axis away from a legal configuration is where a wrong limit would show.
    edges = [_with_one_axis_redrawn(space, int(flat), rng) for flat in near]
    for flat in [*rng.integers(space.total, size=120).tolist(), *near.tolist(), *edges]:
        assert (space.explain(space.from_flat(flat), problem) == []) == bool(is_in(np.array(flat), legal))


def _with_one_axis_redrawn(space: SearchSpace, flat: int, rng: np.random.Generator) -> int:
    action = list(np.unravel_index(flat, space.dims))
    at = rng.integers(len(action))
    action[at] = rng.integers(space.dims[at])
    return int(np.ravel_multi_index(tuple(action), space.dims))


def test_what_is_legal_is_read_only_and_kept() -> None:
    problem = Problem(512, 512, 512)
    legal = FULL.legal_flat(problem)
    assert FULL.legal_flat(problem) is legal
    with pytest.raises(ValueError, match="read-only"):
        legal[0] = 0
    nothing = RECORD.legal_flat(Problem(123, 456, 789))
    assert np.random.default_rng(0).permutation(nothing).size == 0


def test_a_space_of_a_billion_is_never_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of axes many times longer, one that rules read and one that none does, the rules still decide one by one."""
    wider = {"tile_m": tuple(range(64, 513, 64)), "tile_n": tuple(range(16, 257, 8))}
    wider |= dict.fromkeys(("cluster_m", "cluster_n"), (1, 2, 4))
    axes = [replace(axis, values=wider.get(axis.name, axis.values)) for axis in SM90_WS_AXES]
    flags = [Axis(name, (False, True), False, "a choice that no rule reads") for name in ("hint", "order")]
    monkeypatch.setitem(FAMILIES, "sm90_ws", replace(SM90_WS, axes=(axes[0], flags[0], *axes[1:], flags[1])))
    space, problem = SearchSpace(), Problem(1000, 520, 1032)
    assert space.total > 10**9
    legal, rng = space.legal_flat(problem), np.random.default_rng(3)
    assert (np.diff(legal) > 0).all() and 10**5 < legal.size < space.total // 100
    assert sum(space.removed_by_rule(problem).values()) + legal.size == space.total
    near = rng.choice(legal, 100).tolist()
    for flat in [*near, *(_with_one_axis_redrawn(space, flat, rng) for flat in near)]:
        values = dict(zip((axis.name for axis in space.axes), np.unravel_index(flat, space.dims), strict=True))
        config = FULL.family.config(**{a.name: a.values[values[a.name]] for a in axes})
        broken = [rule.name for rule in RULES if not np.all(rule.allows(config, problem, SM90))]
        assert (broken == []) == bool(is_in(np.array(flat), legal)), (config, broken)


def test_what_rules_remove_adds_up() -> None:
    for space in (FULL, RECORD):
        for problem in PROBLEMS[:4]:
            removed = space.removed_by_rule(problem)
            assert sum(removed.values()) + space.legal_count(problem) == space.total
            assert set(removed) - {"subspace"} == {rule.name for rule in RULES}


def test_possible_holds_what_is_legal_for_any_sizes() -> None:
    for space in (NARROW, RECORD):
        possible = space.possible_flat(PROBLEMS[0])
        assert (np.diff(possible) > 0).all()
        for problem in PROBLEMS[:7]:
            assert is_in(space.legal_flat(problem), possible).all()


def test_encoding_round_trips() -> None:
    rng = np.random.default_rng(0)
    for flat in rng.integers(FULL.total, size=200).tolist():
        config = FULL.from_flat(flat)
        assert FULL.flat(config) == flat
        assert FULL.decode(FULL.encode(config)) == config
        assert FULL.decode(np.array(FULL.encode(config))) == config
        assert KernelConfig.from_dict(config.to_dict()) == config


def test_decoded_values_are_plain() -> None:
    config = FULL.decode(np.array(FULL.dims) - 1)
    assert {type(value) for value in asdict(config).values()} == {int, str, bool}


def test_encoding_refuses_what_is_off_the_axes() -> None:
    config = replace(FULL.from_flat(0), tile_n=40)
    with pytest.raises(UsageError, match="tile_n = 40 is not on the axis: choose one of 16, 32"):
        FULL.encode(config)
    assert any("tile_n = 40" in reason for reason in FULL.explain(config, PROBLEMS[0]))


def test_enumeration_is_all_legal_ones_in_flat_order() -> None:
    problem = Problem(640, 640, 640)
    configs = list(NARROW.enumerate(problem))
    assert [NARROW.flat(config) for config in configs] == NARROW.legal_flat(problem).tolist()
    assert len(configs) == len(set(configs)) == NARROW.legal_count(problem) > 100


def test_samples_are_legal_seeded_and_uniform() -> None:
    problem = Problem(640, 640, 640)
    drawn = NARROW.sample(problem, np.random.default_rng(5), 4000)
    assert drawn == NARROW.sample(problem, np.random.default_rng(5), 4000)
    assert drawn != NARROW.sample(problem, np.random.default_rng(6), 4000)
    counts = np.bincount([NARROW.flat(config) for config in drawn], minlength=NARROW.total)
    legal = NARROW.legal_flat(problem)
    assert counts[legal].sum() == 4000
    expected = 4000 / legal.size
    assert ((counts[legal] - expected) ** 2 / expected).sum() < legal.size + 5 * math.sqrt(2 * legal.size)


def test_samples_without_replacement_are_distinct_and_run_out() -> None:
    problem = Problem(64, 64, 64)
    drawn = NARROW.sample(problem, np.random.default_rng(5), 10**6, replace=False)
    assert sorted(map(NARROW.flat, drawn)) == NARROW.legal_flat(problem).tolist()


def test_nothing_legal_says_which_size_is_to_blame() -> None:
    with pytest.raises(NothingValidError, match=r"123_456_789 fp32 tn; removed by its sizes: alignment .* k = 789"):
        RECORD.sample(Problem(123, 456, 789), np.random.default_rng(0))
    with pytest.raises(NothingValidError, match=r"20000_20000_8001 fp32 tn; .* alignment \d+, padded_bytes \d+; "):
        FULL.sample(Problem(20000, 20000, 8001), np.random.default_rng(0))
    empty = SearchSpace(settings=SpaceSettings(axes={"tile_m": (256,), "consumers": (1,), "swap_ab": (False,)}))
    with pytest.raises(NothingValidError, match="narrow the space less"):
        empty.sample(Problem(512, 512, 512), np.random.default_rng(0))


def test_neighbours_are_all_legal_single_steps() -> None:
    problem = Problem(640, 1288, 640)
    legal = {NARROW.encode(config) for config in NARROW.enumerate(problem)}
    for config in NARROW.sample(problem, np.random.default_rng(2), 25):
        action = np.array(NARROW.encode(config))
        expected = {other for other in legal if np.abs(np.array(other) - action).sum() == 1}
        assert {NARROW.encode(near) for near in NARROW.neighbours(config, NARROW.legal_flat(problem))} == expected


@pytest.mark.parametrize("problem", [Problem(640, 384, 512), Problem(64, 1280, 256), Problem(2176, 960, 128)], ids=str)
def test_legal_configurations_launch_differently_and_duplicates_have_a_legal_twin(problem: Problem) -> None:
    """Two configurations are duplicates if they share a cubin, a grid, a tile order, maps and what is fetched ahead."""
    space = SearchSpace(
        settings=SpaceSettings(
            axes={
                "tile_m": (64, 128),
                "tile_n": (64, 160),
                "tile_k": (64,),
                "stages": (2,),
                "epilogue": ("direct",),
                "store_hint": ("normal",),
                "store_buffers": (2,),
                "producer_registers": (0,),
                "stream_k": (False,),
                "padded": (False,),
                "resident_a": (0,),  # in one wave, where nothing comes again, the twin of one is another kernel
            }
        )
    )
    seen = defaultdict(list)
    for config in space.enumerate(problem):
        seen[_launch(config, problem)].append(config)
    assert max(map(len, seen.values())) == 1
    duplicate_rules = ("raster_single", "group_too_big", "persistent_single_wave", "prefetch_depth")
    others = SearchSpace(settings=space.settings)
    others.rules = tuple(rule for rule in space.rules if rule.name not in duplicate_rules)
    drawn = np.random.default_rng(0).permutation(space.total)[:8000]
    judged = 0
    for flat in drawn[others.allowed(drawn, problem)].tolist():
        config = space.from_flat(flat)
        if config.schedule == "coop" and space.explain(config, problem):
            judged += 1
            assert _launch(config, problem) in seen, config
    assert judged > 20


def _launch(config: KernelConfig, problem: Problem) -> tuple[object, ...]:
    grid = geometry.grid_ctas(config, problem.m, problem.n, SM90.sm_count)
    fetched = geometry.prefetch_tiles(config, problem.m, problem.n, problem.k)
    maps = plan_launch(config, problem, SM90.sm_count)
    return config.build_name, grid, fetched, (maps.a, maps.b, maps.c), tuple(_tile_order(config, problem))


def _tile_order(config: KernelConfig, problem: Problem) -> list[tuple[int, int]]:
    """The same arithmetic as kernels/include/cudal2/raster.cuh, written as loops."""
    tiles_m, tiles_n = geometry.cluster_tiles(config, problem.m, problem.n)
    fast, slow = (tiles_m, tiles_n) if config.raster == "m" else (tiles_n, tiles_m)
    order = []
    for first in range(0, fast, config.group):
        for at_slow in range(slow):
            for at_fast in range(first, min(first + config.group, fast)):
                order.append((at_fast, at_slow) if config.raster == "m" else (at_slow, at_fast))
    return order


def test_narrowing_takes_away_and_never_adds() -> None:
    for problem in PROBLEMS[:6]:
        narrowed = np.array([FULL.flat(config) for config in RECORD.enumerate(problem)], np.int64)
        assert is_in(narrowed, FULL.legal_flat(problem)).all()


def test_narrowed_axes_keep_their_names_and_order() -> None:
    space = SearchSpace(settings=SpaceSettings(axes={"tile_n": (256, 64), "stages": (4,)}))
    assert [axis.name for axis in space.axes] == [axis.name for axis in SM90_WS_AXES]
    assert dict(zip((axis.name for axis in space.axes), space.dims, strict=True))["stages"] == 1
    assert next(axis.values for axis in space.axes if axis.name == "tile_n") == (64, 256)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (SpaceSettings(axes={"tile_n": (64, 512)}), "tile_n = 512 is not on the axis"),
        (SpaceSettings(axes={"tile": (64,)}), "unknown axis 'tile': choose from tile_m, tile_n"),
        (SpaceSettings(axes={"tile_n": ()}), "tile_n is left without values"),
        (SpaceSettings(limits=(Limit({"tile_z": (1,)}, {}),)), "unknown axis 'tile_z'"),
        (SpaceSettings(limits=(Limit({}, {"stages": (13,)}),)), "stages = 13 is not on the axis"),
    ],
)
def test_widening_is_refused(settings: SpaceSettings, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SearchSpace(settings=settings)


def test_a_limit_holds_where_it_says_and_above_its_work() -> None:
    limit = Limit({"tile_m": (64,)}, {"stages": (2, 4)}, flops_above=1e9)
    space = SearchSpace(settings=SpaceSettings(limits=(limit,), name="some"))
    large, small = Problem(1024, 1024, 1024), Problem(256, 256, 1024)
    config = Sm90WsConfig(64, 128, 64, 6, "coop", 1, 1, 1, 1, "tma", 1, "m", 1, False)
    assert space.explain(config, small) == []
    assert space.explain(config, large) == [
        "subspace: space 'some' keeps only stages 2 or 4 where tile_m 64 above 1e+09 FLOPs"
    ]
    assert space.explain(replace(config, stages=4), large) == []
    assert space.removed_by_rule(small)["subspace"] == 0 < space.removed_by_rule(large)["subspace"]


def test_digest_tells_spaces_apart() -> None:
    limit = Limit({}, {"stages": (2,)})
    spaces = [
        SpaceSettings(),
        SpaceSettings(axes={"stages": (2, 4)}),
        SpaceSettings(axes={"stages": (2, 5)}),
        SpaceSettings(limits=(limit,)),
        SpaceSettings(limits=(replace(limit, flops_above=1e9),)),
    ]
    assert len({SearchSpace(settings=settings).digest for settings in spaces}) == len(spaces)
    assert SearchSpace(settings=SpaceSettings(name="other")).digest == FULL.digest


def test_the_shipped_full_space_is_the_full_space() -> None:
    assert SearchSpace(settings=load_space("sm90")).digest == FULL.digest


def test_recorded_shapes_cover_the_grid() -> None:
    problems = load_shapes("record32").problems()
    assert len(set(problems)) == 32
    assert {"64_4096_64", "8192_8192_8192", "64_64_16384"} <= {problem.mnk for problem in problems}
    assert {problem.mnk for problem in problems} <= set(load_shapes("grid").shapes)
    work = sorted(math.log2(problem.flops) for problem in problems)
    assert max(np.diff(work)) <= 2.0, "even in log2 FLOPs"
    floors = [floor_us(problem.m, problem.n, problem.k) for problem in problems]
    assert sum(floor > 1000 for floor in floors) <= 4
    assert sum(floors) < 10_000


def test_recorded_space_keeps_a_few_hundred_configurations_for_every_shape() -> None:
    builds: set[str] = set()
    for problem in load_shapes("record32").problems():
        configs = list(RECORD.enumerate(problem))
        assert 200 <= len(configs) <= 500, problem.mnk
        builds |= {config.build_name for config in configs}
    assert len(builds) <= 500


def test_a_space_holds_its_own_values_legal_or_not():
    config = next(iter(NARROW.enumerate(Problem(512, 512, 512))))
    assert NARROW.holds(config) and NARROW.holds(replace(config, consumers=1, tile_m=128))
    assert not NARROW.holds(replace(config, stages=3)) and FULL.holds(replace(config, stages=3))
    assert not any(SearchSpace(family=name).holds(config) for name in FAMILIES if name != config.family)


def test_many_configurations_are_judged_at_once_as_one_by_one() -> None:
    space, problem = SearchSpace(), Problem(1024, 512, 320)
    flats = np.random.default_rng(0).integers(0, space.total, 400)
    configs = [space.from_flat(int(flat)) for flat in (*flats, *space.legal_flat(problem)[::50_000])]
    expected = [not space.explain(config, problem) for config in configs]
    assert space.allows(configs, problem).tolist() == expected and 1 < sum(expected) < len(expected)
    stray = replace(configs[-1], stages=9)
    assert space.allows([stray, configs[-1]], problem).tolist() == [False, True]
    free = space.allowed(flats, problem, by_size=False) & space.allowed(flats, problem, by_size=True)
    assert free.tolist() == expected[:400]
