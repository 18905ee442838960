# SPDX-License-Identifier: Apache-2.0
"""Values that the clients take and give.

Owns plain data, that of records first, then that of the admin calls. Must not import gRPC, protobuf or a client: pure modules use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple

from lograft.errors import LograftError, PartitionTrouble

Headers = Sequence[tuple[str, bytes | None]]
"""Headers of one record: (name, value) in order; names may repeat."""


class TopicPartition(NamedTuple):
    """A partition of a topic, by name and number (from 0)."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHealth:
    """How it stands with one partition of a consumer.

    Attributes:
        position: offset of the next record that will be handed out.
        high_watermark: end of the readable offsets (exclusive) as last seen; None: nothing has come yet.
        leader_id: node id of the leader, as far as is known; None: there is none.
        address: host:port of the broker that it is fetched from, or was last; None: none yet.
        trouble: why nothing comes, and since when; None: it flows, or is not fetched any more.
        error: why it is not fetched any more, until a seek; None: it is.
    """

    position: int
    high_watermark: int | None
    leader_id: int | None
    address: str | None
    trouble: PartitionTrouble | None
    error: LograftError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHealth:
    """How it stands with a consumer, by `Consumer.health`.

    Attributes:
        partitions: every assigned partition.
        unreachable_ms: milliseconds since which nothing comes from any of them; None: something comes, or nothing is assigned.
    """

    partitions: Mapping[TopicPartition, PartitionHealth]
    unreachable_ms: int | None

    @property
    def troubles(self) -> list[PartitionTrouble]:
        """Partitions that give nothing at the moment."""
        return [health.trouble for health in self.partitions.values() if health.trouble is not None]


class Acks(Enum):
    """What must hold before the broker acknowledges a batch."""

    ALL = "all"
    """All in-sync replicas hold it, flushed as the topic's flush policy says."""
    LEADER = "leader"
    """The leader has appended it."""
    NONE = "none"
    """Nothing: no receipts, and batches that are under way when a connection breaks are lost without a word."""


class Durability(IntEnum):
    """What an acknowledged batch had reached when it was acknowledged; each level includes the ones before."""

    UNKNOWN = 0
    """No receipt (acks="none") or the batch failed."""
    APPENDED = 1
    """In the page cache of the leader."""
    REPLICATED = 2
    """In the page cache of all in-sync replicas."""
    FLUSHED = 3
    """On stable storage of all in-sync replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReceipt:
    """Fate of one batch of a producer, given to `on_batch`.

    Attributes:
        topic: topic of the batch.
        partition: partition of the batch.
        base_offset: offset of its first record, the others follow without gaps; None when it failed or with
            acks="none".
        record_count: records in the batch.
        durability: what it had reached.
        duplicate: True when it had been appended by an earlier try; its offset is that of the first time.
        error: why it failed; None: it did not.
    """

    topic: str
    partition: int
    base_offset: int | None
    record_count: int
    durability: Durability
    duplicate: bool = False
    error: LograftError | None = None


class ConsumerRecord:
    """One record that was consumed. A plain slotted class: it is made once for each record."""

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
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self.key = key
        self.value = value
        self.headers = headers

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


class Position(Enum):
    """A well-known place in a partition log."""

    EARLIEST = "earliest"
    """First readable offset."""
    LATEST = "latest"
    """High watermark: the offset of the next record that will become readable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetQuery:
    """Asks for one offset: by position, or the first record with `timestamp_ms` or a later one.

    Give exactly one of the two.
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
        offset: the offset; None when no record has the timestamp or a later one, or on an error.
        timestamp_ms: timestamp of the record found by timestamp.
        error: why there is no answer.
    """

    topic: str
    partition: int
    offset: int | None = None
    timestamp_ms: int | None = None
    error: LograftError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedRecords:
    """What the removal of records in one partition came to.

    Attributes:
        topic: topic name.
        partition: partition, from 0.
        log_start_offset: first readable offset now (inclusive); None on an error.
        error: why nothing was removed; None if all is well.
    """

    topic: str
    partition: int
    log_start_offset: int | None = None
    error: LograftError | None = None


