"""Every corner of the space on odd and even shapes, and kernels broken on purpose, through the real worker."""

from __future__ import annotations

import time
from collections.abc import Iterator

import gpu_kernels as kernels
import pytest
from gpu_kernels import QUICK, kernel

from cudal2.bench.worker import Worker
from cudal2.build.artifact import BuildResult, BuiltKernel
from cudal2.build.cache import BuildCache
from cudal2.codegen import build_key
from cudal2.problem import Acc, Layout, Problem
from cudal2.records.measurement import Measurement, Status
from cudal2.space.config import KernelConfig
from cudal2.space.shared_rules import tma_reads

pytestmark = pytest.mark.gpu

DEADLINE_S = 4.0
RESPAWN_S = 5.0


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(0, DEADLINE_S) as started:
        yield started


@pytest.fixture(scope="module")
def corners(store: BuildCache) -> dict[str, BuildResult]:
    return kernels.build_corners(store, (*kernels.CORNERS, kernels.VICTIM))


@pytest.mark.parametrize("config", kernels.CORNERS, ids=lambda config: config.name)
def test_a_chain_of_dependent_launches_is_the_same_with_overlap_and_without(
    config: kernels.Sm90WsConfig, corners: dict[str, BuildResult]
) -> None:
    """With programmatic launches the next product fetches operands into L2 while they are still being written."""
    torch = pytest.importorskip("torch")
    import chains

    if not kernels.runnable(config, chains.square(config)):
        pytest.skip("more slices than K tiles, or TMA stores of odd rows")
    plain, overlapping = chains.ends(config, kernel(corners[build_key(config, "fp32", "tn")]))
    assert torch.equal(plain, overlapping)


SPLITS = [config for config in kernels.CORNERS if config.split_via == "workspace" or config.stream_k or config.padded]


@pytest.mark.parametrize("config", SPLITS, ids=lambda config: config.name)
def test_a_workspace_serves_replays_of_a_graph_beside_launches_on_another_stream(
    config: kernels.Sm90WsConfig, corners: dict[str, BuildResult]
) -> None:
    pytest.importorskip("torch")
    import chains

    problem = chains.suiting(config, chains.WIDE if config.stream_k else chains.LONG)
    if not kernels.runnable(config, problem):
        pytest.skip("it does not take the shape")
    first, *others = chains.replayed(config, kernel(corners[build_key(config, "fp32", "tn")]), problem)
    assert chains.is_product(first, problem)
    assert all(bool((other == first).all()) for other in others)


@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize(("acc", "layout"), kernels.KINDS)
@pytest.mark.parametrize("mnk", kernels.SHAPES)
def test_every_corner_is_right(
    mnk: str, acc: Acc, layout: Layout, pdl: bool, worker: Worker, corners: dict[str, BuildResult]
) -> None:
    problem = Problem.parse(mnk, acc, layout)
    configs = [config for config in kernels.CORNERS if kernels.runnable(config, problem)]
    assert len(configs) >= (10 if tma_reads(problem) else 3)
    kernels.assert_right(worker, problem, configs, corners, pdl)


VICTIM_PROBLEM = Problem(64, 64, 512)
EXPECTED = {
    "skips_last_k_tile": (Status.CORRECTNESS, "0/1 data"),
    "writes_nothing": (Status.CORRECTNESS, "is nan"),
    "hangs": (Status.TIMEOUT, "no answer within"),
    "reads_nowhere": (Status.RUNTIME, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    "traps": (Status.RUNTIME, "CUDA_ERROR_"),
    "writes_behind_c": (Status.CORRECTNESS, "written after C"),
    "changes_its_input": (Status.CORRECTNESS, "changed its input A"),
    "right_three_times_only": (Status.CORRECTNESS, "after timing"),
}


def between(worker: Worker, victim: BuiltKernel, good: BuiltKernel) -> tuple[Measurement, Measurement, float]:
    """A bad candidate between two good ones: its row, the next row, and the seconds between the two."""
    config: KernelConfig = kernels.VICTIM
    stream = worker.measure(VICTIM_PROBLEM, [(config, good), (config, victim), (config, good)], QUICK, reference=False)
    assert next(stream).ok
    bad = next(stream)
    started = time.monotonic()
    (after,) = stream
    return bad, after, time.monotonic() - started


@pytest.mark.parametrize("fault", kernels.FAULTS)
def test_a_broken_kernel_is_caught_and_costs_nobody_else(
    fault: str, worker: Worker, store: BuildCache, corners: dict[str, BuildResult]
) -> None:
    good = kernel(corners[build_key(kernels.VICTIM, "fp32", "tn")])
    bad, after, seconds = between(worker, kernel(kernels.build_fault(store, fault)), good)
    status, reason = EXPECTED[fault]
    assert (bad.status, bad.times_us) == (status, ())
    assert reason in bad.reason and "\n" not in bad.reason
    assert after.ok, after.reason
    assert seconds < RESPAWN_S


@pytest.mark.parametrize("k", [64, 512, 4096, 16384])
def test_fp16_accumulation_under_an_fp32_label_is_caught(k: int, worker: Worker, store: BuildCache) -> None:
    fp16 = kernel(kernels.build_fp16(store, kernels.VICTIM))
    (row,) = worker.measure(Problem(64, 64, k), [(kernels.VICTIM, fp16)], QUICK, reference=False)
    assert row.status is Status.CORRECTNESS
    assert row.reason.startswith(("revealing data", "0/1 data"))
    (honest,) = worker.measure(Problem(64, 64, k, "fp16"), [(kernels.VICTIM, fp16)], QUICK, reference=False)
    assert honest.ok, honest.reason
