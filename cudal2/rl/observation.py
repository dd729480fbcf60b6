"""What the policy sees of a problem: a fixed vector, documented index by index, with affine constants fixed in code.

Version 1, float32, ``SIZE`` entries:

======= ===============================================================================================================
index   meaning
======= ===============================================================================================================
0-2     log2 m, log2 n, log2 k, each (x - 10) / 4
3       log2(m n k), (x - 30) / 12
4       log2(m n), (x - 20) / 8
5       log2 of FLOPs per compulsory byte, (x - 7) / 4
6       log2 of compulsory bytes, (x - 22) / 8
7       log2(m / n), x / 8
8-11    1 if 8 divides n, 64 divides m, 64 divides n, 64 divides k
12      1 for an fp16 accumulator
13      1 for layout ``nn``
14-28   for each of five canonical tiles (64x64, 128x64, 128x128, 128x256, 256x128): log2 of CTAs over SMs, x / 8;
        filled share of the last wave; share of SMs used by the first wave
29-51   the analytic model's best legal configuration: one-hots of tile_m (64, 128, 192, 256), tile_n (32, 64, 96, 128,
        160, 192, 224, 256) and consumers (1, 2, 3), then tile_k / 128, 1 for ping-pong, cluster_m - 1, cluster_n - 1,
        log2(split_k) / 4, stages / 12, 1 for stores from registers, (ctas_per_sm - 1) / 3
52-74   the mean of the same over the model's sixteen best
75-82   hardware, constant on one device: SMs / 132, shared memory per SM / 228 KiB, L2 / 60 MiB, device memory /
        4.8 TB/s, tensor peak / 1 PFLOP/s, L2 rate / 12 TB/s, launch / 2.2 us, compute capability / 10
83-92   five counters, each a presence bit and a value: L2 hit rate, TMA throughput, device-memory throughput,
        tensor-pipe activity, all as fractions, and registers / 255. At the start of an episode of the problem's best
        configuration so far, afterwards of the one just measured; absent unless that one was profiled before, but a
        live measurement reports its registers
93-96   history, zero at horizon 1: steps taken / horizon, best log ratio, last log ratio, 1 if the last one failed
97      index of the problem in the environment's list: addresses the exact masks, never a feature
======= ===============================================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudal2.arch import Arch
from cudal2.floor import BURST, SUSTAINED
from cudal2.problem import Problem
from cudal2.search.analytic import columns_of, rank
from cudal2.space.space import SearchSpace

Floats = NDArray[np.float32]

VERSION = 1
CANONICAL_TILES = ((64, 64), (128, 64), (128, 128), (128, 256), (256, 128))
#: Values with an entry each; another value of the axis counts as the nearest, the lower of two.
ONE_HOT = {"tile_m": (64, 128, 192, 256), "tile_n": (32, 64, 96, 128, 160, 192, 224, 256), "consumers": (1, 2, 3)}
TOP = 16
COUNTERS = ("l2_hit_rate", "tma_throughput", "dram_throughput", "tensor_active", "registers")

SHAPE = slice(0, 29)
ANALYTIC_BEST = slice(29, 52)
ANALYTIC_TOP = slice(52, 75)
HARDWARE = slice(75, 83)
COUNTER = slice(83, 93)
HISTORY = slice(93, 97)
#: Entries that are features; the problem index comes after them.
FEATURES = 97
PROBLEM_INDEX = 97
SIZE = 98
#: Features are clipped to this magnitude.
BOUND = 8.0


def shape_features(problem: Problem, arch: Arch) -> list[float]:
    """Entries 0-28."""
    m, n, k = problem.m, problem.n, problem.k
    log_m, log_n, log_k = math.log2(m), math.log2(n), math.log2(k)
    features = [(value - 10.0) / 4.0 for value in (log_m, log_n, log_k)]
    features += [(log_m + log_n + log_k - 30.0) / 12.0, (log_m + log_n - 20.0) / 8.0]
    features += [
        (math.log2(problem.flops / problem.bytes_min) - 7.0) / 4.0,
        (math.log2(problem.bytes_min) - 22.0) / 8.0,
    ]
    features += [(log_m - log_n) / 8.0]
    features += [float(size % by == 0) for size, by in ((n, 8), (m, 64), (n, 64), (k, 64))]
    features += [float(problem.acc == "fp16"), float(problem.layout == "nn")]
    for tile_m, tile_n in CANONICAL_TILES:
        waves = math.ceil(m / tile_m) * math.ceil(n / tile_n) / arch.sm_count
        features += [math.log2(waves) / 8.0, waves / math.ceil(waves), min(waves, 1.0)]
    return features


def analytic_features(space: SearchSpace, problem: Problem, candidates: NDArray[np.int64]) -> list[float]:
    """Entries 29-74, from the legal configurations (flat indices)."""
    rows = _encoded(columns_of(space, rank(space, problem, candidates)[:TOP]))
    return [*rows[0].tolist(), *rows.mean(axis=0).tolist()]


def _encoded(columns: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Configurations as rows of the 23 entries."""
    one_hots = [_nearest(columns[name], values) for name, values in ONE_HOT.items()]
    scalars = (
        columns["tile_k"] / 128.0,
        columns["schedule"] == "pingpong",
        columns["cluster_m"] - 1.0,
        columns["cluster_n"] - 1.0,
        np.log2(columns["split_k"]) / 4.0,
        columns["stages"] / 12.0,
        columns["epilogue"] != "tma",
        (columns["ctas_per_sm"] - 1.0) / 3.0,
    )
    return np.concatenate([*one_hots, np.stack(scalars, axis=1)], axis=1).astype(np.float64)


