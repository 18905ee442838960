# SPDX-License-Identifier: Apache-2.0
"""What must hold of ingests: the invariants of `docs/ingest.md` by their numbers, over what is committed, answered and published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from brokerd.ingests.answers import (
    Aborted,
    AttemptOpened,
    Committed,
    Decided,
    Opened,
    Outcome,
    OutcomeKnown,
    Refusal,
    Refused,
    Watermark,
)
from brokerd.ingests.commands import (
    AbortIngest,
    Command,
    DecideCommit,
    DecideOutcome,
    OpenAttempt,
    OpenIngest,
    PlanCommit,
    PublishedUpTo,
)
from brokerd.ingests.commits import digest_of, offsets_digest
from brokerd.ingests.effects import IngestResult, Publish
from brokerd.ingests.limits import PARTITION_RECORDS_MAX
from brokerd.ingests.records import (
    NO_OFFSET,
    AttemptKey,
    AttemptRecord,
    AttemptValue,
    IngestLogRecord,
    IngestRecord,
    IngestState,
    PlanRecord,
    TopicPartition,
    UnresolvedGroup,
)
from brokerd.ingests.sequences import advanced, distance
from brokerd.tests.ingests.ingest_world import World

Round = tuple[str, int, int]
"""Ingest id, epoch, round: no life of an id has them again."""


@dataclass(slots=True)
class DecisionModel:
    """A decision that is committed."""

    ingest_id: str
    ingest_epoch: int
    round: int
    digest: bytes
    expected: Mapping[TopicPartition, Sequence[int]]
    bases: Mapping[TopicPartition, int]
    offset: int | None
    offsets_digest: bytes
    batch: int


class Laws:
    """The laws of one walk, and what they have seen committed."""

    def __init__(self, world: World, counts: Counter[str]) -> None:
        self.world = world
        self.counts = counts
        self.decisions: dict[tuple[str, int, int], DecisionModel] = {}
        self.lives = Counter[str]()
        self._epochs: dict[str, int] = {}
        self._attempts: dict[tuple[str, int, AttemptKey], AttemptValue] = {}
        self._producers: dict[int, tuple[str, int, int, AttemptKey]] = {}
        self._never: dict[Round, None] = {}
        self._unheard: dict[str, UnresolvedGroup | None] = {}

    # What is committed

    def note_committed(self, command: Command | None, records: Sequence[IngestLogRecord], batch: int) -> None:
        """Note a decision of the core whose records are committed."""
        for record in records:
            if isinstance(record, AttemptRecord):
                key = (record.ingest_id, self.lives[record.ingest_id], record.key)
                if record.value is None:
                    self._attempts.pop(key, None)
                else:
                    self._attempts[key] = record.value
            if isinstance(record, IngestRecord):
                self._note_ingest(record, command, records, batch)

    def _note_ingest(
        self, record: IngestRecord, command: Command | None, records: Sequence[IngestLogRecord], batch: int
    ) -> None:
        ingest_id, value = record.ingest_id, record.value
        life = self.lives[ingest_id]
        if value is None:
            # It must not be forgotten before its group has heard that its offsets count; that shows at the end.
            self.lives[ingest_id] += 1
            self.counts["forgotten"] += 1
            self._unheard.pop(ingest_id, None)
            return
        self._unheard[ingest_id] = value.group
        former_epoch = self._epochs.get(ingest_id, 0)
        is_open = isinstance(command, OpenIngest)
        assert value.ingest_epoch - former_epoch >= is_open, "5: an open does not raise the epoch"
        assert is_open or value.ingest_epoch == former_epoch, "5: the epoch rises without an open"
        self._epochs[ingest_id] = value.ingest_epoch
        if value.state is IngestState.ABORTED:
            self._never[ingest_id, value.ingest_epoch, value.round] = None
        decision = value.decision
        if decision is None:
            return
        known = self.decisions.get((ingest_id, life, decision.round))
        if known is not None:
            assert known.digest == decision.digest, "1: a round has two decisions"
            assert known.ingest_epoch == decision.ingest_epoch, "1: a round has two decisions"
            return
        assert isinstance(command, DecideCommit), "1: a decision that nobody asked for"
        assert (command.ingest_epoch, command.round) == (value.ingest_epoch, decision.round), (
            "5: a fenced client decides"
        )
        self._note_decision(command, life, records, batch)

    def _note_decision(self, command: DecideCommit, life: int, records: Sequence[IngestLogRecord], batch: int) -> None:
        ingest_id = command.ingest_id
        expected: dict[TopicPartition, list[int]] = {}
        for entry in sorted(command.manifest, key=lambda each: each.task):
            attempt = self._attempts.get((ingest_id, life, AttemptKey(entry.task, entry.attempt_id)))
            assert attempt is not None, "2: the manifest names an attempt that does not exist"
            assert attempt.is_sealed, "2: an attempt counts that is not sealed"
            assert attempt.ingest_epoch == command.ingest_epoch, "5: an attempt of a lower epoch counts"
            assert attempt.round == command.round, "2: an attempt counts in two rounds"
            assert sum(each.records for each in attempt.parts) == entry.records, (
                "2: other records than the manifest says"
            )
            for part in attempt.parts:
                where = part.topic_partition
                staged = self.world.content(attempt.producer_id, where, part.first_sequence, part.records)
                expected.setdefault(where, []).extend(staged)
        plans = {each.topic_partition: each.value for each in records if isinstance(each, PlanRecord) and each.value}
        assert {each: plan.records for each, plan in plans.items()} == {
            each: len(content) for each, content in expected.items()
        }, "2: the plan is not the manifest"
        offset = None if command.offsets is None else command.offsets.offsets[0].offset
        key = (ingest_id, command.ingest_epoch, command.round)
        assert key not in self._never, "1: a round is decided that was said never to be"
        self.counts["decided"] += 1
        self.counts["decided with offsets"] += offset is not None
        self.decisions[ingest_id, life, command.round] = DecisionModel(
            ingest_id=ingest_id,
            ingest_epoch=command.ingest_epoch,
            round=command.round,
            digest=digest_of(command.manifest, command.offsets),
            expected=expected,
            bases={each: plan.base_sequence for each, plan in plans.items()},
            offset=offset,
            offsets_digest=b"" if command.offsets is None else offsets_digest(command.offsets),
            batch=batch,
        )

    # What is asked of others

    def check_publish(self, effect: Publish) -> None:
        """A publication belongs to a decision that is committed, and is what its manifest says."""
        where = TopicPartition(effect.part.topic_id, effect.part.partition)
        decision = next((each for each in self._of(effect.ingest_id, effect.round) if where in each.bases), None)
        matching = [
            each
            for each in self._of(effect.ingest_id, effect.round)
            if each.bases.get(where) == effect.part.base_sequence
        ]
        assert decision is not None, "2: published before the decision is committed"
        assert matching, "2: published what no decision names"
        content = [
            record
            for each in effect.part.slices
            for record in self.world.content(each.producer_id, where, each.first_sequence, each.records)
        ]
        assert content == matching[-1].expected[where], "4: published in another order, or other records"

    def _of(self, ingest_id: str, number: int) -> list[DecisionModel]:
        lives = range(self.lives[ingest_id] + 1)
        found = (self.decisions.get((ingest_id, life, number)) for life in lives)
        return [each for each in found if each is not None]

    def has_applied(self, key: Round) -> bool:
        """Return True if a group has applied the offsets of a decision."""
        return any(each == key for each, _ in self.world.applied)

    def has_confirmed(self, key: Round) -> bool:
        """Return True if it is on record that the group knows the outcome of a round."""
        group = self._unheard.get(key[0])
        return group is None or (group.ingest_epoch, group.round) != key[1:]

    def check_applied(self, key: tuple[str, int, int], offset: int) -> None:
        """Offsets that a group applies belong to a decision."""
        ingest_id, ingest_epoch, number = key
        matching = [each for each in self._of(ingest_id, number) if each.ingest_epoch == ingest_epoch]
        assert any(each.offset == offset for each in matching), "6: offsets are committed without their decision"

    # What is answered

    def check_answer(self, command: Command, outcome: Outcome, life: int, seen: int) -> None:
        """An answer agrees with what is committed.

        Args:
            command: the command.
            outcome: the answer.
            life: life of the ingest id when it was decided.
            seen: batches that the decision has seen.
        """
        self.counts[type(outcome).__name__] += 1
        match command, outcome:
            case ((PlanCommit() | DecideCommit()), (Committed() | Decided())):
                decision = self.decisions[command.ingest_id, life, command.round]
                assert digest_of(command.manifest, command.offsets) == decision.digest, (
                    "1: another manifest is committed"
                )
                if isinstance(outcome, Committed):
                    self._check_result(decision, outcome.result)
            case ((PlanCommit() | DecideCommit()), Refused(code=Refusal.INGEST_CONFLICT)):
                decision = self.decisions[command.ingest_id, life, command.round]
                assert digest_of(command.manifest, command.offsets) != decision.digest, (
                    "1: the same manifest is refused"
                )
            case ((PlanCommit() | DecideCommit()), Refused(code=Refusal.INGEST_FENCED | Refusal.INGEST_ABORTED)):
                self._promise_never(command.ingest_id, life, command.ingest_epoch, command.round)
            case AbortIngest(), Aborted() if command.round:
                self._promise_never(command.ingest_id, life, command.ingest_epoch, command.round)
            case DecideOutcome(), OutcomeKnown():
                decision = self.decisions.get((command.ingest_id, life, command.round))
                is_it = decision is not None and decision.ingest_epoch == command.ingest_epoch
                counts = is_it and decision is not None and decision.offsets_digest == command.offsets_digest
                key = (command.ingest_id, command.ingest_epoch, command.round)
                assert counts or not outcome.is_committed, "6: offsets count that no decision names"
                assert outcome.is_committed or not counts or self.has_applied(key), (
                    "6: offsets of a decision are dropped"
                )
                if not is_it:
                    self._promise_never(command.ingest_id, life, command.ingest_epoch, command.round)
            case OpenIngest(), Opened(result=IngestResult() as result):
                self._check_result(self.decisions[command.ingest_id, life, result.round], result)
            case OpenAttempt(), AttemptOpened():
                whose = (command.ingest_id, life, command.ingest_epoch, AttemptKey(command.task, command.attempt_id))
                known = self._producers.setdefault(outcome.producer_id, whose)
                assert known == whose, "2: two attempts have one producer id"
            case PublishedUpTo(), Watermark():
                self._check_watermark(command.topic_partition, outcome, seen)
            case _:
                pass

    def _promise_never(self, ingest_id: str, life: int, ingest_epoch: int, number: int) -> None:
        decision = self.decisions.get((ingest_id, life, number))
        assert decision is None or decision.ingest_epoch != ingest_epoch, "1: a decided round is called off"
        self._never[ingest_id, ingest_epoch, number] = None

    def _check_result(self, decision: DecisionModel, result: IngestResult) -> None:
        parts = {TopicPartition(each.topic_id, each.partition): each for each in result.parts}
        assert set(parts) == set(decision.expected), "3: the result has other partitions"
        for where, content in decision.expected.items():
            part = parts[where]
            assert part.records == len(content), "3: the result has other counts"
            if where.topic_id in self.world.deleted:
                continue
            assert part.first_offset != NO_OFFSET, "3: a part of a topic that exists is given up"
            assert self.is_published(decision, where), "3: answered before everything is published"
            log, base, offsets = (
                self.world.published[where],
                decision.bases[where],
                (part.first_offset, part.end_offset),
            )
            assert log.offsets.get(base) == offsets or (base, offsets) in log.former, "3: the part lies elsewhere"

    def is_published(self, decision: DecisionModel, where: TopicPartition) -> bool:
        """Return True if a part of a decision is published; what is there must be the manifest."""
        content = decision.expected[where]
        found = self.world.published_at(where, decision.bases[where], len(content))
        assert found is None or found == content, "2: other records are published"
        return found is not None

    def is_complete(self, decision: DecisionModel) -> bool:
        """Return True if everything of a decision is published."""
        return all(
            where.topic_id in self.world.deleted or self.is_published(decision, where) for where in decision.expected
        )

    def _check_watermark(self, where: TopicPartition, outcome: Watermark, seen: int) -> None:
        sequence = outcome.sequence
        for decision in self.decisions.values():
            if where not in decision.bases or decision.batch >= seen:
                continue
            last = advanced(decision.bases[where], len(decision.expected[where]) - 1)
            is_below = sequence is None or distance(sequence, last) > PARTITION_RECORDS_MAX
            assert not is_below or self.is_complete(decision), "a reader sees a part of a decision"
            is_known = 0 < distance(last, outcome.end_sequence) <= PARTITION_RECORDS_MAX
            assert is_known or where.topic_id in self.world.deleted, "a decision is beyond the end, and readers wait"
        self.counts["watermark below something"] += sequence is not None

    # The end

    def check_everything_published(self) -> None:
        """Every decision is published, once, in the order of the decisions, and nothing else is."""
        for where in self.world.partitions():
            parts = [each for each in self.decisions.values() if where in each.bases]
            newest = self.world.published[where].next_sequence
            parts.sort(key=lambda each: -distance(each.bases[where], newest))
            lost = set(self.world.published[where].lost.values())
            wanted = [record for each in parts for record in each.expected[where] if record not in lost]
            found = [record for _, record in self.world.published[where].records]
            assert found == wanted, "3: not everything is published once, or more than that"

    def check_offsets(self) -> None:
        """Offsets are applied if and only if their decision is made, and once."""
        assert not self.world.pending, "6: a group waits for ever"
        applied = Counter(key for key, _ in self.world.applied)
        for key, count in applied.items():
            assert count == 1, f"6: offsets of {key} are applied twice"
        for decision in self.decisions.values():
            if decision.offset is not None:
                key = (decision.ingest_id, decision.ingest_epoch, decision.round)
                assert (key, decision.offset) in self.world.applied, "6: a decision without its offsets"
