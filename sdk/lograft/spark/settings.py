# SPDX-License-Identifier: Apache-2.0
"""The settings of a read and a write of `format("lograft")`, after parsing.

This module owns the settings with their defaults and limits. They are frozen, pure and picklable, because Spark carries them
from the driver to the tasks. Only `lograft.spark.options` makes them from options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from lograft.settings import DEFAULT_BATCH_BYTES
from lograft.types import Position, TopicPartition

DEFAULT_POLL_TIMEOUT_MS: Final = 120_000
"""Milliseconds that a read task waits without progress before it fails: `kafkaConsumer.pollTimeoutMs` of the Kafka connector."""
DEFAULT_CREDIT_BYTES: Final = 16 * 1024 * 1024
DEFAULT_CHUNK_BYTES: Final = 1024 * 1024
MIN_BATCH_BYTES: Final = 1024
MIN_FETCH_BYTES: Final = 1024
MAX_CHUNK_BYTES: Final = 4 * 1024 * 1024
MAX_CREDIT_BYTES: Final = 1024 * 1024 * 1024
DEFAULT_BUFFER_BYTES: Final = 64 * 1024 * 1024
DEFAULT_DELIVERY_TIMEOUT_MS: Final = 120_000
DEFAULT_LINGER_MS: Final = 5
DEFAULT_MAX_IN_FLIGHT: Final = 8
DEFAULT_INGEST_TTL_MS: Final = 86_400_000
"""Milliseconds that an ingest of a batch write lives without a task that writes: the stages before the write take their time."""
DEFAULT_STREAM_INGEST_TTL_MS: Final = 3_600_000
"""Milliseconds that the ingest of a micro-batch lives without a task that writes. Its tasks open it, so no stage lies before."""
MIN_INGEST_TTL_MS: Final = 10_000
MAX_INGEST_TTL_MS: Final = 604_800_000
MAX_INGEST_ID_BYTES: Final = 255
"""UTF-8 bytes of an ingest id."""
MAX_INGEST_TOPICS: Final = 100
"""Topics of one ingest."""
DEFAULT_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000
"""Milliseconds after which a trigger runs although `minOffsetsPerTrigger` is not reached; `maxTriggerDelay` of the Kafka connector."""
COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""Columns of a read that asks for none by name, in order."""
HEADERS_COLUMN: Final = "headers"
MAX_READ_TASKS: Final = 100_000
"""Most read tasks that splitting may make."""
MAX_TIMEOUT_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The cluster of a read or write.

    Attributes:
        bootstrap: addresses as host:port, in the given order; at least one.
        cluster_id: cluster id that the brokers must have; None accepts any.
    """

    bootstrap: tuple[str, ...]
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """All partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribePattern:
    """All partitions of the topics whose whole name matches a regular expression of Python's `re`."""

    pattern: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Exactly these partitions, ascending."""

    partitions: tuple[TopicPartition, ...]


Selection = Subscribe | SubscribePattern | Assign


@dataclass(frozen=True, slots=True, kw_only=True)
class AtPosition:
    """The earliest or latest position in every partition."""

    option: str
    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOffsets:
    """An offset or position for each partition. It must name every selected partition."""

    option: str
    offsets: Mapping[TopicPartition, int | Position]


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTimestamp:
    """In every partition, the first record with this timestamp (milliseconds) or a later one."""

    option: str
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTimestamps:
    """As `AtTimestamp`, but with a timestamp for each partition. It must name every selected partition."""

    option: str
    timestamps_ms: Mapping[TopicPartition, int]


Bound = AtPosition | AtOffsets | AtTimestamp | AtTimestamps


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Settings of a batch read.

    Attributes:
        connection: the cluster.
        selection: the partitions.
        start: where to start, inclusive.
        end: where to end, exclusive.
        latest_if_no_match: True: a partition without a record at or after the starting timestamp starts at its end, and so
            gives nothing. False: it is an error.
        fail_on_data_loss: True: missing records of the range are an error. False: the task reads the others and logs the loss.
        min_partitions: split the ranges into at least this many read tasks; None makes one task for each partition.
        max_records_per_partition: split ranges so that no read task has more offsets; None sets no limit.
        columns: the columns of the rows, in order.
        pushdown: True: filters are pushed down, and it is an error if Spark does not. False: never. None: if Spark pushes them.
        poll_timeout_ms: milliseconds that a read task waits without progress before it fails.
        credit_bytes: bytes that a read task may have under way and not yet read.
        chunk_bytes: most bytes in one chunk. The broker still sends a single larger batch.
        check_crcs: verify the checksum of every batch.
        client_rack: rack of the read tasks; None reads only from leaders.
        ignored: options of the caller that have no effect, ascending.
    """

    connection: Connection
    selection: Selection
    start: Bound
    end: Bound
    latest_if_no_match: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    columns: tuple[str, ...] = COLUMNS
    pushdown: bool | None = None
    poll_timeout_ms: int = DEFAULT_POLL_TIMEOUT_MS
    credit_bytes: int = DEFAULT_CREDIT_BYTES
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    check_crcs: bool = True
    client_rack: str | None = None
    ignored: tuple[str, ...] = ()

    @property
    def include_headers(self) -> bool:
        """True if the rows have the column `headers`."""
        return HEADERS_COLUMN in self.columns


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReadOptions:
    """Settings of a streaming read.

    Attributes:
        read: the settings that it shares with a batch read. `start` counts only for a query without a checkpoint; `end` is not
            used.
        max_records: offsets of one micro-batch, over all partitions; None sets no limit.
        max_bytes: bytes of one micro-batch, over all partitions, as estimated from samples; None sets no limit.
        min_records: offsets that must be there before a micro-batch runs; None: one.
        max_delay_ms: milliseconds after the last micro-batch from which on `min_records` does not count.
    """

    read: ReadOptions
    max_records: int | None = None
    max_bytes: int | None = None
    min_records: int | None = None
    max_delay_ms: int = DEFAULT_TRIGGER_DELAY_MS


