# SPDX-License-Identifier: Apache-2.0
"""Maps a failure to a gRPC status for a whole call, or to a PartitionError for one partition.

Owns both mappings and nothing else.
"""

from __future__ import annotations

from google.protobuf.message import Message
from lograft.v1 import errors_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.status import RichStatus, abort_status, cut_message

from brokerd.failure import Failure, LeaderPlace, ReadableOffsets


def leader_hint(place: LeaderPlace) -> errors_pb2.LeaderHint:
    """Return a leader's place as a message."""
    return errors_pb2.LeaderHint(
        leader_id=place.leader_id, leader_epoch=place.leader_epoch, host=place.host, port=place.port
    )


def readable_range(offsets: ReadableOffsets) -> errors_pb2.ReadableRange:
    """Return readable offsets as a message."""
    return errors_pb2.ReadableRange(log_start_offset=offsets.log_start_offset, high_watermark=offsets.high_watermark)


def partition_error(failure: Failure) -> errors_pb2.PartitionError:
    """Return a failure as the error of one partition in a stream or a list."""
    error = errors_pb2.PartitionError(
        code=errors_pb2.ErrorCode.ValueType(int(failure.code)),
        message=cut_message(failure.message),
        retry_after_ms=failure.retry_after_ms,
    )
    if failure.leader is not None:
        error.leader.CopyFrom(leader_hint(failure.leader))
    if failure.readable_range is not None:
        error.readable_range.CopyFrom(readable_range(failure.readable_range))
    return error


def rich_status(failure: Failure, *, extra_detail: Message | None = None) -> RichStatus:
    """Return a failure as the status of a whole call."""
    return abort_status(
        failure.code,
        failure.message,
        retry_after_ms=failure.retry_after_ms or None,
        leader=None if failure.leader is None else leader_hint(failure.leader),
        readable_range=None if failure.readable_range is None else readable_range(failure.readable_range),
        extra_detail=extra_detail,
    )


def remote_failure(error: errors_pb2.PartitionError) -> Failure:
    """Return another server's refusal as the failure of a call to this server."""
    leader, offsets = error.leader, error.readable_range
    code = ErrorCode.from_number(error.code)
    return Failure(
        code=ErrorCode.INTERNAL if code is ErrorCode.UNSPECIFIED else code,
        message=error.message,
        retry_after_ms=error.retry_after_ms,
        leader=LeaderPlace(
            leader_id=leader.leader_id, leader_epoch=leader.leader_epoch, host=leader.host, port=leader.port
        )
        if error.HasField("leader")
        else None,
        readable_range=ReadableOffsets(log_start_offset=offsets.log_start_offset, high_watermark=offsets.high_watermark)
        if error.HasField("readable_range")
        else None,
    )
