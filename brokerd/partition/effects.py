# SPDX-License-Identifier: Apache-2.0
"""What the shell must do for a partition replica: the outputs of its core, to be carried out in the order given."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from brokerd.partition.events import Durability


class LossReason(Enum):
    """Why a replica stopped serving its streams."""

    NOT_LEADER = "another broker leads the partition"
    NO_LEADER = "the partition has no leader"
    LEADER_EPOCH_MOVED = "the leader epoch moved"
    STORAGE_FAILED = "the log failed"
    REMOVED = "the partition is no longer hosted here"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushLog:
    """Force the log to stable storage; answer with `LogFlushed`. Asked again while one runs: once more after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishHighWatermark:
    """Readers may read below `high_watermark` (exclusive); wake those that wait."""

    high_watermark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteAck:
    """Tell the waiter of `token` what its records have reached."""

    token: int
    durability: Durability


@dataclass(frozen=True, slots=True, kw_only=True)
class FailAck:
    """Tell the waiter of `token` that nobody knows whether its records will survive."""

    token: int
    reason: LossReason


@dataclass(frozen=True, slots=True, kw_only=True)
class EndService:
    """End every stream route and waiting read of the partition."""

    reason: LossReason
    message: str


Effect = FlushLog | PublishHighWatermark | CompleteAck | FailAck | EndService
