"""The native client, compiled here and driven by a fake driver on a virtual clock: order of calls and arithmetic."""

import ctypes
import dataclasses
import shutil
import threading

import numpy as np
import pytest
from fake_driver import HOST_US, TICK_US, FakeDriver, Recorder

from cudal2.bench import native
from cudal2.bench.native import SOURCE, GemmExArguments, MatmulArguments, address
from cudal2.bench.server.client import Between, NativeClient, _Client, python_submitter
from cudal2.build.host import COMPILERS, c_compiler, compile_shared
from cudal2.errors import EnvironmentProblemError, ToolchainError
from cudal2.launch.driver import LaunchError
from cudal2.launch.kernel import KernelLaunch
from cudal2.launch.plan import MAP_WORDS, plan_launch
from cudal2.launch.tensor_map import DATA_TYPES, modes
from cudal2.problem import Problem
from cudal2.space.config import Sm80MmaConfig, Sm90WsConfig

has_compiler = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="no C compiler here")

#: Between the reading that ends the wait and the one that tells the completion: the submission, its end, the service.
LATENCY_US = HOST_US + TICK_US + 10.0 + TICK_US


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if not any(map(shutil.which, COMPILERS)):
        pytest.skip("no C compiler here")
    return compile_shared(SOURCE, tmp_path_factory.mktemp("build"))


def serve(library, arrivals_us, sets=4, between=None, driver=None, **recorder):
    driver = driver or FakeDriver()
    client = driver.client(library)
    client.surround(between or Between())
    served = client.serve(Recorder(driver, **recorder).submitter, np.array(arrivals_us, float), sets)
    return driver, served


def test_requests_are_submitted_at_their_arrivals_and_latency_starts_there(library):
    arrivals = [100.0, 350.0, 700.0]
    driver, served = serve(library, arrivals)
    begin_us = 1_000.0 + TICK_US
    submitted = [call[-1] - begin_us for call in driver.named("submit")]
    assert submitted == pytest.approx(arrivals, abs=TICK_US)
    assert served.latency_us == pytest.approx([LATENCY_US] * 3, abs=2 * TICK_US)
    assert served.host_us == pytest.approx([HOST_US + TICK_US] * 3)
    assert np.all(served.queue_us < TICK_US) and served.unflushed == 0


def test_a_late_request_queues_and_its_latency_does_not_hold_the_wait(library):
    _, served = serve(library, [100.0, 101.0, 102.0, 500.0])
    assert served.latency_us == pytest.approx([LATENCY_US] * 4, abs=2 * TICK_US)
    waited = LATENCY_US + TICK_US
    assert served.queue_us == pytest.approx([0.0, waited - 1.0, 2 * (waited - 1.0), 0.0], abs=3 * TICK_US)


def test_addresses_change_from_request_to_request(library):
    driver, _ = serve(library, [10.0 * index for index in range(1, 8)], sets=3)
    submitted = driver.named("submit")
    assert [call[1] for call in submitted] == [0, 1, 2, 0, 1, 2, 0]
    assert [call[2] for call in submitted[:3]] == [(0, 256, 512), (768, 1024, 1280), (1536, 1792, 2048)]
    assert {call[3] for call in submitted} == {7}


def test_each_completion_is_a_new_value_of_the_flag_after_the_launch(library):
    driver, _ = serve(library, [10.0, 50.0])
    assert [call[0] for call in driver.calls] == ["submit", "write", "submit", "write"]
    assert driver.named("write") == [("write", 7, "done", 1), ("write", 7, "done", 2)]


def test_the_flush_runs_once_between_requests_where_there_is_room(library):
    between = Between(flush=99, flush_us=50.0)
    driver, served = serve(library, [200.0, 230.0, 600.0], between=between)
    kinds = [call[:3] for call in driver.named("graph", "submit")]
    assert [kind[0] for kind in kinds] == ["graph", "submit", "submit", "graph", "submit"]
    assert all(call[1:3] == (99, 7) for call in driver.named("graph"))
    assert served.unflushed == 1, "the second came too soon after the first"


