# SPDX-License-Identifier: Apache-2.0
"""The interface between a replica and `brokerd.replication`, whose streams are a layer above the replicas. Types only.

A leading replica tells each subscription of a follower, a `FollowerRoute`, what to send. A following replica speaks to
its leader through `LeaderStreams`, and the stream to the leader sees it as a `FollowingReplica`. A repair asks the other
replicas through `RepairPeers`.
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
    """A follower's subscription, as it arrived.

    Attributes:
        leader_epoch: epoch that it wants to follow.
        log_end_offset: end of its log (exclusive).
        flushed_offset: end of what it has on stable storage (exclusive).
        last_epoch: leader epoch of its last record; None: no record.
    """

    leader_epoch: int
    log_end_offset: int
    flushed_offset: int
    last_epoch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerRead:
    """Whole batches of one leader epoch, as they are in the log; without bytes: the log has nothing from the offset on.

    Attributes:
        data: the batches.
        base_offset: offset of the first one (inclusive).
        next_offset: offset after the last one.
        leader_epoch: leader epoch of all of them.
    """

    data: bytes | bytearray | memoryview
    base_offset: int
    next_offset: int
    leader_epoch: int


class FollowerRoute(Protocol):
    """One subscription of one follower at its leader. The replica calls it; no call may block or raise.

    After `on_diverged` or `on_ended`, the replica calls nothing more, and the route reports nothing more.
    """

    @property
    def node_id(self) -> int:
        """The follower."""
        ...

    @property
    def broker_epoch(self) -> int:
        """Epoch of the follower's registration when its stream was opened."""
        ...

    @property
    def session(self) -> int:
        """The follower's number of the subscription."""
        ...

    def on_accepted(self, *, high_watermark: int, log_start_offset: int, is_in_sync: bool) -> None:
        """Note that the follower's log is a prefix of the leader's; send it everything from its log end on."""
        ...

    def on_diverged(self, leader_end: EpochEnd) -> None:
        """Note where the logs diverge; the subscription is over."""
        ...

    def on_ended(self, error: SubscriptionError, *, log_start_offset: int) -> None:
        """Note that the subscription is over, with the reason."""
        ...

    def on_log_grown(self, log_end_offset: int) -> None:
        """Note that the log has grown to `log_end_offset` (exclusive)."""
        ...

    def on_marks(self, *, high_watermark: int, log_start_offset: int) -> None:
        """Note that the high watermark (exclusive) or the log start (inclusive) has moved."""
        ...

    def on_traffic(self, *, is_in_sync: bool) -> None:
        """Note whether the follower is one of the maximal in-sync replicas now."""
        ...


class FollowingReplica(Protocol):
    """A replica as the stream to its leader sees it. No call may block or raise; a call for a session that is over is ignored."""

    @property
    def topic_id(self) -> bytes:
        """Topic id, 16 bytes."""
        ...

    @property
    def partition(self) -> int:
        """Partition number, from 0."""
        ...

    def on_subscription_accepted(self, session: int, *, high_watermark: int, log_start_offset: int) -> None:
        """Note that the log is a prefix of the leader's."""
        ...

    def on_subscription_diverged(self, session: int, leader_end: EpochEnd) -> None:
        """Note where the logs diverge; the subscription is over."""
        ...

    def on_subscription_ended(
        self, session: int, error: SubscriptionError, *, log_start_offset: int | None = None
    ) -> None:
        """Note that the subscription is over."""
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
        """Handle whole batches of one leader epoch, with the high watermark and log start that the leader had when it sent them."""
        ...

    def on_leader_marks(self, session: int, *, high_watermark: int, log_start_offset: int) -> None:
        """Note the leader's high watermark and log start."""
        ...


class LeaderStreams(Protocol):
    """The streams to the leading brokers. No call may block; what cannot be sent now waits there."""

    def subscribe(self, replica: FollowingReplica, request: Subscribe) -> None:
        """Subscribe at the leader; replaces an earlier subscription of the replica, sent or not."""
        ...

    def unsubscribe(self, replica: FollowingReplica, *, leader_id: int, session: int) -> None:
        """End a subscription, sent or not; does nothing if it is over."""
        ...

    def send_ack(self, replica: FollowingReplica, ack: SendAck, *, leader_id: int) -> None:
        """Tell the leader what the replica holds; replaces an earlier acknowledgement that was not sent yet."""
        ...


class RepairCallError(Exception):
    """A repair call failed; the text says why."""


class RepairPeers(Protocol):
    """The other replicas, as a repair asks them.

    Attributes:
        reports: damage that reads met, and segments that cannot be repaired for now.
    """

    reports: DamageReports

    def sources(self, topic_id: bytes, partition: int) -> list[int]:
        """Return the other brokers that have a replica, the best one first."""
        ...

    async def fetch(self, broker_id: int, topic_id: bytes, partition: int, wanted: range) -> bytes:
        """Return the first batches of a range from another replica; raises `RepairCallError`."""
        ...
