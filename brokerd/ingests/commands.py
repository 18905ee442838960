# SPDX-License-Identifier: Apache-2.0
"""Commands of the ingest core: what clients, leaders of partitions, coordinators of groups and the shell ask for.

Values only. Source: `docs/ingest.md` section "Commands of the core".
"""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.ingests.records import IngestKind, IngestState, IngestTopic, StagedPart, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenIngest:
    """Opens an ingest, or takes it over from an earlier client.

    Attributes:
        ingest_id: ingest.
        kind: how often it is committed.
        topics: topics that it publishes to.
        ttl_ms: milliseconds without a call after which it is aborted; 0: the default.
        owner: who opens it. An open by the owner of the present epoch joins that epoch; one by the owner of an earlier epoch is
            refused. Empty: nobody in particular, who takes the ingest over.
    """

    ingest_id: str
    kind: IngestKind
    topics: tuple[IngestTopic, ...]
    ttl_ms: int = 0
    owner: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAttempt:
    """Opens an attempt, or one that was sealed in the last round once more."""

    ingest_id: str
    ingest_epoch: int
    task: int
    attempt_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SealAttempt:
    """Ends an attempt that has staged everything.

    Attributes:
        ingest_id: ingest.
        ingest_epoch: epoch of the open.
        task: task.
        attempt_id: name of the try.
        parts: what it has staged, each partition once.
        round: round that it is sealed for, so that a late copy does nothing in the next one; 0: the present round.
    """

    ingest_id: str
    ingest_epoch: int
    task: int
    attempt_id: bytes
    parts: tuple[StagedPart, ...]
    round: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestEntry:
    """An attempt that counts, with the records of all its parts."""

    task: int
    attempt_id: bytes
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """A committed offset of a group that goes with a decision.

    Attributes:
        topic_id: topic.
        partition: partition.
        offset: next offset to read.
        leader_epoch: leader epoch of the record before it; -1: unknown.
        metadata: text of the application.
    """

    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets:
    """Offsets of a group that are committed if and only if the ingest is. The group checks who commits them."""

    group_id: str
    offsets: tuple[GroupOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCommit:
    """Asks what must be checked before a commit can be decided. The group may be asked to prepare its offsets after that.

    Attributes:
        ingest_id: ingest.
        ingest_epoch: epoch of the open.
        round: round that is committed.
        manifest: attempts that count.
        offsets: offsets of a group; None: none.
    """

    ingest_id: str
    ingest_epoch: int
    round: int
    manifest: tuple[ManifestEntry, ...]
    offsets: GroupOffsets | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideCommit:
    """Decides: everything staged is there, and the group has prepared its offsets. See `PlanCommit`."""

    ingest_id: str
    ingest_epoch: int
    round: int
    manifest: tuple[ManifestEntry, ...]
    offsets: GroupOffsets | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideOutcome:
    """The coordinator of a group that has prepared offsets asks what becomes of them: an undecided round is aborted by that."""

    ingest_id: str
    ingest_epoch: int
    round: int
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPublished:
    """A leader has published a part, or its topic is gone.

    Attributes:
        ingest_id: ingest.
        round: round.
        topic_id: topic.
        partition: partition.
        base_sequence: that of the part, so that a late answer is not taken for that of a later ingest with the same id.
        first_offset: offset of the first record; `NO_OFFSET`: it was deleted since, by retention for example.
        end_offset: offset after the last record; `NO_OFFSET`: it was deleted since.
        is_topic_gone: True: the topic was deleted, and nothing more is published there.
    """

    ingest_id: str
    round: int
    topic_id: bytes
    partition: int
    base_sequence: int
    first_offset: int
    end_offset: int
    is_topic_gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsResolved:
    """The group has heard the outcome, and its coordinator has it on record."""

    ingest_id: str
    ingest_epoch: int
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortIngest:
    """Ends an ingest, or a round, without publishing anything.

    Attributes:
        ingest_id: ingest.
        ingest_epoch: epoch of the open; 0: whatever it is.
        round: round that is meant; 0: the present one.
    """

    ingest_id: str
    ingest_epoch: int
    round: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchIngest:
    """Keeps an open ingest alive."""

    ingest_id: str
    ingest_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeIngest:
    """Describes an ingest."""

    ingest_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListIngests:
    """Lists ingests by id, `limit` at a time, after the id `after`; `states` empty: in any state."""

    after: str = ""
    limit: int = 1_000
    states: tuple[IngestState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveAttempts:
    """The leader of a staging partition asks which records of some staging producer ids may still be needed."""

    topic_partition: TopicPartition
    producer_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedUpTo:
    """Asks up to which publishing sequence of a partition every decision is complete in all its partitions."""

    topic_partition: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsDeleted:
    """Topics that are known to be deleted: their parts end. After loading, the shell names those of `IngestCore.topics`."""

    topic_ids: tuple[bytes, ...]


Command = (
    OpenIngest
    | OpenAttempt
    | SealAttempt
    | PlanCommit
    | DecideCommit
    | DecideOutcome
    | PartPublished
    | OffsetsResolved
    | AbortIngest
    | TouchIngest
    | DescribeIngest
    | ListIngests
    | LiveAttempts
    | PublishedUpTo
    | TopicsDeleted
)
"""Everything that can be asked of the core."""


def scope_of(command: Command) -> str | None:
    """Return the ingest that a command concerns; None: it may see what others write, such as sequences.

    Commands of different ingests may share a turn. They see each other in limits of the coordinator alone, which a turn may pass by
    its number of commands.
    """
    match command:
        case DecideCommit() | ListIngests() | LiveAttempts() | PublishedUpTo() | TopicsDeleted():
            return None
        case _:
            return command.ingest_id
