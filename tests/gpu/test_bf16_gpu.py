"""bf16 on the GPU: corners of both families, what only passes for it, hgemm, every baseline, a final, a serving."""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import gpu_kernels as kernels
import pytest
from gpu_kernels import QUICK, kernel

torch = pytest.importorskip("torch")
pytest.importorskip("nvmath")

from cudal2.bench.baselines import contestants  # noqa: E402
from cudal2.bench.baselines.autotune import AutoTuner  # noqa: E402
from cudal2.bench.baselines.baseline import LAYOUTS, BothLayouts, TorchMatmul  # noqa: E402
from cudal2.bench.baselines.libraries import VendorLibraries, library_errors  # noqa: E402
from cudal2.bench.context import ProblemContext  # noqa: E402
from cudal2.bench.device import describe  # noqa: E402
from cudal2.bench.judge.foreign import check_foreign  # noqa: E402
from cudal2.bench.judge.judge import run_final  # noqa: E402
from cudal2.bench.judge.request import FinalRequest  # noqa: E402
from cudal2.bench.native import SOURCE  # noqa: E402
from cudal2.bench.server.server import ServerRequest, run_server  # noqa: E402
from cudal2.bench.server.traffic import Traffic  # noqa: E402
from cudal2.bench.worker import Worker  # noqa: E402
from cudal2.build.artifact import BuildResult  # noqa: E402
from cudal2.build.cache import BuildCache  # noqa: E402
from cudal2.build.foreign import ForeignSource, build_foreign  # noqa: E402
from cudal2.build.host import compile_shared  # noqa: E402
from cudal2.codegen import build_key  # noqa: E402
from cudal2.problem import Layout, Problem  # noqa: E402
from cudal2.records.finals import group_finals  # noqa: E402
from cudal2.records.measurement import Status  # noqa: E402
from cudal2.runtime import hgemm, reset, stats, warmup  # noqa: E402
from cudal2.settings import BenchSettings  # noqa: E402
from cudal2.space.config import KernelConfig, Sm90WsConfig  # noqa: E402
from cudal2.space.shared_rules import tma_reads  # noqa: E402
from cudal2.table import Device, Entry, Header, KernelTable  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

FINAL = BenchSettings(replay_ms=0.5, final_replay_ms=2.0, final_rounds=3, heuristic_results=20, enumerated_results=24)
PLAIN = Sm90WsConfig(128, 128, 64, 4, "coop", 2, 1, 1, 1, "tma", 1, "m", 1, False)


@pytest.fixture(scope="module")
def built(store: BuildCache) -> dict[str, BuildResult]:
    victims = (kernels.VICTIM, kernels.SPLIT_VICTIM)
    return {
        **kernels.build_corners(store, (*kernels.CORNERS, *victims), kernels.BF16_KINDS),
        **kernels.build_mma(store, kernels.BF16_KINDS),
        **kernels.build_corners(store, victims, [("fp32", "tn"), ("fp16", "tn")]),
        **kernels.build_corners(store, kernels.MMA_CORNERS[:1], [("fp32", "tn"), ("fp16", "tn")]),
    }


@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("family", "mnk"),
    [*(("sm90_ws", mnk) for mnk in kernels.SHAPES), *(("sm80_mma", mnk) for mnk in kernels.MMA_SHAPES)],
)
def test_every_corner_is_right_on_ragged_shapes(
    family: str, mnk: str, layout: Layout, pdl: bool, worker: Worker, built: dict[str, BuildResult]
) -> None:
    problem = Problem.parse(mnk, "fp32", layout, "bf16")
    configs: list[KernelConfig] = [config for config in kernels.CORNERS if kernels.runnable(config, problem)]
    if family == "sm80_mma":
        configs = [*kernels.mma_corners(problem)]
    assert len(configs) >= (3 if family == "sm90_ws" and not tma_reads(problem) else 7)
    kernels.assert_right(worker, problem, configs, built, pdl)


@pytest.mark.parametrize("k", [64, 512, 4096, 16384])
@pytest.mark.parametrize("config", [kernels.VICTIM, kernels.MMA_CORNERS[0]], ids=["sm90_ws", "sm80_mma"])
def test_a_kernel_of_the_other_type_or_accumulator_is_caught(
    config: KernelConfig, k: int, worker: Worker, built: dict[str, BuildResult]
) -> None:
    fp16, narrow, bf16 = (
        kernel(built[build_key(config, *kind)]) for kind in (("fp32", "tn"), ("fp16", "tn"), ("fp32", "tn", "bf16"))
    )
    for problem, impostor in (
        (Problem(64, 64, k, dtype="bf16"), fp16),
        (Problem(64, 64, k, dtype="bf16"), narrow),
        (Problem(64, 64, k), bf16),
    ):
        (row,) = worker.measure(problem, [(config, impostor)], QUICK, reference=False)
        assert row.status is Status.CORRECTNESS, (problem, row.reason)
    (honest,) = worker.measure(Problem(64, 64, k, dtype="bf16"), [(config, bf16)], QUICK, reference=False)
    assert honest.ok, honest.reason


