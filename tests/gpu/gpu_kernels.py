"""Kernels of the GPU tests: corners of the space, and kernels broken on purpose.

Where the GPU machine cannot compile, fill a cache elsewhere and carry it over:

    python tests/gpu/gpu_kernels.py DIR
    CUDAL2_TEST_CACHE=DIR python -m pytest tests/gpu
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cudal2.arch import SM90
from cudal2.build.artifact import BuildResult, BuiltKernel
from cudal2.build.cache import BuildCache, resolve_toolchain
from cudal2.build.compiler import compile_source
from cudal2.build.pool import BuildPool
from cudal2.codegen import build_key, render
from cudal2.errors import NothingValidError
from cudal2.paths import kernels_dir
from cudal2.problem import Layout, Problem
from cudal2.settings import BenchSettings
from cudal2.space.config import KernelConfig, Sm80MmaConfig, Sm90SmallConfig, Sm90WsConfig
from cudal2.space.defaults import default_configs
from cudal2.space.families import FAMILIES
from cudal2.space.space import SearchSpace

#: Short replays: what is tested with them is right or wrong.
QUICK = BenchSettings(replay_ms=0.2, replays=2)

K = Sm90WsConfig
CORNERS = (
    K(64, 32, 64, 2, "coop", 1, 1, 1, 1, "direct", 2, "m", 1, False),
    K(64, 32, 64, 12, "coop", 1, 1, 1, 1, "tma", 1, "m", 1, False),
    K(64, 64, 64, 4, "coop", 1, 1, 1, 1, "tma", 2, "n", 8, False),
    K(64, 256, 64, 4, "coop", 1, 1, 1, 1, "tma", 1, "m", 8, True),
    K(128, 128, 64, 4, "coop", 2, 2, 1, 1, "tma", 1, "m", 4, False),
    K(128, 256, 64, 4, "coop", 2, 1, 2, 1, "tma", 1, "m", 8, True),
    K(256, 128, 64, 4, "coop", 2, 2, 1, 1, "tma", 1, "n", 16, True),
    K(192, 128, 64, 4, "coop", 3, 1, 1, 1, "tma", 1, "m", 2, False),
    K(128, 192, 64, 4, "pingpong", 2, 2, 1, 1, "tma", 1, "m", 8, True),
    K(64, 256, 64, 4, "pingpong", 2, 1, 1, 1, "tma", 1, "n", 4, True),
    K(64, 96, 128, 3, "pingpong", 2, 1, 2, 1, "tma", 1, "m", 8, True),
    K(128, 96, 128, 3, "coop", 2, 1, 1, 1, "direct", 1, "m", 8, False),
    K(64, 160, 64, 5, "coop", 1, 1, 1, 1, "tma", 1, "m", 8, False),
    K(64, 224, 64, 4, "coop", 1, 1, 1, 1, "direct", 1, "n", 2, True),
    K(64, 64, 128, 4, "coop", 1, 1, 1, 8, "direct", 1, "m", 8, False),
    K(128, 128, 64, 4, "coop", 2, 1, 1, 4, "direct", 1, "m", 1, False),
    K(128, 64, 64, 6, "coop", 2, 1, 1, 2, "direct", 1, "n", 8, False),
    K(128, 128, 64, 2, "coop", 2, 1, 1, 1, "tma", 2, "m", 8, True),
    # Two by two and four in a row; columns that 32 does not divide.
    K(128, 144, 64, 4, "coop", 2, 2, 2, 1, "tma", 1, "m", 2, False),
    K(128, 176, 64, 4, "pingpong", 2, 1, 4, 1, "tma", 1, "m", 4, True),
    K(64, 16, 64, 8, "coop", 1, 1, 1, 1, "tma", 1, "m", 8, False),
    K(64, 80, 128, 3, "coop", 1, 1, 1, 2, "direct", 1, "m", 1, False),
    K(128, 240, 64, 4, "coop", 2, 1, 1, 1, "direct", 1, "n", 2, False),
    # Swapped: boxes that share the rows evenly or overlap, an odd number of 8 x 8 matrices in one, every way out.
    K(96, 64, 64, 8, "coop", 1, 1, 1, 1, "tma", 1, "m", 1, False, swap_ab=True),
    K(64, 128, 64, 3, "coop", 1, 1, 1, 1, "tma", 2, "n", 4, True, swap_ab=True),
    K(16, 128, 128, 3, "coop", 2, 1, 2, 1, "tma", 1, "n", 2, False, swap_ab=True),
    K(168, 128, 64, 4, "pingpong", 2, 1, 1, 1, "tma", 1, "m", 4, True, swap_ab=True),
    K(192, 64, 64, 4, "pingpong", 2, 2, 1, 1, "tma", 1, "n", 8, True, swap_ab=True),
    K(224, 128, 64, 4, "coop", 2, 1, 2, 1, "tma", 1, "m", 8, True, swap_ab=True),
    K(88, 256, 64, 4, "coop", 2, 2, 1, 1, "tma", 1, "n", 2, False, swap_ab=True),
    K(128, 192, 64, 4, "coop", 3, 1, 1, 1, "tma", 1, "m", 1, False, swap_ab=True),
    K(168, 64, 64, 4, "coop", 1, 1, 1, 1, "direct", 1, "n", 4, True, swap_ab=True),
    K(64, 256, 64, 3, "coop", 2, 1, 1, 1, "direct", 1, "m", 2, False, swap_ab=True),
    K(176, 128, 64, 4, "coop", 2, 2, 2, 1, "tma", 1, "m", 1, False, swap_ab=True),
    K(96, 64, 64, 6, "coop", 1, 4, 1, 1, "tma", 1, "n", 2, True, swap_ab=True),
    K(96, 128, 64, 5, "coop", 2, 1, 1, 4, "direct", 1, "m", 1, False, swap_ab=True),
    K(168, 64, 128, 2, "coop", 1, 1, 1, 3, "direct", 1, "n", 2, False, swap_ab=True),
    # Slices of K that meet in a workspace: alone and in clusters, with even, uneven and empty shares of the sums.
    *(
        replace(config, split_via="workspace")
        for config in (
            K(128, 128, 64, 4, "coop", 2, 1, 1, 4, "direct", 1, "m", 1, False),
            K(64, 16, 64, 6, "coop", 1, 1, 1, 16, "direct", 2, "n", 2, False),
            K(128, 96, 128, 3, "coop", 2, 2, 1, 3, "direct", 1, "m", 1, False),
            K(64, 64, 64, 8, "coop", 1, 1, 2, 2, "direct", 1, "m", 4, False),
            K(128, 256, 64, 4, "coop", 2, 2, 2, 2, "direct", 1, "n", 1, False),
            K(168, 64, 64, 4, "coop", 1, 1, 1, 5, "direct", 1, "m", 1, False, swap_ab=True),
            K(256, 128, 64, 4, "coop", 2, 1, 2, 8, "direct", 1, "m", 2, False, swap_ab=True),
        )
    ),
    # Fewer registers for the producer, stores that L2 gives up first.
    K(128, 256, 64, 4, "coop", 2, 2, 1, 1, "tma", 1, "m", 8, True, producer_registers=24, store_hint="evict_first"),
    K(192, 64, 64, 4, "pingpong", 2, 1, 1, 1, "tma", 1, "n", 8, True, swap_ab=True, store_hint="evict_first"),
    K(256, 192, 64, 3, "coop", 2, 1, 1, 1, "direct", 1, "m", 4, True, producer_registers=24),
    # K tiles of one swizzle row of 32 or 64 bytes.
    K(64, 128, 16, 4, "coop", 1, 1, 1, 1, "tma", 1, "m", 8, False),
    K(128, 256, 32, 6, "coop", 2, 2, 1, 1, "tma", 1, "m", 4, True),
    K(96, 128, 32, 4, "coop", 2, 1, 2, 1, "direct", 1, "n", 2, False, swap_ab=True),
    # A that stays: alone and in clusters, taking turns, sharing a tile, swapped; rings longer and shorter than K.
    K(128, 192, 64, 4, "pingpong", 2, 1, 1, 1, "tma", 1, "m", 1, True, resident_a=2, store_hint="evict_first"),
    K(128, 128, 128, 3, "pingpong", 2, 2, 1, 1, "tma", 1, "m", 1, True, resident_a=2),
    K(64, 128, 64, 6, "pingpong", 2, 1, 2, 1, "tma", 1, "m", 1, True, resident_a=4),
    K(256, 128, 64, 4, "coop", 2, 1, 1, 1, "direct", 1, "m", 1, True, resident_a=1),
    K(64, 256, 64, 4, "coop", 1, 2, 2, 1, "tma", 1, "m", 1, True, resident_a=4),
    K(192, 128, 64, 4, "pingpong", 2, 1, 1, 1, "tma", 1, "m", 1, True, swap_ab=True, resident_a=4),
    K(256, 64, 64, 4, "pingpong", 2, 2, 1, 1, "tma", 1, "m", 1, True, swap_ab=True, resident_a=2),
    # Rings that A in every stage would leave no room for, and one of fewer stages than K has tiles.
    K(128, 192, 64, 6, "pingpong", 2, 1, 1, 1, "tma", 1, "m", 1, True, resident_a=2, l2_prefetch=2),
    K(128, 128, 64, 2, "coop", 2, 1, 1, 1, "tma", 1, "m", 1, True, resident_a=4, l2_prefetch=64),
    K(128, 64, 64, 5, "pingpong", 2, 1, 1, 1, "tma", 2, "m", 1, True, resident_a=2, l2_prefetch=2),
    # A last wave shared out along K: taking turns, sharing a tile, in clusters, swapped, two to a multiprocessor.
    *(
        replace(config, stream_k=True)
        for config in (
            K(128, 128, 64, 6, "pingpong", 2, 1, 1, 1, "tma", 1, "m", 8, True, store_hint="evict_first"),
            K(128, 192, 64, 4, "pingpong", 2, 1, 2, 1, "tma", 1, "n", 2, True),
            K(160, 128, 64, 5, "pingpong", 2, 1, 1, 1, "tma", 1, "m", 4, True, swap_ab=True),
            K(128, 256, 64, 4, "coop", 2, 2, 1, 1, "tma", 1, "n", 4, True),
            K(192, 96, 64, 4, "coop", 3, 1, 1, 1, "direct", 1, "m", 2, True),
            K(64, 64, 64, 6, "coop", 1, 1, 1, 1, "direct", 2, "m", 8, True, l2_prefetch=2),
        )
    ),
    # Operands that are copied first: by more CTAs than there are tiles and by fewer, in every way that K is shared.
    *(
        replace(config, padded=True)
        for config in (
            K(64, 32, 64, 4, "coop", 1, 1, 1, 1, "direct", 2, "m", 1, False),
            K(128, 128, 64, 4, "coop", 2, 2, 1, 1, "tma", 1, "m", 4, False),
            K(64, 64, 64, 3, "coop", 1, 1, 1, 1, "direct", 4, "n", 4, False),
            K(128, 192, 64, 4, "pingpong", 2, 1, 2, 1, "tma", 1, "n", 2, True),
            K(160, 128, 64, 5, "pingpong", 2, 1, 1, 1, "direct", 1, "m", 4, True, swap_ab=True),
            K(64, 64, 128, 4, "coop", 1, 1, 1, 8, "direct", 1, "m", 8, False),
            K(128, 96, 128, 3, "coop", 2, 2, 1, 3, "direct", 1, "m", 1, False, split_via="workspace"),
            K(192, 128, 64, 4, "coop", 3, 1, 1, 1, "tma", 1, "m", 2, False, store_hint="evict_first"),
            K(128, 128, 64, 6, "pingpong", 2, 1, 1, 1, "direct", 1, "m", 8, True, stream_k=True),
        )
    ),
    # Boxes of columns that overlap, more boxes under way.
    K(64, 104, 64, 6, "coop", 1, 1, 1, 1, "tma", 1, "m", 2, False, store_buffers=3),
    K(128, 168, 64, 4, "pingpong", 2, 1, 2, 1, "tma", 1, "m", 4, True, store_buffers=4, store_hint="evict_first"),
    K(256, 200, 64, 3, "coop", 2, 1, 1, 1, "tma", 1, "m", 8, True),
    K(200, 256, 64, 3, "coop", 2, 1, 1, 1, "tma", 1, "n", 8, True, swap_ab=True, store_buffers=3),
    K(192, 128, 64, 4, "pingpong", 2, 1, 1, 1, "tma", 1, "m", 1, True, swap_ab=True, resident_a=4, store_buffers=4),
    # Rows of C that TMA cannot store: copied operands and others, widths that 32 does not divide, a last wave in parts.
    K(64, 48, 64, 4, "coop", 1, 1, 1, 1, "shifted", 2, "m", 1, False),
    K(128, 192, 64, 4, "pingpong", 2, 1, 1, 1, "shifted", 1, "m", 8, True),
    K(128, 256, 64, 4, "coop", 2, 2, 1, 1, "shifted", 1, "n", 2, False),
    K(256, 136, 64, 4, "coop", 2, 1, 1, 1, "shifted", 1, "m", 4, True),
    K(128, 128, 64, 6, "pingpong", 2, 1, 1, 1, "shifted", 1, "m", 8, True, stream_k=True),
    K(64, 16, 64, 4, "coop", 1, 1, 2, 1, "shifted", 4, "m", 2, False, padded=True),
    K(128, 176, 64, 4, "pingpong", 2, 1, 1, 1, "shifted", 1, "m", 8, True, padded=True),
    K(192, 112, 64, 4, "coop", 3, 1, 1, 1, "shifted", 1, "m", 2, False, padded=True),
    K(128, 128, 64, 6, "pingpong", 2, 1, 1, 1, "shifted", 1, "m", 8, True, stream_k=True, padded=True),
    # Tensor maps that let L2 fetch half as much.
    K(128, 128, 64, 4, "coop", 2, 2, 1, 1, "tma", 1, "m", 4, False, l2_promotion=128),
    K(96, 64, 64, 6, "coop", 1, 1, 1, 1, "tma", 1, "n", 2, True, swap_ab=True, l2_promotion=128),
    K(128, 64, 64, 5, "coop", 2, 1, 1, 2, "direct", 1, "n", 8, False, l2_prefetch=2, l2_promotion=128),
)
S = Sm90SmallConfig
#: Rings shorter and longer than K, every width, splits that divide the sums evenly and not, both ways to multiply.
SMALL_CORNERS = (
    S(64, 8, 64, 4, "wgmma", 4, 1),
    S(64, 16, 128, 2, "wgmma", 4, 16, 64),
    S(64, 24, 64, 3, "wgmma", 4, 2),
    S(64, 32, 64, 1, "wgmma", 4, 1, 64),
    S(64, 32, 256, 2, "wgmma", 4, 1),
    S(64, 48, 64, 2, "wgmma", 4, 5),
    S(64, 64, 128, 3, "wgmma", 8, 8, 64),
    S(64, 96, 64, 4, "wgmma", 8, 1),
    S(64, 128, 64, 6, "wgmma", 4, 3),
    S(128, 32, 64, 4, "wgmma", 4, 4, 64),
    S(128, 48, 64, 2, "wgmma", 8, 7),
    S(128, 128, 64, 3, "wgmma", 8, 1, 64),
    S(128, 128, 128, 2, "wgmma", 4, 2),
    S(16, 16, 64, 4, "mma", 1, 1),
    S(16, 32, 128, 2, "mma", 2, 16, 64),
    S(16, 64, 64, 3, "mma", 4, 1, 64),
    S(32, 32, 64, 1, "mma", 4, 1),
    S(32, 48, 64, 4, "mma", 2, 6),
    S(32, 64, 256, 2, "mma", 8, 1, 64),
    S(32, 128, 64, 2, "mma", 4, 3),
    S(64, 64, 128, 2, "mma", 4, 8),
    S(64, 16, 64, 6, "mma", 4, 2, 64),
    S(64, 96, 64, 2, "mma", 8, 1),
    # Tensor maps that let L2 fetch half as much.
    S(64, 32, 64, 4, "wgmma", 4, 1, 64, l2_promotion=128),
    S(64, 64, 64, 3, "wgmma", 4, 2, l2_promotion=128),
    S(32, 32, 64, 2, "mma", 4, 1, 64, l2_promotion=128),
)
SMALL_SHAPES = (
    "65_24_72", "1_64_64", "64_4096_64", "256_256_256", "123_456_200", "300_520_1000", "64_64_4096", "72_40_16384",
    "1000_104_2056", "65_33_1096",
)  # fmt: skip
A = Sm80MmaConfig
#: Copy widths are the shape's: see :func:`build_mma`.
MMA_CORNERS = (
    A(128, 128, 32, 4, 2, 2, "swizzle", 2, "plain", "wide", 16, 2, "m", 8),
    A(16, 16, 16, 2, 1, 1, "swizzle", 1, "plain", "direct", 16, 4, "m", 1),
    A(16, 96, 64, 3, 1, 2, "swizzle", 2, "staggered", "wide", 16, 4, "n", 2),
    A(64, 64, 64, 6, 2, 2, "pad", 2, "plain", "wide", 16, 1, "n", 4),
    A(256, 128, 32, 3, 4, 2, "swizzle", 2, "staggered", "direct", 16, 1, "m", 4),
    A(128, 256, 64, 3, 2, 4, "swizzle", 1, "plain", "wide", 16, 1, "m", 8),
    A(64, 160, 32, 5, 2, 1, "pad", 1, "staggered", "direct", 16, 2, "m", 2),
    A(32, 192, 16, 6, 1, 4, "pad", 1, "plain", "wide", 16, 3, "n", 16),
    A(64, 32, 64, 4, 4, 1, "swizzle", 2, "plain", "direct", 16, 2, "m", 1),
    A(128, 64, 32, 3, 4, 2, "swizzle", 2, "staggered", "wide", 16, 1, "n", 2),
    A(64, 64, 32, 4, 2, 2, "pad", 2, "plain", "direct", 16, 2, "m", 4),
    A(64, 32, 64, 2, 4, 1, "swizzle", 1, "plain", "wide", 16, 2, "n", 1),
    A(192, 64, 32, 2, 4, 4, "swizzle", 2, "staggered", "wide", 16, 1, "m", 2),
    # Slices of K that meet in a workspace; K tiles as deep as can be.
    A(64, 64, 32, 4, 2, 2, "swizzle", 2, "plain", "wide", 16, 2, "m", 2, split_k=3),
    A(16, 16, 16, 2, 1, 1, "pad", 1, "plain", "direct", 16, 4, "m", 1, split_k=16),
    A(32, 32, 128, 2, 2, 2, "swizzle", 1, "plain", "direct", 16, 1, "n", 1, split_k=2),
    A(128, 64, 32, 3, 4, 2, "swizzle", 2, "staggered", "wide", 16, 1, "n", 1, split_k=2),
    A(32, 64, 128, 3, 2, 2, "pad", 2, "plain", "wide", 16, 1, "m", 1),
    # Rows of C that begin inside 16 bytes of memory.
    A(128, 128, 32, 2, 2, 2, "swizzle", 1, "plain", "shifted", 16, 2, "m", 1),
    A(64, 64, 32, 3, 2, 2, "swizzle", 2, "plain", "shifted", 16, 2, "n", 2, split_k=3),
    A(16, 96, 16, 2, 1, 2, "pad", 1, "staggered", "shifted", 16, 4, "m", 1),
    A(32, 32, 64, 2, 2, 2, "swizzle", 1, "plain", "shifted", 16, 4, "m", 1, split_k=16),
)
#: More elements than 31 bits count, in rows of C on 16 bytes and in others.
LARGE_C = (((50_001, 50_000, 16), MMA_CORNERS[0]), ((50_001, 50_001, 16), MMA_CORNERS[20]))
MMA_SHAPES = (
    "123_456_789", "1_1_1", "1_4096_4096", "4097_33_129", "300_200_7", "257_130_36", "1000_1001_1002", "128_96_8",
    "65_24_72", "1024_768_520",
)  # fmt: skip
#: One row, one column, one product, sizes that nothing divides, rows of every alignment.
ODD_SHAPES = (
    "123_456_789", "1_1_1", "1_1_8", "1_4096_4096", "1_4096_4097", "4096_1_512", "4096_1_513", "512_512_1", "1_1_16384",
    "7_9_8", "300_200_7", "129_513_1000", "33_70000_24", "1000_1001_1002", "70001_17_130",
)  # fmt: skip
SHAPES = (
    "123_456_200", "65_24_72", "1_64_64", "4096_64_64", "300_520_1000", "64_64_4096", "1024_1024_512", "2000_1000_512",
    "3000_2056_200", "5000_1544_104", "5000_2056_64",
    "2056_1544_1096", "4104_1032_1048",
    "301_515_200", "65_27_72", "3001_2055_200", "2056_1543_1096",
    "123_456_789", "65_33_1097", "1024_1024_513", "5001_2003_130", "2056_1544_1095",
)  # fmt: skip
KINDS = tuple((acc, layout) for acc in ("fp32", "fp16") for layout in ("tn", "nn"))
BF16_KINDS = tuple(("fp32", layout, "bf16") for layout in ("tn", "nn"))
TYPED_KINDS = (*((*kind, "fp16") for kind in KINDS), *BF16_KINDS)
#: Rules that forbid what is only a worse spelling of another configuration; the kernel must be right all the same.
HARMLESS = {
    "tile_k_padding", "stages_depth", "one_stage", "raster_single", "group_too_big", "persistent_single_wave",
    "swizzle_tiles",
}  # fmt: skip

#: What the broken kernels are made from: one CTA solves 64x64.
VICTIM = K(64, 64, 64, 2, "coop", 1, 1, 1, 1, "direct", 1, "m", 1, False)
CALL = "cudal2::sm90_ws<Config>(params);"
_ONCE = "if (threadIdx.x == 0 && blockIdx.x == 0)"
#: Name to (file below kernels/, what to replace, by what).
FAULTS = {
    "skips_last_k_tile": (
        "include/cudal2/sm90_ws.cuh",
        "const int k_tiles = (p.k + G::kTileK - 1) / G::kTileK;",
        "const int k_tiles = (p.k + G::kTileK - 1) / G::kTileK - 1;",
    ),
    "writes_nothing": ("sm90_ws.cu.in", CALL, ""),
    "hangs": ("sm90_ws.cu.in", CALL, "while (true) __nanosleep(1000);"),
    "reads_nowhere": ("sm90_ws.cu.in", CALL, f"{CALL} *reinterpret_cast<volatile int*>(64) = 1;"),
    "traps": ("sm90_ws.cu.in", CALL, f"{CALL} __trap();"),
    "writes_behind_c": (
        "sm90_ws.cu.in",
        CALL,
        f"{CALL} {_ONCE} static_cast<unsigned short*>(params.c_ptr)[params.m * params.ldc] = 0;",
    ),
    # The first word of a tensor map is the address of its matrix.
    "changes_its_input": (
        "sm90_ws.cu.in",
        CALL,
        f"{CALL} {_ONCE} (*reinterpret_cast<unsigned short* const*>(&params.a))[0] ^= 1;",
    ),
    "right_three_times_only": (
        "sm90_ws.cu.in",
        CALL,
        "static __device__ unsigned calls; if (*(volatile unsigned*)&calls >= 3) return; "
        f"{CALL} if (threadIdx.x == 0) atomicAdd(&calls, 1);",
    ),
}

SPLIT_VICTIM = K(64, 64, 64, 4, "coop", 1, 1, 1, 4, "direct", 1, "m", 1, False)
_QUAD = "return make_float4(d[nb * 4], d[nb * 4 + 1], d[nb * 4 + 2], d[nb * 4 + 3]);"
ROUNDS_PARTIALS = (
    "include/cudal2/wgmma.cuh",
    _QUAD,
    "const uint32_t low = word(nb, 0), high = word(nb, 1);"
    " return make_float4(__uint_as_float(low << 16), __uint_as_float(low & 0xFFFF0000u),"
    " __uint_as_float(high << 16), __uint_as_float(high & 0xFFFF0000u));",
)


def cache(folder: Path) -> BuildCache:
    """The carried cache if there is one."""
    return BuildCache(Path(os.environ.get("CUDAL2_TEST_CACHE") or folder))


def kernel(result: BuildResult) -> BuiltKernel:
    """What was built, if it was."""
    assert isinstance(result, BuiltKernel), result
    return result


def assert_right(
    worker: Any, problem: Problem, configs: Sequence[KernelConfig], built: Mapping[str, BuildResult], pdl: bool
) -> None:
    """A ``Worker`` finds every configuration's product right, before and after timing."""
    candidates = [(config, kernel(built[build_key(config, *problem.signature)])) for config in configs]
    rows = list(worker.measure(problem, candidates, QUICK, pdl, reference=False))
    wrong = [f"{row.config.name if row.config else ''}: {row.status.value}, {row.reason}" for row in rows if not row.ok]
    assert not wrong, "\n".join(wrong)
    assert all(row.max_error is not None and row.max_error <= 1.0 for row in rows)


