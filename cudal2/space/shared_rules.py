"""Rules that several families have, and the register share that their rules reckon with.

Those of tile order are in ``raster``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudal2.arch import Arch
from cudal2.problem import Problem
from cudal2.space.rule import Choice, Rule, ceil_div
from cudal2.space.sm90_ws.geometry import ELEMENT_BYTES, TMA_ROW_BYTES

WARP = 32
#: Schedulers of a multiprocessor; each has a quarter of the registers for the warps it is dealt.
PARTITIONS = 4
#: CTAs that may share operands: with more, few clusters fit the GPCs, of 16 to 18 SMs.
MULTICAST_CTAS = 4
#: Rows of one swizzle atom in shared memory; a multicast slice is whole atoms.
SWIZZLE_ROWS = 8

#: Partial sums of a launch in global memory: more than L2 holds would come back from device memory.
WORKSPACE_BYTES = 32 * 2**20

#: A number of one CTA; elementwise on arrays.
PerCta = Callable[[Choice], Any]


def register_share(warps: Any, arch: Arch) -> Any:
    """Registers a thread may use where a multiprocessor holds so many warps; elementwise on arrays.

    Args:
        warps: Resident warps of one multiprocessor.
        arch: Its register file; a thread's share is rounded down to the 8 registers it is granted by.
    """
    share = arch.registers_per_sm // PARTITIONS // (ceil_div(warps, PARTITIONS) * WARP) // 8 * 8
    return np.minimum(share, arch.registers_per_thread)


def tile_k_padding(unit: int) -> Rule:
    """A K tile is no deeper than k in whole units of what one product takes.

    Args:
        unit: Depth of it, in elements.
    """

    def rounded(problem: Problem) -> int:
        return int(ceil_div(problem.k, unit)) * unit

    return Rule(
        "tile_k_padding",
        ("tile_k",),
        lambda c, p, a: c.tile_k <= rounded(p),
        lambda c, p, a: f"tile_k {c.tile_k} exceeds k = {p.k} rounded up to {rounded(p)}: the rest would be zeros",
        by_size=True,
    )


def multicast_slice(otherwise: str = "") -> Rule:
    """CTAs of a cluster load equal slices of what they share, in whole swizzle atoms.

    Args:
        otherwise: What becomes of a kernel that does not, behind the reason.
    """

    def b_extent(choice: Choice, problem: Problem) -> Any:
        return choice.tile_n if problem.layout == "tn" else choice.tile_k

    def whole(c: Choice, problem: Problem, arch: Arch) -> Any:
        a_slices = np.equal(c.tile_m % (c.cluster_n * SWIZZLE_ROWS), 0)
        return a_slices & np.equal(b_extent(c, problem) % (c.cluster_m * SWIZZLE_ROWS), 0)

    return Rule(
        "multicast_slice",
        ("tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n"),
        whole,
        lambda c, p, a: (
            f"multicast slices of {c.tile_m / c.cluster_n:g} rows of A and {b_extent(c, p) / c.cluster_m:g} of B "
            f"are not multiples of {SWIZZLE_ROWS}{otherwise}"
        ),
    )


def tma_reads(problem: Problem) -> bool:
    """Whether tensor maps can describe A and B as they are."""
    return problem.alignment_bytes == TMA_ROW_BYTES


def tma_stores(problem: Problem) -> bool:
    """Whether a tensor map can describe C."""
    return problem.n * ELEMENT_BYTES % TMA_ROW_BYTES == 0


def tma_rows(problem: Problem, otherwise: str) -> str:
    """In words, why TMA cannot read the rows of an operand.

    Args:
        problem: One of which :func:`tma_reads` is not so.
        otherwise: What does.
    """
    name, extent = ("k", problem.k) if problem.k % 8 else ("n", problem.n)
    needed = f"TMA needs {TMA_ROW_BYTES}-byte row strides, so {name} % 8 == 0"
    return f"{name} = {extent} gives rows of {2 * extent} bytes; {needed}; {otherwise}"


def tma_alignment() -> Rule:
    """Rows of both operands begin on the 16-byte boundaries that tensor maps need."""
    return Rule(
        "alignment",
        (),
        lambda c, p, a: tma_reads(p),
        lambda c, p, a: tma_rows(p, "family sm80_mma does without, sm90_ws copies them first"),
        by_size=True,
    )


def split_k_depth() -> Rule:
    """Every CTA that splits K has a K tile."""

    def allows(choice: Choice, problem: Problem, arch: Arch) -> Any:
        return choice.split_k <= ceil_div(problem.k, choice.tile_k)

    def reason(config: Any, problem: Problem, arch: Arch) -> str:
        k_tiles = int(ceil_div(problem.k, config.tile_k))
        return f"split-K {config.split_k} exceeds the {k_tiles} K tiles of {config.tile_k} in k = {problem.k}"

    return Rule("split_k_depth", ("tile_k", "split_k"), allows, reason, by_size=True)


def shared_memory(smem_bytes: PerCta, axes: tuple[str, ...]) -> Rule:
    """A CTA's shared memory is within the architecture's limit.

    Args:
        smem_bytes: Dynamic shared memory of one CTA.
        axes: The axes it reads.
    """

    def allows(choice: Choice, problem: Problem, arch: Arch) -> Any:
        return smem_bytes(choice) <= arch.smem_bytes_per_block

    def reason(config: Any, problem: Problem, arch: Arch) -> str:
        return f"{smem_bytes(config)} bytes of shared memory exceed the {arch.smem_bytes_per_block} a CTA may have"

    return Rule("shared_memory", axes, allows, reason)


def occupancy(smem_bytes: PerCta, threads: PerCta, axes: tuple[str, ...]) -> Rule:
    """As many CTAs as ``ctas_per_sm`` says fit one multiprocessor, by shared memory and by threads.

    Args:
        smem_bytes: Dynamic shared memory of one CTA.
        threads: Threads of one CTA.
        axes: The axes both read, without ``ctas_per_sm``.
    """

    def smem_per_sm(choice: Choice, arch: Arch) -> Any:
        return choice.ctas_per_sm * (smem_bytes(choice) + arch.smem_reserved_bytes)

    def allows(choice: Choice, problem: Problem, arch: Arch) -> Any:
        fits = smem_per_sm(choice, arch) <= arch.smem_bytes_per_sm
        fits = fits & (choice.ctas_per_sm * threads(choice) <= arch.threads_per_sm)
        return fits & (threads(choice) <= arch.threads_per_block)

    def reason(config: Any, problem: Problem, arch: Arch) -> str:
        return (
            f"{config.ctas_per_sm} CTAs per SM take {smem_per_sm(config, arch)} bytes of shared memory and "
            f"{config.ctas_per_sm * threads(config)} threads; "
            f"an SM has {arch.smem_bytes_per_sm} bytes and {arch.threads_per_sm} threads"
        )

    return Rule("occupancy", (*axes, "ctas_per_sm"), allows, reason)
