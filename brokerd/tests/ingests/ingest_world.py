# SPDX-License-Identifier: Apache-2.0
"""What lies around a coordinator of ingests: staging partitions, partitions of topics with their leaders, a group.

A record is a number. The ledger knows for ever what was staged where; staging partitions forget what is freed.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from brokerd.ingests.effects import Part, Slice
from brokerd.ingests.limits import PARTITION_RECORDS_MAX
from brokerd.ingests.records import NO_OFFSET, StagedPart, TopicPartition
from brokerd.ingests.sequences import SEQUENCE_MODULUS, advanced, distance

GROUP = "g"
PENDING_MS = 2_000


@dataclass(slots=True)
class StagingPartition:
    """Staged records by producer id and sequence."""

    records: dict[int, dict[int, int]] = field(default_factory=dict[int, dict[int, int]])
    end_offset: int = 0

    def free(self, producer_id: int, sequence: int | None) -> None:
        """Forget the records of a producer below a sequence; None: all."""
        kept = self.records.get(producer_id, {})
        for each in list(kept):
            if sequence is None or 0 < distance(each, sequence) <= PARTITION_RECORDS_MAX:
                del kept[each]
        if not kept:
            self.records.pop(producer_id, None)


@dataclass(slots=True)
class PublishedPartition:
    """A partition with its producer state: what the coordinator has published, and offsets.

    Attributes:
        next_sequence: next sequence of the coordinator.
        records: sequence and record of all that is there.
        lost: what was there, by sequence.
        end_offset: log end.
        offsets: where each part is, by its base sequence.
        former: where parts were before they were lost.
    """

    next_sequence: int = 0
    records: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    lost: dict[int, int] = field(default_factory=dict[int, int])
    end_offset: int = 0
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    former: set[tuple[int, tuple[int, int]]] = field(default_factory=set[tuple[int, tuple[int, int]]])

    def lose(self, count: int) -> None:
        """Lose the last records, as by an unclean election."""
        kept = max(0, len(self.records) - count)
        for sequence, record in self.records[kept:]:
            self.lost[sequence] = record
        if kept < len(self.records):
            self.next_sequence = self.records[kept][0]
        self.records = self.records[:kept]
        self.former |= set(self.offsets.items())


@dataclass(slots=True)
class Pending:
    """Offsets that a group has prepared."""

    offset: int
    digest: bytes
    asked_ms: int


class World:
    """The world of one walk."""

    def __init__(self, rng: random.Random, counts: Counter[str]) -> None:
        self.rng = rng
        self.counts = counts
        self.topics: dict[bytes, int] = {}
        self.deleted: dict[bytes, None] = {}
        self.staging: dict[TopicPartition, StagingPartition] = {}
        self.published: dict[TopicPartition, PublishedPartition] = {}
        self.ledger: dict[tuple[int, TopicPartition], dict[int, int]] = {}
        self.pending: dict[tuple[str, int, int], Pending] = {}
        self.applied: list[tuple[tuple[str, int, int], int]] = []
        self._record = 0
        self._topic = 0

    def create(self, partition_count: int, next_sequence: int = 0) -> bytes:
        """Make a topic with its staging topic."""
        self._topic += 1
        topic_id = f"topic{self._topic}".encode().ljust(16, b".")
        self.topics[topic_id] = partition_count
        for number in range(partition_count):
            self.staging[TopicPartition(topic_id, number)] = StagingPartition()
            self.published[TopicPartition(topic_id, number)] = PublishedPartition(next_sequence)
        return topic_id

    def delete(self, topic_id: bytes) -> None:
        """Delete a topic with its staging topic."""
        for number in range(self.topics.pop(topic_id)):
            self.staging[TopicPartition(topic_id, number)] = StagingPartition()
        self.deleted[topic_id] = None

    def partitions(self) -> list[TopicPartition]:
        """Return all partitions of the topics that exist."""
        return [TopicPartition(each, number) for each, count in self.topics.items() for number in range(count)]

    def stage(self, producer_id: int, where: TopicPartition, sequence: int, records: int) -> StagedPart:
        """Stage records, with those of others between them."""
        ledger = self.ledger.setdefault((producer_id, where), {})
        staging = self.staging[where]
        first_offset = staging.end_offset
        for _ in range(records):
            self._record += 1
            ledger[sequence] = self._record
            if where.topic_id in self.topics:
                staging.records.setdefault(producer_id, {})[sequence] = self._record
            staging.end_offset += 1 + (self.rng.random() < 0.2)
            sequence = advanced(sequence, 1)
        return StagedPart(
            topic_id=where.topic_id,
            partition=where.partition,
            first_sequence=advanced(sequence, -records),
            records=records,
            first_offset=first_offset,
            end_offset=staging.end_offset,
        )

    def content(self, producer_id: int, where: TopicPartition, sequence: int, records: int) -> list[int]:
        """Return what was once staged."""
        ledger = self.ledger[producer_id, where]
        return [ledger[advanced(sequence, at)] for at in range(records)]

    def has(self, where: TopicPartition, each: Slice) -> bool:
        """Check that a slice is there, as the leader of the staging partition does."""
        kept = self.staging[where].records.get(each.producer_id, {})
        return all(advanced(each.first_sequence, at) in kept for at in range(each.records))

    def publish(self, part: Part, *, is_cut: bool) -> tuple[int, int] | int | None:
        """Publish a part as its leader does; None: it came not to the end. A number: so many records before it are lost."""
        where = TopicPartition(part.topic_id, part.partition)
        if part.topic_id in self.deleted:
            return NO_OFFSET, NO_OFFSET
        log = self.published[where]
        done = distance(part.base_sequence, log.next_sequence)
        if done > PARTITION_RECORDS_MAX:
            lost = distance(log.next_sequence, part.base_sequence)
            between = {advanced(log.next_sequence, at) for at in range(lost)}
            assert between <= log.lost.keys(), "4: a part is published before the one before it"
            if lost != part.lost_records:
                return lost
            self.counts["published after a loss"] += 1
            log.next_sequence, done = part.base_sequence, 0
        if done == 0:
            log.offsets.pop(part.base_sequence, None)
        if done >= part.records:
            self.counts["published twice"] += 1
            return log.offsets[part.base_sequence]
        staged: list[int] = []
        wanted = [advanced(each.first_sequence, at) for each in part.slices for at in range(each.records)]
        producers = [each.producer_id for each in part.slices for _ in range(each.records)]
        assert len(wanted) == part.records, "2: the slices of a part are not what the plan says"
        for producer_id, sequence in list(zip(producers, wanted, strict=True))[done:]:
            kept = self.staging[where].records.get(producer_id, {})
            assert sequence in kept, "staged records were freed that a decision needs"
            staged.append(kept[sequence])
        if is_cut:
            self.counts["published halfway"] += 1
            staged = staged[: self.rng.randrange(len(staged))]
        for record in staged:
            log.records.append((log.next_sequence, record))
            log.lost.pop(log.next_sequence, None)
            log.next_sequence = advanced(log.next_sequence, 1)
            first, _ = log.offsets.get(part.base_sequence, (log.end_offset, 0))
            log.end_offset += 1
            log.offsets[part.base_sequence] = (first, log.end_offset)
            log.end_offset += self.rng.random() < 0.2
        if distance(part.base_sequence, log.next_sequence) < part.records:
            return None
        return log.offsets[part.base_sequence]

    def published_at(self, where: TopicPartition, base_sequence: int, records: int) -> list[int] | None:
        """Return the records of a part, if all of them are published, or were."""
        log = self.published[where]
        known = log.lost | dict(log.records)
        wanted = [advanced(base_sequence, at) for at in range(records)]
        return [known[each] for each in wanted] if all(each in known for each in wanted) else None


NEAR_THE_END = SEQUENCE_MODULUS - 40
"""First publishing sequence of the walk, so that sequences wrap around."""
