"""The ``sm80_mma`` family on the GPU: corners of its space on shapes of every alignment, through the real worker."""

from __future__ import annotations

import gpu_kernels as kernels
import numpy as np
import pytest
from gpu_kernels import QUICK, kernel

torch = pytest.importorskip("torch")

from cudal2.bench.worker import Worker  # noqa: E402
from cudal2.build.artifact import BuildResult  # noqa: E402
from cudal2.codegen import build_key  # noqa: E402
from cudal2.launch.driver import ensure_context  # noqa: E402
from cudal2.launch.kernel import LoadedKernel  # noqa: E402
from cudal2.problem import Acc, Layout, Problem  # noqa: E402
from cudal2.runtime import hgemm, stats  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BuildResult]:
    return kernels.build_mma(kernels.cache(tmp_path_factory.mktemp("build")))


@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize(("acc", "layout"), kernels.KINDS)
@pytest.mark.parametrize("mnk", kernels.MMA_SHAPES)
def test_every_corner_is_right_at_every_alignment(
    mnk: str, acc: Acc, layout: Layout, pdl: bool, worker: Worker, built: dict[str, BuildResult]
) -> None:
    problem = Problem.parse(mnk, acc, layout)
    configs = kernels.mma_corners(problem)
    assert len(configs) >= 7
    kernels.assert_right(worker, problem, configs, built, pdl)


@pytest.mark.parametrize("layout", ["tn", "nn"])
@pytest.mark.parametrize("mnk", ["123_456_789", "1_1_1", "1_2048_4097", "4097_33_129", "300_200_7"])
def test_hgemm_serves_what_no_tensor_map_can_describe(mnk: str, layout: Layout) -> None:
    problem = Problem.parse(mnk, "fp32", layout)
    a = torch.randn(problem.m, problem.k, device="cuda", dtype=torch.float16)
    b = torch.randn(problem.n, problem.k, device="cuda", dtype=torch.float16).t()
    if layout == "nn":
        b = b.contiguous()
    before = stats()
    c = hgemm(a, b, strict=True)
    assert torch.allclose(c, torch.matmul(a.float(), b.float()).half(), rtol=2e-3, atol=2e-2)
    served = [name for name, count in stats().items() if count != before.get(name, 0)]
    assert len(served) == 1 and ("_w" in served[0] or "padded" in served[0]), served


@pytest.mark.parametrize("rows", ["aligned", "shifted"])
@pytest.mark.parametrize("layout", ["tn", "nn"])
def test_more_elements_of_c_than_31_bits_count(layout: Layout, rows: str, built: dict[str, BuildResult]) -> None:
    problem, config = kernels.large_c(layout)[rows == "shifted"]
    a = torch.randn(problem.m, problem.k, device="cuda", dtype=torch.float16)
    b = torch.randn(problem.n, problem.k, device="cuda", dtype=torch.float16)
    b = b if layout == "tn" else b.t().contiguous()
    c = torch.full((problem.m, problem.n), float("nan"), device="cuda", dtype=torch.float16)
    ensure_context(0)
    launch = LoadedKernel(kernel(built[build_key(config, "fp32", layout)]), config).on(config, problem, 132)
    params = launch.params(*(np.array([tensor.data_ptr()], np.uint64) for tensor in (a, b, c)))
    launch.launch(params.kernel_params(0), torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    columns = b.t() if layout == "tn" else b
    for start in range(0, problem.m, 5_000):
        expected = torch.matmul(a[start : start + 5_000].float(), columns.float())
        assert torch.allclose(c[start : start + 5_000].float(), expected, rtol=2e-3, atol=2e-2), start


def test_an_fp16_accumulator_under_an_fp32_label_is_caught(worker: Worker, built: dict[str, BuildResult]) -> None:
    problem, config = Problem(64, 64, 4096), kernels.MMA_CORNERS[0]
    (row,) = worker.measure(problem, [(config, kernel(built[build_key(config, "fp16", "tn")]))], QUICK, reference=False)
    assert not row.ok and row.reason.startswith(("revealing data", "0/1 data")), row.reason
