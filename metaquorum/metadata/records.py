# SPDX-License-Identifier: Apache-2.0
"""The records of the metadata log, one immutable class for each kind.

Those of partitions are named tuples: a cluster may have a million, and a frozen dataclass takes three times as long to make.

Owns only their fields: `replay.py` defines what a record does to an image, `record_codec.py` its bytes. Law: a record is true once it
is committed, and nothing but records changes an image.
Source: `proto/lograft/internal/v1/metadata_record.proto`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

FEATURE_NAME: Final = "lograft.level"
"""Name of the only feature. Its level says which records and messages the cluster may use."""

FEATURE_LEVEL: Final = 1
"""Level of a new cluster, and the only level that this version knows."""

MAX_NODE_ID: Final = 2**31 - 1
"""Largest node id."""

MAX_PRODUCER_ID: Final = 2**63 - 1
"""Largest producer id; the batch header stores it as a signed 64-bit integer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRecord:
    """A broker process registered. The record replaces every earlier registration of the same broker id.

    Attributes:
        broker_id: node id.
        incarnation_id: random id of the process, 16 bytes.
        broker_epoch: epoch of the registration; None means the offset of this record (a new registration, whose offset is known only
            when it is appended).
        host: host name or address that clients use.
        port: TCP port that clients use.
        rack: rack, or None.
        fenced: True while the broker may not lead.
        log_directory_ids: ids of its log directories, 16 bytes each.
        unclean: True after an unclean shutdown, until the broker has left the ISR wherever it may lack records; it stays fenced until
            then.
        lost_directories: True while it is unclean and lacks a log directory of its previous registration; it may then lack flushed
            records, too.
        replaced_log_directory_ids: with `lost_directories`: the log directories of the last registration that lacked none, ascending.
        replaced_broker_epoch: while it is unclean: epoch of the registration that stopped uncleanly, of several the first; 0:
            unknown, as old as can be.
        offline_log_directory_ids: log directories of the broker that have failed, ascending.
        min_feature_level: lowest feature level that it supports, inclusive.
        max_feature_level: highest feature level that it supports, inclusive.
        replication_port: TCP port at the host for replication; 0: unknown.
    """

    broker_id: int
    incarnation_id: bytes
    broker_epoch: int | None
    host: str
    port: int
    rack: str | None
    fenced: bool
    log_directory_ids: tuple[bytes, ...] = ()
    unclean: bool = False
    lost_directories: bool = False
    replaced_log_directory_ids: tuple[bytes, ...] = ()
    replaced_broker_epoch: int = 0
    offline_log_directory_ids: tuple[bytes, ...] = ()
    min_feature_level: int = 1
    max_feature_level: int = 1
    replication_port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerChangeRecord:
    """A registered broker changed its state; None leaves a field as it is. With `unclean` False, no directory counts as lost."""

    broker_id: int
    broker_epoch: int
    fenced: bool | None = None
    in_controlled_shutdown: bool | None = None
    unclean: bool | None = None
    offline_log_directory_ids: tuple[bytes, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveBrokerRecord:
    """A broker was removed for good."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A topic was created. Its partitions and configs follow in the same batch. `topic_id` has 16 bytes."""

    topic: str
    topic_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicRecord:
    """A topic was deleted with its partitions and configs."""

    topic_id: bytes


class PartitionRecord(NamedTuple):
    """The whole state of a new partition.

    Attributes:
        topic_id: id of its topic, 16 bytes.
        partition: number, from 0; partitions of a topic are created in ascending order without gaps.
        replicas: node ids; the first is the preferred leader.
        isr: node ids of the in-sync replicas, a subset of `replicas`.
        leader_id: node id, or None if there is no leader.
        leader_epoch: number of this leadership.
        partition_epoch: version of this state.
        elr: node ids of the eligible leader replicas, in the order of `replicas`; none of them is in `isr`.
        last_known_elr: node ids that left `isr` or `elr` by an unclean shutdown while too few replicas were in sync.
        adding: those of `replicas` that a reassignment adds.
        removing: those of `replicas` that the reassignment removes.
        awaited: those of `isr` whose log directory is gone, packed (`awaited.py`).
    """

    topic_id: bytes
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader_id: int | None
    leader_epoch: int
    partition_epoch: int
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    awaited: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChange:
    """A new leader, or none if `leader_id` is None. Its presence in a record raises the leader epoch by one."""

    leader_id: int | None


class PartitionChangeRecord(NamedTuple):
    """A partition changed; None leaves a field as it is. The record raises the partition epoch by one."""

    topic_id: bytes
    partition: int
    leader: LeaderChange | None = None
    isr: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    elr: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    awaited: tuple[int, ...] | None = None

    def addressed(self, topic_id: bytes, partition: int) -> PartitionChangeRecord:
        """Return the same change for another partition."""
        return PartitionChangeRecord(topic_id, partition, *self[2:])


class ConfigResource(IntEnum):
    """Kind of a config resource; the values are those of the protobuf enum."""

    TOPIC = 1
    """A topic; the resource name is its id in lower-case hexadecimal."""
    BROKER = 2
    """A broker; the resource name is its node id in decimal."""
    CLUSTER = 3
    """The cluster; the resource name is empty."""
    GROUP = 4
    """A consumer group; the resource name is its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """A config was set, or removed if `value` is None."""

    resource: ConfigResource
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRecord:
    """A block of producer ids was allocated to a broker; `next_producer_id` is the first id that is still free."""

    broker_id: int
    broker_epoch: int
    next_producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRecord:
    """A feature of the cluster got a level."""

    name: str
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOpRecord:
    """Changes nothing; its commit shows progress."""


MetadataRecord = (
    BrokerRecord
    | BrokerChangeRecord
    | RemoveBrokerRecord
    | TopicRecord
    | RemoveTopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | ConfigRecord
    | ProducerIdsRecord
    | FeatureLevelRecord
    | NoOpRecord
)
