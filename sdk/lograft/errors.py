# SPDX-License-Identifier: Apache-2.0
"""Every exception that the SDK raises.

    LograftError                     .code says why, .retry_after_ms when to try again
    +-- RetriableError               may work later; the client has already tried until its own limit
    |   +-- NoBrokerError            no broker answered at any of the addresses
    |   +-- RequestTimeoutError      the time that was given passed (also a TimeoutError)
    |   +-- UnreachableError         nothing that a consumer is assigned could be fetched, .troubles says why
    |   +-- BufferTimeoutError       the producer's buffer stayed full for the delivery timeout
    |   +-- NotLeaderError           leadership moves
    |   +-- LeaderNotAvailableError  the partition has no leader
    |   +-- NotEnoughReplicasError   too few replicas are in sync; nothing was appended
    |   +-- NotEnoughReplicasAfterAppendError  they became too few while the records waited for them
    |   +-- OffsetNotAvailableError  the leader cannot tell the latest offset now
    |   +-- OverloadedError          a limit of the server is reached
    |   +-- QuorumUnavailableError   the metadata quorum has no leader
    |   +-- ServerUnavailableError   other passing troubles of a server
    +-- FatalError                   the same call will fail again
    |   +-- UsageError               misuse found in this process (also a ValueError)
    |   |   +-- InvalidSettingError  a setting is out of range
    |   |   +-- InvalidAcksError     acks is not "all", "leader" or "none"
    |   |   +-- RecordTooLargeError  a record is over the limit of its topic
    |   |   +-- ClientClosedError    the client was closed
    |   |   +-- ForkedClientError    the client belongs to the process that this one was forked from
    |   |   +-- NotAssignedError     the consumer does not have this partition
    |   |   +-- MissingExtraError    an optional dependency is not installed
    |   +-- RefusedError             a server refused
    |   |   +-- WrongClusterError
    |   |   +-- UnknownTopicError
    |   |   |   +-- UnknownPartitionError
    |   |   +-- TopicAlreadyExistsError
    |   |   +-- InvalidRequestError  topic names, counts, configs, replication factors
    |   |   +-- BatchRefusedError    too large, corrupt or malformed
    |   |   +-- OffsetOutOfRangeError  .log_start_offset, .high_watermark
    |   +-- CorruptDataError         bytes that a broker sent do not match their checksum or format
    |   +-- DataLossError            the records are damaged and lost on every replica
    |   +-- OutcomeUnknownError      it may or may not have taken effect
    |   +-- ProtocolError            a server broke the protocol, or it is no Lograft server
    +-- DeliveryError                flush(): batches failed, .failures says which

Owns the tree and the table from error codes to classes. Must not import gRPC: `lograft._client.transport` reads statuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lograft.wire.codes import ErrorCode


class LograftError(Exception):
    """Root of the tree.

    Attributes:
        code: the reason, one of the protocol's codes.
        message: what happened and what to do.
        retry_after_ms: milliseconds that the server asks to wait; None: no advice.
    """

    default_code: ErrorCode = ErrorCode.INTERNAL

    def __init__(self, message: str, *, code: ErrorCode | None = None, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = self.default_code if code is None else code
        self.retry_after_ms = retry_after_ms

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only fields survive a pickle: PySpark carries exceptions between processes.
        return (_revive, (type(self), self.args, self.__dict__))


def _revive(kind: type[LograftError], args: tuple[object, ...], state: dict[str, object]) -> LograftError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class RetriableError(LograftError):
    """May work later; the client has already tried until its own limit."""

    default_code = ErrorCode.TIMED_OUT


class NoBrokerError(RetriableError):
    """No broker answered at any of the addresses."""


class RequestTimeoutError(RetriableError, TimeoutError):
    """The time that was given passed."""


class BufferTimeoutError(RetriableError, TimeoutError):
    """The producer's buffer stayed full for the delivery timeout."""


class NotLeaderError(RetriableError):
    """The broker does not lead the partition."""

    default_code = ErrorCode.NOT_LEADER


class LeaderNotAvailableError(RetriableError):
    """The partition has no leader at the moment."""

    default_code = ErrorCode.LEADER_NOT_AVAILABLE


class NotEnoughReplicasError(RetriableError):
    """Fewer replicas are in sync than min.insync.replicas asks for; nothing was appended."""

    default_code = ErrorCode.NOT_ENOUGH_REPLICAS


