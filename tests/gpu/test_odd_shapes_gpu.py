"""Any shape is right or refused with the reason: one row, one column, one product, no divisor, C past 31 bits."""

from __future__ import annotations

import json
from pathlib import Path

import gpu_kernels as kernels
import numpy as np
import pytest
from gpu_kernels import kernel

torch = pytest.importorskip("torch")

from cudal2.arch import SM90  # noqa: E402
from cudal2.bench.worker import Worker  # noqa: E402
from cudal2.build.artifact import BuildResult  # noqa: E402
from cudal2.cli import main as cli  # noqa: E402
from cudal2.codegen import build_key  # noqa: E402
from cudal2.errors import NothingValidError  # noqa: E402
from cudal2.launch.driver import ensure_context  # noqa: E402
from cudal2.launch.kernel import LoadedKernel  # noqa: E402
from cudal2.problem import Acc, Layout, Problem  # noqa: E402
from cudal2.runtime import hgemm, reset, stats  # noqa: E402
from cudal2.space.config import KernelConfig  # noqa: E402
from cudal2.space.defaults import default_configs  # noqa: E402
from cudal2.table import Device, Entry, Header, KernelTable  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

#: 65,537 x 40,000 elements of C: 5.2 GB, and more than 31 bits count; K tiles for every split.
HUGE = (65_537, 40_000, 512)


@pytest.fixture(scope="module")
def built(store) -> dict[str, BuildResult]:
    return kernels.build_odd(store)


@pytest.fixture(scope="module")
def corners(store) -> dict[str, BuildResult]:
    return {**kernels.build_corners(store, (*kernels.CORNERS, *kernels.SMALL_CORNERS)), **kernels.build_mma(store)}


@pytest.mark.parametrize(("acc", "layout"), kernels.KINDS)
@pytest.mark.parametrize("mnk", kernels.ODD_SHAPES)
def test_every_family_is_right_or_says_why_not(
    mnk: str, acc: Acc, layout: Layout, worker: Worker, built: dict[str, BuildResult]
) -> None:
    problem = Problem.parse(mnk, acc, layout)
    configs = kernels.odd_configs(problem)
    assert {config.family for config in configs} >= {"sm80_mma", "sm90_ws"}
    if problem.alignment_bytes < 16:
        with pytest.raises(NothingValidError, match="TMA needs 16-byte row strides"):
            default_configs(problem, SM90, "sm90_small")
    kernels.assert_right(worker, problem, configs, built, True)


def table_of(config: KernelConfig, problem: Problem) -> KernelTable:
    properties = torch.cuda.get_device_properties(0)
    memory_gib = properties.total_memory / 2**30
    device = Device.from_memory((properties.major, properties.minor), properties.multi_processor_count, memory_gib)
    entry = Entry(problem.m, problem.n, problem.k, config, None, 1.0, None, "searched", pdl=True)
    return KernelTable(Header(device, "fp32", problem.layout, {}), [entry])


def operands(problem: Problem):
    a = torch.randn(problem.m, problem.k, device="cuda", dtype=torch.float16)
    b = torch.randn(problem.n, problem.k, device="cuda", dtype=torch.float16).t()
    return a, b if problem.layout == "tn" else b.contiguous()


def assert_right(c, a, b) -> None:
    """A slab of rows at a time, so that fp32 copies stay small."""
    torch.backends.cuda.matmul.allow_tf32 = False
    for start in range(0, a.shape[0], 8192):
        expected = torch.matmul(a[start : start + 8192].float(), b.float())
        assert torch.allclose(c[start : start + 8192].float(), expected, rtol=2e-3, atol=2e-2), start


@pytest.mark.parametrize("mnk", kernels.ODD_SHAPES)
def test_hgemm_launches_what_the_table_holds(mnk: str, built: dict[str, BuildResult]) -> None:
    problem = Problem.parse(mnk)
    a, b = operands(problem)
    for config in {config.family: config for config in kernels.odd_configs(problem)}.values():
        reset()
        assert_right(hgemm(a, b, table=table_of(config, problem), strict=True), a, b)
        assert list(stats()) == [config.name]


def test_hgemm_serves_rows_tma_cannot_read_by_a_neighbour_of_another_width() -> None:
    near = Problem(200, 300, 405)
    config = next(config for config in kernels.odd_configs(near) if config.family == "sm80_mma")
    for k in (401, 402, 404):
        problem = Problem(210, 300, k)
        a, b = operands(problem)
        reset()
        assert_right(hgemm(a, b, table=table_of(config, near)), a, b)
        (served,) = stats()
        assert f"_b{problem.alignment_bytes}_" in served, served


@pytest.mark.parametrize("layout", ["tn", "nn"])
def test_c_of_more_than_31_bits_is_right_in_every_corner(layout: Layout, corners: dict[str, BuildResult]) -> None:
    problem = Problem(*HUGE, "fp32", layout)
    a, b = operands(problem)
    stored = b.t() if layout == "tn" else b
    c = torch.empty(problem.m, problem.n, device="cuda", dtype=torch.float16)
    ensure_context(0)
    mma = [config for config in kernels.mma_corners(problem) if build_key(config, *problem.signature) in corners]
    hopper = (*kernels.CORNERS, *kernels.SMALL_CORNERS)
    configs = [config for config in hopper if kernels.runnable(config, problem)] + mma
    assert len(configs) >= 20 and len(mma) >= 6
    for config in configs:
        c.fill_(float("nan"))
        loaded = LoadedKernel(kernel(corners[build_key(config, *problem.signature)]), config)
        launch = loaded.on(config, problem, 132)
        params = launch.params(*(np.array([tensor.data_ptr()], np.uint64) for tensor in (a, stored, c)))
        launch.launch(params.kernel_params(0), torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        try:
            assert_right(c, a, b)
        except AssertionError as error:
            raise AssertionError(f"{config.name}: wrong from row {error}") from error


@pytest.mark.parametrize("mnk", ["123_456_789", "1_1_1", "4096_1_512", "65536_40000_64"])
def test_eval_judges_it(mnk: str, tmp_path: Path) -> None:
    flags = ["--warmup_seconds", "0", "--benchmark_seconds", "1", "--base_dir", str(tmp_path)]
    assert cli.main(["eval", "--mnk", mnk, "--pdl", "off", *flags]) == 0
    written = json.loads((tmp_path / f"{mnk}_fp32_offline.json").read_text())
    assert mnk in json.dumps(written)
