# SPDX-License-Identifier: Apache-2.0
"""What happens to a partition replica: the inputs of its core.

Values only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from metaquorum.controller.topic_configs import FlushPolicy


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
    | FlushPolicyChanged
    | BatchAppended
    | LogFlushed
    | AckWanted
    | AckDropped
    | StorageFailed
    | ReplicaRemoved
    | Tick
)
