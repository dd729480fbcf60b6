"""A gradient-boosted model of how far a configuration is behind the best one of its shape, learned from records.

It ranks, as the analytic model does, and its estimates never leave this package as measurements.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cudal2.arch import SM90, Arch
from cudal2.errors import EnvironmentProblemError, NothingValidError
from cudal2.floor import terms_us
from cudal2.problem import Problem
from cudal2.records.measurement import Measurement
from cudal2.space.config import KernelConfig, Sm90WsConfig
from cudal2.space.estimate import ABSENT, predict_us
from cudal2.space.refit import transposed
from cudal2.space.rule import ceil_div
from cudal2.space.sm90_ws.geometry import TMA_ROW_BYTES
from cudal2.space.waves import waves_of

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingRegressor

Floats = NDArray[np.float64]
Columns = Mapping[str, NDArray[Any]]
#: Logarithm of each configuration's time over the best of its shape.
Behind = Mapping[Problem, Mapping[KernelConfig, float]]

#: What one figure of a family without the axis stands for, beside what the analytic model takes.
_ABSENT: dict[str, Any] = {**ABSENT, "variant": "", "warps": 0, "l2_prefetch": 0}
#: An L2 line, of four sectors.
_LINE_BYTES = 128
#: Logarithms of the time ratio: beyond the first a configuration is just slow, within the second it matters most.
SLOW, NEAR = 0.7, 0.15
#: Trees, their leaves and how much each corrects.
_TREES: dict[str, Any] = {
    "max_iter": 400,
    "learning_rate": 0.06,
    "max_leaf_nodes": 31,
    "min_samples_leaf": 15,
    "l2_regularization": 1.0,
    "random_state": 0,
}


def columns_of_configs(configs: Sequence[KernelConfig]) -> dict[str, NDArray[Any]]:
    """One array per axis of the Hopper families, whichever of them the configurations are of."""
    names = dict.fromkeys(("tile_m", "tile_n", "tile_k", "stages", *_ABSENT))
    return {name: np.array([getattr(config, name, _ABSENT.get(name)) for config in configs]) for name in names}


def features(problem: Problem, configs: Sequence[KernelConfig], arch: Arch = SM90) -> Floats:
    """One row per configuration: its axes, and how the shape falls into its tiles, waves and stages."""
    c = columns_of_configs(configs)
    c["stages"] = np.where(c["stages"] > 0, c["stages"], _as_many_as_fit(c, arch))
    small = np.array([config.family != Sm90WsConfig.family for config in configs])
    floor_us = max(terms_us(problem.m, problem.n, problem.k).values())
    columns = [
        *(np.full(len(configs), value) for value in _sizes(problem)),
        small,
        *_choices(c, problem),
        *_tiling(c, problem, arch),
        _analytic(problem, c, small, arch) - math.log(floor_us),
    ]
    return np.column_stack(columns).astype(np.float64)


def _as_many_as_fit(c: Columns, arch: Arch) -> NDArray[np.int64]:
    """Stages, where a configuration of ``sm90_collective`` leaves them to CUTLASS by 0; two bytes an element."""
    stage_bytes = 2 * c["tile_k"] * (c["tile_m"] + c["tile_n"])
    return np.asarray(np.maximum(1, arch.smem_bytes_per_block // stage_bytes), np.int64)


def _sizes(problem: Problem) -> list[float]:
    """What the shape alone says: its sizes, what bounds it, and how much of its traffic is C."""
    terms = terms_us(problem.m, problem.n, problem.k)
    floor_us = max(terms.values())
    sizes = [math.log2(value) for value in (problem.m, problem.n, problem.k, floor_us)]
    sizes += [math.log2(terms[name] / floor_us) for name in ("tensor", "hbm")]
    # Rows that start inside a sector of 32 bytes, or a line of 128, are loaded by more requests; copies start on lines.
    loaded = (_LINE_BYTES if row_bytes % TMA_ROW_BYTES else row_bytes for row_bytes in problem.row_bytes)
    starts = [float(math.gcd(row_bytes, _LINE_BYTES)) for row_bytes in loaded]
    return [*sizes, *starts, 2.0 * problem.m * problem.n / problem.bytes_min]


def _choices(c: Columns, problem: Problem) -> list[NDArray[Any]]:
    """The axes, as a tree splits them best."""
    side_m, side_n = np.where(c["swap_ab"], (c["tile_n"], c["tile_m"]), (c["tile_m"], c["tile_n"]))
    return [
        c["variant"] == "mma",
        c["swap_ab"],
        np.log2(side_m),
        np.log2(side_n),
        np.log2(c["tile_m"] * c["tile_n"]),
        *(c[name] for name in ("tile_k", "stages", "consumers", "cluster_m", "cluster_n", "split_k", "ctas_per_sm")),
        *(c[name] for name in ("persistent", "warps", "l2_prefetch", "l2_promotion")),
        c["stages"] * c["tile_k"],
        c["producer_registers"],
        c["store_hint"] == "evict_first",
        c["store_buffers"],
        c["resident_a"] > 0,
        c["stream_k"],
        (c["split_via"] == "workspace") * np.log2(c["split_k"] * float(problem.m * problem.n)),
        c["schedule"] == "pingpong",
        c["epilogue"] == "tma",
        c["epilogue"] == "shifted",
        c["cluster_m"] * c["cluster_n"],
    ]


def _tiling(c: Columns, problem: Problem, arch: Arch) -> list[NDArray[Any]]:
    """How the shape falls into tiles, waves and stages, and what crosses L2."""
    tiles_m = ceil_div(problem.m, c["tile_m"] * c["cluster_m"]) * c["cluster_m"]
    tiles_n = ceil_div(problem.n, c["tile_n"] * c["cluster_n"]) * c["cluster_n"]
    ctas = tiles_m * tiles_n * c["split_k"]
    wave = arch.sm_count * c["ctas_per_sm"]
    waves, taken, layers = ctas / wave, waves_of(ctas, wave, c["stream_k"]), ctas / arch.sm_count
    share = ceil_div(ceil_div(problem.k, c["tile_k"]), c["split_k"])
    rows_of_a = np.where(c["resident_a"] > 0, c["resident_a"], c["stages"]) * c["tile_m"]
    ring_bytes = 2.0 * c["tile_k"] * (rows_of_a + c["stages"] * c["tile_n"])
    width = c["tile_m"] / c["cluster_n"] + c["tile_n"] / c["cluster_m"]
    fast, slow = np.where(c["raster"] == "m", (tiles_m, tiles_n), (tiles_n, tiles_m))
    reads_of_a = np.where(c["resident_a"] > 0, 1.0, tiles_n / c["cluster_n"])
    reads = problem.m * reads_of_a + problem.n * tiles_m / c["cluster_m"]
    floor_us = max(terms_us(problem.m, problem.n, problem.k).values())
    return [
        np.log2(ctas),
        np.log2(waves),
        taken,
        waves / taken,
        layers / np.ceil(layers),
        np.log2(share),
        np.minimum(1.0, c["stages"] / share),
        np.log2(ring_bytes),
        np.log2(np.minimum(ctas, arch.sm_count * c["ctas_per_sm"]) * ring_bytes),
        np.log2(tiles_m * c["tile_m"] * tiles_n * c["tile_n"] / (problem.m * problem.n)),
        c["raster"] == "m",
        np.minimum(c["group"], fast),
        np.log2(np.maximum(1.0, fast / c["group"])),
        np.log2(fast),
        np.log2(slow),
        np.minimum(c["l2_prefetch"], share),
        np.minimum(c["l2_prefetch"], share) / share,
        np.log2(2.0 * width * c["tile_k"]),
        np.log2(2.0 * problem.k * reads / 8e6 / floor_us),
        np.log2(c["tile_m"] * c["tile_n"] / width),
    ]


def _analytic(problem: Problem, columns: Columns, small: NDArray[np.bool_], arch: Arch) -> Floats:
    """Logarithm of the analytic model's time, which looks at which columns there are."""
    found = np.empty(len(small))
    for family, absent in ((small, ()), (~small, ("variant", "warps"))):
        if family.any():
            mine = {name: column[family] for name, column in columns.items() if name not in absent}
            found[family] = np.log(predict_us(mine, problem, arch))
    return found


