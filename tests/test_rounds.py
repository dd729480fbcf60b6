"""Rounds with contestants that are plain functions of a simulated clock."""

from collections import Counter

import numpy as np
import pytest

from cudal2.bench.rounds import MIN_ROUNDS, RoundLimits, level_medians, run_rounds, shuffled_order
from cudal2.records.finals import compare


class HeatingChip:
    """Every replay takes a second and makes the next one slower, whoever runs it."""

    def __init__(self, per_replay=0.01):
        self.replays, self.per_replay, self.order, self.waited = 0, per_replay, [], []

    def contestant(self, name, base_us):
        def replay():
            self.replays += 1
            self.order.append(name)
            time_us = base_us * (1.0 + self.per_replay * self.replays)
            return lambda: self.waited.append(name) or time_us

        return replay

    def now(self):
        return float(self.replays)


def test_every_contestant_runs_once_per_round_in_changing_order():
    chip = HeatingChip()
    contestants = {name: chip.contestant(name, 1.0) for name in "abcd"}
    times, clocks = run_rounds(contestants, RoundLimits(rounds=20), lambda: chip.replays, chip.now)
    assert {name: len(values) for name, values in times.items()} == dict.fromkeys("abcd", 20)
    assert len(clocks) == 20
    counted = chip.order[4:]  # one warm-up round first
    rounds = [tuple(counted[index : index + 4]) for index in range(0, 80, 4)]
    assert all(sorted(order) == list("abcd") for order in rounds)
    assert len(set(rounds)) > 10
    first = Counter(order[0] for order in rounds)
    assert len(first) == 4, "someone never went first"


def test_a_round_in_parts_is_the_mean_of_replays_in_orders_of_their_own():
    chip = HeatingChip()
    contestants = {name: chip.contestant(name, 1.0) for name in "abcd"}
    times, clocks = run_rounds(contestants, RoundLimits(rounds=5, parts=4), lambda: chip.replays, chip.now)
    assert {len(values) for values in times.values()} == {5} == {len(clocks)}
    counted = chip.order[4:]
    passes = [tuple(counted[index : index + 4]) for index in range(0, 80, 4)]
    assert all(sorted(order) == list("abcd") for order in passes) and len(set(passes)) > 10
    replays = [5 + at for at, name in enumerate(counted[:16]) if name == "a"]
    assert times["a"][0] == pytest.approx(1.0 + 0.01 * np.mean(replays))
    whole = HeatingChip()
    spread = {}
    for parts in (1, 4):
        runs = run_rounds(
            {name: whole.contestant(name, 1.0 / parts) for name in "abcd"},
            RoundLimits(rounds=12, parts=parts),
            lambda: 0,
            whole.now,
        )[0]
        spread[parts] = np.std(np.array(runs["a"]) / np.array(runs["b"]))
    assert spread[4] < spread[1], "a drift within a round must reach everyone more evenly"


def test_orders_depend_on_the_seed_alone():
    assert shuffled_order("abcdef", 7, 3) == shuffled_order("abcdef", 7, 3)
    orders = {tuple(shuffled_order("abcdef", seed, index)) for seed in range(4) for index in range(4)}
    assert len(orders) > 12


def test_interleaving_ranks_right_where_a_sequential_comparison_ranks_wrong():
    chip = HeatingChip(per_replay=0.005)
    ours, other = chip.contestant("ours", 1.02), chip.contestant("other", 1.0)
    sequential_ours = [ours()() for _ in range(15)]
    sequential_other = [other()() for _ in range(15)]
    assert np.median(sequential_ours) < np.median(sequential_other), "the trap: heat makes the slower one look faster"
    chip.replays = 0
    times, _ = run_rounds({"ours": ours, "other": other}, RoundLimits(rounds=15), lambda: None, chip.now)
    result = compare(times["ours"], times["other"])
    assert result.ratio == pytest.approx(1 / 1.02, abs=5e-3)


def test_the_next_replay_is_under_way_before_one_is_waited_for_but_not_beyond_its_round():
    chip, seen = HeatingChip(), []
    contestants = {name: chip.contestant(name, 1.0) for name in "ab"}

    def begin(name):
        seen.append(len(chip.order) - len(chip.waited))
        return contestants[name]()

    begun = {name: lambda name=name: begin(name) for name in "ab"}
    run_rounds(begun, RoundLimits(rounds=3, parts=2), lambda: seen.append("clocks"), chip.now, {"a": int, "b": int})
    assert seen == [0, 1, 1, 1, "clocks"] * 3 and chip.waited == chip.order


def test_warm_up_goes_on_for_its_time_and_is_not_counted():
    chip = HeatingChip()
    contestants = {name: chip.contestant(name, 1.0) for name in "ab"}
    times, _ = run_rounds(contestants, RoundLimits(rounds=2, warmup_s=7.0), lambda: None, chip.now)
    assert chip.replays == 8 + 4
    assert min(times["a"] + times["b"]) > 1.08


def test_time_limit_stops_rounds_but_never_below_the_minimum():
    chip = HeatingChip()
    contestants = {name: chip.contestant(name, 1.0) for name in "ab"}
    times, clocks = run_rounds(contestants, RoundLimits(rounds=100, benchmark_s=9.0), lambda: None, chip.now)
    assert len(times["a"]) == len(clocks) == 5
    times, _ = run_rounds(contestants, RoundLimits(rounds=100, benchmark_s=0.0), lambda: None, chip.now)
    assert len(times["a"]) == MIN_ROUNDS


def test_rounds_that_do_not_count_may_run_something_shorter():
    chip, brief = HeatingChip(), []
    contestants = {name: chip.contestant(name, 1.0) for name in "abc"}
    warmup = {name: lambda name=name: brief.append(name) for name in "abc"}
    times, _ = run_rounds(contestants, RoundLimits(rounds=2), lambda: None, chip.now, warmup)
    assert sorted(brief) == list("abc") and len(chip.order) == 6
    assert {len(row) for row in times.values()} == {2}


def test_medians_of_level_rounds_rank_by_who_is_faster_whatever_the_clocks_do_between_rounds():
    rng = np.random.default_rng(0)
    levels = np.array([1040.0, 1000.0, 1001.0, 999.0, 928.0, 920.0, 921.0])  # a chip that cools
    ahead = levels * rng.uniform(0.999, 1.001, 7)
    behind = 1.017 * levels * rng.uniform(0.999, 1.001, 7)
    behind[3] = 1.017 * 925.0  # one round met the next clocks already
    assert np.median(behind) < np.median(ahead), "the times as they are would choose the slower one"
    first, second = level_medians([ahead, behind])
    assert second / first == pytest.approx(1.017, abs=0.003)


def test_medians_of_level_rounds_are_microseconds_of_the_median_round():
    assert level_medians([[2.0, 4.0, 6.0], [3.0, 6.0, 9.0]]) == pytest.approx([4.0, 6.0])
    assert level_medians([[5.0, 7.0, 6.0]]) == pytest.approx([6.0]), "one alone has its own median"
    assert level_medians([]) == []
