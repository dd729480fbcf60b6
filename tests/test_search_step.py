"""One search step in the measuring process: its order of events and its verdicts, with the host in the GPU's place."""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
import types
import weakref
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from cudal2 import floor
from cudal2.bench import jobs, timing
from cudal2.bench.correctness import Checks
from cudal2.bench.device import ClockSample
from cudal2.bench.inputs import BufferSets, as_math
from cudal2.bench.jobs import Candidate, GpuSession
from cudal2.build.artifact import BuiltKernel
from cudal2.launch.driver import LaunchError
from cudal2.problem import Problem
from cudal2.records.measurement import Status
from cudal2.settings import BenchSettings
from cudal2.space.config import Sm90WsConfig

PROBLEM = Problem(64, 64, 64)
SETTINGS = BenchSettings(replays=3)
CONFIG = Sm90WsConfig(64, 64, 64, 2, "coop", 1, 1, 1, 1, "direct", 1)
SPLIT = dataclasses.replace(CONFIG, split_k=2, split_via="workspace")
LAUNCH_US = 5.0


def candidate(name: str) -> Candidate:
    return Candidate(PROBLEM, CONFIG, BuiltKernel(name, "", Path(name), 0, 0, 0, 0, 0.0, Path("log")))


class Host:
    """Sees every event; launches compute at once, and take ``launch_us``."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.launch_us, self.launched, self.wrong_after, self.spare = LAUNCH_US, 0, 10**9, 0
        self.rough_us = 15.0

    def contestant(self, sets: BufferSets) -> types.SimpleNamespace:
        def launch(index: int, stream: int) -> None:
            self.launched += 1
            c = sets.a(index).float() @ as_math(sets.b(index), PROBLEM.layout).float()
            sets.c(index).copy_(c.half() * (2 if self.launched > self.wrong_after else 1))

        return types.SimpleNamespace(launch=launch)


class Stopwatch(timing.Stopwatch):
    """The real one but for events and streams."""

    stream = 7

    def __init__(self, host: Host, sets: BufferSets) -> None:
        self.host, self.sets = host, sets

    def rough(self, contestant):
        return types.SimpleNamespace(launch=contestant.launch, time_us=lambda: self.host.rough_us)

    def begin(self, enqueue, launches=0):
        self.sets.poison()
        before = self.host.launched
        self.host.events.append("replay")
        enqueue()
        ms = (self.host.launched - before) * self.host.launch_us / 1e3
        return lambda: self.host.events.append("wait") or ms


class Context:
    def __init__(self, host: Host) -> None:
        self.problem, self.settings, self.host = PROBLEM, SETTINGS, host
        self.sets, self.checks = BufferSets(PROBLEM, 4, "cpu"), Checks(PROBLEM, "cpu", 1)
        self.stopwatch, self.likely_us = Stopwatch(host, self.sets), 4.0
        self.closed = False

    def checked(self, kernel, config, pdl):
        return self.host.contestant(self.checks.sets)

    def begin_check(self, contestant):
        self.host.events.append("check")
        return self.checks.begin(contestant, 7)

    def workspace_bytes(self, kernel, config):
        return 4096 if config.split_via == "workspace" else 0

    def candidate(self, kernel, config, pdl):
        self.host.events.append("bind")
        return self.host.contestant(self.sets)

    def reference(self):
        def begin():
            self.host.events.append("reference")
            return lambda: 4.0

        return types.SimpleNamespace(graph=types.SimpleNamespace(begin=begin))


@pytest.fixture
def host(monkeypatch):
    host = Host()

    class Graph:
        def __init__(self, stream, enqueue):
            host.events.append("capture")
            self.enqueue = enqueue

        def launch(self, stream):
            self.enqueue()

        def destroy(self):
            host.events.append("destroy")

    monkeypatch.setattr(timing, "Graph", Graph)
    return host


@pytest.fixture
def session(host):
    session = object.__new__(GpuSession)
    context = Context(host)

    def kernel(built, config):
        if built.name not in session._kernels:
            host.events.append(f"load {built.name}")
            if built.name == "unloadable":
                raise LaunchError(200, "CUDA_ERROR_INVALID_IMAGE", "cuModuleLoadData")
        session._kernels[built.name] = config

    session.context = lambda problem, settings: context
    session.kernel = kernel
    session.clocks = types.SimpleNamespace(recent=lambda age: ClockSample(1980))
    session._spent, session._contexts, session._kernels, session._ahead = [], OrderedDict(), {}, None
    session._checking = None
    session._workspaces = types.SimpleNamespace(spare=lambda size_bytes: host.spare)
    return session


def test_the_host_works_while_the_device_does(session, host):
    one, two, three = (candidate(name) for name in ("one", "two", "three"))
    row = session.measure(one, SETTINGS, True, [two, three])
    assert row.status is Status.CORRECT and row.sm_clock_mhz == 1980
    assert row.times_us == pytest.approx([LAUNCH_US] * 3) and row.ref_times_us == (4.0,) * 3
    assert row.launches * LAUNCH_US >= 2000.0
    ahead = ["load one", "bind", "capture", "capture", "check", "replay"]
    assert host.events[:6] == ahead, "a short graph behind the check"
    rounds = host.events[6:]
    assert rounds[:4] == ["reference", "wait", "capture", "replay"], "sized and captured while the reference replays"
    assert sorted(rounds[4:8]) == ["reference", "reference", "replay", "replay"] and rounds[7] == "replay"
    assert rounds[8:] == ["load two", "load three", "wait", "wait", "wait"], "all is under way before one is waited for"
    host.events.clear()
    session.measure(two, SETTINGS, True, [three, candidate("unloadable")])
    assert host.events[:4] == ["bind", "capture", "capture", "check"], "it was not loaded in time to be bound ahead"
    meanwhile = ["destroy", "destroy", "destroy", "bind", "capture", "capture", "load unloadable"]
    last = ["wait", "wait", "wait", "check"]
    assert host.events[-11:] == [*meanwhile, *last], "the graphs of the step before, the next step's, and its check"
    host.events.clear()
    session.measure(three, SETTINGS, True)
    assert host.events[:2] == ["replay", "reference"], "it is checked already"
    assert host.events[-6:] == ["destroy", "destroy", "destroy", "wait", "wait", "wait"]


@pytest.mark.parametrize(("rough_us", "launches"), [(0.0, 88), (19.9, 88), (20.1, 22)])
def test_who_is_slow_by_itself_is_sized_by_fewer_launches_and_timed_by_as_many_as_fill_a_replay(
    session, host, rough_us, launches
):
    """The reference takes 4 us."""
    host.rough_us, host.launch_us = rough_us, 30.0
    launched = []
    begin = Stopwatch.begin

    def counted(stopwatch, enqueue, graph_launches=0):
        before = host.launched
        finish = begin(stopwatch, enqueue, graph_launches)
        launched.append(host.launched - before)
        return finish

    session.context(PROBLEM, SETTINGS).stopwatch.begin = functools.partial(
        counted, session.context(PROBLEM, SETTINGS).stopwatch
    )
    row = session.measure(candidate("one"), SETTINGS, True)
    assert row.status is Status.CORRECT and launched == [launches, *[row.launches] * 3]
    assert 2000.0 <= row.launches * 30.0 <= 2200.0


def test_what_was_bound_ahead_for_another_step_is_given_back_and_workspaces_are_not_made_ahead(session, host):
    one, two = candidate("one"), candidate("two")
    split = dataclasses.replace(two, config=SPLIT)
    for ahead, spare, bound in ((two, 0, True), (split, 2, True), (split, 1, False)):
        session._kernels["two"], host.spare = two.config, spare
        session.measure(one, SETTINGS, False, [ahead])
        assert (session._ahead is not None) is bound
    session.measure(one, SETTINGS, False, [two])
    host.events.clear()
    session.measure(one, SETTINGS, False)
    assert host.events[:4] == ["bind", "capture", "capture", "check"] and host.events.count("destroy") == 5
    session.measure(one, SETTINGS, False, [two])
    del session._kernels["two"]
    host.events.clear()
    session.measure(dataclasses.replace(two, pdl=True), SETTINGS, False)
    assert session._ahead is None and host.events.count("check") == 1, "the same kernel, otherwise launched"


@pytest.mark.parametrize(
    "error",
    [
        LaunchError(701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "cuLaunchKernelEx"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
    ],
    ids=["refused", "faulted at once"],
)
def test_what_the_next_candidate_does_is_its_own(session, host, error):
    """Its check begins when this one's times and verdict are there, and what it raises is raised when it is asked."""
    one, two = candidate("one"), candidate("two")
    context = session.context(PROBLEM, SETTINGS)
    begin = context.begin_check
    session._kernels["two"] = two.config

    def broken(contestant):
        if host.events.count("check") == 1:
            assert host.events[-3:] == ["wait", "wait", "wait"]
            host.events.append("check")
            raise error
        return begin(contestant)

    context.begin_check = broken
    row = session.measure(one, SETTINGS, False, [two])
    assert row.status is Status.CORRECT and len(row.times_us) == 3 and session._checking is None
    row = session.measure(two, SETTINGS, False)
    assert row.status is Status.CORRECT and host.events.count("check") == 3, "checked in its turn"

    def lost():
        raise RuntimeError("an illegal memory access was encountered")

    host.events.clear()
    session._kernels["two"] = two.config
    context.begin_check = lambda contestant: lost if host.events.count("wait") else begin(contestant)
    assert session.measure(one, SETTINGS, False, [two]).status is Status.CORRECT
    with pytest.raises(RuntimeError, match="illegal memory access"):
        session.measure(two, SETTINGS, False)


