# SPDX-License-Identifier: Apache-2.0
"""The core of one partition replica.

Owns: the role, the offsets that decide what is acknowledged and readable, and the waiting acknowledgements. It uses no
log, clock, stream or protobuf message.

Theory of operation. The log grows (`BatchAppended`) and is flushed (`LogFlushed`). The *counted offset* is what this
replica counts as held: the flushed offset under flush policy `ack`, else the log end. For a single replica it is the
high watermark. With other replicas (`PartitionChanged` says so) the role decides: `Leadership` gives the smallest
counted offset of the maximal in-sync replicas, `Following` what the leader says. The high watermark never goes back
while the replica is open, not even when the policy changes from `none` to `ack`. The only exception is a follower that
is truncated below it.

This object dispatches events and keeps what both roles need; the roles decide.

Law: log_start <= high watermark <= log end; flushed <= log end; an acknowledgement of level ALL completes only below
the high watermark.
Source: KIP-101 for the epoch, Kafka's replica manager for acks; docs/replication.md.
"""

from __future__ import annotations

from typing import assert_never

from brokerd.limits import REPLICA_LAG_MAX_MS
from brokerd.partition.acks import PendingAcks
from brokerd.partition.effects import (
    CompleteAck,
    Effect,
    EndService,
    FailAck,
    FlushLog,
    LossReason,
    PublishHighWatermark,
)
from brokerd.partition.events import (
    AckDropped,
    AckLevel,
    AckWanted,
    BatchAppended,
    BrokerChanged,
    Durability,
    Event,
    FlushPolicyChanged,
    LeadershipChanged,
    LogFlushed,
    PartitionChanged,
    ReplicaRemoved,
    StorageFailed,
    Tick,
)
from brokerd.partition.follower_events import (
    BatchesReceived,
    LeaderAdvanced,
    LogTruncated,
    SubscriptionAccepted,
    SubscriptionDiverged,
    SubscriptionEnded,
)
from brokerd.partition.leader_events import (
    FollowerAcked,
    FollowerLost,
    FollowerSubscribed,
    ProposalAccepted,
    ProposalRefused,
    ProposalUnanswered,
)
from brokerd.partition.log_state import LogState
from brokerd.partition.reconciliation import SubscriptionError
from brokerd.partition.roles import Roles
from metaquorum.metadata.topic_configs import FlushPolicy