class NotEnoughReplicasAfterAppendError(RetriableError):
    """The in-sync replicas became too few while appended records waited for them.

    The records may still be committed. Producers send them again only where the broker recognises them.
    """

    default_code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


class OffsetNotAvailableError(RetriableError):
    """The leader cannot tell the latest offset: it is new, or has not heard from the controller for a session."""

    default_code = ErrorCode.OFFSET_NOT_AVAILABLE


class OverloadedError(RetriableError):
    """A limit of the server is reached."""

    default_code = ErrorCode.OVERLOADED


class QuorumUnavailableError(RetriableError):
    """The metadata quorum has no leader at the moment, or it cannot reach a majority."""

    default_code = ErrorCode.QUORUM_UNAVAILABLE


class ServerUnavailableError(RetriableError):
    """Other passing troubles of a server."""

    default_code = ErrorCode.SHUTTING_DOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTrouble:
    """Why nothing of a partition can be fetched at the moment.

    Attributes:
        topic: topic name.
        partition: partition, from 0.
        leader_id: node id of its leader, as far as is known; None: it has none.
        address: host:port that it is fetched from, or was last; None: none yet.
        since_ms: since when nothing comes, in milliseconds since 1970-01-01 UTC.
        duration_ms: milliseconds from then to the moment of this report.
        waits_for: what it waits for, as text.
        error: the last failure; None: none yet.
    """

    topic: str
    partition: int
    leader_id: int | None
    address: str | None
    since_ms: int
    duration_ms: int
    waits_for: str
    error: LograftError | None

    def __str__(self) -> str:
        why = "" if self.error is None else f" ({self.error.message})"
        return f"{self.topic}-{self.partition} waits for {self.waits_for}{why}"


class UnreachableError(RetriableError, TimeoutError):
    """Nothing that a consumer is assigned could be fetched for `unreachable_timeout_ms`. It goes on trying: poll again.

    Attributes:
        troubles: the first 100 partitions, those that have waited longest first.
        partition_count: number of partitions that are assigned and give nothing: all.
    """

    def __init__(self, troubles: Sequence[PartitionTrouble], *, partition_count: int, duration_ms: int) -> None:
        more = f", and {partition_count - 1} more partitions" if partition_count > 1 else ""
        super().__init__(
            f"nothing could be fetched for {duration_ms} ms: {troubles[0]}{more}; the consumer goes on trying"
        )
        self.troubles = tuple(troubles)
        self.partition_count = partition_count


class FatalError(LograftError):
    """The same call will fail again."""


class StaleMetadataWarning(UserWarning):
    """An answer may be behind: the metadata quorum has no leader, and a broker answered from its own image."""


class UsageError(FatalError, ValueError):
    """Misuse found in this process; nothing was sent."""

    default_code = ErrorCode.INVALID_REQUEST


class InvalidSettingError(UsageError):
    """A setting is out of range or contradicts another."""


class InvalidAcksError(InvalidSettingError):
    """The acks value is not "all", "leader" or "none"."""

    default_code = ErrorCode.INVALID_ACKS


class RecordTooLargeError(UsageError):
    """A record is over the limit of its topic or of the producer's buffer."""

    default_code = ErrorCode.MESSAGE_TOO_LARGE


class ClientClosedError(UsageError):
    """The client was closed."""


class ForkedClientError(UsageError):
    """The client was made before this process was forked, and its connections are the parent's: make a new one in the child."""


class NotAssignedError(UsageError):
    """The consumer does not have this partition: call assign() first."""


class MissingExtraError(UsageError):
    """An optional dependency is not installed; the message names the extra."""


class RefusedError(FatalError):
    """A server refused."""

    default_code = ErrorCode.INVALID_REQUEST


class WrongClusterError(RefusedError):
    """The server belongs to another cluster than the one that was asked for."""

    default_code = ErrorCode.WRONG_CLUSTER


class UnknownTopicError(RefusedError):
    """No topic of this name."""

    default_code = ErrorCode.UNKNOWN_TOPIC


class UnknownPartitionError(UnknownTopicError):
    """The topic has no such partition."""

    default_code = ErrorCode.UNKNOWN_PARTITION


class TopicAlreadyExistsError(RefusedError):
    """A topic of this name exists."""

    default_code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidRequestError(RefusedError):
    """A name, count, config or other field is not valid."""


class BatchRefusedError(RefusedError):
    """A batch is too large, corrupt or malformed."""

    default_code = ErrorCode.INVALID_BATCH


