"""Launches that C submits in a row: which sets, in which order; a refusal, and no compiler."""

from __future__ import annotations

import ctypes
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from cudal2.bench import native
from cudal2.bench.baselines.baseline import BoundCall
from cudal2.bench.native import SOURCE, MatmulArguments, Submit, Submitter, address, bound_submitter
from cudal2.bench.timing import Stopwatch
from cudal2.build.host import COMPILERS, compile_shared
from cudal2.errors import EnvironmentProblemError, ToolchainError
from cudal2.launch.driver import LaunchError
from cudal2.launch.kernel import KernelLaunch
from cudal2.launch.plan import ParamSets, plan_launch
from cudal2.problem import Problem
from cudal2.space.config import Sm80MmaConfig

STREAM = 7
CONFIG = Sm80MmaConfig(64, 64, 32, 3, 2, 2, "swizzle", 2, "plain", "wide", 16, 2, "m", 1)
PLAN = plan_launch(CONFIG, Problem(64, 64, 64), 132)
ADDRESSES = np.arange(1, 4, dtype=np.uint64) << np.uint64(12)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if not any(map(shutil.which, COMPILERS)):
        pytest.skip("no C compiler")
    return native.Library(compile_shared(SOURCE, tmp_path_factory.mktemp("build")))


class Driver:
    """``cuLaunchKernelEx`` that notes the function, the address of C in the parameters, and the stream."""

    def __init__(self, monkeypatch, refuses_after=None):
        self.seen = []
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 4)

        def launch(config, function, params, extra):
            if refuses_after is not None and len(self.seen) >= refuses_after:
                return 1
            struct = ctypes.c_uint64.from_address(params).value
            raw = bytes((ctypes.c_char * PLAN.struct.itemsize).from_address(struct))
            self.seen.append((function, int(np.frombuffer(raw, PLAN.struct)[0]["c_ptr"])))
            return 0

        self._kept = prototype(launch)
        monkeypatch.setattr(native, "driver_function", lambda name: address(self._kept))


def our_submitter():
    params = ParamSets(PLAN, ADDRESSES, ADDRESSES, ADDRESSES, lambda spec, addresses: None)
    return bound_submitter(KernelLaunch(0xF00, PLAN, False), params, STREAM)


def test_launches_of_ours_rotate_over_the_parameters_of_the_sets(library, monkeypatch):
    driver = Driver(monkeypatch)
    library.enqueue(our_submitter(), 7, 3, STREAM)
    assert driver.seen == [(0xF00, int(ADDRESSES[index % 3])) for index in range(7)]


def test_what_the_driver_refuses_ends_the_row_by_its_name(library, monkeypatch):
    driver = Driver(monkeypatch, refuses_after=4)
    with pytest.raises(LaunchError, match="CUDA_ERROR_INVALID_VALUE"):
        library.enqueue(our_submitter(), 7, 3, STREAM)
    assert len(driver.seen) == 4


def test_a_library_s_launches_rotate_over_the_operands_and_its_status_is_none_of_the_driver_s(library, monkeypatch):
    seen = []
    u64 = ctypes.c_uint64
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, *[u64] * 14, ctypes.c_size_t, u64)

    def matmul(*arguments):
        seen.append((arguments[5], arguments[3], arguments[8], arguments[15]))
        return 0 if len(seen) < 5 else 15

    kept = prototype(matmul)
    monkeypatch.setattr(native, "loaded_function", lambda stem, name: address(kept))
    operands = np.array([[1, 2, 3], [4, 5, 6]], np.uint64)
    call = BoundCall("cublaslt", "", lambda *_: None, [], operands, MatmulArguments(*range(10)))
    submitter = call.submitter(STREAM)
    with pytest.raises(LaunchError, match=r"CUBLAS_STATUS \(15"):
        library.enqueue(submitter, 9, 2, STREAM)
    assert seen == [(1, 2, 3, STREAM), (4, 5, 6, STREAM), (1, 2, 3, STREAM), (4, 5, 6, STREAM), (1, 2, 3, STREAM)]


def test_a_library_that_is_loaded_twice_is_called_from_python(monkeypatch):
    def twice(stem, name):
        raise EnvironmentProblemError("two of them")

    monkeypatch.setattr(native, "loaded_function", twice)
    call = BoundCall("cublaslt", "", lambda *_: None, [], np.zeros((1, 3), np.uint64), MatmulArguments(*range(10)))
    assert call.submitter(STREAM) is None


class Contestant:
    """Notes who launches it."""

    def __init__(self):
        self.from_python, self.from_c = [], []

        def submit(state, index, operands, stream):
            self.from_c.append(index)
            return 0

        self._submitter = Submitter(Submit(submit), None, np.zeros((2, 3), np.uint64))

    def launch(self, set_index, stream):
        self.from_python.append(set_index)


class Native(Contestant):
    def submitter(self, stream):
        return self._submitter


def enqueue(contestant, launches):
    Stopwatch.enqueue(SimpleNamespace(sets=SimpleNamespace(count=2), stream=STREAM), contestant, launches)


def test_the_same_launches_come_from_c_or_from_python(library, monkeypatch):
    monkeypatch.setattr(native, "library", lambda: library)
    able, python_only = Native(), Contestant()
    for contestant in (able, python_only):
        enqueue(contestant, 5)
    assert (able.from_c, able.from_python) == ([0, 1, 0, 1, 0], [])
    assert (python_only.from_c, python_only.from_python) == ([], [0, 1, 0, 1, 0])


def test_without_a_compiler_python_launches(monkeypatch, caplog):
    def none(source, root):
        raise ToolchainError("no C compiler")

    monkeypatch.setattr(native, "compile_shared", none)
    native.library.cache_clear()
    try:
        with caplog.at_level("INFO"):
            contestants = Native(), Native()
            for contestant in contestants:
                enqueue(contestant, 3)
    finally:
        native.library.cache_clear()
    assert [one.from_python for one in contestants] == [[0, 1, 0]] * 2
    assert caplog.text.count("no C compiler") == 1
