"""Foreign kernels on the GPU: real cheats in processes of their own, and nothing else disturbed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cudal2.bench.foreign.process import ForeignError
from cudal2.bench.judge.foreign import check_foreign, foreign_entrants
from cudal2.bench.judge.judge import run_final
from cudal2.bench.judge.request import FinalRequest
from cudal2.bench.rounds import RoundLimits
from cudal2.bench.worker import Worker
from cudal2.build.foreign import ForeignBuildError, ForeignKernel, ForeignSource, build_foreign
from cudal2.errors import ToolchainError
from cudal2.problem import Layout, Problem
from cudal2.records.finals import group_finals
from cudal2.records.measurement import Status
from cudal2.settings import BenchSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("nvcc") is None and "CUDA_HOME" not in os.environ, reason="no nvcc"),
]

CHEATS = Path(__file__).with_name("cheats")
PROBLEM = Problem(128, 96, 512)
SETTINGS = BenchSettings(deadline_s=10.0)
SETS = 64
#: What a hang is waited for.
HANG_S = 5.0

#: Entry, its file, how it ends, and why.
CASES = {
    "writes_nothing": ("outputs", Status.CORRECTNESS, "0/1 data: C[0,0] is nan"),
    "zeros": ("outputs", Status.CORRECTNESS, "0/1 data: C[0,0] is 0"),
    "nan_output": ("outputs", Status.CORRECTNESS, "C[0,5] is nan"),
    "skips_the_k_tail": ("outputs", Status.CORRECTNESS, "0/1 data"),
    "stale_output": ("outputs", Status.CORRECTNESS, "revealing data"),
    "first_call_only": ("outputs", Status.CORRECTNESS, "is nan"),
    "right_until_timed": ("outputs", Status.CORRECTNESS, "after timing, set"),
    "fp16_accumulator": ("outputs", Status.CORRECTNESS, "revealing data"),
    "fp16_partials": ("outputs", Status.CORRECTNESS, "revealing data"),
    "changes_its_input": ("outputs", Status.CORRECTNESS, "changed its input B"),
    "empties_its_input_when_timed": ("outputs", Status.CORRECTNESS, "while it was timed, it changed its input A"),
    "writes_behind_c": ("outputs", Status.CORRECTNESS, "elements written after C"),
    "refuses": ("outputs", Status.CONSTRAINTS, "does not take this shape: the entry returned 7"),
    "caches_by_pointer": ("caches", Status.CORRECTNESS, "operands changed in place"),
    "caches_by_a_sample": ("caches", Status.CORRECTNESS, "operands changed in place"),
    "remembers_answers": ("caches", Status.QUARANTINED, "it remembers answers"),
    "other_stream": ("time", Status.CORRECTNESS, "is nan"),
    "returns_early": ("time", Status.CORRECTNESS, "is nan"),
    "patches_the_timer": ("time", Status.QUARANTINED, "the judge's clock saw"),
    "hangs": ("faults", Status.TIMEOUT, "no answer within"),
    "loops": ("faults", Status.TIMEOUT, "no answer within"),
    "corrupts_the_context": ("faults", Status.RUNTIME, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    "throws": ("faults", Status.RUNTIME, "the entry threw: not today"),
    "exits": ("faults", Status.RUNTIME, "its process ended with exit code 3"),
    "bad_launch": ("faults", Status.LAUNCH, "the launch fails: cudaErrorInvalid"),
    "leaks": ("faults", Status.RUNTIME, "it leaks device memory"),
    "leaves_a_persisting_limit": ("faults", Status.RUNTIME, "it left the persisting-L2 limit at "),
    "leaves_a_persisting_window": ("faults", Status.RUNTIME, "it left a persisting-L2 window of "),
}
FINE = {
    "gemm": "../../../examples/gemm",
    "honest": "outputs",
    "legacy_stream": "time",
    "synchronises": "time",
    "forks_and_prints": "faults",
}


LAYOUTS: tuple[Layout, ...] = ("tn", "nn")
CUDA_L2 = {layout: Problem(200, 300, 1000, layout=layout) for layout in LAYOUTS}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One build cache for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDAL2_CACHE_DIR", os.environ.get("CUDAL2_TEST_CACHE") or str(tmp_path_factory.mktemp("foreign")))
        yield


@pytest.fixture(scope="module", autouse=True)
def cuda_l2(cache: None, request: pytest.FixtureRequest) -> Iterator[dict[Layout, Future[ForeignKernel]]]:
    """CUDA-L2's entry, a minute of compiling that all other tests hide, if a test that was chosen needs it."""
    source = ForeignSource(CHEATS / "cuda_l2.cu", "cuda_l2_h200_fp32", cuda_l2=True)
    needed = any("cuda_l2" in item.name for item in request.session.items)
    with ThreadPoolExecutor(len(CUDA_L2)) as pool:
        yield {
            layout: pool.submit(build_foreign, source, problem, 1 << 20)
            for layout, problem in CUDA_L2.items() if needed
        }  # fmt: skip


