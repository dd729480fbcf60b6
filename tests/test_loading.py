"""Loads on a thread of their own: begun once, waited for together, a failure left to whoever loads again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cudal2.bench import jobs, loading
from cudal2.bench.loading import LoadsAhead
from cudal2.build.artifact import BuiltKernel
from cudal2.launch.driver import LaunchError
from cudal2.space.config import Sm90WsConfig

CONFIG = Sm90WsConfig(64, 64, 64, 2, "coop", 1, 1, 1, 1, "direct", 1)


class Kernel:
    """A loaded kernel that says when it is unloaded."""

    closed: list[str] = []  # noqa: RUF012 - one list for all

    def __init__(self, kernel: BuiltKernel, config: Any) -> None:
        if kernel.name == "damaged":
            raise LaunchError(200, "CUDA_ERROR_INVALID_IMAGE", "cuModuleLoadData")
        self.name = kernel.name

    def close(self) -> None:
        self.closed.append(self.name)


def test_a_kernel_that_was_loaded_ahead_is_not_loaded_again_and_many_are_unloaded_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "LoadedKernel", Kernel)
    monkeypatch.setattr(loading, "ensure_context", lambda index: None)
    monkeypatch.setattr(jobs, "LoadedKernel", Kernel)
    monkeypatch.setattr(jobs, "_KERNELS_KEPT", 4)
    monkeypatch.setattr(jobs.torch.cuda, "synchronize", lambda device: None)
    cleared: list[bool] = []
    monkeypatch.setattr(jobs, "spare_graphs", lambda: SimpleNamespace(clear=lambda: cleared.append(True)))
    session: Any = object.__new__(jobs.GpuSession)
    session.device, session._kernels, session._ahead = None, OrderedDict(), LoadsAhead(0)
    for name in ("one", "damaged"):
        session._ahead.begin(built(name), CONFIG)
    ahead = session.kernel(built("one"), CONFIG)
    assert session.kernel(built("one"), CONFIG) is ahead and not session._ahead._under_way
    with pytest.raises(LaunchError):
        session.kernel(built("damaged"), CONFIG)
    for name in ("two", "three", "four"):
        session.kernel(built(name), CONFIG)
    assert not Kernel.closed and not cleared
    session.kernel(built("one"), CONFIG)
    session.kernel(built("five"), CONFIG)
    assert Kernel.closed == ["two", "three"] and cleared == [True], "graphs that hold kernels go with them"
    assert session.kernel(built("one"), CONFIG) is ahead


def built(name: str) -> BuiltKernel:
    return BuiltKernel(name, "", Path(name), 0, 0, 0, 0, 0.0, Path("log"))


def test_loads_are_begun_once_on_another_thread_and_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    go, loaded, made_current = threading.Event(), [], []

    def load(kernel: BuiltKernel, config: Any) -> str:
        go.wait(10)
        loaded.append((kernel.name, threading.current_thread() is threading.main_thread()))
        if kernel.name == "damaged":
            raise LaunchError(200, "CUDA_ERROR_INVALID_IMAGE", "cuModuleLoadData")
        return f"{kernel.name} loaded"

    monkeypatch.setattr(loading, "LoadedKernel", load)
    monkeypatch.setattr(loading, "ensure_context", made_current.append)
    ahead = LoadsAhead(3)
    for name in ("one", "damaged", "two", "one"):
        ahead.begin(built(name), CONFIG)
    assert not loaded, "the caller goes on"
    go.set()
    assert dict(ahead.finish()) == {"one": "one loaded", "two": "two loaded"}
    assert loaded == [("one", False), ("damaged", False), ("two", False)] and made_current == [3]
    assert not list(ahead.finish())
    ahead.begin(built("one"), CONFIG)
    assert list(ahead.finish()), "what was given away may be loaded again"
