# SPDX-License-Identifier: Apache-2.0
"""The space states of a log directory (free, tight, full), and when its ballast is released or written again.

    free   everything is written
    tight  below the soft limit: appends of clients are refused; reads, deletes, retention and replication continue
    full   below the hard limit: nothing that grows is written; the ballast file is removed, so that a deletion can
           still write its checkpoints

Laws
    The ballast counts as used whether it exists or not. So its removal changes no state, and the states do not
    oscillate because of it.
    The directory leaves a state only an eighth above the limit that led to it.

Pure: the module uses no disk and no clock; `space_guard` asks the disk. Source: docs/storage.md section 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

DEFAULT_SOFT_BYTES = 256 * 1024 * 1024
"""Free bytes below which clients' appends are refused."""

HARD_SHARE = 4
"""The hard limit is the soft limit divided by this."""

BALLAST_SHARE = 16
"""The ballast is the soft limit divided by this: space for the checkpoints of some thousand deletions."""

HYSTERESIS_SHARE = 8
"""Free space must exceed a limit by the limit divided by this before the directory leaves the state."""

MIN_SOFT_BYTES = 64 * 1024
"""Smallest soft limit except 0, which switches the limits off."""


class SpaceState(Enum):
    """Space state of one log directory."""

    FREE = "free"
    TIGHT = "tight"
    FULL = "full"


class BallastMove(Enum):
    """What to do with the ballast file."""

    NONE = "none"
    TAKE = "take"
    GIVE_BACK = "give back"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceLimits:
    """Limits of one log directory, in bytes that are free for an unprivileged process.

    Attributes:
        soft_bytes: below it the directory is tight.
        hard_bytes: below it the directory is full; at most `soft_bytes`.
        ballast_bytes: size of the ballast file.
    """

    soft_bytes: int
    hard_bytes: int
    ballast_bytes: int

    def __post_init__(self) -> None:
        assert 0 <= self.hard_bytes <= self.soft_bytes, f"hard {self.hard_bytes}, soft {self.soft_bytes}"
        assert self.ballast_bytes >= 0, f"ballast_bytes {self.ballast_bytes}"

    @classmethod
    def from_soft(cls, soft_bytes: int = DEFAULT_SOFT_BYTES) -> SpaceLimits:
        """Derive the limits from the soft one; 0: the directory is never tight and has no ballast."""
        return cls(
            soft_bytes=soft_bytes, hard_bytes=soft_bytes // HARD_SHARE, ballast_bytes=soft_bytes // BALLAST_SHARE
        )


class SpaceWatch:
    """The space state of one log directory.

    Args:
        limits: its limits.
        has_ballast: True if the ballast file exists.

    Attributes:
        state: the state; free before the first measurement.
        has_ballast: True if the ballast file exists, as last reported.
    """

    __slots__ = ("has_ballast", "limits", "state")

    def __init__(self, limits: SpaceLimits, *, has_ballast: bool) -> None:
        self.limits = limits
        self.state = SpaceState.FREE
        self.has_ballast = has_ballast

    def note_free(self, free_bytes: int) -> None:
        """Note the free bytes of the disk."""
        limits = self.limits
        spare_bytes = free_bytes if self.has_ballast else free_bytes - limits.ballast_bytes
        is_roomy = spare_bytes >= _above(limits.soft_bytes)
        if spare_bytes < limits.hard_bytes:
            self.state = SpaceState.FULL
        elif self.state is SpaceState.FREE:
            self.state = SpaceState.FREE if spare_bytes >= limits.soft_bytes else SpaceState.TIGHT
        elif is_roomy:
            self.state = SpaceState.FREE
        elif self.state is SpaceState.FULL and spare_bytes >= _above(limits.hard_bytes):
            self.state = SpaceState.TIGHT

    def room_bytes(self, free_bytes: int, *, reserve_bytes: int) -> int:
        """Return how many free bytes can be written without touching the reserve; at least 0."""
        missing_bytes = 0 if self.has_ballast else self.limits.ballast_bytes
        return max(0, free_bytes - missing_bytes - reserve_bytes)

    def ballast_move(self) -> BallastMove:
        """Return what to do with the ballast now; it is written only while the directory is free."""
        if self.limits.ballast_bytes == 0:
            return BallastMove.NONE
        if self.has_ballast:
            return BallastMove.GIVE_BACK if self.state is SpaceState.FULL else BallastMove.NONE
        return BallastMove.TAKE if self.state is SpaceState.FREE else BallastMove.NONE


def _above(limit_bytes: int) -> int:
    return limit_bytes + limit_bytes // HYSTERESIS_SHARE
