# SPDX-License-Identifier: Apache-2.0
"""What a replica and `brokerd.replication` say to each other; the streams lie above the replicas. Types only.

A replica that leads tells each subscription of a follower, a `FollowerRoute`, what there is to send. One that follows speaks through
`LeaderLinks` to its leader, whose stream sees it as a `FollowingReplica`. A repair asks `RepairPeers`, the other replicas.
Source: docs/replication.md sections "The leader", "The follower", "The stream" and "Damage".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lograft.wire.checksum import BytesLike

from brokerd.partition.effects import SendAck, Subscribe
from brokerd.partition.reconciliation import EpochEnd, SubscriptionError
from brokerd.replica.damage_reports import DamageReports


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
        """Learn where the logs diverge; the subscription is over."""
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


class FollowingReplica(Protocol):
    """A replica as the stream to its leader sees it. None of the calls may block or raise; a session that is over is passed over."""

    @property
    def topic_id(self) -> bytes:
        """Topic id, 16 bytes."""
        ...

    @property
    def partition(self) -> int:
        """Partition, from 0."""
        ...

    def on_subscription_accepted(self, session: int, *, high_watermark: int, log_start_offset: int) -> None:
        """Learn that the log is a prefix of the leader's."""
        ...

    def on_subscription_diverged(self, session: int, leader_end: EpochEnd) -> None:
        """Learn where the logs diverge; the subscription is over."""
        ...

    def on_subscription_ended(
        self, session: int, error: SubscriptionError, *, log_start_offset: int | None = None
    ) -> None:
        """Learn that the subscription is over."""
        ...

    def on_leader_batches(
        self,
        session: int,
        batches: BytesLike,
        *,
        base_offset: int,
        leader_epoch: int,
        high_watermark: int,
        log_start_offset: int,
    ) -> None:
        """Take whole batches of one leader epoch, and what the leader had committed when it sent them."""
        ...

    def on_leader_marks(self, session: int, *, high_watermark: int, log_start_offset: int) -> None:
        """Learn the leader's high watermark and log start."""
        ...


class LeaderLinks(Protocol):
    """The streams to the brokers that lead. None of the calls may block; what cannot be sent now waits there."""

    def subscribe(self, replica: FollowingReplica, request: Subscribe) -> None:
        """Ask the leader; takes the place of an earlier subscription of the replica, sent or not."""
        ...

    def unsubscribe(self, replica: FollowingReplica, *, leader_id: int, session: int) -> None:
        """End a subscription, sent or not; nothing happens when it is over."""
        ...

    def send_ack(self, replica: FollowingReplica, ack: SendAck, *, leader_id: int) -> None:
        """Tell the leader what the replica holds; takes the place of an earlier one that was not sent yet."""
        ...


class RepairCallError(Exception):
    """A call did not give what it was made for; the text says why."""


class RepairPeers(Protocol):
    """The other replicas, as a repair asks them.

    Attributes:
        reports: what reads met, and what could not be repaired.
    """

    reports: DamageReports

    def sources(self, topic_id: bytes, partition: int) -> list[int]:
        """Return the other brokers that have a replica, the best one first."""
        ...

    async def fetch(self, broker_id: int, topic_id: bytes, partition: int, wanted: range) -> bytes:
        """Return the first batches of a range as another replica has them; raises RepairCallError."""
        ...
