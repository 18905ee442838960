# SPDX-License-Identifier: Apache-2.0
"""Every exception that the SDK raises.

    LograftError                     .code says why, .retry_after_ms when to try again
    +-- RetriableError               may work later; the client has already tried until its own limit
    |   +-- NoBrokerError            no broker answered at any of the addresses
    |   +-- RequestTimeoutError      the time of the call is up (also a TimeoutError)
    |   +-- TransactionFailedError   a transaction with offsets was rolled back: poll again
    |   +-- UnreachableError         no assigned partition could be fetched; .troubles says why
    |   +-- IsolationTimeoutError    a decision was not published in all its partitions in time: poll again
    |   +-- BufferTimeoutError       the producer's buffer stayed full for the delivery timeout
    |   +-- NotLeaderError           the broker does not lead the partition
    |   +-- LeaderNotAvailableError  the partition has no leader
    |   +-- NotEnoughReplicasError   too few replicas are in sync; nothing was appended
    |   +-- NotEnoughReplicasAfterAppendError  too few stayed in sync until the appended records were committed
    |   +-- OffsetNotAvailableError  the leader does not know the latest offset now
    |   +-- CoordinatorNotAvailableError  the coordinator of the group loads, moves, or has no leader
    |   +-- InstanceInUseError       another live process is the static member
    |   +-- OverloadedError          a limit of the server is reached
    |   +-- QuorumUnavailableError   the metadata quorum has no leader
    |   +-- ServerUnavailableError   another temporary failure of a server
    +-- FatalError                   the same call will fail again
    |   +-- UsageError               wrong use, found in this process (also a ValueError)
    |   |   +-- InvalidSettingError  a setting is out of range
    |   |   |   +-- InvalidAcksError     acks is not "all", "leader" or "none"
    |   |   +-- RecordTooLargeError  a record exceeds the limit of its topic
    |   |   +-- ClientClosedError    the client is closed
    |   |   +-- ForkedClientError    the client belongs to the parent of this forked process
    |   |   +-- NotAssignedError     the partition is not assigned to the consumer
    |   |   +-- MissingExtraError    an optional dependency is not installed
    |   |   +-- TransactionStateError  a transaction is used after its end, or while another one of its id is open
    |   |   |   +-- TransactionTopicsError  a large transaction meets a topic that its id has not used yet
    |   +-- RefusedError             a server refused the request
    |   |   +-- WrongClusterError
    |   |   +-- UnknownTopicError
    |   |   |   +-- UnknownPartitionError
    |   |   +-- TopicAlreadyExistsError
    |   |   +-- InvalidRequestError  a topic name, count, config or replication factor is not valid
    |   |   +-- BatchRefusedError    a batch is too large, corrupt or malformed
    |   |   +-- OffsetOutOfRangeError  .log_start_offset and .high_watermark say what is readable
    |   |   +-- MembershipLostError  the consumer is no member of its group, or does not hold the partition
    |   |   |   +-- InstanceFencedError  a newer process has taken over the instance id
    |   |   +-- OffsetsFencedError   another consumer has taken over a partition whose offsets are kept in a database
    |   |   +-- GroupNotFoundError   no group has this id
    |   |   +-- GroupNotEmptyError   the group has members
    |   |   +-- IngestNotFoundError  no ingest has this id
    |   |   +-- IngestFencedError    a later open has fenced this client
    |   |   +-- IngestCommittedError  the ingest is committed already
    |   |   +-- IngestAbortedError   the ingest was aborted
    |   |   +-- IngestConflictError  the ingest is known with other content
    |   |   +-- IngestIncompleteError  not everything of the manifest is sealed and staged
    |   +-- NoCommittedOffsetError   the group has no offset of the partition, and `reset` is "none"
    |   +-- DeserializationError     a deserializer failed; .topic, .partition and .offset say where
    |   +-- CorruptDataError         bytes from a broker do not match their checksum or format
    |   +-- DataLossError            the records are damaged and lost on every replica
    |   +-- OutcomeUnknownError      the request may or may not have taken effect
    |   +-- ProtocolError            the server broke the protocol, or is not a Lograft server
    +-- DeliveryError                batches failed before a flush() or close(); .failures lists them

This module owns the tree and the table from error codes to classes. It must not import gRPC: `lograft._client.transport` reads
statuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lograft.wire.codes import ErrorCode


class LograftError(Exception):
    """Base class of all errors of the SDK.

    Attributes:
        code: the reason, one of the protocol's codes.
        message: what happened and what to do.
        retry_after_ms: milliseconds after which the server asks the client to try again; None without such advice.
    """

    default_code: ErrorCode = ErrorCode.INTERNAL

    def __init__(self, message: str, *, code: ErrorCode | None = None, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.message: str = message
        self.code: ErrorCode = self.default_code if code is None else code
        self.retry_after_ms: int | None = retry_after_ms

    def __reduce__(self) -> tuple[object, ...]:
        # PySpark pickles exceptions to carry them between processes; keyword-only fields must survive that.
        return (_revive, (type(self), self.args, self.__dict__))


def _revive(kind: type[LograftError], args: tuple[object, ...], state: dict[str, object]) -> LograftError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class RetriableError(LograftError):
    """The call may work later. The client has already tried until its own limit."""

    default_code = ErrorCode.TIMED_OUT


class NoBrokerError(RetriableError):
    """No broker answered at any of the addresses."""


class RequestTimeoutError(RetriableError, TimeoutError):
    """The time of the call is up."""


class BufferTimeoutError(RetriableError, TimeoutError):
    """The producer's buffer stayed full for the delivery timeout."""


