# SPDX-License-Identifier: Apache-2.0
"""One coordinator of ingests in virtual time, whose log is committed at once. Every record goes through the codec."""

from __future__ import annotations

import random

from brokerd.ingests.answers import AttemptOpened, IngestDecision, Opened, Outcome, Refusal, Refused, Sealed
from brokerd.ingests.codec import decode, encode
from brokerd.ingests.commands import (
    AbortIngest,
    Command,
    DecideCommit,
    GroupOffset,
    GroupOffsets,
    ManifestEntry,
    OpenAttempt,
    OpenIngest,
    PartPublished,
    PlanCommit,
    SealAttempt,
)
from brokerd.ingests.core import IngestCore
from brokerd.ingests.effects import Effect, Publish
from brokerd.ingests.records import IngestKind, IngestLogRecord, IngestTopic, IngestValue, StagedPart, TopicPartition
from brokerd.tests.ingests.ingest_walk import Entry, compacted

PARTITION = 5
UNIX_OFFSET_MS = 1_700_000_000_000
TOPIC = b"t" * 16
OTHER = b"u" * 16
TOPICS = (IngestTopic(TOPIC, "t"), IngestTopic(OTHER, "u"))
ATTEMPT = b"a"
P0 = TopicPartition(TOPIC, 0)
P1 = TopicPartition(TOPIC, 1)
OFFSETS = GroupOffsets(group_id="g", offsets=(GroupOffset(topic_id=b"i" * 16, partition=0, offset=7),))


def part(where: TopicPartition = P0, records: int = 2, first_sequence: int = 0, first_offset: int = 0) -> StagedPart:
    """Return a staged part without records of others between."""
    return StagedPart(
        topic_id=where.topic_id,
        partition=where.partition,
        first_sequence=first_sequence,
        records=records,
        first_offset=first_offset,
        end_offset=first_offset + records,
    )


