"""Captured graphs with the driver's functions scripted: made anew or of a spare one, and given back."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from cudal2.launch import driver
from cudal2.launch.driver import Graph, LaunchError


class Scripted:
    """Counts executables; ``refuses`` is what an update answers."""

    CUstreamCaptureMode = driver.cuda.CUstreamCaptureMode
    CUresult = driver.cuda.CUresult

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.refuses = 0
        self.graphs = 0

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls[name] += 1
            if name == "cuStreamEndCapture":
                self.graphs += 1
                return 0, f"graph {self.graphs}"
            if name == "cuGraphInstantiate":
                return 0, f"executable of {arguments[0]}"
            if name == "cuGraphExecUpdate":
                return self.refuses, SimpleNamespace()
            return (0,)

        return call


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    scripted = Scripted()
    monkeypatch.setattr(driver, "cuda", scripted)
    return scripted


def test_a_spare_graph_is_made_the_new_one(scripted: Scripted) -> None:
    spare = Graph(1, lambda: None)
    graph = Graph(1, lambda: None, spare=spare)
    assert graph._exec == "executable of graph 1", "the spare one's"
    assert scripted.calls["cuGraphInstantiate"] == scripted.calls["cuGraphExecUpdate"] == 1
    assert scripted.calls["cuGraphUpload"] == 2 and scripted.calls["cuGraphDestroy"] == 2
    spare.destroy()
    assert not scripted.calls["cuGraphExecDestroy"], "it has given its executable away"
    graph.destroy()
    assert scripted.calls["cuGraphExecDestroy"] == 1


def test_a_spare_graph_of_another_shape_is_given_back(scripted: Scripted) -> None:
    spare, scripted.refuses = Graph(1, lambda: None), 910
    graph = Graph(1, lambda: None, spare=spare)
    assert graph._exec == "executable of graph 2"
    assert scripted.calls["cuGraphInstantiate"] == 2 and scripted.calls["cuGraphExecDestroy"] == 1


def test_what_cannot_be_enqueued_leaves_nothing_behind(scripted: Scripted) -> None:
    def refuse() -> None:
        raise LaunchError(1, "CUDA_ERROR_INVALID_VALUE", "cuLaunchKernelEx")

    with pytest.raises(LaunchError, match="INVALID_VALUE"):
        Graph(1, refuse)
    assert scripted.calls["cuGraphDestroy"] == 1 and not scripted.calls["cuGraphInstantiate"]
