"""Made-up finals for tests of the report; nothing here was measured and nothing here ships."""

import itertools

import numpy as np

from cudal2.floor import floor_us
from cudal2.problem import Problem
from cudal2.records.measurement import Measurement, Status
from cudal2.space.config import Sm90WsConfig

CONFIG = Sm90WsConfig(128, 128, 64, 4, "coop", 2, 1, 1, 1, "tma", 1)
#: Ours is entered on each; the optional ones only on some shapes.
EVERYONE = ("cublaslt_auto_tn", "cublaslt_auto_nn", "cublaslt_heuristic_tn", "cublas_tn", "torch", "quack", "triton",
            "cuda_l2", "foreign:fast_gemm")  # fmt: skip
GRID = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)


def row(mnk, contestant, times_us, *, pdl=False, utc="2000-01-01T00:00:00+00:00", config=None, acc="fp32", reason="",
        detail=""):  # fmt: skip
    return Measurement(
        problem=Problem.parse(mnk, acc),
        contestant=contestant,
        config=config,
        status=Status.CORRECTNESS if reason else Status.CORRECT,
        reason=reason,
        pdl=pdl,
        times_us=() if reason else tuple(float(time_us) for time_us in times_us),
        utc=utc,
        detail=detail,
    )


def final_rows(mnk, ours_us, baselines_us, *, rounds=9, drift=0.0, **common):
    """One final: constant times, all drifting up together by ``drift`` per round as a heating chip would."""

    def times(base_us):
        return [base_us * (1.0 + drift * index) for index in range(rounds)]

    rows = [row(mnk, "sm90_ws", times(ours_us), config=CONFIG, **common)] if ours_us else []
    return rows + [row(mnk, name, times(base_us), **common) for name, base_us in baselines_us.items()]


def grid_finals(count, pdls=(False, True)):
    """So many shapes of the 1,000, spread over the grid: noise, wins below 10 us, losses above, everyone entered.

    Every eleventh shape has no kernel of ours, every third no optional contestant.
    """
    rng = np.random.default_rng(count)
    every = list(itertools.product(GRID, GRID, GRID))
    records = []
    for at in range(count):
        m, n, k = every[389 * at % len(every)]
        mnk, base_us = f"{m}_{n}_{k}", 1.4 * floor_us(m, n, k)
        for pdl in pdls:
            gain = (1.25 if base_us < 10.0 else 0.97) * rng.normal(1.0, 0.06)
            times_us = base_us / gain * rng.normal(1.0, 0.01, 9)
            common = {"pdl": pdl, "detail": "1980/1755/1980MHz 0/4/4throttle"}
            if at % 11 == 10:
                records.append(row(mnk, "sm90_ws", (), config=CONFIG, reason="NaN at (0, 0)", **common))
            else:
                records.append(row(mnk, "sm90_ws", times_us, config=CONFIG, **common))
            for name in EVERYONE if at % 3 else EVERYONE[:5]:
                records.append(row(mnk, name, base_us * rng.normal(1.05, 0.03) * rng.normal(1.0, 0.01, 9), **common))
    return records
