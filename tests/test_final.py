"""The judge's rules, with contestants on the CPU that are honest, wrong, or cheat; real checks, simulated time."""

import pickle
import statistics
import types

import pytest
import torch

from cudal2.bench.correctness import CheckResult, Checks, check_sample
from cudal2.bench.inputs import BufferSets
from cudal2.bench.judge import final
from cudal2.bench.judge.final import Entrant
from cudal2.bench.rounds import RoundLimits
from cudal2.problem import Problem
from cudal2.records.finals import group_finals
from cudal2.records.measurement import Status
from cudal2.report import summary
from cudal2.space.config import Sm90WsConfig

PROBLEM = Problem(16, 24, 64)
CONFIG = Sm90WsConfig(128, 128, 64, 4, "coop", 2, 1, 1, 1, "tma", 1)
LIMITS = RoundLimits(rounds=5, seed=1)


class Refused(Exception):
    pass


class CpuArena:
    """The real checks on CPU tensors; an entrant's ``call(a, b, c, count)`` computes, its ``base_us`` is its time."""

    errors = (Refused,)

    def __init__(self):
        self.checks = Checks(PROBLEM, "cpu", 0)
        self.sets = BufferSets(PROBLEM, 3, "cpu", 0)
        self.replays, self.open, self.order = 0, 0, []

    def bound(self, entrant, sets):
        calls = {"count": 0}

        def launch(index, stream):
            calls["count"] += 1
            entrant.call.compute(sets.a(index), sets.b(index).t(), sets.c(index), calls["count"])

        return types.SimpleNamespace(launch=launch)

    def check(self, entrant):
        return self.checks.run(self.bound(entrant, self.checks.sets), 0)

    def prepare(self, entrant, time_us=None):
        if entrant.call.refuses:
            raise Refused("capture: status 15\nsecond line")
        self.open += 1
        contestant = self.bound(entrant, self.sets)

        def run():
            for index in range(self.sets.count):
                contestant.launch(index, 0)

        def begin():
            run()
            self.replays += 1
            self.order.append(entrant.label)
            time_us = entrant.call.base_us * (1.0 + 0.01 * self.replays)
            return lambda: time_us

        def begin_recheck():
            self.sets.poison()
            run()
            seen = check_sample(self.sets, 1, 0)
            if self.sets.unwritten(self.sets.count):
                seen = CheckResult(False, None, "outputs left unwritten")
            return lambda: seen

        return types.SimpleNamespace(
            launches=self.sets.count,
            detail="",
            begin=begin,
            warm_up=run,
            begin_recheck=begin_recheck,
            close=lambda: setattr(self, "open", self.open - 1),
        )

    def too_fast(self, time_us):
        return "faster than light" if time_us < 0.1 else ""

    def clocks(self):
        return {"sm_clock_mhz": 1980 - self.replays, "power_w": 500.5, "temperature_c": 60, "throttle": 4, "more": 1}


def honest(a, b, c, count):
    c.copy_((a.float() @ b.float()).half())


def half_accumulator(a, b, c, count):
    total = torch.zeros_like(c)
    for k in range(a.shape[1]):
        total = total + a[:, k : k + 1] * b[k]
    c.copy_(total)


def first_call_only(a, b, c, count):
    if count <= 2:
        honest(a, b, c, count)


def later_wrong(a, b, c, count):
    honest(a, b, c, count)
    if count > 2:
        c[0] += 3


def entrant(label, compute=honest, base_us=2.0, refuses=False, ours=False, pdl=None, name=None):
    call = types.SimpleNamespace(compute=compute, base_us=base_us, refuses=refuses)
    contestant = "sm90_ws" if ours else name or label
    return Entrant(label, contestant, f"detail of {label}", call, CONFIG if ours else None, pdl=pdl)


def judged(entrants, arena, limits):
    return final.rows(PROBLEM, [final.contest(entrants, arena, limits)])


BASELINES = [
    entrant("cublaslt_auto_tn", base_us=3.0),
    entrant("cublaslt_auto_nn", base_us=2.5),
    entrant("torch", base_us=4.0),
]


