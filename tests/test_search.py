"""Budgets, sessions and strategies: what a measurement costs, what a strategy may see, what it finds."""

import dataclasses
import math

import numpy as np
import pytest

from cudal2.problem import Problem
from cudal2.records.measurement import Measurement, Status
from cudal2.search.analytic import columns_of, rank
from cudal2.search.base import FAILURE_LOG_RATIO, Budget, SearchResult, SearchSession, log_ratio, search
from cudal2.search.beam import FAVOURITES, beam_from
from cudal2.search.compare import compare
from cudal2.search.nearest import nearest_strategy, refitted
from cudal2.search.strategies import STRATEGIES
from cudal2.settings import SpaceSettings
from cudal2.space.config import Sm90WsConfig
from cudal2.space.estimate import COPY_BYTES_PER_US, COPY_US, estimate_us, predict_us
from cudal2.space.space import SearchSpace


class CountingRunner:
    """Passes through and notes what was asked."""

    def __init__(self, runner, fail=False):
        self.inner, self.fail, self.asked = runner, fail, []
        self.space, self.problems = runner.space, runner.problems
        self.allowed, self.reference_us = runner.allowed, runner.reference_us

    def run(self, problem, configs):
        self.asked += configs
        if self.fail:
            return [Measurement(problem, "sm90_ws", config, Status.COMPILE, "no such luck") for config in configs]
        return self.inner.run(problem, configs)


def failing_config(runner, problem):
    return next(c for c in runner.space.enumerate(problem) if not runner.run(problem, [c])[0].ok)


def test_duplicates_are_free_and_failures_cost(runner):
    problem = runner.problems[-1]
    counting, budget = CountingRunner(runner), Budget(10)
    session = SearchSession(counting, problem, budget)
    good = session.space.from_flat(int(session.candidates[0]))
    bad = failing_config(runner, problem)
    rows = session.measure([good, good, bad])
    assert [row.config for row in rows] == [good, good, bad]
    assert budget.spent == 2 and counting.asked == [good, bad]
    session.measure([bad, good])
    assert budget.spent == 2 and len(counting.asked) == 2


def test_a_batch_is_cut_where_the_budget_ends(runner):
    session = SearchSession(runner, runner.problems[0], Budget(3))
    rows = session.measure_flat(session.candidates[:5])
    assert len(rows) == 3 and session.done
    assert session.measure_flat(session.candidates[:3]) == rows
    assert session.measure_flat(session.candidates[3:5]) == []


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_spends_exactly_its_budget_on_legal_configurations(runner, name):
    problem = runner.problems[3]
    counting = CountingRunner(runner)
    result = search(name, STRATEGIES[name], counting, problem, Budget(20), seed=3)
    assert len(result.measurements) == 20 == len(set(counting.asked))
    assert all(runner.space.flat(config) in runner.allowed(problem) for config in counting.asked)
    again = search(name, STRATEGIES[name], runner, problem, Budget(20), seed=3)
    assert again.measurements == result.measurements


@pytest.mark.parametrize("name", STRATEGIES)
def test_without_a_limit_every_strategy_ends_at_the_optimum(runner, name):
    problem = runner.problems[0]
    legal = list(runner.space.enumerate(problem))
    optimum = min(row.median_us for row in runner.run(problem, legal) if row.ok)
    result = search(name, STRATEGIES[name], runner, problem)
    assert len(result.measurements) == len(legal)
    assert result.best.median_us == optimum


def test_the_best_is_furthest_ahead_of_the_reference_of_its_own_rounds(runner):
    """What was timed at a higher clock is faster by microseconds alone."""
    problem = runner.problems[0]
    one, other = [row for row in runner.run(problem, list(runner.space.enumerate(problem))) if row.ok][:2]
    cool = dataclasses.replace(one, times_us=(8.0,) * 3, ref_times_us=(8.0,) * 3)
    hot = dataclasses.replace(other, times_us=(9.0,) * 3, ref_times_us=(10.0,) * 3)
    assert SearchResult(problem, "given", (cool, hot), 9.0).best == hot
    alone = [dataclasses.replace(row, ref_times_us=()) for row in (cool, hot)]
    assert SearchResult(problem, "given", tuple(alone), 9.0).best == alone[0]


def test_no_valid_candidate_leaves_the_histogram(runner):
    result = search("random", STRATEGIES["random"], CountingRunner(runner, fail=True), runner.problems[0], Budget(5))
    assert result.best is None and result.failures == {"compile: no such luck": 5}


def test_best_after_a_budget_counts_only_its_beginning(runner):
    result = search("random", STRATEGIES["random"], runner, runner.problems[2], Budget(30))
    values = [log_ratio(row, result.reference_us) for row in result.measurements]
    assert result.best_log_ratio(1) == values[0]
    assert result.best_log_ratio(30) == max(values)
    assert result.best_log_ratio(0) == FAILURE_LOG_RATIO