def log_behind(records: Sequence[Iterable[Measurement]]) -> dict[Problem, dict[KernelConfig, float]]:
    """Logarithm of each configuration's time over the best of its shape.

    Args:
        records: What was measured, the most trusted last. What the others say of a shape is moved by the median
            difference on the configurations that both have, since clocks and protocols drift; those have the last word.
    """
    known: dict[Problem, dict[KernelConfig, float]] = {}
    for measurements in reversed(records):
        for problem, costs in _log_costs(measurements).items():
            trusted = known.get(problem, {})
            both = [trusted[config] - costs[config] for config in costs.keys() & trusted.keys()]
            shift = float(np.median(both)) if both else 0.0
            known[problem] = {config: cost + shift for config, cost in costs.items()} | trusted
    best = {problem: min(costs.values()) for problem, costs in known.items()}
    return {problem: {one: cost - best[problem] for one, cost in costs.items()} for problem, costs in known.items()}


def _log_costs(measurements: Iterable[Measurement]) -> dict[Problem, dict[KernelConfig, float]]:
    """Logarithm of the lowest time of each; where every row of the shape has a reference, at the reference's median."""
    rows: dict[Problem, list[tuple[KernelConfig, Measurement]]] = defaultdict(list)
    for row in measurements:
        if row.ok and row.config is not None:
            rows[row.problem].append((row.config, row))
    costs: dict[Problem, dict[KernelConfig, float]] = defaultdict(dict)
    for problem, found in rows.items():
        speedups = [row.speedup for _, row in found]
        drift = [0.0] * len(found)
        if all(speedups):
            references = [math.log(row.median_us * row.speedup) for _, row in found if row.speedup]
            drift = (np.array(references) - np.median(references)).tolist()
        for (config, row), off in zip(found, drift, strict=True):
            costs[problem][config] = min(math.log(row.median_us) - off, costs[problem].get(config, math.inf))
    return costs


