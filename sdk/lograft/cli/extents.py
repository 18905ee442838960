# SPDX-License-Identifier: Apache-2.0
"""Offsets and sizes of the partitions of a topic, for `lograft topics describe`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from lograft.admin import Admin
from lograft.errors import LograftError
from lograft.types import OffsetQuery, Position, TopicDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What a partition holds. A value that nobody told is None.

    Attributes:
        log_start_offset: offset of the first record.
        end_offset: high watermark, the exclusive end of the readable offsets.
        size_bytes: bytes of the leader's log.
    """

    log_start_offset: int | None
    end_offset: int | None
    size_bytes: int | None

    @property
    def offset_count(self) -> int | None:
        """Number of offsets; compaction may have left fewer records."""
        if self.log_start_offset is None or self.end_offset is None:
            return None
        return self.end_offset - self.log_start_offset


def extents_of(admin: Admin, topic: TopicDescription, active: Collection[int]) -> dict[int, Extent]:
    """Return the extents by partition. A partition without an active leader is not asked, so that nothing is waited for.

    Args:
        admin: the client.
        topic: the topic.
        active: node ids of the brokers that are registered and not fenced.
    """
    led = {part.partition: part.leader_id for part in topic.partitions if part.leader_id in active}
    starts, ends = (dict(_offsets(admin, topic.topic, led, position)) for position in _POSITIONS)
    sizes = dict(_sizes(admin, topic.topic, led))
    return {
        part.partition: Extent(
            log_start_offset=starts.get(part.partition),
            end_offset=ends.get(part.partition),
            size_bytes=sizes.get(part.partition),
        )
        for part in topic.partitions
    }


_POSITIONS = (Position.EARLIEST, Position.LATEST)


def _offsets(
    admin: Admin, topic: str, partitions: Collection[int], position: Position
) -> Iterator[tuple[int, int | None]]:
    if not partitions:
        return
    for answer in admin.list_offsets(
        [OffsetQuery(topic=topic, partition=each, position=position) for each in partitions]
    ):
        yield answer.partition, answer.offset


def _sizes(admin: Admin, topic: str, leaders: dict[int, int | None]) -> Iterator[tuple[int, int]]:
    for broker_id in sorted({each for each in leaders.values() if each is not None}):
        try:
            found = admin.describe_log_directories(broker_id, with_replicas=True, topic=topic)
        except LograftError:
            # A leader that just went away: its sizes stay unknown, and the rest of the table is still of use.
            continue
        for directory in found.directories:
            for where, size_bytes in directory.replica_bytes.items():
                if leaders.get(where.partition) == broker_id:
                    yield where.partition, size_bytes
