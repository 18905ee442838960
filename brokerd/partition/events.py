# SPDX-License-Identifier: Apache-2.0
"""What happens to a partition replica: the inputs of its core.

Values only. Those of a leader about its followers are in `leader_events.py`, those of a follower in `follower_events.py`.
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
    """What a record has reached; each level includes those before. Numbers as in the public contract."""

    APPENDED = 1
    REPLICATED = 2
    FLUSHED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipChanged:
    """The metadata names a leader (or none) for the partition."""

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
    """The metadata has this state of the partition; takes the place of `LeadershipChanged` where it is given.

    Attributes:
        partition: its state. One with a lower partition epoch than the last is passed over.
        min_isr: the topic's `min.insync.replicas`.
        brokers: those that have the replicas, as far as they are registered.
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
    """The topic's flush policy or flush interval is now this one."""

    policy: FlushPolicy
    interval_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAppended:
    """The log grew; its end is now `log_end_offset` (exclusive)."""

    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFlushed:
    """Everything below `flushed_offset` (exclusive) is on stable storage."""

    flushed_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AckWanted:
    """Somebody waits until every record below `next_offset` has reached `level`."""

    token: int
    next_offset: int
    level: AckLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class AckDropped:
    """Nobody waits for `token` any more."""

    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFailed:
    """The log cannot be written or flushed any more."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRemoved:
    """The partition is no longer hosted here: its topic was deleted, or the broker stops."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed; see `PartitionReplica.deadline_ms`."""


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
