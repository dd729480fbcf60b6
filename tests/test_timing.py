"""The stopwatch's rules: orders, launch counts, times that cannot be; the device part is tested on a GPU."""

from __future__ import annotations

import random
import statistics
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cudal2.bench import timing
from cudal2.bench.sizing import launches_for, sized_graph, split_launches
from cudal2.bench.timing import interleave, keep_busy, too_fast
from cudal2.floor import physical_us
from cudal2.problem import Problem


class DriftingChip:
    """A clock that slows down with everything that runs."""

    def __init__(self) -> None:
        self.heat = 0.0
        self.order: list[str] = []

    def contestant(self, name: str, true_us: float) -> FakeGraph:
        return FakeGraph(self, name, true_us)


class FakeGraph:
    def __init__(self, chip: DriftingChip, name: str, true_us: float) -> None:
        self.chip, self.name, self.true_us = chip, name, true_us

    def time_us(self) -> float:
        self.chip.order.append(self.name)
        self.chip.heat += 0.01
        return self.true_us * (1.0 + self.chip.heat)

    def begin(self) -> Any:
        time_us = self.time_us()
        return lambda: time_us


def test_every_round_has_everyone_once_and_orders_differ() -> None:
    chip = DriftingChip()
    graphs = [chip.contestant(name, 1.0) for name in "abcd"]
    times = interleave(graphs, 6, random.Random(0))
    rounds = ["".join(chip.order[start : start + 4]) for start in range(0, 24, 4)]
    assert [len(row) for row in times] == [6] * 4
    assert all(sorted(order) == list("abcd") for order in rounds)
    assert len(set(rounds)) > 3


def test_orders_are_reproducible() -> None:
    orders = []
    for _ in range(2):
        chip = DriftingChip()
        interleave([chip.contestant(name, 1.0) for name in "abc"], 5, random.Random(7))
        orders.append(chip.order)
    assert orders[0] == orders[1]


def test_the_one_whose_outputs_are_checked_runs_last() -> None:
    for seed in range(8):
        chip = DriftingChip()
        interleave([chip.contestant(name, 1.0) for name in "abc"], 3, random.Random(seed), last=0)
        assert chip.order[-1] == "a"
        assert len(chip.order) == 9


def test_all_replays_are_under_way_before_one_is_waited_for() -> None:
    """The device never stands still between two replays, and the host has time for something else."""
    events: list[str] = []

    def graph(name: str) -> Any:
        def begin() -> Any:
            events.append(f"begin {name}")
            return lambda: events.append(f"wait {name}") or 1.0

        return SimpleNamespace(begin=begin)

    interleave([graph("a"), graph("b")], 3, random.Random(0), meanwhile=lambda: events.append("meanwhile"))
    assert [event.split()[0] for event in events] == ["begin"] * 6 + ["meanwhile"] + ["wait"] * 6


def test_one_may_run_first_and_one_last() -> None:
    for seed in range(8):
        chip = DriftingChip()
        interleave([chip.contestant(name, 1.0) for name in "abc"], 3, random.Random(seed), first=2, last=0)
        assert chip.order[0] == "c" and chip.order[-1] == "a" and len(chip.order) == 9
    chip = DriftingChip()
    interleave([chip.contestant("a", 1.0)], 2, random.Random(0), first=0, last=0)
    assert chip.order == ["a", "a"]


def test_under_load_the_device_never_stands_still_and_the_last_turn_is_not_waited_for() -> None:
    events: list[str] = []
    clock = iter([0.0, 0.1, 0.2, 0.29, 0.31])

    def graph(name: str) -> Any:
        def begin() -> Any:
            number = sum(event.startswith(f"begin {name}") for event in events)
            events.append(f"begin {name}{number}")
            return lambda: events.append(f"wait {name}{number}")

        return SimpleNamespace(begin=begin)

    keep_busy([graph("a"), graph("b")], 0.3, lambda: next(clock))
    turns = [[f"begin a{turn}", f"begin b{turn}"] for turn in range(3)]
    waits = [[f"wait a{turn}", f"wait b{turn}"] for turn in range(2)]
    assert events == [*turns[0], *turns[1], *waits[0], *turns[2], *waits[1]]
    events.clear()
    keep_busy([graph("a")], 0.0)
    assert not events


