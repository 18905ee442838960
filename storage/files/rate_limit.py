# SPDX-License-Identifier: Apache-2.0
"""How fast background work may read and write: compaction, scrub, repair, moves."""

from __future__ import annotations

from collections.abc import Callable


class WorkStopped(Exception):
    """`wait_ms` said that the background work shall end."""


class RateLimit:
    """Spreads reads and writes of background work over time; used by one thread at a time.

    Args:
        bytes_per_s: most bytes read and written in a second, on average; 1 or more.
        now_ms: a clock in milliseconds that never goes back.
        wait_ms: waits so many milliseconds (0: not at all) and returns True if the work shall end.
    """

    def __init__(self, bytes_per_s: int, *, now_ms: Callable[[], int], wait_ms: Callable[[int], bool]) -> None:
        assert bytes_per_s >= 1, f"bytes_per_s {bytes_per_s}"
        self._bytes_per_s = bytes_per_s
        self._now_ms = now_ms
        self._wait_ms = wait_ms
        self._free_at_ms = 0.0

    def take(self, size_bytes: int) -> None:
        """Wait until so many bytes may be read or written.

        Raises:
            WorkStopped: the work shall end.
        """
        if self._wait_ms(max(0, round(self._free_at_ms - self._now_ms()))):
            raise WorkStopped
        self._free_at_ms = max(self._free_at_ms, self._now_ms()) + size_bytes * 1_000 / self._bytes_per_s
