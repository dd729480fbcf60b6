"""Real NVRTC compiles for sm_90a, no GPU needed: the corners of the space, and what must not pass for a kernel."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import pytest

from cudal2.build.compiler import compile_source
from cudal2.build.toolchain import Toolchain
from cudal2.codegen import KernelSource, headers_digest, render
from cudal2.errors import ToolchainError
from cudal2.space.config import Sm90WsConfig

TOOLCHAIN = Toolchain.detect()
NO_HEADERS = Path("no-headers")
BASE = Sm90WsConfig(
    tile_m=128,
    tile_n=128,
    tile_k=64,
    stages=4,
    schedule="coop",
    consumers=2,
    cluster_m=1,
    cluster_n=1,
    split_k=1,
    epilogue="tma",
    ctas_per_sm=1,
)
PINGPONG = dataclasses.replace(BASE, schedule="pingpong")
SPLIT = dataclasses.replace(
    BASE, tile_m=64, consumers=1, tile_n=64, epilogue="direct", persistent=False, tile_k=128, stages=6
)
SWAPPED = dataclasses.replace(BASE, tile_m=168, consumers=1, swap_ab=True)
CORNERS = [
    (dataclasses.replace(BASE, tile_n=256, cluster_m=2), "fp32", "tn", "fp16"),
    (dataclasses.replace(BASE, tile_m=256, tile_n=32, cluster_n=2, stages=5, epilogue="direct"), "fp32", "nn", "fp16"),
    (dataclasses.replace(PINGPONG, tile_n=160), "fp16", "tn", "fp16"),
    (dataclasses.replace(PINGPONG, tile_m=64, tile_n=96, stages=2, ctas_per_sm=2), "fp32", "nn", "fp16"),
    (dataclasses.replace(BASE, tile_m=192, consumers=3, tile_n=128, tile_k=128, stages=2), "fp32", "tn", "fp16"),
    (dataclasses.replace(SPLIT, split_k=8), "fp32", "nn", "fp16"),
    (dataclasses.replace(SPLIT, tile_n=32, stages=12, tile_k=64), "fp16", "tn", "fp16"),
    (dataclasses.replace(BASE, tile_n=256, cluster_m=2), "fp32", "nn", "bf16"),
    (dataclasses.replace(PINGPONG, tile_m=64, tile_n=96, stages=2, ctas_per_sm=2), "fp32", "tn", "bf16"),
    (dataclasses.replace(SPLIT, split_k=8), "fp32", "nn", "bf16"),
    (dataclasses.replace(SWAPPED, tile_m=224, consumers=2, cluster_n=2), "fp32", "nn", "fp16"),
    (dataclasses.replace(SWAPPED, schedule="pingpong", consumers=2), "fp32", "tn", "bf16"),
    (dataclasses.replace(SWAPPED, epilogue="direct", stages=3), "fp16", "nn", "fp16"),
    (dataclasses.replace(SWAPPED, tile_m=96, split_k=4, epilogue="direct", persistent=False), "fp32", "tn", "fp16"),
]


@pytest.fixture(scope="module")
def pch_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("pch")


def source(text: str, include: str = "", threads: int = 128, register_pool: int = 0) -> KernelSource:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return KernelSource(
        "test_kernel",
        f"{include}\n{text}",
        digest,
        headers_digest(text, NO_HEADERS),
        threads,
        0,
        register_pool,
        NO_HEADERS,
    )


@pytest.mark.parametrize("request_", CORNERS, ids=lambda request: "-".join((request[0].build_name, *request[1:])))
def test_corner_of_the_space_compiles_without_spilling(request_, pch_dir):
    config, kernel = request_[0], render(*request_)
    result = compile_source(kernel, TOOLCHAIN, pch_dir)
    assert result.reason == ""
    assert result.cubin.startswith(b"\x7fELF")
    assert b"cudal2_gemm" in result.cubin
    assert result.spill_bytes == 0
    assert config.ctas_per_sm * result.registers * kernel.threads <= 65_536
    assert result.registers * kernel.threads >= kernel.register_pool


def test_second_source_of_a_process_reads_the_precompiled_header(pch_dir):
    results = [compile_source(render(PINGPONG, acc, "tn"), TOOLCHAIN, pch_dir) for acc in ("fp32", "fp16")]
    assert results[1].pch_used
    assert results[1].cubin != results[0].cubin


def including(header: Path) -> KernelSource:
    tiny = source('extern "C" __global__ void cudal2_gemm(int* out) { out[0] = marked; }', f'#include "{header.name}"')
    return dataclasses.replace(tiny, include_dir=header.parent, headers=headers_digest(tiny.text, header.parent))


def test_edited_header_is_compiled_not_its_precompiled_ancestor(tmp_path, tmp_path_factory):
    header, pch_dir = tmp_path / "marked.cuh", tmp_path_factory.mktemp("pch")
    header.write_text("__device__ int marked = 1;")
    results = [compile_source(including(header), TOOLCHAIN, pch_dir) for _ in range(2)]
    assert results[1].pch_used
    header.write_text("__device__ int marked = 2, another;")
    edited = compile_source(including(header), TOOLCHAIN, pch_dir)
    assert b"another" in edited.cubin
    assert b"another" not in results[1].cubin


def test_header_edited_after_the_render_stops_the_build(tmp_path):
    header = tmp_path / "marked.cuh"
    header.write_text("__device__ int marked = 1;")
    stale = including(header)
    header.write_text("__device__ int marked = 2;")
    with pytest.raises(ToolchainError, match="changed during the build: run it again"):
        compile_source(stale, TOOLCHAIN)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"schedule": "pingpong", "tile_m": 192, "consumers": 3}, "ping-pong alternates two consumer warp groups"),
        ({"consumers": 3}, "64 or 128 wgmma rows per consumer warp group"),
        ({"split_k": 2}, "split-K: cooperative"),
    ],
)
def test_template_refuses_what_the_rules_refuse(change, sentence, pch_dir):
    result = compile_source(render(dataclasses.replace(BASE, **change), "fp32", "tn"), TOOLCHAIN, pch_dir)
    assert result.cubin == b""
    assert result.reason.startswith("rejected by NVRTC: ")
    assert sentence in result.log


GMMA = "#include <cute/arch/mma_sm90_gmma.hpp>"
SERIALISED = """
namespace gmma = cute::SM90::GMMA;
using Mma = gmma::MMA_64x8x16_F32F16F16_SS<gmma::Major::K, gmma::Major::K>;
extern "C" __global__ void __launch_bounds__(128) cudal2_gemm(float* out) {
  float d[4] = {0, 0, 0, 0};
  for (int i = 0; i < 2; ++i) {
    Mma::fma(threadIdx.x, 3, d[0], d[1], d[2], d[3], gmma::ScaleOut::One);
    d[0] += 1.0f;
  }
  cute::warpgroup_commit_batch();
  cute::warpgroup_wait<0>();
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = d[i];
}
"""


def test_serialised_wgmma_is_a_failure():
    result = compile_source(source(SERIALISED, GMMA), TOOLCHAIN)
    assert result.cubin == b""
    assert "wgmma.mma_async instructions are serialized" in result.reason
    assert "\n" not in result.reason
    assert result.reason.split()[1].startswith("(C75"), "the number is what one searches for"


def test_ignored_setmaxnreg_is_a_failure():
    text = """extern "C" __global__ void cudal2_gemm(float* out) {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
      out[0] = 1;
    }"""
    result = compile_source(source(text), TOOLCHAIN)
    assert result.cubin == b""
    assert "'setmaxnreg' ignored" in result.reason


SMALL = 'extern "C" __global__ void __launch_bounds__(384) cudal2_gemm(float* out) { out[threadIdx.x] = 1; }'


def test_register_pool_too_small_for_setmaxnreg_is_a_failure():
    assert compile_source(source(SMALL, threads=384), TOOLCHAIN).reason == ""
    result = compile_source(source(SMALL, threads=384, register_pool=64_512), TOOLCHAIN)
    assert result.cubin == b""
    assert result.reason.startswith("setmaxnreg would hang: ")


def test_spills_are_recorded_not_refused():
    text = """extern "C" __global__ void __launch_bounds__(256, 8) cudal2_gemm(float* p, int n) {
      float r[128];
      for (int i = 0; i < 128; ++i) r[i] = p[i * n];
      for (int i = 0; i < 128; ++i) p[i] = r[i * 7 % 128] * r[i];
    }"""
    result = compile_source(source(text), TOOLCHAIN)
    assert result.reason == ""
    assert result.registers == 32
    assert result.spill_bytes > 0


def test_usage_is_that_of_our_kernel_not_of_its_neighbours():
    kernel = """extern "C" __global__ void {name}(float* p) {{
      __shared__ float s[{words}];
      s[threadIdx.x] = p[0];
      __syncthreads();
      p[1] = s[0];
    }}"""
    neighbours = (("before", 2048), ("cudal2_gemm", 32), ("later", 1024))
    text = "\n".join(kernel.format(name=name, words=words) for name, words in neighbours)
    assert compile_source(source(text), TOOLCHAIN).static_smem_bytes == 128


def test_rejected_source_says_where_in_one_line_and_all_in_the_log():
    result = compile_source(source('extern "C" __global__ void cudal2_gemm() {\n  nonsense;\n  more;\n}'), TOOLCHAIN)
    assert result.cubin == b""
    assert result.reason.startswith("rejected by NVRTC: cudal2_gemm.cu(3): error:")
    assert "nonsense" in result.reason
    assert "more" in result.log


def test_too_few_registers_for_an_instruction_says_so(pch_dir):
    crowded = dataclasses.replace(BASE, tile_m=256, tile_n=256, stages=2, ctas_per_sm=2)
    result = compile_source(render(crowded, "fp32", "tn"), TOOLCHAIN, pch_dir)
    assert result.cubin == b""
    assert "Insufficient registers" in result.reason


def test_precompiled_header_that_cannot_be_written_costs_time_only(tmp_path):
    missing = tmp_path / "missing"
    result = compile_source(source(SMALL, threads=384), TOOLCHAIN, missing)
    assert result.reason == ""
    assert result.pch_failed
    assert not compile_source(source(SMALL, threads=384), TOOLCHAIN, tmp_path).pch_failed


def test_missing_header_is_our_failure_not_the_kernels():
    with pytest.raises(ToolchainError, match=r"lost\.hpp.*--force-reinstall"):
        compile_source(source(SMALL, "#include <cute/lost.hpp>"), TOOLCHAIN)


def test_source_without_our_entry_is_a_failure():
    result = compile_source(source('extern "C" __global__ void other() {}'), TOOLCHAIN)
    assert result.reason == "ptxas reported no entry function 'cudal2_gemm'"
