# SPDX-License-Identifier: Apache-2.0
"""Whether waiting flush groups of one disk share a sync of the file system or are synced file by file. Pure.

Theory
    One sync of the file system costs hardly more than that of one file, however many groups it covers, unless others have much
    dirty data there, which it writes too. So groups share it, and one round is in flight at a time, which is what lets
    groups gather. Each round shows what was paid for others: its `excess`, the time beyond that of its own files one after
    the other. While that is high, groups are synced apart, by several threads; the estimate fades, so that a round is tried
    again after a while.

Source: ADR 6; group commit by the flush in flight: PostgreSQL, XLogFlush.
"""

from __future__ import annotations

import math
from typing import Final

FREE_EXCESS_S: Final = 0.002
"""Seconds of excess that a shared sync may always have: with it goes less work for the processor."""

USUAL_APART_S: Final = 0.001
"""Seconds of the sync of one group as long as none was measured."""

EXCESS_HALF_LIFE_S: Final = 5.0
"""Seconds in which the estimate of the excess fades by half."""

WEIGHT: Final = 0.25
"""Weight of a new measurement in an estimate."""


class SyncChoice:
    """Estimates for one disk.

    Args:
        thread_count: threads that sync files side by side.
    """

    __slots__ = ("_apart_s", "_excess_s", "_noted_s", "_thread_count")

    def __init__(self, thread_count: int) -> None:
        assert thread_count >= 1, f"thread_count {thread_count}"
        self._thread_count = thread_count
        self._apart_s = USUAL_APART_S
        self._excess_s = 0.0
        self._noted_s = 0.0

    def is_shared(self, group_count: int, *, now_s: float) -> bool:
        """True if the groups that wait make a round: they are synced together, and nothing else meanwhile.

        Args:
            group_count: how many wait, at least 1.
            now_s: monotonic time in seconds.
        """
        assert group_count >= 1, "no group waits"
        turns = -(-group_count // self._thread_count)
        return self.excess_s(now_s) <= max(FREE_EXCESS_S, turns * self._apart_s)

    def excess_s(self, now_s: float) -> float:
        """Seconds that a shared sync is expected to take for the data of others."""
        return self._excess_s * 0.5 ** ((now_s - self._noted_s) / EXCESS_HALF_LIFE_S)

    def note_apart(self, seconds: float) -> None:
        """Take note of what the sync of one group took."""
        self._apart_s += WEIGHT * (seconds - self._apart_s)

    def note_shared(self, seconds: float, group_count: int, *, now_s: float) -> None:
        """Take note of what a shared sync of several groups took."""
        before_s = self.excess_s(now_s)
        excess_s = max(0.0, seconds - group_count * self._apart_s)
        self._excess_s = before_s + WEIGHT * (excess_s - before_s)
        self._noted_s = now_s

    def note_impossible(self) -> None:
        """Take note that the operating system has no call that syncs a file system: never ask for it again."""
        self._excess_s = math.inf
