# SPDX-License-Identifier: Apache-2.0
"""Commits: what must be checked before a decision, and the decision.

`plan_commit` writes nothing; `decide_commit` verifies the same again, since others may have come between.
Decisions over `IngestsState`; none of them changes durable state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from brokerd.ingests.answers import (
    Committed,
    Decided,
    IngestDecision,
    Outcome,
    Planned,
    Refusal,
    StagedCheck,
    decided,
    refused,
)
from brokerd.ingests.commands import DecideCommit, GroupOffsets, ManifestEntry, PlanCommit
from brokerd.ingests.effects import Effect, IngestCompleted, Part, Publish, Slice
from brokerd.ingests.ingest import Ingest, result_of, slices_by_partition
from brokerd.ingests.limits import (
    DECISION_BYTES_MAX,
    DECISION_RECORDS_MAX,
    GROUP_ID_BYTES_MAX,
    MANIFEST_ATTEMPTS_MAX,
    OFFSETS_MAX,
    PARTITION_RECORDS_MAX,
    PARTITIONS_MAX,
    PARTS_TOTAL_MAX,
    PUBLISH_RETRY_MS,
)
from brokerd.ingests.opening import aborted, fenced, not_found, publishing, tell_group, wrong_round
from brokerd.ingests.publication import completed
from brokerd.ingests.records import (
    AttemptKey,
    AttemptValue,
    DecisionValue,
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
    UnresolvedGroup,
    record_bytes,
)
from brokerd.ingests.sequences import BLOCK_PARTITIONS, advanced, publishing_producer_id
from brokerd.ingests.state import IngestsState, PartIdentity, Prepared


@dataclass(frozen=True, slots=True)
class _Verified:
    """A commit that may be decided: the attempts of its manifest by task, and their slices by partition."""

    ingest: Ingest
    value: IngestValue
    attempts: Sequence[tuple[AttemptKey, AttemptValue]]
    slices: dict[TopicPartition, list[Slice]]


@dataclass(frozen=True, slots=True)
class _Outline:
    """A decision before it is one: its records, and what follows from them."""

    records: tuple[IngestLogRecord, ...]
    value: IngestValue
    plans: dict[TopicPartition, PlanValue]


def plan_commit(state: IngestsState, command: PlanCommit) -> IngestDecision:
    """Say what must be checked before a commit is decided, or how an earlier commit of the round was answered."""
    verified = _verify(state, command)
    if not isinstance(verified, _Verified):
        return verified
    outline = _outline(state, command, verified)
    if not isinstance(outline, _Outline):
        return outline
    if command.offsets is not None:
        state.soft.prepared[command.ingest_id] = Prepared(command.ingest_epoch, command.round, command.offsets.group_id)
    checks = tuple(StagedCheck(topic_partition=each, slices=tuple(verified.slices[each])) for each in outline.plans)
    return decided(Planned(checks=checks))


def decide_commit(state: IngestsState, command: DecideCommit) -> IngestDecision:
    """Decide a commit: from here on the manifest counts, and nothing else of the round does."""
    verified = _verify(state, command)
    if not isinstance(verified, _Verified):
        return verified
    outline = _outline(state, command, verified)
    if not isinstance(outline, _Outline):
        return outline
    effects: list[Effect] = []
    value = outline.value
    if command.offsets is not None and value.group is not None:
        effects += tell_group(state, command.ingest_id, value.group)
    outcome: Outcome = Decided(round=command.round, parts=len(outline.plans), was_committed=False)
    if not outline.plans:
        result = result_of(value)
        assert result is not None, "a decision without parts is complete"
        effects.append(IngestCompleted(ingest_id=command.ingest_id, result=result))
        outcome = Committed(result=result, was_committed=False)
    for topic_partition, plan in outline.plans.items():
        if not state.soft.parts.has_room:
            break
        if state.first_unpublished(topic_partition) is None:
            effects.append(_publish_now(state, command, topic_partition, plan, verified.slices[topic_partition]))
    return decided(outcome, outline.records, effects)


def digest_of(manifest: Sequence[ManifestEntry], offsets: GroupOffsets | None) -> bytes:
    """Return the digest that tells whether two commits are the same. Who commits the offsets is no part of it."""
    lines = [
        f"{each.task} {each.attempt_id.hex()} {each.records}" for each in sorted(manifest, key=lambda each: each.task)
    ]
    if offsets is not None:
        lines += _offset_lines(offsets)
    return hashlib.sha256("\n".join(lines).encode()).digest()


def offsets_digest(offsets: GroupOffsets) -> bytes:
    """Return the digest by which an outcome names the offsets of a group that it is about."""
    return hashlib.sha256("\n".join(_offset_lines(offsets)).encode()).digest()


def _offset_lines(offsets: GroupOffsets) -> list[str]:
    lines = [f"group {offsets.group_id.encode().hex()}"]
    for each in sorted(offsets.offsets, key=lambda each: (each.topic_id, each.partition)):
        where = f"{each.topic_id.hex()} {each.partition}"
        lines.append(f"{where} {each.offset} {each.leader_epoch} {each.metadata.encode().hex()}")
    return lines


def _verify(state: IngestsState, command: PlanCommit | DecideCommit) -> _Verified | IngestDecision:
    problem = _problem(command)
    if problem is not None:
        return problem
    known = state.value_of(command.ingest_id)
    if known is None:
        return not_found(command.ingest_id)
    ingest, value = known
    if value.state is IngestState.OPEN and command.ingest_epoch == value.ingest_epoch:
        state.touch(ingest)
    if value.decision is not None and value.decision.round == command.round:
        return _answered_before(ingest, value, value.decision, command)
    if value.decision is not None and command.round < value.decision.round:
        # It may have been committed: nothing that sounds like the contrary may be said.
        return wrong_round(value, command.round)
    if value.state is IngestState.ABORTED:
        return aborted(value) if command.round == value.round else wrong_round(value, command.round)
    if command.ingest_epoch != value.ingest_epoch:
        return fenced(value, command.ingest_epoch)
    if value.state is IngestState.DECIDED and value.kind is IngestKind.REPEATED and command.round == value.round + 1:
        return publishing(value)
    if value.state is not IngestState.OPEN or command.round != value.round:
        return wrong_round(value, command.round)
    if value.group is not None and value.group.is_committed:
        return refused(
            Refusal.INGEST_PUBLISHING,
            f"group {value.group.group_id!r} has not heard yet that its offsets of round {value.group.round} count; ask again",
            PUBLISH_RETRY_MS,
        )
    attempts: list[tuple[AttemptKey, AttemptValue]] = []
    for entry in sorted(command.manifest, key=lambda each: each.task):
        key = AttemptKey(entry.task, entry.attempt_id)
        attempt = ingest.attempts.get(key)
        if attempt is None or not ingest.is_current(attempt) or not attempt.is_sealed:
            return _incomplete(entry, "is not sealed at this epoch and round")
        records = sum(each.records for each in attempt.parts)
        if records != entry.records:
            return _incomplete(entry, f"has {records} records, and the manifest says {entry.records}")
        attempts.append((key, attempt))
    return _Verified(ingest, value, attempts, slices_by_partition(attempts))


def _incomplete(entry: ManifestEntry, what: str) -> IngestDecision:
    return refused(Refusal.INGEST_INCOMPLETE, f"attempt {entry.attempt_id.hex()} of task {entry.task} {what}")


def _problem(command: PlanCommit | DecideCommit) -> IngestDecision | None:
    if len(command.manifest) > MANIFEST_ATTEMPTS_MAX:
        return refused(
            Refusal.LIMIT_EXCEEDED, f"a manifest has at most {MANIFEST_ATTEMPTS_MAX} attempts; use fewer tasks"
        )
    tasks = {each.task for each in command.manifest}
    if len(tasks) < len(command.manifest):
        return refused(Refusal.INVALID_REQUEST, "a task occurs twice in the manifest")
    offsets = command.offsets
    if offsets is None:
        return None
    if not 1 <= len(offsets.group_id.encode()) <= GROUP_ID_BYTES_MAX:
        return refused(Refusal.INVALID_REQUEST, f"a group id has 1 to {GROUP_ID_BYTES_MAX} bytes")
    if len(offsets.offsets) > OFFSETS_MAX:
        return refused(Refusal.LIMIT_EXCEEDED, f"a commit has at most {OFFSETS_MAX} offsets")
    if len({(each.topic_id, each.partition) for each in offsets.offsets}) < len(offsets.offsets):
        return refused(Refusal.INVALID_REQUEST, "a partition has two offsets")
    return None


def _answered_before(
    ingest: Ingest, value: IngestValue, decision: DecisionValue, command: PlanCommit | DecideCommit
) -> IngestDecision:
    """Answer the commit of a round that is decided: every answer agrees with the decision."""
    if digest_of(command.manifest, command.offsets) != decision.digest:
        return refused(
            Refusal.INGEST_CONFLICT, f"round {command.round} was committed with another manifest, or other offsets"
        )
    result = result_of(value)
    if result is None:
        parts = len(ingest.plans.get(command.round, ()))
        return decided(Decided(round=command.round, parts=parts, was_committed=True))
    return decided(Committed(result=result, was_committed=True))


def _outline(state: IngestsState, command: PlanCommit | DecideCommit, verified: _Verified) -> _Outline | IngestDecision:
    """Return the records of a decision, or the refusal of one that is too large."""
    totals = {each: sum(part.records for part in verified.slices[each]) for each in sorted(verified.slices)}
    problem = _no_room(state, totals)
    if problem is not None:
        return problem
    plans: dict[TopicPartition, PlanValue] = {}
    blocks: dict[tuple[bytes, int], list[int]] = {}
    for topic_partition, records in totals.items():
        base = state.next_sequence(topic_partition)
        plans[topic_partition] = PlanValue(base_sequence=base, records=records)
        block, at = divmod(topic_partition.partition, BLOCK_PARTITIONS)
        key = (topic_partition.topic_id, block)
        numbers = blocks.setdefault(key, list(state.sequences.get(key, ())))
        numbers += [0] * (at + 1 - len(numbers))
        numbers[at] = advanced(base, records)
    value = _decided_value(state, command, verified, sum(totals.values()))
    outline: list[IngestLogRecord] = [IngestRecord(command.ingest_id, value)]
    if plans:
        keys = tuple(key for key, _ in verified.attempts)
        outline.append(ManifestRecord(command.ingest_id, command.round, keys))
    outline += [PlanRecord(command.ingest_id, command.round, each, plan) for each, plan in plans.items()]
    outline += [SequencesRecord(topic_id, block, tuple(numbers)) for (topic_id, block), numbers in blocks.items()]
    if len(outline) > DECISION_RECORDS_MAX or sum(map(record_bytes, outline)) > DECISION_BYTES_MAX:
        return refused(
            Refusal.LIMIT_EXCEEDED,
            f"the decision has more than {DECISION_RECORDS_MAX} records or {DECISION_BYTES_MAX} bytes; "
            "use fewer tasks or partitions, or shorter ids",
        )
    return _Outline(tuple(outline), value, plans)


def _no_room(state: IngestsState, totals: dict[TopicPartition, int]) -> IngestDecision | None:
    if len(totals) > PARTITIONS_MAX:
        return refused(
            Refusal.LIMIT_EXCEEDED, f"an ingest publishes to at most {PARTITIONS_MAX} partitions; use several"
        )
    if state.part_count + len(totals) > PARTS_TOTAL_MAX:
        return refused(
            Refusal.LIMIT_EXCEEDED,
            f"the coordinator keeps the results of {PARTS_TOTAL_MAX} parts; it forgets them with time",
        )
    for topic_partition, records in totals.items():
        where = f"partition {topic_partition.partition} of {topic_partition.topic_id.hex()}"
        if records > PARTITION_RECORDS_MAX:
            return refused(
                Refusal.LIMIT_EXCEEDED, f"{where} gets more than {PARTITION_RECORDS_MAX} records; use several ingests"
            )
        waiting = sum(each.plan.records for each in state.incomplete_parts(topic_partition))
        if waiting + records > PARTITION_RECORDS_MAX:
            return refused(
                Refusal.INGEST_PUBLISHING,
                f"{where} has {waiting} records to publish before these; ask again",
                PUBLISH_RETRY_MS,
            )
    return None


def _decided_value(
    state: IngestsState, command: PlanCommit | DecideCommit, verified: _Verified, records: int
) -> IngestValue:
    ingest, value, offsets = verified.ingest, verified.value, command.offsets
    current = sum(ingest.is_current(each) for each in ingest.attempts.values())
    group = value.group
    if offsets is not None:
        group = UnresolvedGroup(
            group_id=offsets.group_id,
            ingest_epoch=value.ingest_epoch,
            round=value.round,
            is_committed=True,
            offsets_digest=offsets_digest(offsets),
        )
    decision = DecisionValue(
        round=value.round,
        ingest_epoch=value.ingest_epoch,
        digest=digest_of(command.manifest, offsets),
        records=records,
        dropped_attempts=current - len(verified.attempts),
    )
    now = replace(value, state=IngestState.DECIDED, touched_ms=state.unix_ms, decision=decision, group=group)
    return now if verified.slices else completed(state, now, ())


def _publish_now(
    state: IngestsState,
    command: DecideCommit,
    topic_partition: TopicPartition,
    plan: PlanValue,
    slices: Sequence[Slice],
) -> Publish:
    identity = PartIdentity(command.ingest_id, command.round, plan.base_sequence)
    state.soft.parts.note_asked(topic_partition, identity, state.now_ms)
    return Publish(
        ingest_id=command.ingest_id,
        round=command.round,
        producer_id=publishing_producer_id(state.partition),
        part=Part(
            topic_id=topic_partition.topic_id,
            partition=topic_partition.partition,
            base_sequence=plan.base_sequence,
            records=plan.records,
            slices=tuple(slices),
        ),
    )
