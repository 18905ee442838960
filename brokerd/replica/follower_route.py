# SPDX-License-Identifier: Apache-2.0
"""What the leader of a partition and the stream of one follower say to each other. Types only.

Source: docs/replication.md sections "The leader" and "The stream".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from brokerd.partition.reconciliation import EpochEnd, SubscriptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerRequest:
    """A follower's subscription, as it came in.

    Attributes:
        leader_epoch: epoch that it wants to follow.
        log_end_offset: end of its log (exclusive).
        flushed_offset: how much of that is on stable storage (exclusive).
        last_epoch: leader epoch of its last record; None without one.
    """

    leader_epoch: int
    log_end_offset: int
    flushed_offset: int
    last_epoch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerRead:
    """Whole batches of one leader epoch, as they are in the log; no bytes: nothing is there from the offset on.

    Attributes:
        data: the batches.
        base_offset: offset of the first one (inclusive).
        next_offset: offset behind the last one.
        leader_epoch: of all of them.
    """

    data: bytes | bytearray | memoryview
    base_offset: int
    next_offset: int
    leader_epoch: int


class FollowerRoute(Protocol):
    """One subscription of one follower at its leader; hears what concerns it. None of the calls may block or raise.

    After `on_diverged` or `on_ended` nothing more comes, and nothing more is to be said for it.
    """

    @property
    def node_id(self) -> int:
        """The follower."""
        ...

    @property
    def broker_epoch(self) -> int:
        """Epoch of the follower's registration, as its stream was opened."""
        ...

    @property
    def session(self) -> int:
        """Number of the subscription, as the follower counts."""
        ...

    def on_accepted(self, *, high_watermark: int, log_start_offset: int, is_in_sync: bool) -> None:
        """Learn that the follower's log is a prefix: send it everything from its log end on."""
        ...

    def on_diverged(self, leader_end: EpochEnd) -> None:
        """Learn where the logs part; the subscription is over."""
        ...

    def on_ended(self, error: SubscriptionError, *, log_start_offset: int) -> None:
        """Learn that the subscription is over, and why."""
        ...

    def on_log_grown(self, log_end_offset: int) -> None:
        """Learn that there is something to send, up to `log_end_offset` (exclusive)."""
        ...

    def on_marks(self, *, high_watermark: int, log_start_offset: int) -> None:
        """Learn that the high watermark or the log start moved."""
        ...

    def on_traffic(self, *, is_in_sync: bool) -> None:
        """Learn that the follower is now one of the maximal in-sync replicas, or no more."""
        ...


class LedReplica(Protocol):
    """A replica as the streams of its followers see it; whether it leads at all, it says with `on_ended`."""

    @property
    def log_start_offset(self) -> int:
        """First offset of the log (inclusive)."""
        ...

    @property
    def log_end_offset(self) -> int:
        """End of the log (exclusive)."""
        ...

    @property
    def high_watermark(self) -> int:
        """End (exclusive) of what is committed."""
        ...

    def subscribe_follower(self, route: FollowerRoute, request: FollowerRequest) -> None:
        """Take a subscription; the route is answered, before this returns or later, by accepted, diverged or ended."""
        ...

    def ack_follower(self, route: FollowerRoute, *, appended_offset: int, flushed_offset: int) -> None:
        """Learn what the follower holds; passed over for a route that is over."""
        ...

    def lose_follower(self, route: FollowerRoute) -> None:
        """Learn that the route is over from the follower's side, or that its stream broke; the route is told nothing more."""
        ...

    def read_for_follower(self, offset: int, max_bytes: int) -> FollowerRead:
        """Read from the batch that begins at `offset` on, up to the log end, of one leader epoch; at least one batch.

        Raises:
            RefusedError: out of range, damaged, or the disk does not give the bytes.
        """
        ...