@pytest.mark.parametrize("k", [512, 4096, 16384])
def test_partial_sums_in_bf16_fail_by_the_revealing_data_alone(
    k: int, worker: Worker, store: BuildCache, built: dict[str, BuildResult]
) -> None:
    problem, config = Problem(64, 64, k, dtype="bf16"), kernels.SPLIT_VICTIM
    (row,) = worker.measure(problem, [(config, kernel(kernels.build_bf16_partials(store)))], QUICK, reference=False)
    assert row.status is Status.CORRECTNESS and row.reason.startswith("revealing data"), row.reason
    honest = kernel(built[build_key(config, *problem.signature)])
    (row,) = worker.measure(problem, [(config, honest)], QUICK, reference=False)
    assert row.ok, row.reason


# hgemm


@pytest.fixture(scope="module")
def device() -> Device:
    properties = torch.cuda.get_device_properties(0)
    memory_gib = properties.total_memory / 2**30
    return Device.from_memory((properties.major, properties.minor), properties.multi_processor_count, memory_gib)


def table_of(device: Device, layout: Layout, dtype: str) -> KernelTable:
    entries = [
        Entry(512, 512, 512, PLAIN, None, 1.0, None, "searched", pdl=True),
        Entry(64, 64, 2048, kernels.SPLIT_VICTIM, None, 1.0, None, "searched"),
    ]
    return KernelTable(Header(device, "fp32", layout, {}, dtype), entries)