def test_a_flush_that_has_no_end_before_the_arrival_is_counted(library):
    driver = FakeDriver()
    driver.service_us = 0.0
    driver.status["write"] = 0
    client = driver.client(library)
    client.surround(Between(flush=99, flush_us=5.0))
    real_set = driver._set
    # The flush's own flag (value 1) comes only with the request's.
    driver._set = lambda pointer, value: real_set(pointer, value) if value != 1 else None
    served = client.serve(Recorder(driver).submitter, np.array([100.0]), 1)
    assert served.unflushed == 1


def test_the_load_is_kept_in_flight_and_keeps_away_from_arrivals(library):
    driver = FakeDriver()
    real_set, done = driver._set, []

    def slow_load(pointer, value):
        """Each graph of the load ends when two more are waiting."""
        if driver._flag(pointer) != "load_done":
            return real_set(pointer, value)
        done.append(value)
        return real_set(pointer, value - 1) if value > 1 else None

    driver._set = slow_load
    between = Between(load=55, load_depth=3, load_guard_us=20.0)
    driver, served = serve(library, [300.0, 310.0], between=between, driver=driver)
    loads = driver.named("graph")
    assert loads and all(call[1:3] == (55, 8) for call in loads)
    arrival_us = 1_000.0 + TICK_US + 300.0
    assert all(call[-1] < arrival_us - 20.0 + TICK_US for call in loads)
    assert all(call[1] == 8 for call in driver.named("write") if call[2] == "load_done")
    assert served.unflushed == 0


def test_no_more_load_than_asked_is_in_flight(library):
    driver = FakeDriver()
    real_set = driver._set
    driver._set = lambda pointer, value: None if driver._flag(pointer) == "load_done" else real_set(pointer, value)
    driver, _ = serve(library, [500.0], between=Between(load=55, load_depth=3, load_guard_us=20.0), driver=driver)
    assert len(driver.named("graph")) == 3


def test_device_time_is_taken_behind_a_shut_gate(library):
    driver = FakeDriver()
    client = driver.client(library)
    times = client.device_us(Recorder(driver).submitter, np.array([50.0, 200.0]), 2)
    assert times == pytest.approx([4.0, 4.0])
    assert [call[0] for call in driver.calls] == ["wait", "record", "submit", "record", "write", "elapsed"] * 2
    for value, wait in enumerate(driver.named("wait"), start=1):
        assert wait[:4] == ("wait", 7, "gate", value)
        assert wait[4] == value - 1, "the gate is still at the value before"
    assert [call[1:3] for call in driver.named("record")] == [(70, 7), (71, 7)] * 2
    assert [call[1:] for call in driver.named("elapsed")] == [(70, 71, 1), (70, 71, 2)], (
        "opened before the times are read"
    )


def test_a_refused_launch_behind_the_gate_opens_it(library):
    driver = FakeDriver()
    with pytest.raises(LaunchError, match="submission"):
        driver.client(library).device_us(Recorder(driver, fails_at=0).submitter, np.array([5.0]), 1)
    assert driver.flags[32] == 1


@pytest.mark.parametrize(
    ("name", "says"), [("write", "cuStreamWriteValue32"), ("graph", "cuGraphLaunch"), ("query", "the stream")]
)
def test_a_status_that_is_not_0_names_the_call(library, name, says):
    driver = FakeDriver()
    driver.status[name] = 719
    if name == "query":
        driver._set = lambda pointer, value: None  # a stream that failed never writes
    with pytest.raises(LaunchError, match=f"{says}.*LAUNCH_FAILED.*719"):
        serve(library, [100.0], between=Between(flush=9, flush_us=1.0) if name == "graph" else None, driver=driver)


def test_a_refused_submission_ends_the_block(library):
    driver = FakeDriver()
    with pytest.raises(LaunchError) as refused:
        serve(library, [10.0, 20.0, 30.0], driver=driver, fails_at=1)
    assert refused.value.code == 13 and len(driver.named("submit")) == 2


def test_what_python_raises_inside_a_request_comes_out_again(library):
    driver = FakeDriver()
    seen = []

    def launch(index):
        seen.append((index, threading.get_ident()))
        if index == 1:
            raise RuntimeError("CUDA error: out of patience")

    submitter = python_submitter(launch, (RuntimeError,), np.zeros((3, 3), np.uint64))
    client = driver.client(library)
    assert len(client.serve(submitter, np.array([5.0]), 3).latency_us) == 1
    with pytest.raises(RuntimeError, match="out of patience"):
        client.serve(submitter, np.array([5.0, 10.0]), 3)
    assert seen == [(0, threading.get_ident())] * 2 + [(1, threading.get_ident())]


