# SPDX-License-Identifier: Apache-2.0
"""Finds where the logs of a leader and a follower diverge, by leader epochs alone.

Law: a follower whose subscription is accepted has a log that is a prefix of its leader's. It gets there by truncations.
They drop no record that the leader has, except where a round only reaches an epoch that both know. High watermarks
decide nothing here. The leader answers only with what it knows for sure.
Source: KIP-101; KIP-279; KIP-595 section "Fetch"; Kafka, Partition.readRecords and AbstractFetcherThread.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class SubscriptionError(Enum):
    """Why a leader ends or refuses the subscription of a follower."""

    NOT_LEADER = "this broker does not lead the partition"
    FENCED_LEADER_EPOCH = "the leader epoch of the subscription is over"
    UNKNOWN_LEADER_EPOCH = "the leader has not heard of this leader epoch yet"
    STALE_BROKER_EPOCH = "another process is registered under the follower's node id"
    SUPERSEDED = "a newer subscription of the same process is known"
    NOT_A_REPLICA = "the follower has no replica of the partition"
    LOG_AHEAD = "the follower's last leader epoch is unknown to the leader's log"
    BELOW_LOG_START = "the leader has no records from the follower's log end on any more"
    INVALID_ACK = "an acknowledgement is beyond what was sent, or contradicts itself"
    OVERLOADED = "a limit of the leader is reached"
    UNKNOWN_BROKER_EPOCH = "the leader's metadata does not have this registration of the follower"
    BAD_BATCHES = "batches do not continue the follower's log, or are damaged"
    STORAGE_FAILED = "the log of one side failed"
    STREAM_LOST = "the stream broke"


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The end (exclusive) of an epoch: no record of `epoch` at `end_offset` or beyond. None: the log has no epoch."""

    epoch: int | None
    end_offset: int


def compared(
    *,
    last_epoch: int | None,
    follower_end_offset: int,
    epoch_end: EpochEnd | None,
    hidden_from: int | None,
    log_start_offset: int,
    log_end_offset: int,
) -> EpochEnd | SubscriptionError | None:
    """Compare a follower's log with its leader's.

    Args:
        last_epoch: leader epoch of the follower's last record; None: no record.
        follower_end_offset: end of the follower's log (exclusive).
        epoch_end: the leader's largest epoch at or below `last_epoch`, and its end; None: `last_epoch` is above all
            epochs of the leader.
        hidden_from: first offset where that epoch may end, if damage of the leader's log hides its end; None: the end
            is known.
        log_start_offset: log start of the leader (inclusive).
        log_end_offset: log end of the leader (exclusive).

    Returns:
        None if the follower's log is a prefix of the leader's; the epoch and end to truncate to; or why the leader
        cannot say.
    """
    if follower_end_offset < log_start_offset:
        return SubscriptionError.BELOW_LOG_START
    if last_epoch is None:
        # Nothing to compare: a log without records is a prefix unless it begins beyond the leader's end.
        return EpochEnd(None, log_end_offset) if follower_end_offset > log_end_offset else None
    if epoch_end is None:
        return SubscriptionError.LOG_AHEAD
    if hidden_from is not None and (epoch_end.epoch != last_epoch or hidden_from < follower_end_offset):
        # The damage may hide records of a later epoch. A truncation could leave the follower a record of another
        # history there.
        return SubscriptionError.STORAGE_FAILED
    if epoch_end.epoch != last_epoch or epoch_end.end_offset < follower_end_offset:
        return epoch_end
    return None


def truncation_offset(*, leader_end: EpochEnd, own_end: EpochEnd | None, log_end_offset: int) -> int:
    """Return the offset to truncate a follower's log to; then the follower asks again.

    If both logs have the epoch, they agree up to the lower of its ends. If the follower lacks it, only older epochs can
    agree, and the next round compares the last of those.

    Args:
        leader_end: the leader's largest epoch at or below the follower's last one, and its end.
        own_end: the follower's largest epoch at or below that one, and its end; None: that epoch is above all of the
            follower's.
        log_end_offset: log end of the follower (exclusive).
    """
    bound = leader_end.end_offset if own_end is None else min(leader_end.end_offset, own_end.end_offset)
    return min(bound, log_end_offset)
