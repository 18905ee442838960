# SPDX-License-Identifier: Apache-2.0
"""Every reason for which Lograft refuses a request or fails, and how a client reacts.

It mirrors `lograft.v1.ErrorCode` by name (without the prefix) and number; a test compares them. It imports no protobuf, so that
pure cores may use it. One table has the client's reaction:

* retriable: the same request may succeed later. A client tries again within its own deadline. It retries an append that failed
  with NOT_ENOUGH_REPLICAS_AFTER_APPEND only under the same producer id, epoch and sequence.
* refresh metadata: the client's view of leaders or topics is stale. It fetches metadata before anything else. If the code is
  not retriable (unknown topic), it asks once more and then reports the error.
* neither: the error is fatal, and the client reports it to the caller at once.

Source: proto/lograft/v1/errors.proto.
"""

from __future__ import annotations

import enum


class ErrorCode(enum.IntEnum):
    """Reason of a refusal or failure. errors.proto explains each one."""

    UNSPECIFIED = 0
    INTERNAL = 1
    INVALID_REQUEST = 2
    WRONG_CLUSTER = 3
    UNKNOWN_TOPIC = 4
    UNKNOWN_PARTITION = 5
    INVALID_TOPIC_NAME = 6
    TOPIC_ALREADY_EXISTS = 7
    INVALID_PARTITION_COUNT = 8
    INVALID_REPLICATION_FACTOR = 9
    INVALID_CONFIG = 10
    NOT_LEADER = 11
    LEADER_NOT_AVAILABLE = 12
    NOT_CONTROLLER = 13
    BROKER_FENCED = 14
    STALE_BROKER_EPOCH = 15
    DUPLICATE_BROKER = 16
    MESSAGE_TOO_LARGE = 17
    CORRUPT_BATCH = 18
    INVALID_BATCH = 19
    UNSUPPORTED_FORMAT = 20
    INVALID_ACKS = 21
    OFFSET_OUT_OF_RANGE = 22
    DATA_LOSS = 23
    OUT_OF_ORDER_SEQUENCE = 24
    PRODUCER_FENCED = 25
    OUTCOME_UNKNOWN = 26
    TIMED_OUT = 27
    OVERLOADED = 28
    STORAGE_FAILED = 29
    SHUTTING_DOWN = 30
    FENCED_EPOCH = 31
    QUORUM_UNAVAILABLE = 32
    INVALID_ROUTE = 33
    METADATA_NOT_REACHED = 34
    NOT_ENOUGH_BROKERS = 35
    LIMIT_EXCEEDED = 36
    TRANSACTION_COORDINATOR_FENCED = 37
    NOT_ENOUGH_REPLICAS = 38
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 39
    OFFSET_NOT_AVAILABLE = 40
    COORDINATOR_LOADING = 41
    NOT_COORDINATOR = 42
    UNKNOWN_MEMBER = 43
    FENCED_MEMBER_EPOCH = 44
    STALE_MEMBER_EPOCH = 45
    GROUP_NOT_FOUND = 46
    GROUP_NOT_EMPTY = 47
    INSTANCE_IN_USE = 48
    INSTANCE_FENCED = 49
    INVALID_PATTERN = 50
    UNKNOWN_ASSIGNOR = 51
    PROCESSING_LIMIT_EXCEEDED = 52
    REQUEST_SUPERSEDED = 53
    GROUP_SUBSCRIBED = 54
    INGEST_NOT_FOUND = 55
    INGEST_FENCED = 56
    INGEST_COMMITTED = 57
    INGEST_ABORTED = 58
    INGEST_CONFLICT = 59
    INGEST_PUBLISHING = 60
    INGEST_INCOMPLETE = 61
    OFFSETS_PENDING = 62

    @property
    def retriable(self) -> bool:
        """True when the same request may succeed later."""
        return self in _RETRIABLE

    @property
    def refresh_metadata(self) -> bool:
        """True when the client should fetch metadata before it continues."""
        return self in _REFRESH_METADATA

    @property
    def fatal(self) -> bool:
        """True when neither a retry nor new metadata can help."""
        return not self.retriable and not self.refresh_metadata

    @classmethod
    def from_number(cls, number: int) -> ErrorCode:
        """Return the code for a number from the wire; INTERNAL for one that this version does not know."""
        try:
            return cls(number)
        except ValueError:
            return cls.INTERNAL

    @classmethod
    def from_reason(cls, reason: str) -> ErrorCode:
        """Return the code for the `reason` of an ErrorInfo; INTERNAL for one that this version does not know."""
        return cls.__members__.get(reason, cls.INTERNAL)


_RETRIABLE = frozenset(
    {
        ErrorCode.NOT_LEADER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.BROKER_FENCED,
        ErrorCode.DUPLICATE_BROKER,
        ErrorCode.TIMED_OUT,
        ErrorCode.OVERLOADED,
        ErrorCode.STORAGE_FAILED,
        ErrorCode.SHUTTING_DOWN,
        ErrorCode.FENCED_EPOCH,
        ErrorCode.QUORUM_UNAVAILABLE,
        ErrorCode.METADATA_NOT_REACHED,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOADING,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.INSTANCE_IN_USE,
        ErrorCode.INGEST_PUBLISHING,
        ErrorCode.OFFSETS_PENDING,
    }
)

_REFRESH_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC,
        ErrorCode.UNKNOWN_PARTITION,
        ErrorCode.NOT_LEADER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.BROKER_FENCED,
        ErrorCode.STORAGE_FAILED,
        ErrorCode.SHUTTING_DOWN,
        ErrorCode.FENCED_EPOCH,
    }
)