class NotLeaderError(RetriableError):
    """The broker does not lead the partition."""

    default_code = ErrorCode.NOT_LEADER


class LeaderNotAvailableError(RetriableError):
    """The partition has no leader at the moment."""

    default_code = ErrorCode.LEADER_NOT_AVAILABLE


class NotEnoughReplicasError(RetriableError):
    """Fewer replicas are in sync than `min.insync.replicas` requires. Nothing was appended."""

    default_code = ErrorCode.NOT_ENOUGH_REPLICAS


class NotEnoughReplicasAfterAppendError(RetriableError):
    """Too few replicas stayed in sync while appended records waited for their commit.

    The records may still be committed. A producer resends them only if it is idempotent, because then the broker recognises
    them.
    """

    default_code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


class OffsetNotAvailableError(RetriableError):
    """The leader does not know the latest offset: it is new, or has not heard from the controller for a whole session."""

    default_code = ErrorCode.OFFSET_NOT_AVAILABLE


class CoordinatorNotAvailableError(RetriableError):
    """The coordinator of the group is loading its state, has moved, or has no leader."""

    default_code = ErrorCode.COORDINATOR_LOADING


class InstanceInUseError(RetriableError):
    """Another live process is the static member with this instance id; `retry_after_ms` is the rest of its session."""

    default_code = ErrorCode.INSTANCE_IN_USE


class OverloadedError(RetriableError):
    """A limit of the server is reached."""

    default_code = ErrorCode.OVERLOADED


class QuorumUnavailableError(RetriableError):
    """The metadata quorum has no leader at the moment, or it cannot reach a majority."""

    default_code = ErrorCode.QUORUM_UNAVAILABLE


class ServerUnavailableError(RetriableError):
    """The server has another temporary failure."""

    default_code = ErrorCode.SHUTTING_DOWN