class IngestHost:
    """One coordinator.

    Attributes:
        core: the present core.
        log: decisions.
        now_ms: virtual time.
        effects: effects that nobody has taken.
    """

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.now_ms = 1_000
        self.effects: list[Effect] = []
        self.core = IngestCore(PARTITION, unix_offset_ms=UNIX_OFFSET_MS)
        self.core.tick(self.now_ms)

    def do(self, command: Command) -> Outcome:
        """Decide about a command, append, and return the outcome. Effects are collected."""
        return self._take(command, self.core.decide(command, self.now_ms))

    def refusal(self, command: Command) -> Refusal | None:
        """Do a command. Return why it was refused, or None."""
        outcome = self.do(command)
        return outcome.code if isinstance(outcome, Refused) else None

    def put(self, *records: IngestLogRecord) -> None:
        """Put records into the log."""
        self.log.append(Entry(None, tuple(map(encode, records))))
        for record in records:
            self.core.replay(record)

    def _take(self, command: Command | None, decision: IngestDecision) -> Outcome:
        assert len(decision.records) <= 4_096, "more records than the runtime takes"
        coded = tuple(map(encode, decision.records))
        assert tuple(map(decode, coded)) == decision.records
        for record in decision.records:
            self.core.replay(record)
        if coded:
            self.log.append(Entry(command, coded))
        self.effects += decision.response.effects
        return decision.response.outcome

    def tick(self) -> IngestDecision | None:
        """Run one tick."""
        decision = self.core.tick(self.now_ms)
        if decision is not None:
            self._take(None, decision)
        return decision

    def run(self, milliseconds: int = 0) -> None:
        """Let time pass, with every tick that is due."""
        end_ms = self.now_ms + milliseconds
        for _ in range(10_000):
            deadline_ms = self.core.deadline_ms()
            if deadline_ms is None or deadline_ms > end_ms:
                self.now_ms = end_ms
                return
            self.now_ms = max(self.now_ms, deadline_ms)
            self.tick()
        raise AssertionError("ticks without end")

    def fail_over(self, seed: int = 0) -> None:
        """Drop the core and load another one from a compacted log."""
        self.core = IngestCore(PARTITION, unix_offset_ms=UNIX_OFFSET_MS)
        for record in compacted(self.log, random.Random(seed)):
            self.core.replay(decode(record))
        self.effects = []
        self.tick()

    def value(self, ingest_id: str = "x") -> IngestValue:
        """Return an ingest that exists."""
        known = self.core.state.value_of(ingest_id)
        assert known is not None, f"no ingest {ingest_id}"
        return known[1]

    def open(self, ingest_id: str = "x", kind: IngestKind = IngestKind.SINGLE, ttl_ms: int = 0) -> Opened:
        """Open an ingest."""
        outcome = self.do(OpenIngest(ingest_id=ingest_id, kind=kind, topics=TOPICS, ttl_ms=ttl_ms))
        assert isinstance(outcome, Opened), outcome
        return outcome

    def attempt(self, task: int = 0, epoch: int = 1, ingest_id: str = "x", attempt_id: bytes = ATTEMPT) -> int:
        """Open an attempt. Return its producer id."""
        outcome = self.do(OpenAttempt(ingest_id=ingest_id, ingest_epoch=epoch, task=task, attempt_id=attempt_id))
        assert isinstance(outcome, AttemptOpened), outcome
        return outcome.producer_id

    def seal(
        self,
        *parts: StagedPart,
        task: int = 0,
        epoch: int = 1,
        ingest_id: str = "x",
        attempt_id: bytes = ATTEMPT,
    ) -> None:
        """Seal an attempt."""
        outcome = self.do(
            SealAttempt(ingest_id=ingest_id, ingest_epoch=epoch, task=task, attempt_id=attempt_id, parts=parts)
        )
        assert outcome == Sealed(), outcome

    def sealed(self, *parts: StagedPart, task: int = 0, epoch: int = 1, ingest_id: str = "x") -> ManifestEntry:
        """Open and seal an attempt. Return its entry in a manifest."""
        self.attempt(task, epoch, ingest_id)
        self.seal(*parts, task=task, epoch=epoch, ingest_id=ingest_id)
        return ManifestEntry(task=task, attempt_id=ATTEMPT, records=sum(each.records for each in parts))

    def plan(
        self,
        *manifest: ManifestEntry,
        epoch: int = 1,
        number: int = 1,
        ingest_id: str = "x",
        offsets: GroupOffsets | None = None,
    ) -> Outcome:
        """Plan a commit."""
        return self.do(
            PlanCommit(ingest_id=ingest_id, ingest_epoch=epoch, round=number, manifest=manifest, offsets=offsets)
        )

    def decide(
        self,
        *manifest: ManifestEntry,
        epoch: int = 1,
        number: int = 1,
        ingest_id: str = "x",
        offsets: GroupOffsets | None = None,
    ) -> Outcome:
        """Decide a commit."""
        return self.do(
            DecideCommit(ingest_id=ingest_id, ingest_epoch=epoch, round=number, manifest=manifest, offsets=offsets)
        )

    def abort(self, epoch: int = 1, number: int = 0, ingest_id: str = "x") -> Outcome:
        """Abort an ingest."""
        return self.do(AbortIngest(ingest_id=ingest_id, ingest_epoch=epoch, round=number))

    def asked(self) -> list[Publish]:
        """Take the publications that are asked for."""
        found = [each for each in self.effects if isinstance(each, Publish)]
        self.effects = [each for each in self.effects if not isinstance(each, Publish)]
        return found

    def published(self, effect: Publish, first_offset: int = 100) -> Outcome:
        """Report a part as published."""
        return self.do(
            PartPublished(
                ingest_id=effect.ingest_id,
                round=effect.round,
                topic_id=effect.part.topic_id,
                partition=effect.part.partition,
                base_sequence=effect.part.base_sequence,
                first_offset=first_offset,
                end_offset=first_offset + effect.part.records,
            )
        )

    def publish_all(self) -> None:
        """Publish everything that is asked for, and what follows from that."""
        while asked := self.asked():
            for effect in asked:
                self.published(effect)
        self.tick()
        if self.effects and any(isinstance(each, Publish) for each in self.effects):
            self.publish_all()


def code(outcome: Outcome) -> Refusal:
    """Return the code of a refusal."""
    assert isinstance(outcome, Refused), outcome
    return outcome.code
