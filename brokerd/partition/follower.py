# SPDX-License-Identifier: Apache-2.0
"""The follower's side of one partition with several replicas, for one leader epoch.

Owns the state of the subscription. Knows neither the log's bytes nor the stream.

| state | subscribe | told that logs diverge | accepted | batches | ended |
|---|---|---|---|---|---|
| SUBSCRIBING | - | truncates: TRUNCATING | FOLLOWING | ignored | WAITING, or subscribes again at once |
| TRUNCATING | on `LogTruncated`: SUBSCRIBING | - | - | - | - |
| FOLLOWING | - | ignored | ignored | appends, or unsubscribes: WAITING | WAITING, or subscribes again at once |
| WAITING | at its time: SUBSCRIBING | ignored | ignored | ignored | ignored |

Laws
    The follower ignores events of any session but the present one: they are about another state of the log, or from the
    leader of another epoch.
    It truncates the log only because leader epochs differ, never because of a high watermark.
    It acknowledges only what the log holds, and a flushed offset only after the flush.
Source: KIP-101; KIP-279; KIP-595 section "Fetch".
"""

from __future__ import annotations

from enum import Enum

from brokerd.limits import SUBSCRIBE_RETRY_MAX_MS, SUBSCRIBE_RETRY_MIN_MS
from brokerd.partition.effects import (
    AdvanceLogStart,
    AppendBatches,
    Effect,
    RestartLog,
    SendAck,
    Subscribe,
    TruncateLog,
    Unsubscribe,
)
from brokerd.partition.follower_events import (
    BatchesReceived,
    LeaderAdvanced,
    SubscriptionAccepted,
    SubscriptionDiverged,
    SubscriptionEnded,
)
from brokerd.partition.log_state import LogState
from brokerd.partition.reconciliation import SubscriptionError, truncation_offset


class FollowerState(Enum):
    """State of a follower's subscription; the module docstring has the transitions."""

    SUBSCRIBING = "subscribing"
    TRUNCATING = "truncating"
    FOLLOWING = "following"
    WAITING = "waiting"


