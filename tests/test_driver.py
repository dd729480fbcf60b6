"""Captured graphs with the driver's functions scripted: made, and given back."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from cudal2.launch import driver
from cudal2.launch.driver import Graph, LaunchError


class Scripted:
    """Counts calls and numbers graphs."""

    CUstreamCaptureMode = driver.cuda.CUstreamCaptureMode
    CUresult = driver.cuda.CUresult

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.graphs = 0

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls[name] += 1
            if name == "cuStreamEndCapture":
                self.graphs += 1
                return 0, f"graph {self.graphs}"
            if name == "cuGraphInstantiate":
                return 0, f"executable of {arguments[0]}"
            return (0,)

        return call


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    scripted = Scripted()
    monkeypatch.setattr(driver, "cuda", scripted)
    return scripted


def test_every_graph_has_an_executable_of_its_own(scripted: Scripted) -> None:
    """An updated one kept the cluster size of the graph before: a grid of 57 CTAs ran as 28 clusters of 2."""
    first = Graph(1, lambda: None)
    first.destroy()
    second = Graph(1, lambda: None)
    assert second._exec == "executable of graph 2" and not scripted.calls["cuGraphExecUpdate"]
    assert scripted.calls["cuGraphInstantiate"] == scripted.calls["cuGraphDestroy"] == 2
    first.destroy()
    assert scripted.calls["cuGraphExecDestroy"] == 1


def test_what_cannot_be_enqueued_leaves_nothing_behind(scripted: Scripted) -> None:
    def refuse() -> None:
        raise LaunchError(1, "CUDA_ERROR_INVALID_VALUE", "cuLaunchKernelEx")

    with pytest.raises(LaunchError, match="INVALID_VALUE"):
        Graph(1, refuse)
    assert scripted.calls["cuGraphDestroy"] == 1 and not scripted.calls["cuGraphInstantiate"]
