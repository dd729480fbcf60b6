"""The ``sm90_small`` family on the GPU: corners of its space on odd and even shapes, chains of dependent launches."""

from __future__ import annotations

import gpu_kernels as kernels
import numpy as np
import pytest
from gpu_kernels import kernel

torch = pytest.importorskip("torch")

import chains  # noqa: E402

from cudal2.bench.worker import Worker  # noqa: E402
from cudal2.build.artifact import BuildResult  # noqa: E402
from cudal2.codegen import build_key  # noqa: E402
from cudal2.launch.driver import ensure_context  # noqa: E402
from cudal2.launch.kernel import LoadedKernel  # noqa: E402
from cudal2.problem import Acc, Dtype, Layout, Problem  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BuildResult]:
    return kernels.build_small(kernels.cache(tmp_path_factory.mktemp("build")))


@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize(("acc", "layout", "dtype"), kernels.TYPED_KINDS)
@pytest.mark.parametrize("mnk", kernels.SMALL_SHAPES)
def test_every_corner_is_right(
    mnk: str, acc: Acc, layout: Layout, dtype: Dtype, pdl: bool, worker: Worker, built: dict[str, BuildResult]
) -> None:
    problem = Problem.parse(mnk, acc, layout, dtype)
    if layout == "nn" and problem.n % 8:
        pytest.skip("no tensor map describes row-major B with such rows")
    configs = [config for config in kernels.SMALL_CORNERS if kernels.runnable(config, problem)]
    assert len(configs) >= 8 and {config.variant for config in configs} == {"wgmma", "mma"}
    kernels.assert_right(worker, problem, configs, built, pdl)


@pytest.mark.parametrize("config", kernels.SMALL_CORNERS, ids=lambda config: config.name)
def test_a_chain_of_dependent_launches_is_the_same_with_overlap_and_without(
    config: kernels.Sm90SmallConfig, built: dict[str, BuildResult]
) -> None:
    """With programmatic launches the next product fetches operands into L2 while they are still being written."""
    if not kernels.runnable(config, chains.PROBLEM):
        pytest.skip("more slices than K tiles")
    plain, overlapping = chains.ends(config, kernel(built[build_key(config, "fp32", "tn")]))
    assert torch.equal(plain, overlapping)


def test_split_k_is_the_same_every_time(built: dict[str, BuildResult]) -> None:
    problem, config = Problem(64, 48, 16384), kernels.SMALL_CORNERS[1]
    assert config.split_k == 16
    ensure_context(0)
    a, b = (torch.randn(rows, problem.k, device="cuda").half() for rows in (problem.m, problem.n))
    loaded = LoadedKernel(kernel(built[build_key(config, "fp32", "tn")]), config)
    results = []
    for _ in range(50):
        c = torch.full((problem.m, problem.n), float("nan"), device="cuda", dtype=torch.float16)
        launch = loaded.on(config, problem, 132)
        sets = launch.params(*(np.array([tensor.data_ptr()], np.uint64) for tensor in (a, b, c)))
        launch.launch(sets.kernel_params(0), torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        results.append(c)
    loaded.close()
    assert torch.allclose(results[0].float(), a.float() @ b.float().t(), rtol=2e-3, atol=0.2)
    assert all(torch.equal(results[0], result) for result in results)