class Surrogate:
    """The model, fitted to what was measured and to its transposes.

    Args:
        behind: What :func:`log_behind` gives.
        arch: The GPU the records are of.

    Raises:
        EnvironmentProblemError: scikit-learn is not installed.
        NothingValidError: There is nothing to learn from.
    """

    def __init__(self, behind: Behind, arch: Arch = SM90) -> None:
        self._arch = arch
        if not any(behind.values()):
            raise NothingValidError("no correct measurement to learn a ranking from")
        examples: list[tuple[Floats, Floats]] = []
        for problem, values in behind.items():
            configs, logs = list(values), np.array(list(values.values()))
            examples.append((features(problem, configs, arch), logs))
            turned = [(at, *pair) for at, config in enumerate(configs) if (pair := transposed(problem, config))]
            if turned:
                there = features(turned[0][1], [config for _, _, config in turned], arch)
                examples.append((there, logs[[at for at, _, _ in turned]]))
        inputs, logs = (np.concatenate(part) for part in zip(*examples, strict=True))
        logs = np.minimum(logs, SLOW)
        self._model = _regressor().fit(inputs, logs, sample_weight=np.exp(-logs / NEAR))

    def log_behind(self, problem: Problem, configs: Sequence[KernelConfig]) -> Floats:
        """Estimated logarithm of each configuration's time over the best of the shape."""
        return np.asarray(self._model.predict(features(problem, configs, self._arch)), np.float64)


def _regressor() -> HistGradientBoostingRegressor:
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
    except ImportError as error:
        raise EnvironmentProblemError(
            f"shortlists are ranked by scikit-learn, which is not installed ({error}): pip install 'cudal2[plan]'"
        ) from error
    return HistGradientBoostingRegressor(**_TREES)
