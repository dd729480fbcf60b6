"""hgemm without a GPU: which operands are served, what a table decides, and what falls back says why, once."""

import contextlib
import functools
import gc
import logging
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fabricated_recording import FINGERPRINT

from cudal2.errors import EnvironmentProblemError, NothingValidError, NotLoadedError, ToolchainError, UsageError
from cudal2.launch.driver import LaunchError
from cudal2.launch.plan import plan_launch
from cudal2.problem import Problem
from cudal2.runtime import hgemm, kernels, op, reset, stats, warmup
from cudal2.runtime.kernels import DeviceKernels, Route
from cudal2.space.config import Sm90WsConfig
from cudal2.table import Entry, Header, KernelTable

CONFIG = Sm90WsConfig(64, 64, 64, 2, "coop", 1, 1, 1, 1, "tma", 1, "m", 1, False)
HEADER = Header.from_fingerprint(FINGERPRINT, "fp32", "tn")
PROBLEM = Problem(128, 256, 512)
TOO_LARGE_TO_COPY = Problem(20000, 20000, 8001)


@pytest.fixture(autouse=True)
def fresh():
    reset()
    kernels._params.cache_clear()
    kernels._map.cache_clear()


@pytest.fixture
def table():
    return KernelTable(
        HEADER,
        [
            Entry(128, 256, 512, CONFIG, None, 4.0, 5.0, "final", pdl=True),
            Entry(512, 512, 512, None, "cublaslt_auto", 3.0, 3.0, "final", reason="ours took 4 us"),
        ],
    )


# What the table decides


def device_kernels(load):
    return DeviceKernels(HEADER.device, load)


def test_the_table_s_kernel_is_loaded_once(table):
    loads = []
    loaded = device_kernels(
        lambda config, problem: loads.append((config, problem)) or SimpleNamespace(plan=plan_launch)
    )
    routes = [loaded.route(PROBLEM, table) for _ in range(3)]
    assert loads == [(CONFIG, PROBLEM)]
    assert all((route.reason, route.config, route.pdl) == ("", CONFIG, True) for route in routes)
    assert routes[0].kernel is routes[2].kernel


def test_a_shape_nobody_measured_says_what_would_help(table):
    route = device_kernels(None).route(Problem(8192, 8192, 8192), table)
    assert "no measured shape is within 4x" in route.reason
    assert "python -m cudal2.train --arch sm90 --shapes 8192_8192_8192" in route.reason


def test_a_shape_no_tensor_map_can_describe_gets_a_kernel_that_copies_first_or_loads_by_address(table):
    loads = []
    loaded = device_kernels(lambda config, problem: loads.append(config) or SimpleNamespace(plan=plan_launch))
    problem = Problem(1230, 4560, 7891)
    measured = loaded.route(problem, table)
    assert measured.kernel is None and not loads, "nobody is given a kernel unasked that may be slower than the library"
    assert measured.reason.endswith("; strict=True runs an untuned one")
    copied = loaded.route(problem, table, unmeasured=True)
    assert (copied.reason, copied.config.family, copied.config.padded, copied.pdl) == ("", "sm90_ws", True, False)
    route = loaded.route(TOO_LARGE_TO_COPY, table, unmeasured=True)
    assert (route.reason, route.config.family, route.config.copy_bytes, route.pdl) == ("", "sm80_mma", 2, False)
    assert loads == [copied.config, route.config] and route.plan.a is None
    struct = route.packed(1024, 2048, 4096).structs[0]
    assert (struct["a_ptr"], struct["b_ptr"], struct["c_ptr"], struct["k"]) == (1024, 2048, 4096, 8001)


def test_a_shape_where_the_library_won_is_left_to_it(table):
    route = device_kernels(None).route(Problem(512, 512, 512), table)
    assert route.expected
    assert route.reason == "the table prefers cublaslt_auto: ours took 4 us"


def test_a_kernel_that_cannot_be_built_is_a_reason_and_tried_once(table):
    calls = []

    def fail(config, problem):
        calls.append(config)
        raise ToolchainError("no NVRTC here")

    loaded = device_kernels(fail)
    assert loaded.route(PROBLEM, table).reason == f"{CONFIG.name} cannot be loaded: no NVRTC here"
    loaded.route(PROBLEM, table)
    assert len(calls) == 1


