"""Hardware limits the legality rules and the launch plan are written against; facts only, no detection."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Arch:
    """Per-architecture limits (CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability").

    Attributes:
        name: ``sm90``, as the commands take it.
        target: NVRTC's ``-arch`` value.
        capability: Compute capability (major, minor).
        sm_count: Multiprocessors of the reference part (H200 SXM, A100 SXM, RTX 3090).
        smem_bytes_per_block: Dynamic shared memory one block may ask for.
        smem_bytes_per_sm: Shared memory of one multiprocessor.
        smem_reserved_bytes: What the driver keeps per block.
        registers_per_sm: 32-bit registers of one multiprocessor.
        registers_per_thread: Most a thread can address.
        threads_per_sm: Most resident threads.
        threads_per_block: Most threads in a block.
        cluster_size_portable: Largest cluster every part of the architecture schedules.
        cluster_size_max: Largest cluster, by opt-in.
        l2_bytes: L2 cache of the reference part.
        memory_gb: Nominal memory size of the reference part.
    """

    name: str
    target: str
    capability: tuple[int, int]
    sm_count: int
    smem_bytes_per_block: int
    smem_bytes_per_sm: int
    smem_reserved_bytes: int
    registers_per_sm: int
    registers_per_thread: int
    threads_per_sm: int
    threads_per_block: int
    cluster_size_portable: int
    cluster_size_max: int
    l2_bytes: int
    memory_gb: int


SM90 = Arch(
    name="sm90",
    target="sm_90a",
    capability=(9, 0),
    sm_count=132,
    smem_bytes_per_block=232_448,
    smem_bytes_per_sm=233_472,
    smem_reserved_bytes=1_024,
    registers_per_sm=65_536,
    registers_per_thread=255,
    threads_per_sm=2_048,
    threads_per_block=1_024,
    cluster_size_portable=8,
    cluster_size_max=16,
    l2_bytes=60 * 2**20,
    memory_gb=141,
)

#: A100 80 GB SXM.
SM80 = Arch(
    name="sm80",
    target="sm_80",
    capability=(8, 0),
    sm_count=108,
    smem_bytes_per_block=166_912,
    smem_bytes_per_sm=167_936,
    smem_reserved_bytes=1_024,
    registers_per_sm=65_536,
    registers_per_thread=255,
    threads_per_sm=2_048,
    threads_per_block=1_024,
    cluster_size_portable=1,
    cluster_size_max=1,
    l2_bytes=40 * 2**20,
    memory_gb=80,
)
#: GeForce RTX 3090.
SM86 = Arch(
    name="sm86",
    target="sm_86",
    capability=(8, 6),
    sm_count=82,
    smem_bytes_per_block=101_376,
    smem_bytes_per_sm=102_400,
    smem_reserved_bytes=1_024,
    registers_per_sm=65_536,
    registers_per_thread=255,
    threads_per_sm=1_536,
    threads_per_block=1_024,
    cluster_size_portable=1,
    cluster_size_max=1,
    l2_bytes=6 * 2**20,
    memory_gb=24,
)

ARCHS = {arch.name: arch for arch in (SM90, SM80, SM86)}


def arch_of(capability: tuple[int, int]) -> Arch | None:
    """The architecture of a compute capability; ``None`` if there are no kernels for it."""
    return next((arch for arch in ARCHS.values() if arch.capability == capability), None)
