# SPDX-License-Identifier: Apache-2.0
"""Records of ingests: what the log holds. A record with value None is a tombstone.

Values only. No record says anything about another key, so that replay gives the same state from any compacted subset of the log.
Source: `docs/ingest.md` section "Records of `__ingests`".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

NO_OFFSET: Final = -1
"""An offset of a published part that is no more: the topic was deleted after the decision, or the record before somebody asked."""


class TopicPartition(NamedTuple):
    """A partition of a topic, by topic id."""

    topic_id: bytes
    partition: int


class AttemptKey(NamedTuple):
    """An attempt of an ingest: one try at one task."""

    task: int
    attempt_id: bytes


class IngestKind(Enum):
    """How often an ingest is committed."""

    SINGLE = 1
    """Once: its id is used up then."""
    REPEATED = 2
    """Once for each round."""


class IngestState(Enum):
    """State of an ingest."""

    OPEN = 1
    """Attempts stage and seal."""
    DECIDED = 2
    """Decided; not everything is published."""
    COMMITTED = 3
    """Everything is published. A repeated ingest is open for its next round instead."""
    ABORTED = 4
    """Nothing is published."""


@dataclass(frozen=True, slots=True)
class IngestTopic:
    """A topic of an ingest, with its name when the ingest was opened."""

    topic_id: bytes
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPart:
    """Where the records of one partition are.

    Attributes:
        topic_id: topic.
        partition: partition.
        records: number of records.
        first_offset: offset of the first one; `NO_OFFSET`: it, or the topic, was deleted.
        end_offset: offset after the last one; `NO_OFFSET`: it, or the topic, was deleted.
    """

    topic_id: bytes
    partition: int
    records: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionValue:
    """The last decision of an ingest.

    Attributes:
        round: round that it decided.
        ingest_epoch: epoch of the ingest that decided it.
        digest: SHA-256 of the manifest and the offsets.
        records: records of all partitions.
        dropped_attempts: attempts of the round that the manifest did not name.
        parts: once everything is published: the partitions, by topic id and partition.
        group_id: group whose offsets count with it; empty: none.
    """

    round: int
    ingest_epoch: int
    digest: bytes
    records: int
    dropped_attempts: int
    parts: tuple[PublishedPart, ...] = ()
    group_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnresolvedGroup:
    """A group that has not confirmed what became of the offsets that it prepared.

    Attributes:
        group_id: group.
        ingest_epoch: epoch at which the offsets were prepared.
        round: round for which they were prepared.
        is_committed: True: they count.
    """

    group_id: str
    ingest_epoch: int
    round: int
    is_committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestValue:
    """An ingest.

    Attributes:
        kind: how often it is committed.
        state: where it stands.
        ingest_epoch: epoch of the last open. No id has an epoch twice, also after it was forgotten.
        round: round that is open or decided, or was aborted, or, of a single ingest, committed.
        topics: topics of the last open.
        ttl_ms: milliseconds without a call after which it is aborted while it is open.
        touched_ms: date of the last touch or change of state, in milliseconds since 1970.
        decision: the last decision; None: there was none.
        group: the group that has not confirmed the outcome; None: none.
        owner: owner of the last open; empty: nobody in particular.
        fenced_owners: owners of earlier opens, the last one at the end.
    """

    kind: IngestKind
    state: IngestState
    ingest_epoch: int
    round: int
    topics: tuple[IngestTopic, ...]
    ttl_ms: int
    touched_ms: int
    decision: DecisionValue | None = None
    group: UnresolvedGroup | None = None
    owner: bytes = b""
    fenced_owners: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPart:
    """What an attempt has staged for one partition.

    Attributes:
        topic_id: topic that it is meant for.
        partition: partition.
        first_sequence: sequence of the first record.
        records: number of records, at least 1.
        first_offset: offset of the first record at the staging partition.
        end_offset: offset after the last record at the staging partition. Records of others may lie between.
    """

    topic_id: bytes
    partition: int
    first_sequence: int
    records: int
    first_offset: int
    end_offset: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that it is meant for."""
        return TopicPartition(self.topic_id, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class FreedPart:
    """Staged records of a partition that earlier rounds have published or dropped.

    Attributes:
        topic_id: topic.
        partition: partition.
        end_sequence: sequence below which nothing is needed any more; the next round begins there.
    """

    topic_id: bytes
    partition: int
    end_sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptValue:
    """An attempt.

    Attributes:
        producer_id: producer id of its batches.
        ingest_epoch: epoch of the ingest at which it was opened.
        round: round that it belongs to.
        is_sealed: True: it has staged everything.
        parts: what it has staged, once it is sealed, by topic id and partition.
        freed: what its earlier rounds have published or dropped, by topic id and partition.
    """

    producer_id: int
    ingest_epoch: int
    round: int
    is_sealed: bool = False
    parts: tuple[StagedPart, ...] = ()
    freed: tuple[FreedPart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanValue:
    """A part of a decision.

    Attributes:
        base_sequence: publishing sequence of its first record.
        records: number of records.
        is_published: True: it is published, or its topic is gone.
        first_offset: see `PublishedPart`.
        end_offset: see `PublishedPart`.
    """

    base_sequence: int
    records: int
    is_published: bool = False
    first_offset: int = NO_OFFSET
    end_offset: int = NO_OFFSET


@dataclass(frozen=True, slots=True)
class IngestRecord:
    """An ingest."""

    ingest_id: str
    value: IngestValue | None


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """An attempt of an ingest."""

    ingest_id: str
    key: AttemptKey
    value: AttemptValue | None


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """A part of a decision of an ingest."""

    ingest_id: str
    round: int
    topic_partition: TopicPartition
    value: PlanValue | None


@dataclass(frozen=True, slots=True)
class SequencesRecord:
    """Next publishing sequences of the partitions of a block: those from 64 times its number on; missing ones are 0."""

    topic_id: bytes
    block: int
    value: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class CounterRecord:
    """Number of staging producer ids that were given."""

    value: int | None


@dataclass(frozen=True, slots=True)
class ManifestRecord:
    """The attempts that a decision of an ingest names, by task."""

    ingest_id: str
    round: int
    value: tuple[AttemptKey, ...] | None


@dataclass(frozen=True, slots=True)
class EpochsRecord:
    """The highest epoch of an ingest that was forgotten."""

    value: int | None


IngestLogRecord = (
    IngestRecord | AttemptRecord | PlanRecord | SequencesRecord | CounterRecord | ManifestRecord | EpochsRecord
)
"""Everything that the log of ingests may hold."""

_RECORD_BYTES: Final = 96
"""Bytes of a record beyond ids and lists: key, numbers, framing of the batch, what the runtime counts for it."""

_PART_BYTES: Final = 72
"""Bytes of an entry with a topic id, a partition and up to four numbers."""


def record_bytes(record: IngestLogRecord) -> int:
    """Return an estimate of the bytes of a record in the log, rather too high, so that decisions fit into a batch."""
    match record:
        case SequencesRecord():
            return _RECORD_BYTES + 5 * len(record.value or ())
        case CounterRecord() | EpochsRecord():
            return _RECORD_BYTES
        case _:
            size = _RECORD_BYTES + len(record.ingest_id.encode())
    match record:
        case IngestRecord(value=IngestValue() as value):
            size += 64 + sum(32 + len(topic.name.encode()) for topic in value.topics)
            size += sum(4 + len(owner) for owner in (value.owner, *value.fenced_owners))
            if value.decision is not None:
                size += 96 + _PART_BYTES * len(value.decision.parts) + len(value.decision.group_id.encode())
            if value.group is not None:
                size += 32 + len(value.group.group_id.encode())
        case AttemptRecord():
            size += len(record.key.attempt_id)
            if record.value is not None:
                size += 40 + _PART_BYTES * len(record.value.parts) + 40 * len(record.value.freed)
        case PlanRecord():
            size += 48
        case ManifestRecord(value=tuple() as keys):
            size += sum(13 + len(key.attempt_id) for key in keys)
        case _:
            pass
    return size