def test_compare_is_the_geometric_mean_over_problems(runner):
    scores = compare({"exhaustive": STRATEGIES["exhaustive"]}, runner, budgets=(1, 10_000))
    logs = []
    for problem in runner.problems:
        rows = runner.run(problem, list(runner.space.enumerate(problem)))
        logs.append(max(math.log(row.speedup) for row in rows if row.ok))
    assert scores[1].geomean_ratio == pytest.approx(math.exp(np.mean(logs)))
    assert scores[0].geomean_ratio < scores[1].geomean_ratio
    assert scores[1].problems == len(runner.problems)


def test_analytic_model_knows_waves_and_split_k(runner):
    space = runner.space
    long_k = next(p for p in runner.problems if p.mnk == "64_512_2048")
    candidates = runner.allowed(long_k)
    first = space.from_flat(int(rank(space, long_k, candidates)[0]))
    assert first.split_k > 1
    predicted = predict_us(columns_of(space, candidates), long_k)
    assert np.isfinite(predicted).all() and (predicted > 0).all()


@pytest.mark.parametrize("family", ["sm90_ws", "sm90_small"])
@pytest.mark.parametrize(
    ("mnk", "layout", "fewer"),
    [
        ("512_512_520", "tn", True),
        ("512_520_512", "nn", True),
        ("64_16384_256", "tn", True),
        ("4096_4096_4096", "tn", False),
        ("4096_4104_4096", "tn", False),
    ],
)
def test_the_model_puts_the_promotion_first_that_suits_the_rows(family, mnk, layout, fewer):
    """Twins are else equal to it; where 256 is all there is, it says what it always said."""
    problem, space = Problem.parse(mnk, layout=layout), SearchSpace(family=family)
    configs = space.sample(problem, np.random.default_rng(0), 20)
    twins = [[dataclasses.replace(config, l2_promotion=value) for config in configs] for value in (256, 128)]
    plain, promoted = (
        predict_us(columns_of(space, np.array([space.flat(one) for one in column])), problem) for column in twins
    )
    assert ((promoted < plain) == fewer).all()
    held = SearchSpace(settings=SpaceSettings(axes={"l2_promotion": (256,)}, family=family))
    flats = np.array([held.flat(one) for one in twins[0]])
    assert np.array_equal(predict_us(columns_of(held, flats), problem), plain)


@pytest.mark.parametrize(("mnk", "faster"), [("8192_8192_8192", True), ("2688_1408_1024", False)])
def test_the_model_shares_a_last_wave_out_where_that_takes_less(mnk, faster):
    """Four tiles of 4,096 are worth it; a quarter of a short tile is not, since parts have to meet."""
    problem, space = Problem.parse(mnk), SearchSpace()
    streams = Sm90WsConfig(128, 128, 64, 6, "pingpong", 2, 1, 1, 1, "tma", 1, "m", 8, True, stream_k=True)
    twins = [streams, dataclasses.replace(streams, stream_k=False)]
    assert not space.explain(streams, problem)
    shared, whole = predict_us(columns_of(space, np.array([space.flat(one) for one in twins])), problem)
    assert (shared < whole) == faster


@pytest.mark.parametrize(("cluster_m", "split_k", "fit"), [(1, 3, 39), (4, 1, 30), (2, 3, 17), (4, 2, 15)])
def test_the_model_knows_how_many_clusters_run_at_once(cluster_m: int, split_k: int, fit: int):
    """Over an estimate of one wave, in records: clusters of three 1.1 of it with 38, 1.45 with 40; of four 1.2, 1.8."""
    config = Sm90WsConfig(64, 64, 64, 4, "coop", 1, cluster_m, 1, split_k, "direct", 1, "m", 1, False)

    def at(clusters: int) -> float:
        return estimate_us(config, Problem(64 * cluster_m * clusters, 64, 1024))

    assert at(fit) < 1.1 * at(fit - 1) and at(fit + 1) > 1.4 * at(fit)


def test_the_model_knows_that_a_persistent_grid_of_large_clusters_does_not_fit_at_once():
    """33 clusters of four are launched and 30 fit: twice the time was measured on eight shapes."""
    problem, space = Problem.parse("4096_4096_16384"), SearchSpace()
    pair = Sm90WsConfig(128, 128, 64, 6, "pingpong", 2, 2, 1, 1, "tma", 1, "m", 8, True)
    four = dataclasses.replace(pair, cluster_n=2)
    fast, slow = predict_us(columns_of(space, np.array([space.flat(one) for one in (pair, four)])), problem)
    assert 1.8 < slow / fast < 2.1