def operands(m: int, n: int, k: int, layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = (torch.randn(shape, device="cuda").bfloat16() for shape in ((m, k), (n, k)))
    return a, b.t() if layout == "tn" else b.t().contiguous()


def assert_right(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    wanted = a.double() @ b.double()
    bound = 2.0**-8 * wanted.abs() + 1e-5 * (a.double().abs() @ b.double().abs())
    assert c.dtype == torch.bfloat16
    assert bool(((c.double() - wanted).abs() <= bound).all())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_hgemm_takes_bf16_tensors_and_is_strictly_ours(layout: Layout, device: Device) -> None:
    reset()
    table = table_of(device, layout, "bf16")
    for m, n, k in ((512, 512, 512), (64, 64, 2048)):
        a, b = operands(m, n, k, layout)
        assert_right(hgemm(a, b, table=table, strict=True), a, b)
        out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
        assert hgemm(a, b, out=out, table=table, strict=True) is out
        assert_right(out, a, b)
    assert set(stats()) == {PLAIN.name, kernels.SPLIT_VICTIM.name}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_hgemm_without_a_bf16_table_runs_the_fp16_choice_built_for_bf16(
    layout: Layout, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reset()
    table_of(device, layout, "fp16").save(tmp_path / "table.json")
    monkeypatch.setenv("CUDAL2_TABLE_PATH", str(tmp_path / "table.json"))
    assert warmup(["512_512_512"], layout=layout, dtype="bf16") == {"512_512_512": PLAIN.name}
    a, b = operands(512, 512, 512, layout)
    assert_right(hgemm(a, b, strict=True), a, b)
    assert list(stats()) == [PLAIN.name]
    reset()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mnk", ["123_456_789", "1_1_1", "1_4096_4097", "4097_33_129", "300_200_7"])
def test_hgemm_serves_bf16_that_no_tensor_map_can_describe(mnk: str, layout: Layout) -> None:
    problem = Problem.parse(mnk)
    a, b = operands(problem.m, problem.n, problem.k, layout)
    reset()
    assert_right(hgemm(a, b, strict=True), a, b)
    assert len(stats()) == 1 and "_w" in next(iter(stats()))


# Everyone else


@pytest.fixture
def context() -> Iterator[ProblemContext]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        problem = Problem(256, 512, 1024, dtype="bf16")
        made = ProblemContext(problem, FINAL, describe(0), torch.device("cuda", 0), FINAL.final_replay_ms)
        yield made
        torch.cuda.synchronize()
        made.close()


def test_every_library_multiplies_bf16(context: ProblemContext) -> None:
    problem, stream = context.problem, context.stopwatch.stream
    buffers = BothLayouts(context.checks.sets)
    result = context.checks.run(TorchMatmul(problem).on(buffers), stream)
    assert result.ok, result.reason
    with VendorLibraries(problem, "cuda:0", FINAL.workspace_bytes, FINAL.heuristic_results) as libraries:
        for layout in LAYOUTS:
            offered = libraries.cublaslt(layout)
            more = list(itertools.islice(libraries.enumerated()[layout].near(offered[:3]), 12))
            assert len(more) == 12
            for call in (libraries.cublas(layout), *offered[:3], *more):
                try:
                    result = context.checks.run(call.on(buffers), stream)
                except library_errors():
                    assert call in more, call.detail  # legal by the library's check, and refused at launch
                    continue
                assert result.ok, f"{call.detail}: {result.reason}"


@pytest.mark.parametrize("name", list(contestants.OPTIONAL))
def test_an_optional_contestant_multiplies_bf16(name: str, context: ProblemContext) -> None:
    pytest.importorskip(contestants.OPTIONAL[name].module)
    buffers, check_buffers = BothLayouts(context.sets), BothLayouts(context.checks.sets)

    def verify(call):  # type: ignore[no-untyped-def]
        return context.checks.run(call.on(check_buffers), context.stopwatch.stream).reason

    tuner = AutoTuner(context.stopwatch, buffers, library_errors(), verify, 0.5, 3)
    calls = contestants.choose((name,), tuner, buffers)
    assert calls
    for call in calls:
        assert not verify(call), call.detail


def test_a_final_of_bf16_is_on_its_own_leaderboard(built: dict[str, BuildResult]) -> None:
    problem, config = Problem(1024, 1024, 512, dtype="bf16"), kernels.CORNERS[4]
    candidates = ((config, kernel(built[build_key(config, *problem.signature)])),)
    with Worker(0) as worker:
        judgement = run_final(worker, FinalRequest(problem, candidates, FINAL, (False, True)))
    assert {row.status for row in judgement.rows} == {Status.CORRECT}, [row.reason for row in judgement.rows]
    finals = group_finals(judgement.rows)
    assert sorted(final.key for final in finals) == ["offline/bf16/off", "offline/bf16/on"]
    for final in finals:
        found = final.against("cublaslt_auto")
        assert found is not None and 0.3 < found.ratio < 3.0


def test_bf16_is_served_by_the_native_client(
    built: dict[str, BuildResult], worker: Worker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    problem, config = Problem(1024, 1024, 512, dtype="bf16"), kernels.CORNERS[4]
    candidates = ((config, kernel(built[build_key(config, *problem.signature)])),)
    client = compile_shared(SOURCE, tmp_path_factory.mktemp("client"))
    traffic = Traffic(1000.0, ("warm",), seconds=1.0)
    rows = run_server(worker, ServerRequest(problem, candidates, FINAL, traffic, client))
    assert {row.status for row in rows} == {Status.CORRECT}, [row.reason for row in rows if not row.ok]
    assert any(row.config == config for row in rows)


FOREIGN = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#ifdef CUDAL2_BF16
using Element = __nv_bfloat16;
#else
using Element = __half;
#endif
__global__ void multiply(const Element* a, const Element* b, Element* c, int m, int n, int k) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
  if (column >= n) return;
  float sum = 0.0f;
  for (int i = 0; i < k; ++i) sum += float(a[size_t(row) * k + i]) * float(b[size_t(column) * k + i]);
  c[size_t(row) * n + column] = Element(sum);
}
extern "C" int gemm(const void* a, const void* b, void* c, int m, int n, int k, void* workspace, size_t bytes,
                    cudaStream_t stream) {
  multiply<<<dim3((n + 127) / 128, m), 128, 0, stream>>>(static_cast<const Element*>(a), static_cast<const Element*>(b),
                                                         static_cast<Element*>(c), m, n, k);
  return 0;
}
"""


@pytest.mark.skipif(shutil.which("nvcc") is None and "CUDA_HOME" not in os.environ, reason="no nvcc")
def test_a_foreign_source_is_told_the_type_and_checked_in_it(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDAL2_CACHE_DIR", str(tmp_path / "cache"))
    source = ForeignSource(tmp_path / "both.cu", "gemm")
    source.path.write_text(FOREIGN)
    settings = dataclasses.replace(QUICK, deadline_s=20.0)
    problems = [Problem(128, 96, 512, dtype=dtype) for dtype in ("fp16", "bf16")]
    libraries = [build_foreign(source, problem, 1 << 20) for problem in problems]
    for problem, own, other in zip(problems, libraries, libraries[::-1], strict=True):
        assert worker.call(check_foreign, own, problem, settings, deadline_s=60.0) is None
        failure = worker.call(check_foreign, other, problem, settings, deadline_s=60.0)
        assert failure is not None and failure.status is Status.CORRECTNESS
