# SPDX-License-Identifier: Apache-2.0
"""The role of a replica among several, and the events that reach the role.

Owns the two roles and the numbers that outlive them. Knows neither acknowledgements nor readers, and not when a log is
flushed.

| the metadata names | this replica is | from then on |
|---|---|---|
| no other replica | alone | what it counts is committed; no subscription either way |
| this broker as the leader | leading, a new `Leadership` for each leader epoch | followers subscribe again |
| another broker | following, a new `Following` for each leader epoch | it subscribes |
| no leader | idle | nothing is committed |

Law: proposals and sessions are numbered over the life of the replica. So an event of an earlier role is recognised by
its number, and ignored.
"""

from __future__ import annotations

from typing import assert_never

from lograft.wire.codes import ErrorCode

from brokerd.partition.effects import BeginLeaderEpoch, Effect, EndSubscription, ForgetEmptyEpoch
from brokerd.partition.events import BrokerState, PartitionChanged
from brokerd.partition.follower import Following
from brokerd.partition.follower_events import (
    BatchesReceived,
    FollowerEvent,
    LeaderAdvanced,
    LogTruncated,
    SubscriptionAccepted,
    SubscriptionDiverged,
    SubscriptionEnded,
)
from brokerd.partition.leader import Leadership
from brokerd.partition.leader_events import (
    FollowerAcked,
    FollowerLost,
    FollowerSubscribed,
    ProposalRefused,
    ProposalUnanswered,
)
from brokerd.partition.log_state import LogState
from brokerd.partition.reconciliation import SubscriptionError
from metaquorum.metadata.state import PartitionImage


