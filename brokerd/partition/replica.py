# SPDX-License-Identifier: Apache-2.0
"""The core of one partition replica.

Owns: the role, the offsets that decide what is acknowledged and readable, and the acknowledgements that wait for them.
Must not: touch the log, a clock, a stream or a protobuf message.

Theory of operation. The log grows (`BatchAppended`) and is flushed (`LogFlushed`). The *counted offset* is what
this replica may claim to hold: the flushed offset under flush policy `ack`, else the log end. The high watermark is
the smallest counted offset of the in-sync replicas; with one replica it is the counted offset of the leader. It
never goes back while the replica is open, also not when the policy changes from `none` to `ack`: what was readable
stays readable.

An acknowledgement is a threshold on an offset. They are kept in a heap and not in a queue, because a duplicate
waits for the offset of the first time, which lies below thresholds that came earlier.

Law: log_start <= high watermark <= log end; flushed <= log end; an acknowledgement of level ALL completes only
below the high watermark.
Source: architecture section 8; KIP-101 for the epoch, Kafka's replica manager for acks.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import assert_never

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
    Durability,
    Event,
    FlushPolicyChanged,
    LeadershipChanged,
    LogFlushed,
    ReplicaRemoved,
    StorageFailed,
    Tick,
)
from metaquorum.controller.topic_configs import FlushPolicy


class PartitionReplica:
    """Leader or idle replica of one partition on one broker."""

    __slots__ = (
        "_acks",
        "_dropped",
        "_flush_due_ms",
        "_flush_interval_ms",
        "_flush_policy",
        "_flushed_offset",
        "_high_watermark",
        "_is_failed",
        "_is_removed",
        "_leader_epoch",
        "_leader_id",
        "_log_end_offset",
        "_node_id",
        "_pending",
    )

    def __init__(
        self,
        *,
        node_id: int,
        log_end_offset: int,
        flushed_offset: int,
        flush_policy: FlushPolicy,
        flush_interval_ms: int,
    ) -> None:
        assert 0 <= flushed_offset <= log_end_offset, f"flushed {flushed_offset}, log end {log_end_offset}"
        self._node_id = node_id
        self._log_end_offset = log_end_offset
        self._flushed_offset = flushed_offset
        self._flush_policy = flush_policy
        self._flush_interval_ms = flush_interval_ms
        self._flush_due_ms: int | None = None
        self._leader_id: int | None = None
        self._leader_epoch: int | None = None
        self._is_failed = False
        self._is_removed = False
        # Thresholds that are not reached yet: (next_offset, token), smallest first.
        self._acks: list[tuple[int, int]] = []
        self._pending: set[int] = set()
        self._dropped: set[int] = set()
        self._high_watermark = self.counted_offset

    @property
    def is_leader(self) -> bool:
        """True while this broker leads the partition and its log works."""
        return self._leader_id == self._node_id and not self._is_failed and not self._is_removed

    @property
    def is_failed(self) -> bool:
        """True once the log failed; it stays so until the process ends."""
        return self._is_failed

    @property
    def leader_epoch(self) -> int | None:
        """Leader epoch that the metadata gave last; None before the first."""
        return self._leader_epoch

    @property
    def log_end_offset(self) -> int:
        """Offset that the next record will get."""
        return self._log_end_offset

    @property
    def flushed_offset(self) -> int:
        """End (exclusive) of what is on stable storage."""
        return self._flushed_offset

    @property
    def high_watermark(self) -> int:
        """End (exclusive) of the readable records."""
        return self._high_watermark

    @property
    def counted_offset(self) -> int:
        """End (exclusive) of what this replica may claim to hold."""
        return self._flushed_offset if self._flush_policy is FlushPolicy.ACK else self._log_end_offset

    @property
    def pending_ack_count(self) -> int:
        """Acknowledgements that wait."""
        return len(self._pending)

    def deadline_ms(self) -> int | None:
        """Return the monotonic time at which `Tick` must be given, or None."""
        return self._flush_due_ms

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take an event and say what to do.

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
                return self._on_flushed(event.flushed_offset)
            case AckDropped():
                self._on_ack_dropped(event.token)
                return []
            case LeadershipChanged():
                return self._on_leadership(event)
            case FlushPolicyChanged():
                return self._on_policy(event, now_ms)
            case StorageFailed():
                self._is_failed = True
                return self._end_service(LossReason.STORAGE_FAILED, event.message)
            case ReplicaRemoved():
                self._is_removed = True
                return self._end_service(LossReason.REMOVED, event.message)
            case Tick():
                return self._on_tick(now_ms)
            case _:
                assert_never(event)

    def _on_appended(self, log_end_offset: int, now_ms: int) -> list[Effect]:
        assert log_end_offset >= self._log_end_offset, f"log end {self._log_end_offset} -> {log_end_offset}"
        self._log_end_offset = log_end_offset
        if self._flush_policy is FlushPolicy.ACK:
            return [FlushLog()]
        if self._flush_policy is FlushPolicy.INTERVAL and self._flush_due_ms is None:
            self._flush_due_ms = now_ms + self._flush_interval_ms
        return self._advance()

    def _on_flushed(self, flushed_offset: int) -> list[Effect]:
        assert self._flushed_offset <= flushed_offset <= self._log_end_offset, (
            f"flushed {self._flushed_offset} -> {flushed_offset}, log end {self._log_end_offset}"
        )
        self._flushed_offset = flushed_offset
        return self._advance()

    def _on_ack_wanted(self, event: AckWanted) -> list[Effect]:
        assert event.next_offset <= self._log_end_offset, f"ack at {event.next_offset}, end {self._log_end_offset}"
        if self._is_failed or self._is_removed:
            reason = LossReason.STORAGE_FAILED if self._is_failed else LossReason.REMOVED
            return [FailAck(token=event.token, reason=reason)]
        if event.level is AckLevel.LEADER or event.next_offset <= self._high_watermark:
            return [CompleteAck(token=event.token, durability=self._durability(event.next_offset))]
        self._pending.add(event.token)
        heappush(self._acks, (event.next_offset, event.token))
        return []

    def _on_ack_dropped(self, token: int) -> None:
        # The heap entry stays until its threshold is reached; the set keeps it from completing twice.
        if token in self._pending:
            self._pending.discard(token)
            self._dropped.add(token)

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
            # Routes were opened with the old epoch; clients must learn the new one before they go on.
            return self._end_service(LossReason.LEADER_EPOCH_MOVED, f"leader epoch is now {event.leader_epoch}")
        if event.leader_id is None:
            return self._end_service(LossReason.NO_LEADER, "the partition has no leader at the moment")
        return self._end_service(LossReason.NOT_LEADER, f"broker {event.leader_id} leads the partition now")

    def _on_policy(self, event: FlushPolicyChanged, now_ms: int) -> list[Effect]:
        self._flush_policy = event.policy
        self._flush_interval_ms = event.interval_ms
        self._flush_due_ms = None
        if self._is_failed or self._is_removed or self._flushed_offset == self._log_end_offset:
            return self._advance()
        if event.policy is FlushPolicy.ACK:
            return [FlushLog(), *self._advance()]
        if event.policy is FlushPolicy.INTERVAL:
            self._flush_due_ms = now_ms + event.interval_ms
        return self._advance()

    def _on_tick(self, now_ms: int) -> list[Effect]:
        if self._flush_due_ms is None or now_ms < self._flush_due_ms:
            return []
        self._flush_due_ms = None
        if self._is_failed or self._is_removed or self._flushed_offset == self._log_end_offset:
            return []
        return [FlushLog()]

    def _advance(self) -> list[Effect]:
        """Move the high watermark to the counted offset and complete what lies below it; never moves back."""
        if self._is_failed or self._is_removed:
            return []
        counted = self.counted_offset
        if counted <= self._high_watermark:
            return []
        assert counted <= self._log_end_offset, f"counted {counted}, log end {self._log_end_offset}"
        self._high_watermark = counted
        effects: list[Effect] = [PublishHighWatermark(high_watermark=counted)]
        acks = self._acks
        while acks and acks[0][0] <= counted:
            next_offset, token = heappop(acks)
            if token in self._dropped:
                self._dropped.discard(token)
                continue
            self._pending.discard(token)
            effects.append(CompleteAck(token=token, durability=self._durability(next_offset)))
        return effects

    def _durability(self, next_offset: int) -> Durability:
        if next_offset <= self._flushed_offset:
            return Durability.FLUSHED
        # With one replica the leader's page cache is the page cache of every in-sync replica once the record counts.
        return Durability.REPLICATED if next_offset <= self._high_watermark else Durability.APPENDED

    def _end_service(self, reason: LossReason, message: str) -> list[Effect]:
        effects: list[Effect] = [
            FailAck(token=token, reason=reason) for _, token in sorted(self._acks) if token not in self._dropped
        ]
        self._acks.clear()
        self._pending.clear()
        self._dropped.clear()
        self._flush_due_ms = None if self._is_failed or self._is_removed else self._flush_due_ms
        effects.append(EndService(reason=reason, message=message))
        return effects
