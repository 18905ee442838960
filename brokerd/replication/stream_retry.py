# SPDX-License-Identifier: Apache-2.0
"""When a follower tries again to open its stream to a leader. Pure.

Owns the back-off of one leader. Must not open anything, or know why a stream ended.

Theory of operation. The pauses between attempts grow while attempts fail, up to `REPLICATE_RETRY_MAX_MS`, and begin anew after
a stream that lived. News of the leader (a partition that wants to follow it from now on) begin them anew too, and end the one
that is going on: what failed before was an earlier process, or the time before the leader was up.

Law: between the beginnings of two attempts pass at least `REPLICATE_NEWS_MS`, and after news of the leader, or the end of
the attempt that they met, not more. No pause is longer than `FOLLOWER_PAUSE_MAX_MS`.
Source: docs/replication.md section "The stream".
"""

from __future__ import annotations

from brokerd.limits import (
    FOLLOWER_PAUSE_MAX_MS,
    REPLICATE_NEWS_MS,
    REPLICATE_RETRY_MAX_MS,
    REPLICATE_RETRY_MIN_MS,
    REPLICATE_RETRY_RESET_MS,
)

_JITTER_SHARE = 4
"""A pause is longer at random, by at most this part of it."""


class StreamRetry:
    """See the module docstring.

    Attributes:
        due_ms: when the next attempt may begin.
    """

    __slots__ = ("_began_ms", "_has_news", "_is_trying", "_pause_ms", "due_ms")

    def __init__(self, now_ms: int) -> None:
        self.due_ms = now_ms
        self._began_ms = now_ms - REPLICATE_NEWS_MS
        self._pause_ms = REPLICATE_RETRY_MIN_MS
        self._is_trying = self._has_news = False

    def begin(self, now_ms: int) -> None:
        """Learn that an attempt begins."""
        self._began_ms = now_ms
        self._is_trying, self._has_news = True, False

    def end(self, now_ms: int, *, is_hopeless: bool, jitter: float) -> None:
        """Learn that the attempt, or the stream that came of it, is over.

        Args:
            now_ms: monotonic time.
            is_hopeless: True if the leader refused what only somebody can change: the longest pause follows.
            jitter: from 0 to 1, at random.
        """
        self._is_trying = False
        if self._has_news or now_ms - self._began_ms >= REPLICATE_RETRY_RESET_MS:
            self._pause_ms = REPLICATE_RETRY_MIN_MS
        if is_hopeless:
            self._pause_ms = REPLICATE_RETRY_MAX_MS
        pause_ms = int(self._pause_ms * (1 + jitter / _JITTER_SHARE))
        self._pause_ms = min(2 * self._pause_ms, REPLICATE_RETRY_MAX_MS)
        self.due_ms = now_ms + min(pause_ms, FOLLOWER_PAUSE_MAX_MS)
        if self._has_news:
            self.due_ms = min(self.due_ms, now_ms + REPLICATE_NEWS_MS)

    def hear(self, now_ms: int) -> None:
        """Learn that a partition wants to follow the leader from now on."""
        if self._is_trying:
            self._has_news = True
            return
        self._pause_ms = REPLICATE_RETRY_MIN_MS
        self.due_ms = min(self.due_ms, max(now_ms, self._began_ms + REPLICATE_NEWS_MS))
