"""hgemm on a real GPU: right for every stride it serves, on any stream and thread, in graphs, without hidden work."""

import threading
import time
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from cudal2.errors import NotLoadedError, TableError  # noqa: E402
from cudal2.problem import Problem  # noqa: E402
from cudal2.runtime import hgemm, kernels, op, reset, stats, warmup  # noqa: E402
from cudal2.space.config import Sm90WsConfig  # noqa: E402
from cudal2.table import Device, Entry, Header, KernelTable  # noqa: E402

pytestmark = pytest.mark.gpu

PLAIN = Sm90WsConfig(128, 128, 64, 4, "coop", 2, 1, 1, 1, "tma", 1, "m", 1, False)
DIRECT = Sm90WsConfig(64, 64, 64, 4, "coop", 1, 1, 1, 1, "direct", 1, "m", 1, False)
SPLIT = Sm90WsConfig(64, 64, 64, 4, "coop", 1, 1, 1, 4, "direct", 1, "m", 1, False)
WORKSPACE = Sm90WsConfig(64, 64, 64, 4, "coop", 1, 2, 1, 8, "direct", 1, "m", 1, False, split_via="workspace")
KEEPS_A = Sm90WsConfig(
    128, 128, 64, 6, "pingpong", 2, 2, 1, 1, "tma", 1, "m", 1, True, store_hint="evict_first", resident_a=2
)
ENTRIES = {
    "512_512_512": PLAIN,
    "1000_520_712": replace(DIRECT, l2_promotion=128),
    "64_64_2048": SPLIT,
    "1_512_512": DIRECT,
    "256_512_1024": PLAIN,
    "256_512_4096": WORKSPACE,
    "2000_2056_120": KEEPS_A,
}


@pytest.fixture(scope="module")
def device():
    properties = torch.cuda.get_device_properties(0)
    memory_gib = properties.total_memory / 2**30
    return Device.from_memory((properties.major, properties.minor), properties.multi_processor_count, memory_gib)


@pytest.fixture(scope="module", params=["tn", "nn"])
def layout(request):
    return request.param


@pytest.fixture(scope="module")
def table(device, layout):
    sizes = {mnk: Problem.parse(mnk) for mnk in ENTRIES}
    entries = [
        Entry(problem.m, problem.n, problem.k, ENTRIES[mnk], None, 1.0, None, "searched", pdl=mnk == "512_512_512")
        for mnk, problem in sizes.items()
    ]
    return KernelTable(Header(device, "fp32", layout, {}), entries)


@pytest.fixture(autouse=True)
def fresh():
    reset()


def operands(mnk, layout, seed=0):
    problem = Problem.parse(mnk)
    generator = torch.Generator("cuda").manual_seed(seed)
    draw = {"device": "cuda", "generator": generator, "dtype": torch.float16}
    a = torch.randn(problem.m, problem.k, **draw)
    if layout == "nn":
        return a, torch.randn(problem.k, problem.n, **draw)
    return a, torch.randn(problem.n, problem.k, **draw).t()


def assert_right(result, a, b):
    wanted = a.double() @ b.double()
    bound = 2.0**-10 * wanted.abs() + 1e-5 * (a.double().abs() @ b.double().abs()) + 1e-4
    assert result.dtype == torch.float16
    assert bool(((result.double() - wanted).abs() <= bound).all())


@pytest.mark.parametrize("mnk", ENTRIES)
def test_it_is_right_and_strictly_ours(table, layout, mnk):
    a, b = operands(mnk, layout)
    assert_right(hgemm(a, b, table=table, strict=True), a, b)
    assert list(stats()) == [ENTRIES[mnk].name]


def test_out_is_filled_and_its_neighbours_are_not(table, layout):
    a, b = operands("1000_520_712", layout)
    arena = torch.full((1000 * 520 + 1024,), 7.0, dtype=torch.float16, device="cuda")
    out = arena[512 : 512 + 1000 * 520].view(1000, 520)
    assert hgemm(a, b, out=out, table=table, strict=True) is out
    assert_right(out, a, b)
    assert bool((arena[:512] == 7.0).all())
    assert bool((arena[512 + 1000 * 520 :] == 7.0).all())


def test_views_that_tma_cannot_read_go_to_matmul(table, layout):
    a, b = operands("512_512_512", layout)
    wide = torch.randn(512, 1024, device="cuda").half()
    shifted = torch.randn(512 * 512 + 1, device="cuda").half()[1:].view(512, 512)
    for view in (wide[:, :512], wide[:, ::2], a.t(), shifted):
        torch.testing.assert_close(hgemm(view, b, table=table), view @ b)
    assert all(name.startswith("torch.matmul") for name in stats())


def test_a_table_for_another_device_is_refused(device, layout):
    other = Header(Device(device.capability, device.sm_count + 1, device.memory_gb), "fp32", layout, {})
    a, b = operands("512_512_512", layout)
    with pytest.raises(TableError, match="is for"):
        hgemm(a, b, table=KernelTable(other, []))


def test_nothing_is_allocated_but_the_result(table, layout):
    a, b = operands("512_512_512", layout)
    out = hgemm(a, b, table=table, strict=True)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    hgemm(a, b, out=out, table=table)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    hgemm(a, b, table=table)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before + 1