class TransactionFailedError(RetriableError):
    """A transaction with offsets (`lograft.offsets`) was rolled back, or the database did not say how it ended. Poll again.

    The consumer continues with the first record that is not in the database, so nothing is lost and nothing is stored twice.
    Causes: a deadlock, a serialization failure, a lock that was not free in time, a database that is away, records that are stored
    already or that were read before the consumer went back. The database's own error is the `__cause__`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTrouble:
    """Why nothing comes from a partition at the moment.

    Attributes:
        topic: topic name.
        partition: partition, from 0.
        leader_id: node id of the last known leader; None without a leader.
        address: host:port of the broker that serves the partition, or served it last; None before the first broker.
        since_ms: time since when nothing comes, in milliseconds since 1970-01-01 UTC.
        duration_ms: milliseconds from that time to this report.
        waits_for: what the partition waits for, as text.
        error: the last failure; None before the first.
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
    """No assigned partition gave anything for `unreachable_timeout_ms`. The consumer keeps trying: poll again.

    Attributes:
        troubles: the first 100 of these partitions, the longest wait first.
        partition_count: number of these partitions: all that the consumer fetches.
    """

    def __init__(self, troubles: Sequence[PartitionTrouble], *, partition_count: int, duration_ms: int) -> None:
        more = f", and {partition_count - 1} more partitions" if partition_count > 1 else ""
        super().__init__(
            f"nothing could be fetched for {duration_ms} ms: {troubles[0]}{more}; the consumer goes on trying"
        )
        self.troubles: tuple[PartitionTrouble, ...] = tuple(troubles)
        self.partition_count: int = partition_count


class IsolationTimeoutError(RetriableError, TimeoutError):
    """A consumer with `isolation="committed-together"` holds a partition for `isolation_timeout_ms`. It goes on waiting: poll again.

    The records belong to a decision of an ingest or transaction that is not published in all its partitions, or nobody could say
    that it is. Records of other partitions come with the next polls. Without the rest, they can be read with
    `isolation="committed"`.

    Attributes:
        topic: topic of the partition that is held.
        partition: the partition.
        offset: offset of the first record that is held. The position is at it.
    """

    def __init__(self, message: str, *, topic: str, partition: int, offset: int) -> None:
        super().__init__(message)
        self.topic: str = topic
        self.partition: int = partition
        self.offset: int = offset


class FatalError(LograftError):
    """The same call will fail again."""


class StaleMetadataWarning(UserWarning):
    """An answer may be out of date: the metadata quorum has no leader, so a broker answered from its own metadata image."""


class UsageError(FatalError, ValueError):
    """The program used the SDK wrongly. The client found this itself and sent nothing."""

    default_code = ErrorCode.INVALID_REQUEST


class InvalidSettingError(UsageError):
    """A setting is out of range or contradicts another."""


class InvalidAcksError(InvalidSettingError):
    """The acks value is not "all", "leader" or "none"."""

    default_code = ErrorCode.INVALID_ACKS


class RecordTooLargeError(UsageError):
    """A record exceeds the limit of its topic or of the producer's buffer."""

    default_code = ErrorCode.MESSAGE_TOO_LARGE


class ClientClosedError(UsageError):
    """The client is closed."""


class ForkedClientError(UsageError):
    """The client and its connections belong to the parent of this forked process. Make a new client in the child."""


class NotAssignedError(UsageError):
    """The partition is not assigned to the consumer: call assign() first."""


class MissingExtraError(UsageError):
    """An optional dependency is not installed; the message names the extra."""


class TransactionStateError(UsageError):
    """A transaction is used before its begin or after its end, or another one of the same id is open in this producer."""


class TransactionTopicsError(TransactionStateError):
    """A transaction that has sent more than 1,000 records or 1 MiB meets a topic that its id has not used in this producer yet.

    It must be aborted: leave its block. The next transaction of the id may send to the topic as well. Name all topics when the
    transaction is made (`topics=`) and this does not happen.
    """


class RefusedError(FatalError):
    """A server refused the request."""

    default_code = ErrorCode.INVALID_REQUEST


class WrongClusterError(RefusedError):
    """The server belongs to another cluster than `cluster_id` names."""

    default_code = ErrorCode.WRONG_CLUSTER