def test_the_model_adds_the_time_of_copies_and_loads_them_as_if_rows_had_been_aligned():
    """Of what has to be copied alone: read once, and written once in whole lines."""
    wide = Sm90WsConfig(128, 128, 64, 4, "coop", 2, 1, 1, 1, "tma", 1, "m", 8, True)
    padded = dataclasses.replace(wide, padded=True)
    odd, even = Problem(4096, 4096, 8191), Problem(4096, 4096, 8192)
    moved_bytes = 2 * 4096 * 2 * (8191 + 8192)
    copied = estimate_us(padded, odd) - estimate_us(wide, even)
    assert copied == pytest.approx(COPY_US + moved_bytes / COPY_BYTES_PER_US, rel=1e-3)
    odd, even = (dataclasses.replace(problem, layout="nn") for problem in (odd, even))
    copied = estimate_us(padded, odd) - estimate_us(wide, even)
    assert copied == pytest.approx(COPY_US + moved_bytes / 2 / COPY_BYTES_PER_US, rel=1e-3), "A alone"
    fewer = dataclasses.replace(padded, l2_promotion=128)
    assert estimate_us(fewer, odd) > estimate_us(padded, odd), "copies are on the sectors"
    space, problem = SearchSpace(), Problem(512, 512, 509)
    flats = np.array([space.flat(config) for config in space.sample(problem, np.random.default_rng(0), 20)])
    assert np.isfinite(predict_us(columns_of(space, flats), problem)).all()


def test_nearest_neighbours_try_what_was_fast_next_door_and_know_nothing_else(runner):
    problem, others = runner.problems[0], runner.problems[1:]
    strategy = nearest_strategy(runner, others)
    result = search("nearest", strategy, runner, problem)
    assert len(result.measurements) == len(runner.allowed(problem))
    drawn = search("random", STRATEGIES["random"], runner, problem, Budget(1), seed=1)
    assert result.best_log_ratio(1) > drawn.best_log_ratio(1)

    class Blind:
        """The recording without the shape that is searched."""

        cells, recording = runner.cells, runner.recording

        def problem_index(self, wanted):
            assert wanted in others
            return runner.problem_index(wanted)

    again = search("nearest", nearest_strategy(Blind(), others), runner, problem)
    assert again.measurements == result.measurements


def test_with_one_neighbour_its_own_order_is_followed(runner):
    problem, other = runner.problems[0], runner.problems[1]
    shared = np.intersect1d(runner.allowed(problem), runner.allowed(other))
    rows = runner.run(other, [runner.space.from_flat(int(flat)) for flat in shared])
    best = max((row for row in rows if row.ok), key=lambda row: row.speedup)
    first = search("nearest", nearest_strategy(runner, [other]), runner, problem, Budget(1)).measurements[0]
    assert first.config == best.config


def test_a_beam_begins_with_the_starts_that_are_legal_and_goes_on_with_steps_of_the_best(runner):
    problem, other = runner.problems[3], runner.problems[0]
    legal = list(runner.space.enumerate(problem))
    starts = legal[-3:]
    illegal = dataclasses.replace(starts[0], stages=5)
    counting = CountingRunner(runner)
    strategy = beam_from({problem: [*starts, illegal], other: legal[:1]})
    search("beam", strategy, counting, problem, Budget(40), seed=1)
    assert counting.asked[:3] == starts and illegal not in counting.asked
    first = counting.asked[: 3 + FAVOURITES]
    best = min((row for row in runner.run(problem, first) if row.ok), key=lambda row: row.median_us).config
    step = counting.asked[len(first)]
    moved = [axis.name for axis in runner.space.axes if getattr(step, axis.name) != getattr(best, axis.name)]
    assert len(set(moved) - {"stages"}) <= 1


def test_a_shape_without_records_begins_with_its_nearest_ones_refitted():
    space, problem = SearchSpace(), Problem(64, 256, 512)
    deep = Sm90WsConfig(64, 64, 64, 4, "coop", 1, 1, 1, 1, "tma", 1, "m", 1, False)
    wide = dataclasses.replace(deep, tile_n=128)
    split = dataclasses.replace(deep, split_k=4, epilogue="direct")
    best = {
        Problem(64, 256, 256): [deep, wide],
        Problem(64, 256, 4096): [split],
        Problem(64, 256, 512, layout="nn"): [wide],
    }
    found = refitted(best, problem, space, 8)
    assert found[0] == dataclasses.replace(deep, stages=8)  # the four K tiles of the nearest were all in flight
    assert [one.tile_n for one in found] == [64, 64, 128] and found[1].split_k == 4
    assert not any(space.explain(one, problem) for one in found)
    assert refitted(best, problem, space, 1) == found[:1] and refitted({}, problem, space, 8) == []
