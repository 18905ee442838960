# SPDX-License-Identifier: Apache-2.0
"""How fast a leader sends to replicas that are not in sync: one token bucket for all its streams.

The bucket holds what may be sent in one second. A message may take it below zero; then nothing is sent until it is above
zero again, so the rate holds on the average whatever the size of a batch.
Source: docs/replication.md, `replica.catch.up.max.bytes.per.second`.
"""

from __future__ import annotations

from typing import Final

NO_LIMIT: Final = -1
"""Bytes per second: as many as there are."""

RATE_LOOK_MS: Final = 1_000
"""Most milliseconds after which a stream that waits for the bucket looks again, in case the limit was changed."""

_UNITS_PER_BYTE: Final = 1_000
"""A limit of one byte a second is one unit a millisecond, so that the bucket is a whole number."""


class CatchUpRate:
    """See the module docstring.

    Args:
        bytes_per_second: the limit; -1: none.
    """

    __slots__ = ("_filled_ms", "_level_units", "_limit")

    def __init__(self, bytes_per_second: int = NO_LIMIT) -> None:
        self._limit = NO_LIMIT
        self._level_units = 0
        self._filled_ms = 0
        self.set_limit(bytes_per_second, now_ms=0)

    def set_limit(self, bytes_per_second: int, *, now_ms: int) -> None:
        """Change the limit; -1: none. A bucket that had none begins full, one that had one keeps its debt."""
        assert bytes_per_second == NO_LIMIT or bytes_per_second > 0, f"limit {bytes_per_second}"
        was_limited = self._limit != NO_LIMIT
        self._fill(now_ms)
        self._limit = bytes_per_second
        full_units = bytes_per_second * _UNITS_PER_BYTE
        self._level_units = min(self._level_units, full_units) if was_limited else full_units

    def is_open(self, now_ms: int) -> bool:
        """True while something may be sent."""
        self._fill(now_ms)
        return self._limit == NO_LIMIT or self._level_units > 0

    def spend(self, size_bytes: int) -> None:
        """Take what was sent out of the bucket."""
        if self._limit != NO_LIMIT:
            self._level_units -= size_bytes * _UNITS_PER_BYTE

    def due_ms(self) -> int:
        """Return when to ask `is_open` again, after it said no."""
        if self._limit == NO_LIMIT:
            return self._filled_ms  # since then the limit was lifted
        return self._filled_ms + min(-self._level_units // self._limit + 1, RATE_LOOK_MS)

    def _fill(self, now_ms: int) -> None:
        if self._limit != NO_LIMIT:
            gained_units = self._limit * max(now_ms - self._filled_ms, 0)
            self._level_units = min(self._level_units + gained_units, self._limit * _UNITS_PER_BYTE)
        self._filled_ms = now_ms
