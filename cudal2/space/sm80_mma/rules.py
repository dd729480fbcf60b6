"""The legality rules of the ``sm80_mma`` space: each a named predicate and a sentence that says why not."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudal2.arch import Arch
from cudal2.problem import Problem
from cudal2.space.config import Sm80MmaConfig
from cudal2.space.raster import raster_rules
from cudal2.space.rule import INT32_MAX, Choice, Rule, ceil_div, lifted, share_k_tiles
from cudal2.space.shared_rules import (
    WARP,
    WORKSPACE_BYTES,
    occupancy,
    register_share,
    shared_memory,
    split_k_depth,
    tile_k_padding,
    tma_stores,
)
from cudal2.space.sm80_mma import geometry as geo

#: Registers a thread needs beside accumulators and fragments: addresses, predicates, loop state. Of 130 compiles
#: without a split of K (NVRTC 13.0) 2 in 71 spill, up to 16 bytes, with 40 to 55 to spare; 1 in 35 with 32 to 39; 12 in
#: 15 with 20 to 31.
WORKING_REGISTERS = 40
#: Quads of sums that a thread loads at a time where slices of K meet, and registers it needs beside these and its own.
LOADS_UNDER_WAY, SUM_WORKING_REGISTERS = 16, 20
#: Chunks of a stage that one thread copies; unrolled, more of them cost instruction cache and seconds of compiling.
CHUNKS_PER_THREAD = 32

_BODY_AXES = ("tile_m", "tile_n", "tile_k", "stages", "smem_layout", "epilogue")
_smem = lifted(geo.smem_bytes, *_BODY_AXES)
_WARP_AXES = ("tile_m", "tile_n", "warps_m", "warps_n")


def register_cap(choice: Choice, arch: Arch) -> Any:
    """Registers one thread may use."""
    return register_share(choice.ctas_per_sm * choice.warps_m * choice.warps_n, arch)


def accumulator_registers(choice: Choice, problem: Problem) -> Any:
    """Accumulator registers per thread."""
    elements = choice.tile_m * choice.tile_n // (choice.warps_m * choice.warps_n * WARP)
    return elements if problem.acc == "fp32" else elements // 2


def fragment_registers(choice: Choice) -> Any:
    """Fragments of one step: four registers for each block of 16 rows of A and of 16 columns of B."""
    blocks = choice.tile_m // (geo.BLOCK * choice.warps_m) + choice.tile_n // (geo.BLOCK * choice.warps_n)
    return 4 * blocks * choice.fragments


def _chunks(choice: Choice) -> Any:
    """Chunks of A and B that one thread copies into a stage."""
    elements = geo.CHUNK_BYTES // geo.ELEMENT_BYTES * choice.warps_m * choice.warps_n * WARP
    return ceil_div((choice.tile_m + choice.tile_n) * choice.tile_k, elements)


def staging_registers(choice: Choice) -> Any:
    """Elements on their way to shared memory that cp.async cannot carry, one register each."""
    elements = geo.CHUNK_BYTES // geo.ELEMENT_BYTES * _chunks(choice)
    return np.where(np.equal(choice.copy_bytes, geo.ELEMENT_BYTES), elements, 0)


def sum_registers(choice: Choice) -> Any:
    """Sums, and others' that are on their way, of the slice that adds them all up (``mma_split.cuh``)."""
    quads = choice.tile_m * choice.tile_n // (choice.warps_m * choice.warps_n * WARP) // 4
    return np.where(choice.split_k > 1, 4 * np.minimum(quads, LOADS_UNDER_WAY) + 4 * LOADS_UNDER_WAY, 0)


def _needed(choice: Choice, problem: Problem) -> Any:
    held = accumulator_registers(choice, problem) + fragment_registers(choice) + staging_registers(choice)
    return np.maximum(held + WORKING_REGISTERS, sum_registers(choice) + SUM_WORKING_REGISTERS)


def _tiles_m(choice: Choice, problem: Problem) -> Any:
    return ceil_div(problem.m, choice.tile_m)


def _tiles_n(choice: Choice, problem: Problem) -> Any:
    return ceil_div(problem.n, choice.tile_n)


def _copies(c: Choice, problem: Problem, arch: Arch) -> Any:
    return np.equal(c.copy_bytes, problem.alignment_bytes)


def _copies_reason(c: Sm80MmaConfig, problem: Problem, arch: Arch) -> str:
    sizes = f"k = {problem.k}" + ("" if problem.layout == "tn" else f" and n = {problem.n}")
    return f"rows of {sizes} elements are copied {problem.alignment_bytes} bytes at a time, not {c.copy_bytes}"


def _splits_tile(c: Choice, problem: Problem, arch: Arch) -> Any:
    rows = np.equal(c.tile_m % (c.warps_m * geo.BLOCK), 0)
    return rows & np.equal(c.tile_n % (c.warps_n * geo.BLOCK), 0)


def _splits_tile_reason(c: Sm80MmaConfig, problem: Problem, arch: Arch) -> str:
    return (
        f"{c.warps_m} x {c.warps_n} warps take {c.tile_m / c.warps_m:g} x {c.tile_n / c.warps_n:g} of "
        f"{c.tile_m} x {c.tile_n} each; it must be whole blocks of {geo.BLOCK} x {geo.BLOCK}"
    )


def _buffers(c: Choice, problem: Problem, arch: Arch) -> Any:
    return np.equal(c.fragments, 1) | (c.tile_k >= 2 * geo.BLOCK)


