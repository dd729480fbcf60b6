"""Fixtures shared by the whole suite; tests marked ``gpu`` are skipped where there is no Hopper GPU."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from fabricated_recording import made_up_recording

from cudal2.bench import device
from cudal2.cli import main as cli
from cudal2.cli.backend import gpu_problem
from cudal2.records.recording import Recording
from cudal2.runners.replay import ReplayRunner


def pytest_configure(config: pytest.Config) -> None:
    """Jobs that a shell runs in the background ignore Ctrl-C, and so would all that the tests start and interrupt."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]  # keywords hold names of folders too
    reason = gpu_problem() if marked else None
    if reason is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or fills the user's build cache."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("CUDAL2_CACHE_DIR", str(cache))
    return cache


@pytest.fixture(autouse=True)
def private_gpu_lock(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker without a GPU waits for nobody else's tests; one with a GPU takes its turn."""
    if request.node.get_closest_marker("gpu") is None:
        folder = str(tmp_path_factory.getbasetemp())
        monkeypatch.setattr(device, "tempfile", SimpleNamespace(gettempdir=lambda: folder))


@pytest.fixture(scope="session")
def tiny_recording() -> Recording:
    """Six shapes, every legal configuration of a small space, made-up times: for tests only."""
    return made_up_recording()


@pytest.fixture(scope="module")
def runner(tiny_recording: Recording) -> ReplayRunner:
    """Replay of the tiny recording; what is not in it is masked."""
    return ReplayRunner(tiny_recording, on_missing="mask")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    """Runs a command in this process and gives back its code, stdout and stderr."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        code = cli.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
