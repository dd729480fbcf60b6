"""A made-up recording for tests; no number in it was measured, and nothing here ships with the package."""

import math
import zlib

from cudal2.arch import SM90
from cudal2.problem import Problem
from cudal2.records.fingerprint import Fingerprint
from cudal2.records.measurement import Measurement, Status
from cudal2.records.recording import Recording
from cudal2.settings import SpaceSettings
from cudal2.space.space import SearchSpace

FINGERPRINT = Fingerprint(
    gpu="fabricated for tests",
    capability=(9, 0),
    sm_count=132,
    memory_gib=140,
    driver="0",
    cuda="0",
    cublaslt="0",
    nvrtc="0",
    generator_version="0",
)

SHAPES = ("64_64_64", "128_256_512", "64_512_2048", "1024_512_256", "2048_2048_64", "512_1024_4096")

SPACE = SpaceSettings(
    axes={
        "tile_m": (64, 128),
        "tile_n": (32, 64, 128),
        "tile_k": (64,),
        "schedule": ("coop", "pingpong"),
        "consumers": (1, 2),
        "cluster_m": (1, 2),
        "cluster_n": (1,),
        "split_k": (1, 2, 4),
        "stages": (2, 4),
        "epilogue": ("tma", "direct"),
        "ctas_per_sm": (1,),
        "swap_ab": (False,),
        "l2_prefetch": (0,),
        "l2_promotion": (256,),
        "split_via": ("cluster",),
        "producer_registers": (0,),
        "store_hint": ("normal",),
        "store_buffers": (2,),
        "raster": ("m",),
        "group": (1, 8),
        "persistent": (False, True),
    },
    name="tiny",
)


def jitter(*parts):
    """A repeatable number in [0, 1)."""
    return zlib.crc32(repr(parts).encode()) / 2**32


def made_up_time_us(problem, config):
    """Waves of tiles times depth, so that the best configuration depends on the shape as it does in life."""
    tiles = math.ceil(problem.m / config.tile_m) * math.ceil(problem.n / config.tile_n)
    waves = math.ceil(tiles * config.split_k / SM90.sm_count)
    depth = math.ceil(problem.k / config.tile_k / config.split_k)
    step_us = 0.02 + config.tile_m * config.tile_n / 250_000
    step_us *= {2: 1.3, 4: 1.0}[config.stages] * (0.95 if config.cluster_m == 2 else 1.0)
    fixed_us = 1.5 + 0.2 * math.log2(config.split_k) + (0.1 if config.epilogue == "tma" else 0.0)
    return (fixed_us + waves * depth * step_us) * (1.0 + 0.02 * jitter(problem.mnk, config.name))


def made_up_row(problem, config, *, pdl=False):
    times_us, ref_us = (made_up_time_us(problem, config), 2.0 + problem.flops / 4e8)
    luck = jitter("status", problem.mnk, config.name)
    common = {"registers": 168, "spill_bytes": 0, "smem_bytes": 65536, "compile_s": 0.75, "bench_s": 0.25, "pdl": pdl}
    if luck < 0.02:
        return Measurement(problem, "sm90_ws", config, Status.TIMEOUT, "no answer within 10 s", **common)
    if luck < 0.04:
        return Measurement(problem, "sm90_ws", config, Status.CORRECTNESS, "error 3.0 times its bound", **common)
    drift = [1.0 + 0.002 * index for index in range(5)]
    return Measurement(
        problem,
        "sm90_ws",
        config,
        Status.CORRECT,
        times_us=tuple(times_us * factor for factor in drift),
        ref_times_us=tuple(ref_us * factor for factor in drift),
        launches=100,
        utc="2000-01-01T00:00:00+00:00",
        **common,
    )


def made_up_recording(shapes=SHAPES, space=SPACE, layout="tn"):
    """Every legal configuration of the space on every shape, with some failures and one baseline each."""
    search_space = SearchSpace(settings=space)
    rows = []
    for mnk in shapes:
        problem = Problem.parse(mnk, layout=layout)
        rows += [made_up_row(problem, config) for config in search_space.enumerate(problem)]
        ref_us = (2.0 + problem.flops / 4e8,) * 5
        rows.append(Measurement(problem, "cublaslt_auto", None, Status.CORRECT, times_us=ref_us, detail="made up"))
    return Recording.from_measurements(rows, [FINGERPRINT], search_space)