def _buffers_reason(c: Sm80MmaConfig, problem: Problem, arch: Arch) -> str:
    return f"tile_k {c.tile_k} is one step of {geo.BLOCK}: a second fragment buffer needs two"


def _shares_copies(c: Choice, problem: Problem, arch: Arch) -> Any:
    return _chunks(c) <= CHUNKS_PER_THREAD


def _shares_copies_reason(c: Sm80MmaConfig, problem: Problem, arch: Arch) -> str:
    return f"{geo.threads(c)} threads copy {int(_chunks(c))} chunks of a stage each; the limit is {CHUNKS_PER_THREAD}"


def _fits_registers(c: Choice, problem: Problem, arch: Arch) -> Any:
    return _needed(c, problem) <= register_cap(c, arch)


def _fits_registers_reason(c: Sm80MmaConfig, problem: Problem, arch: Arch) -> str:
    accumulators, fragments = int(accumulator_registers(c, problem)), int(fragment_registers(c))
    staging = int(staging_registers(c))
    staged = f"{staging} staging, " if staging else ""
    cap, sums = int(register_cap(c, arch)), int(sum_registers(c))
    if sums + SUM_WORKING_REGISTERS > cap:
        meeting = f"{sums} registers of sums where slices of K meet and {SUM_WORKING_REGISTERS} working"
        return f"{meeting} exceed the {cap} that a thread has"
    return (
        f"{accumulators} accumulator, {fragments} fragment, {staged}{WORKING_REGISTERS} working registers per thread "
        f"exceed the {cap} it has"
    )


def _addressable(c: Choice, problem: Problem, arch: Arch) -> Any:
    tiles_m, tiles_n = _tiles_m(c, problem), _tiles_n(c, problem)
    inside = (tiles_m * c.tile_m <= INT32_MAX) & (tiles_n * c.tile_n <= INT32_MAX)
    # One K tile more: the place of the next copy is reckoned ahead.
    depth = (ceil_div(problem.k, c.tile_k) + 1) * c.tile_k <= INT32_MAX
    return inside & depth & (tiles_m * tiles_n <= INT32_MAX)


def _addressable_reason(c: Sm80MmaConfig, problem: Problem, arch: Arch) -> str:
    ctas = int(_tiles_m(c, problem) * _tiles_n(c, problem))
    return f"{problem.mnk} padded to whole tiles, or its {ctas} CTAs, exceed the {INT32_MAX} of a 32-bit coordinate"


def _stages_fill(c: Choice, problem: Problem, arch: Arch) -> Any:
    return c.stages <= np.maximum(2, share_k_tiles(c, problem) + 1)


def _stages_fill_reason(c: Sm80MmaConfig, problem: Problem, arch: Arch) -> str:
    k_tiles = int(share_k_tiles(c, problem))
    held = f"k = {problem.k} has" if c.split_k == 1 else f"a slice of k = {problem.k} has at most"
    return f"{c.stages} stages prefetch {c.stages - 1} K tiles; {held} {k_tiles}"


def _workspace_limit(arch: Arch) -> int:
    return min(WORKSPACE_BYTES, arch.l2_bytes)


def _partial_bytes(c: Choice, problem: Problem) -> Any:
    sums = 4.0 * c.tile_m * c.tile_n * c.split_k * _tiles_m(c, problem) * _tiles_n(c, problem)
    return np.where(np.equal(c.split_k, 1), 0.0, sums)


def _workspace_fits(c: Choice, problem: Problem, arch: Arch) -> Any:
    return _partial_bytes(c, problem) <= _workspace_limit(arch)


def _workspace_fits_reason(c: Sm80MmaConfig, problem: Problem, arch: Arch) -> str:
    held = int(_partial_bytes(c, problem))
    return f"{held} bytes of partial sums exceed the {_workspace_limit(arch)} that L2 keeps: fewer slices"


RULES: tuple[Rule, ...] = (
    Rule("copy_width", ("copy_bytes",), _copies, _copies_reason, by_size=True),
    Rule("warps_split_tile", _WARP_AXES, _splits_tile, _splits_tile_reason),
    Rule("fragment_buffers", ("tile_k", "fragments"), _buffers, _buffers_reason),
    Rule("chunks_per_thread", (*_WARP_AXES, "tile_k"), _shares_copies, _shares_copies_reason),
    Rule(
        "registers",
        (*_WARP_AXES, "tile_k", "fragments", "copy_bytes", "split_k", "ctas_per_sm"),
        _fits_registers,
        _fits_registers_reason,
    ),
    shared_memory(_smem, _BODY_AXES),
    occupancy(_smem, geo.threads, (*_BODY_AXES, "warps_m", "warps_n")),
    tile_k_padding(geo.BLOCK),
    Rule("size", ("tile_m", "tile_n", "tile_k"), _addressable, _addressable_reason, by_size=True),
    split_k_depth(),
    Rule("stages_depth", ("tile_k", "stages", "split_k"), _stages_fill, _stages_fill_reason, by_size=True),
    Rule(
        "shifted_rows",
        ("epilogue",),
        lambda c, p, a: np.not_equal(c.epilogue, "shifted") | (not tma_stores(p)),
        lambda c, p, a: f"rows of C begin on {geo.CHUNK_BYTES} bytes where n % 8 == 0, and none is shifted; n = {p.n}",
        by_size=True,
    ),
    Rule("workspace_size", ("tile_m", "tile_n", "split_k"), _workspace_fits, _workspace_fits_reason, by_size=True),
    *raster_rules(lambda c, p: (_tiles_m(c, p), _tiles_n(c, p)), ("tile_m", "tile_n"), "tiles"),
)
