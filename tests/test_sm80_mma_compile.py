"""Corners of the ``sm80_mma`` space through NVRTC for every architecture that runs it; no GPU."""

from __future__ import annotations

import dataclasses

import pytest

from cudal2.arch import SM80, SM86, SM90, Arch
from cudal2.build.compiler import compile_source
from cudal2.build.toolchain import Toolchain
from cudal2.codegen import render
from cudal2.problem import Acc, Dtype, Layout
from cudal2.space.config import Sm80MmaConfig

C = Sm80MmaConfig
CORNERS: tuple[tuple[Arch, Sm80MmaConfig, Acc, Layout, Dtype], ...] = (
    (SM80, C(128, 128, 32, 4, 2, 2, "swizzle", 2, "plain", "wide", 16, 2), "fp32", "tn", "fp16"),
    (SM80, C(256, 128, 64, 3, 4, 2, "swizzle", 2, "staggered", "wide", 16, 1), "fp32", "nn", "fp16"),
    (SM86, C(64, 160, 32, 4, 2, 1, "pad", 1, "staggered", "direct", 4, 2), "fp16", "tn", "fp16"),
    (SM86, C(16, 16, 16, 6, 1, 1, "swizzle", 1, "plain", "direct", 2, 4), "fp32", "nn", "fp16"),
    (SM90, C(64, 64, 64, 4, 2, 2, "swizzle", 2, "plain", "wide", 8, 3), "fp32", "tn", "fp16"),
    (SM80, C(128, 128, 32, 4, 2, 2, "swizzle", 2, "plain", "wide", 16, 2), "fp32", "nn", "bf16"),
    (SM86, C(32, 32, 64, 2, 2, 1, "pad", 2, "staggered", "wide", 2, 4), "fp32", "tn", "bf16"),
    (SM90, C(64, 64, 64, 4, 2, 2, "swizzle", 2, "plain", "wide", 8, 3), "fp32", "tn", "bf16"),
    (SM80, C(128, 128, 32, 4, 2, 2, "swizzle", 2, "plain", "wide", 16, 1, split_k=2), "fp32", "nn", "fp16"),
    (SM86, C(32, 32, 128, 2, 2, 2, "swizzle", 1, "plain", "direct", 2, 4, split_k=16), "fp16", "tn", "fp16"),
    (SM90, C(64, 64, 64, 4, 2, 2, "pad", 2, "staggered", "wide", 4, 2, split_k=3), "fp32", "tn", "bf16"),
    (SM90, C(128, 128, 32, 4, 2, 2, "swizzle", 2, "plain", "shifted", 16, 2), "fp32", "tn", "fp16"),
    (SM86, C(64, 160, 32, 4, 2, 1, "pad", 1, "staggered", "shifted", 4, 2), "fp16", "nn", "fp16"),
    (SM80, C(64, 64, 16, 5, 2, 2, "pad", 1, "plain", "shifted", 2, 1, split_k=8), "fp32", "nn", "bf16"),
)
BF16_IN_FP16 = "kBf16 = true;\n  static constexpr bool kAccFp16 = true"


@pytest.mark.parametrize(
    ("arch", "config", "acc", "layout", "dtype"), CORNERS, ids=lambda value: getattr(value, "build_name", value)
)
def test_corner_of_the_space_compiles_without_spilling(
    arch: Arch, config: Sm80MmaConfig, acc: Acc, layout: Layout, dtype: Dtype
) -> None:
    kernel = render(config, acc, layout, dtype)
    result = compile_source(kernel, Toolchain.detect(arch))
    assert result.reason == ""
    assert result.cubin.startswith(b"\x7fELF") and b"cudal2_gemm" in result.cubin
    assert f".target {arch.target}".encode() in result.cubin or arch.target in result.log
    assert result.spill_bytes == 0 and result.static_smem_bytes == 0
    assert config.ctas_per_sm * result.registers * kernel.threads <= arch.registers_per_sm


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("static constexpr int kSmemBytes = ", "static constexpr int kSmemBytes = 1"), "shared memory disagrees"),
        (("static constexpr int kThreads = ", "static constexpr int kThreads = 1"), "threads disagree"),
        (("static constexpr int kCopyBytes = 16", "static constexpr int kCopyBytes = 12"), "no such copy"),
        (("static constexpr int kSplitK = 1", "static constexpr int kSplitK = 0"), "a slice of K at least"),
        (("static constexpr int kStages = 4", "static constexpr int kStages = 1"), "one stage is read"),
        (("static constexpr int kTileK = 32", "static constexpr int kTileK = 48"), "even number of steps"),
        (("static constexpr int kWarpsM = 2", "static constexpr int kWarpsM = 3"), "whole 16 x 16 blocks"),
        (("kBf16 = false;\n  static constexpr bool kAccFp16 = false", BF16_IN_FP16), "no instruction adds bf16"),
    ],
)
def test_an_illegal_instantiation_is_refused_by_the_template(change: tuple[str, str], words: str) -> None:
    kernel = render(CORNERS[0][1], "fp32", "tn")
    assert change[0] in kernel.text
    broken = dataclasses.replace(kernel, text=kernel.text.replace(*change))
    result = compile_source(broken, Toolchain.detect(SM80))
    assert not result.cubin and words in result.log
