# SPDX-License-Identifier: Apache-2.0
"""Proof of life on one stream: when to send a heartbeat, and when the other side has been silent for too long.

Of the stream, not of its partitions: a stream with nothing else to say costs one small message a second each way.
Source: docs/replication.md, "Heartbeats".
"""

from __future__ import annotations

from enum import Enum

from brokerd.limits import REPLICATE_IDLE_MS, REPLICATE_SILENCE_MS


class Sign(Enum):
    """What the time says."""

    NOTHING = "nothing is due"
    BEAT = "send a heartbeat"
    SILENT = "the other side is gone"


class Pulse:
    """Last times of both directions; begins as if both had just spoken."""

    __slots__ = ("_heard_ms", "_sent_ms")

    def __init__(self, now_ms: int) -> None:
        self._sent_ms = self._heard_ms = now_ms

    def note_sent(self, now_ms: int) -> None:
        """Learn that a message goes out."""
        self._sent_ms = now_ms

    def note_heard(self, now_ms: int) -> None:
        """Learn that a message came in."""
        self._heard_ms = now_ms

    def deadline_ms(self) -> int:
        """Return when to ask `check`."""
        return min(self._sent_ms + REPLICATE_IDLE_MS, self._heard_ms + REPLICATE_SILENCE_MS)

    def check(self, now_ms: int) -> Sign:
        """Say what is due; a heartbeat that was asked for counts as sent."""
        late_ms = now_ms - (self._heard_ms + REPLICATE_SILENCE_MS)
        if late_ms >= REPLICATE_IDLE_MS:
            # This process stood still itself. What came meanwhile is not read yet: there is one more beat's time for it.
            self._heard_ms = now_ms - REPLICATE_SILENCE_MS + REPLICATE_IDLE_MS
        elif late_ms >= 0:
            return Sign.SILENT
        if now_ms < self._sent_ms + REPLICATE_IDLE_MS:
            return Sign.NOTHING
        self._sent_ms = now_ms
        return Sign.BEAT
