# SPDX-License-Identifier: Apache-2.0
"""Values that clients take and return: first those of records, then those of admin calls.

This module holds plain data. It must not import gRPC, protobuf or a client, because pure modules use it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, IntEnum
from typing import Any, NamedTuple

from lograft.errors import LograftError, PartitionTrouble

Headers = Sequence[tuple[str, bytes | None]]
"""Headers of one record: (name, value) pairs in order; a name may occur more than once."""


class TopicPartition(NamedTuple):
    """A partition of a topic, by name and number (from 0)."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHealth:
    """State of one assigned partition of a consumer.

    Attributes:
        position: offset of the next record that a poll hands out.
        high_watermark: last known end of the readable offsets, exclusive; None before anything came.
        leader_id: node id of the last known leader; None without a leader.
        address: host:port of the broker that serves the partition, or served it last; None before the first broker.
        trouble: why nothing comes, and since when; None while records or marks come, and after the consumer has stopped
            fetching the partition.
        error: why the consumer has stopped fetching the partition until the next seek; None while it fetches.
        held_ms: with `isolation="committed-together"`, for how many milliseconds the partition has waited for the rest of a
            decision; None: it does not.
    """

    position: int
    high_watermark: int | None
    leader_id: int | None
    address: str | None
    trouble: PartitionTrouble | None
    error: LograftError | None
    held_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHealth:
    """State of a consumer, as `Consumer.health` returns it.

    Attributes:
        partitions: state of every assigned partition.
        unreachable_ms: for how many milliseconds nothing has come from any assigned partition; None while something comes, or
            when nothing is assigned.
    """

    partitions: Mapping[TopicPartition, PartitionHealth]
    unreachable_ms: int | None

    @property
    def troubles(self) -> list[PartitionTrouble]:
        """The partitions from which nothing comes at the moment."""
        return [health.trouble for health in self.partitions.values() if health.trouble is not None]


class Acks(Enum):
    """What must be true before the broker acknowledges a batch."""

    ALL = "all"
    """All in-sync replicas hold the batch, and have flushed it as the topic's `flush.policy` says."""
    LEADER = "leader"
    """The leader has appended the batch."""
    NONE = "none"
    """Nothing. No receipts come, and a broken connection silently loses the batches under way."""


class Durability(IntEnum):
    """Where a batch was stored when it was acknowledged. Each level includes the ones before it."""

    UNKNOWN = 0
    """Not known: acks is "none", or the batch failed."""
    APPENDED = 1
    """In the page cache of the leader."""
    REPLICATED = 2
    """In the page cache of all in-sync replicas."""
    FLUSHED = 3
    """On stable storage of all in-sync replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReceipt:
    """Result of one batch of a producer, as `on_batch` gets it.

    Attributes:
        topic: topic of the batch.
        partition: partition of the batch.
        base_offset: offset of the first record; the others follow without gaps. None when the batch failed, or with
            acks="none".
        record_count: number of records in the batch.
        durability: the level that the batch had reached.
        duplicate: True when an earlier attempt had already appended the batch; `base_offset` comes from that attempt.
        error: why the batch failed; None if it did not.
    """

    topic: str
    partition: int
    base_offset: int | None
    record_count: int
    durability: Durability
    duplicate: bool = False
    error: LograftError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordReceipt:
    """Result of one delivered record, as `Delivery.result` returns it. Kafka calls it RecordMetadata.

    Attributes:
        topic: topic of the record.
        partition: partition of the record.
        offset: offset of the record; None with acks="none".
        timestamp_ms: create time of the record, in milliseconds since 1970-01-01 UTC.
        durability: the level that the record had reached.
        duplicate: True when an earlier attempt had already appended the record; `offset` comes from that attempt.
    """

    topic: str
    partition: int
    offset: int | None
    timestamp_ms: int
    durability: Durability
    duplicate: bool = False


class ConsumerRecord:
    """One record that was consumed. A plain slotted class: it is made once for each record.

    Attributes:
        key: bytes, or None; what a `key_deserializer` made of the bytes.
        value: bytes, or None (a tombstone); what a `value_deserializer` made of the bytes.
    """

    __slots__ = ("headers", "key", "offset", "partition", "timestamp_ms", "topic", "value")

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
    ) -> None:
        self.topic: str = topic
        self.partition: int = partition
        self.offset: int = offset
        self.timestamp_ms: int = timestamp_ms
        self.key: Any = key
        self.value: Any = value
        self.headers: Headers = headers

    def __repr__(self) -> str:
        return (
            f"ConsumerRecord(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp_ms={self.timestamp_ms}, key={self.key!r}, value={self.value!r}, headers={self.headers!r})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConsumerRecord):
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def _fields(self) -> tuple[object, ...]:
        headers = tuple(self.headers)
        return (self.topic, self.partition, self.offset, self.timestamp_ms, self.key, self.value, headers)


class OffsetAndMetadata(NamedTuple):
    """A committed offset, or one to commit.

    Attributes:
        offset: offset of the next record to read.
        metadata: text of the application, at most 4,096 bytes of UTF-8.
        leader_epoch: leader epoch of the record before it; None: unknown.
        commit_ms: when it was committed, in milliseconds since 1970-01-01 UTC; 0 for one to commit.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None
    commit_ms: int = 0


