# SPDX-License-Identifier: Apache-2.0
"""Waits of values from `send()` to their receipt, and gaps between acknowledgements, in spans of time. Pure.

A wait belongs to a span when it touches it: a value that was sent before a fault and acknowledged in it waited in it, and so did
one that was sent in it and acknowledged after it. Unlike gaps between acknowledgements, waits do not grow with the pace of the load.
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
    """One value: its partition, when it was given to `send()`, and when its receipt came, in seconds of the monotonic clock."""

    partition: int
    sent_s: float
    received_s: float

    @property
    def seconds(self) -> float:
        """How long it waited."""
        return self.received_s - self.sent_s


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitFigures:
    """Waits in short, in seconds; no values: all zero."""

    count: int
    p50_s: float
    p99_s: float
    max_s: float

    def __str__(self) -> str:
        """The figures for people."""
        times = f"p50 {self.p50_s * 1e3:.0f}, p99 {self.p99_s * 1e3:.0f}, max {self.max_s * 1e3:.0f} ms"
        return f"{self.count} values waited {times}"


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` (above 0, up to 1) of the ordered values do not exceed; 0 without values."""
    assert 0 < share <= 1, f"share {share}"
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else 0.0


def summarize(waits_s: Iterable[float]) -> WaitFigures:
    """Put waits into figures."""
    ordered = sorted(waits_s)
    return WaitFigures(
        count=len(ordered), p50_s=quantile(ordered, 0.5), p99_s=quantile(ordered, 0.99), max_s=quantile(ordered, 1.0)
    )


def touching(waits: Iterable[Wait], spans: Sequence[Span]) -> Iterator[Wait]:
    """Give the waits that touch at least one of some spans, each once."""
    return (
        wait for wait in waits if any(wait.sent_s < end_s and wait.received_s > start_s for start_s, end_s in spans)
    )


def gaps_s(times_s: Sequence[float], start_s: float, end_s: float) -> list[float]:
    """Times between events that touch a span, the last event before it and its end included.

    Args:
        times_s: when the events happened, in order.
        start_s: the beginning of the span.
        end_s: its end.
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
    """Give the longest waits, the longest first."""
    return sorted(waits, key=lambda wait: wait.seconds, reverse=True)[:count]
