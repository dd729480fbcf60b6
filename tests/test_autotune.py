"""cuBLASLt-AutoTuning's decisions: what is screened, compared and dropped; times are scripted, no GPU."""

import gc
import itertools
import types
import weakref

import pytest

from cudal2.bench.baselines import autotune
from cudal2.bench.baselines.autotune import AutoTuner, Exploration, Screening
from cudal2.bench.baselines.baseline import BothLayouts, LibraryCall
from cudal2.bench.inputs import BufferSets
from cudal2.errors import WorkerError
from cudal2.problem import Problem


def named(layout, number, enqueue=None):
    return LibraryCall(f"cublaslt_heuristic_{layout}", f"rank={number}", layout, enqueue or (lambda *_: None))


def test_screening_keeps_the_fastest_right_ones_and_passes_the_limit_on():
    times, limits, asked = {0: 4.0, 1: None, 2: 1.0, 3: 2.0, 4: 9.0, 5: 3.0}, [], []

    def time_call(call, limit_us, meanwhile):
        limits.append(limit_us)
        return times[int(call.detail[5:])]

    def is_right(call):
        asked.append(call.detail)
        return call.detail != "rank=2"

    screening = Screening(time_call, is_right)
    screening.extend(named("tn", number) for number in range(4))
    assert [call.detail for call in screening.best(9)] == ["rank=3", "rank=0"]
    screening.extend(named("tn", number) for number in range(4, 6))
    assert [call.detail for call in screening.best(2)] == ["rank=3", "rank=5"]
    # The wrong one at 1 us never becomes the mark that others are measured by.
    assert limits == [float("inf"), 5.0, 5.0, 5.0, 2.5, 2.5]
    assert len(asked) == len(set(asked)), "a check is never repeated"


class Refused(Exception):
    pass


class FakeStopwatch:
    """Times a contestant by the number in its detail; a rough estimate carries the host's overhead."""

    stream = 1

    def __init__(self, times):
        self.times, self.open = times, 0

    def probe_us(self, contestant):
        return self.times[contestant.detail] + 6.0

    def graph(self, contestant, launches, warm=True):
        self.open += 1
        close = lambda: setattr(self, "open", self.open - 1)  # noqa: E731
        time_us = lambda: self.times[contestant.detail]  # noqa: E731
        return types.SimpleNamespace(time_us=time_us, begin=lambda: time_us, close=close)


def test_tuning_drops_what_refuses_or_is_wrong_and_answers_per_layout():
    def refuse(*_):
        raise Refused("status 15")

    buffers = BothLayouts(BufferSets(Problem(8, 8, 8), 2, "cpu"))
    calls = [named("tn", 0), named("tn", 1), named("tn", 2, refuse), named("nn", 3), named("nn", 4)]
    stopwatch = FakeStopwatch({"rank=0": 3.0, "rank=1": 2.0, "rank=2": 0.1, "rank=3": 5.0, "rank=4": 4.0})
    wrong = {"rank=1"}
    tuner = AutoTuner(
        stopwatch,
        buffers,
        (Refused,),
        lambda call: "off by one" if call.detail in wrong else "",
        replay_ms=2.0,
        rounds=3,
    )
    chosen = tuner.choose(calls)
    assert {layout: (tuned.call.name, tuned.median_us) for layout, tuned in chosen.items()} == {
        "tn": ("cublaslt_auto_tn", pytest.approx(3.0)),
        "nn": ("cublaslt_auto_nn", pytest.approx(4.0)),
    }
    assert chosen["tn"].call.detail == "rank=0 of=3" and chosen["nn"].call.detail == "rank=4 of=2"
    assert stopwatch.open == 0, "every graph is given back"
    # rank=4 is nearly hopeless by its rough 10 us against rank=3's 5 us graph, and still the faster one.
    wrong |= {"rank=3", "rank=4"}
    assert set(tuner.choose(calls)) == {"tn"}


def test_a_refusal_keeps_no_buffers():
    """Its error's frames would, until cycles are looked for, and another problem needs the memory before."""

    def refuse(*_):
        raise Refused("status 15")

    buffers = BothLayouts(BufferSets(Problem(8, 8, 8), 2, "cpu"))
    calls = [named("tn", 0), named("tn", 1, refuse), named("tn", 2)]
    tuner = AutoTuner(FakeStopwatch({"rank=0": 3.0, "rank=2": 2.0}), buffers, (Refused,), lambda call: "", 2.0, 3)
    assert tuner.choose(calls)["tn"].call.detail == "rank=2 of=3"
    held = weakref.ref(buffers)
    gc.disable()
    try:
        del tuner, buffers
        assert held() is None
    finally:
        gc.enable()