def test_the_real_clock_waits_for_real(library):
    driver = FakeDriver(service_us=0.0)
    functions = {name: at for name, at in driver.functions.items() if name != "now"}
    client = NativeClient(library, functions, 7, 8, (70, 71), driver.flags.ctypes.data)
    served = client.serve(Recorder(driver).submitter, np.array([200.0, 2_000.0]), 1)
    assert np.all(served.latency_us > 0) and np.all(served.queue_us >= 0)


def called(prototype, seen):
    """A library function that notes its arguments."""

    def function(*arguments):
        seen.append(arguments)
        return 0

    return prototype(function)


def submit_once(library, submitter):
    FakeDriver().client(library).submit(submitter, 0)


OPERANDS = np.array([[0xA00, 0xB00, 0xC00]], np.uint64)


def test_cublaslt_gets_its_arguments_in_the_library_s_order(library, monkeypatch):
    seen = []
    u64, size = ctypes.c_uint64, ctypes.c_size_t
    function = called(ctypes.CFUNCTYPE(ctypes.c_int, *[u64] * 14, size, u64), seen)
    monkeypatch.setattr(native, "loaded_function", lambda stem, name: address(function))
    arguments = MatmulArguments(1, 2, 3, 4, 5, 6, 7, 8, 9, 1 << 26)
    submit_once(library, native.library_submitter(arguments, OPERANDS))
    # handle, desc, alpha, A, Adesc, B, Bdesc, beta, C, Cdesc, D, Ddesc, algo, workspace, bytes, stream
    assert seen == [(1, 2, 3, 0xB00, 4, 0xA00, 5, 6, 0xC00, 7, 0xC00, 7, 8, 9, 1 << 26, 7)]


def test_cublas_gets_its_arguments_in_the_library_s_order(library, monkeypatch):
    seen = []
    i, p = ctypes.c_int, ctypes.c_uint64
    prototype = ctypes.CFUNCTYPE(i, p, *[i] * 5, p, p, i, i, p, i, i, p, p, i, i, i, i)
    function = called(prototype, seen)
    monkeypatch.setattr(native, "loaded_function", lambda stem, name: address(function))
    arguments = GemmExArguments(
        handle=1, alpha=2, beta=3, op_first=1, m=64, n=32, k=128, ld_first=127, ld_second=129, ld_out=65, element=2,
        compute=68, algorithm=-1,
    )  # fmt: skip
    submit_once(library, native.library_submitter(arguments, OPERANDS))
    assert seen == [(1, 1, 0, 64, 32, 128, 2, 0xB00, 2, 127, 0xA00, 2, 129, 3, 0xC00, 2, 65, 68, -1)]


WS = Sm90WsConfig(128, 128, 64, 4, "coop", 2, 1, 1, 1, "tma", 1, "m", 1, False)
MMA = Sm80MmaConfig(64, 64, 32, 3, 2, 2, "swizzle", 2, "plain", "wide", 16, 2, "m", 1)


