"""Corners of the ``sm90_small`` space through NVRTC; no GPU."""

from __future__ import annotations

import dataclasses

import pytest

from cudal2.arch import SM90
from cudal2.build.compiler import compile_source
from cudal2.build.toolchain import Toolchain
from cudal2.codegen import render
from cudal2.problem import Acc, Dtype, Layout
from cudal2.space.config import Sm90SmallConfig

C = Sm90SmallConfig
CORNERS: tuple[tuple[Sm90SmallConfig, Acc, Layout, Dtype], ...] = (
    (C(64, 32, 64, 4, "wgmma", 4, 1), "fp32", "tn", "fp16"),
    (C(64, 8, 256, 2, "wgmma", 4, 16), "fp32", "tn", "fp16"),
    (C(64, 96, 64, 3, "wgmma", 8, 7), "fp16", "nn", "fp16"),
    (C(128, 128, 128, 2, "wgmma", 4, 4), "fp32", "nn", "bf16"),
    (C(128, 48, 64, 1, "wgmma", 8, 1), "fp16", "tn", "fp16"),
    (C(32, 32, 64, 4, "mma", 4, 1), "fp32", "tn", "fp16"),
    (C(16, 16, 128, 2, "mma", 1, 5), "fp16", "nn", "fp16"),
    (C(64, 64, 64, 6, "mma", 4, 3), "fp32", "tn", "bf16"),
    (C(32, 128, 256, 1, "mma", 4, 2), "fp32", "nn", "fp16"),
)


@pytest.mark.parametrize(
    ("config", "acc", "layout", "dtype"), CORNERS, ids=lambda value: getattr(value, "build_name", str(value))
)
def test_corner_of_the_space_compiles_without_spilling(
    config: Sm90SmallConfig, acc: Acc, layout: Layout, dtype: Dtype
) -> None:
    kernel = render(config, acc, layout, dtype)
    result = compile_source(kernel, Toolchain.detect(SM90))
    assert result.reason == ""
    assert result.cubin.startswith(b"\x7fELF") and b"cudal2_gemm" in result.cubin
    assert result.spill_bytes == 0 and result.static_smem_bytes == 0
    assert result.registers * kernel.threads <= SM90.registers_per_sm


@pytest.mark.parametrize(
    ("corner", "change", "words"),
    [
        (0, ("kSmemBytes = ", "kSmemBytes = 1"), "shared memory disagrees"),
        (0, ("kThreads = ", "kThreads = 1"), "threads disagree"),
        (0, ("kTileK = 64", "kTileK = 32"), "one to four 128-byte swizzle rows"),
        (0, ("kTileM = 64", "kTileM = 32"), "whole warp groups of 64 rows"),
        (0, ("kTileN = 32", "kTileN = 20"), "whole columns of its instruction"),
        (2, ("kTileN = 96", "kTileN = 48"), "boxes of 16 columns"),
        (1, ("kSplitK = 16", "kSplitK = 17"), "no cluster is larger"),
        (5, ("kTileM = 32", "kTileM = 48"), "warps share the tile evenly"),
        (5, ("kTileN = 32", "kTileN = 16"), "whole columns of its instruction"),
        (4, ("kBf16 = false", "kBf16 = true"), "no instruction adds bf16"),
    ],
)
def test_an_illegal_instantiation_is_refused_by_the_template(corner: int, change: tuple[str, str], words: str) -> None:
    kernel = render(*CORNERS[corner])
    assert change[0] in kernel.text
    broken = dataclasses.replace(kernel, text=kernel.text.replace(*change))
    result = compile_source(broken, Toolchain.detect(SM90))
    assert not result.cubin and words in result.log