@pytest.fixture(scope="module")
def kernels(cuda_l2: object) -> dict[str, ForeignKernel]:
    """Every other entry, built side by side."""
    files = {**{entry: case[0] for entry, case in CASES.items()}, **FINE}
    sources = [ForeignSource(CHEATS / f"{file}.cu", entry) for entry, file in files.items()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        built = pool.map(lambda source: build_foreign(source, PROBLEM, 1 << 20), sources)
        return dict(zip(files, built, strict=True))


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(0, SETTINGS.deadline_s) as started:
        yield started


def outcome(
    session: Any, kernel: ForeignKernel, problem: Problem = PROBLEM, settings: BenchSettings = SETTINGS, rounds: int = 3
) -> tuple[Status, str, list[float]]:
    """Job: what a contest would record of it."""
    with foreign_entrants(session, kernel, problem, settings, SETS) as (entrant,):
        trial = entrant.call
        try:
            checked = trial.check()
            if not checked.ok:
                return Status.CORRECTNESS, checked.reason, []
            prepared = trial.prepare(settings.final_replay_ms)
            times = [prepared.time_us() for _ in range(rounds)]
            rechecked = prepared.recheck()
        except ForeignError as error:
            return error.status, str(error), []
        return (Status.CORRECT if rechecked.ok else Status.CORRECTNESS), rechecked.reason or prepared.detail, times


def run(
    worker: Worker, kernel: ForeignKernel, problem: Problem = PROBLEM, settings: BenchSettings = SETTINGS
) -> tuple[Status, str, list[float]]:
    found: tuple[Status, str, list[float]] = worker.call(outcome, kernel, problem, settings, deadline_s=200.0)
    print(kernel.entry, *found, sep=" | ")
    return found


@pytest.mark.parametrize("entry", CASES)
def test_a_cheat_is_caught_and_after_a_fault_the_next_kernel_is_fine(
    entry: str, worker: Worker, kernels: dict[str, ForeignKernel]
) -> None:
    file, status, reason = CASES[entry]
    hang = replace(SETTINGS, deadline_s=HANG_S)
    found = run(worker, kernels[entry], settings=hang if status is Status.TIMEOUT else SETTINGS)
    assert found[0] is status and reason in found[1], found
    if file == "faults":
        assert worker.call(check_foreign, kernels["honest"], PROBLEM, SETTINGS) is None


def test_an_honest_kernel_passes_as_a_graph_and_its_times_agree(
    worker: Worker, kernels: dict[str, ForeignKernel]
) -> None:
    assert run(worker, kernels["gemm"])[0] is Status.CORRECT
    status, detail, times = run(worker, kernels["honest"])
    assert status is Status.CORRECT and "measure=graph; " in detail, detail
    assert max(times) / min(times) < 1.2
    outside_us = float(detail.split("; ")[1].split(" ")[0])
    assert 0.95 < outside_us / min(times) < 1.2


@pytest.mark.parametrize("entry", ["legacy_stream", "synchronises"])
def test_what_cannot_be_captured_is_timed_as_a_loop(
    entry: str, worker: Worker, kernels: dict[str, ForeignKernel]
) -> None:
    status, detail, _ = run(worker, kernels[entry])
    assert status is Status.CORRECT and "measure=loop, host time included: " in detail, detail


def test_forks_end_with_it_and_prints_are_in_its_log(worker: Worker, kernels: dict[str, ForeignKernel]) -> None:
    assert run(worker, kernels["forks_and_prints"])[0] is Status.CORRECT
    library = str(kernels["forks_and_prints"].library)
    until = time.monotonic() + 10.0
    while (left := processes_with(library)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left
    assert "a line for the log" in (kernels["forks_and_prints"].library.parent / "run.log").read_text()


def processes_with(library: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and library in (entry / "maps").read_text():
                found.append(entry.name)
        except OSError:
            continue
    return found


def test_a_big_problem_and_its_memory_comes_back(worker: Worker, kernels: dict[str, ForeignKernel]) -> None:
    before = worker.call(free_bytes)
    status, reason, _ = run(worker, kernels["honest"], Problem(4096, 4096, 512))
    assert status is Status.CORRECT, reason
    assert before - worker.call(free_bytes) < 64 * 2**20


def free_bytes(session: Any) -> int:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info()[0])


def test_it_is_judged_in_the_rounds_of_a_final(kernels: dict[str, ForeignKernel]) -> None:
    limits = RoundLimits(5, seed=1)
    with Worker(0, SETTINGS.deadline_s) as started:
        request = FinalRequest(Problem(512, 512, 512), (), SETTINGS, limits=limits, foreign=kernels["honest"])
        judgement = run_final(started, request)
    (final,) = group_finals(judgement.rows)
    assert all(row.ok for row in final.rows), [(row.contestant, row.reason) for row in final.rows]
    (mine,) = final.foreign
    best = final.baseline("cublaslt_auto")
    assert best is not None and mine.median_us > best.median_us and mine.process_rounds == best.process_rounds
    print(mine.detail)


@pytest.mark.parametrize("layout", CUDA_L2)
def test_cuda_l2s_entry_is_padded_and_transposed_inside(
    layout: Layout, worker: Worker, cuda_l2: dict[Layout, Future[ForeignKernel]]
) -> None:
    try:
        kernel = cuda_l2[layout].result()
    except ForeignBuildError:
        raise
    except ToolchainError as error:
        pytest.skip(str(error))
    status, detail, _ = run(worker, kernel, CUDA_L2[layout])
    assert status is Status.CORRECT and "measure=graph" in detail, detail
    assert "padding to 96x160x32" in kernel.detail and ("transposing B" in kernel.detail) == (layout == "nn")