class Near:
    """Further calls whose number is their time; each is near to leaders of the next higher number."""

    def __init__(self, numbers):
        self.left, self.checked, self.asked = list(numbers), 0, []

    def near(self, leaders):
        self.asked.append([leader.detail for leader in leaders])
        while self.left:
            self.checked += 2
            yield named("tn", self.left.pop(0))


def tuner_of(times, exploration, wrong=(), **options):
    buffers = BothLayouts(BufferSets(Problem(8, 8, 8), 2, "cpu"))
    verify = lambda call: "off by one" if call.detail in wrong else ""  # noqa: E731
    return AutoTuner(FakeStopwatch(times), buffers, (Refused,), verify, 2.0, 3, 0, exploration, **options)


TIMES = {f"rank={number}": float(number) for number in range(1, 100)}


def test_tuning_goes_on_around_the_best_so_far_within_its_budget():
    near = Near(range(39, 9, -1))
    tuned = tuner_of(TIMES, Exploration(calls=20)).choose([named("tn", 40), named("tn", 41)], {"tn": near})["tn"]
    assert tuned.call.detail == "rank=20 of=22 enumerated=20 checked=40" and tuned.median_us == pytest.approx(20.0)
    assert near.asked[0] == ["rank=40", "rank=41"], "the heuristic's best come first"
    assert near.asked[1] == ["rank=28", "rank=29", "rank=30"], "then whoever leads"


def test_under_load_more_of_those_screened_without_it_are_compared(monkeypatch):
    compared, soaked = [], []
    monkeypatch.setattr(autotune, "keep_busy", lambda graphs, seconds: soaked.append((len(graphs), seconds)))
    monkeypatch.setattr(
        autotune, "interleave", lambda graphs, *_: compared.append(len(graphs)) or [(1.0,)] * len(graphs)
    )
    for soak_s in (0.0, 0.25):
        tuner_of(TIMES, Exploration(), soak_s=soak_s).choose([named("tn", number) for number in range(20, 29)])
    assert compared == [3, 6] and soaked == [(3, 0.0), (6, 0.25)]


def test_tuning_stops_when_time_or_configurations_run_out():
    ticks = itertools.count()
    tuner = tuner_of(TIMES, Exploration(calls=50, seconds=5.0, clock=lambda: float(next(ticks))))
    assert "of=5 enumerated=4 " in tuner.choose([named("tn", 40)], {"tn": Near(range(39, 0, -1))})["tn"].call.detail
    tuner = tuner_of(TIMES, Exploration(calls=50))
    assert "of=4 enumerated=3 checked=6" in tuner.choose([named("tn", 40)], {"tn": Near([5, 6, 7])})["tn"].call.detail
    tuner = tuner_of(TIMES, Exploration(calls=0))
    assert "of=1 enumerated=0 checked=0" in tuner.choose([named("tn", 40)], {"tn": Near([5, 6, 7])})["tn"].call.detail


def test_a_wrong_enumerated_call_never_wins_and_the_heuristics_best_is_always_compared():
    tuner = tuner_of(TIMES, Exploration(calls=50), wrong={"rank=1"})
    tuned = tuner.choose([named("tn", 40)], {"tn": Near([39, 1, 38, 37, 36])})["tn"]
    assert tuned.call.detail.startswith("rank=36 of=6")
    compared = []
    tuner = tuner_of(TIMES, Exploration(calls=50))
    compare, tuner._compare = tuner._compare, lambda calls: compared.extend(calls) or compare(calls)
    tuner.choose([named("tn", 40)], {"tn": Near([39, 38, 37, 36])})
    assert [call.detail for call in compared] == ["rank=36", "rank=37", "rank=38", "rank=40"]


@pytest.mark.parametrize("error", [Refused("status 13"), RuntimeError("CUDA error: an illegal memory access")])
def test_an_algorithm_that_breaks_the_context_is_named_and_what_to_do_said(error):
    def crash(*_):
        raise error

    buffers = BothLayouts(BufferSets(Problem(8, 8, 8), 2, "cpu"))
    tuner = AutoTuner(
        FakeStopwatch(TIMES), buffers, (Refused,), lambda call: "", 2.0, 3, fault=lambda: "CUDA_ERROR_ILLEGAL_ADDRESS"
    )
    with pytest.raises(WorkerError, match=r"rank=7 broke the CUDA context: CUDA_ERROR_ILLEGAL_ADDRESS .enumerated_res"):
        tuner.choose([named("tn", 8), named("tn", 7, crash)])


