# SPDX-License-Identifier: Apache-2.0
"""Which replica of this broker serves a reader, and from which offset: the leader, or where the reader allows it a follower in sync.

Law: only the leader says that an offset is beyond the end of the log; a follower may just not have heard of it.
Source: docs/replication.md, R15; KIP-392 section "Out of range handling".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lograft.wire.codes import ErrorCode

from brokerd.failure import RefusedError, refused
from brokerd.replica.listeners import ReplicaListeners
from brokerd.replica.locator import Locator
from brokerd.replica.replica import Replica


class Verdict(Enum):
    """What becomes of a reader."""

    SERVED = "served"
    """It reads, or waits here for what is to come."""
    BELOW_ZERO = "below zero"
    """No log has such an offset."""
    OUT_OF_RANGE = "out of range"
    """The log here does not have the offset."""
    ASK_LEADER = "ask the leader"
    """The log here does not reach up to it: the leader knows whether there is such an offset."""


def judge_offset(offset: int, *, log_start_offset: int, log_end_offset: int, is_leader: bool) -> Verdict:
    """Say what becomes of a reader that wants to begin at an offset; the log end itself waits for the next record.

    Args:
        offset: what it wants (inclusive).
        log_start_offset: first offset of the log here (inclusive).
        log_end_offset: end of the log here (exclusive).
        is_leader: True at the leader, False at a follower whose log is a prefix of the leader's.
    """
    if offset < 0:
        return Verdict.BELOW_ZERO
    if log_start_offset <= offset <= log_end_offset:
        return Verdict.SERVED
    if offset > log_end_offset and not is_leader:
        return Verdict.ASK_LEADER
    return Verdict.OUT_OF_RANGE


@dataclass(frozen=True, slots=True)
class ServingReplica:
    """A replica that serves a reader, until its listeners hear otherwise.

    Attributes:
        replica: the replica.
        is_leader: True if it leads; else it follows in sync.
    """

    replica: Replica
    is_leader: bool

    @property
    def end_offset(self) -> int:
        """End (exclusive) of what the reader may have now.

        Raises:
            RefusedError: NOT_LEADER and the like: it followed, and does no more.
        """
        end_offset = self.replica.high_watermark if self.is_leader else self.replica.followed_end
        if end_offset is None:
            raise RefusedError(self.replica.refusal())
        return end_offset

    @property
    def listeners(self) -> ReplicaListeners:
        """Who hears of more to read and of the end of service."""
        return self.replica.listeners if self.is_leader else self.replica.follower_listeners

    def judge(self, offset: int) -> Verdict:
        """Say what becomes of a reader that begins at an offset."""
        replica = self.replica
        return judge_offset(
            offset,
            log_start_offset=replica.log_start_offset,
            log_end_offset=replica.log_end_offset,
            is_leader=self.is_leader,
        )

    def check(self, offset: int) -> None:
        """Refuse an offset that cannot be read here now or soon.

        Raises:
            RefusedError: INVALID_REQUEST, OFFSET_OUT_OF_RANGE; NOT_LEADER, the leader may have it.
        """
        match self.judge(offset):
            case Verdict.SERVED:
                return
            case Verdict.BELOW_ZERO:
                raise refused(ErrorCode.INVALID_REQUEST, f"offset {offset} is below 0")
            case Verdict.OUT_OF_RANGE:
                raise RefusedError(self.replica.out_of_range(offset))
            case Verdict.ASK_LEADER:
                raise RefusedError(self.replica.refusal())


def find_follower(locator: Locator, topic: str, partition: int) -> ServingReplica | None:
    """Return the replica of a partition that follows in sync on this broker; None: there is none.

    Raises:
        RefusedError: INVALID_TOPIC_NAME, UNKNOWN_TOPIC.
    """
    replica = locator.local_follower(topic, partition)
    return None if replica is None else ServingReplica(replica, is_leader=False)


async def find_serving(
    locator: Locator, topic: str, partition: int, *, allow_follower: bool, timeout_ms: int
) -> ServingReplica:
    """Return the replica of a partition that serves a reader on this broker, waiting while the log of a leader is being opened.

    Raises:
        RefusedError: there is none; NOT_LEADER with a hint when another broker leads.
    """
    follower = find_follower(locator, topic, partition) if allow_follower else None
    if follower is not None:
        return follower
    return ServingReplica(await locator.local_leader(topic, partition, timeout_ms=timeout_ms), is_leader=True)
