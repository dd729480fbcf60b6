"""The GPU's lock between real processes, and how often its clocks are asked for; no GPU."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from cudal2.bench import device
from cudal2.bench.device import gpu_lock

_HOLDER = """
import sys, time
from pathlib import Path
from cudal2.bench.device import gpu_lock
with gpu_lock("GPU-x", Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_gpu_lock_waits_says_so_and_outlives_no_holder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = Path(__file__).parents[1]
    command = [sys.executable, "-c", _HOLDER, str(tmp_path)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        killer = subprocess.Popen([sys.executable, "-c", f"import os,time; time.sleep(1); os.kill({holder.pid}, 9)"])
        started = time.monotonic()
        with caplog.at_level(logging.WARNING), gpu_lock("GPU-x", tmp_path):
            waited_s = time.monotonic() - started
        killer.wait()
    assert waited_s > 0.3
    assert f"in use by process {holder.pid}" in caplog.text


def test_the_gpu_lock_may_be_nested(tmp_path: Path) -> None:
    with gpu_lock("GPU-x", tmp_path), gpu_lock("GPU-x", tmp_path):
        pass
    with gpu_lock("GPU-x", tmp_path):
        pass


def test_clocks_are_asked_for_again_only_when_they_are_old(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [100.0], []
    monkeypatch.setattr(device, "_nvml_handle", lambda index: None)
    monkeypatch.setattr(device.time, "monotonic", lambda: now[0])
    clocks = device.Clocks(0)
    monkeypatch.setattr(clocks, "sample", lambda: asked.append(now[0]) or device.ClockSample(sm_clock_mhz=len(asked)))
    for now[0] in (100.0, 100.1, 100.19, 100.3, 100.4):
        clocks.recent(0.2)
    assert asked == [100.0, 100.3]
    assert clocks.recent(0.2).sm_clock_mhz == 2


def test_nvml_that_does_not_come_up_beside_the_context_says_so_when_it_is_asked(monkeypatch):
    class NVMLError(Exception): ...

    def refuse():
        raise NVMLError("no driver")

    monkeypatch.setattr(device, "pynvml", SimpleNamespace(NVMLError=NVMLError, nvmlInit=refuse))
    device.wake_nvml()
    assert device._driver_version() == device.UNKNOWN
    monkeypatch.setattr(device, "pynvml", None)
    device.wake_nvml()
