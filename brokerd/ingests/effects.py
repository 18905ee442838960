# SPDX-License-Identifier: Apache-2.0
"""Effects of the ingest core: what the shell has to do once the decision is committed. Each carries all that it needs.

Values only.
"""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.ingests.records import PublishedPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Staged records of one attempt for one partition.

    Attributes:
        task: task of the attempt, for texts.
        producer_id: its staging producer id.
        first_sequence: sequence of the first record.
        records: number of records.
        first_offset: offset of the first record at the staging partition.
        end_offset: offset after the last record at the staging partition.
    """

    task: int
    producer_id: int
    first_sequence: int
    records: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One partition of one decision.

    Attributes:
        topic_id: topic.
        partition: partition.
        base_sequence: publishing sequence of the first record.
        records: number of records.
        slices: where they are staged, in the order in which they are published.
        lost_records: records published before it that are known to be lost.
    """

    topic_id: bytes
    partition: int
    base_sequence: int
    records: int
    slices: tuple[Slice, ...]
    lost_records: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Ask the leader of a partition to publish a part, and give `PartPublished` back.

    If that fails, do nothing: it is asked for again. An ask for a part that is under way can be left out.

    Attributes:
        ingest_id: ingest.
        round: round of the decision.
        producer_id: publishing producer id.
        part: what to publish.
    """

    ingest_id: str
    round: int
    producer_id: int
    part: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveOffsets:
    """Tell the coordinator of a group what became of the offsets that it prepared, and give `OffsetsResolved` back.

    A group that has nothing prepared for this epoch and round has heard it before. If asking fails, do nothing: it is asked for again.
    `offsets_digest` names the offsets that count; empty: none do.
    """

    ingest_id: str
    ingest_epoch: int
    round: int
    group_id: str
    is_committed: bool
    offsets_digest: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestResult:
    """What a decision has published.

    Attributes:
        round: round.
        records: records of all partitions.
        dropped_attempts: attempts of the round that were not in the manifest.
        parts: partitions, by topic id and partition.
    """

    round: int
    records: int
    dropped_attempts: int
    parts: tuple[PublishedPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestCompleted:
    """Everything of a decision is published: answer the commits and the opens that wait for it."""

    ingest_id: str
    result: IngestResult


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestExpired:
    """Log and count an ingest that was aborted because its time was over."""

    ingest_id: str
    ingest_epoch: int
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsLost:
    """Log and count published records that the log of a partition has lost.

    Attributes:
        topic_id: topic.
        partition: partition.
        records: how many, beyond those that were noted before.
        ingest_id: ingest that is published there next, and whose result says so.
        round: round of the ingest.
    """

    topic_id: bytes
    partition: int
    records: int
    ingest_id: str
    round: int


Effect = Publish | ResolveOffsets | IngestCompleted | IngestExpired | RecordsLost
"""Everything that the shell may have to do."""