def by_label(rows, entrants):
    return {one.label: row for one, row in zip(entrants, rows, strict=True)}


@pytest.mark.parametrize("warmup_s", [0.0, 1e-6])
def test_a_row_has_the_launches_of_replays_that_warming_up_made_longer(warmup_s):
    class Lengthening(CpuArena):
        def prepare(self, entrant, time_us=None):
            prepared = super().prepare(entrant, time_us)
            prepared.warm_up = lambda: setattr(prepared, "launches", 7)
            return prepared

    (only,) = judged([entrant("ours", ours=True, pdl=False)], Lengthening(), RoundLimits(3, warmup_s))
    assert only.ok and only.launches == 7


def test_every_contestant_gets_its_rounds_and_the_better_reference_layout():
    arena = CpuArena()
    rows = judged([entrant("ours", ours=True, pdl=False), *BASELINES], arena, LIMITS)
    assert [row.status for row in rows] == [Status.CORRECT] * 4
    assert all(len(row.times_us) == 5 and row.launches == 3 for row in rows)
    nn = next(row for row in rows if row.contestant == "cublaslt_auto_nn")
    assert all(row.ref_times_us == nn.times_us for row in rows)
    assert len({row.utc for row in rows}) == 1 and rows[0].utc
    assert rows[0].max_error is not None and 0.0 <= rows[0].max_error <= 1.0
    assert rows[0].sm_clock_mhz == 1980 - arena.replays and rows[0].throttle == 4
    assert rows[0].detail.startswith("detail of ours; 1976/1972/1968/1964/1960MHz 500.5/500.5")
    assert arena.open == 0
    (found,) = group_finals(rows)
    assert found.against("cublaslt_auto").ratio == pytest.approx(1.25, rel=0.05)


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (lambda a, b, c, count: None, "0/1 data"),
        (lambda a, b, c, count: c.zero_(), "0/1 data"),
        (half_accumulator, "revealing data"),
        (lambda a, b, c, count: honest(a[:, :48], b[:48], c, count), "0/1 data"),
        (lambda a, b, c, count: (honest(a, b, c, count), a.zero_()), "changed its input A"),
    ],
    ids=["writes nothing", "zeros", "fp16 accumulator", "skips the K tail", "modifies its inputs"],
)
def test_wrong_results_are_never_timed(compute, reason):
    arena = CpuArena()
    entrants = [entrant("ours", compute, base_us=0.5, ours=True, pdl=False), *BASELINES]
    row = judged(entrants, arena, LIMITS)[0]
    assert row.status is Status.CORRECTNESS and reason in row.reason and row.times_us == ()
    assert "ours" not in arena.order


@pytest.mark.parametrize("compute", [first_call_only, later_wrong], ids=["only the first calls", "wrong later"])
def test_results_that_go_wrong_while_timed_lose_their_times(compute):
    entrants = [entrant("ours", compute, base_us=0.5, ours=True, pdl=False), *BASELINES]
    rows = by_label(judged(entrants, CpuArena(), LIMITS), entrants)
    assert rows["ours"].status is Status.CORRECTNESS and rows["ours"].times_us == ()
    assert rows["torch"].ok


def test_a_time_under_the_physical_bound_is_set_aside():
    entrants = [entrant("ours", base_us=0.01, ours=True, pdl=False), *BASELINES]
    row = judged(entrants, CpuArena(), LIMITS)[0]
    assert row.status is Status.QUARANTINED and row.reason == "faster than light"


def test_a_refusal_costs_one_contestant_one_line():
    entrants = [entrant("ours", ours=True, pdl=False), entrant("cublas_nn", refuses=True), *BASELINES]
    rows = by_label(judged(entrants, CpuArena(), LIMITS), entrants)
    assert rows["cublas_nn"].status is Status.LAUNCH and rows["cublas_nn"].reason == "capture: status 15"
    assert rows["ours"].ok


