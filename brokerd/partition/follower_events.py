# SPDX-License-Identifier: Apache-2.0
"""What happens to a follower of a partition: what its leader sends, and what became of its own log.

Values only. `session` is the number that the core gave with `Subscribe`; what carries another one is passed over.
"""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.partition.reconciliation import EpochEnd, SubscriptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionAccepted:
    """The log is a prefix of the leader's: batches follow.

    Attributes:
        session: the subscription.
        high_watermark: of the leader (exclusive).
        log_start_offset: of the leader (inclusive).
    """

    session: int
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionDiverged:
    """The log is no prefix of the leader's; the subscription is over.

    Attributes:
        session: the subscription.
        leader_end: the leader's largest epoch not above the last one here, and where it ends there.
        own_end: what this log knows of that epoch (`PartitionLog.end_offset_for_epoch`); None: it is above all known ones.
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
        session: the subscription.
        error: why.
        log_start_offset: of the leader (inclusive), with BELOW_LOG_START.
    """

    session: int
    error: SubscriptionError
    log_start_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesReceived:
    """Whole batches came; the shell holds them until the effects of this step are carried out.

    Attributes:
        session: the subscription.
        base_offset: first offset of the first batch (inclusive).
        leader_epoch: leader epoch of all of them.
    """

    session: int
    base_offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAdvanced:
    """High watermark (exclusive) and log start (inclusive) of the leader are now these."""

    session: int
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTruncated:
    """The log was truncated, as `TruncateLog` or `RestartLog` asked for.

    Attributes:
        log_end_offset: where it ends now (exclusive); whole batches, so that it may be lower than asked for.
        flushed_offset: how much of that is on stable storage (exclusive).
        last_epoch: leader epoch of its last record; None without one.
        log_start_offset: where it begins now (inclusive); all below is committed, or it would not be gone at the leader.
    """

    log_end_offset: int
    flushed_offset: int
    last_epoch: int | None
    log_start_offset: int


FollowerEvent = (
    SubscriptionAccepted | SubscriptionDiverged | SubscriptionEnded | BatchesReceived | LeaderAdvanced | LogTruncated
)
