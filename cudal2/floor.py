"""Lower bounds on a GEMM's time on an H200: what the hardware could do at best, from sizes alone.

Two sets of ceilings. ``SUSTAINED`` is what a long run at the power limit reaches with cold operands; its bound sorts
shapes into classes. ``BURST`` is what a short run at full clock may reach; its bound without the launch term is
physical, and no honest measurement is below it. A bound ignores wave quantisation, pipeline fill and drain.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Classes of shapes by their sustained bound: upper edge in microseconds (exclusive) and name.
CLASSES: tuple[tuple[float, str], ...] = (
    (2.3, "<2.3us"),
    (10.0, "2.3-10us"),
    (100.0, "10-100us"),
    (1_000.0, "0.1-1ms"),
    (float("inf"), ">1ms"),
)
CLASS_NAMES = tuple(name for _, name in CLASSES)

#: Above this sustained bound a run back to back heats an H200 to its power limit, and clocks fall until it is warm.
HEATING_FLOOR_US = 100.0
#: Rows and columns of C that one pair of CTAs covers at most with fp32 accumulators (two 128x256 tiles with multicast).
_STRIP = 256
_ELEMENT_BYTES = 2


@dataclass(frozen=True)
class Ceilings:
    """Rates nothing on the device exceeds.

    Attributes:
        tensor_flops: fp16 tensor-core operations per second.
        hbm_bytes: Device-memory bytes per second.
        l2_bytes: Bytes per second from L2 into the multiprocessors.
        launch_us: One empty kernel, start to start.
    """

    tensor_flops: float
    hbm_bytes: float
    l2_bytes: float
    launch_us: float


#: 790 TFLOP/s: best sustained GEMM published for H100 and H200 SXM (stas00/ml-engineering MAMF, 794.5), 80 % of the 989
#: of the data sheet. 4.3 TB/s: device copy on an H200. 8 TB/s L2: between the 5.5 of plain loads and the 10.8
#: that DeepGEMM's model assumes. 2.2 us: empty kernels on a stream (2.1 on H100, Hazy Research).
SUSTAINED = Ceilings(tensor_flops=790e12, hbm_bytes=4.3e12, l2_bytes=8e12, launch_us=2.2)
#: 1.0 PFLOP/s: 132 SMs x 4096 FLOP/clk at 1.85 GHz. 4.8 TB/s: HBM3e data sheet. 12 TB/s: 64 B/clk/SM and clustering.
#: 1.3 us: empty kernel in a CUDA graph (H100, Hazy Research).
BURST = Ceilings(tensor_flops=1.0e15, hbm_bytes=4.8e12, l2_bytes=12e12, launch_us=1.3)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def compulsory_bytes(m: int, n: int, k: int) -> int:
    """A and B read once, C written once."""
    return _ELEMENT_BYTES * (m * k + k * n + m * n)


def l2_traffic_bytes(m: int, n: int, k: int) -> int:
    """Bytes between L2 and the multiprocessors when 256x256 of C is computed per read of its operands."""
    return _ELEMENT_BYTES * (m * k * _ceil_div(n, _STRIP) + k * n * _ceil_div(m, _STRIP) + m * n)


def terms_us(m: int, n: int, k: int, ceilings: Ceilings = SUSTAINED) -> dict[str, float]:
    """Time of each resource alone, microseconds: ``launch``, ``hbm``, ``l2``, ``tensor``."""
    return {
        "launch": ceilings.launch_us,
        "hbm": compulsory_bytes(m, n, k) / ceilings.hbm_bytes * 1e6,
        "l2": l2_traffic_bytes(m, n, k) / ceilings.l2_bytes * 1e6,
        "tensor": 2 * m * n * k / ceilings.tensor_flops * 1e6,
    }


def floor_us(m: int, n: int, k: int) -> float:
    """The sustained bound with cold operands: the slowest resource alone."""
    return max(terms_us(m, n, k).values())


def heats(m: int, n: int, k: int) -> bool:
    """Whether the shape, run back to back, runs the chip into its power limit."""
    return floor_us(m, n, k) > HEATING_FLOOR_US


def floor_burst_us(m: int, n: int, k: int) -> float:
    """The bound at burst rates."""
    return max(terms_us(m, n, k, BURST).values())


def physical_us(m: int, n: int, k: int) -> float:
    """What no correct kernel beats: burst tensor rate, or its compulsory bytes through L2.

    No launch term: back-to-back kernels overlap under programmatic dependent launch. No device-memory term: part of a
    working set may stay in L2 from one launch to the next.
    """
    return max(terms_us(m, n, k, BURST)["tensor"], compulsory_bytes(m, n, k) / BURST.l2_bytes * 1e6)


def floor_class(m: int, n: int, k: int) -> str:
    """Class of a shape by its floor, one of ``CLASS_NAMES``."""
    return class_of(floor_us(m, n, k))


def class_of(bound_us: float) -> str:
    """Class of a sustained bound."""
    return next(name for edge, name in CLASSES if bound_us < edge)
