# SPDX-License-Identifier: Apache-2.0
"""The replication throttle: how fast a leader sends to replicas out of sync, by two token buckets for all its streams.

A bucket holds the bytes of one second. A message may take it below zero; then nothing is sent until it is above zero
again. So the rate holds on average, whatever the batch size. A message is no larger than what one second allows, if
batches are that small; otherwise a low limit would cause long silences.
Source: docs/replication.md, "Credits" and "Rates".
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

NO_LIMIT: Final = -1
"""Bytes per second: no limit."""

RATE_LOOK_MS: Final = 1_000
"""A stream that waits for a bucket checks it again after at most this many milliseconds, in case the limit has changed."""

_UNITS_PER_BYTE: Final = 1_000
"""A limit of one byte per second is one unit per millisecond, so the bucket holds a whole number."""


class Traffic(IntEnum):
    """Kind of a route's traffic; the values count from 0 without a gap. On the wire there are two classes, for the credits."""

    IN_SYNC = 0
    """The follower is in sync; no rate ever holds it back."""
    CATCH_UP = 1
    """The follower is out of sync."""
    MOVING = 2
    """The follower is out of sync, and a reassignment adds it: credit and rate of catch-up traffic, and also the rate of moves."""


class TokenBucket:
    """One token bucket.

    Args:
        bytes_per_second: the limit; -1: none.
    """

    __slots__ = ("_filled_ms", "_level_units", "_limit")

    def __init__(self, bytes_per_second: int = NO_LIMIT) -> None:
        self._limit = NO_LIMIT
        self._level_units = 0
        self._filled_ms = 0
        self.set_limit(bytes_per_second, now_ms=0)

    @property
    def limit(self) -> int:
        """Bytes per second; -1: none."""
        return self._limit

    def set_limit(self, bytes_per_second: int, *, now_ms: int) -> None:
        """Change the limit; -1: none. A bucket that had no limit starts full; one that had a limit keeps its debt."""
        assert bytes_per_second == NO_LIMIT or bytes_per_second > 0, f"limit {bytes_per_second}"
        was_limited = self._limit != NO_LIMIT
        self._fill(now_ms)
        self._limit = bytes_per_second
        full_units = bytes_per_second * _UNITS_PER_BYTE
        self._level_units = min(self._level_units, full_units) if was_limited else full_units

    def is_open(self, now_ms: int) -> bool:
        """Return whether something may be sent."""
        self._fill(now_ms)
        return self._limit == NO_LIMIT or self._level_units > 0

    def spend(self, size_bytes: int) -> None:
        """Take the sent bytes out of the bucket."""
        if self._limit != NO_LIMIT:
            self._level_units -= size_bytes * _UNITS_PER_BYTE

    def due_ms(self) -> int:
        """Return when to ask `is_open` again, after it returned False."""
        if self._limit == NO_LIMIT:
            return self._filled_ms  # the limit was lifted since
        return self._filled_ms + min(-self._level_units // self._limit + 1, RATE_LOOK_MS)

    def _fill(self, now_ms: int) -> None:
        if self._limit != NO_LIMIT:
            gained_units = self._limit * max(now_ms - self._filled_ms, 0)
            self._level_units = min(self._level_units + gained_units, self._limit * _UNITS_PER_BYTE)
        self._filled_ms = now_ms


class ReplicationRates:
    """The rates of one leader, over all its streams. Every stream spends; `set_limits` follows the configs.

    Args:
        catch_up_limit: bytes per second to all followers out of sync; -1: no limit.
        move_limit: bytes per second to those of them that a reassignment adds; -1: no limit.
    """

    __slots__ = ("_catch_up", "_counts", "_move")

    def __init__(self, *, catch_up_limit: int = NO_LIMIT, move_limit: int = NO_LIMIT) -> None:
        self._catch_up = TokenBucket(catch_up_limit)
        self._move = TokenBucket(move_limit)
        # By kind of traffic: the buckets that it spends from.
        self._counts: tuple[tuple[TokenBucket, ...], ...] = ((), (self._catch_up,), (self._catch_up, self._move))

    def set_limits(self, *, catch_up_limit: int, move_limit: int, now_ms: int) -> bool:
        """Change the limits; False if they are the same as before."""
        wanted = ((self._catch_up, catch_up_limit), (self._move, move_limit))
        changed = [(rate, limit) for rate, limit in wanted if rate.limit != limit]
        for rate, limit in changed:
            rate.set_limit(limit, now_ms=now_ms)
        return bool(changed)

    def held_by(self, traffic: Traffic, now_ms: int) -> TokenBucket | None:
        """Return the bucket that holds back this kind of traffic now; None: it may be sent."""
        for rate in self._counts[traffic]:
            if not rate.is_open(now_ms):
                return rate
        return None

    def spend(self, size_bytes: int, traffic: Traffic) -> None:
        """Take the sent bytes out of every bucket of this kind of traffic."""
        for rate in self._counts[traffic]:
            rate.spend(size_bytes)

    def message_bytes(self, traffic: Traffic, most_bytes: int) -> int:
        """Return the largest message size: `most_bytes`, or what the lowest limit allows in one second."""
        for rate in self._counts[traffic]:
            if rate.limit != NO_LIMIT:
                most_bytes = min(most_bytes, rate.limit)
        return most_bytes
