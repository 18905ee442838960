# SPDX-License-Identifier: Apache-2.0
"""Events of a partition replica: the inputs of its core.

Values only. `leader_events.py` has a leader's events about its followers, `follower_events.py` those of a follower.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from brokerd.partition.follower_events import FollowerEvent
from brokerd.partition.leader_events import LeaderEvent
from metaquorum.metadata.state import PartitionImage
from metaquorum.metadata.topic_configs import FlushPolicy


class AckLevel(Enum):
    """What an acknowledgement waits for."""

    ALL = "all"
    """The record is below the high watermark."""
    LEADER = "leader"
    """The leader has appended the record."""


class Durability(IntEnum):
    """What a record has reached; each level includes the lower ones. The numbers are those of the public contract."""

    APPENDED = 1
    REPLICATED = 2
    FLUSHED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipChanged:
    """The metadata has a new leader for the partition, or none."""

    leader_id: int | None
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """A registered broker, as the metadata has it.

    Attributes:
        node_id: node id.
        broker_epoch: epoch of its registration.
        can_lead: True if it is neither fenced nor leaving.
    """

    node_id: int
    broker_epoch: int
    can_lead: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChanged:
    """The metadata has this state of the partition; where it is used, it replaces `LeadershipChanged`.

    Attributes:
        partition: its state. The core ignores one with a lower partition epoch than the last.
        min_isr: the topic's `min.insync.replicas`.
        brokers: the registered brokers that have the replicas.
    """

    partition: PartitionImage
    min_isr: int
    brokers: tuple[BrokerState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerChanged:
    """The metadata has this state of a broker that has a replica of the partition."""

    broker: BrokerState


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPolicyChanged:
    """The topic has this flush policy and flush interval now."""

    policy: FlushPolicy
    interval_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAppended:
    """The log has grown; its end is now `log_end_offset` (exclusive)."""

    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFlushed:
    """Everything below `flushed_offset` (exclusive) is on stable storage."""

    flushed_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AckWanted:
    """A request waits until every record below `next_offset` has reached `level`."""

    token: int
    next_offset: int
    level: AckLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class AckDropped:
    """The request of `token` no longer waits."""

    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFailed:
    """The log can no longer be written or flushed."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRemoved:
    """The partition is no longer hosted here, because its topic was deleted or the broker stops."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed; `PartitionReplica.deadline_ms` says when it is due."""


Event = (
    LeadershipChanged
    | PartitionChanged
    | BrokerChanged
    | LeaderEvent
    | FollowerEvent
    | FlushPolicyChanged
    | BatchAppended
    | LogFlushed
    | AckWanted
    | AckDropped
    | StorageFailed
    | ReplicaRemoved
    | Tick
)