class UnknownTopicError(RefusedError):
    """No topic has this name."""

    default_code = ErrorCode.UNKNOWN_TOPIC


class UnknownPartitionError(UnknownTopicError):
    """The topic has no partition with this number."""

    default_code = ErrorCode.UNKNOWN_PARTITION


class TopicAlreadyExistsError(RefusedError):
    """A topic with this name exists already."""

    default_code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidRequestError(RefusedError):
    """A name, count, config or other field is not valid."""


class BatchRefusedError(RefusedError):
    """A batch is too large, corrupt or malformed."""

    default_code = ErrorCode.INVALID_BATCH


class MembershipLostError(RefusedError):
    """The consumer is no member of its group any more, or did not hold the partition at the epoch of the commit.

    Other members may process its records again from the last committed offsets.
    """

    default_code = ErrorCode.UNKNOWN_MEMBER


class InstanceFencedError(MembershipLostError):
    """A newer process has taken over the instance id of this static member."""

    default_code = ErrorCode.INSTANCE_FENCED


class OffsetsFencedError(RefusedError):
    """Another consumer has taken over a partition whose offset is in a database (`lograft.offsets`). Nothing was stored.

    In a group, poll again: the consumer hears what it has lost. With `assign`, end this consumer.

    Attributes:
        partitions: the partitions, as (topic, partition).
    """

    default_code = ErrorCode.STALE_MEMBER_EPOCH

    def __init__(self, message: str, *, partitions: Sequence[tuple[str, int]] = ()) -> None:
        super().__init__(message)
        self.partitions: tuple[tuple[str, int], ...] = tuple(partitions)


class GroupNotFoundError(RefusedError):
    """No group has this id."""

    default_code = ErrorCode.GROUP_NOT_FOUND


class GroupNotEmptyError(RefusedError):
    """The group has members, and only a group without members allows the request."""

    default_code = ErrorCode.GROUP_NOT_EMPTY


class IngestNotFoundError(RefusedError):
    """No ingest has this id: it was never opened, or was forgotten after its time."""

    default_code = ErrorCode.INGEST_NOT_FOUND


class IngestFencedError(RefusedError):
    """A later open of the ingest has fenced this client. Nothing of this client will be published."""

    default_code = ErrorCode.INGEST_FENCED


class IngestCommittedError(RefusedError):
    """The ingest is committed already, so it takes no more records and cannot be aborted."""

    default_code = ErrorCode.INGEST_COMMITTED


class IngestAbortedError(RefusedError):
    """The ingest was aborted: by a call, or because nobody touched it for its time to live. Nothing of it was published."""

    default_code = ErrorCode.INGEST_ABORTED


class IngestConflictError(RefusedError):
    """The ingest is known with other content: another manifest, other parts of an attempt, or another kind. Nothing was changed."""

    default_code = ErrorCode.INGEST_CONFLICT


class IngestIncompleteError(RefusedError):
    """An attempt of the manifest is not sealed, or not all of its records are staged. Nothing was published."""

    default_code = ErrorCode.INGEST_INCOMPLETE


class OffsetOutOfRangeError(RefusedError):
    """The offset is below the log start offset or above the high watermark.

    Attributes:
        log_start_offset: the first readable offset, inclusive; None if the server did not report it.
        high_watermark: the end of the readable offsets, exclusive; None if the server did not report it.
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
        self.log_start_offset: int | None = log_start_offset
        self.high_watermark: int | None = high_watermark


class NoCommittedOffsetError(FatalError):
    """The group has positively no offset of a partition, and the consumer's `reset` is "none": seek to where it should begin."""

    default_code = ErrorCode.OFFSET_OUT_OF_RANGE