class Following:
    """One leader epoch that this replica follows.

    Args:
        leader_id: the leader.
        leader_epoch: epoch of the leadership.
        log: the own log.
        session_count: number of the last subscription before this epoch.

    Attributes:
        session_count: number of the present subscription, or of the last one.
        state: state of the subscription.
        batch_epoch: leader epoch of the last accepted batches.
    """

    __slots__ = (
        "_acked",
        "_leader_epoch",
        "_leader_high_watermark",
        "_leader_id",
        "_leader_log_start_offset",
        "_log",
        "_log_start_told",
        "_retry_after_ms",
        "_retry_ms",
        "batch_epoch",
        "session_count",
        "state",
    )

    def __init__(self, *, leader_id: int, leader_epoch: int, log: LogState, session_count: int) -> None:
        self._leader_id = leader_id
        self._leader_epoch = leader_epoch
        self._log = log
        self.session_count = session_count
        self.state = FollowerState.WAITING
        # What the leader knows of this log: appended, flushed.
        self._acked = (0, 0)
        self._leader_high_watermark: int | None = None
        self._leader_log_start_offset = self._log_start_told = 0
        self.batch_epoch = leader_epoch
        self._retry_ms = SUBSCRIBE_RETRY_MIN_MS
        self._retry_after_ms: int | None = None

    @property
    def is_subscribed(self) -> bool:
        """True while the leader may send something for the present session."""
        return self.state in (FollowerState.SUBSCRIBING, FollowerState.FOLLOWING)

    def deadline_ms(self) -> int | None:
        """Return when the next subscription is due; None: none is scheduled."""
        return self._retry_after_ms

    def subscribe(self) -> list[Effect]:
        """Subscribe to the records from the log end on."""
        log = self._log
        self.session_count += 1
        self.state = FollowerState.SUBSCRIBING
        self._retry_after_ms = None
        self._acked = (log.log_end_offset, log.flushed_offset)
        return [
            Subscribe(
                leader_id=self._leader_id,
                leader_epoch=self._leader_epoch,
                session=self.session_count,
                log_end_offset=log.log_end_offset,
                flushed_offset=log.flushed_offset,
                last_epoch=log.last_epoch,
            )
        ]

    def accept(self, event: SubscriptionAccepted) -> None:
        """Note that this log is a prefix of the leader's."""
        if self._is_present(event.session, FollowerState.SUBSCRIBING):
            self.state = FollowerState.FOLLOWING
            self._retry_ms = SUBSCRIBE_RETRY_MIN_MS
            self._leader_high_watermark = event.high_watermark
            self._leader_log_start_offset = event.log_start_offset

    def diverge(self, event: SubscriptionDiverged) -> list[Effect]:
        """Truncate the log to the point where it may agree with the leader's."""
        if not self._is_present(event.session, FollowerState.SUBSCRIBING):
            return []
        self.state = FollowerState.TRUNCATING
        to_offset = truncation_offset(
            leader_end=event.leader_end, own_end=event.own_end, log_end_offset=self._log.log_end_offset
        )
        if to_offset < event.own_start_offset:
            return [RestartLog(start_offset=to_offset)]
        return [TruncateLog(to_offset=to_offset, loses_committed=to_offset < self._log.high_watermark)]

    def end(self, event: SubscriptionEnded, now_ms: int) -> list[Effect]:
        """Note the end of the subscription, and subscribe again: at once if only the stream broke."""
        if event.session != self.session_count or not self.is_subscribed:
            return []
        start_offset = event.log_start_offset
        if (
            event.error is SubscriptionError.BELOW_LOG_START
            and start_offset is not None
            and start_offset > self._log.log_end_offset
        ):
            self.state = FollowerState.TRUNCATING
            return [RestartLog(start_offset=start_offset)]
        if event.error is SubscriptionError.STREAM_LOST:
            return self.subscribe()
        if event.error is SubscriptionError.STORAGE_FAILED:
            # The leader accepts this log each time, and a full disk refuses the first batch: the pause would not grow.
            self._retry_ms = SUBSCRIBE_RETRY_MAX_MS
        self._wait(now_ms)
        return []

    def receive(self, event: BatchesReceived, now_ms: int) -> list[Effect]:
        """Accept batches that continue the log and have a possible leader epoch; otherwise unsubscribe and wait."""
        if not self._is_present(event.session, FollowerState.FOLLOWING):
            return []
        log = self._log
        if (
            event.base_offset == log.log_end_offset
            and (log.last_epoch or 0) <= event.leader_epoch <= self._leader_epoch
        ):
            self.batch_epoch = event.leader_epoch
            return [AppendBatches(base_offset=event.base_offset)]
        effects = self.stop()
        self._wait(now_ms)
        return effects

    def advance(self, event: LeaderAdvanced) -> None:
        """Note the leader's high watermark and log start."""
        if self._is_present(event.session, FollowerState.FOLLOWING):
            self._leader_high_watermark = event.high_watermark
            self._leader_log_start_offset = event.log_start_offset

    def committed_end(self) -> int | None:
        """Return the end (exclusive) of the committed part of this log; None: the leader has not said."""
        known = self._leader_high_watermark
        return None if known is None else min(known, self._log.log_end_offset)

    def readable_end(self) -> int | None:
        """Return the end (exclusive) of what readers may read here; None while this replica is not in FOLLOWING state."""
        return self.committed_end() if self.state is FollowerState.FOLLOWING else None

    def report(self) -> list[Effect]:
        """Acknowledge what is new, and follow the leader's log start."""
        effects: list[Effect] = []
        log = self._log
        if self.state is not FollowerState.FOLLOWING:
            return effects
        appended_offset, flushed_offset = self._acked
        # Under `ack` only flushed records count, so a lower acknowledgement is of no use to the leader.
        is_more_appended = log.log_end_offset > appended_offset and not log.is_flush_counted
        if is_more_appended or log.flushed_offset > flushed_offset:
            self._acked = (log.log_end_offset, log.flushed_offset)
            effects.append(
                SendAck(
                    session=self.session_count, appended_offset=log.log_end_offset, flushed_offset=log.flushed_offset
                )
            )
        if self._log_start_told < self._leader_log_start_offset <= log.high_watermark:
            self._log_start_told = self._leader_log_start_offset
            effects.append(AdvanceLogStart(log_start_offset=self._leader_log_start_offset))
        return effects

    def tick(self, now_ms: int) -> list[Effect]:
        """Subscribe again if that is due."""
        if self._retry_after_ms is None or now_ms < self._retry_after_ms:
            return []
        return self.subscribe()

    def stop(self) -> list[Effect]:
        """End the subscription from this side."""
        if not self.is_subscribed:
            return []
        return [Unsubscribe(leader_id=self._leader_id, session=self.session_count)]

    def _is_present(self, session: int, state: FollowerState) -> bool:
        return session == self.session_count and self.state is state

    def _wait(self, now_ms: int) -> None:
        self.state = FollowerState.WAITING
        self._retry_after_ms = now_ms + self._retry_ms
        self._retry_ms = min(2 * self._retry_ms, SUBSCRIBE_RETRY_MAX_MS)
