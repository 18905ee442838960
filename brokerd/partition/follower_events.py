# SPDX-License-Identifier: Apache-2.0
"""Events of a follower of a partition: messages of its leader, and changes of its own log.

Values only. `session` is the number from the core's `Subscribe`; the core ignores events with another one.
"""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.partition.reconciliation import EpochEnd, SubscriptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionAccepted:
    """The log is a prefix of the leader's; batches follow.

    Attributes:
        session: number of the subscription.
        high_watermark: high watermark of the leader (exclusive).
        log_start_offset: log start of the leader (inclusive).
    """

    session: int
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionDiverged:
    """The log is not a prefix of the leader's; the subscription is over.

    Attributes:
        session: number of the subscription.
        leader_end: the leader's largest epoch at or below the last one here, and its end at the leader.
        own_end: the end of that epoch in this log (`PartitionLog.end_offset_for_epoch`); None: it is above all known
            epochs.
        own_start_offset: start of this log (inclusive).
    """

    session: int
    leader_end: EpochEnd
    own_end: EpochEnd | None
    own_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionEnded:
    """The subscription is over.

    Attributes:
        session: number of the subscription.
        error: the reason.
        log_start_offset: log start of the leader (inclusive), with BELOW_LOG_START.
    """

    session: int
    error: SubscriptionError
    log_start_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesReceived:
    """Whole batches have arrived; the shell keeps them until the effects of this step are carried out.

    Attributes:
        session: number of the subscription.
        base_offset: first offset of the first batch (inclusive).
        leader_epoch: leader epoch of all of them.
    """

    session: int
    base_offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAdvanced:
    """The leader has this high watermark (exclusive) and log start (inclusive) now."""

    session: int
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTruncated:
    """The log was truncated, as `TruncateLog` or `RestartLog` asked for.

    Attributes:
        log_end_offset: its end now (exclusive); may be lower than requested, because whole batches are dropped.
        flushed_offset: end of what is on stable storage (exclusive).
        last_epoch: leader epoch of its last record; None: no record.
        log_start_offset: its start now (inclusive). Everything below it is committed, because the leader has removed
            it.
    """

    log_end_offset: int
    flushed_offset: int
    last_epoch: int | None
    log_start_offset: int


FollowerEvent = (
    SubscriptionAccepted | SubscriptionDiverged | SubscriptionEnded | BatchesReceived | LeaderAdvanced | LogTruncated
)
