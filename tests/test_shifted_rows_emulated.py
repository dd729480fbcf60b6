"""Rows of C that begin inside a 16-byte chunk, as ``sm90_ws`` stores them without TMA: the kernel on a CPU again.

Every element is stored once, nothing beside C, and as 16 bytes whatever of a row's share of a tile can be.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import emulated
import numpy as np
import pytest
from test_sm90_ws_emulated import ONE, STREAMS, check, compiled, plain

from cudal2.problem import Problem
from cudal2.space.config import Sm90WsConfig

pytestmark = emulated.needs_compiler
ROWS = {"epilogue": "shifted"}

#: Rows of C of N elements begin in all places of a 16-byte chunk where N is odd, else in 4, 2 or 1; and N ends in any
#: place of a tile, in its first chunk and in its last. All but the last few elements of a row are stored as chunks.
SHIFTED: tuple[tuple[Sm90WsConfig, str, tuple[str, ...]], ...] = (
    (plain((64, 32, 64), 2, "coop", 1, **ROWS, **ONE), "fp32 tn",
     ("70_101_8", "20_98_8", "9_68_16", "66_70_8", *(f"{8 + n % 2}_{n}_8" for n in range(1, 42) if n % 8))),
    (plain((64, 16, 64), 2, "pingpong", 2, **ROWS), "fp16 tn",
     ("150_61_72", "70_34_8", "10_7_8", "9_23_8")),
    (plain((128, 48, 64), 2, "coop", 1, **ROWS, **ONE), "fp32 tn bf16", ("140_101_72", "129_90_8", "64_47_8")),
    (plain((128, 80, 64), 2, "coop", 2, **ROWS, **ONE), "fp16 tn",
     ("130_239_72", "60_159_8", "128_78_16", "65_75_8")),
    (plain((64, 112, 64), 2, "pingpong", 2, **ROWS), "fp32 tn bf16", ("200_341_8", "60_230_8", "64_111_8")),
    (plain((128, 64, 64), 2, "pingpong", 2, **ROWS), "fp32 tn", ("270_193_8", "130_63_72")),
    (plain((64, 256, 64), 2, "coop", 1, cluster_n=2, **ROWS, **ONE), "fp32 tn", ("66_517_8", "9_255_8")),
    (plain((192, 32, 64), 2, "coop", 3, cluster_m=2, **ROWS, **ONE), "fp32 tn", ("200_65_8",)),
    (plain((64, 32, 64), 3, "pingpong", 2, **ROWS, **STREAMS), "fp32 tn", ("200_71_1032",)),
    (plain((64, 64, 64), 2, "coop", 1, padded=True, **ROWS), "fp32 nn bf16", ("66_131_33", "70_66_65")),
)  # fmt: skip


@pytest.mark.parametrize("case", SHIFTED, ids=lambda case: f"{case[0].build_name}-{case[1]}")
def test_rows_of_any_beginning_are_stored_once_and_whole(case, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    config, kind, shapes = case
    library = compiled(config, tmp_path, *kind.split())
    for mnk in shapes:
        problem = Problem.parse(mnk, *kind.split())
        assert emulated.broken_rules(config, problem) == set()
        store(library, config, problem)


def store(library: ctypes.CDLL, config: Sm90WsConfig, problem: Problem) -> None:
    """Computes C, and counts what is stored as what; the parts of stream-K store their sums in another way."""
    check(library, config, problem, loads_early=True)
    if not config.stream_k:
        assert library.stored_elements() == problem.m * problem.n
        assert library.stored_chunks() == whole_chunks(config, problem), "less is stored in chunks than could be"


def whole_chunks(config: Sm90WsConfig, problem: Problem) -> int:
    """Of 16 bytes, that C has in one row of one tile."""
    first = np.arange(problem.m)[:, None] * problem.n + np.arange(0, problem.n, config.tile_n)
    columns = np.minimum(config.tile_n, problem.n - np.arange(0, problem.n, config.tile_n))
    return int(np.maximum(0, (first + columns) // 8 - (first + 7) // 8).sum())


#: What to break by what, and what the emulation must say of it.
FAULTS = {
    "words that pass a chunk's end stay in it": ("passes_end ? behind : word", "word", "wrong"),
    "words that pass a chunk's end come of an older block": (
        "      behind = word;\n", "      if (nb == 0) behind = word;\n", "wrong"),
    "one lane too few passes a chunk's end": ("phase / 2 >= 4", "phase / 2 > 4", "wrong"),
    "odd rows stay where they are": ("to.phase % 2 * 16", "0", "wrong"),
    "odd rows go on from the wrong chunk": ("place == 3 ? last : w[3]", "w[3]", "wrong"),
    "odd rows go on from the chunk before the last": ("  last = w[3];\n", "", "wrong"),
    "lanes exchange words with the wrong neighbour": ("odd ? 3 : 1", "odd ? 1 : 3", "wrong"),
    "a chunk that goes on behind C": ("alone && left >= 8", "alone && left > 0", "twice|outside|wrong"),
    "a chunk that C ends with taken for one that goes on": ("alone && left >= 8", "alone && left > 8", "wrong"),
    "no chunk that C ends inside": ("alone && left > 0", "false", "wrong"),
    "an element too many of the chunk that C ends inside": (
        "store_first(at + nb * 8, w, left)", "store_first(at + nb * 8, w, left + 1)", "twice|outside"),
    "the last element of C is another": ("two ? next : pair", "pair", "wrong"),
    "two elements of the last chunk in another place": ("at + (count & 4)", "at", "twice|wrong"),
    "no ends": ("shares = to.phase != 0", "shares = false", "wrong"),
    "ends of rows that have none": ("shares = to.phase != 0", "shares = true", "twice"),
    "ends that begin an element late": ("room = 8 - to.phase", "room = 9 - to.phase", "twice|wrong"),
    "ends behind C": ("at0 < to.columns", "at0 <= to.columns", "twice|outside"),
    "ends of odd rows stored as those of even ones": ("to.phase % 2 == 0 && ", "", "misaligned"),
    "the first chunk stored with what another tile has there": (
        "(nb > 0 || skipped >= 0)", "true", "twice|outside|wrong"),
    "the last chunk stored with what another tile has there": ("nb + to.place < kWide", "true", "twice|wrong"),
    "rows below C": ("row < params.m ? params.n - col0 : 0", "params.n - col0", "outside|twice"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_emulation_sees_what_is_broken(fault: str, tmp_path: Path) -> None:
    old, new, words = FAULTS[fault]
    config = plain((64, 48, 64), 2, "coop", 1, **ROWS)
    library = compiled(
        config, tmp_path, "fp32", "tn", kernels=emulated.broken_kernels(tmp_path, "shifted_rows.cuh", old, new)
    )
    with pytest.raises(AssertionError, match=words):
        for problem in (Problem(70, 117, 16), Problem(70, 110, 16)):
            store(library, config, problem)