def runnable(config: KernelConfig, problem: Problem) -> bool:
    """Whether nothing but a harmless rule forbids it."""
    space = SearchSpace(family=config.family)
    return all(reason.split(":")[0] in HARMLESS for reason in space.explain(config, problem))


def mma_corners(problem: Problem) -> list[Sm80MmaConfig]:
    """Corners of ``sm80_mma`` that copy as the problem's rows allow."""
    corners = [replace(config, copy_bytes=problem.alignment_bytes) for config in MMA_CORNERS]
    return [config for config in corners if runnable(config, problem)]


def build_corners(
    store: BuildCache, configs: Sequence[KernelConfig] = CORNERS, kinds: Sequence[tuple[str, ...]] = KINDS
) -> dict[str, BuildResult]:
    """Every corner in every accumulator and layout."""
    with BuildPool(store, resolve_toolchain(store)) as pool:
        return pool.build([(config, *kind) for config in configs for kind in kinds])


def build_small(store: BuildCache) -> dict[str, BuildResult]:
    """Every corner of ``sm90_small`` in every accumulator, layout and type."""
    return build_corners(store, SMALL_CORNERS, TYPED_KINDS)


def build_mma(store: BuildCache, kinds: Sequence[tuple[str, ...]] = KINDS) -> dict[str, BuildResult]:
    """Every corner of ``sm80_mma`` in every accumulator and layout, copying as wide as each shape allows."""
    problems = [Problem.parse(mnk, *kind) for kind in kinds for mnk in MMA_SHAPES]
    requests = [(config, *problem.signature) for problem in problems for config in mma_corners(problem)]
    requests += [(MMA_CORNERS[0], *kind) for kind in kinds]  # for the fault of a wrong label
    requests += [(config, *problem.signature) for layout in ("tn", "nn") for problem, config in large_c(layout)]
    with BuildPool(store, resolve_toolchain(store)) as pool:
        return pool.build(requests)


