"""Made-up servings for tests of the report; nothing here was measured and nothing here ships."""

import numpy as np
from fabricated_finals import CONFIG

from cudal2.problem import Problem
from cudal2.records.latency import Latency
from cudal2.records.measurement import Status

BLOCKS, REQUESTS = 6, 20


def served(mnk, contestant, base_us, *, state="warm", target_qps=1000.0, acc="fp32", reason="", seed=0):
    """One contestant on one shape: noise around ``base_us``, every twentieth request three times as late."""
    rng = np.random.default_rng([seed, *contestant.encode()])
    latency_us = base_us * rng.normal(1.0, 0.01, (BLOCKS, REQUESTS))
    latency_us[:, -1] *= 3.0
    times = {} if reason else {
        "latency_us": tuple(tuple(block) for block in latency_us),
        "queue_us": ((0.1,) * REQUESTS,) * BLOCKS,
        "host_us": (3.0,) * BLOCKS,
        "device_us": tuple(tuple(block[:4] / 4) for block in latency_us),
    }  # fmt: skip
    return Latency(
        problem=Problem.parse(mnk, acc),
        contestant=contestant,
        config=CONFIG if contestant == "sm90_ws" else None,
        state=state,
        target_qps=target_qps,
        seed=0,
        status=Status.CORRECTNESS if reason else Status.CORRECT,
        reason=reason,
        sm_clock_mhz=() if reason else (1980,) * BLOCKS,
        throttle=() if reason else (0, 4) * (BLOCKS // 2),
        utc="2000-01-01T00:00:00+00:00",
        **times,
    )


def serving_rows(mnk, ours_us, baselines_us, **common):
    """One serving: ours if it has a time, baselines, a launch of nothing."""
    rows = [served(mnk, "sm90_ws", ours_us, **common)] if ours_us else []
    rows += [served(mnk, name, base_us, **common) for name, base_us in baselines_us.items()]
    return [*rows, served(mnk, "empty", 8.0, **common)]
