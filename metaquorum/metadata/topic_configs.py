# SPDX-License-Identifier: Apache-2.0
"""The configs of topics, brokers, groups and the cluster: names, defaults, ranges, meanings, and the resources they can be set for.

Owns the table of all configs. Validation, the effective settings of a topic, and the answers of DescribeTopic and DescribeConfigs
derive from it. Does not know how the log engine uses them, nor which values are inherited (`metaquorum.controller.configs`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from lograft.wire.limits import DEFAULT_MAX_MESSAGE_BYTES, MAX_BATCH_BYTES, MAX_ZSTD_LEVEL

from metaquorum.metadata.records import ConfigResource

CATCH_UP_RATE: Final = "replica.catch.up.max.bytes.per.second"
DEFAULT_MIN_INSYNC: Final = "default.min.insync.replicas"
CLEANUP_POLICY: Final = "cleanup.policy"
FLUSH_POLICY: Final = "flush.policy"
GROUP_ASSIGNMENT_INTERVAL: Final = "group.assignment.interval.ms"
GROUP_ASSIGNOR: Final = "group.assignor"
GROUP_HEARTBEAT_INTERVAL: Final = "group.heartbeat.interval.ms"
GROUP_OFFSETS_RETENTION: Final = "group.offsets.retention.ms"
GROUP_SESSION_TIMEOUT: Final = "group.session.timeout.ms"
LEADER_REBALANCE: Final = "auto.leader.rebalance.enable"
MAX_MESSAGE_BYTES: Final = "max.message.bytes"
MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
MOVE_RATE: Final = "replication.move.max.bytes.per.second"
REBALANCE_INTERVAL: Final = "leader.imbalance.check.interval.seconds"
UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
UNCLEAN_ELECTION_INTERVAL: Final = "unclean.leader.election.interval.ms"
TRUE: Final = "true"

ANYWHERE: Final = (ConfigResource.TOPIC, ConfigResource.BROKER, ConfigResource.CLUSTER)
"""Scope of a config that topics, brokers and the cluster can have; topics inherit it from the latter two."""

OF_GROUPS: Final = (ConfigResource.GROUP, ConfigResource.CLUSTER)
"""Scope of a config that groups can have; they inherit it from the cluster."""


class FlushPolicy(Enum):
    """When an appended record counts as stored."""

    ACK = "ack"
    """When it is flushed: an acknowledged record is on stable storage."""
    INTERVAL = "interval"
    """At once; a flush follows within `flush.interval.ms`."""
    NONE = "none"
    """At once; the operating system decides when to flush."""


class CleanupPolicy(Enum):
    """How old data is removed. Data below the log start offset is removed under every policy."""

    DELETE = "delete"
    """Whole segments are removed by age and size."""
    COMPACT = "compact"
    """Records are removed when a newer record has the same key."""
    COMPACT_DELETE = "compact,delete"
    """Both."""

    @property
    def deletes(self) -> bool:
        """True if segments are removed by age and size."""
        return self is not CleanupPolicy.COMPACT

    @property
    def compacts(self) -> bool:
        """True if older records of a key are removed."""
        return self is not CleanupPolicy.DELETE


class CompressionType(Enum):
    """How the broker stores batches."""

    PRODUCER = "producer"
    """As the producer sent them."""
    NONE = "none"
    """Uncompressed."""
    ZSTD = "zstd"
    """In zstd: at the producer's level if the batch came so, else compressed by the broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """Effective settings of one topic.

    Attributes:
        segment_bytes: size at which a segment is closed and the next one begins.
        segment_ms: age, by record timestamps, at which a segment is closed.
        index_interval_bytes: bytes of batches between two entries of the sparse index.
        max_message_bytes: largest batch in bytes, header included.
        flush_policy: when a record counts as stored.
        flush_interval_ms: longest time between flushes under `FlushPolicy.INTERVAL`.
        cleanup_policy: how old data is removed.
        retention_ms: age at which a segment is removed; None: age removes none.
        retention_bytes: bytes of a partition that removal by size keeps at least; None: size removes none.
        file_delete_delay_ms: how long the files of a removed segment stay on disk, renamed.
        min_compaction_lag_ms: a record younger than this is not compacted.
        max_compaction_lag_ms: a record older than this is compacted however few there are.
        min_cleanable_dirty_ratio: share of uncompacted bytes above which a partition is compacted, 0 to 1.
        timestamp_after_max_ms: how far a record's timestamp may be ahead of the broker's clock.
        delete_retention_ms: how long a null value (a tombstone) stays after its first compaction.
        compression_type: how batches are stored.
        zstd_level: level at which the broker compresses batches that the producer did not.
    """

    segment_bytes: int
    segment_ms: int
    index_interval_bytes: int
    max_message_bytes: int
    flush_policy: FlushPolicy
    flush_interval_ms: int
    cleanup_policy: CleanupPolicy
    retention_ms: int | None
    retention_bytes: int | None
    file_delete_delay_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float
    delete_retention_ms: int
    timestamp_after_max_ms: int
    compression_type: CompressionType
    zstd_level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDefinition:
    """One config. Without `choices`, `is_ratio` or `text_bytes`, its value is an integer from `minimum` to `maximum`, both inclusive.

    With `choices` the value is one of them. With `may_be_off` it may also be `OFF`. With `is_ratio` it is a decimal number from 0 to
    1. With `text_bytes` it is one line of text of at most that many bytes in UTF-8. `scopes` names the kinds of resources that can
    have it.
    """

    name: str
    default: str
    meaning: str
    minimum: int = 0
    maximum: int = 0
    choices: tuple[str, ...] = ()
    may_be_off: bool = False
    is_ratio: bool = False
    text_bytes: int = 0
    scopes: tuple[ConfigResource, ...] = ANYWHERE

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.is_ratio:
            return "a decimal number from 0 to 1, such as 0.25"
        if self.text_bytes:
            return f"one line of text of at most {self.text_bytes} bytes in UTF-8, without control characters"
        off = f", or {OFF} for no limit" if self.may_be_off else ""
        return f"an integer from {self.minimum} to {self.maximum}{off}"

    def problem(self, value: str) -> str | None:
        """Return why `value` is not allowed, or None if it is."""
        return None if self._fits(value) else f"{self.name} must be {self.allowed}"

    def _fits(self, value: str) -> bool:
        if self.choices:
            return value in self.choices
        if self.may_be_off and value == OFF:
            return True
        if self.is_ratio:
            return _RATIO.fullmatch(value) is not None
        if self.text_bytes:
            # The first comparison keeps a huge value from being encoded.
            return len(value) <= self.text_bytes and value.isprintable() and len(value.encode()) <= self.text_bytes
        # Only plain ASCII digits: int() would also take "1_000", " 7" and digits of other scripts.
        plain = value.isascii() and value.isdigit() and len(value) <= MAX_DIGITS
        return plain and self.minimum <= int(value) <= self.maximum


_RATIO: Final = re.compile(r"0(\.[0-9]{1,9})?|1(\.0{1,9})?")

OFF: Final = "-1"
"""Value that turns a limit off."""

MAX_DIGITS: Final = 19
"""Digits of the largest 64-bit integer; a longer value is refused without conversion."""

MAX_REPLICATION_FACTOR: Final = 100
"""Largest number of replicas of a partition that a config may name."""

MAX_DESCRIPTION_BYTES: Final = 1_024
"""Longest description of a topic, in bytes of UTF-8."""

MIN_RATE: Final = 1_024
"""Lowest rate limit in bytes a second; with less, one batch of the usual size would take minutes."""

MIN_SESSION_TIMEOUT_MS: Final = 6_000
"""Shortest session of the members of a group, in milliseconds."""

MAX_SESSION_TIMEOUT_MS: Final = 60_000
"""Longest session of the members of a group, in milliseconds."""

MIN_HEARTBEAT_INTERVAL_MS: Final = 1_000
"""Shortest interval of heartbeats, in milliseconds. The longest is a third of the session."""

MAX_ASSIGNMENT_INTERVAL_MS: Final = 15_000
"""Longest time for which a group collects changes, in milliseconds."""

MIN_OFFSETS_RETENTION_MS: Final = 60_000
"""Shortest retention of offsets, in milliseconds."""

INTERNAL_BATCH_BYTES: Final = DEFAULT_MAX_MESSAGE_BYTES
"""Bytes of the largest batch that a coordinator writes; an internal topic must take it."""

_MAX_INT32: Final = 2**31 - 1
_MAX_INT64: Final = 2**63 - 1

_DEFINITIONS: Final = (
    ConfigDefinition(
        name=MIN_INSYNC_REPLICAS,
        default="1",
        minimum=1,
        maximum=MAX_REPLICATION_FACTOR,
        # Only for topics: one batch must contain a lower value and the changes of the ELR that follow from it.
        scopes=(ConfigResource.TOPIC,),
        meaning="in-sync replicas below which nothing is committed; a partition with fewer replicas needs all of them",
    ),
    ConfigDefinition(
        name=DEFAULT_MIN_INSYNC,
        default="2",
        minimum=1,
        maximum=MAX_REPLICATION_FACTOR,
        scopes=(ConfigResource.CLUSTER,),
        meaning=f"{MIN_INSYNC_REPLICAS} of topics that are created without one, but less than their replication factor, and at least 1",
    ),
    ConfigDefinition(
        name=UNCLEAN_ELECTION,
        default="false",
        choices=(TRUE, "false"),
        # The controller elects, so a config of a broker would have no effect.
        scopes=(ConfigResource.TOPIC, ConfigResource.CLUSTER),
        meaning="whether a replica that lacks committed records may lead when no other can, and those records are lost",
    ),
    ConfigDefinition(
        name=CATCH_UP_RATE,
        default=OFF,
        minimum=MIN_RATE,
        maximum=_MAX_INT64,
        may_be_off=True,
        # It limits what a broker does for all topics together.
        scopes=(ConfigResource.BROKER, ConfigResource.CLUSTER),
        meaning="bytes a second that a broker sends, as a leader, to replicas out of sync, moved ones too; -1: no limit",
    ),
    ConfigDefinition(
        name=MOVE_RATE,
        default=OFF,
        minimum=MIN_RATE,
        maximum=_MAX_INT64,
        may_be_off=True,
        scopes=(ConfigResource.BROKER, ConfigResource.CLUSTER),
        meaning="bytes a second that a broker sends, as a leader, to replicas that reassignments add, until in sync; -1: no limit",
    ),
    ConfigDefinition(
        name=LEADER_REBALANCE,
        default=TRUE,
        choices=(TRUE, "false"),
        scopes=(ConfigResource.CLUSTER,),
        meaning="whether first replicas lead again by themselves once they are in sync and active",
    ),
    ConfigDefinition(
        name=REBALANCE_INTERVAL,
        default="300",
        minimum=1,
        maximum=_MAX_INT32,
        scopes=(ConfigResource.CLUSTER,),
        meaning="time between two looks for partitions that their first replica could lead, in seconds",
    ),
    ConfigDefinition(
        name=UNCLEAN_ELECTION_INTERVAL,
        default="300000",
        # Each search scans all partitions, so it must not run more often than this.
        minimum=1_000,
        maximum=_MAX_INT64,
        scopes=(ConfigResource.CLUSTER,),
        meaning="time between two looks for partitions without a leader where an unclean one is allowed, in milliseconds",
    ),
    ConfigDefinition(
        name="description",
        default="",
        text_bytes=MAX_DESCRIPTION_BYTES,
        scopes=(ConfigResource.TOPIC,),
        meaning="free text about the topic, for people and tools; Lograft does not read it",
    ),
    ConfigDefinition(
        name="segment.bytes",
        default=str(1024**3),
        minimum=16 * 1024,
        maximum=_MAX_INT32,
        meaning="size at which a segment file is closed and the next one begun, in bytes",
    ),
    ConfigDefinition(
        name="segment.ms",
        default=str(7 * 24 * 3600 * 1000),
        minimum=1,
        maximum=_MAX_INT64,
        meaning="age at which a segment file is closed and the next one begun, in milliseconds",
    ),
    ConfigDefinition(
        name="index.interval.bytes",
        default="4096",
        minimum=1,
        maximum=_MAX_INT32,
        meaning="bytes of batches between two entries of the offset index",
    ),
    ConfigDefinition(
        name=MAX_MESSAGE_BYTES,
        default=str(DEFAULT_MAX_MESSAGE_BYTES),
        minimum=1024,
        maximum=MAX_BATCH_BYTES,
        meaning="largest batch that is accepted, in bytes, as sent (after compression)",
    ),
    ConfigDefinition(
        name=FLUSH_POLICY,
        default=FlushPolicy.ACK.value,
        choices=tuple(policy.value for policy in FlushPolicy),
        meaning="when a record counts as stored: flushed (ack), flushed soon (interval), written (none)",
    ),
    ConfigDefinition(
        name="flush.interval.ms",
        default="1000",
        minimum=1,
        maximum=_MAX_INT32,
        meaning="longest time between flushes under flush.policy=interval, in milliseconds",
    ),
    ConfigDefinition(
        name=CLEANUP_POLICY,
        default=CleanupPolicy.DELETE.value,
        choices=tuple(policy.value for policy in CleanupPolicy),
        meaning="how old data goes: whole segments by age and size (delete), older records of a key (compact), or both",
    ),
    ConfigDefinition(
        name="retention.ms",
        default=str(7 * 24 * 3600 * 1000),
        minimum=0,
        maximum=_MAX_INT64,
        may_be_off=True,
        meaning="age of its newest record at which a segment goes under cleanup.policy=delete, in milliseconds; -1: never",
    ),
    ConfigDefinition(
        name="retention.bytes",
        default=OFF,
        minimum=0,
        maximum=_MAX_INT64,
        may_be_off=True,
        meaning="bytes of a partition beyond which its oldest segments go under cleanup.policy=delete; -1: no limit",
    ),
    ConfigDefinition(
        name="file.delete.delay.ms",
        default="60000",
        minimum=0,
        maximum=_MAX_INT64,
        meaning="time that the files of a removed segment stay on disk, renamed, in milliseconds",
    ),
    ConfigDefinition(
        name="min.compaction.lag.ms",
        default="0",
        minimum=0,
        maximum=_MAX_INT64,
        meaning="age of a record below which it is not compacted, in milliseconds",
    ),
    ConfigDefinition(
        name="max.compaction.lag.ms",
        default=str(_MAX_INT64),
        minimum=1,
        maximum=_MAX_INT64,
        meaning="age of a record at which it is compacted however few there are, in milliseconds",
    ),
    ConfigDefinition(
        name="min.cleanable.dirty.ratio",
        default="0.5",
        is_ratio=True,
        meaning="share of bytes not compacted yet above which a partition is compacted, 0 to 1",
    ),
    ConfigDefinition(
        name="compression.type",
        default=CompressionType.PRODUCER.value,
        choices=tuple(kind.value for kind in CompressionType),
        meaning="how batches are stored: as the producer compressed them (producer), or in this codec, by the broker if need be",
    ),
    ConfigDefinition(
        name="compression.zstd.level",
        default="1",
        minimum=1,
        maximum=MAX_ZSTD_LEVEL,
        meaning="level at which the broker compresses under compression.type=zstd; batches that are zstd already stay as they are",
    ),
    ConfigDefinition(
        name="message.timestamp.after.max.ms",
        default=str(3600 * 1000),
        minimum=0,
        maximum=_MAX_INT64,
        meaning="how far after the broker's clock the timestamp of a record may lie, in milliseconds",
    ),
    ConfigDefinition(
        name="delete.retention.ms",
        default=str(24 * 3600 * 1000),
        minimum=0,
        maximum=_MAX_INT64,
        meaning="time that a null value stays after its first compaction, so that readers see the deletion, in milliseconds",
    ),
)

_GROUP_DEFINITIONS: Final = (
    ConfigDefinition(
        name=GROUP_SESSION_TIMEOUT,
        default="45000",
        minimum=MIN_SESSION_TIMEOUT_MS,
        maximum=MAX_SESSION_TIMEOUT_MS,
        scopes=OF_GROUPS,
        meaning="time without a sign of life after which a member is removed, in milliseconds; for members that join from then on",
    ),
    ConfigDefinition(
        name=GROUP_HEARTBEAT_INTERVAL,
        default="5000",
        minimum=MIN_HEARTBEAT_INTERVAL_MS,
        maximum=MAX_SESSION_TIMEOUT_MS // 3,
        scopes=OF_GROUPS,
        meaning="time between two heartbeats of a member, at most a third of group.session.timeout.ms, in milliseconds",
    ),
    ConfigDefinition(
        name=GROUP_ASSIGNMENT_INTERVAL,
        default="200",
        minimum=0,
        maximum=MAX_ASSIGNMENT_INTERVAL_MS,
        scopes=OF_GROUPS,
        meaning="time for which changes of a group are collected before its partitions are assigned anew, in milliseconds",
    ),
    ConfigDefinition(
        name=GROUP_ASSIGNOR,
        default="uniform",
        choices=("uniform", "range"),
        scopes=OF_GROUPS,
        meaning="assignor for members that prefer none, from the next assignment on",
    ),
    ConfigDefinition(
        name=GROUP_OFFSETS_RETENTION,
        default=str(7 * 24 * 3600 * 1000),
        minimum=MIN_OFFSETS_RETENTION_MS,
        maximum=_MAX_INT64,
        may_be_off=True,
        scopes=OF_GROUPS,
        meaning="time that an offset is kept from the later of its commit and the last member's end, in milliseconds; -1: for ever",
    ),
)

GROUP_CONFIGS: Final = frozenset(each.name for each in _GROUP_DEFINITIONS)
"""Names of the configs that groups have."""

TOPIC_CONFIGS: Final[Mapping[str, ConfigDefinition]] = MappingProxyType(
    {
        definition.name: definition
        for definition in sorted((*_DEFINITIONS, *_GROUP_DEFINITIONS), key=lambda definition: definition.name)
    }
)
"""All configs by name, ascending. Most belong to topics, and can be set for brokers and the cluster as inherited values."""


def problem(configs: Mapping[str, str]) -> str | None:
    """Return what is wrong with the configs of a topic, or None if every name is known and every value is allowed."""
    for name in sorted(configs):
        found = value_problem(ConfigResource.TOPIC, name, configs[name])
        if found is not None:
            return found
    return None


def value_problem(resource: ConfigResource, name: str, value: str) -> str | None:
    """Return why a config may not be set to `value` for this kind of resource, or None if it may."""
    found = name_problem(resource, name)
    if found is not None:
        return found
    found = TOPIC_CONFIGS[name].problem(value)
    return None if found is None else f"{found}, not {value[:100]!r}"


def name_problem(resource: ConfigResource, name: str) -> str | None:
    """Return why this kind of resource has no such config, or None if it has."""
    definition = TOPIC_CONFIGS.get(name)
    if definition is None:
        known = ", ".join(each.name for each in TOPIC_CONFIGS.values() if resource in each.scopes)
        return f"unknown config {name[:100]!r}; known are {known}"
    if resource not in definition.scopes:
        kinds = " or a ".join(kind.name.lower() for kind in definition.scopes)
        return f"{name} can be set for a {kinds} only, not for a {resource.name.lower()}"
    return None


def internal_problem(name: str, value: str | None) -> str | None:
    """Return why a config of an internal topic may not get a value, or None if it may. Its coordinators rely on some of them.

    Args:
        name: the config.
        value: the value, which is valid in itself; None: the config is removed.
    """
    if name == CLEANUP_POLICY and value != CleanupPolicy.COMPACT.value:
        return f"{name} of an internal topic stays {CleanupPolicy.COMPACT.value}: everything else deletes its state"
    if name == MAX_MESSAGE_BYTES and (value is None or int(value) < INTERNAL_BATCH_BYTES):
        return f"{name} of an internal topic is at least {INTERNAL_BATCH_BYTES}: its coordinators write such batches"
    return None


def effective(configs: Mapping[str, str]) -> TopicSettings:
    """Return the settings of a topic from its configs and the defaults. The configs must be valid."""

    def value(name: str) -> str:
        return configs.get(name, TOPIC_CONFIGS[name].default)

    return TopicSettings(
        segment_bytes=int(value("segment.bytes")),
        segment_ms=int(value("segment.ms")),
        index_interval_bytes=int(value("index.interval.bytes")),
        max_message_bytes=int(value("max.message.bytes")),
        flush_policy=FlushPolicy(value(FLUSH_POLICY)),
        flush_interval_ms=int(value("flush.interval.ms")),
        cleanup_policy=CleanupPolicy(value("cleanup.policy")),
        retention_ms=_limit(value("retention.ms")),
        retention_bytes=_limit(value("retention.bytes")),
        file_delete_delay_ms=int(value("file.delete.delay.ms")),
        min_compaction_lag_ms=int(value("min.compaction.lag.ms")),
        max_compaction_lag_ms=int(value("max.compaction.lag.ms")),
        min_cleanable_dirty_ratio=float(value("min.cleanable.dirty.ratio")),
        delete_retention_ms=int(value("delete.retention.ms")),
        timestamp_after_max_ms=int(value("message.timestamp.after.max.ms")),
        compression_type=CompressionType(value("compression.type")),
        zstd_level=int(value("compression.zstd.level")),
    )


def _limit(value: str) -> int | None:
    return None if value == OFF else int(value)