class OffsetOutOfRangeError(RefusedError):
    """The offset is below the log start or above the high watermark.

    Attributes:
        log_start_offset: first readable offset, inclusive; None: not told.
        high_watermark: end of the readable offsets, exclusive; None: not told.
    """

    default_code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | None = None,
        retry_after_ms: int | None = None,
        log_start_offset: int | None = None,
        high_watermark: int | None = None,
    ) -> None:
        super().__init__(message, code=code, retry_after_ms=retry_after_ms)
        self.log_start_offset = log_start_offset
        self.high_watermark = high_watermark


class CorruptDataError(FatalError):
    """Bytes that a broker sent do not match their checksum or format."""

    default_code = ErrorCode.CORRUPT_BATCH


class DataLossError(FatalError):
    """The records of this range are damaged and lost on every replica."""

    default_code = ErrorCode.DATA_LOSS


class OutcomeUnknownError(FatalError):
    """It is unknown whether the request took effect."""

    default_code = ErrorCode.OUTCOME_UNKNOWN


class ProtocolError(FatalError):
    """A server broke the protocol, or it is no Lograft server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailure:
    """A batch that was not acknowledged. With an OUTCOME_UNKNOWN or TIMED_OUT error it may have been appended."""

    topic: str
    partition: int
    record_count: int
    error: LograftError


class DeliveryError(LograftError):
    """Batches failed since the last flush.

    Attributes:
        failures: the first 1,000 failed batches, in the order of their failure.
        failed_record_count: records in all failed batches.
    """

    def __init__(self, failures: Sequence[BatchFailure], *, failed_record_count: int) -> None:
        first = failures[0]
        super().__init__(
            f"{failed_record_count} records were not delivered; "
            f"first: {first.topic}-{first.partition}: {first.error.message}",
            code=first.error.code,
        )
        self.failures = tuple(failures)
        self.failed_record_count = failed_record_count


_BY_CODE: Final[dict[ErrorCode, type[LograftError]]] = {
    ErrorCode.INVALID_REQUEST: InvalidRequestError,
    ErrorCode.WRONG_CLUSTER: WrongClusterError,
    ErrorCode.UNKNOWN_TOPIC: UnknownTopicError,
    ErrorCode.UNKNOWN_PARTITION: UnknownPartitionError,
    ErrorCode.INVALID_TOPIC_NAME: InvalidRequestError,
    ErrorCode.TOPIC_ALREADY_EXISTS: TopicAlreadyExistsError,
    ErrorCode.INVALID_PARTITION_COUNT: InvalidRequestError,
    ErrorCode.INVALID_REPLICATION_FACTOR: InvalidRequestError,
    ErrorCode.INVALID_CONFIG: InvalidRequestError,
    ErrorCode.NOT_LEADER: NotLeaderError,
    ErrorCode.LEADER_NOT_AVAILABLE: LeaderNotAvailableError,
    ErrorCode.MESSAGE_TOO_LARGE: BatchRefusedError,
    ErrorCode.CORRUPT_BATCH: BatchRefusedError,
    ErrorCode.INVALID_BATCH: BatchRefusedError,
    ErrorCode.UNSUPPORTED_FORMAT: BatchRefusedError,
    ErrorCode.INVALID_ACKS: InvalidRequestError,
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRangeError,
    ErrorCode.DATA_LOSS: DataLossError,
    ErrorCode.OUTCOME_UNKNOWN: OutcomeUnknownError,
    ErrorCode.TIMED_OUT: RequestTimeoutError,
    ErrorCode.OVERLOADED: OverloadedError,
    ErrorCode.QUORUM_UNAVAILABLE: QuorumUnavailableError,
    ErrorCode.NOT_ENOUGH_REPLICAS: NotEnoughReplicasError,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: NotEnoughReplicasAfterAppendError,
    ErrorCode.OFFSET_NOT_AVAILABLE: OffsetNotAvailableError,
}


def error_for(code: ErrorCode, message: str, *, retry_after_ms: int | None = None) -> LograftError:
    """Make the exception of a code that a server sent.

    Args:
        code: the reason.
        message: the server's text.
        retry_after_ms: the server's advice; None: none.
    """
    kind = _BY_CODE.get(code)
    if kind is None:
        kind = ServerUnavailableError if code.retriable else RefusedError
    return kind(message, code=code, retry_after_ms=retry_after_ms)
