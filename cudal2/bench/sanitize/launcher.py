"""The program that compute-sanitizer runs: launches each case a few times on buffers of exactly its size.

No torch and no graphs, so that the tool instruments our kernels and nothing else. Each case is announced on stdout
before it is launched and judged on it afterwards; what the tool prints between the two is about that case.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver as cuda
from numpy.typing import NDArray

from cudal2.bench.sanitize.tool import BEGIN, END
from cudal2.build.artifact import BuiltKernel
from cudal2.launch.driver import LaunchError, check, context_fault, ensure_context
from cudal2.launch.kernel import LoadedKernel
from cudal2.problem import Problem
from cudal2.space.config import KernelConfig

#: Exit code after a fault that leaves the context useless.
FAULTED = 4
#: The tool prints from a process of its own: what it has to say of a case must be out before the next is announced.
_SETTLE_S = 0.02


@dataclass(frozen=True)
class Case:
    """One thing to launch.

    Attributes:
        problem: What it computes; sums of its 0/1 data must be exact in fp16, so k is at most 2,048.
        config: The configuration.
        built: Its cubin.
    """

    problem: Problem
    config: KernelConfig
    built: BuiltKernel


def launch_all(cases: Sequence[Case], device_index: int) -> int:
    """Launches every case; ends at the first that leaves the context useless.

    Returns:
        The process's exit code.
    """
    ensure_context(device_index)
    device = check(cuda.cuDeviceGet(device_index), "cuDeviceGet")
    attribute = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    sm_count = int(check(cuda.cuDeviceGetAttribute(attribute, device), "cuDeviceGetAttribute"))
    stream = int(check(cuda.cuStreamCreate(0), "cuStreamCreate"))
    for index, case in enumerate(cases):
        _say(f"{BEGIN} {index}")
        try:
            verdict = _launch(case, sm_count, stream)
        except LaunchError as error:
            verdict = str(error)
        _say(f"{END} {index} {verdict}".rstrip())
        if context_fault():
            return FAULTED
    return 0


def _launch(case: Case, sm_count: int, stream: int) -> str:
    """What is wrong with the result; empty if nothing. Once plainly, then twice in a row with PDL."""
    a, b, expected = _operands(case.problem)
    kernel = LoadedKernel(case.built, case.config)
    buffers = [_allocate(array.nbytes) for array in (a, b, expected)]
    try:
        for array, address in zip((a, b), buffers, strict=False):
            check(cuda.cuMemcpyHtoD(address, array.ctypes.data, array.nbytes), "cuMemcpyHtoD")
        check(cuda.cuMemsetD8(buffers[2], 0xFF, expected.nbytes), "cuMemsetD8")
        for pdl, launches in ((False, 1), (True, 2)):
            launch = kernel.on(case.config, case.problem, sm_count, pdl)
            at_a, at_b, at_c = (np.array([int(address)], np.uint64) for address in buffers)
            params = launch.params(at_a, at_b, at_c)
            for _ in range(launches):
                launch.launch(params.kernel_params(0), stream)
            check(cuda.cuCtxSynchronize(), "cuCtxSynchronize")
        got = np.empty_like(expected)
        check(cuda.cuMemcpyDtoH(got.ctypes.data, buffers[2], got.nbytes), "cuMemcpyDtoH")
    finally:
        for address in buffers:
            cuda.cuMemFree(address)
        kernel.close()
    wrong = int(np.count_nonzero(got != expected))
    return f"{wrong} of {expected.size} elements are wrong" if wrong else ""


@lru_cache(maxsize=4)
def _operands(problem: Problem) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """A [m, k], B as stored, and C [m, n], of zeros and ones: sums that every accumulator holds exactly."""
    rng = np.random.default_rng((problem.m, problem.n, problem.k))
    a, b = (rng.integers(0, 2, shape).astype(np.float16) for shape in ((problem.m, problem.k), (problem.k, problem.n)))
    expected = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)
    return a, np.ascontiguousarray(b if problem.layout == "nn" else b.T), expected


def _allocate(size_bytes: int) -> Any:
    return check(cuda.cuMemAlloc(size_bytes), "cuMemAlloc")


def _say(line: str) -> None:
    time.sleep(_SETTLE_S)
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    time.sleep(_SETTLE_S)


def main() -> None:
    """``python -m cudal2.bench.sanitize.launcher FILE DEVICE``: pickled cases of our own making."""
    cases = pickle.loads(Path(sys.argv[1]).read_bytes())
    code = launch_all(cases, int(sys.argv[2]))
    sys.stdout.flush()
    if code:
        os._exit(code)  # nothing can be given back to a context that is gone


if __name__ == "__main__":
    main()
