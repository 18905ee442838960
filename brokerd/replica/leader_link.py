# SPDX-License-Identifier: Apache-2.0
"""What a replica that follows and the stream to its leader say to each other. Types only.

Source: docs/replication.md sections "The follower" and "The stream".
"""

from __future__ import annotations

from typing import Protocol

from lograft.wire.checksum import BytesLike

from brokerd.partition.effects import SendAck, Subscribe
from brokerd.partition.reconciliation import EpochEnd, SubscriptionError


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
        """Learn where the logs part; the subscription is over."""
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
