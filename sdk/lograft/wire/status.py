# SPDX-License-Identifier: Apache-2.0
"""Failures of whole calls, both ways: a gRPC status with `google.rpc.ErrorInfo` and typed details.

Servers make a status with `abort_status` and pass it to `context.abort_with_status`. Clients read it with `parse_rpc_error`.
Law: one complete table maps each `ErrorCode` to a gRPC status code. The `ErrorCode` (ErrorInfo.reason, domain "lograft") says
what happened. The gRPC code serves people, and clients that know nothing of Lograft. A failure of one partition in a stream or
a list is a `PartitionError` message instead.
Source: docs/clients.md, "Errors"; AIP-193.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError, Message

from lograft.v1.errors_pb2 import LeaderHint, ReadableRange
from lograft.v1.log_pb2 import AppendResponse
from lograft.wire import rpc_details
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_STATUS_DETAIL_BYTES, MAX_STATUS_MESSAGE_BYTES
from lograft.wire.rpc_details import Detail

DOMAIN: Final = "lograft"
"""`domain` of every ErrorInfo."""

DETAILS_KEY: Final = "grpc-status-details-bin"
"""Trailer that carries the packed google.rpc.Status."""

STATUS_CODES: Final[Mapping[ErrorCode, grpc.StatusCode]] = {
    ErrorCode.UNSPECIFIED: grpc.StatusCode.UNKNOWN,
    ErrorCode.INTERNAL: grpc.StatusCode.INTERNAL,
    ErrorCode.INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.WRONG_CLUSTER: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.UNKNOWN_TOPIC: grpc.StatusCode.NOT_FOUND,
    ErrorCode.UNKNOWN_PARTITION: grpc.StatusCode.NOT_FOUND,
    ErrorCode.INVALID_TOPIC_NAME: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.TOPIC_ALREADY_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    ErrorCode.INVALID_PARTITION_COUNT: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.INVALID_REPLICATION_FACTOR: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.INVALID_CONFIG: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.NOT_LEADER: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.LEADER_NOT_AVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.NOT_CONTROLLER: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.BROKER_FENCED: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.STALE_BROKER_EPOCH: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.DUPLICATE_BROKER: grpc.StatusCode.ALREADY_EXISTS,
    ErrorCode.MESSAGE_TOO_LARGE: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.CORRUPT_BATCH: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.INVALID_BATCH: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.UNSUPPORTED_FORMAT: grpc.StatusCode.UNIMPLEMENTED,
    ErrorCode.INVALID_ACKS: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.OFFSET_OUT_OF_RANGE: grpc.StatusCode.OUT_OF_RANGE,
    ErrorCode.DATA_LOSS: grpc.StatusCode.DATA_LOSS,
    ErrorCode.OUT_OF_ORDER_SEQUENCE: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.PRODUCER_FENCED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.OUTCOME_UNKNOWN: grpc.StatusCode.UNKNOWN,
    ErrorCode.TIMED_OUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorCode.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.STORAGE_FAILED: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.SHUTTING_DOWN: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.FENCED_EPOCH: grpc.StatusCode.ABORTED,
    ErrorCode.QUORUM_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.INVALID_ROUTE: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.METADATA_NOT_REACHED: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorCode.NOT_ENOUGH_BROKERS: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.LIMIT_EXCEEDED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.NOT_ENOUGH_REPLICAS: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.OFFSET_NOT_AVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.COORDINATOR_LOADING: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.NOT_COORDINATOR: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.UNKNOWN_MEMBER: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.FENCED_MEMBER_EPOCH: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.STALE_MEMBER_EPOCH: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.GROUP_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorCode.GROUP_NOT_EMPTY: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.INSTANCE_IN_USE: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.INSTANCE_FENCED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.INVALID_PATTERN: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.UNKNOWN_ASSIGNOR: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.PROCESSING_LIMIT_EXCEEDED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.REQUEST_SUPERSEDED: grpc.StatusCode.ABORTED,
    ErrorCode.GROUP_SUBSCRIBED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.INGEST_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorCode.INGEST_FENCED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.INGEST_COMMITTED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.INGEST_ABORTED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.INGEST_CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.INGEST_PUBLISHING: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.INGEST_INCOMPLETE: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.OFFSETS_PENDING: grpc.StatusCode.UNAVAILABLE,
}
"""gRPC status code of every error code."""

_LEFT_OUT = "details_left_out"
_MessageT = TypeVar("_MessageT", bound=Message)


@dataclass(frozen=True)
class RichStatus(grpc.Status):
    """A status for `context.abort_with_status` of both gRPC stacks.

    Attributes:
        code: gRPC status code.
        details: text for people.
        trailing_metadata: the packed google.rpc.Status.
    """

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteStatus:
    """What the status of a failed call says.

    Attributes:
        code: the reason; None when the peer gave none. Then the transport failed, or a server in between that is not Lograft's.
        grpc_code: gRPC status code.
        message: text for people.
        retry_after_ms: milliseconds to wait before a retry; None without advice.
        leader: the leader, with NOT_LEADER or NOT_CONTROLLER; None if it is not known.
        readable_range: the readable offsets, with OFFSET_OUT_OF_RANGE.
        metadata: further facts as text.
        append_response: what an Append had appended before it failed.
    """

    code: ErrorCode | None
    grpc_code: grpc.StatusCode
    message: str
    retry_after_ms: int | None = None
    leader: LeaderHint | None = None
    readable_range: ReadableRange | None = None
    metadata: Mapping[str, str]
    append_response: AppendResponse | None = None


def cut_message(message: str) -> str:
    """Return the start of a text for people: whole characters, at most `MAX_STATUS_MESSAGE_BYTES` of UTF-8."""
    encoded = message.encode(errors="replace")
    return encoded[:MAX_STATUS_MESSAGE_BYTES].decode(errors="ignore")


def abort_status(
    code: ErrorCode,
    message: str,
    *,
    metadata: Mapping[str, str] | None = None,
    retry_after_ms: int | None = None,
    leader: LeaderHint | None = None,
    readable_range: ReadableRange | None = None,
    extra_detail: Message | None = None,
) -> RichStatus:
    """Return the status of a failed call.

    Args:
        code: the reason.
        message: text for people: what happened and what to do. `cut_message` cuts it.
        metadata: further facts as text.
        retry_after_ms: milliseconds to wait before a retry, at least 0.
        leader: the leader, if it is known.
        readable_range: the readable offsets.
        extra_detail: one more message, such as AppendResponse.

    Returns:
        The status. It leaves out details beyond `MAX_STATUS_DETAIL_BYTES`, and names them in the ErrorInfo under
        `details_left_out`. A peer would refuse trailers above `MAX_STATUS_METADATA_BYTES`, and with them the whole status.
    """
    message = cut_message(message)
    wanted: list[Detail] = []
    if retry_after_ms is not None:
        wanted.append(Detail(rpc_details.RETRY_INFO_TYPE, rpc_details.encode_retry_info(retry_after_ms)))
    wanted += [
        Detail(detail.DESCRIPTOR.full_name, detail.SerializeToString())
        for detail in (leader, readable_range, extra_detail)
        if detail is not None
    ]
    facts = dict(metadata or {})
    room_bytes = MAX_STATUS_DETAIL_BYTES - len(rpc_details.encode_error_info(code.name, DOMAIN, facts))
    if room_bytes < 0:
        room_bytes += len(rpc_details.encode_error_info("", "", facts))
        facts = {_LEFT_OUT: "metadata"}
    details: list[Detail] = []
    for detail in wanted:
        if len(detail.value) <= room_bytes:
            room_bytes -= len(detail.value)
            details.append(detail)
        else:
            facts[_LEFT_OUT] = ", ".join(filter(None, (facts.get(_LEFT_OUT), detail.type_name)))
    info = Detail(rpc_details.ERROR_INFO_TYPE, rpc_details.encode_error_info(code.name, DOMAIN, facts))
    status_code = STATUS_CODES[code]
    packed = rpc_details.encode_status(status_code.value[0], message, [info, *details])
    return RichStatus(status_code, message, ((DETAILS_KEY, packed),))


def parse_rpc_error(error: grpc.RpcError) -> RemoteStatus:
    """Read the status of a failed call, of either gRPC stack.

    It never fails: details that cannot be read count as absent.
    """
    grpc_code = error.code()
    message = error.details() or ""
    metadata: Mapping[str, str] = {}
    code: ErrorCode | None = None
    found: dict[str, bytes] = {}
    trailers = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    for key, value in trailers:
        if key == DETAILS_KEY and isinstance(value, bytes):
            found = _details_by_type(value)
    info = _error_info(found.get(rpc_details.ERROR_INFO_TYPE))
    if info is not None and info.domain == DOMAIN:
        code = ErrorCode.from_reason(info.reason)
        metadata = info.metadata
    return RemoteStatus(
        code=code,
        grpc_code=grpc_code,
        message=message,
        retry_after_ms=_retry_after_ms(found.get(rpc_details.RETRY_INFO_TYPE)),
        leader=_parse(LeaderHint, found),
        readable_range=_parse(ReadableRange, found),
        metadata=metadata,
        append_response=_parse(AppendResponse, found),
    )


def _details_by_type(packed: bytes) -> dict[str, bytes]:
    try:
        return dict(rpc_details.decode_status(packed).details)
    except ValueError:
        return {}


def _error_info(value: bytes | None) -> rpc_details.ErrorInfo | None:
    try:
        return None if value is None else rpc_details.decode_error_info(value)
    except ValueError:
        return None


def _retry_after_ms(value: bytes | None) -> int | None:
    try:
        return None if value is None else rpc_details.decode_retry_info(value)
    except ValueError:
        return None


def _parse(message_type: type[_MessageT], found: Mapping[str, bytes]) -> _MessageT | None:
    value = found.get(message_type.DESCRIPTOR.full_name)
    try:
        return None if value is None else message_type.FromString(value)
    except DecodeError:
        return None
