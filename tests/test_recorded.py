"""Operations that are recorded on a GPU, with the GPU scripted; what they give there is tested on one."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cudal2.bench import recorded
from cudal2.bench.recorded import Recorded


def test_on_a_host_every_call_computes() -> None:
    calls: list[int] = []
    work = Recorded(lambda: calls.append(1) or torch.tensor(len(calls)), torch.device("cpu"))  # type: ignore[func-returns-value]
    assert [int(work()) for _ in range(2 * recorded._RUNS)] == list(range(1, 2 * recorded._RUNS + 1))


def test_after_some_runs_a_gpu_replays_what_it_captured_on_another_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Graph:
        def capture_begin(self, capture_error_mode: str) -> None:
            seen.append("begin")

        def capture_end(self) -> None:
            seen.append("end")

        def replay(self) -> None:
            seen.append("replay")

    class Stream:
        def __init__(self, device: Any) -> None: ...

        def wait_stream(self, other: Any) -> None:
            seen.append("wait")

    @contextlib.contextmanager
    def on(stream: Any) -> Any:
        seen.append("on")
        yield
        seen.append("off")

    for name, value in (("CUDAGraph", Graph), ("Stream", Stream), ("stream", on)):
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(device=0))
    monkeypatch.setattr(recorded, "_RUNS", 2)
    result = torch.tensor(1.0)
    work = Recorded(lambda: seen.append("work") or result, torch.device("cuda"))  # type: ignore[func-returns-value]
    assert all(work() is result for _ in range(4))
    assert seen == ["work", "work", "wait", "on", "begin", "work", "end", "off", "replay", "replay"]

    def refused() -> torch.Tensor:
        raise RuntimeError("out of memory")

    seen.clear()
    failing = Recorded(refused, torch.device("cuda"))
    failing._left = 0
    with pytest.raises(RuntimeError):
        failing()
    assert "end" in seen and "replay" not in seen
