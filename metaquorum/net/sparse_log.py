# SPDX-License-Identifier: Apache-2.0
"""A limit for log lines about events that a peer can cause at will: at most one line a second for each kind.

    if count := lines.note("undecodable", now_s):
        logger.warning("event=undecodable_request count=%d", count)

Owns the time of the last line of each kind, and the number of events since then. Knows no logger and no clock.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

LOG_INTERVAL_S: Final = 1.0
"""Seconds in which at most one line of each kind is written."""


class SparseLog:
    """Decides which events of one place get a log line. The callers name the kinds, and use only a few."""

    def __init__(self) -> None:
        self._written_s: dict[str, float] = {}
        self._unwritten: Counter[str] = Counter()

    def note(self, kind: str, now_s: float) -> int:
        """Count one event.

        Args:
            kind: what happened.
            now_s: monotonic time in seconds.

        Returns:
            0: write nothing. Else write a line now; the number counts the events since the last line, this one included.
        """
        self._unwritten[kind] += 1
        written_s = self._written_s.get(kind)
        if written_s is not None and now_s - written_s < LOG_INTERVAL_S:
            return 0
        self._written_s[kind] = now_s
        return self._unwritten.pop(kind)
