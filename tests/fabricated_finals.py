"""Made-up finals for tests of the report; nothing here was measured and nothing here ships."""

from cudal2.problem import Problem
from cudal2.records.measurement import Measurement, Status
from cudal2.space.config import KernelConfig

CONFIG = KernelConfig(128, 128, 64, 4, "coop", 2, 1, 1, 1, "tma", 1)


def row(mnk, contestant, times_us, *, pdl=False, utc="2000-01-01T00:00:00+00:00", config=None, acc="fp32", reason=""):
    return Measurement(
        problem=Problem.parse(mnk, acc),
        contestant=contestant,
        config=config,
        status=Status.CORRECTNESS if reason else Status.CORRECT,
        reason=reason,
        pdl=pdl,
        times_us=() if reason else tuple(float(time_us) for time_us in times_us),
        utc=utc,
    )


def final_rows(mnk, ours_us, baselines_us, *, rounds=9, drift=0.0, **common):
    """One final: constant times, all drifting up together by ``drift`` per round as a heating chip would."""

    def times(base_us):
        return [base_us * (1.0 + drift * index) for index in range(rounds)]

    rows = [row(mnk, "sm90_ws", times(ours_us), config=CONFIG, **common)] if ours_us else []
    return rows + [row(mnk, name, times(base_us), **common) for name, base_us in baselines_us.items()]