class Guarantee(Enum):
    """How often a row is in the log after a job that succeeded. The values are those of the option `delivery.guarantee`."""

    EXACTLY_ONCE = "exactly-once"
    """Once, whatever Spark repeats: rows are staged, and the commit of the job publishes them."""
    AT_LEAST_ONCE = "at-least-once"
    """Once or more: rows are appended at once, also by tasks that fail later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Settings of a write. All in-sync replicas always acknowledge, because every guarantee needs it.

    Attributes:
        connection: the cluster.
        topic: topic of every record, which overrides the column `topic`; None uses the column.
        guarantee: exactly once or at least once.
        ingest_id: id of the ingest; None: a random one, or, in a streaming query, one for each micro-batch.
        ingest_topics: topics that the column `topic` may name; empty unless rows are written exactly once by that column.
        ingest_ttl_ms: milliseconds without a task that writes, after which the ingest is aborted.
        idempotent: the broker drops batches that the client resends after a lost answer.
        batch_bytes: size at which a record batch is sealed.
        buffer_bytes: bytes that one task may have unacknowledged before it waits.
        linger_ms: milliseconds for which an unfilled batch waits for more records.
        delivery_timeout_ms: milliseconds for which a batch may stay unacknowledged before the task fails.
        codec: `none` or `zstd`.
        max_in_flight: unacknowledged batches of one partition.
        ignored: options of the caller that have no effect, ascending.
    """

    connection: Connection
    topic: str | None = None
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    ingest_id: str | None = None
    ingest_topics: tuple[str, ...] = ()
    ingest_ttl_ms: int = DEFAULT_INGEST_TTL_MS
    idempotent: bool = True
    batch_bytes: int = DEFAULT_BATCH_BYTES
    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    linger_ms: int = DEFAULT_LINGER_MS
    delivery_timeout_ms: int = DEFAULT_DELIVERY_TIMEOUT_MS
    codec: str = "none"
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT
    ignored: tuple[str, ...] = ()