class Roles:
    """The present role of a replica, and the numbers that outlive it.

    Args:
        node_id: this broker.
        log: the own log.
        lag_max_ms: how long an in-sync follower may lag.
        is_alone: True if there is no other replica, until the metadata says more.
        session_count: at least the number of the last subscription by an earlier replica of the partition in this
            process.

    Attributes:
        is_alone: True while there is no other replica.
        leadership: the role while this replica leads several; else None.
        following: the role while it follows; else None.
        is_in_isr: True if the committed ISR contains this replica, as last told.
        min_isr: the topic's `min.insync.replicas`, as last told.
    """

    __slots__ = (
        "_lag_max_ms",
        "_log",
        "_node_id",
        "_partition_epoch",
        "_proposal_count",
        "_session_count",
        "following",
        "is_alone",
        "is_in_isr",
        "leadership",
        "min_isr",
    )

    def __init__(self, *, node_id: int, log: LogState, lag_max_ms: int, is_alone: bool, session_count: int) -> None:
        self._node_id = node_id
        self._log = log
        self._lag_max_ms = lag_max_ms
        self._partition_epoch: int | None = None
        self._proposal_count = 0
        self._session_count = session_count
        self.is_alone = is_alone
        self.leadership: Leadership | None = None
        self.following: Following | None = None
        self.is_in_isr = False
        self.min_isr = 1

    def is_stale(self, partition: PartitionImage) -> bool:
        """Tell whether a newer state of the partition is known."""
        return self._partition_epoch is not None and partition.partition_epoch < self._partition_epoch

    def keep(self, event: PartitionChanged, now_ms: int) -> list[Effect]:
        """Apply a state with the same leader and leader epoch as before."""
        self._note(event.partition, event.min_isr)
        if self.leadership is None:
            return []
        return self.leadership.take_state(event.partition, min_isr=event.min_isr, brokers=event.brokers, now_ms=now_ms)

    def change(self, event: PartitionChanged, *, is_able: bool, now_ms: int) -> list[Effect]:
        """End the present role and begin that of a new state; none if the log does not work."""
        self._note(event.partition, event.min_isr)
        effects = self.end(SubscriptionError.NOT_LEADER)
        leader_id = event.partition.leader_id
        self.is_alone = self.is_lone(event.partition)
        if self.is_alone or not is_able or leader_id is None:
            return effects
        if leader_id == self._node_id:
            return effects + self._lead(event, now_ms)
        self.following = Following(
            leader_id=leader_id,
            leader_epoch=event.partition.leader_epoch,
            log=self._log,
            session_count=self._session_count,
        )
        return [*effects, ForgetEmptyEpoch(), *self.following.subscribe()]

    def is_lone(self, partition: PartitionImage) -> bool:
        """Tell whether a partition has only this replica."""
        return partition.replicas == (self._node_id,)

    def end(self, error: SubscriptionError) -> list[Effect]:
        """End the present role."""
        effects: list[Effect] = []
        if self.leadership is not None:
            effects += self.leadership.end(error)
            self._proposal_count = self.leadership.isr.proposal_count
        if self.following is not None:
            effects += self.following.stop()
            self._session_count = self.following.session_count
        self.leadership = self.following = None
        return effects

    def note_append(self, *, old_end_offset: int, leader_epoch: int | None, now_ms: int) -> None:
        """Note that the log has grown, with records of the leader epoch or of the last received batches."""
        self._log.last_epoch = leader_epoch if self.following is None else self.following.batch_epoch
        if self.leadership is not None:
            self.leadership.note_log_growth(old_end_offset=old_end_offset, now_ms=now_ms)

    def note_broker(self, broker: BrokerState, now_ms: int) -> list[Effect]:
        """Note the state of a broker in the metadata."""
        return [] if self.leadership is None else self.leadership.note_broker(broker, now_ms)

    def lead_step(
        self,
        event: FollowerSubscribed | FollowerAcked | FollowerLost | ProposalRefused | ProposalUnanswered,
        now_ms: int,
        *,
        refusal: SubscriptionError,
    ) -> list[Effect]:
        """Pass an event to the leadership. Without one, refuse a subscription and ignore everything else."""
        leadership = self.leadership
        if leadership is None:
            if isinstance(event, FollowerSubscribed):
                return [
                    EndSubscription(
                        node_id=event.node_id, broker_epoch=event.broker_epoch, session=event.session, error=refusal
                    )
                ]
            return []
        match event:
            case FollowerSubscribed():
                return leadership.subscribe(event, now_ms)
            case FollowerAcked():
                return leadership.acknowledge(event, now_ms)
            case FollowerLost():
                leadership.lose(event, now_ms)
            case ProposalRefused() if event.code is ErrorCode.FENCED_EPOCH:
                leadership.isr.note_fenced(event.proposal)
            case ProposalRefused():
                leadership.isr.note_outcome(event.proposal, is_refused=True, now_ms=now_ms)
            case ProposalUnanswered():
                leadership.isr.note_outcome(event.proposal, is_refused=False, now_ms=now_ms)
            case _:
                assert_never(event)
        return []

    def follow_step(self, event: FollowerEvent, now_ms: int) -> list[Effect]:
        """Pass an event to the follower role; ignore it without one."""
        following = self.following
        if following is None:
            return []
        match event:
            case SubscriptionAccepted():
                following.accept(event)
            case SubscriptionDiverged():
                return following.diverge(event)
            case SubscriptionEnded():
                return following.end(event, now_ms)
            case BatchesReceived():
                return following.receive(event, now_ms)
            case LeaderAdvanced():
                following.advance(event)
            case LogTruncated():
                self._log.note_truncation(event)
                return following.subscribe()
            case _:
                assert_never(event)
        return []

    def committed_end(self) -> int | None:
        """Return the end (exclusive) of what is committed, as this role knows it; None: no more than before."""
        if self.leadership is not None:
            return self.leadership.committed_end()
        if self.following is not None:
            return self.following.committed_end()
        return self._log.counted_offset if self.is_alone else None

    def followed_end(self) -> int | None:
        """Return the end (exclusive) of what an in-sync follower serves to readers; None: it serves no reader."""
        return None if self.following is None or not self.is_in_isr else self.following.readable_end()

    def flushed_end(self) -> int | None:
        """Return the end (exclusive) of what is committed and on stable storage of all in-sync replicas; None: unknown."""
        if self.leadership is None:
            return self._log.flushed_offset
        flushed_offset = self.leadership.flushed_end()
        return None if flushed_offset is None else min(flushed_offset, self._log.high_watermark)

    def deadline_ms(self) -> int | None:
        """Return when the role must act because of time alone."""
        if self.leadership is not None:
            return self.leadership.deadline_ms()
        return None if self.following is None else self.following.deadline_ms()

    def tick(self, now_ms: int) -> list[Effect]:
        """Let the role act if time requires it."""
        return [] if self.following is None else self.following.tick(now_ms)

    def conclude(self, now_ms: int) -> list[Effect]:
        """Draw the conclusions of an event, after the high watermark has moved: who should be in sync, what to report."""
        if self.leadership is not None:
            effects = self.leadership.propose(now_ms)
            return effects or self.leadership.resign(now_ms)
        return [] if self.following is None else self.following.report()

    def _note(self, partition: PartitionImage, min_isr: int) -> None:
        self._partition_epoch, self.min_isr = partition.partition_epoch, min_isr
        self.is_in_isr = self._node_id in partition.isr

    def _lead(self, event: PartitionChanged, now_ms: int) -> list[Effect]:
        self.leadership = Leadership(
            node_id=self._node_id,
            partition=event.partition,
            min_isr=event.min_isr,
            brokers=event.brokers,
            log=self._log,
            lag_max_ms=self._lag_max_ms,
            proposal_count=self._proposal_count,
            now_ms=now_ms,
        )
        return [BeginLeaderEpoch(leader_epoch=event.partition.leader_epoch)]
