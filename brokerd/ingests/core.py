# SPDX-License-Identifier: Apache-2.0
"""The ingest core of one coordinator: commands in, decisions out.

Owns the dispatch and the order of the work of a tick. It implements `brokerd.coordinator.core.Core`: the shell appends the records of a
decision, replays what the log accepted, and gives the answer when it is committed. The object is dropped with the leadership.
It does not read a clock, draw random numbers, wait or log.
Source: `docs/ingest.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from brokerd.ingests import administration, attempts, commits, opening, publication, sweep
from brokerd.ingests.answers import IngestDecision, Noted, decided
from brokerd.ingests.commands import (
    AbortIngest,
    Command,
    DecideCommit,
    DecideOutcome,
    DescribeIngest,
    ListIngests,
    LiveAttempts,
    NoteLostRecords,
    OffsetsResolved,
    OpenAttempt,
    OpenIngest,
    PartPublished,
    PlanCommit,
    PublishedUpTo,
    SealAttempt,
    TopicsDeleted,
    TouchIngest,
)
from brokerd.ingests.records import (
    AttemptKey,
    AttemptRecord,
    CounterRecord,
    EpochsRecord,
    IngestLogRecord,
    IngestRecord,
    ManifestRecord,
    PlanRecord,
    SequencesRecord,
)
from brokerd.ingests.state import IngestsState


class IngestCore:
    """The ingests of one coordinator during one leadership.

    Args:
        partition: partition of `__ingests`: it chooses the producer ids.
        unix_offset_ms: what makes milliseconds since 1970 of the monotonic time that decisions get.
    """

    def __init__(self, partition: int, *, unix_offset_ms: int) -> None:
        self._state = IngestsState(partition, unix_offset_ms=unix_offset_ms)

    @property
    def state(self) -> IngestsState:
        """The state. Callers must not change it."""
        return self._state

    def topics(self) -> tuple[bytes, ...]:
        """Return the topics that something was decided for, so that the shell can look after loading which of them were deleted."""
        return tuple(sorted({topic_id for topic_id, _ in self._state.sequences}))

    def decide(self, command: Command, now_ms: int) -> IngestDecision:
        """Return the decision about a command, without changing durable state.

        Args:
            command: the command.
            now_ms: monotonic time in milliseconds.
        """
        state = self._state
        state.note_time(now_ms)
        match command:
            case OpenIngest():
                return opening.open_ingest(state, command)
            case OpenAttempt():
                return attempts.open_attempt(state, command)
            case SealAttempt():
                return attempts.seal(state, command)
            case PlanCommit():
                return commits.plan_commit(state, command)
            case DecideCommit():
                return commits.decide_commit(state, command)
            case DecideOutcome():
                return opening.decide_outcome(state, command)
            case PartPublished():
                return publication.part_published(state, command)
            case NoteLostRecords():
                return publication.note_lost_records(state, command)
            case OffsetsResolved():
                return publication.offsets_resolved(state, command)
            case AbortIngest():
                return opening.abort(state, command)
            case TouchIngest():
                return opening.touch(state, command)
            case DescribeIngest():
                return administration.describe(state, command)
            case ListIngests():
                return administration.list_ingests(state, command)
            case LiveAttempts():
                return attempts.live(state, command)
            case PublishedUpTo():
                return publication.published_up_to(state, command)
            case TopicsDeleted():
                state.soft.deleted_topics.update(dict.fromkeys(sorted(command.topic_ids)))
                return decided(Noted())
            case _:
                assert_never(command)

    def replay(self, record: IngestLogRecord) -> None:
        """Apply a record that the log has: the only way to change durable state."""
        self._state.replay(record)

    def deadline_ms(self) -> int | None:
        """Return the monotonic time in milliseconds at which `tick` has something to decide; None: nothing is due."""
        soft = self._state.soft
        if soft.now_ms is None:
            return 0
        if soft.sweep or soft.deleted_topics:
            return soft.now_ms
        deadlines = (soft.deadlines.next_ms(), soft.parts.next_ms(soft.now_ms), soft.groups.next_ms(soft.now_ms))
        return min((each for each in deadlines if each is not None), default=None)

    def tick(self, now_ms: int) -> IngestDecision | None:
        """Decide about what is due, without changing durable state; None: nothing.

        What is left makes `deadline_ms` lie in the past.
        """
        state = self._state
        state.note_time(now_ms)
        work = sweep.Work()
        sweep.end_deleted_topics(state, work)
        sweep.end_overdue(state, work)
        sweep.delete_garbage(state, work)
        work.effects += publication.due_publications(state)
        work.effects += publication.due_outcomes(state)
        if not work.records and not work.effects:
            return None
        return decided(Noted(), work.records, work.effects)

    def records(self) -> Iterator[IngestLogRecord]:
        """Yield the durable state as records, in an order that depends on the state alone."""
        state = self._state
        if state.given:
            yield CounterRecord(state.given)
        if state.forgotten_epoch:
            yield EpochsRecord(state.forgotten_epoch)
        for topic_id, block in sorted(state.sequences):
            yield SequencesRecord(topic_id, block, state.sequences[topic_id, block])
        for ingest_id in sorted(state.ingests):
            ingest = state.ingests[ingest_id]
            if ingest.value is not None:
                yield IngestRecord(ingest_id, ingest.value)
            for key in sorted(ingest.attempts):
                yield AttemptRecord(ingest_id, key, ingest.attempts[key])
            for number in sorted(ingest.plans):
                for topic_partition in sorted(ingest.plans[number]):
                    yield PlanRecord(ingest_id, number, topic_partition, ingest.plans[number][topic_partition])
            for number in sorted(ingest.manifests):
                manifest = ingest.manifests[number]
                yield ManifestRecord(
                    ingest_id, number, tuple(AttemptKey(task, manifest[task]) for task in sorted(manifest))
                )
