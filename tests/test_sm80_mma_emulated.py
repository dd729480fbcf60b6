"""The ``sm80_mma`` kernel itself, compiled for the CPU: every thread a fiber, every instruction of it emulated.

Proves without a GPU that every element of A and B lands where mma expects it, that nothing outside the matrices is read
into the result or written, that no wait or barrier is missing, and that matrix loads meet no bank conflict. Copies land
either at the wait that must have seen them or as soon as they are issued: the hardware does something in between.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import emulated
import numpy as np
import pytest
from emulated import EMULATION, GUARD, elements

from cudal2.codegen import render
from cudal2.launch.plan import ParamSets, plan_launch
from cudal2.paths import kernels_dir
from cudal2.problem import Acc, Dtype, Layout, Problem
from cudal2.space.config import Sm80MmaConfig

NAN = 0x7FFF  # in fp16 and in bf16
UNTOUCHED = 0x54D0

pytestmark = emulated.needs_compiler

C = Sm80MmaConfig
CASES: tuple[tuple[Sm80MmaConfig, str, tuple[str, ...]], ...] = (
    (C(64, 64, 32, 4, 2, 2, "swizzle", 2, "plain", "wide", 16, 1, "m", 1), "fp32 tn", ("64_64_160", "70_72_200")),
    (C(32, 64, 64, 3, 1, 2, "swizzle", 2, "staggered", "direct", 16, 1, "n", 2), "fp16 nn", ("65_136_200", "1_8_8")),
    (C(16, 96, 16, 3, 1, 2, "swizzle", 1, "staggered", "wide", 2, 4, "m", 2), "fp32 nn", ("33_97_55", "1_1_1")),
    (C(32, 32, 64, 2, 2, 1, "pad", 2, "staggered", "wide", 2, 4, "m", 1), "fp32 tn", ("40_41_7", "33_35_129")),
    (C(32, 96, 32, 2, 1, 1, "pad", 1, "plain", "direct", 4, 1, "m", 1), "fp32 tn", ("31_65_66", "32_96_2")),
    (C(64, 32, 16, 6, 4, 1, "pad", 1, "plain", "direct", 8, 1, "n", 4), "fp32 nn", ("100_44_164", "64_36_20")),
    (C(16, 160, 32, 5, 1, 2, "swizzle", 2, "plain", "direct", 16, 1, "m", 4), "fp32 nn", ("50_168_328",)),
    (C(64, 64, 32, 3, 2, 2, "swizzle", 2, "plain", "wide", 16, 1, "m", 1), "fp32 tn bf16", ("70_72_200",)),
    (C(16, 96, 16, 3, 1, 2, "pad", 1, "plain", "direct", 2, 4, "m", 2), "fp32 nn bf16", ("33_97_55",)),
    (C(16, 64, 128, 2, 1, 4, "swizzle", 2, "plain", "direct", 2, 2, "m", 1), "fp32 tn", ("17_70_257",)),
    (C(32, 32, 128, 3, 2, 1, "pad", 1, "staggered", "wide", 4, 1, "m", 1, 2), "fp32 nn", ("40_38_500",)),
    # Slices of K that meet in a workspace: more and fewer sums than loads under way, slices of unlike length.
    (C(64, 64, 32, 3, 2, 2, "swizzle", 2, "plain", "wide", 16, 1, "m", 1, 3), "fp32 tn", ("70_72_232", "64_64_96")),
    (C(32, 32, 16, 4, 1, 1, "pad", 1, "plain", "direct", 2, 2, "m", 2, 16), "fp32 tn", ("40_41_401",)),
    (C(16, 32, 64, 2, 1, 2, "swizzle", 1, "staggered", "direct", 4, 2, "n", 2, 6), "fp16 nn", ("20_66_500",)),
    (C(96, 64, 32, 2, 2, 2, "swizzle", 1, "plain", "wide", 8, 1, "m", 1, 2), "fp32 tn bf16", ("97_68_180",)),
    # Rows of C that begin inside a chunk: tiles that end in the first chunk, in the last, or hold it all.
    (C(64, 64, 32, 3, 2, 2, "swizzle", 2, "plain", "shifted", 16, 2, "m", 1), "fp32 tn",
     ("70_71_64", "65_1_32", "3_2_8", "9_3_40", "64_7_8", "17_9_16", "66_129_64", "67_131_72", "64_65_200")),
    (C(32, 96, 32, 2, 1, 1, "pad", 1, "plain", "shifted", 2, 1, "m", 1), "fp32 tn", ("40_41_7", "31_97_33", "1_191_1")),
    (C(16, 160, 32, 5, 1, 2, "swizzle", 2, "plain", "shifted", 2, 1, "m", 4), "fp32 nn", ("18_161_40", "33_13_9")),
    (C(32, 32, 64, 3, 1, 2, "swizzle", 2, "staggered", "shifted", 2, 1, "n", 2), "fp16 nn", ("65_135_200", "7_47_8")),
    (C(96, 64, 32, 2, 2, 2, "swizzle", 1, "plain", "shifted", 4, 1, "m", 1, 2), "fp32 tn bf16", ("97_69_182",)),
    (C(32, 32, 16, 4, 1, 1, "pad", 1, "plain", "shifted", 8, 2, "m", 2, 16), "fp32 tn", ("40_41_404", "35_38_300")),
)  # fmt: skip


def compiled(
    config: Sm80MmaConfig, folder: Path, acc: Acc, layout: Layout, dtype: Dtype = "fp16", kernels: Path | None = None
) -> ctypes.CDLL:
    """The rendered kernel and its emulation as a library."""
    includes = (EMULATION, (kernels or kernels_dir()) / "include")
    text = render(config, acc, layout, dtype, kernels).text
    loaded = emulated.library(folder, text, EMULATION / "driver.cc", includes)
    loaded.run.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_long)]
    return loaded


def aligned(count: int, fill: int) -> np.ndarray:
    """Elements that start on a 16-byte boundary."""
    raw = np.full(count + 8, fill, np.uint16)
    skip = -raw.ctypes.data % 16 // 2
    return raw[skip : skip + count]


def operand(values: np.ndarray) -> tuple[np.ndarray, int]:
    """A matrix between NaNs, and its address."""
    room = aligned(values.size + 2 * GUARD, NAN)
    room[GUARD : GUARD + values.size] = values.ravel()
    return room, room.ctypes.data + 2 * GUARD


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].build_name}-{case[1]}")
def test_the_kernel_is_exact_and_stays_inside(case, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    config, kind, shapes = case
    library = compiled(config, tmp_path, *kind.split())
    for mnk in shapes:
        problem = Problem.parse(mnk, *kind.split())
        assert problem.alignment_bytes == config.copy_bytes, "the shape asks for another width of copies"
        assert emulated.broken_rules(replace(config, tile_n=64), problem) <= {"warps_split_tile"}
        for early in (False, True):
            check(library, config, problem, early)


def check(library: ctypes.CDLL, config: Sm80MmaConfig, problem: Problem, early: bool) -> None:
    """One product of small integers, whose sums fp32 holds exactly, against numpy's."""
    rng = np.random.default_rng(problem.m * 7 + problem.n * 3 + problem.k)
    a = rng.integers(-2, 3, (problem.m, problem.k))
    b = rng.integers(-2, 3, (problem.k, problem.n))
    _room_a, at_a = operand(elements(a, problem.dtype))
    _room_b, at_b = operand(elements(b if problem.layout == "nn" else b.T, problem.dtype))
    size = problem.m * problem.n
    c = aligned(size + 2 * GUARD, UNTOUCHED)
    plan = plan_launch(config, problem, 132)
    addresses = (np.array([at], np.uint64) for at in (at_a, at_b, c.ctypes.data + 2 * GUARD))
    workspace = aligned(plan.workspace_bytes // 2 + 2 * GUARD, UNTOUCHED)
    workspace[GUARD : GUARD + plan.ticket_bytes // 2] = 0
    at_workspace = workspace.ctypes.data + 2 * GUARD
    sets = ParamSets(plan, *addresses, lambda spec, at: pytest.fail("no map is needed"), at_workspace)
    conflicts = ctypes.c_long()
    for _ in range(2 if plan.workspace_bytes else 1):  # tickets are ready for the next launch
        c[:] = UNTOUCHED
        error = library.run(sets.structs.ctypes.data, plan.grid, plan.smem_bytes, int(early), ctypes.byref(conflicts))
        assert error == b"", f"{problem.mnk}: {error.decode()}"
        assert conflicts.value == 0, f"{problem.mnk}: {conflicts.value} bank conflicts of matrix loads"
    used = slice(GUARD, GUARD + plan.workspace_bytes // 2)
    assert (np.delete(workspace, used) == UNTOUCHED).all(), f"{problem.mnk}: written outside the workspace"
    found = c[GUARD : GUARD + size].reshape(problem.m, problem.n)
    wrong = np.argwhere(found != elements(a @ b, problem.dtype))
    assert not wrong.size, f"{problem.mnk}, early {early}: {len(wrong)} wrong, first at {wrong[0].tolist()}"
    assert (np.delete(c, slice(GUARD, GUARD + size)) == UNTOUCHED).all(), f"{problem.mnk}: written outside C"


#: What to break in which header, and what the emulation must say of it.
FAULTS = {
    "a wait that lets one copy too many be late": (
        "sm80_mma.cuh", "wait_copies<G::kStages - 2>();", "wait_copies<G::kStages - 1>();", "wrong"),
    "no barrier between the fill and the read": ("sm80_mma.cuh", "      __syncthreads();", "", "wrong"),
    "a stage filled while it is read": ("sm80_mma.cuh", "int free = G::kStages - 1;", "int free = 0;", "wrong"),
    "rows of A behind the last": ("mma_tile.cuh", "row + pass * kHeight < rows;", "true;", "reads outside"),
    "K behind the last": ("mma_tile.cuh", "row_inside && part < left", "row_inside", "reads outside"),
    "no swizzle": ("mma_tile.cuh", "kMask = !kSwizzle ? 0 :", "kMask = kSwizzle ? 0 :", "conflict"),
    "a column of C behind the last": ("sm80_mma.cuh", "|| col >= params.n) return;", ") return;", "wrong|outside"),
    "a K tile of another slice": ("sm80_mma.cuh", "ring.skip(first);", "", "wrong"),
    "sums of the last slice alone": ("mma_split.cuh", "add_slices<G>(partials, warp);", "", "wrong"),
    "a ticket that is not given back": ("mma_split.cuh", "if (*last) store_relaxed(ticket, 0);", "", "wrong"),
    "rows shifted like the first": (
        "mma_shifted.cuh", "phase_of(params, row0 + row,", "phase_of(params, row0,", "misaligned"),
    "rows shifted by one more": (
        "mma_shifted.cuh", "uint32_t(col)) % kChunk", "uint32_t(col) + 1) % kChunk", "misaligned"),
    "ends of rows left out": ("mma_shifted.cuh", "copy_pieces<G, RowEnds>(params, row0, col0, smem);", "", "wrong"),
    "a chunk that C ends in": ("mma_shifted.cuh", "col(number) + kChunk <= this", "col(number) < this", "wrong|twice"),
    "a head longer than the row": ("mma_shifted.cuh", "min(this->head, this->columns)", "this->head", "wrong|twice"),
    "a row below the last": ("mma_shifted.cuh", "row0 + row < params.m", "row0 + row <= params.m", "wrong|outside"),
    "stored before all have staged": ("mma_shifted.cuh", "__syncthreads();\n  copy", "copy", "wrong"),
    "fragments of B in another order": ("mma_tile.cuh", "lane % 8 + lane / 16 * 8", "lane % 16", "wrong"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_emulation_sees_what_is_broken(fault: str, tmp_path: Path) -> None:
    header, old, new, words = FAULTS[fault]
    split = header == "mma_split.cuh" or "skip" in old
    shifted = header == "mma_shifted.cuh"
    epilogue = "shifted" if shifted else "direct"
    config = replace(CASES[0][0], epilogue=epilogue, fragments=1, split_k=3 if split else 1)
    kernels = emulated.broken_kernels(tmp_path, header, old, new)
    library = compiled(config, tmp_path, "fp32", "tn", kernels=kernels)
    with pytest.raises(AssertionError, match=words):
        for early in (False, True):
            check(library, config, Problem(40, 3 if "head" in old else 41 if shifted else 40, 136), early)
