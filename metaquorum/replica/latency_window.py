# SPDX-License-Identifier: Apache-2.0
"""Durations of one kind of event: count, sum and histogram since the start, average and maximum of the last minute.

Owns the sums. Reads no clock: callers pass the time. Each event costs a few additions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

SLOT_S: Final = 10.0
"""Seconds of one slot of the window."""

MAX_SLOTS: Final = 6
"""Slots of the window: one minute, the current slot included."""

BUCKETS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper bounds of the buckets in seconds, inclusive. One more bucket has no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Durations that a window has recorded.

    Attributes:
        sum_s: sum of all durations since the start, in seconds.
        bucket_counts: number of durations in each bucket of `BUCKETS_S`, and above the last one, since the start.
        recent_avg_s: average within the window, in seconds; None without an event.
        recent_max_s: maximum within the window, in seconds; None without an event.
    """

    sum_s: float
    bucket_counts: Sequence[int]
    recent_avg_s: float | None
    recent_max_s: float | None

    @property
    def count(self) -> int:
        """Number of events since the start."""
        return sum(self.bucket_counts)


@dataclass(slots=True, kw_only=True)
class _Slot:
    number: int
    count: int = 0
    sum_s: float = 0.0
    max_s: float = 0.0


@dataclass(slots=True)
class LatencyWindow:
    """Records durations of one kind of event."""

    _sum_s: float = 0.0
    _buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    _slots: deque[_Slot] = field(default_factory=lambda: deque[_Slot](maxlen=MAX_SLOTS))

    def note(self, duration_s: float, *, now_s: float) -> None:
        """Record the duration of an event that ended now."""
        self._sum_s += duration_s
        self._buckets[bisect_left(BUCKETS_S, duration_s)] += 1
        number = int(now_s // SLOT_S)
        if not self._slots or self._slots[-1].number != number:
            self._slots.append(_Slot(number=number))
        slot = self._slots[-1]
        slot.count += 1
        slot.sum_s += duration_s
        slot.max_s = max(slot.max_s, duration_s)

    def read(self, *, now_s: float) -> Latencies:
        """Return the current statistics."""
        oldest = int(now_s // SLOT_S) - MAX_SLOTS + 1
        recent = [slot for slot in self._slots if slot.number >= oldest]
        count = sum(slot.count for slot in recent)
        return Latencies(
            sum_s=self._sum_s,
            bucket_counts=tuple(self._buckets),
            recent_avg_s=sum(slot.sum_s for slot in recent) / count if count else None,
            recent_max_s=max(slot.max_s for slot in recent) if recent else None,
        )