def large_c(layout: Layout) -> list[tuple[Problem, Sm80MmaConfig]]:
    """Problems of :data:`LARGE_C`, each with its configuration, copying as wide as rows allow."""
    given = ((Problem(*sizes, "fp32", layout), config) for sizes, config in LARGE_C)
    return [(problem, replace(config, copy_bytes=problem.alignment_bytes)) for problem, config in given]


def odd_configs(problem: Problem) -> list[KernelConfig]:
    """The default configurations of every family of NVRTC that takes the sizes."""
    found: list[KernelConfig] = []
    for family in (name for name, one in FAMILIES.items() if one.compiler == "nvrtc"):
        with contextlib.suppress(NothingValidError):
            found += default_configs(problem, SM90, family)
    return found


def build_odd(store: BuildCache) -> dict[str, BuildResult]:
    """What :data:`ODD_SHAPES` are computed with, in every accumulator and layout."""
    problems = [Problem.parse(mnk, acc, layout) for acc, layout in KINDS for mnk in ODD_SHAPES]
    with BuildPool(store, resolve_toolchain(store)) as pool:
        return pool.build([(config, *p.signature) for p in problems for config in odd_configs(p)])


def build_fault(store: BuildCache, fault: str, config: KernelConfig = VICTIM) -> BuildResult:
    """A kernel broken on purpose, from a patched copy of kernels/."""
    file, old, new = FAULTS[fault]
    return build_patched(store, file, old, new, config)