def _nearest(column: NDArray[Any], values: tuple[int, ...]) -> NDArray[np.bool_]:
    away = np.abs(column[:, None] - np.asarray(values)[None, :])
    return np.asarray(np.arange(len(values)) == away.argmin(axis=1)[:, None])


def hardware_features(arch: Arch) -> list[float]:
    """Entries 75-82."""
    return [
        arch.sm_count / 132.0,
        arch.smem_bytes_per_sm / 233_472.0,
        arch.l2_bytes / (60.0 * 2**20),
        BURST.hbm_bytes / 4.8e12,
        BURST.tensor_flops / 1.0e15,
        BURST.l2_bytes / 12.0e12,
        SUSTAINED.launch_us / 2.2,
        (arch.capability[0] + arch.capability[1] / 10.0) / 10.0,
    ]


def counter_features(counters: Mapping[str, float] | None) -> list[float]:
    """Entries 83-92; a counter that was not collected is a zero with its presence bit off."""
    features = []
    for name in COUNTERS:
        value = (counters or {}).get(name)
        features += [0.0, 0.0] if value is None else [1.0, value]
    return features


def static_features(space: SearchSpace, problem: Problem, candidates: NDArray[np.int64]) -> Floats:
    """All features of a problem before anything was measured: counters absent, history empty."""
    parts = [
        *shape_features(problem, space.arch),
        *analytic_features(space, problem, candidates),
        *hardware_features(space.arch),
        *counter_features(None),
        *[0.0] * (HISTORY.stop - HISTORY.start),
    ]
    return np.clip(np.asarray(parts, np.float32), -BOUND, BOUND)


class ObservationTable:
    """Static features of a list of problems, computed on first use; :meth:`batch` assembles whole observations.

    Args:
        space: The search space.
        problems: What the indices stand for.
        candidates: Legal configurations (flat) of the problem with an index.
    """

    def __init__(
        self, space: SearchSpace, problems: Sequence[Problem], candidates: Callable[[int], NDArray[np.int64]]
    ) -> None:
        self._space = space
        self._problems = tuple(problems)
        self._candidates = candidates
        self._rows = np.zeros((len(self._problems), SIZE), np.float32)
        self._rows[:, PROBLEM_INDEX] = np.arange(len(self._problems))
        self._known = np.zeros(len(self._problems), np.bool_)

    def batch(self, index: NDArray[np.int64]) -> Floats:
        """Observations at the start of an episode, one row per index; a fresh array."""
        for problem in np.unique(index[~self._known[index]]).tolist():
            self._rows[problem, :FEATURES] = static_features(
                self._space, self._problems[problem], self._candidates(problem)
            )
            self._known[problem] = True
        return self._rows[index]


def write_history(
    row: Floats, progress: float, best: float, last: float, counters: Mapping[str, float] | None = None
) -> None:
    """Writes what an episode's last step showed into an observation, in place.

    Args:
        row: One observation.
        progress: Steps taken over the horizon; at 1 the episode is over and the next one starts from a clean row.
        best: Best log ratio of the episode.
        last: Log ratio of the last step; the reward floor means it failed.
        counters: Counters of the last measurement, if the runner reports any.
    """
    row[HISTORY] = (progress, best, last, float(last <= -2.0))
    write_counters(row, counters)


def write_counters(row: Floats, counters: Mapping[str, float] | None) -> None:
    """Writes entries 83-92 of an observation, in place."""
    row[COUNTER] = counter_features(counters)