def test_a_call_returns_while_the_gpu_is_busy(table, layout):
    a, b = operands("512_512_512", layout)
    hgemm(a, b, table=table, strict=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)  # about half a second
    start_s = time.perf_counter()
    result = hgemm(a, b, table=table, strict=True)
    elapsed_s = time.perf_counter() - start_s
    assert not torch.cuda.current_stream().query()
    assert elapsed_s < 0.1
    assert_right(result, a, b)


def test_it_runs_on_the_current_stream(table, layout):
    a, b = operands("512_512_512", layout)
    hgemm(a, b, table=table, strict=True)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    results = []
    for index, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            scaled = a * (index + 1)
            results.append((hgemm(scaled, b, table=table, strict=True), scaled))
    torch.cuda.synchronize()
    for result, scaled in results:
        assert_right(result, scaled, b)


def test_it_follows_what_the_stream_did_before(table, layout):
    """The programmatic-dependent-launch attribute must not let a kernel read its operands early."""
    a, b = operands("512_512_512", layout)
    hgemm(a, b, table=table, strict=True)
    source = torch.randn_like(a)
    torch.cuda.synchronize()
    for _ in range(20):
        a.zero_()
        torch.cuda._sleep(200_000)
        a.copy_(source)
        result = hgemm(a, b, table=table, strict=True)
        doubled = result + result
        assert_right(result, source, b)
        torch.testing.assert_close(doubled, result + result, rtol=0, atol=0)


def test_threads_get_their_own_results(table, layout):
    failures = []

    def work(seed):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                a, b = operands("256_512_1024", layout, seed)
                for _ in range(20):
                    result = hgemm(a, b, table=table, strict=True)
                assert_right(result, a, b)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_captured_call_replays(table, layout):
    a, b = operands("64_64_2048", layout)
    warmup(["64_64_2048"], table, layout=layout)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = hgemm(a, b, table=table, strict=True)
    for seed in (1, 2):
        new_a, new_b = operands("64_64_2048", layout, seed)
        a.copy_(new_a)
        b.copy_(new_b)
        graph.replay()
        torch.cuda.synchronize()
        assert_right(result, a, b)


def test_graphs_and_calls_that_run_at_once_share_no_workspace(table, layout):
    mnk = "256_512_4096"
    warmup([mnk], table, layout=layout)
    graphs, captured = [], []
    for seed in range(2):  # both on torch's one stream for captures
        a, b = operands(mnk, layout, seed)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = hgemm(a, b, table=table, strict=True)
        graphs.append(graph)
        captured.append((result, a, b))
    a, b = operands(mnk, layout, 2)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for _ in range(200):
        for graph, stream in zip(graphs, streams[:2], strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        with torch.cuda.stream(streams[2]):
            called = hgemm(a, b, table=table, strict=True)
    torch.cuda.synchronize()
    for result, left, right in (*captured, (called, a, b)):
        assert_right(result, left, right)


def test_workspaces_of_graphs_that_are_gone_are_given_back(table, layout):
    mnk = "256_512_4096"
    warmup([mnk], table, layout=layout)
    a, b = operands(mnk, layout)

    def captured():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            return graph, hgemm(a, b, table=table, strict=True)

    kept, result = captured()
    seen: list[int] = []
    for _ in range(20):
        graph, other = captured()
        graph.replay()
        torch.cuda.synchronize()
        assert_right(other, a, b)
        graph.reset()
        del graph, other
        end = time.monotonic() + 10.0
        while time.monotonic() < end and sum(not watch.over() for _, watch in kernels._in_graphs) > 1:
            time.sleep(0.001)
        assert sum(not watch.over() for _, watch in kernels._in_graphs) == 1, "the driver says that a graph is gone"
        seen.append(len(kernels._in_graphs))
    assert max(seen[1:]) == 2, "one is alive, one is gone and not given back yet"
    result.zero_()
    kept.replay()
    torch.cuda.synchronize()
    assert_right(result, a, b)


def test_a_capture_that_needs_loading_is_refused_by_name(table, layout):
    a, b = operands("256_512_1024", layout)
    op._device_kernels.cache_clear()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(NotLoadedError, match="warmup"), torch.cuda.graph(graph):
        hgemm(a, b, table=table)
    assert_right(hgemm(a, b, table=table, strict=True), a, b)


def test_warmup_says_what_will_run(table, layout):
    done = warmup(["512_512_512", (8192, 8192, 8192)], table, layout=layout)
    assert done["512_512_512"] == PLAIN.name
    assert done["8192_8192_8192"].startswith("torch.matmul: 8192_8192_8192: no entry to use")


def test_compile_and_gradients_use_the_table_on_the_search_path(table, layout, tmp_path, monkeypatch):
    table.save(tmp_path / "table.json")
    monkeypatch.setenv("CUDAL2_TABLE_PATH", str(tmp_path / "table.json"))
    a, b = operands("512_512_512", layout)
    compiled = torch.compile(lambda a, b: hgemm(a, b, strict=True).relu(), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(a, b), (a @ b).relu(), rtol=2e-3, atol=2e-2)
    a.requires_grad_()
    hgemm(a, b).sum().backward()
    gradient, a.grad = a.grad, None
    (a @ b).sum().backward()
    torch.testing.assert_close(gradient, a.grad, rtol=2e-3, atol=5e-2)
