# SPDX-License-Identifier: Apache-2.0
"""What a client is told when a replica refuses a request. Pure translation."""

from __future__ import annotations

from typing import Final

from lograft.wire.codes import ErrorCode

from brokerd.failure import Failure, LeaderPlace, ReadableOffsets
from brokerd.partition.effects import EndService, LossReason
from storage.errors import DiskFailedError, DiskFullError, DiskSpaceLowError, StorageError

STOPPING: Final = "the broker is stopping"
"""Message for closing replicas at the end of the process."""

MOVED_AWAY: Final = "the replica was moved to other brokers"
"""Message for closing a replica that its partition no longer has."""

TOPIC_DELETED: Final = "the topic was deleted"
"""Message for closing the replicas of a deleted topic."""

SPACE_RETRY_MS: Final = 1_000
"""Retry advice, in milliseconds, for an append that found no space."""

HAND_OVER_RETRY_MS: Final = 100
"""Retry advice, in milliseconds, for an append that found no space, where another replica may lead soon."""

MOVE_RETRY_MS: Final = 50
"""Retry advice, in milliseconds, for an append during the last step of a move, which takes a few syncs."""

REPAIR_RETRY_MS: Final = 100
"""Retry advice, in milliseconds, for a read that met damage which another replica may not have."""

REPLICAS_RETRY_MS: Final = 250
"""Retry advice, in milliseconds, for an append with too few replicas in sync."""

_CODES: Final = {
    LossReason.NOT_LEADER: ErrorCode.NOT_LEADER,
    LossReason.NO_LEADER: ErrorCode.LEADER_NOT_AVAILABLE,
    LossReason.LEADER_EPOCH_MOVED: ErrorCode.NOT_LEADER,
    LossReason.STORAGE_FAILED: ErrorCode.STORAGE_FAILED,
}

_REMOVED_CODES: Final = {
    STOPPING: ErrorCode.SHUTTING_DOWN,
    MOVED_AWAY: ErrorCode.NOT_LEADER,
    TOPIC_DELETED: ErrorCode.UNKNOWN_TOPIC,
}
"""Codes for a removed replica, by the message with which it was closed."""


def append_failure(error: StorageError, partition: str, *, has_followers: bool) -> Failure:
    """Return why an append was refused; after a write error a part of it may be in the log.

    Args:
        error: the error.
        partition: name of the partition.
        has_followers: True if the leader resigns when there is too little space.
    """
    space_retry_ms = HAND_OVER_RETRY_MS if has_followers else SPACE_RETRY_MS
    if isinstance(error, DiskFailedError):
        return Failure(code=ErrorCode.STORAGE_FAILED, message=f"the log of {partition} failed")
    if isinstance(error, DiskFullError):
        message = "the disk of the broker is full: nothing was appended; reads and deletes still work"
        return Failure(code=ErrorCode.STORAGE_FAILED, message=message, retry_after_ms=space_retry_ms)
    retry_after_ms = space_retry_ms if isinstance(error, DiskSpaceLowError) else 0
    return Failure(code=error.code, message=client_text(error), retry_after_ms=retry_after_ms)


def moving_failure(partition: str) -> Failure:
    """Return the refusal of an append during the last step of a move between log directories; nothing was appended."""
    message = f"{partition} is just being switched to another log directory: nothing was appended, send it again"
    return Failure(code=ErrorCode.LEADER_NOT_AVAILABLE, message=message, retry_after_ms=MOVE_RETRY_MS)


def too_few_failure(partition: str) -> Failure:
    """Return the refusal for fewer in-sync replicas than `min.insync.replicas`; nothing was appended."""
    message = f"fewer replicas of {partition} are in sync than min.insync.replicas asks for: nothing was appended"
    return Failure(code=ErrorCode.NOT_ENOUGH_REPLICAS, message=message, retry_after_ms=REPLICAS_RETRY_MS)


def too_few_after_failure(partition: str) -> Failure:
    """Return the failure for records that are in the leader's log while too few replicas stayed in sync."""
    message = (
        f"fewer replicas of {partition} are in sync than min.insync.replicas asks for: "
        "the records are in the leader's log and may still be committed"
    )
    return Failure(code=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, message=message, retry_after_ms=REPLICAS_RETRY_MS)


def repairing_failure(partition: str) -> Failure:
    """Return the refusal for a range that is damaged here and that another replica will soon serve."""
    message = f"records of {partition} are damaged on this broker: another replica takes over, or they are repaired; ask again"
    return Failure(code=ErrorCode.LEADER_NOT_AVAILABLE, message=message, retry_after_ms=REPAIR_RETRY_MS)


def range_failure(offset: int, partition: str, readable: ReadableOffsets) -> Failure:
    """Return the refusal for an offset that cannot be read, with the readable range."""
    message = (
        f"offset {offset} of {partition} is not readable: "
        f"the log has {readable.log_start_offset} to {readable.high_watermark} (exclusive)"
    )
    return Failure(code=ErrorCode.OFFSET_OUT_OF_RANGE, message=message, readable_range=readable)


def end_code(effect: EndService) -> ErrorCode:
    """Return the error code for the end of a service."""
    code = _CODES.get(effect.reason)
    if code is not None:
        return code
    return _REMOVED_CODES.get(effect.message, ErrorCode.UNKNOWN_TOPIC)


def end_failure(effect: EndService, partition: str, leader: LeaderPlace | None) -> Failure:
    """Return why a service ended.

    Args:
        effect: the end.
        partition: topic and partition.
        leader: leader of the partition; sent only to a client that asked the wrong broker.
    """
    code = end_code(effect)
    return Failure(
        code=code,
        message=f"{partition}: {effect.message}",
        leader=leader if code is ErrorCode.NOT_LEADER else None,
    )


def client_text(error: StorageError) -> str:
    """Remove paths of this machine from the text; the log line keeps them."""
    text = str(error)
    return text.rsplit(": ", 1)[-1] if text.startswith("/") else text