def test_our_own_mistake_is_not_blamed_on_a_contestant():
    arena = CpuArena()

    def broken(a, b, c, count):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        judged([*BASELINES, entrant("ours", broken, ours=True, pdl=False)], arena, LIMITS)
    assert arena.open == 0, "graphs are given back on the way out"


def test_pdl_columns_share_the_baselines_and_keep_ours_apart():
    entrants = [
        entrant("off", base_us=2.0, ours=True, pdl=False),
        entrant("on", base_us=1.0, ours=True, pdl=True),
        *BASELINES,
    ]
    rows = judged(entrants, CpuArena(), LIMITS)
    assert [row.pdl for row in rows] == [False] * 4 + [True] * 4
    report = summary.summarise(rows)
    assert report["offline/fp32/off"]["cublaslt_auto"]["geomean"] == pytest.approx(1.25, rel=0.05)
    assert report["offline/fp32/on"]["cublaslt_auto"]["geomean"] == pytest.approx(2.5, rel=0.05)


def test_without_a_right_reference_there_is_no_reference_time():
    entrants = [entrant("ours", ours=True, pdl=False), entrant("cublaslt_auto_tn", compute=lambda a, b, c, count: None)]
    rows = judged(entrants, CpuArena(), LIMITS)
    assert rows[0].ok and rows[0].ref_times_us == () and rows[0].speedup is None
    assert rows[1].status is Status.CORRECTNESS


def test_drift_does_not_decide_who_wins():
    # 2 % apart while the chip slows by 1 % per replay: 5 contestants x 9 rounds slow it by 45 %.
    entrants = [entrant("ours", base_us=2.04, ours=True, pdl=False), *BASELINES, entrant("cublaslt_auto", base_us=2.0)]
    rows = by_label(judged(entrants, CpuArena(), RoundLimits(rounds=45, seed=3)), entrants)
    ratios = [ref / ours for ours, ref in zip(rows["ours"].times_us, rows["cublaslt_auto"].times_us, strict=True)]
    assert statistics.median(ratios) == pytest.approx(2.0 / 2.04, abs=0.01)


def processes(*arenas, entrants=None, rounds=(5, 4)):
    entrants = entrants or [entrant("ours", ours=True, pdl=False), *BASELINES]
    parts = zip(arenas, rounds, strict=True)
    contests = [final.contest(entrants, arena, RoundLimits(count, seed=1)) for arena, count in parts]
    return final.rows(PROBLEM, pickle.loads(pickle.dumps(contests)))


def test_the_rounds_of_every_process_make_one_row_that_says_how_they_split():
    rows = processes(CpuArena(), CpuArena())
    assert {row.status for row in rows} == {Status.CORRECT}
    assert {(len(row.times_us), row.process_rounds) for row in rows} == {(9, (5, 4))}
    assert len({row.utc for row in rows}) == 1
    assert all(len(row.ref_times_us) == 9 for row in rows)
    assert rows[0].detail.count("MHz") == 2, "the clocks of every process"
    (found,) = group_finals(rows)
    assert found.against("torch").ratio == pytest.approx(2.0, rel=0.05)


def test_the_reference_is_one_layout_in_all_processes():
    tn, nn = entrant("cublaslt_auto_tn", base_us=3.0), entrant("cublaslt_auto_nn", base_us=2.9)
    rows = processes(CpuArena(), CpuArena(), entrants=[entrant("ours", ours=True, pdl=False), tn, nn])
    better = next(row for row in rows if row.contestant == "cublaslt_auto_nn")
    assert all(row.ref_times_us == better.times_us for row in rows)


def test_who_is_wrong_in_one_process_has_no_time_at_all():
    calls = {"count": 0}

    def wrong_in_the_second(a, b, c, count):
        calls["count"] += 1
        honest(a, b, c, count)
        if calls["count"] > 30:
            c[0] += 3

    ours = entrant("ours", wrong_in_the_second, base_us=0.5, ours=True, pdl=False)
    rows = processes(CpuArena(), CpuArena(), entrants=[ours, *BASELINES])
    assert calls["count"] > 30
    assert rows[0].status is Status.CORRECTNESS and rows[0].times_us == () and rows[0].process_rounds == ()
    assert all(row.ok for row in rows[1:])