class LogDirectoryState(Enum):
    """How much room a log directory has, or that it has failed."""

    FREE = "free"
    TIGHT = "tight"
    """Appends of clients are refused; reads, deletes and retention go on."""
    FULL = "full"
    """Nothing that grows is written."""
    FAILED = "failed"
    """Its partitions are not served until the broker is restarted with a repaired disk."""
    UNKNOWN = "unknown"
    """A state that this version does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectory:
    """A log directory of a broker.

    Attributes:
        directory_id: 16 bytes; stays with the directory for its life.
        path: path on the broker's machine.
        state: room, or failure.
        free_bytes: bytes that were free at the last look; None: not known.
        replica_count: number of replicas in it.
        replicas: the replicas, if they were asked for.
        problem: why it failed; empty: it has not.
        unknown_partition_count: partition directories in it that were set aside because the cluster does not know them.
        unknown_partition_bytes: bytes of the files in those.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownPartitions:
    """Partition directories of a broker that the cluster does not know.

    Attributes:
        partition_count: how many.
        size_bytes: bytes of the files in them.
    """

    partition_count: int
    size_bytes: int


class MoveState(Enum):
    """How far a move of a replica is."""

    WAITING = "waiting"
    COPYING = "copying"
    SWITCHING = "switching"
    """The copy is taking the place of the log; appends are refused for a moment."""
    DONE = "done"
    FAILED = "failed"
    """The replica is where it was."""
    UNKNOWN = "unknown"
    """A state that this version does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMove:
    """A move of a replica between two log directories of its broker.

    Attributes:
        topic: topic name.
        partition: partition, from 0.
        source_directory_id: directory that it was in, 16 bytes.
        target_directory_id: directory that it goes to, 16 bytes.
        state: how far it is.
        size_bytes: bytes of the log when the move began.
        copied_bytes: bytes copied so far; more than `size_bytes` when the log has grown.
        problem: why it failed; empty: it has not.
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
        directories: the first holds the metadata too.
        moves: those that wait or are under way, then the last ones that have ended.
    """

    broker_id: int
    directories: tuple[LogDirectory, ...]
    moves: tuple[ReplicaMove, ...]


class BrokerState(Enum):
    """State of a registered broker."""

    UNKNOWN = "unknown"
    """A state that this version does not know."""
    REGISTERED = "registered"
    """It is heard of and may not lead: it catches up, or asks to be fenced, or its unclean stop is being dealt with."""
    ACTIVE = "active"
    """It may lead."""
    SHUTTING_DOWN = "shutting down"
    """It leaves in an orderly way, and waits for other leaders of its partitions."""
    FENCED = "fenced"
    """It has stopped, or nothing is heard of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatus:
    """A broker as the active controller knows it.

    Attributes:
        broker_id: node id.
        state: whether it may lead, and why not.
        host: host name or address that clients use.
        port: TCP port that clients use.
        rack: rack, or None.
        broker_epoch: epoch of its registration.
        incarnation_id: random id of its process, 16 bytes.
        log_directory_ids: ids of its log directories, 16 bytes each.
        offline_log_directory_ids: those of them that have failed.
        min_feature_level: lowest feature level that it can run at, inclusive.
        max_feature_level: highest feature level that it can run at, inclusive.
        replica_count: replicas that it has.
        leader_count: partitions that it leads.
        unclean: True after a stop that was not orderly, until it has left the in-sync replicas where it may lack records.
        last_heard_age_ms: milliseconds since it was last heard of, or since the controller took over; None: not known.
        metadata_offset: metadata offset (exclusive) that it last said to have applied; None: not known.
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
    """A broker, as clients see it."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None
    fenced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedReplica:
    """An in-sync replica whose log directory is gone.

    Attributes:
        broker_id: node id of its broker.
        log_directory_ids: ids of the log directories that the broker had when the replica was last in sync, 16 bytes each.
    """

    broker_id: int
    log_directory_ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """A partition, as clients see it. `leader_id` is None without a leader.

    Eligible leader replicas are out of sync, but have everything committed (KIP-966); the last known ones were so before that
    ended: an unclean election would take one of them first. While a partition has awaited replicas it has no leader: no other
    replica has everything that was acknowledged. One of their directories, or an unclean election, brings it back.
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
    """A topic.

    `configs` holds every config with the value that holds without regard to brokers; `overridden` names those set for the topic.
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
        topic: 1 to 249 of the characters A-Z a-z 0-9 . _ - and neither "." nor "..".
        partition_count: number of partitions, from 1.
        replication_factor: number of replicas of each partition, from 1.
        configs: configs that differ from the defaults.
    """

    topic: str
    partition_count: int = 1
    replication_factor: int = 1
    configs: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic:
    """What became of a topic that was to be created.

    Attributes:
        topic: topic name.
        topic_id: its id, 16 bytes; None on an error.
        partition_count: number of partitions; 0 on an error.
        replication_factor: number of replicas of each; 0 on an error.
        error: why it was not created; an `OutcomeUnknownError`: look before you repeat it; None: it was created.
    """

    topic: str
    topic_id: bytes | None = None
    partition_count: int = 0
    replication_factor: int = 0
    error: LograftError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary:
    """A topic in a list."""

    topic: str
    topic_id: bytes
    partition_count: int
    replication_factor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The brokers of a cluster and its active controller, as one broker sees them."""

    cluster_id: str
    controller_id: int | None
    brokers: tuple[BrokerDescription, ...]
    metadata_offset: int


