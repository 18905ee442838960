# SPDX-License-Identifier: Apache-2.0
"""An open load at a steady rate: how much is due whatever the answers are, and when this process did not run. Pure.

A *standstill* is a process pause: a span in which this process did not run at all, for example because the machine was suspended. What
was due in it is left out, and nothing is measured in it.
"""

from __future__ import annotations

from collections.abc import Iterable

from integration_tests.harness.load.times import Span

TICK_S = 0.01
"""Seconds between two checks of what is due."""
STANDSTILL_S_MIN = 1.0
"""A check that comes this many seconds late shows a process pause."""


class Pace:
    """Decides how many operations are due. All times are seconds of one clock.

    Args:
        rate_per_s: operations a second.

    Attributes:
        next_s: time of the next check.
        standstills: spans in which this process did not run.
    """

    def __init__(self, rate_per_s: float) -> None:
        self.next_s = 0.0
        self.standstills: list[Span] = []
        self._rate_per_s = rate_per_s
        self._started_s = 0.0
        self._given = 0

    def start(self, now_s: float) -> None:
        """Begin with nothing due. Call it once, before anything else."""
        self.next_s = self._started_s = now_s

    def due(self, now_s: float) -> int:
        """Return how many operations have become due since the last check."""
        late_s = now_s - self.next_s
        if late_s >= STANDSTILL_S_MIN:
            self.standstills.append((self.next_s, now_s))
            self._started_s += late_s
        before, self._given = self._given, int((now_s - self._started_s) * self._rate_per_s)
        return self._given - before

    def rest(self, now_s: float) -> None:
        """Note that the operations of this check are sent. The next check is one tick later."""
        self.next_s = now_s + TICK_S


def touches(spans: Iterable[Span], start_s: float, end_s: float) -> bool:
    """Return True if any of the spans touches the given one."""
    return any(began_s < end_s and ended_s > start_s for began_s, ended_s in spans)
