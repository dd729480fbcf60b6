"""Which contestant wins a shape: the fastest; ties go to the incumbent, then to the smaller kernel. And which entry."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from cudal2.problem import Acc, Dtype, Layout, Problem
from cudal2.records.finals import REFERENCE, Final, group_finals, run_spread
from cudal2.records.measurement import Measurement, Mode, costs
from cudal2.records.shards import dedupe
from cudal2.space.config import KernelConfig
from cudal2.space.families import family_of
from cudal2.table.entry import EVIDENCE, TORCH, Entry, Evidence

#: Times closer than this cannot be told apart from one run to the next, however steady the repeats were.
NOISE_FLOOR = 0.005


def select(
    measurements: Iterable[Measurement],
    acc: Acc,
    layout: Layout,
    mode: Mode = "offline",
    pdl: bool | None = None,
    evidence: Evidence = "searched",
    incumbents: Mapping[str, KernelConfig] | None = None,
    dtype: Dtype = "fp16",
) -> list[Entry]:
    """One entry per shape, which names the baseline that is faster than ours, cuBLASLt-AutoTuning or ``torch.matmul``.

    What serves is ours where it is faster than ``torch.matmul``, whichever baseline is ahead of both; where that was
    not timed in the same rounds, as in a search, ours only if cuBLASLt-AutoTuning is not ahead.

    Args:
        measurements: Rows of any kind. Where a shape has finals, only the latest of each PDL setting counts.
        acc: Accumulator of the table; other rows are left out.
        layout: Layout of the table; other rows are left out.
        mode: Protocol mode; other rows are left out.
        pdl: Only rows with this setting; by default the faster of the two.
        evidence: What the rows that are no finals amount to.
        incumbents: Configurations in use by ``M_N_K``; they win ties.
        dtype: Type of A, B and C of the table; other rows are left out.
    """
    rows = [row for row in measurements if (*row.problem.signature, row.mode) == (acc, layout, dtype, mode)]
    rows = [row for row in rows if pdl is None or row.config is None or row.pdl == pdl]
    finals: dict[Problem, dict[bool, Final]] = defaultdict(dict)
    for final in group_finals(rows):
        if final.ours is not None:
            finals[final.problem][final.pdl] = final
    searched: dict[Problem, list[Measurement]] = defaultdict(list)
    for row in dedupe(rows):
        searched[row.problem].append(row)
    entries = []
    for problem in sorted(searched):
        incumbent = (incumbents or {}).get(problem.mnk)
        if problem in finals:
            entry: Entry | None = _from_final(min(finals[problem].values(), key=_our_median_us), incumbent)
        else:
            entry = _from_search(problem, searched[problem], evidence, incumbent)
        entries += [entry] if entry is not None else []
    return entries


def _our_median_us(final: Final) -> float:
    return final.ours.median_us if final.ours is not None else float("inf")


def _from_final(final: Final, incumbent: KernelConfig | None) -> Entry:
    reference, torch = final.baseline(REFERENCE), final.named(TORCH)
    rows = [row for row in final.rows if row.ok and row.config is not None]
    times_us = {name: row.median_us for name, row in ((REFERENCE, reference), (TORCH, torch)) if row is not None}
    return _entry(winner(rows, incumbent), rows, times_us, "final")


def _from_search(
    problem: Problem, rows: Sequence[Measurement], evidence: Evidence, incumbent: KernelConfig | None
) -> Entry | None:
    tried = [row for row in rows if row.config is not None]
    passed = [row for row in tried if row.ok]
    if passed:
        return _entry(winner(passed, incumbent), passed, {}, evidence)
    if not tried:
        return None
    causes = ", ".join(
        f"{count} {status}" for status, count in Counter(row.status.value for row in tried).most_common()
    )
    reason = f"none of {len(tried)} configurations passed: {causes}"
    return Entry(problem.m, problem.n, problem.k, None, REFERENCE, None, None, evidence, reason=reason)


def _entry(
    best: Measurement, rows: Sequence[Measurement], baselines_us: Mapping[str, float], evidence: Evidence
) -> Entry:
    """Of the winner among ``rows``, beside the medians of baselines in the same rounds."""
    problem, ours_us = best.problem, best.median_us
    # The reference of the winner's own rounds saw the same clocks as the winner.
    own = {REFERENCE: statistics.median(best.ref_times_us)} if best.ref_times_us else {}
    others_us = {**baselines_us, **own}
    ahead = min(
        (name for name in others_us if others_us[name] < ours_us), key=lambda name: others_us[name], default=None
    )
    torch_us = others_us.get(TORCH)
    serves = ahead is None or (torch_us is not None and torch_us >= ours_us)
    reason = ""
    if ahead is not None:
        reason = f"{best.config.name if best.config else ''} took {ours_us:.3f} us against {others_us[ahead]:.3f} us"
    return Entry(
        m=problem.m,
        n=problem.n,
        k=problem.k,
        config=best.config if serves else None,
        baseline=ahead,
        median_us=others_us[ahead] if ahead is not None and not serves else ours_us,
        ref_us=others_us.get(REFERENCE),
        evidence=evidence,
        pdl=best.pdl and serves,
        reason=reason,
        runner_up_ratio=_runner_up_ratio(best, rows) if serves else None,
        torch_us=torch_us,
    )


def _runner_up_ratio(best: Measurement, rows: Sequence[Measurement]) -> float | None:
    """The next best configuration's cost over the winner's."""
    ranked = list(zip(costs(rows), rows, strict=True))
    mine = next(cost for cost, row in ranked if row is best)
    return min((cost / mine for cost, row in ranked if row.config != best.config), default=None)


def better(mine: Entry, theirs: Entry) -> Entry:
    """Of two entries of a shape: more evidence first, then what serves in less time by more than noise.

    What a search timed beside cuBLASLt-AutoTuning overtakes a final as :func:`_overtakes` says.
    """
    if {mine.evidence, theirs.evidence} == {"final", "searched"}:
        final, searched = (mine, theirs) if mine.evidence == "final" else (theirs, mine)
        return searched if _overtakes(searched, final) else final
    mine_rank, theirs_rank = EVIDENCE.index(mine.evidence), EVIDENCE.index(theirs.evidence)
    if mine_rank != theirs_rank:
        return mine if mine_rank > theirs_rank else theirs
    if mine.served_us is None or theirs.served_us is None:
        return theirs if mine.served_us is None else mine
    return theirs if theirs.served_us < mine.served_us * (1.0 - NOISE_FLOOR) else mine


def _overtakes(searched: Entry, final: Entry) -> bool:
    """Whether a search found a faster kernel, each beside its own reference, by more than both may be off.

    Either may be off by what two complete finals of the shape differ.
    """
    if not searched.speedup or not final.speedup or searched.config is None:
        return False
    return searched.speedup > final.speedup * (1.0 + 2.0 * run_spread(Problem(final.m, final.n, final.k)))


def winner(rows: Sequence[Measurement], incumbent: KernelConfig | None = None) -> Measurement:
    """The fastest of passed rows, by their ``costs``; among those within its noise the incumbent, else the smallest."""
    ranked = list(zip(costs(rows), rows, strict=True))
    least, fastest = min(ranked, key=lambda item: (item[0], _size(item[1])))
    limit = least * (1.0 + noise(fastest))
    ties = [row for cost, row in ranked if cost <= limit]
    return min(ties, key=lambda row: (row.config != incumbent, _size(row)))


def noise(row: Measurement) -> float:
    """Relative spread of a row's repeats: median absolute deviation over median, at least :data:`NOISE_FLOOR`."""
    deviation_us = statistics.median(abs(time_us - row.median_us) for time_us in row.times_us)
    return max(NOISE_FLOOR, deviation_us / row.median_us)


def _size(row: Measurement) -> tuple[bool, int, int, int, str]:
    """What a kernel takes from its neighbours: C in L2, shared memory, threads, SMs; the name settles the rest."""
    config = row.config
    if config is None:
        return False, 0, 0, 0, row.contestant
    geometry = family_of(config).geometry
    evicts = getattr(config, "store_hint", "normal") != "normal"
    return evicts, geometry.smem_bytes(config), geometry.threads(config), geometry.cluster_size(config), config.name