def test_screening_ends_at_the_first_sign_of_being_too_slow():
    replays = []

    class Counting(FakeStopwatch):
        def graph(self, contestant, launches, warm=True):
            graph = super().graph(contestant, launches)
            time_us = graph.time_us
            graph.time_us = lambda: replays.append(contestant.detail) or time_us()
            graph.begin = lambda: replays.append(contestant.detail) or time_us
            return graph

    buffers = BothLayouts(BufferSets(Problem(8, 8, 8), 2, "cpu"))
    stopwatch = Counting(TIMES)
    tuner = AutoTuner(stopwatch, buffers, (Refused,), lambda call: "", 2.0, 3)
    screened = tuner.screened([named("tn", number) for number in (20, 24, 26, 40, 10)], 3)
    assert [call.detail for call in screened] == ["rank=10", "rank=20", "rank=24"]
    counts = {f"rank={number}": replays.count(f"rank={number}") for number in (20, 24, 26, 40, 10)}
    # 25 us is the limit: 26 us shows in the first graph, 40 us + 6 already in the first launch.
    assert counts == {"rank=20": 3, "rank=24": 3, "rank=26": 1, "rank=40": 0, "rank=10": 3}
    assert stopwatch.open == 0


def test_where_submission_hides_a_launch_it_is_not_timed_by_itself():
    probed = []

    class Probing(FakeStopwatch):
        def probe_us(self, contestant):
            probed.append(contestant.detail)
            return super().probe_us(contestant)

    buffers = BothLayouts(BufferSets(Problem(8, 8, 8), 2, "cpu"))
    tuner = AutoTuner(
        Probing({f"rank={number}": float(number) for number in (9, 8, 7, 12, 30)}),
        buffers,
        (Refused,),
        lambda call: "",
        2.0,
        3,
    )
    screened = tuner.screened([named("tn", number) for number in (9, 8, 7, 12, 30)], 3)
    assert [call.detail for call in screened] == ["rank=7", "rank=8", "rank=9"]
    assert probed == ["rank=9", "rank=8"], "from 8 us on the limit is no longer above what a submission adds"


def test_the_next_algorithm_is_loaded_while_the_replays_of_the_one_before_run():
    events = []

    class Watching(FakeStopwatch):
        def graph(self, contestant, launches, warm=True):
            graph, name = super().graph(contestant, launches), contestant.detail[5:]
            finish = graph.begin()
            graph.time_us = lambda: events.append(f"first {name}") or finish()
            graph.begin = lambda: events.append(f"begin {name}") or (lambda: events.append(f"wait {name}") or finish())
            return graph

    def call(number):
        return named("tn", number, lambda *_: events.append(f"launch {number}"))

    def refused(*_):
        events.append("launch 6")
        raise Refused

    buffers = BothLayouts(BufferSets(Problem(8, 8, 8), 2, "cpu"))
    tuner = AutoTuner(Watching(TIMES), buffers, (Refused,), lambda call: "", 2.0, 3)
    screened = tuner.screened([], 1)
    assert screened == []
    screening = Screening(tuner._screen_us, lambda call: True, tuner._load)
    screening.extend([call(7), call(5), named("tn", 6, refused), call(9), call(4)])
    assert [one.detail for one in screening.best(9)] == ["rank=4", "rank=5", "rank=7", "rank=9"]
    assert events == [
        "launch 7", "first 7", "begin 7", "begin 7", "launch 5", "wait 7", "wait 7",
        "first 5", "begin 5", "begin 5", "launch 6", "wait 5", "wait 5",
        "launch 9", "first 9", "launch 4", "first 4", "begin 4", "begin 4", "wait 4", "wait 4",
    ]  # fmt: skip
    assert not tuner._stopwatch.open


def test_of_two_under_way_when_the_context_broke_both_are_named():
    broken = []

    def crash(*_):
        broken.append(True)

    class Breaking(FakeStopwatch):
        def graph(self, contestant, launches, warm=True):
            graph = super().graph(contestant, launches)
            finish = graph.begin()

            def wait():
                if broken:
                    raise RuntimeError("CUDA error: an illegal memory access was encountered")
                return finish()

            graph.begin = lambda: wait
            return graph

    buffers = BothLayouts(BufferSets(Problem(8, 8, 8), 2, "cpu"))
    tuner = AutoTuner(Breaking(TIMES), buffers, (Refused,), lambda call: "", 2.0, 3, fault=lambda: "CUDA_ERROR_UNKNOWN")
    screening = Screening(tuner._screen_us, lambda call: True, tuner._load)
    with pytest.raises(WorkerError, match="rank=8 or rank=7 broke the CUDA context: CUDA_ERROR_UNKNOWN"):
        screening.extend([named("tn", 8), named("tn", 7, crash)])
