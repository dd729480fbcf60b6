"""The program that Nsight Compute runs: launches each contestant a few times on fresh buffers and checks nothing.

Only the last launch of each contestant lies between the start and the stop of the profiler, so what ncu reports is that
launch alone: whatever makes the data or warms up is left out without naming a kernel.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import torch

from cudal2.bench.baselines.baseline import BothLayouts
from cudal2.bench.baselines.libraries import VendorLibraries
from cudal2.bench.candidate import KernelContestant
from cudal2.bench.inputs import BufferSets
from cudal2.bench.profile.counters import LaunchRequest, Work
from cudal2.bench.timing import Contestant
from cudal2.launch.driver import ensure_context
from cudal2.launch.kernel import LoadedKernel

#: The first loads code and tables; every launch has a buffer set of its own.
LAUNCHES = 3


def launch_all(request: LaunchRequest) -> None:
    """Launches every contestant, the last launch of each under the profiler."""
    torch.cuda.set_device(request.device_index)
    ensure_context(request.device_index)
    device = torch.device("cuda", request.device_index)
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    torch.cuda.set_stream(stream)
    for work in request.work:
        _launch(work, request, device, stream)


def _launch(work: Work, request: LaunchRequest, device: torch.device, stream: torch.cuda.Stream) -> None:
    """One problem; its memory is free again afterwards."""
    settings, problem = request.settings, work.problem
    sets = BufferSets(problem, LAUNCHES, device, settings.seed)
    sm_count = torch.cuda.get_device_properties(device).multi_processor_count
    for config, built in work.candidates:
        _profile(KernelContestant(LoadedKernel(built, config), config, sets, sm_count), stream)
    if request.baseline:
        with VendorLibraries(problem, device, settings.workspace_bytes, 1) as libraries:
            _profile(libraries.cublaslt(problem.layout)[0].on(BothLayouts(sets)), stream)


def _profile(contestant: Contestant, stream: torch.cuda.Stream) -> None:
    for index in range(LAUNCHES - 1):
        contestant.launch(index, stream.cuda_stream)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    contestant.launch(LAUNCHES - 1, stream.cuda_stream)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def main() -> None:
    """``python -m cudal2.bench.profile.launcher FILE``: a pickled :class:`LaunchRequest` of our own making."""
    os.dup2(2, 1)  # stdout is where ncu prints its table
    launch_all(pickle.loads(Path(sys.argv[1]).read_bytes()))


if __name__ == "__main__":
    main()
