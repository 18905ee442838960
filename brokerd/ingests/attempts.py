# SPDX-License-Identifier: Apache-2.0
"""Attempts: open, seal, and which staged records may still be needed.

Decisions over `IngestsState`; none of them changes durable state.
"""

from __future__ import annotations

from dataclasses import replace

from brokerd.ingests.answers import (
    AttemptOpened,
    IngestDecision,
    LiveSequences,
    Refusal,
    Sealed,
    decided,
    refused,
)
from brokerd.ingests.commands import LiveAttempts, OpenAttempt, SealAttempt
from brokerd.ingests.ingest import Ingest, end_sequences
from brokerd.ingests.limits import (
    ATTEMPT_ID_BYTES_MAX,
    ATTEMPTS_MAX,
    ATTEMPTS_TOTAL_MAX,
    LIVE_PRODUCERS_MAX,
    PARTITION_RECORDS_MAX,
    PARTITIONS_MAX,
    SLICES_MAX,
    SLICES_TOTAL_MAX,
)
from brokerd.ingests.opening import aborted, committed, fenced, not_found, publishing, touched, wrong_round
from brokerd.ingests.records import (
    AttemptKey,
    AttemptRecord,
    AttemptValue,
    CounterRecord,
    FreedPart,
    IngestKind,
    IngestState,
    IngestValue,
    StagedPart,
    TopicPartition,
)
from brokerd.ingests.sequences import (
    SEQUENCE_MODULUS,
    STAGING_PRODUCER_IDS,
    advanced,
    staging_partition,
    staging_producer_id,
)
from brokerd.ingests.state import IngestsState


def open_attempt(state: IngestsState, command: OpenAttempt) -> IngestDecision:
    """Open an attempt. It gets a producer id of its own, which it keeps if it was sealed in the last round."""
    if not 1 <= len(command.attempt_id) <= ATTEMPT_ID_BYTES_MAX:
        return refused(Refusal.INVALID_REQUEST, f"an attempt id has 1 to {ATTEMPT_ID_BYTES_MAX} bytes")
    if not 0 <= command.task < 2**63:
        return refused(Refusal.INVALID_REQUEST, "a task has a number from 0 on")
    known = _open(state, command)
    if not isinstance(known, tuple):
        return known
    ingest, value = known
    key = AttemptKey(command.task, command.attempt_id)
    attempt = ingest.attempts.get(key)
    if attempt is not None and ingest.is_current(attempt):
        return decided(AttemptOpened(producer_id=attempt.producer_id, ttl_ms=value.ttl_ms), touched(state, ingest))
    if attempt is not None and ingest.is_reusable(attempt):
        again = replace(attempt, round=value.round, is_sealed=False, parts=(), freed=_freed(attempt))
        records = [*touched(state, ingest), AttemptRecord(ingest.ingest_id, key, again)]
        return decided(AttemptOpened(producer_id=again.producer_id, ttl_ms=value.ttl_ms), records)
    if attempt is None:
        if len(ingest.attempts) >= ATTEMPTS_MAX:
            return _too_many(f"the ingest has {ATTEMPTS_MAX} attempts; use fewer tasks")
        if state.attempt_count >= ATTEMPTS_TOTAL_MAX:
            return _too_many(
                f"the coordinator has {ATTEMPTS_TOTAL_MAX} attempts; try again when other ingests have ended"
            )
    number = max(state.given, state.soft.next_number)
    if number >= STAGING_PRODUCER_IDS:
        return _too_many("the coordinator has no producer id left")
    state.soft.next_number = number + 1
    fresh = AttemptValue(
        producer_id=staging_producer_id(state.partition, number), ingest_epoch=value.ingest_epoch, round=value.round
    )
    records = [
        *touched(state, ingest),
        AttemptRecord(ingest.ingest_id, key, fresh),
        CounterRecord(number + 1),
    ]
    return decided(AttemptOpened(producer_id=fresh.producer_id, ttl_ms=value.ttl_ms), records)


def seal(state: IngestsState, command: SealAttempt) -> IngestDecision:
    """Seal an attempt: what it has staged is fixed then."""
    known = _open(state, command)
    if not isinstance(known, tuple):
        return known
    ingest, value = known
    key = AttemptKey(command.task, command.attempt_id)
    attempt = ingest.attempts.get(key)
    parts = tuple(sorted(command.parts, key=lambda each: each.topic_partition))
    if attempt is not None and command.round not in (0, value.round):
        is_repeated = (attempt.round, attempt.is_sealed, attempt.parts) == (command.round, True, parts)
        return decided(Sealed()) if is_repeated else wrong_round(value, command.round)
    if attempt is None or not (ingest.is_current(attempt) or ingest.is_reusable(attempt)):
        return refused(
            Refusal.INVALID_REQUEST, f"attempt {command.attempt_id.hex()} of task {command.task} is not open"
        )
    if attempt.is_sealed:
        if attempt.parts == parts:
            return decided(Sealed(), touched(state, ingest))
        return refused(
            Refusal.INGEST_CONFLICT,
            f"attempt {command.attempt_id.hex()} of task {command.task} is sealed with other parts",
        )
    problem = _problem(value, attempt, parts)
    if problem is not None:
        return problem
    if ingest.slice_count + len(parts) > SLICES_MAX:
        return _too_many(f"the attempts of the ingest have {SLICES_MAX} parts; use fewer tasks or fewer partitions")
    if state.slice_count + len(parts) > SLICES_TOTAL_MAX:
        return _too_many(
            f"the attempts of the coordinator have {SLICES_TOTAL_MAX} parts; try again when other ingests have ended"
        )
    sealed = replace(attempt, is_sealed=True, parts=parts)
    return decided(Sealed(), [*touched(state, ingest), AttemptRecord(ingest.ingest_id, key, sealed)])


