# SPDX-License-Identifier: Apache-2.0
"""State of one coordinator of ingests: the fold of its log, what is derived of it, and what is not worth a record.

`IngestsState.replay` is the only writer of durable state and of what is derived. Decisions note what they have heard in `Soft`, whether
or not their records are appended: a question that is noted and not asked is asked again, and a number that nobody got is skipped.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from brokerd.ingests.asks import Asks, Deadlines
from brokerd.ingests.ingest import Ingest
from brokerd.ingests.limits import (
    ABORTED_KEEP_MS,
    COMMITTED_KEEP_MS,
    LOADED_GRACE_MS,
    REPEATED_KEEP_MS,
)
from brokerd.ingests.records import (
    AttemptKey,
    AttemptRecord,
    CounterRecord,
    EpochsRecord,
    IngestKind,
    IngestLogRecord,
    IngestRecord,
    IngestState,
    IngestValue,
    ManifestRecord,
    PlanRecord,
    PlanValue,
    SequencesRecord,
    TopicPartition,
)
from brokerd.ingests.sequences import BLOCK_PARTITIONS, distance

_ACTIVE: Final = (IngestState.OPEN, IngestState.DECIDED)


class PartIdentity(NamedTuple):
    """Names a part of a decision for good: a later ingest with the same id has other sequences."""

    ingest_id: str
    round: int
    base_sequence: int


class IncompletePart(NamedTuple):
    """A part of a decision that is not complete."""

    identity: PartIdentity
    plan: PlanValue


class OutcomeIdentity(NamedTuple):
    """Names what a group has to hear."""

    ingest_epoch: int
    round: int
    is_committed: bool


class Prepared(NamedTuple):
    """A group that was asked to prepare offsets, or will be."""

    ingest_epoch: int
    round: int
    group_id: str


class Soft:
    """What is lost with the leadership.

    Attributes:
        now_ms: time of the last decision or tick, in milliseconds; None before the first.
        begun_ms: time of the first one.
        lived_ms: monotonic time of the last sign of life, or of the last change of state, by ingest.
        deadlines: when open ingests are aborted, and others forgotten.
        sweep: ingests that may have something to delete.
        parts: publications that are asked for, by partition.
        groups: groups that are told an outcome, by ingest.
        prepared: groups that may have prepared offsets for the present round, by ingest.
        deleted_topics: topics whose parts are to be ended.
        next_number: number of the next staging producer id, unless the log has more.
    """

    def __init__(self) -> None:
        self.now_ms: int | None = None
        self.begun_ms = 0
        self.lived_ms: dict[str, int] = {}
        self.deadlines = Deadlines()
        self.sweep: dict[str, None] = {}
        self.parts = Asks[TopicPartition, PartIdentity]()
        self.groups = Asks[str, OutcomeIdentity]()
        self.prepared: dict[str, Prepared] = {}
        self.deleted_topics: dict[bytes, None] = {}
        self.next_number = 0

    def forget(self, ingest_id: str) -> None:
        """Forget an ingest of which nothing is left."""
        self.lived_ms.pop(ingest_id, None)
        self.deadlines.set(ingest_id, None)
        self.sweep.pop(ingest_id, None)
        self.groups.expect(ingest_id, None)
        self.prepared.pop(ingest_id, None)


class IngestsState:
    """All ingests of a coordinator.

    Args:
        partition: partition of `__ingests`.
        unix_offset_ms: what makes milliseconds since 1970 of the monotonic time.

    Attributes:
        ingests: ingests by id, or what is left of them.
        sequences: next publishing sequences, by topic id and block.
        given: number of staging producer ids that were given.
        forgotten_epoch: highest epoch of an ingest that was forgotten.
        attempt_count: attempts of all ingests.
        slice_count: parts of these.
        part_count: parts of decisions and of results.
        active_count: open and decided ingests.
        soft: what is lost with the leadership.
    """

    def __init__(self, partition: int, *, unix_offset_ms: int) -> None:
        self.partition = partition
        self.ingests: dict[str, Ingest] = {}
        self.sequences: dict[tuple[bytes, int], tuple[int, ...]] = {}
        self.given = 0
        self.forgotten_epoch = 0
        self.attempt_count = 0
        self.slice_count = 0
        self.part_count = 0
        self.active_count = 0
        self.soft = Soft()
        self._unix_offset_ms = unix_offset_ms
        self._by_producer_id: dict[int, tuple[str, AttemptKey]] = {}
        self._planned: dict[TopicPartition, dict[tuple[str, int], None]] = {}

    # ------------------------------------------------------------------------------------------------------------------
    # Time.

    @property
    def now_ms(self) -> int:
        """Monotonic time in milliseconds."""
        assert self.soft.now_ms is not None, "no decision and no tick yet"
        return self.soft.now_ms

    @property
    def unix_ms(self) -> int:
        """Milliseconds since 1970."""
        return self.now_ms + self._unix_offset_ms

    def note_time(self, now_ms: int) -> None:
        """Note the time of a decision or a tick. The first one begins what is soft."""
        soft = self.soft
        if soft.now_ms is None:
            soft.now_ms = soft.begun_ms = now_ms
            # In an order that does not depend on how the log was compacted.
            for ingest_id in sorted(self.ingests):
                self._after_value(self.ingests[ingest_id])
                soft.sweep[ingest_id] = None
            for topic_partition in sorted(self._planned):
                self._after_part(topic_partition)
        soft.now_ms = max(soft.now_ms, now_ms)

    def touch(self, ingest: Ingest) -> None:
        """Note a sign of life of the client of an open ingest."""
        self.soft.lived_ms[ingest.ingest_id] = self.now_ms
        self.soft.deadlines.set(ingest.ingest_id, self._deadline_ms(ingest))

    def _deadline_ms(self, ingest: Ingest) -> int | None:
        """Return when an ingest is aborted or forgotten, in monotonic milliseconds; None: not by time."""
        value = ingest.value
        if value is None or value.state is IngestState.DECIDED:
            return None
        lived_ms = self.soft.lived_ms[ingest.ingest_id]
        if value.state is IngestState.OPEN:
            # Nobody could touch it while there was no coordinator.
            return max(lived_ms + value.ttl_ms, self.soft.begun_ms + min(value.ttl_ms, LOADED_GRACE_MS))
        if value.group is not None and value.group.is_committed:
            # If it were forgotten, the group would be told that its offsets do not count.
            return None
        if value.state is IngestState.COMMITTED:
            return lived_ms + COMMITTED_KEEP_MS
        return lived_ms + (REPEATED_KEEP_MS if value.kind is IngestKind.REPEATED else ABORTED_KEEP_MS)

    def lived_unix_ms(self, ingest_id: str) -> int:
        """Return the date of the last sign of life of an ingest that exists, in milliseconds since 1970."""
        return self.soft.lived_ms[ingest_id] + self._unix_offset_ms

    # ------------------------------------------------------------------------------------------------------------------
    # What decisions ask.

    def value_of(self, ingest_id: str) -> tuple[Ingest, IngestValue] | None:
        """Return an ingest that exists, and its value."""
        ingest = self.ingests.get(ingest_id)
        return None if ingest is None or ingest.value is None else (ingest, ingest.value)

    def next_sequence(self, topic_partition: TopicPartition) -> int:
        """Return the next publishing sequence of a partition."""
        block, at = divmod(topic_partition.partition, BLOCK_PARTITIONS)
        numbers = self.sequences.get((topic_partition.topic_id, block), ())
        return numbers[at] if at < len(numbers) else 0

    def incomplete_parts(self, topic_partition: TopicPartition) -> list[IncompletePart]:
        """Return the parts of a partition whose decision is not complete, the oldest first."""
        found: list[IncompletePart] = []
        for ingest_id, number in self._planned.get(topic_partition, ()):
            ingest = self.ingests[ingest_id]
            if ingest.is_incomplete(number):
                plan = ingest.plans[number][topic_partition]
                found.append(IncompletePart(PartIdentity(ingest_id, number, plan.base_sequence), plan))
        newest = self.next_sequence(topic_partition)
        return sorted(found, key=lambda each: -distance(each.plan.base_sequence, newest))

    def first_unpublished(self, topic_partition: TopicPartition) -> PartIdentity | None:
        """Return the part that a partition has to publish next; None: there is none."""
        parts = self.incomplete_parts(topic_partition)
        return next((identity for identity, plan in parts if not plan.is_published), None)

    def attempt_of(self, producer_id: int) -> tuple[Ingest, AttemptKey] | None:
        """Return the attempt that has a staging producer id; None: it is gone."""
        found = self._by_producer_id.get(producer_id)
        return None if found is None else (self.ingests[found[0]], found[1])

    def planned_partitions(self, topic_id: bytes) -> list[TopicPartition]:
        """Return the partitions of a topic that have parts of decisions, in order."""
        return sorted(each for each in self._planned if each.topic_id == topic_id)

    # ------------------------------------------------------------------------------------------------------------------
    # What the log says.

    def replay(self, record: IngestLogRecord) -> None:
        """Apply a record that the log has. Any earlier record of a key may be missing."""
        match record:
            case CounterRecord():
                self.given = record.value or 0
            case EpochsRecord():
                self.forgotten_epoch = record.value or 0
            case SequencesRecord():
                if record.value is None:
                    self.sequences.pop((record.topic_id, record.block), None)
                else:
                    self.sequences[record.topic_id, record.block] = record.value
            case _:
                self._replay_of_ingest(record)

    def _replay_of_ingest(self, record: IngestRecord | AttemptRecord | PlanRecord | ManifestRecord) -> None:
        ingest = self.ingests.get(record.ingest_id)
        if ingest is None:
            if record.value is None:
                return
            ingest = self.ingests[record.ingest_id] = Ingest(record.ingest_id)
        match record:
            case IngestRecord():
                self._put_value(ingest, record)
            case AttemptRecord():
                self._put_attempt(ingest, record)
            case PlanRecord():
                self._put_plan(ingest, record)
            case ManifestRecord():
                ingest.put_manifest(record.round, record.value)
        if ingest.is_unused:
            del self.ingests[ingest.ingest_id]
            self.soft.forget(ingest.ingest_id)

    def _put_value(self, ingest: Ingest, record: IngestRecord) -> None:
        former, value = ingest.value, record.value
        self.active_count += _is_active(value) - _is_active(former)
        self.part_count += _result_parts(value) - _result_parts(former)
        ingest.put_value(value)
        if self.soft.now_ms is None:
            return
        self._after_value(ingest)
        if value is None or former is None or _phase(value) != _phase(former):
            self.soft.sweep[ingest.ingest_id] = None
            self.soft.prepared.pop(ingest.ingest_id, None)
        if former is not None and former.state is IngestState.DECIDED:
            # The partitions of its last parts go on with the next ones.
            for topic_partition, plan in ingest.plans.get(former.round, {}).items():
                if not plan.is_published:
                    self._after_part(topic_partition)

    def _put_attempt(self, ingest: Ingest, record: AttemptRecord) -> None:
        slices = ingest.slice_count
        former = ingest.put_attempt(record.key, record.value)
        self.slice_count += ingest.slice_count - slices
        self.attempt_count += (record.value is not None) - (former is not None)
        if former is not None:
            del self._by_producer_id[former.producer_id]
        if record.value is not None:
            self._by_producer_id[record.value.producer_id] = (ingest.ingest_id, record.key)

    def _put_plan(self, ingest: Ingest, record: PlanRecord) -> None:
        key = (ingest.ingest_id, record.round)
        planned = self._planned.setdefault(record.topic_partition, {})
        self.part_count += (record.value is not None) - (key in planned)
        ingest.put_plan(record.round, record.topic_partition, record.value)
        if record.value is None:
            planned.pop(key, None)
        else:
            planned[key] = None
        if not planned:
            del self._planned[record.topic_partition]
        if self.soft.now_ms is not None:
            self._after_part(record.topic_partition)

    def _after_value(self, ingest: Ingest) -> None:
        """Keep deadlines and questions in step with an ingest."""
        value, soft = ingest.value, self.soft
        if value is None:
            soft.deadlines.set(ingest.ingest_id, None)
            soft.groups.expect(ingest.ingest_id, None)
            soft.lived_ms.pop(ingest.ingest_id, None)
            return
        # Another coordinator's clock may have been ahead of this one's.
        changed_ms = min(value.touched_ms - self._unix_offset_ms, self.now_ms)
        soft.lived_ms[ingest.ingest_id] = max(soft.lived_ms.get(ingest.ingest_id, changed_ms), changed_ms)
        soft.deadlines.set(ingest.ingest_id, self._deadline_ms(ingest))
        group = value.group
        outcome = None if group is None else OutcomeIdentity(group.ingest_epoch, group.round, group.is_committed)
        soft.groups.expect(ingest.ingest_id, outcome)

    def _after_part(self, topic_partition: TopicPartition) -> None:
        self.soft.parts.expect(topic_partition, self.first_unpublished(topic_partition))


def _is_active(value: IngestValue | None) -> bool:
    return value is not None and value.state in _ACTIVE


def _result_parts(value: IngestValue | None) -> int:
    return 0 if value is None or value.decision is None else len(value.decision.parts)


def _phase(value: IngestValue) -> tuple[IngestState, int, int]:
    return value.state, value.ingest_epoch, value.round