def test_a_problem_that_does_not_fit_is_tried_again_with_all_that_others_and_the_first_try_held(session):
    """What a try allocated before the device was full hangs on its error, and what was given up may be in a cycle."""
    memory: list[weakref.ref[Context]] = []

    class Held:
        bytes = 1

        def __init__(self) -> None:
            self.itself = self
            memory.append(weakref.ref(self))

        def close(self) -> None: ...

    def make(*key):
        if len(memory) < 3:
            partly = Held()
            raise torch.OutOfMemoryError(f"{partly.bytes} byte is not enough")
        assert [one() for one in memory] == [None, None, None]
        return Context(session)

    session.info = types.SimpleNamespace(memory_bytes=2**30)
    session.device = None
    session._new_context = make
    session._contexts["other"] = Held()
    session._spent.append(Held())
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "synchronize", lambda device: None)
            assert GpuSession.context(session, PROBLEM, SETTINGS).problem == PROBLEM
    finally:
        gc.enable()
    assert len(session._contexts) == 1


def test_a_shape_that_heats_the_chip_is_timed_under_load(session, host, monkeypatch):
    monkeypatch.setattr(floor, "floor_us", lambda m, n, k: floor.HEATING_FLOOR_US + 1)
    settings = session.context(PROBLEM, SETTINGS).settings = dataclasses.replace(SETTINGS, search_soak_s=1.0)
    ticks = itertools.count()
    timed = functools.partial(timing.keep_busy, now=lambda: next(ticks) / 4)
    monkeypatch.setattr(jobs, "keep_busy", timed)
    row = session.measure(candidate("one"), settings, True)
    assert row.status is Status.CORRECT and row.detail == "after 1 s under load"
    assert len(row.times_us) == len(row.ref_times_us) == 3, "what runs before is not timed"
    rounds = host.events[6:]
    assert rounds.count("reference") == rounds.count("replay") == 3 + 3, "three turns before one second is over"
    waits = [place for place, event in enumerate(rounds) if event == "wait"]
    assert len(waits) == 1 + 2 + 3 and waits[3] - waits[2] == 2 * 3 + 1, "the last turn runs on into the timed ones"
    monkeypatch.setattr(floor, "floor_us", lambda m, n, k: floor.HEATING_FLOOR_US)
    assert session.measure(candidate("one"), settings, True).detail == ""


def test_alone_a_candidate_is_timed_too(session):
    row = session.measure(candidate("one"), SETTINGS, False)
    assert row.status is Status.CORRECT and len(row.times_us) == 3 and row.ref_times_us == ()


def test_what_goes_wrong_when_timed_has_no_time(session, host):
    host.wrong_after = 500
    row = session.measure(candidate("one"), SETTINGS, True)
    assert row.status is Status.CORRECTNESS and row.reason.startswith("after timing, set") and row.times_us == ()


def test_a_time_that_cannot_be_is_set_aside_and_a_wrong_kernel_never_timed(session, host, monkeypatch):
    monkeypatch.setattr(floor, "physical_us", lambda m, n, k: 1.2 * LAUNCH_US)
    row = session.measure(candidate("one"), SETTINGS, True)
    assert row.status is Status.QUARANTINED and row.times_us == ()
    host.wrong_after = 0
    host.events.clear()
    row = session.measure(candidate("one"), SETTINGS, True)
    assert row.status is Status.CORRECTNESS and row.reason.startswith("0/1 data")
    assert host.events == ["bind", "capture", "capture", "check"], "not even sized"