def build_bf16_partials(store: BuildCache) -> BuildResult:
    """A bf16 split-K kernel that rounds each slice's sums to bf16 before they are added."""
    return build_patched(store, *ROUNDS_PARTIALS, SPLIT_VICTIM, "bf16")


def build_patched(
    store: BuildCache, file: str, old: str, new: str, config: KernelConfig, dtype: str = "fp16"
) -> BuildResult:
    """A kernel from a copy of kernels/ in which a file has other words."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "kernels"
        shutil.copytree(kernels_dir(), folder)
        text = (folder / file).read_text()
        assert old in text, f"{file} no longer holds what this replaces: {old}"
        (folder / file).write_text(text.replace(old, new))
        source = render(config, "fp32", "tn", dtype, kernels=folder)
        toolchain = resolve_toolchain(store)
        found = store.lookup(source, toolchain)
        return found if found is not None else store.publish(source, toolchain, compile_source(source, toolchain))


def build_fp16(store: BuildCache, config: KernelConfig) -> BuildResult:
    """A kernel that accumulates in fp16, to be passed off as one that does not."""
    with BuildPool(store, resolve_toolchain(store)) as pool:
        return pool.build([(config, "fp16", "tn")])[build_key(config, "fp16", "tn")]


def variants(config: KernelConfig, count: int) -> list[KernelConfig]:
    """Run-time variants that share a cubin, for long runs of candidates."""
    groups = (1, 2, 4, 8, 16)
    return [replace(config, group=groups[index % 5], raster="mn"[index // 5 % 2]) for index in range(count)]  # type: ignore[arg-type]


def main(folder: str) -> Any:
    """Fills a cache with everything the tests need."""
    store = BuildCache(Path(folder))
    corners = (
        *build_corners(store, (*CORNERS, VICTIM)).values(),
        *build_small(store).values(),
        *build_mma(store).values(),
        *build_odd(store).values(),
        *build_corners(store, CORNERS, BF16_KINDS).values(),
        *build_mma(store, BF16_KINDS).values(),
        build_bf16_partials(store),
    )
    results = [*corners, *(build_fault(store, fault) for fault in FAULTS)]
    failed = [f"{result.name}: {result.reason}" for result in results if hasattr(result, "reason")]
    print(f"{len(results)} kernels in {folder}", *failed, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