def live(state: IngestsState, command: LiveAttempts) -> IngestDecision:
    """Say which records of attempts may still be needed in a partition. What is not needed now never is again."""
    if len(command.producer_ids) > LIVE_PRODUCERS_MAX:
        return refused(Refusal.LIMIT_EXCEEDED, f"ask for at most {LIVE_PRODUCERS_MAX} producer ids at once")
    sequences: list[int | None] = []
    for producer_id in command.producer_ids:
        if staging_partition(producer_id) != state.partition:
            return refused(Refusal.INVALID_REQUEST, f"producer id {producer_id} is not of partition {state.partition}")
        if producer_id >= staging_producer_id(state.partition, state.given):
            # A later coordinator has given it, and this one does not know yet that it leads no more.
            sequences.append(0)
            continue
        found = state.attempt_of(producer_id)
        sequences.append(None if found is None else found[0].needed_from(found[1], command.topic_partition))
    return decided(LiveSequences(sequences=tuple(sequences)))


def _open(state: IngestsState, command: OpenAttempt | SealAttempt) -> tuple[Ingest, IngestValue] | IngestDecision:
    """Return the ingest of a command if it is open at its epoch, or the refusal."""
    known = state.value_of(command.ingest_id)
    if known is None:
        return not_found(command.ingest_id)
    value = known[1]
    if value.state is IngestState.DECIDED and value.kind is IngestKind.REPEATED:
        return publishing(value)
    if value.state in (IngestState.DECIDED, IngestState.COMMITTED):
        return committed(value)
    if value.state is IngestState.ABORTED:
        return aborted(value)
    if command.ingest_epoch != value.ingest_epoch:
        return fenced(value, command.ingest_epoch)
    return known


def _freed(attempt: AttemptValue) -> tuple[FreedPart, ...]:
    """Return what the rounds of an attempt have published, the last one included."""
    ends = end_sequences(attempt.freed)
    for part in attempt.parts:
        ends[part.topic_partition] = advanced(part.first_sequence, part.records)
    return tuple(
        FreedPart(topic_id=each.topic_id, partition=each.partition, end_sequence=ends[each]) for each in sorted(ends)
    )


def _problem(value: IngestValue, attempt: AttemptValue, parts: tuple[StagedPart, ...]) -> IngestDecision | None:
    """Return the refusal of parts that cannot be what the attempt has staged."""
    ends = end_sequences(attempt.freed)
    topics = {each.topic_id for each in value.topics}
    seen: set[TopicPartition] = set()
    for part in parts:
        where = f"partition {part.partition} of {part.topic_id.hex()}"
        if part.topic_partition in seen:
            return refused(Refusal.INVALID_REQUEST, f"{where} is named twice")
        seen.add(part.topic_partition)
        if part.topic_id not in topics:
            return refused(Refusal.INVALID_REQUEST, f"{part.topic_id.hex()} is no topic of the ingest")
        if not 0 <= part.partition < 2**31 or not 0 <= part.first_sequence < SEQUENCE_MODULUS:
            return refused(Refusal.INVALID_REQUEST, f"{where}: partition and sequence are below 2^31")
        if part.records > PARTITION_RECORDS_MAX:
            return refused(
                Refusal.LIMIT_EXCEEDED, f"{where} has more than {PARTITION_RECORDS_MAX} records; use more ingests"
            )
        if part.first_offset < 0 or not 1 <= part.records <= part.end_offset - part.first_offset:
            return refused(
                Refusal.INVALID_REQUEST, f"{where}: {part.records} records are not what its offsets have room for"
            )
        if part.first_sequence != ends.get(part.topic_partition, 0):
            return refused(
                Refusal.INVALID_REQUEST,
                f"{where} begins at sequence {part.first_sequence}, and not where the attempt was published up to",
            )
    if len(seen.union(ends)) > PARTITIONS_MAX:
        return _too_many(f"an attempt has records for at most {PARTITIONS_MAX} partitions")
    return None


def _too_many(message: str) -> IngestDecision:
    return refused(Refusal.LIMIT_EXCEEDED, message)
