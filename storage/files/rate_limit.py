# SPDX-License-Identifier: Apache-2.0
"""The rate limit of background work: compaction, scrub, repair, moves."""

from __future__ import annotations

from collections.abc import Callable


class WorkStopped(Exception):
    """Raised when `wait_ms` says that the background work must end."""


class RateLimit:
    """Spreads reads and writes of background work over time; one thread at a time uses it.

    Args:
        bytes_per_s: most bytes read and written in a second, on average; 1 or more.
        now_ms: monotonic clock in milliseconds.
        wait_ms: waits this many milliseconds (0: not at all) and returns True if the work must end.
    """

    def __init__(self, bytes_per_s: int, *, now_ms: Callable[[], int], wait_ms: Callable[[int], bool]) -> None:
        assert bytes_per_s >= 1, f"bytes_per_s {bytes_per_s}"
        self._bytes_per_s = bytes_per_s
        self._now_ms = now_ms
        self._wait_ms = wait_ms
        self._free_at_ms = 0.0

    def take(self, size_bytes: int) -> None:
        """Wait until this many bytes may be read or written.

        Raises:
            WorkStopped: the work must end.
        """
        if self._wait_ms(max(0, round(self._free_at_ms - self._now_ms()))):
            raise WorkStopped
        self._free_at_ms = max(self._free_at_ms, self._now_ms()) + size_bytes * 1_000 / self._bytes_per_s