@pytest.mark.parametrize(
    ("config", "maps"),
    [(WS, 3), (dataclasses.replace(WS, epilogue="direct"), 2), (MMA, 0)],
    ids=["tma", "direct", "by_address"],
)
def test_our_kernel_gets_its_operands_where_the_parameters_are(library, monkeypatch, config, maps):
    encoded, launched = [], []
    p, u32 = ctypes.c_uint64, ctypes.c_uint32

    def encode(at, dtype, rank, pointer, sizes, strides, box, dense, *chosen):
        assert at % 64 == 0
        encoded.append((dtype, rank, pointer, sizes[:2], strides[:1], box[:2], dense[:2], chosen))
        (u64 * MAP_WORDS).from_address(at)[:] = [pointer] * MAP_WORDS
        return 0

    def launch(config, function, params, extra):
        struct = ctypes.c_uint64.from_address(params).value
        launched.append(
            (
                ctypes.c_uint32.from_address(config).value,
                function,
                bytes((ctypes.c_char * plan.struct.itemsize).from_address(struct)),
                extra,
            )
        )
        return 0

    u64 = ctypes.c_uint64
    i, at64, at32 = ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint32)
    fakes = {
        "cuTensorMapEncodeTiled": ctypes.CFUNCTYPE(i, p, i, u32, p, at64, at64, at32, at32, i, i, i, i)(encode),
        "cuLaunchKernelEx": ctypes.CFUNCTYPE(i, p, p, p, p)(launch),
    }
    monkeypatch.setattr(native, "driver_function", lambda name: address(fakes[name]))
    problem = Problem(256, 512, 128)
    plan = plan_launch(config, problem, 132)
    submit_once(library, native.kernel_submitter(KernelLaunch(0xF00, plan, False), 7, OPERANDS))
    specs = [spec for spec in (plan.a, plan.b, plan.c) if spec is not None]
    assert len(specs) == maps
    assert encoded == [
        (DATA_TYPES[spec.dtype], 2, pointer, [spec.columns, spec.rows], [spec.row_bytes],
         [spec.box_columns, spec.box_rows], [1, 1], modes(spec))
        for spec, pointer in zip(specs, OPERANDS[0].tolist(), strict=False)
    ]  # fmt: skip
    ((grid, function, raw, extra),) = launched
    params = np.frombuffer(raw, plan.struct)[0]
    assert (grid, function, extra) == (plan.grid, 0xF00, 0)
    assert (params["m"], params["n"], params["k"], params["ldc"]) == (256, 512, 128, 512)
    fields = ("a", "b", "c", "c_ptr") if maps else ("a_ptr", "b_ptr", "c_ptr")
    found = [int(params[name][0] if name in "abc" else params[name]) for name in fields]
    assert found == ([0xA00, 0xB00, 0xC00 if maps == 3 else 0, 0xC00] if maps else [0xA00, 0xB00, 0xC00])


def test_one_loaded_library_of_a_name_is_found_and_none_is_one_line():
    assert native.loaded_function("libc.so", "getpid") == address(ctypes.CDLL(None).getpid)
    with pytest.raises(EnvironmentProblemError, match=r"libnothing\.so must be loaded, found none"):
        native.loaded_function("libnothing.so", "f")


def test_a_library_that_cannot_be_loaded_is_one_line(tmp_path):
    broken = tmp_path / "client.so"
    broken.write_text("not a library")
    with pytest.raises(EnvironmentProblemError, match="CUDAL2_CACHE_DIR"):
        FakeDriver().client(broken)


@has_compiler
def test_the_client_is_compiled_once(tmp_path, monkeypatch):
    first = compile_shared(SOURCE, tmp_path)
    stamp = first.stat().st_mtime_ns
    assert compile_shared(SOURCE, tmp_path) == first and first.stat().st_mtime_ns == stamp
    changed = tmp_path / SOURCE.name
    changed.write_text(SOURCE.read_text() + "\nint another;\n")
    assert compile_shared(changed, tmp_path) != first


@has_compiler
def test_the_client_compiles_without_a_warning(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", f"{c_compiler()[0]} -Wall -Wextra -Werror")
    assert compile_shared(SOURCE, tmp_path).is_file()


@has_compiler
def test_a_source_that_is_refused_is_one_line(tmp_path):
    source = tmp_path / "bad.c"
    source.write_text("int f( {\n")
    with pytest.raises(ToolchainError, match=r"bad\.c.* failed: .*error") as refused:
        compile_shared(source, tmp_path)
    assert "\n" not in str(refused.value) and not list((tmp_path / "host").glob("*"))


@pytest.mark.parametrize("cc", ["", "/nowhere/cc"])
def test_no_compiler_is_one_line(tmp_path, monkeypatch, cc):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", cc)
    with pytest.raises(ToolchainError, match=r"no C compiler .*install one"):
        compile_shared(SOURCE, tmp_path)


def test_python_s_structures_are_as_large_as_c_s(library):
    mirrors = (_Client, native._Contestant, native._Kernel, native._Matmul, native._Gemm, native._Bound)
    sizes = (ctypes.c_uint32 * len(mirrors)).in_dll(ctypes.CDLL(str(library)), "cudal2_sizes")
    assert [ctypes.sizeof(mirror) for mirror in mirrors] == list(sizes)