class PartitionReplica:
    """Leader, follower or idle replica of one partition on one broker.

    Args:
        node_id: this broker.
        log_end_offset: end of the log (exclusive).
        flushed_offset: end of what is on stable storage (exclusive).
        flush_policy: the policy that decides which records count.
        flush_interval_ms: flush interval of policy `interval`.
        high_watermark: a high watermark that this log had before, or a lower value; required if there are other
            replicas. None, for a single replica: the counted offset.
        last_epoch: leader epoch of the last record; None: no record.
        lag_max_ms: how long an in-sync follower may lag.
        session_count: at least the number of the last subscription by an earlier replica of the partition in this
            process.

    Attributes:
        roles: the role among several replicas; read-only for others.
    """

    __slots__ = (
        "_acks",
        "_flush_due_ms",
        "_flush_interval_ms",
        "_is_failed",
        "_is_removed",
        "_leader_epoch",
        "_leader_id",
        "_log",
        "_node_id",
        "_unflushed_end",
        "roles",
    )

    def __init__(
        self,
        *,
        node_id: int,
        log_end_offset: int,
        flushed_offset: int,
        flush_policy: FlushPolicy,
        flush_interval_ms: int,
        high_watermark: int | None = None,
        last_epoch: int | None = None,
        lag_max_ms: int = REPLICA_LAG_MAX_MS,
        session_count: int = 0,
    ) -> None:
        self._node_id = node_id
        self._log = LogState(
            log_end_offset=log_end_offset,
            flushed_offset=flushed_offset,
            last_epoch=last_epoch,
            flush_policy=flush_policy,
        )
        if high_watermark is not None:
            self._log.high_watermark = min(high_watermark, log_end_offset)
        self._flush_interval_ms = flush_interval_ms
        self._flush_due_ms: int | None = None
        self._leader_id: int | None = None
        self._leader_epoch: int | None = None
        self._is_failed = False
        self._is_removed = False
        self.roles = Roles(
            node_id=node_id,
            log=self._log,
            lag_max_ms=lag_max_ms,
            is_alone=high_watermark is None,
            session_count=session_count,
        )
        self._acks = PendingAcks()
        # End of the records that were committed without a flush, before the policy became `ack`; 0: none were.
        self._unflushed_end = 0

    @property
    def is_leader(self) -> bool:
        """True while this broker leads the partition and its log works."""
        return self._leader_id == self._node_id and not self._is_failed and not self._is_removed

    @property
    def is_failed(self) -> bool:
        """True once the log has failed; this lasts until the process ends."""
        return self._is_failed

    @property
    def leader_epoch(self) -> int | None:
        """The last leader epoch in the metadata; None before the first."""
        return self._leader_epoch

    @property
    def log_end_offset(self) -> int:
        """Offset of the next record."""
        return self._log.log_end_offset

    @property
    def flushed_offset(self) -> int:
        """End (exclusive) of what is on stable storage."""
        return self._log.flushed_offset

    @property
    def high_watermark(self) -> int:
        """End (exclusive) of the readable records."""
        return self._log.high_watermark

    @property
    def followed_end(self) -> int | None:
        """End (exclusive) of what a follower serves to readers; None: it serves no reader (docs/replication.md, R15)."""
        return None if self._is_failed or self._is_removed else self.roles.followed_end()

    @property
    def counted_offset(self) -> int:
        """End (exclusive) of what this replica counts as held."""
        return self._log.counted_offset

    @property
    def pending_ack_count(self) -> int:
        """Number of waiting acknowledgements."""
        return len(self._acks)

    @property
    def is_below_min_isr(self) -> bool:
        """True while a leader has too few in-sync replicas; appends of level ALL must then be refused before they reach the log."""
        leadership = self.roles.leadership
        return leadership is not None and leadership.isr.is_below_min

    @property
    def is_eligible_enough(self) -> bool:
        """True if an eligible replica may lead next without loss: everything that was acknowledged is committed.

        An earlier leader may have acknowledged everything below the start of this leader epoch.
        """
        leadership = self.roles.leadership
        return leadership is not None and leadership.has_committed_all

    @property
    def is_end_known(self) -> bool:
        """False for a leader whose high watermark may be below an earlier leader's, so that it does not know the latest offset yet."""
        leadership = self.roles.leadership
        return leadership is None or self._log.high_watermark >= leadership.epoch_start_offset

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """Node ids of a leader's maximal in-sync replicas, in the order of the replicas; empty without other replicas."""
        leadership = self.roles.leadership
        return () if leadership is None else leadership.isr.maximal

    def deadline_ms(self) -> int | None:
        """Return the monotonic time when `Tick` is due, or None."""
        role_ms = self.roles.deadline_ms()
        if role_ms is None or self._flush_due_ms is None:
            return self._flush_due_ms if role_ms is None else role_ms
        return min(role_ms, self._flush_due_ms)

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle an event and return its effects.

        Args:
            event: what happened.
            now_ms: monotonic time in milliseconds.
        """
        match event:
            case BatchAppended():
                return self._on_appended(event.log_end_offset, now_ms)
            case AckWanted():
                return self._on_ack_wanted(event)
            case LogFlushed():
                return self._on_flushed(event.flushed_offset, now_ms)
            case AckDropped():
                self._acks.drop(event.token)
                return []
            case FollowerSubscribed() | FollowerAcked() | FollowerLost() | ProposalRefused() | ProposalUnanswered():
                refusal = SubscriptionError.STORAGE_FAILED if self._is_failed else SubscriptionError.NOT_LEADER
                return self.roles.lead_step(event, now_ms, refusal=refusal) + self._settle(now_ms)
            case ProposalAccepted():
                return self._on_accepted(event, now_ms)
            case (
                SubscriptionAccepted()
                | SubscriptionDiverged()
                | SubscriptionEnded()
                | BatchesReceived()
                | LeaderAdvanced()
                | LogTruncated()
            ):
                return self.roles.follow_step(event, now_ms) + self._settle(now_ms)
            case LeadershipChanged():
                return self._on_leadership(event)
            case PartitionChanged():
                return self._on_partition(event, now_ms)
            case BrokerChanged():
                return self.roles.note_broker(event.broker, now_ms) + self._settle(now_ms)
            case FlushPolicyChanged():
                return self._on_policy(event, now_ms)
            case StorageFailed():
                self._is_failed = True
                return self._end_all(LossReason.STORAGE_FAILED, SubscriptionError.STORAGE_FAILED, event.message)
            case ReplicaRemoved():
                self._is_removed = True
                return self._end_all(LossReason.REMOVED, SubscriptionError.NOT_LEADER, event.message)
            case Tick():
                return self._on_tick(now_ms)
            case _:
                assert_never(event)

    def _on_appended(self, log_end_offset: int, now_ms: int) -> list[Effect]:
        log = self._log
        old_end_offset = log.log_end_offset
        assert log_end_offset >= old_end_offset, f"log end {old_end_offset} -> {log_end_offset}"
        log.log_end_offset = log_end_offset
        effects: list[Effect] = []
        if log.flush_policy is FlushPolicy.ACK:
            effects.append(FlushLog())
        elif log.flush_policy is FlushPolicy.INTERVAL and self._flush_due_ms is None:
            self._flush_due_ms = now_ms + self._flush_interval_ms
        self.roles.note_append(old_end_offset=old_end_offset, leader_epoch=self._leader_epoch, now_ms=now_ms)
        return effects + self._settle(now_ms)

    def _on_flushed(self, flushed_offset: int, now_ms: int) -> list[Effect]:
        log = self._log
        assert log.flushed_offset <= flushed_offset <= log.log_end_offset, (
            f"flushed {log.flushed_offset} -> {flushed_offset}, log end {log.log_end_offset}"
        )
        log.flushed_offset = flushed_offset
        return self._settle(now_ms)

    def _on_ack_wanted(self, event: AckWanted) -> list[Effect]:
        log = self._log
        assert event.next_offset <= log.log_end_offset, f"ack at {event.next_offset}, end {log.log_end_offset}"
        if self._is_failed or self._is_removed:
            reason = LossReason.STORAGE_FAILED if self._is_failed else LossReason.REMOVED
            return [FailAck(token=event.token, reason=reason)]
        if event.level is AckLevel.LEADER or self._is_stored(event.next_offset):
            log.acknowledged_end = max(log.acknowledged_end, event.next_offset)
            return [CompleteAck(token=event.token, durability=self._durability(event.next_offset))]
        if not self.roles.is_alone and self.roles.leadership is None:
            is_following = self.roles.following is not None
            return [FailAck(token=event.token, reason=LossReason.NOT_LEADER if is_following else LossReason.NO_LEADER)]
        if self.is_below_min_isr:
            return [FailAck(token=event.token, reason=LossReason.NOT_ENOUGH_REPLICAS)]
        self._acks.add(event.token, event.next_offset)
        return []

    def _is_stored(self, next_offset: int) -> bool:
        """Tell whether everything below an offset is committed, and also flushed if it was committed before the switch to `ack`."""
        if next_offset > self._log.high_watermark:
            return False
        if next_offset > self._unflushed_end:
            return True
        flushed_offset = self.roles.flushed_end()
        return flushed_offset is not None and next_offset <= flushed_offset

    def _on_leadership(self, event: LeadershipChanged) -> list[Effect]:
        if self._leader_epoch is not None and event.leader_epoch < self._leader_epoch:
            return []  # an older epoch never takes leadership back
        was_leader = self.is_leader
        moved = event.leader_epoch != self._leader_epoch
        self._leader_id = event.leader_id
        self._leader_epoch = event.leader_epoch
        if not was_leader:
            return []
        if self.is_leader and not moved:
            return []
        if self.is_leader:
            # Routes were opened with the old epoch; clients must learn the new one before they continue.
            return self._end_service(LossReason.LEADER_EPOCH_MOVED, f"leader epoch is now {event.leader_epoch}")
        if event.leader_id is None:
            return self._end_service(LossReason.NO_LEADER, "the partition has no leader at the moment")
        return self._end_service(LossReason.NOT_LEADER, f"broker {event.leader_id} leads the partition now")

    def _on_partition(self, event: PartitionChanged, now_ms: int) -> list[Effect]:
        roles, partition = self.roles, event.partition
        if roles.is_stale(partition):
            return []
        before = (self._leader_id, self._leader_epoch, roles.is_alone)
        is_kept = before == (partition.leader_id, partition.leader_epoch, roles.is_lone(partition))
        effects = self._on_leadership(
            LeadershipChanged(leader_id=partition.leader_id, leader_epoch=partition.leader_epoch)
        )
        if is_kept:
            effects += roles.keep(event, now_ms)
        else:
            is_able = not self._is_failed and not self._is_removed
            effects += roles.change(event, is_able=is_able, now_ms=now_ms)
        effects += self._settle(now_ms)
        if self.is_below_min_isr:
            effects += self._fail_acks(LossReason.NOT_ENOUGH_REPLICAS)
        return effects

    def _on_accepted(self, event: ProposalAccepted, now_ms: int) -> list[Effect]:
        # Also without a leadership: the answer is committed, and may be newer than the metadata seen here.
        changed = PartitionChanged(partition=event.partition, min_isr=self.roles.min_isr, brokers=())
        effects = self._on_partition(changed, now_ms)
        if self.roles.leadership is not None:
            # The proposal is still under way only if the answer left the partition unchanged.
            self.roles.leadership.isr.note_outcome(event.proposal, is_refused=True, now_ms=now_ms)
        return effects

    def _on_policy(self, event: FlushPolicyChanged, now_ms: int) -> list[Effect]:
        log = self._log
        if event.policy is not FlushPolicy.ACK:
            self._unflushed_end = 0
        elif not log.is_flush_counted:
            # What all others have flushed is checked when a request waits for it.
            self._unflushed_end = log.high_watermark
        log.flush_policy = event.policy
        self._flush_interval_ms = event.interval_ms
        self._flush_due_ms = None
        effects: list[Effect] = []
        if not self._is_failed and not self._is_removed and log.flushed_offset < log.log_end_offset:
            if event.policy is FlushPolicy.ACK:
                effects.append(FlushLog())
            elif event.policy is FlushPolicy.INTERVAL:
                self._flush_due_ms = now_ms + event.interval_ms
        return effects + self._settle(now_ms)

    def _on_tick(self, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        if self._flush_due_ms is not None and now_ms >= self._flush_due_ms:
            self._flush_due_ms = None
            if self._log.flushed_offset < self._log.log_end_offset:
                effects.append(FlushLog())
        return effects + self.roles.tick(now_ms) + self._settle(now_ms)

    def _settle(self, now_ms: int) -> list[Effect]:
        """Draw the conclusions of an event: what is committed, who should be in sync, what to report."""
        if self._is_failed or self._is_removed:
            return []
        effects = self._advance()
        return effects + self.roles.conclude(now_ms)

    def _advance(self) -> list[Effect]:
        """Move the high watermark up to what is committed, and complete the acknowledgements below; never moves back."""
        log = self._log
        committed = self.roles.committed_end()
        if committed is None:
            return []
        effects: list[Effect] = []
        if committed > log.high_watermark:
            assert committed <= log.log_end_offset, f"committed {committed}, log end {log.log_end_offset}"
            log.high_watermark = committed
            effects.append(PublishHighWatermark(high_watermark=committed))
        # After a switch to `ack`, some acknowledgements below the high watermark wait for flushes.
        for next_offset, token in self._acks.take_reached(committed):
            effects.append(CompleteAck(token=token, durability=self._durability(next_offset)))
        return effects

    def _durability(self, next_offset: int) -> Durability:
        flushed_offset = self.roles.flushed_end()
        if flushed_offset is not None and next_offset <= flushed_offset:
            return Durability.FLUSHED
        # With one replica, the leader's page cache is that of every in-sync replica once the record counts.
        return Durability.REPLICATED if next_offset <= self._log.high_watermark else Durability.APPENDED

    def _fail_acks(self, reason: LossReason) -> list[Effect]:
        return [FailAck(token=token, reason=reason) for token in self._acks.take_all()]

    def _end_service(self, reason: LossReason, message: str) -> list[Effect]:
        return [*self._fail_acks(reason), EndService(reason=reason, message=message)]

    def _end_all(self, reason: LossReason, error: SubscriptionError, message: str) -> list[Effect]:
        self._flush_due_ms = None
        return [*self._end_service(reason, message), *self.roles.end(error)]
