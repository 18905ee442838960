# SPDX-License-Identifier: Apache-2.0
"""Chooses whether the waiting flush groups of one disk share one sync of the file system, or sync their files one by one. Pure.

Design
    A sync of the file system costs hardly more than that of one file, however many groups it covers. The exception is
    much dirty data of other writers, which it writes too. So groups share a sync, and one round is in flight at a time,
    so that groups gather. Each round shows what it paid for others: its `excess`, the time beyond that of its own files
    one after the other. While the excess is high, several threads sync groups apart. The estimate fades, so that a
    shared round is tried again after a while.

Source: ADR 6; group commit by the flush in flight: PostgreSQL, XLogFlush.
"""

from __future__ import annotations

import math
from typing import Final

FREE_EXCESS_S: Final = 0.002
"""Seconds of excess that a shared sync may always have, because it needs less processor time."""

USUAL_APART_S: Final = 0.001
"""Assumed seconds for the sync of one group, before the first measurement."""

EXCESS_HALF_LIFE_S: Final = 5.0
"""Seconds after which the estimate of the excess has halved."""

WEIGHT: Final = 0.25
"""Weight of a new measurement in an estimate."""


class SyncChoice:
    """The estimates for one disk.

    Args:
        thread_count: number of threads that sync files in parallel.
    """

    __slots__ = ("_apart_s", "_excess_s", "_noted_s", "_thread_count")

    def __init__(self, thread_count: int) -> None:
        assert thread_count >= 1, f"thread_count {thread_count}"
        self._thread_count = thread_count
        self._apart_s = USUAL_APART_S
        self._excess_s = 0.0
        self._noted_s = 0.0

    def is_shared(self, group_count: int, *, now_s: float) -> bool:
        """Return True if the waiting groups form a round: they are synced together, and nothing else in the meantime.

        Args:
            group_count: number of waiting groups, at least 1.
            now_s: monotonic time in seconds.
        """
        assert group_count >= 1, "no group waits"
        turns = -(-group_count // self._thread_count)
        return self.excess_s(now_s) <= max(FREE_EXCESS_S, turns * self._apart_s)

    def excess_s(self, now_s: float) -> float:
        """Return the seconds that a shared sync is expected to spend on the data of others."""
        return self._excess_s * 0.5 ** ((now_s - self._noted_s) / EXCESS_HALF_LIFE_S)

    def note_apart(self, seconds: float) -> None:
        """Note the duration of the sync of one group."""
        self._apart_s += WEIGHT * (seconds - self._apart_s)

    def note_shared(self, seconds: float, group_count: int, *, now_s: float) -> None:
        """Note the duration of a shared sync of several groups."""
        before_s = self.excess_s(now_s)
        excess_s = max(0.0, seconds - group_count * self._apart_s)
        self._excess_s = before_s + WEIGHT * (excess_s - before_s)
        self._noted_s = now_s

    def note_impossible(self) -> None:
        """Note that the operating system has no call that syncs a file system, so that it is never used again."""
        self._excess_s = math.inf
