# SPDX-License-Identifier: Apache-2.0
"""Chooses the replica of this broker that serves a reader: the leader, or an in-sync follower if the reader allows it.

Law: only the leader says that an offset is beyond the end of the log. A follower may not have received it yet.
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
from storage.files.names import TOPIC_ID_BYTES


class Verdict(Enum):
    """What happens to a reader that begins at an offset."""

    SERVED = "served"
    """It reads, or waits here for the next record."""
    BELOW_ZERO = "below zero"
    """No log has a negative offset."""
    OUT_OF_RANGE = "out of range"
    """The log here does not have the offset."""
    ASK_LEADER = "ask the leader"
    """The log here ends below the offset. The leader knows whether the offset exists."""


def judge_offset(offset: int, *, log_start_offset: int, log_end_offset: int, is_leader: bool) -> Verdict:
    """Return what happens to a reader that begins at an offset. A reader at the log end is served: it waits for the next record.

    Args:
        offset: the offset at which it wants to begin (inclusive).
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
    """A replica that serves a reader until its listeners hear that its service has ended.

    Attributes:
        replica: the replica.
        is_leader: True if it leads, False if it follows in sync.
    """

    replica: Replica
    is_leader: bool

    @property
    def end_offset(self) -> int:
        """End (exclusive) of what the reader may read now.

        Raises:
            RefusedError: the replica no longer follows in sync; NOT_LEADER and similar codes.
        """
        end_offset = self.replica.high_watermark if self.is_leader else self.replica.followed_end
        if end_offset is None:
            raise RefusedError(self.replica.refusal())
        return end_offset

    @property
    def listeners(self) -> ReplicaListeners:
        """The listeners of the replica, which hear of new readable records and of the end of its service."""
        return self.replica.listeners if self.is_leader else self.replica.follower_listeners

    def judge(self, offset: int) -> Verdict:
        """Return what happens to a reader that begins at an offset."""
        replica = self.replica
        return judge_offset(
            offset,
            log_start_offset=replica.log_start_offset,
            log_end_offset=replica.log_end_offset,
            is_leader=self.is_leader,
        )

    def check_topic(self, topic_id: bytes) -> None:
        """Refuse a reader that means another topic of the name.

        Args:
            topic_id: id that the topic must have; empty: any.

        Raises:
            RefusedError: INVALID_REQUEST, it is no id; UNKNOWN_TOPIC, the topic has another one. A broker that is behind refuses a
                newer topic, too.
        """
        if len(topic_id) not in (0, TOPIC_ID_BYTES):
            raise refused(ErrorCode.INVALID_REQUEST, f"a topic id has {TOPIC_ID_BYTES} bytes, not {len(topic_id)}")
        if topic_id and topic_id != self.replica.topic_id:
            raise refused(
                ErrorCode.UNKNOWN_TOPIC,
                f"{self.replica} has topic id {self.replica.topic_id.hex()}, not {topic_id.hex()}: the topic was deleted and "
                "created again, and its old offsets mean nothing",
            )

    def check(self, offset: int) -> None:
        """Refuse an offset at which a reader cannot begin here.

        Raises:
            RefusedError: INVALID_REQUEST, it is below 0; OFFSET_OUT_OF_RANGE, the log does not have it; NOT_LEADER, the leader may
                have it.
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
    """Return this broker's replica of a partition if it follows in sync, else None.

    Raises:
        RefusedError: INVALID_TOPIC_NAME, UNKNOWN_TOPIC.
    """
    replica = locator.local_follower(topic, partition)
    return None if replica is None else ServingReplica(replica, is_leader=False)


async def find_serving(
    locator: Locator, topic: str, partition: int, *, allow_follower: bool, timeout_ms: int
) -> ServingReplica:
    """Return this broker's replica of a partition that serves a reader. Wait while the log of a leader is being opened.

    Raises:
        RefusedError: no replica here serves the reader; NOT_LEADER with a leader hint if another broker leads.
    """
    follower = find_follower(locator, topic, partition) if allow_follower else None
    if follower is not None:
        return follower
    return ServingReplica(await locator.local_leader(topic, partition, timeout_ms=timeout_ms), is_leader=True)