class DeserializationError(FatalError):
    """A deserializer raised an error, which is the `__cause__`. The position stays at the record: seek past it to skip it.

    Attributes:
        topic: topic of the record.
        partition: its partition.
        offset: its offset.
        key: its key as bytes; None without one.
        value: its value as bytes; None for a tombstone.
    """

    default_code = ErrorCode.INVALID_REQUEST

    def __init__(
        self, message: str, *, topic: str, partition: int, offset: int, key: bytes | None, value: bytes | None
    ) -> None:
        super().__init__(message)
        self.topic: str = topic
        self.partition: int = partition
        self.offset: int = offset
        self.key: bytes | None = key
        self.value: bytes | None = value


class CorruptDataError(FatalError):
    """Bytes from a broker do not match their checksum or format."""

    default_code = ErrorCode.CORRUPT_BATCH


class DataLossError(FatalError):
    """The records of this range are damaged and lost on every replica."""

    default_code = ErrorCode.DATA_LOSS


class OutcomeUnknownError(FatalError):
    """The client does not know whether the request took effect."""

    default_code = ErrorCode.OUTCOME_UNKNOWN


class ProtocolError(FatalError):
    """The server broke the protocol, or is not a Lograft server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailure:
    """A batch that was not acknowledged. After an OUTCOME_UNKNOWN or TIMED_OUT error it may be in the log all the same."""

    topic: str
    partition: int
    record_count: int
    error: LograftError


class DeliveryError(LograftError):
    """Batches have failed since the last flush.

    Attributes:
        failures: the first 1,000 failed batches, in the order in which they failed.
        failed_record_count: number of records in all failed batches.
    """

    def __init__(self, failures: Sequence[BatchFailure], *, failed_record_count: int) -> None:
        first = failures[0]
        super().__init__(
            f"{failed_record_count} records were not delivered; "
            f"first: {first.topic}-{first.partition}: {first.error.message}",
            code=first.error.code,
        )
        self.failures: tuple[BatchFailure, ...] = tuple(failures)
        self.failed_record_count: int = failed_record_count


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
    ErrorCode.COORDINATOR_LOADING: CoordinatorNotAvailableError,
    ErrorCode.NOT_COORDINATOR: CoordinatorNotAvailableError,
    ErrorCode.UNKNOWN_MEMBER: MembershipLostError,
    ErrorCode.FENCED_MEMBER_EPOCH: MembershipLostError,
    ErrorCode.STALE_MEMBER_EPOCH: MembershipLostError,
    ErrorCode.GROUP_NOT_FOUND: GroupNotFoundError,
    ErrorCode.GROUP_NOT_EMPTY: GroupNotEmptyError,
    ErrorCode.INSTANCE_IN_USE: InstanceInUseError,
    ErrorCode.INSTANCE_FENCED: InstanceFencedError,
    ErrorCode.INVALID_PATTERN: InvalidRequestError,
    ErrorCode.UNKNOWN_ASSIGNOR: InvalidRequestError,
    ErrorCode.PROCESSING_LIMIT_EXCEEDED: MembershipLostError,
    ErrorCode.REQUEST_SUPERSEDED: MembershipLostError,
    ErrorCode.GROUP_SUBSCRIBED: GroupNotEmptyError,
    ErrorCode.INGEST_NOT_FOUND: IngestNotFoundError,
    ErrorCode.INGEST_FENCED: IngestFencedError,
    ErrorCode.INGEST_COMMITTED: IngestCommittedError,
    ErrorCode.INGEST_ABORTED: IngestAbortedError,
    ErrorCode.INGEST_CONFLICT: IngestConflictError,
    ErrorCode.INGEST_INCOMPLETE: IngestIncompleteError,
}


def error_for(code: ErrorCode, message: str, *, retry_after_ms: int | None = None) -> LograftError:
    """Return the exception for an error code of a server.

    Args:
        code: the reason.
        message: the server's text.
        retry_after_ms: milliseconds after which the server asks the client to try again; None without such advice.
    """
    kind = _BY_CODE.get(code)
    if kind is None:
        kind = ServerUnavailableError if code.retriable else RefusedError
    return kind(message, code=code, retry_after_ms=retry_after_ms)