def test_launches_are_captured_once_and_never_between_the_events(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Captured:
        def __init__(self, stream: int, enqueue: Any) -> None:
            seen.append("capture")

        def launch(self, stream: int) -> None:
            seen.append("launch")

    def begin(enqueue: Any, launches: int) -> Any:
        assert launches == 100
        seen.append("start")
        enqueue()
        return lambda: 3.0

    monkeypatch.setattr(timing, "Graph", Captured)
    stopwatch: Any = SimpleNamespace(sets=SimpleNamespace(count=4), stream=0, begin=begin)
    graph = timing.TimedGraph(stopwatch, None, 100, 2)  # type: ignore[arg-type]
    assert not seen and graph.sets_used == 4
    assert graph.time_us() == graph.begin()() == pytest.approx(15.0)
    assert seen == ["capture", *["start", "launch", "launch"] * 2]


@pytest.mark.parametrize(
    ("idle", "launches", "passes"), [(True, 0, 2), (True, 999, 2), (True, 10_080, 12), (False, 10_080, 1)]
)
def test_l2_is_read_before_the_first_event_and_longer_where_nothing_hides_the_submission(
    monkeypatch: pytest.MonkeyPatch, idle: bool, launches: int, passes: int
) -> None:
    seen: list[str] = []

    class Event:
        def record(self, stream: Any) -> None:
            seen.append("event")

        def synchronize(self) -> None:
            seen.append("wait")

        def elapsed_time(self, end: Any) -> float:
            return 2.0

    monkeypatch.setattr(timing, "_event", Event)
    stopwatch = object.__new__(timing.Stopwatch)
    stopwatch._stream = SimpleNamespace(query=lambda: seen.append("query") or idle)
    stopwatch.sets = SimpleNamespace(poison=lambda: seen.append("poison"))  # type: ignore[assignment]
    stopwatch._flush, stopwatch._sink = torch.full((1000,), 0.5), torch.empty(())
    read = torch.sum
    monkeypatch.setattr(torch, "sum", lambda *arguments, **named: seen.append("read") or read(*arguments, **named))
    finish = stopwatch.begin(lambda: seen.append("launches"), launches)
    assert seen == ["query", "poison", *["read"] * passes, "event", "launches", "event"], "asked before it has work"
    assert finish() == 2.0 and seen[-1] == "wait" and stopwatch._sink == 500.0


def test_the_last_launch_is_timed_on_its_way_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Event:
        def record(self, stream: Any) -> None:
            assert stream == "stream"
            seen.append("event")

        def synchronize(self) -> None:
            seen.append("wait")

        def elapsed_time(self, end: Any) -> float:
            return 0.25

    monkeypatch.setattr(timing, "_event", Event)
    contestant: Any = SimpleNamespace(name="ours", detail="", launch=lambda index, stream: seen.append(f"set {index}"))
    stopwatch = object.__new__(timing.Stopwatch)
    stopwatch._stream = "stream"  # type: ignore[assignment]
    rough = stopwatch.rough(contestant)
    for index in (1, 0):
        rough.launch(index, 7)
    assert seen == ["event", "set 1", "event", "event", "set 0", "event"]
    assert rough.time_us() == 250.0 and seen[-1] == "wait"


def test_interleaving_ranks_rightly_where_one_after_the_other_does_not() -> None:
    """A contestant 3 % faster, on a chip that loses 1 % per replay."""
    chip = DriftingChip()
    slow, fast = chip.contestant("slow", 1.03), chip.contestant("fast", 1.0)
    sequential = [statistics.median(graph.time_us() for _ in range(9)) for graph in (slow, fast)]
    assert sequential[0] < sequential[1]
    chip = DriftingChip()
    slow, fast = chip.contestant("slow", 1.03), chip.contestant("fast", 1.0)
    times = interleave([slow, fast], 9, random.Random(1))
    assert statistics.median(a / b for a, b in zip(*times, strict=True)) > 1.0


@pytest.mark.parametrize(("time_us", "launches"), [(3.0, 667), (1.3, 1539), (2000.0, 1), (9e4, 1), (1999.0, 2)])
def test_a_replay_lasts_at_least_as_long_as_asked(time_us: float, launches: int) -> None:
    assert launches_for(time_us, 2.0) == launches
    assert launches * time_us >= 2000.0


class HostBoundStopwatch:
    """Launched from Python a kernel takes ``host_us``, in a graph ``device_us``, and 2 % less once clocks are up."""

    def __init__(self, host_us: float, device_us: float, sets: int = 100) -> None:
        self.host_us, self.device_us, self.open = host_us, device_us, 0
        self.sets = SimpleNamespace(count=sets)

    def probe_us(self, contestant: object) -> float:
        return self.host_us

    def graph(self, contestant: object, launches: int, repeats: int = 1, warm: bool = True) -> SimpleNamespace:
        self.open += 1

        def close() -> None:
            self.open -= 1

        return SimpleNamespace(
            captured=launches, launches=launches * repeats, time_us=lambda: self.device_us, close=close
        )


@pytest.mark.parametrize(("host_us", "device_us"), [(3.1, 1.4), (6.0, 4.5), (900.0, 880.0), (9e4, 9e4)])
def test_a_graph_is_sized_by_what_a_graph_takes_not_by_launches_from_python(host_us: float, device_us: float) -> None:
    stopwatch = HostBoundStopwatch(host_us, device_us)
    graph: Any = sized_graph(stopwatch, None, 2.0)  # type: ignore[arg-type]
    assert 2000.0 <= graph.launches * 0.98 * device_us < 2100.0 + device_us
    assert stopwatch.open == 1, "the short graph is given back"


@pytest.mark.parametrize(("time_us", "sets"), [(1.4, 7300), (3.0, 171), (60.0, 4), (1500.0, 2), (9e4, 2)])
def test_a_long_replay_is_a_short_graph_run_over_and_over_in_whole_rotations(time_us: float, sets: int) -> None:
    graph: Any = sized_graph(HostBoundStopwatch(2 * time_us, time_us, sets), None, 20.0)  # type: ignore[arg-type]
    assert graph.launches * time_us >= 20_000.0
    assert graph.captured * time_us >= 2_000.0
    assert graph.captured % sets == 0 or graph.captured == graph.launches
    assert graph.launches * time_us < 1.5 * 1.05 * 20_000.0 + time_us
    if sets * time_us < 2_000.0:
        assert graph.launches * time_us < 1.1 * 1.05 * 20_000.0 + time_us
    assert graph.captured < 2 * (sets + 2_000.0 / time_us + 1)


@pytest.mark.parametrize(("time_us", "sets"), [(1.4, 1539), (3.0, 171), (60.0, 4), (9e4, 2)])
def test_a_short_replay_is_one_graph(time_us: float, sets: int) -> None:
    graph: Any = sized_graph(HostBoundStopwatch(time_us, time_us, sets), None, 2.0)  # type: ignore[arg-type]
    assert graph.captured == graph.launches < 1.06 * 2_000.0 / time_us + 1


@pytest.mark.parametrize(
    ("launches", "enough", "sets", "split"),
    [
        (5250, 2000, 7, (2625, 2)),  # a quarter of a final's replay, 1 us a launch: three graphs of 2 ms were 6 ms
        (202, 77, 19, (114, 2)),
        (13_571, 100, 1357, (1357, 11)),  # ten of two rotations would be twice as long as asked
        (2714, 100, 1357, (1357, 2)),
        (2713, 100, 1357, (2713, 1)),
        (21_000, 2000, 7, (2100, 10)),
    ],
)
def test_a_replay_is_no_longer_than_whole_rotations_make_it(
    launches: int, enough: int, sets: int, split: tuple[int, int]
) -> None:
    assert split_launches(launches, enough, sets) == split


class RisingClocks:
    """Runs graphs of no launches that take ``once_ms``, and counts the runs."""

    def __init__(self, once_ms: float, sets: int) -> None:
        self.sets, self.stream, self.once_ms, self.runs = SimpleNamespace(count=sets), 0, once_ms, 0

    def time_ms(self, enqueue: Any, launches: int) -> float:
        return self.begin(enqueue)()

    def begin(self, enqueue: Any, launches: int = 0) -> Any:
        before = self.runs
        enqueue()
        once_ms = (self.runs - before) * self.once_ms
        return lambda: once_ms


@pytest.mark.parametrize(
    ("once_ms", "repeats", "then"),
    [(2.0, 11, 11), (1.6, 11, 14), (2.2, 11, 11), (1.6, 1, 1), (30.0, 2, 2), (1.82, 11, 11), (1.81, 11, 12)],
)
def test_a_replay_that_was_sized_at_low_clocks_is_lengthened(
    monkeypatch: pytest.MonkeyPatch, once_ms: float, repeats: int, then: int
) -> None:
    """As sized, 11 runs of a graph of 2 ms; a kernel that got faster since needs more of them."""
    stopwatch: Any = RisingClocks(once_ms, sets=50)

    class Captured:
        def __init__(self, stream: int, enqueue: Any) -> None: ...

        def launch(self, stream: int) -> None:
            stopwatch.runs += 1

    monkeypatch.setattr(timing, "Graph", Captured)
    graph = timing.TimedGraph(stopwatch, None, 100, repeats)  # type: ignore[arg-type]
    graph.lengthen(20.0)
    assert graph.launches == 100 * then
    assert graph.time_us() * graph.launches == pytest.approx(then * once_ms * 1e3)


@pytest.mark.parametrize(("once_ms", "captured"), [(2.5, 100), (2.4, 110), (1.9, 140)])
def test_two_graphs_that_fall_short_are_captured_anew_and_not_run_three_times(
    monkeypatch: pytest.MonkeyPatch, once_ms: float, captured: int
) -> None:
    seen: list[str] = []

    class Captured:
        def __init__(self, stream: int, enqueue: Any) -> None:
            enqueue()

        def launch(self, stream: int) -> None:
            seen.append("run")

        def destroy(self) -> None:
            seen.append("destroy")

    monkeypatch.setattr(timing, "Graph", Captured)
    stopwatch: Any = RisingClocks(once_ms, sets=10)
    stopwatch.time_ms = lambda run, launches: run() or once_ms
    stopwatch.enqueue = lambda contestant, launches: seen.append(f"capture {launches}")
    graph = timing.TimedGraph(stopwatch, None, 100, 2)  # type: ignore[arg-type]
    graph.lengthen(5.0)
    assert graph.launches == 2 * captured and graph.launches * once_ms >= 5.0 * 100
    assert graph.sets_used == 10
    anew = ["destroy", f"capture {captured}", "run"] if captured > 100 else []
    assert seen == ["capture 100", "run", *anew]


def test_a_time_under_what_the_hardware_can_do_is_not_believed() -> None:
    problem = Problem(8192, 8192, 8192)
    limit = physical_us(8192, 8192, 8192)
    assert limit == pytest.approx(1099.5, rel=1e-3)
    assert too_fast(problem, 0.91 * limit, 0.9) == ""
    reason = too_fast(problem, 500.0, 0.9)
    assert "500.000 us is under 0.9 of the 1099.512 us" in reason
    assert too_fast(Problem(64, 64, 64), 0.5, 0.9) == ""  # overlapping launches may be this close