def test_who_is_missing_from_a_process_has_no_time():
    contests = [final.contest(entrants, CpuArena(), LIMITS) for entrants in (BASELINES, [one for one in BASELINES[:2]])]
    rows = by_label(final.rows(PROBLEM, contests), BASELINES)
    assert rows["torch"].status is Status.LAUNCH and "every process" in rows["torch"].reason
    assert rows["cublaslt_auto_nn"].ok


@pytest.mark.parametrize(("warmup_s", "whole"), [(0.0, 0), (1e-9, 1)])
def test_what_does_not_heat_the_chip_is_warmed_up_without_whole_replays(warmup_s, whole):
    arena = CpuArena()
    held = final.contest(BASELINES, arena, RoundLimits(rounds=3, warmup_s=warmup_s))
    assert {len(times) for times in held.times.values()} == {3}
    assert arena.replays == len(BASELINES) * (3 + whole)


class Guest:
    """A call that brings its own process."""

    def check(self):
        return CheckResult(True)

    def prepare(self, replay_ms):
        raise AssertionError("the arena's business")


@pytest.mark.parametrize("guests", [0, 1])
def test_nothing_is_under_way_when_a_process_of_its_own_runs(guests):
    under_way, most, rechecks, entered = [], [], [], []

    def begin(label):
        under_way.append(label)
        most.append(len(under_way))
        return lambda: under_way.remove(label) or 2.0

    def begin_recheck():
        rechecks.append("begun")
        return lambda: rechecks.append("over") or CheckResult(True)

    def close():
        rechecks.append("close")

    def check(entrant):
        entered.append("check")
        return CheckResult(True)

    def prepare(entrant, time_us=None):
        entered.append("prepare")
        return types.SimpleNamespace(
            launches=1, detail="", begin=lambda: begin(entrant.label), warm_up=lambda: None,
            begin_recheck=begin_recheck, close=close,
        )  # fmt: skip

    arena = types.SimpleNamespace(errors=(), check=check, prepare=prepare, too_fast=lambda time_us: "", clocks=dict)
    entrants = [*BASELINES, *(Entrant("guest", "foreign", "", Guest()) for _ in range(guests))]
    held = final.contest(entrants, arena, LIMITS)
    assert not held.failures and max(most) == 2 - guests
    everyone = len(entrants)
    assert entered == (["check", "prepare"] * everyone if guests else ["check"] * everyone + ["prepare"] * everyone)
    over = ["over", "close"]
    assert rechecks == (["begun", *over] * everyone if guests else ["begun"] * everyone + over * everyone)


def test_no_more_is_under_way_than_there_is_room_for_on_the_host(monkeypatch):
    """Of two rooms each third recheck would overwrite the first, and one contestant's verdict be another's."""
    monkeypatch.setattr(final, "UNDER_WAY", 2)
    rooms, begun = [None, None], []

    def begin_recheck(label):
        room = len(begun) % len(rooms)
        begun.append(label)
        rooms[room] = label
        return lambda: CheckResult(rooms[room] == label, reason=f"what {rooms[room]} wrote")

    def prepare(entrant, time_us=None):
        return types.SimpleNamespace(
            launches=1, detail="", begin=lambda: lambda: 2.0, warm_up=lambda: None,
            begin_recheck=lambda: begin_recheck(entrant.label), close=lambda: None,
        )  # fmt: skip

    arena = types.SimpleNamespace(
        errors=(), check=lambda entrant: CheckResult(True), prepare=prepare, too_fast=lambda time_us: "", clocks=dict
    )
    labels = [f"torch {number}" for number in range(5)]
    held = final.contest([entrant(label) for label in labels], arena, LIMITS)
    assert held.failures == {} and begun == labels and set(held.launches) == set(labels)
