# SPDX-License-Identifier: Apache-2.0
"""How much room a log directory has, as a state machine: free, tight, full; and when its ballast is given back or taken.

    free   everything is written
    tight  below the soft limit: appends of clients are refused; reads, deletes, retention and replication go on
    full   below the hard limit: nothing that grows is written; the ballast file is given back, so that a deletion can
           still write its checkpoints

Laws
    The ballast counts as used whether it is there or not: giving it back changes no judgement, so that the states do not
    swing because of it.
    A state is left only an eighth above the limit under which it was entered.

Pure: knows no disk and no clock; `space_guard` asks the disk. Source: docs/storage.md section 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

DEFAULT_SOFT_BYTES = 256 * 1024 * 1024
"""Free bytes below which clients' appends are refused."""

HARD_SHARE = 4
"""The hard limit is the soft limit divided by this."""

BALLAST_SHARE = 16
"""The ballast is the soft limit divided by this: room for the checkpoints of some thousand deletions."""

HYSTERESIS_SHARE = 8
"""A limit divided by this is how far above it the free space must be before the state is left."""

MIN_SOFT_BYTES = 64 * 1024
"""Least soft limit; 0 switches the watch off."""


class SpaceState(Enum):
    """Room of one log directory."""

    FREE = "free"
    TIGHT = "tight"
    FULL = "full"


class BallastMove(Enum):
    """What is to be done with the ballast file."""

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
        """Derive the other two; 0: a directory that is never tight and has no ballast."""
        return cls(
            soft_bytes=soft_bytes, hard_bytes=soft_bytes // HARD_SHARE, ballast_bytes=soft_bytes // BALLAST_SHARE
        )


class SpaceWatch:
    """The state of one log directory.

    Args:
        limits: its limits.
        has_ballast: whether the ballast file is there.

    Attributes:
        state: free before the first look.
        has_ballast: whether the ballast file is there, as it was told last.
    """

    __slots__ = ("has_ballast", "limits", "state")

    def __init__(self, limits: SpaceLimits, *, has_ballast: bool) -> None:
        self.limits = limits
        self.state = SpaceState.FREE
        self.has_ballast = has_ballast

    def note_free(self, free_bytes: int) -> None:
        """Take note of how many bytes the disk has free."""
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
        """Return how many of the free bytes may be written so that the reserve is left; 0 at least."""
        missing_bytes = 0 if self.has_ballast else self.limits.ballast_bytes
        return max(0, free_bytes - missing_bytes - reserve_bytes)

    def ballast_move(self) -> BallastMove:
        """Return what is to be done with the ballast now; it is taken only while there is room enough."""
        if self.limits.ballast_bytes == 0:
            return BallastMove.NONE
        if self.has_ballast:
            return BallastMove.GIVE_BACK if self.state is SpaceState.FULL else BallastMove.NONE
        return BallastMove.TAKE if self.state is SpaceState.FREE else BallastMove.NONE


def _above(limit_bytes: int) -> int:
    return limit_bytes + limit_bytes // HYSTERESIS_SHARE
