# SPDX-License-Identifier: Apache-2.0
"""Lines of the log about what a peer may do as often as it likes: one a second at most for each kind.

    if count := lines.note("undecodable", now_s):
        logger.warning("event=undecodable_request count=%d", count)

Owns when the last line of each kind was written, and how many times it went without one since. Knows no logger and no clock.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

LOG_INTERVAL_S: Final = 1.0
"""Seconds in which at most one line of the log is about one kind of thing."""


class SparseLog:
    """The lines of one place; the callers name the kinds, and are to have few."""

    def __init__(self) -> None:
        self._written_s: dict[str, float] = {}
        self._unwritten: Counter[str] = Counter()

    def note(self, kind: str, now_s: float) -> int:
        """Count one more.

        Args:
            kind: what happened.
            now_s: monotonic time in seconds.

        Returns:
            0: write nothing. Else write a line now: so many since the last one, this one included.
        """
        self._unwritten[kind] += 1
        written_s = self._written_s.get(kind)
        if written_s is not None and now_s - written_s < LOG_INTERVAL_S:
            return 0
        self._written_s[kind] = now_s
        return self._unwritten.pop(kind)
