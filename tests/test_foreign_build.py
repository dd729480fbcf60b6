"""Foreign sources into libraries: what is kept, what is built again, and one line for each way not to get there."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from cudal2.build import cuda_l2, foreign
from cudal2.build.foreign import ForeignBuildError, ForeignSource, build_foreign
from cudal2.build.nvcc import Nvcc
from cudal2.errors import ToolchainError, UsageError
from cudal2.problem import Problem

PROBLEM = Problem(64, 64, 64)
ENTRY = (
    "(const void* a, const void* b, void* c, int m, int n, int k, void* w, size_t bytes, cudaStream_t s) { return 0; }"
)
CUDA_L2 = """#include <torch/types.h>
auto BM = Int<96>{};
  auto BN=Int< 128 >{};
auto BK = Int<64>{};
"""
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")


def source(folder: Path, text: str, entry: str = "gemm", **options) -> ForeignSource:
    path = folder / "kernel.cu"
    path.write_text(text)
    return ForeignSource(path, entry, **options)


def fake_nvcc(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "toolkit" / "bin" / "nvcc"
    path.parent.mkdir(parents=True)
    version = 'if [ "$1" = --version ]; then echo "release 13.0, V13.0.1"; exit; fi'
    path.write_text(f"#!/bin/sh\n{version}\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(folder / "toolkit"))


@needs_nvcc
def test_a_source_is_built_once_and_again_when_a_header_changes(tmp_path: Path) -> None:
    header = tmp_path / "part.cuh"
    header.write_text("// one\n")
    given = source(tmp_path, f'#include "part.cuh"\nextern "C" int gemm{ENTRY}')
    first, second = (build_foreign(given, PROBLEM, 1 << 20) for _ in range(2))
    assert first == second and first.library.is_file() and first.name == "foreign:kernel"
    assert "gemm" in first.detail and "nvcc=" in first.detail
    header.write_text("// two\n")
    third = build_foreign(given, PROBLEM, 1 << 20)
    assert third.library != first.library
    third.library.write_bytes(b"damaged")
    assert build_foreign(given, PROBLEM, 1 << 20).library.stat().st_size > 1000


@needs_nvcc
@pytest.mark.parametrize(
    ("text", "entry", "flags", "reason"),
    [
        ("int x = ;", "gemm", (), "does not compile (KERNEL(1): error: expected an expression)"),
        (f"int other{ENTRY}", "gemm", (), "entry 'gemm' is not in it"),
        ("int gemm(int x) { return x; }", "gemm", (), "entry 'gemm' does not have the documented signature"),
        (f"int gemm{ENTRY}", "gemm", ("-lnowhere",), "does not compile (/usr/bin/ld: cannot find -lnowhere"),
    ],
)
def test_one_line_and_the_log_when_it_does_not_build(
    text: str, entry: str, flags: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ForeignBuildError) as caught:
        build_foreign(source(tmp_path, text, entry, flags=flags), PROBLEM, 1)
    message = str(caught.value)
    assert reason.replace("KERNEL", str(tmp_path / "kernel.cu")) in message and "\n" not in message
    log = Path(message.rpartition("log: ")[2])
    assert "nvcc" in log.read_text().splitlines()[0]
    assert caught.value.exit_code == 2


def test_a_compiler_that_never_returns_is_ended_with_all_it_started(tmp_path, monkeypatch) -> None:
    fake_nvcc(tmp_path, f"sleep 600 & echo $! > {tmp_path}/pid; wait", monkeypatch)
    with pytest.raises(ForeignBuildError, match=r"nvcc took longer than 0.5 s\); log: "):
        build_foreign(source(tmp_path, ""), PROBLEM, 1, deadline_s=0.5)
    pid = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 10.0
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()


def test_a_compiler_that_is_killed_is_a_reason(tmp_path, monkeypatch) -> None:
    fake_nvcc(tmp_path, "kill -9 $$", monkeypatch)
    with pytest.raises(ForeignBuildError, match="nvcc died of SIGKILL"):
        build_foreign(source(tmp_path, ""), PROBLEM, 1)


def test_nvcc_is_looked_for_and_what_to_do_is_said(tmp_path, monkeypatch) -> None:
    fake_nvcc(tmp_path, "", monkeypatch)
    assert Nvcc.detect() == Nvcc(tmp_path / "toolkit" / "bin" / "nvcc", "13.0.1")
    old = tmp_path / "toolkit" / "bin" / "nvcc"
    old.write_text('#!/bin/sh\necho "release 11.8, V11.8.89"')
    with pytest.raises(ToolchainError, match=r"is 11.8.89, older than 12.0: install"):
        Nvcc.detect()
    monkeypatch.setattr("cudal2.build.nvcc._candidates", lambda: iter([tmp_path / "none"]))
    with pytest.raises(ToolchainError, match="nvcc was not found: install a CUDA toolkit"):
        Nvcc.detect()


@pytest.mark.parametrize("entry", ["a b", "", "f()", "1st", "a::"])
def test_what_cannot_be_an_entry(entry: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no name of a function"):
        build_foreign(source(tmp_path, "", entry), PROBLEM, 1)


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        build_foreign(ForeignSource(tmp_path / "none.cu", "gemm"), PROBLEM, 1)


def test_cuda_l2s_tile_is_read_as_its_own_harness_reads_it() -> None:
    assert cuda_l2.tile_of(CUDA_L2) == {"BM": 96, "BN": 128, "BK": 64}
    assert cuda_l2.tile_of("constexpr int BM = 96;") == {}
    assert cuda_l2.tile_of("BM = Int<96>{}") == {}
    problem = Problem(100, 130, 64)
    m, n, k = 192, 256, 64
    assert cuda_l2.CudaL2Needs.read(CUDA_L2, "gemm").workspace_bytes(problem) == 2 * (m * k + 2 * n * k + m * n) + 1024


@pytest.mark.parametrize("layout", ["tn", "nn"])
def test_the_wrapper_of_cuda_l2s_entry_knows_layout_and_tile(layout, tmp_path: Path) -> None:
    given = source(tmp_path, CUDA_L2, "cuda_l2_h100_fp32", cuda_l2=True)
    text = foreign._wrapper(given, layout, cuda_l2.CudaL2Needs(cuda_l2.tile_of(CUDA_L2), False, True))
    assert "kReadsRows = false, kReadsColumns = true;" in text
    assert f"kTransposed = {'true' if layout == 'tn' else 'false'};" in text
    assert "kTileM = 96, kTileN = 128, kTileK = 64" in text
    assert f'#include "{tmp_path / "kernel.cu"}"' in text and "documented_signature = cuda_l2_h100_fp32" in text


TWO_FORMS = """
void helper(half *b, half *right) { use(b); }
void ns::cuda_l2_h100_fp32(torch::Tensor a, torch::Tensor b,
                           torch::Tensor right, torch::Tensor c) {
  CHECK_TORCH_TENSOR_DTYPE(b, torch::kHalf)  // b and right are described, { not read
  CHECK_TORCH_TENSOR_SHAPE(right, K, N)
  const int N = b.size(1), K = right . sizes()[0];
  (void)right;
  if (N) { body; }
}
void after() { use(b, right); }
"""


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ("", (False, False)),
        ("run(b.data_ptr());", (True, False)),
        ("run(reinterpret_cast<half *>(right.data_ptr()));", (False, True)),
        ("run(a, b, right, c);", (True, True)),
        ("auto other = b; /* right */", (True, False)),
        ("TORCH_CHECK(right.is_cuda());", (False, False)),
    ],
)
def test_which_forms_of_b_an_entry_reads(body, read) -> None:
    assert cuda_l2.forms_read(TWO_FORMS.replace("body;", body), "ns::cuda_l2_h100_fp32") == read


def test_an_entry_that_is_not_understood_is_given_both_forms() -> None:
    assert cuda_l2.forms_read("MACRO(cuda_l2_h100_fp32)", "cuda_l2_h100_fp32") == (True, True)
    assert cuda_l2.forms_read("void cuda_l2_x_fp32(at::Tensor a, at::Tensor b) {}", "cuda_l2_x_fp32") == (True, True)