class ConfigResourceType(Enum):
    """What configs are set for. A topic's value holds before its broker's, that before the cluster's, then the default."""

    TOPIC = "topic"
    BROKER = "broker"
    CLUSTER = "cluster"


class ConfigResource(NamedTuple):
    """A topic, a broker or the cluster. `name` is the topic, the broker's id in decimal, empty for the cluster."""

    type: ConfigResourceType
    name: str = ""

    @classmethod
    def topic(cls, topic: str) -> ConfigResource:
        """A topic."""
        return cls(ConfigResourceType.TOPIC, topic)

    @classmethod
    def broker(cls, broker_id: int) -> ConfigResource:
        """A broker: what its replicas of all topics inherit."""
        return cls(ConfigResourceType.BROKER, str(broker_id))

    @classmethod
    def cluster(cls) -> ConfigResource:
        """The cluster: what all topics inherit."""
        return cls(ConfigResourceType.CLUSTER)


class ConfigSource(Enum):
    """Where the value of a config comes from."""

    UNKNOWN = "unknown"
    """Said by a server that is newer than this client."""
    DEFAULT = "default"
    TOPIC = "topic"
    BROKER = "broker"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """A config of a resource.

    Attributes:
        value: the value that holds.
        source: where it comes from.
        default: value that holds when nothing is set.
        meaning: what it is for.
        allowed: what a value must be, in words.
    """

    value: str
    source: ConfigSource
    default: str
    meaning: str
    allowed: str


class ElectionType(Enum):
    """Which election is asked for."""

    PREFERRED = "preferred"
    """The first replica leads again, if it is in sync."""
    UNCLEAN = "unclean"
    """Where nobody who has everything committed can lead, a replica leads that may lack some of it, which is then lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectedLeader:
    """What an election of one partition came to.

    Attributes:
        topic: topic name.
        partition: partition, from 0.
        leader_id: node id of the leader from here on; None on an error, or when nobody leads.
        leader_epoch: its leader epoch; None on an error.
        elected: True when the partition got another leader; False also when it needed no election.
        error: why nobody was elected; None: it was not refused.
    """

    topic: str
    partition: int
    leader_id: int | None = None
    leader_epoch: int | None = None
    elected: bool = False
    error: LograftError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReassignment:
    """A reassignment of one partition: what it was asked to become, or what is under way.

    Attributes:
        topic: topic name.
        partition: partition, from 0.
        replicas_before: node ids of the replicas that it had, and has again when the reassignment is cancelled.
        replicas: node ids of the replicas that it is to have, the preferred leader first; empty on an error.
        adding: those that are being added, and not in sync yet.
        removing: those that go when all of `adding` are in sync.
        isr: node ids of the in-sync replicas.
        leader_id: node id of the leader; None: none, or an error.
        error: why it was refused; None: it was not.
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
        level: level of the cluster.
        controller_max_level: highest level that the active controller knows.
        brokers: lowest and highest level (both inclusive) that each broker can run at, by broker id.
    """

    level: int
    controller_max_level: int
    brokers: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumReplicaDescription:
    """A voter or an observer, as the quorum leader sees it. None: not known."""

    node_id: int
    directory_id: bytes | None
    address: str | None
    log_end_offset: int | None
    last_fetch_age_ms: int | None
    last_caught_up_age_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSnapshotDescription:
    """A snapshot of the metadata: it stands for the log below `end_offset` (exclusive)."""

    end_offset: int
    quorum_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumDescription:
    """State of the metadata quorum. `quorum_epoch` is Raft's term; `high_watermark` is exclusive.

    `log_start_offset` (inclusive) and `latest_snapshot` (None: there is none yet) are those of the leader.
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
    "DeletedRecords",
    "Durability",
    "Headers",
    "LogDirectories",
    "LogDirectory",
    "LogDirectoryState",
    "MetadataSnapshotDescription",
    "MoveState",
    "OffsetAnswer",
    "OffsetQuery",
    "PartitionDescription",
    "PartitionHealth",
    "PartitionTrouble",
    "Position",
    "QuorumDescription",
    "QuorumReplicaDescription",
    "ReplicaMove",
    "TopicDescription",
    "TopicPartition",
    "TopicSummary",
]
