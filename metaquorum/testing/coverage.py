# SPDX-License-Identifier: Apache-2.0
"""What happened in a range of simulated seeds, and whether it was enough to prove anything.

Owns the sums over seeds, the table, and the demands. A range of at least `MIN_JUDGED_SEEDS` seeds fails without a broken law if one
of `DEMANDED` is rare, or if the seeds are short. Source: docs/quorum.md section "Simulation".
"""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

DEMANDED: Final = (
    "leader change",
    "truncation",
    "snapshot installed",
    "voter change",
    "crash that loses unflushed data",
    "torn write",
)
"""Events that must occur in at least `MIN_SHARE` of the seeds."""

SHOWN: Final = (
    *DEMANDED,
    "bit flip",
    "refused write",
    "cut, one way",
    "linearizable read",
    "address move",
    "absurd epoch forged",
    "preferred leader returned",
    "unclean leader elected",
)
"""Events that the table shows first, whether they occurred or not."""

MIN_SHARE: Final = 0.2
"""Smallest share of the seeds in which each of `DEMANDED` must occur."""

MIN_JUDGED_SEEDS: Final = 50
"""With fewer seeds a share says little, so none is judged."""

MIN_MEDIAN_EVENTS: Final = 20_000
"""Smallest accepted median of the events per seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """Result of one seed.

    Attributes:
        seed: its number.
        event_count: number of events in its run.
        counts: how often each thing occurred.
        digest: digest of its trace.
        failure: the broken law, and how to repeat the run; None for a clean run.
    """

    seed: int
    event_count: int = 0
    counts: Counter[str] = field(default_factory=Counter[str])
    digest: str = ""
    failure: str | None = None


class Coverage:
    """The sum over seeds.

    Args:
        demanded: what must occur in at least `MIN_SHARE` of them.
        shown: what the table shows first, whether it occurred or not.
    """

    def __init__(self, *, demanded: tuple[str, ...] = DEMANDED, shown: tuple[str, ...] = SHOWN) -> None:
        self._demanded = demanded
        self._shown = shown
        self.failed_count = 0
        self._events: list[int] = []
        self._total: Counter[str] = Counter()
        self._seeds_with: Counter[str] = Counter()

    def add(self, result: SeedResult) -> None:
        """Count a seed."""
        if result.failure is not None:
            self.failed_count += 1
            return
        self._events.append(result.event_count)
        self._total.update(result.counts)
        self._seeds_with.update(result.counts.keys())

    def report(self, seconds: float) -> str:
        """Return the table: first the demanded and selected lines, then everything by name."""
        events = self._events
        if not events:
            return f"0 seeds clean, {self.failed_count} failed\n"
        lines = [
            f"{len(events)} seeds clean, {self.failed_count} failed; events per seed: median"
            f" {statistics.median(events):.0f}, least {min(events)}; {sum(events) / seconds:.0f} events/s,"
            f" {seconds / len(events):.2f} s/seed"
        ]
        lines += [self._line(name) for name in self._shown]
        lines.append("  everything:")
        lines += [self._line(name) for name in sorted(self._total)]
        return "\n".join(lines) + "\n"

    def _line(self, name: str) -> str:
        share = 100 * self._seeds_with[name] / len(self._events)
        return f"  {name:44} {self._total[name]:9}   in {self._seeds_with[name]:5} seeds, {share:5.1f} %"

    def shortfalls(self, *, event_count: int) -> list[str]:
        """Return which demands the range missed; empty for a range that is too small to judge.

        Args:
            event_count: events with faults that each seed was to have; if it is below the demanded median, the median is not judged.
        """
        events = self._events
        if len(events) < MIN_JUDGED_SEEDS:
            return []
        missing = [
            f"{name!r} occurred in {self._seeds_with[name]} of {len(events)} seeds, less than {MIN_SHARE:.0%}"
            for name in self._demanded
            if self._seeds_with[name] < MIN_SHARE * len(events)
        ]
        median = statistics.median(events)
        if event_count >= MIN_MEDIAN_EVENTS > median:
            missing.append(f"the median of the events per seed is {median:.0f}, less than {MIN_MEDIAN_EVENTS}")
        return missing
