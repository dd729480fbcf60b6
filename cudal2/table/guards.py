"""Guard rules on a table: a shape whose kernel is past a bound is served by the library, and says why.

A rule about counters holds where exactly this configuration was profiled on exactly this shape, and nowhere else.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from cudal2.errors import TableError, UsageError
from cudal2.records.counters import NAMES, ProfileBook
from cudal2.settings import GuardRule
from cudal2.table.entry import Device, Entry, Header
from cudal2.table.kernel_table import KernelTable

logger = logging.getLogger(__name__)

SPEEDUP = "speedup"


@dataclass(frozen=True)
class RuleResult:
    """What one rule did to a table.

    Attributes:
        rule: The rule.
        taken: Entries it took, as they were.
        judged: Entries it could judge, the taken ones included.
        unknown: Entries of ours it could not, for want of the metric.
    """

    rule: GuardRule
    taken: tuple[Entry, ...]
    judged: int
    unknown: int

    @property
    def summary(self) -> str:
        """One line: how many it took, what that costs, and where it could say nothing."""
        missing = "no speed-up" if self.rule.metric == SPEEDUP else "no counters"
        unknown = f"; {self.unknown} not judged: {missing}" if self.unknown else ""
        return f"{self.rule.condition}: took {len(self.taken)} of {self.judged} kernels{self._cost}{unknown}"

    @property
    def _cost(self) -> str:
        """What the library takes longer there: ``torch.matmul``, or cuBLASLt-AutoTuning where that was not timed."""
        ratios = {entry.mnk: ratio for entry in self.taken if (ratio := _instead(entry)) is not None}
        if not ratios:
            return ""
        worst = max(ratios, key=lambda mnk: ratios[mnk])
        mean = statistics.geometric_mean(ratios.values())
        return f", which now take {mean:.3f}x their time (geometric mean; most at {worst}, {ratios[worst]:.3f}x)"


def guard(
    table: KernelTable, rules: Sequence[GuardRule], book: ProfileBook | None = None
) -> tuple[KernelTable, list[RuleResult]]:
    """Applies rules in order; an entry that one took is no entry for the next.

    Args:
        table: What was chosen by time; entries without a kernel of ours are left alone.
        rules: What takes an entry out.
        book: Counters, if there are any.

    Raises:
        UsageError: A rule's metric is none that is known.
        TableError: The counters are of another GPU.
    """
    for rule in rules:
        if rule.metric != SPEEDUP and rule.metric not in NAMES:
            raise UsageError(f"guard metric '{rule.metric}' is unknown; use {', '.join((SPEEDUP, *NAMES))}")
    book = book if book is not None else ProfileBook()
    _same_device(table.header, book)
    entries = {entry.mnk: entry for entry in table.entries}
    results = []
    for rule in rules:
        ours = [entry for entry in entries.values() if entry.config is not None]
        values = {entry.mnk: _value(entry, rule.metric, table.header, book) for entry in ours}
        known = {mnk: value for mnk, value in values.items() if value is not None}
        taken = tuple(entries[mnk] for mnk, value in known.items() if rule.takes(value))
        entries |= {entry.mnk: _fallen_back(entry, rule, known[entry.mnk]) for entry in taken}
        results.append(RuleResult(rule, taken, len(known), len(ours) - len(known)))
    return KernelTable(table.header, entries.values()), results


def _value(entry: Entry, metric: str, header: Header, book: ProfileBook) -> float | None:
    if metric == SPEEDUP or entry.config is None:
        return _instead(entry)
    counters = book.get(header.problem(entry.m, entry.n, entry.k), entry.config)
    value: float | None = getattr(counters, metric, None)
    return value


def _instead_us(entry: Entry) -> float | None:
    """What would serve without the entry's kernel, or cuBLASLt-AutoTuning where that was not timed."""
    return entry.torch_us or entry.ref_us


def _instead(entry: Entry) -> float | None:
    """That over the time of the entry's kernel."""
    instead_us = _instead_us(entry)
    return instead_us / entry.median_us if instead_us and entry.median_us else None


def _fallen_back(entry: Entry, rule: GuardRule, value: float) -> Entry:
    instead_us = _instead_us(entry)
    against = f" against {instead_us:.3f} us" if instead_us is not None else ""
    reason = (
        f"{rule.reason}: {entry.kernel_name} has {rule.metric} {value:.3f} and took {entry.median_us:.3f} us{against}"
    )
    return entry.left_to(rule.action, reason)


def _same_device(header: Header, book: ProfileBook) -> None:
    if book.fingerprint is None:
        return
    theirs = Header.from_fingerprint(book.fingerprint, header.acc, header.layout, header.dtype)
    if theirs.device != header.device:
        device = Device.from_fingerprint(book.fingerprint).name
        raise TableError(f"the counters are of {device}, the table of {header.device.name}: profile on that GPU")
    for difference in header.soft_differences(theirs.soft):
        logger.warning("the counters were read in another environment than the times: %s", difference)