class Lag(NamedTuple):
    """How far a consumer is behind in one partition, as far as it knows without asking.

    Attributes:
        records: offsets between the position and the end of the readable offsets; None before anything came.
        seconds: age of the last batch that was handed out, in seconds; 0.0 at the end of the partition; None: not known, or
            nothing was handed out yet.
    """

    records: int | None
    seconds: float | None


class GroupMembership(NamedTuple):
    """A consumer as a member of its group.

    Attributes:
        group: group id.
        member_id: UUID of this consumer in the group.
        instance_id: name of a static member; None for a dynamic one.
        state: "joining", "member", "leaving" or "ended".
        epoch: member epoch; 0 while it joins.
        coordinator: host:port of the coordinator; None while it is not known.
    """

    group: str
    member_id: str
    instance_id: str | None
    state: str
    epoch: int
    coordinator: str | None


class RebalanceListener:
    """Hears what a consumer of a group gets and loses. Override what you need.

    A poll calls the methods in its own thread (asyncio: task); so do `close` and `unsubscribe`. Methods for `lograft.aio.Consumer`
    may be coroutine functions. A call may commit, seek, pause and look up; it must not poll (`UsageError`). What a method raises
    comes out of the poll, and the rebalance goes on all the same. Source: Kafka's ConsumerRebalanceListener.
    """

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """The consumer reads these partitions from now on. A `seek` here comes before their first record."""

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """The consumer gives these partitions up. They deliver nothing more, and nobody else has them before this call returns.

        Commit here what you have processed. With `auto_commit` that is done already. A commit that is under way when this call returns
        has 5,000 milliseconds to be answered; after that it ends with `MembershipLostError`.
        """

    def on_lost(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """Other members may have these partitions already. Nothing can be committed for them any more."""


class Position(Enum):
    """A named position in a partition log."""

    EARLIEST = "earliest"
    """The first readable offset."""
    LATEST = "latest"
    """The high watermark: the offset of the next record that becomes readable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetQuery:
    """A question for one offset: by position, or for the first record with `timestamp_ms` or a later timestamp.

    Give exactly one of the two. `timestamp_ms` is in milliseconds since 1970-01-01 UTC.
    """

    topic: str
    partition: int
    position: Position | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAnswer:
    """Answer to one `OffsetQuery`.

    Attributes:
        topic: topic of the query.
        partition: partition of the query.
        offset: the offset; None when no record has the timestamp or a later one, and on an error.
        timestamp_ms: timestamp of the record, for a query by timestamp.
        error: why no answer exists; None if one does.
    """

    topic: str
    partition: int
    offset: int | None = None
    timestamp_ms: int | None = None
    error: LograftError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedRecords:
    """Result of deleting records of one partition.

    Attributes:
        topic: topic name.
        partition: partition, from 0.
        log_start_offset: the first readable offset now, inclusive; None on an error.
        error: why no records were deleted; None on success.
    """

    topic: str
    partition: int
    log_start_offset: int | None = None
    error: LograftError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedProducer:
    """What the leader of a partition remembers of a producer, to recognise batches that were sent again.

    Attributes:
        producer_id: id of the producer.
        producer_epoch: its newest epoch.
        last_sequence: sequence of its last record; None: none in this epoch.
        last_base_offset: base offset of its newest remembered batch; None: none.
        last_append_ms: when that batch was appended, in milliseconds since 1970-01-01 UTC; None: before the log was opened.
        open_transaction_offset: first offset of its open transaction; None: none.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int | None = None
    last_base_offset: int | None = None
    last_append_ms: int | None = None
    open_transaction_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProducers:
    """The producers of one partition.

    Attributes:
        topic: topic name.
        partition: partition number.
        producers: producers by id, at most 1,000: those that appended last.
        producer_count: number of producers that the leader remembers.
        error: why they are not known; None on success.
    """

    topic: str
    partition: int
    producers: tuple[RememberedProducer, ...] = ()
    producer_count: int = 0
    error: LograftError | None = None


class GroupState(Enum):
    """State of a consumer group."""

    UNKNOWN = "unknown"
    """A newer server named a state that this client does not know."""
    EMPTY = "empty"
    """It has no members."""
    ASSIGNING = "assigning"
    """A target assignment is being computed."""
    RECONCILING = "reconciling"
    """Members move to their target assignments."""
    STABLE = "stable"
    """Every member has its target assignment."""


class MemberProgress(Enum):
    """How far a member is on the way to its target assignment."""

    UNKNOWN = "unknown"
    """A newer server named a state that this client does not know."""
    STABLE = "stable"
    """It has its target assignment."""
    UNREVOKED = "unrevoked"
    """It has to confirm that it gave partitions up."""
    UNRELEASED = "unreleased"
    """It has not heard of its target yet, or waits for partitions that others have not given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """A consumer group in a list.

    Attributes:
        group: group id.
        state: its state.
        member_count: number of its members.
        coordinator_id: node id of the broker that coordinates it.
    """

    group: str
    state: GroupState
    member_count: int
    coordinator_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList:
    """Consumer groups, by id.

    Attributes:
        groups: the groups.
        missing_coordinator_ids: brokers whose groups are missing, because they did not answer in time; -1: partitions of `__groups`
            that nobody leads. Empty: the list is complete.
    """

    groups: tuple[ListedGroup, ...]
    missing_coordinator_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of a consumer group.

    Attributes:
        member_id: UUID of the consumer in the group.
        instance_id: name of a static member; None for a dynamic one.
        client_id: name of its program.
        host: address of its host.
        rack: rack of its host; None: unknown.
        topics: topics that it subscribes to by name.
        pattern: RE2 expression of topics that it subscribes to; empty: none.
        assignor: assignor that it prefers; None: none.
        epoch: member epoch; -2: a static member that has left and will be back.
        progress: how far it is on the way to its target.
        assigned: what it may use.
        revoking: what it must give up and has not confirmed.
        target: its target assignment.
        processing_limit_ms: milliseconds that its application may take between two polls.
        is_streaming: True: it beats over a stream that is open.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    rack: str | None
    topics: tuple[str, ...]
    pattern: str
    assignor: str | None
    epoch: int
    progress: MemberProgress
    assigned: tuple[TopicPartition, ...]
    revoking: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...]
    processing_limit_ms: int
    is_streaming: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A consumer group with its members.

    Attributes:
        group: group id.
        error: why it is not described; the fields below have no meaning then. None on success.
        state: its state.
        epoch: group epoch; rises when members, subscriptions or topics change.
        target_epoch: group epoch for which the target assignment was computed.
        assignor: assignor in use.
        members: members by member id.
        offset_count: number of partitions with a committed offset.
        coordinator_id: node id of the broker that coordinates it.
        empty_since_ms: since when it has no members, in milliseconds since 1970-01-01 UTC; None while it has some.
    """

    group: str
    error: LograftError | None = None
    state: GroupState = GroupState.UNKNOWN
    epoch: int = 0
    target_epoch: int = 0
    assignor: str = ""
    members: tuple[GroupMember, ...] = ()
    offset_count: int = 0
    coordinator_id: int = -1
    empty_since_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedGroup:
    """Result of deleting a consumer group.

    Attributes:
        group: group id.
        error: why it was not deleted; None on success.
    """

    group: str
    error: LograftError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """The committed offset of a group in one partition, and how far it is behind.

    Attributes:
        topic: topic name.
        partition: partition number.
        committed: the offset with metadata; None: positively none is stored.
        log_start_offset: first readable offset; None: not known, or not asked for.
        end_offset: end of the readable records; None: not known, or not asked for.
        lag: readable records from the committed offset on; without one, all of them. None without `end_offset`.
        error: why the partition has no answer; None on success.
    """

    topic: str
    partition: int
    committed: OffsetAndMetadata | None = None
    log_start_offset: int | None = None
    end_offset: int | None = None
    lag: int | None = None
    error: LograftError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets:
    """The committed offsets of one group.

    Attributes:
        group: group id.
        offsets: one entry for each partition, by topic and partition.
        error: why the group has no answer; None on success.
    """

    group: str
    offsets: tuple[GroupOffset, ...] = ()
    error: LograftError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetChange:
    """Result of setting or deleting the committed offset of one partition.

    Attributes:
        topic: topic name.
        partition: partition number.
        before: offset that was stored before; None: none, or not asked for.
        after: offset that is stored now (`validate_only`: would be stored); None: none.
        error: why nothing changed; None on success.
    """

    topic: str
    partition: int
    before: int | None = None
    after: int | None = None
    error: LograftError | None = None


@dataclass(frozen=True, slots=True)
class ResetTo:
    """Where a group is to read on, in each partition. Make it with a class method.

    What lies outside of the readable records is moved to their beginning or end.
    """

    kind: str
    value: int = 0

    @classmethod
    def earliest(cls) -> ResetTo:
        """Return: the first readable record."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> ResetTo:
        """Return: after the last readable record."""
        return cls("latest")

    @classmethod
    def time(cls, moment: datetime | int) -> ResetTo:
        """Return: the first record of a time or later; without one, the end.

        Args:
            moment: a time with a time zone, or milliseconds since 1970-01-01 UTC.

        Raises:
            ValueError: the time has no time zone, or is before 1970.
        """
        if isinstance(moment, datetime):
            if moment.tzinfo is None:
                raise ValueError(f"{moment} has no time zone: use datetime.now(timezone.utc), for example")
            moment = int(moment.timestamp() * 1000)
        return cls("time", _natural(moment, "a time is 1970 or later"))

    @classmethod
    def ago(cls, duration: timedelta) -> ResetTo:
        """Return: the first record that is at most so old; without one, the end.

        Raises:
            ValueError: the duration is negative.
        """
        milliseconds = duration // timedelta(milliseconds=1)
        return cls("ago", _natural(milliseconds, "a duration counts back from now and is not negative"))

    @classmethod
    def shift(cls, by: int) -> ResetTo:
        """Return: so many offsets further, or back if negative. A partition without a committed offset stays without one."""
        return cls("shift", by)

    @classmethod
    def offset(cls, offset: int) -> ResetTo:
        """Return: this offset.

        Raises:
            ValueError: the offset is negative.
        """
        return cls("offset", _natural(offset, "an offset is 0 or more"))


def _natural(value: int, rule: str) -> int:
    if value < 0:
        raise ValueError(f"{rule}, not {value}")
    return value


class IngestState(Enum):
    """State of an ingest."""

    UNKNOWN = "unknown"
    """A newer server named a state that this client does not know."""
    OPEN = "open"
    """Attempts stage and seal."""
    DECIDED = "decided"
    """Decided; not everything is published yet."""
    COMMITTED = "committed"
    """Everything is published."""
    ABORTED = "aborted"
    """Nothing is published."""


class IngestKind(Enum):
    """How often an ingest is committed."""

    UNKNOWN = "unknown"
    """A newer server named a kind that this client does not know."""
    SINGLE = "single"
    """Once: its id is used up then."""
    REPEATED = "repeated"
    """Once for each round: the id names an application, and each round is a transaction."""


@dataclass(frozen=True, slots=True)
class SealedAttempt:
    """An attempt that has staged everything. `Ingest.commit` takes it, also from another process: it can be pickled.

    Attributes:
        task: number of the task, from 0.
        attempt_id: name of this try, 1 to 64 bytes.
        records: number of records that it has staged.
    """

    task: int
    attempt_id: bytes
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRange:
    """Where the published records of one partition are.

    Attributes:
        topic: topic name; empty if the topic was deleted.
        partition: partition.
        records: number of records.
        first_offset: offset of the first one; None: the topic, or this part of its log, was deleted after the decision.
        end_offset: offset after the last one; None as `first_offset`. Records of others may lie between.
    """

    topic: str
    partition: int
    records: int
    first_offset: int | None
    end_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestResult:
    """What the commit of an ingest has published.

    Attributes:
        round: number of the transaction, from 1; always 1 of a single ingest.
        records: records of all partitions.
        dropped_attempts: attempts that were not committed.
        partitions: where the records are, by topic and partition.
        was_committed: True: an earlier call had committed it.
    """

    round: int
    records: int
    dropped_attempts: int
    partitions: tuple[PublishedRange, ...]
    was_committed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestDescription:
    """An ingest.

    Attributes:
        ingest_id: its id.
        kind: how often it is committed.
        state: where it stands.
        epoch: epoch of the last open. Clients of earlier ones are fenced.
        round: round that is open, or was committed last.
        topics: names of the topics that it publishes to.
        touched_ms: milliseconds since 1970-01-01 UTC of the last call of its client.
        ttl_ms: milliseconds without a call after which an open one is aborted.
        open_attempts: attempts that stage.
        sealed_attempts: attempts that have staged everything.
        sealed_records: records of the sealed attempts.
        parts: partitions that a decision has to publish.
        published_parts: partitions of these that are published.
        result: what was committed last; None: nothing yet, or it is not asked for (`list_ingests`).
    """

    ingest_id: str
    kind: IngestKind
    state: IngestState
    epoch: int
    round: int
    topics: tuple[str, ...]
    touched_ms: int
    ttl_ms: int
    open_attempts: int
    sealed_attempts: int
    sealed_records: int
    parts: int
    published_parts: int
    result: IngestResult | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestList:
    """Ingests, by id.

    Attributes:
        ingests: descriptions without results.
        missing_coordinator_ids: node ids of coordinators that did not answer, so that theirs are missing; -1: nobody coordinates some.
    """

    ingests: tuple[IngestDescription, ...]
    missing_coordinator_ids: tuple[int, ...] = ()


class LogDirectoryState(Enum):
    """Free space of a log directory, or its failure."""

    FREE = "free"
    TIGHT = "tight"
    """The broker refuses appends of clients. Reads, deletes and retention continue."""
    FULL = "full"
    """The broker writes nothing that grows."""
    FAILED = "failed"
    """The disk failed. The broker does not serve the partitions in it until it is restarted with a repaired disk."""
    UNKNOWN = "unknown"
    """This version does not know the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectory:
    """A log directory of a broker.

    Attributes:
        directory_id: 16 bytes that identify the directory for its whole life.
        path: path on the broker's machine.
        state: free space, or failure.
        free_bytes: free bytes at the last check; None: not known.
        replica_count: number of replicas in the directory.
        replicas: the replicas, if the caller asked for them.
        replica_bytes: bytes of the logs of these replicas; an older broker does not say them.
        problem: why the directory failed; empty if it did not.
        unknown_partition_count: number of stray directories: partition directories that the cluster does not know.
        unknown_partition_bytes: bytes of the files in the stray directories.
    """

    directory_id: bytes
    path: str
    state: LogDirectoryState
    free_bytes: int | None
    replica_count: int
    replicas: tuple[TopicPartition, ...]
    problem: str
    unknown_partition_count: int = 0
    unknown_partition_bytes: int = 0
    replica_bytes: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownPartitions:
    """Partition directories of a broker that the cluster does not know (stray directories).

    Attributes:
        partition_count: number of these directories.
        size_bytes: bytes of the files in them.
    """

    partition_count: int
    size_bytes: int


class MoveState(Enum):
    """Progress of a move of a replica."""

    WAITING = "waiting"
    COPYING = "copying"
    SWITCHING = "switching"
    """The copy replaces the log. The broker refuses appends for a moment."""
    DONE = "done"
    FAILED = "failed"
    """The replica is still in the source directory."""
    UNKNOWN = "unknown"
    """This version does not know the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMove:
    """A move of a replica between two log directories of its broker.

    Attributes:
        topic: topic name.
        partition: partition, from 0.
        source_directory_id: id of the directory that the replica leaves, 16 bytes.
        target_directory_id: id of the directory that the replica moves to, 16 bytes.
        state: progress of the move.
        size_bytes: bytes of the log when the move began.
        copied_bytes: bytes copied so far; more than `size_bytes` if the log has grown.
        problem: why the move failed; empty if it did not.
    """

    topic: str
    partition: int
    source_directory_id: bytes
    target_directory_id: bytes
    state: MoveState
    size_bytes: int
    copied_bytes: int
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectories:
    """The log directories of one broker.

    Attributes:
        broker_id: id of the broker.
        directories: the log directories. The first also holds the metadata.
        moves: moves that wait or are under way, then the last ones that have ended.
        wall_clock_ms: wall clock of the broker when it answered, in milliseconds since 1970-01-01 UTC; None: an older broker.
        software_version: version of the broker's software; empty: an older broker.
    """

    broker_id: int
    directories: tuple[LogDirectory, ...]
    moves: tuple[ReplicaMove, ...]
    wall_clock_ms: int | None = None
    software_version: str = ""


class BrokerState(Enum):
    """State of a registered broker."""

    UNKNOWN = "unknown"
    """This version does not know the state."""
    REGISTERED = "registered"
    """The controller hears from the broker, but the broker may not lead. It catches up with the metadata, has asked to be fenced, or
    the controller still handles its unclean shutdown."""
    ACTIVE = "active"
    """The broker may lead."""
    SHUTTING_DOWN = "shutting down"
    """The broker shuts down cleanly and waits until its partitions have other leaders."""
    FENCED = "fenced"
    """The broker has stopped, or the controller does not hear from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatus:
    """A broker as the active controller knows it.

    Attributes:
        broker_id: node id.
        state: whether the broker may lead, and if not, why.
        host: host name or address that clients use.
        port: TCP port that clients use.
        rack: rack; None without one.
        broker_epoch: number of the broker's registration.
        incarnation_id: random id of the broker's process, 16 bytes.
        log_directory_ids: ids of the broker's log directories, 16 bytes each.
        offline_log_directory_ids: ids of the log directories that have failed.
        min_feature_level: lowest feature level that the broker can run at, inclusive.
        max_feature_level: highest feature level that the broker can run at, inclusive.
        replica_count: number of replicas on the broker.
        leader_count: number of partitions that the broker leads.
        unclean: True after an unclean shutdown, until the broker is out of every ISR where it may lack records.
        last_heard_age_ms: milliseconds since the controller last heard from the broker, or since the controller took over;
            None: not known.
        metadata_offset: metadata offset (exclusive) that the broker last reported as applied; None: not known.
    """

    broker_id: int
    state: BrokerState
    host: str
    port: int
    rack: str | None
    broker_epoch: int
    incarnation_id: bytes
    log_directory_ids: tuple[bytes, ...]
    offline_log_directory_ids: tuple[bytes, ...]
    min_feature_level: int
    max_feature_level: int
    replica_count: int
    leader_count: int
    unclean: bool
    last_heard_age_ms: int | None
    metadata_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDescription:
    """A broker, as clients see it. A fenced broker may not lead."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None
    fenced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedReplica:
    """An in-sync replica whose broker came back without the log directory.

    Attributes:
        broker_id: node id of the broker.
        log_directory_ids: ids of the log directories that the broker had when the replica was last in sync, 16 bytes each.
    """

    broker_id: int
    log_directory_ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """A partition, as clients see it. `leader_id` is None without a leader.

    Eligible leader replicas are not in sync but have everything committed (KIP-966). Last known eligible leader replicas were
    in sync or eligible until an unclean shutdown of their broker; an unclean election takes one of them first. A partition
    with awaited replicas has no leader, because no other replica has everything that was acknowledged. It gets a leader when
    one of the directories is back, or by an unclean election.
    """

    partition: int
    leader_id: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_eligible_leader_replicas: tuple[int, ...] = ()
    awaited_replicas: tuple[AwaitedReplica, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic with its partitions and configs.

    `configs` holds every config with its value for the topic, without the settings of single brokers. `overridden` names the
    configs that are set for the topic itself.
    """

    topic: str
    topic_id: bytes
    partitions: tuple[PartitionDescription, ...]
    configs: Mapping[str, str] = field(default_factory=dict[str, str])
    overridden: frozenset[str] = frozenset()

    @property
    def partition_count(self) -> int:
        """Number of partitions."""
        return len(self.partitions)

    @property
    def replication_factor(self) -> int:
        """Number of replicas of each partition."""
        return len(self.partitions[0].replicas) if self.partitions else 0


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create.

    Attributes:
        topic: 1 to 249 of the characters A-Z a-z 0-9 . _ - but neither "." nor "..".
        partition_count: number of partitions, at least 1.
        replication_factor: number of replicas of each partition, at least 1.
        configs: configs that differ from the defaults.
    """

    topic: str
    partition_count: int = 1
    replication_factor: int = 1
    configs: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic:
    """Result of creating one topic.

    Attributes:
        topic: topic name.
        topic_id: id of the topic, 16 bytes; None on an error.
        partition_count: number of partitions; 0 on an error.
        replication_factor: number of replicas of each partition; 0 on an error.
        error: why the topic was not created; None on success. After an `OutcomeUnknownError`, check whether the topic exists
            before you try again.
    """

    topic: str
    topic_id: bytes | None = None
    partition_count: int = 0
    replication_factor: int = 0
    error: LograftError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary:
    """A topic in a list.

    Attributes:
        topic: topic name.
        topic_id: 16 bytes.
        partition_count: number of partitions.
        replication_factor: replicas of each partition.
        is_internal: True for a topic of the system, such as that of the consumer groups. Its name begins with `__`.
    """

    topic: str
    topic_id: bytes
    partition_count: int
    replication_factor: int
    is_internal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The brokers of a cluster and its active controller, as one broker sees them."""

    cluster_id: str
    controller_id: int | None
    brokers: tuple[BrokerDescription, ...]
    metadata_offset: int


class ConfigResourceType(Enum):
    """What configs are set for. The topic's value counts before the broker's, the broker's before the cluster's, then the default.

    The value of a group counts before the cluster's.
    """

    TOPIC = "topic"
    BROKER = "broker"
    CLUSTER = "cluster"
    GROUP = "group"


class ConfigResource(NamedTuple):
    """A topic, a broker, a group or the cluster. `name` is the topic's name, the broker's id in decimal, the group's id, or empty."""

    type: ConfigResourceType
    name: str = ""

    @classmethod
    def topic(cls, topic: str) -> ConfigResource:
        """Return the resource of a topic."""
        return cls(ConfigResourceType.TOPIC, topic)

    @classmethod
    def broker(cls, broker_id: int) -> ConfigResource:
        """Return the resource of a broker. The broker's replicas of all topics inherit its configs."""
        return cls(ConfigResourceType.BROKER, str(broker_id))

    @classmethod
    def cluster(cls) -> ConfigResource:
        """Return the resource of the cluster. All topics and groups inherit its configs."""
        return cls(ConfigResourceType.CLUSTER)

    @classmethod
    def group(cls, group: str) -> ConfigResource:
        """Return the resource of a consumer group, which need not exist yet."""
        return cls(ConfigResourceType.GROUP, group)


class ConfigSource(Enum):
    """Where the value of a config comes from."""

    UNKNOWN = "unknown"
    """A newer server named a source that this client does not know."""
    DEFAULT = "default"
    TOPIC = "topic"
    BROKER = "broker"
    CLUSTER = "cluster"
    GROUP = "group"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """A config of a resource.

    Attributes:
        value: the value in force.
        source: where the value comes from.
        default: the value in force when nothing is set.
        meaning: what the config does.
        allowed: which values are allowed, in words.
    """

    value: str
    source: ConfigSource
    default: str
    meaning: str
    allowed: str


class ElectionType(Enum):
    """Kind of an election of partition leaders."""

    PREFERRED = "preferred"
    """The preferred replica (the first assigned one) leads again, if it is in sync."""
    UNCLEAN = "unclean"
    """If no replica with everything committed can lead, another replica leads. The records that it lacks are lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectedLeader:
    """Result of an election in one partition.

    Attributes:
        topic: topic name.
        partition: partition, from 0.
        leader_id: node id of the leader after the election; None on an error, and without a leader.
        leader_epoch: leader epoch of that leader; None on an error.
        elected: True when the partition got another leader; False also when it needed no election.
        error: why the election was refused; None if it was not.
    """

    topic: str
    partition: int
    leader_id: int | None = None
    leader_epoch: int | None = None
    elected: bool = False
    error: LograftError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReassignment:
    """A reassignment of one partition, requested or under way.

    Attributes:
        topic: topic name.
        partition: partition, from 0.
        replicas_before: node ids of the replicas before the reassignment. The partition gets them back when it is cancelled.
        replicas: node ids of the requested replicas, the preferred leader first; empty on an error.
        adding: node ids of the replicas that are being added and are not in sync yet.
        removing: node ids of the replicas that are removed when all of `adding` are in sync.
        isr: node ids of the in-sync replicas.
        leader_id: node id of the leader; None without a leader or on an error.
        error: why the reassignment was refused; None if it was not.
    """

    topic: str
    partition: int
    replicas_before: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    leader_id: int | None = None
    error: LograftError | None = None

    @property
    def is_under_way(self) -> bool:
        """True while replicas are being added or removed."""
        return bool(self.adding or self.removing)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelDescription:
    """The feature level of the cluster.

    Attributes:
        level: the level in force.
        controller_max_level: highest level that the active controller knows.
        brokers: by broker id, the lowest and the highest level that the broker can run at, both inclusive.
    """

    level: int
    controller_max_level: int
    brokers: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumReplicaDescription:
    """A voter or an observer, as the quorum leader sees it. A field is None when the leader does not know it."""

    node_id: int
    directory_id: bytes | None
    address: str | None
    log_end_offset: int | None
    last_fetch_age_ms: int | None
    last_caught_up_age_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSnapshotDescription:
    """A snapshot of the metadata. It replaces the log below `end_offset` (exclusive)."""

    end_offset: int
    quorum_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumDescription:
    """State of the metadata quorum. `quorum_epoch` is Raft's term; `high_watermark` is exclusive.

    `log_start_offset` (inclusive) and `latest_snapshot` (None before the first one) belong to the quorum leader.
    """

    cluster_id: str
    leader_id: int | None
    quorum_epoch: int
    high_watermark: int | None
    voters: tuple[QuorumReplicaDescription, ...]
    observers: tuple[QuorumReplicaDescription, ...]
    log_start_offset: int = 0
    latest_snapshot: MetadataSnapshotDescription | None = None


__all__ = [
    "Acks",
    "AwaitedReplica",
    "BatchReceipt",
    "BrokerDescription",
    "ClusterDescription",
    "ConsumerHealth",
    "ConsumerRecord",
    "DeletedGroup",
    "DeletedRecords",
    "Durability",
    "GroupDescription",
    "GroupList",
    "GroupMember",
    "GroupOffset",
    "GroupOffsets",
    "GroupState",
    "Headers",
    "IngestDescription",
    "IngestKind",
    "IngestList",
    "IngestResult",
    "IngestState",
    "ListedGroup",
    "LogDirectories",
    "LogDirectory",
    "LogDirectoryState",
    "MemberProgress",
    "MetadataSnapshotDescription",
    "MoveState",
    "OffsetAnswer",
    "OffsetChange",
    "OffsetQuery",
    "PartitionDescription",
    "PartitionHealth",
    "PartitionProducers",
    "PartitionTrouble",
    "Position",
    "PublishedRange",
    "QuorumDescription",
    "QuorumReplicaDescription",
    "RememberedProducer",
    "ReplicaMove",
    "ResetTo",
    "SealedAttempt",
    "TopicDescription",
    "TopicPartition",
    "TopicSummary",
]