def test_a_bug_in_loading_is_not_hidden(table):
    with pytest.raises(ZeroDivisionError):
        device_kernels(lambda config, problem: 1 / 0).route(PROBLEM, table)


def test_nothing_is_loaded_during_a_capture(table):
    loaded = device_kernels(lambda config, problem: SimpleNamespace(plan=plan_launch))
    with pytest.raises(NotLoadedError, match=r"warmup\(\['128_256_512'\]\) before the capture"):
        loaded.route(PROBLEM, table, capturing=True)
    loaded.route(PROBLEM, table)
    assert loaded.route(PROBLEM, table, capturing=True).reason == ""
    assert loaded.route(Problem(512, 512, 512), table, capturing=True).expected


def test_threads_share_one_load(table):
    loads = []

    def slow(config, problem):
        loads.append(config)
        time.sleep(0.05)
        return SimpleNamespace(plan=plan_launch)

    loaded, found = device_kernels(slow), []
    threads = [threading.Thread(target=lambda: found.append(loaded.route(PROBLEM, table).kernel)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1
    assert len(set(map(id, found))) == 1


# A launch


class Launched:
    """Stands in for the driver: what was enqueued, and where."""

    def __init__(self):
        self.calls = []

    def route(self, problem=PROBLEM, config=CONFIG):
        return Route(problem, kernel=SimpleNamespace(function=None, plan=plan_launch), config=config, sm_count=132)

    def launch(self, owner, params, stream):
        self.calls.append((owner, params, stream))


@pytest.fixture
def launched(monkeypatch):
    recorder = Launched()

    class FakeLaunch:
        made = 0

        def __init__(self, function, plan, pdl):
            self.plan = plan
            FakeLaunch.made += 1
            self.workspace = FakeLaunch.made << 30 if plan.workspace_bytes else 0

        def launch(self, params, stream):
            recorder.launch(self, params, stream)

    monkeypatch.setattr(kernels, "KernelLaunch", FakeLaunch)
    monkeypatch.setattr(kernels, "encode", lambda spec, address: np.full(16, address, np.uint64))
    return recorder


def test_a_launch_belongs_to_one_stream_and_parameters_to_their_addresses(launched):
    route = launched.route()
    route.launch(1024, 2048, 4096, stream=7)
    route.launch(1024, 2048, 4096, stream=7)
    route.launch(1024, 2048, 4096, stream=8)
    route.launch(1024, 2048, 8192, stream=8)
    owners = [owner for owner, _, _ in launched.calls]
    assert owners[0] is owners[1] is not owners[2]
    assert owners[2] is owners[3]
    params = [address for _, address, _ in launched.calls]
    assert params[0] == params[1] == params[2] != params[3]


SPLIT = replace(CONFIG, split_k=2, split_via="workspace", epilogue="direct", persistent=False)


@pytest.fixture
def graphs(monkeypatch):
    """What is captured: a list of streams, and one thing to set for each graph that is gone."""
    found = SimpleNamespace(capturing=set(), gone=[], refused=False)

    class Watch:
        def __init__(self, stream):
            if found.refused:
                raise LaunchError(801, "CUDA_ERROR_NOT_SUPPORTED", "cuUserObjectCreate")
            self.event = threading.Event()
            found.gone.append(self.event)

        def over(self):
            return self.event.is_set()

    monkeypatch.setattr(kernels, "is_capturing", lambda stream: stream in found.capturing)
    monkeypatch.setattr(kernels, "GraphWatch", Watch)
    monkeypatch.setattr(kernels, "_in_graphs", [])
    return found


def test_a_captured_call_s_workspace_lives_as_long_as_its_graph_and_dead_ones_do_not_pile_up(launched, graphs):
    route = launched.route(config=SPLIT)
    graphs.capturing.add(7)
    for number in range(20):
        route.launch(1024, 2048, 4096, 7)
        if number % 2:
            graphs.gone[-1].set()
        assert len(kernels._in_graphs) == number // 2 + 1 + (number % 2)
    alive = [launch for launch, watch in kernels._in_graphs if not watch.over()]
    held = [weakref.ref(launch) for launch in alive]
    launched.calls.clear()
    del route, alive
    reset()
    kernels._params.cache_clear()
    gc.collect()
    assert all(one() is not None for one in held), "graphs may be replayed whatever became of the route"
    for event in graphs.gone:
        event.set()
    launched.route(config=SPLIT).launch(1024, 2048, 4096, 7)
    launched.calls.clear()
    gc.collect()
    assert len(kernels._in_graphs) == 1 and all(one() is None for one in held)


def test_where_nothing_says_that_a_graph_is_gone_its_workspace_stays(launched, graphs, caplog):
    graphs.capturing.add(7)
    graphs.refused = True
    route = launched.route(config=SPLIT)
    for _ in range(2):
        route.launch(1024, 2048, 4096, 7)
    assert len(kernels._in_graphs) == len(launched.calls) == 2
    assert "keeps a workspace of" in caplog.text and "CUDA_ERROR_NOT_SUPPORTED" in caplog.text


def test_streams_and_captured_calls_have_workspaces_of_their_own(launched, graphs):
    capturing = graphs.capturing
    route = launched.route(config=SPLIT)
    for stream in (7, 7, 8):
        route.launch(1024, 2048, 4096, stream)
    capturing |= {7, 9}
    for stream in (7, 7, 9):
        route.launch(1024, 2048, 4096, stream)
    capturing.clear()
    for stream in (7, 9):
        route.launch(1024, 2048, 4096, stream)
    owners = [owner for owner, _, _ in launched.calls]
    assert owners[0] is owners[1] is owners[6]
    assert len(set(map(id, owners))) == 6, "two streams, three captured calls, and a stream after its capture"
    assert len({address for _, address, _ in launched.calls}) == 6
    packed = route.packed(1024, 2048, 4096, 1 << 30).structs[0]
    assert (packed["tickets"], packed["partials"]) == (1 << 30, (1 << 30) + route.plan.ticket_bytes)


def test_parameters_hold_the_addresses_given(launched):
    packed = launched.route().packed(1024, 2048, 4096)
    struct = packed.structs[0]
    assert (struct["a"][0], struct["b"][0], struct["c"][0], struct["c_ptr"]) == (1024, 2048, 4096, 4096)
    assert (struct["m"], struct["n"], struct["k"]) == (128, 256, 512)


def test_streams_that_come_and_go_do_not_pile_up(launched):
    route = launched.route()
    for stream in range(200):
        route.launch(1024, 2048, 4096, stream)
    assert len(route._launches) <= 64


@pytest.fixture
def served(launched, monkeypatch):
    """hgemm on CPU tensors as if they lay on a GPU whose table serves them."""
    route = launched.route(Problem(16, 32, 64))
    monkeypatch.setattr(op, "_route", lambda *key: route)
    monkeypatch.setattr(op, "_on", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: SimpleNamespace(cuda_stream=5))
    return launched


def matrices(m=16, n=32, k=64):
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(shape, generator=generator).half() for shape in ((m, k), (k, n)))


def test_a_served_call_launches_on_the_current_stream_and_into_out(served):
    a, b = matrices()
    out = torch.empty(16, 32, dtype=torch.float16)
    assert hgemm(a, b, out=out) is out
    fresh = hgemm(a, b)
    assert fresh.shape == (16, 32)
    assert [stream for _, _, stream in served.calls] == [5, 5]
    assert stats() == {CONFIG.name: 2}


def test_where_workspaces_would_fill_the_gpu_matmul_answers_until_they_are_given_back(
    launched, graphs, monkeypatch, caplog
):
    monkeypatch.setattr(op, "_on", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: SimpleNamespace(cuda_stream=5))
    routes = [launched.route(Problem(16, 32, 512), SPLIT) for _ in range(3)]
    size_bytes = routes[0].plan.workspace_bytes
    monkeypatch.setattr(kernels, "_MAX_WORKSPACE_BYTES", kernels._held_bytes + 2 * size_bytes)
    before = kernels._held_bytes
    asked = functools.lru_cache(lambda *key: routes[0])  # reset() clears it
    monkeypatch.setattr(op, "_route", asked)
    a, b = matrices(k=512)
    for launches in (1, 2, 2):  # what is launched computes nothing here
        product = hgemm(a, b)
        assert len(launched.calls) == launches
        asked.cache_clear()
        routes.append(routes.pop(0))
    assert torch.equal(product, a @ b) and "gives those back" in caplog.text
    with pytest.raises(NothingValidError, match="workspace"):
        routes.insert(0, routes.pop())
        hgemm(a, b, strict=True)
    launched.calls.clear()
    routes.clear()
    op.reset()
    gc.collect()
    assert kernels._held_bytes == before


def test_no_memory_for_a_workspace_is_a_reason_for_matmul(launched, graphs, monkeypatch):
    def refuse(*arguments):
        raise LaunchError(2, "CUDA_ERROR_OUT_OF_MEMORY", "a workspace")

    monkeypatch.setattr(kernels, "KernelLaunch", refuse)
    before = kernels._held_bytes
    with pytest.raises(kernels.NoWorkspaceError, match="OUT_OF_MEMORY"):
        launched.route(Problem(16, 32, 512), SPLIT).launch(16, 32, 48, 5)
    assert kernels._held_bytes == before


def test_an_unaligned_view_is_left_to_matmul(served, caplog):
    a, b = matrices()
    shifted = torch.empty(16 * 64 + 1, dtype=torch.float16)[1:].view(16, 64).copy_(a)
    torch.testing.assert_close(hgemm(shifted, b), a @ b)
    assert not served.calls
    assert "a does not start on a 16-byte boundary" in caplog.text


def test_an_out_that_overlaps_an_operand_is_left_to_matmul(served, monkeypatch):
    monkeypatch.setattr(op, "_matmul", lambda a, b, out, reason, strict, quiet=False: reason)
    square = torch.zeros(64, 64, dtype=torch.float16)
    assert hgemm(square[:16], square[:, :32].contiguous(), out=square[8:16].view(16, 32)) == "out overlaps an operand"
    assert not served.calls


# Falling back


def test_without_a_gpu_matmul_answers_and_the_reason_is_logged_once(caplog):
    a, b = matrices()
    for _ in range(3):
        torch.testing.assert_close(hgemm(a, b), torch.matmul(a, b), rtol=0, atol=0)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["hgemm calls torch.matmul: a is on cpu; CUDA tensors are served"]
    assert stats() == {"torch.matmul: a is on cpu; CUDA tensors are served": 3}


def test_out_is_filled_by_the_fallback_too():
    a, b = matrices()
    out = torch.empty(16, 32, dtype=torch.float16)
    assert hgemm(a, b, out=out) is out
    torch.testing.assert_close(out, a @ b)


@pytest.mark.parametrize(
    "view", [lambda t: t, lambda t: t.t(), lambda t: t.view(64, 64)], ids=["same", "transposed", "view"]
)
def test_an_out_that_is_an_operand_gets_the_right_answer_from_the_fallback(view):
    torch.manual_seed(0)
    for which in (0, 1):
        operands = [torch.randn(64, 64).to(torch.float16) for _ in range(2)]
        wanted = torch.matmul(*operands)
        out = view(operands[which])
        assert hgemm(*operands, out=out) is out
        assert torch.equal(out, wanted)


def test_strict_raises_instead():
    a, b = matrices()
    with pytest.raises(NothingValidError, match="hgemm: a is on cpu"):
        hgemm(a, b, strict=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes_and_batches_give_what_matmul_gives(dtype):
    a, b = (tensor.to(dtype) for tensor in matrices())
    torch.testing.assert_close(hgemm(a, b), a @ b, rtol=0, atol=0)
    batch = a.expand(3, 16, 64)
    torch.testing.assert_close(hgemm(batch, b), batch @ b, rtol=0, atol=0)


def test_sparse_tensors_are_matmul_s_business():
    a, b = (tensor.float() for tensor in matrices())
    torch.testing.assert_close(hgemm(a.to_sparse(), b), a @ b)


def test_the_log_does_not_fill_up(caplog):
    for index in range(600):
        op._say_once(f"shape {index}")
    assert len(caplog.records) == 500


def test_a_table_of_older_kernels_or_another_gpu_says_so_once(tmp_path, caplog):
    shipped = KernelTable.load()
    older = replace(shipped.header, soft={**shipped.header.soft, "generator_version": "0123456789abcdef"})
    KernelTable(older, shipped.entries).save(tmp_path / "older.json")
    for _ in range(2):
        assert len(op._table_file(tmp_path / "older.json")) == len(shipped)
    (said,) = [text for text in caplog.messages if "generator_version" in text]
    assert "older.json: generator_version: measured with 0123456789abcdef, here" in said and "measure anew" in said
    op._table_file(shipped.path.with_name("a100_fp32_tn.json"))
    assert sum("tuned on NVIDIA H200, nothing was measured" in text for text in caplog.messages) == 1


def test_a_choice_of_the_table_is_not_worth_a_warning(monkeypatch, caplog):
    route = Route(PROBLEM, "the table prefers cublaslt_auto: ours took 4 us", expected=True)
    monkeypatch.setattr(op, "_route", lambda *key: route)
    a, b = matrices()
    with caplog.at_level(logging.DEBUG):
        hgemm(a, b)
    assert not caplog.records
    assert len(stats()) == 1


# torch.compile and autograd


def test_gradients_are_those_of_matmul():
    a, b = (tensor.requires_grad_() for tensor in matrices())
    hgemm(a, b).sum().backward()
    mine = (a.grad, b.grad)
    a.grad = b.grad = None
    torch.matmul(a, b).sum().backward()
    torch.testing.assert_close(mine, (a.grad, b.grad))


def test_out_refuses_gradients():
    a, b = matrices()
    with pytest.raises(UsageError, match="gradients"):
        hgemm(a.requires_grad_(), b, out=torch.empty(16, 32, dtype=torch.float16))


def test_the_operator_passes_opcheck():
    a, b = matrices()
    torch.library.opcheck(torch.ops.cudal2.hgemm, (a, b, "fp32", False))
    torch.library.opcheck(torch.ops.cudal2.hgemm, (a.requires_grad_(), b.requires_grad_(), "fp32", False))
    out = torch.empty(16, 32, dtype=torch.float16)
    torch.library.opcheck(torch.ops.cudal2.hgemm_out, (a.detach(), b.detach(), out, "fp32", False))


def test_the_fake_has_the_shape_and_refuses_mismatches():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        a = torch.empty(16, 64, dtype=torch.float16, device="cuda")
        b = torch.empty(32, 64, dtype=torch.float16, device="cuda").t()
        result = torch.ops.cudal2.hgemm(a, b, "fp32", False)
        assert (result.shape, result.dtype, result.device.type, result.is_contiguous()) == (
            (16, 32),
            torch.float16,
            "cuda",
            True,
        )
        assert hgemm(a, b).shape == (16, 32)
        with pytest.raises(RuntimeError, match="hgemm: a is"):
            torch.ops.cudal2.hgemm(a, a, "fp32", False)


def test_compile_keeps_it_in_one_graph():
    a, b = matrices()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(lambda a, b: hgemm(a, b) + 1, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(a, b), a @ b + 1)
    assert len(graphs) == 1
    assert "cudal2.hgemm" in graphs[0].code


def test_compile_takes_only_the_default_table(table):
    a, b = matrices()
    with pytest.raises(UsageError, match="CUDAL2_TABLE_PATH"):
        hgemm(a.requires_grad_(), b, table=table)


# Importing


def test_a_missing_library_is_named_with_its_remedy():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from cudal2.errors import EnvironmentProblemError\n"
        "try:\n    from cudal2 import hgemm\nexcept EnvironmentProblemError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "hgemm needs 'torch': pip install 'cudal2[cuda]'\n"


def test_the_runtime_never_imports_rl():
    code = "import sys, cudal2.runtime; print([m for m in sys.modules if m.startswith(('cudal2.rl', 'gymnasium'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("bad", [([[1.0]], "a is a list"), (None, "a is a NoneType")])
def test_what_is_no_tensor_is_named(bad):
    with pytest.raises(UsageError, match=bad[1]):
        hgemm(bad[0], torch.zeros(1, 1))


def test_an_out_of_another_shape_is_refused_on_any_device():
    out = torch.zeros(3, 3, dtype=torch.float16)
    with pytest.raises(UsageError, match="out is 3 x 3, the result is 2 x 5"):
        hgemm(torch.zeros(2, 4, dtype=torch.float16), torch.zeros(4, 5, dtype=torch.float16), out)
    assert out.shape == (3, 3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_warmup_without_a_gpu_says_so():
    with pytest.raises(EnvironmentProblemError, match="no CUDA GPU"):
        warmup(["64_64_64"])
