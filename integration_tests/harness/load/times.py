# SPDX-License-Identifier: Apache-2.0
"""Waits of values from `send()` to their receipt, and gaps between acknowledgements, in spans of time. Pure.

A wait belongs to every span that it touches. So a value that was sent before a fault and acknowledged during it counts for the fault.
So does one that was sent during it and acknowledged after it. Unlike gaps between acknowledgements, waits do not depend on the pace of
the load.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

Span = tuple[float, float]
"""Beginning and end, in seconds of the monotonic clock."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait of one value: its partition, the time of its `send()` and the time of its receipt, in monotonic seconds."""

    partition: int
    sent_s: float
    received_s: float

    @property
    def seconds(self) -> float:
        """Length of the wait in seconds."""
        return self.received_s - self.sent_s


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitFigures:
    """Figures of waits, in seconds. Without values all are zero."""

    count: int
    p50_s: float
    p99_s: float
    max_s: float

    def __str__(self) -> str:
        """Return the figures as text for people."""
        times = f"p50 {self.p50_s * 1e3:.0f}, p99 {self.p99_s * 1e3:.0f}, max {self.max_s * 1e3:.0f} ms"
        return f"{self.count} values waited {times}"


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least a `share` (above 0, at most 1) of the ordered values do not exceed; 0 without values."""
    assert 0 < share <= 1, f"share {share}"
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else 0.0


def summarize(waits_s: Iterable[float]) -> WaitFigures:
    """Return the figures of waits."""
    ordered = sorted(waits_s)
    return WaitFigures(
        count=len(ordered), p50_s=quantile(ordered, 0.5), p99_s=quantile(ordered, 0.99), max_s=quantile(ordered, 1.0)
    )


def touching(waits: Iterable[Wait], spans: Sequence[Span]) -> Iterator[Wait]:
    """Yield the waits that touch at least one of the spans, each once."""
    return (
        wait for wait in waits if any(wait.sent_s < end_s and wait.received_s > start_s for start_s, end_s in spans)
    )


def gaps_s(times_s: Sequence[float], start_s: float, end_s: float) -> list[float]:
    """Return the times between events that touch a span, from the last event before it to its end.

    Args:
        times_s: times of the events, in order.
        start_s: beginning of the span.
        end_s: end of the span.
    """
    before, inside = start_s, list[float]()
    for when_s in reversed(times_s):
        if when_s <= start_s:
            before = when_s
            break
        if when_s < end_s:
            inside.append(when_s)
    points = [before, *reversed(inside), end_s]
    return [later - earlier for earlier, later in pairwise(points)]


def longest(waits: Iterable[Wait], count: int) -> list[Wait]:
    """Return the longest waits, the longest first."""
    return sorted(waits, key=lambda wait: wait.seconds, reverse=True)[:count]
