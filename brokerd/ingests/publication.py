# SPDX-License-Identifier: Apache-2.0
"""After a decision: which part is published next, what leaders and groups report, and how a decision becomes complete.

Decisions over `IngestsState`; none of them changes durable state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from brokerd.ingests.answers import IngestDecision, Noted, Refusal, Watermark, decided, refused
from brokerd.ingests.commands import NoteLostRecords, OffsetsResolved, PartPublished, PublishedUpTo
from brokerd.ingests.effects import Effect, IngestCompleted, Part, Publish, RecordsLost
from brokerd.ingests.ingest import Ingest, result_of
from brokerd.ingests.limits import LOST_RECORDS_MAX
from brokerd.ingests.opening import resolve_effect
from brokerd.ingests.records import (
    NO_OFFSET,
    IngestKind,
    IngestLogRecord,
    IngestRecord,
    IngestState,
    IngestValue,
    PlanRecord,
    PublishedPart,
    TopicPartition,
)
from brokerd.ingests.sequences import publishing_producer_id
from brokerd.ingests.state import IngestsState, OutcomeIdentity, PartIdentity

Offsets = tuple[int, int]
"""First and end offset of a published part."""


def part_published(state: IngestsState, command: PartPublished) -> IngestDecision:
    """Note that a part is published, complete the decision with the last one, and ask for the next part of the partition."""
    topic_partition = TopicPartition(command.topic_id, command.partition)
    ingest = state.ingests.get(command.ingest_id)
    plan = None if ingest is None else ingest.plans.get(command.round, {}).get(topic_partition)
    if ingest is None or plan is None or plan.base_sequence != command.base_sequence:
        return decided(Noted())
    if plan.is_published or not ingest.is_incomplete(command.round):
        return decided(Noted())
    offsets = (NO_OFFSET, NO_OFFSET) if command.is_topic_gone else (command.first_offset, command.end_offset)
    are_known = NO_OFFSET not in offsets
    if min(offsets) < NO_OFFSET or (are_known and command.end_offset - command.first_offset < plan.records):
        return refused(
            Refusal.INVALID_REQUEST,
            f"{plan.records} records are not at offsets {command.first_offset} to {command.end_offset}",
        )
    if command.is_topic_gone:
        # Whatever else is decided for the topic ends as well, and its sequences are forgotten.
        state.soft.deleted_topics[command.topic_id] = None
    records, effects = end_parts(state, ingest, command.round, {topic_partition: offsets})
    effects += _next_of_partition(
        state, topic_partition, PartIdentity(command.ingest_id, command.round, command.base_sequence)
    )
    return decided(Noted(), records, effects)


def note_lost_records(state: IngestsState, command: NoteLostRecords) -> IngestDecision:
    """Note that the log of a partition lacks records that were published before a part, so that the part is published all the same.

    Parts of a partition are published one after another. So only the first one that is not published can be concerned, and everything
    before it was committed: it is lost for good. A tick asks for the part again.
    """
    topic_partition = TopicPartition(command.topic_id, command.partition)
    identity = PartIdentity(command.ingest_id, command.round, command.base_sequence)
    if state.first_unpublished(topic_partition) != identity:
        return decided(Noted())
    if not 1 <= command.records <= LOST_RECORDS_MAX:
        return refused(Refusal.INVALID_REQUEST, f"{command.records} records cannot be lost")
    plan = state.ingests[command.ingest_id].plans[command.round][topic_partition]
    if plan.lost_records == command.records:
        return decided(Noted())
    effects: list[Effect] = []
    if command.records > plan.lost_records:
        lost = RecordsLost(
            topic_id=command.topic_id,
            partition=command.partition,
            records=command.records - plan.lost_records,
            ingest_id=command.ingest_id,
            round=command.round,
        )
        effects.append(lost)
    value = replace(plan, lost_records=command.records)
    return decided(Noted(), [PlanRecord(command.ingest_id, command.round, topic_partition, value)], effects)


def end_parts(
    state: IngestsState, ingest: Ingest, number: int, ends: Mapping[TopicPartition, Offsets]
) -> tuple[list[IngestLogRecord], list[Effect]]:
    """Return the records that note some parts of a decision as published, and the effects.

    Args:
        state: the state.
        ingest: the ingest.
        number: round of its decision, which is not complete.
        ends: first and end offset of parts that are not published yet.
    """
    value, plans = ingest.value, ingest.plans[number]
    assert value is not None, ingest.ingest_id
    published = {
        each: replace(plans[each], is_published=True, first_offset=first, end_offset=end)
        for each, (first, end) in ends.items()
    }
    if len(ends) < ingest.unpublished(number):
        return [PlanRecord(ingest.ingest_id, number, each, plan) for each, plan in published.items()], []
    # The result says what the plans would say, and these are deleted later, a few at a time.
    merged = {**plans, **published}
    parts = tuple(
        PublishedPart(
            topic_id=each.topic_id,
            partition=each.partition,
            records=merged[each].records,
            first_offset=merged[each].first_offset,
            end_offset=merged[each].end_offset,
            lost_records=merged[each].lost_records,
        )
        for each in sorted(merged)
    )
    done = completed(state, value, parts)
    result = result_of(done)
    assert result is not None, "a complete decision has a result"
    return [IngestRecord(ingest.ingest_id, done)], [IngestCompleted(ingest_id=ingest.ingest_id, result=result)]


def completed(state: IngestsState, value: IngestValue, parts: Sequence[PublishedPart]) -> IngestValue:
    """Return the value of an ingest whose decision is complete: a repeated one is open for its next round."""
    assert value.decision is not None, "it is decided"
    done = replace(value, touched_ms=state.unix_ms, decision=replace(value.decision, parts=tuple(parts)))
    if value.kind is IngestKind.SINGLE:
        return replace(done, state=IngestState.COMMITTED)
    return replace(done, state=IngestState.OPEN, round=value.round + 1)


def offsets_resolved(state: IngestsState, command: OffsetsResolved) -> IngestDecision:
    """Note that the group has heard the outcome."""
    known = state.value_of(command.ingest_id)
    if known is None:
        return decided(Noted())
    ingest, value = known
    group = value.group
    if group is None or (group.ingest_epoch, group.round) != (command.ingest_epoch, command.round):
        return decided(Noted())
    return decided(Noted(), [IngestRecord(ingest.ingest_id, replace(value, group=None))])


def published_up_to(state: IngestsState, command: PublishedUpTo) -> IngestDecision:
    """Say below which publishing sequence of a partition every decision is complete in all its partitions."""
    parts = state.incomplete_parts(command.topic_partition)
    end_sequence = state.next_sequence(command.topic_partition)
    return decided(Watermark(sequence=parts[0].plan.base_sequence if parts else None, end_sequence=end_sequence))


def due_publications(state: IngestsState) -> list[Effect]:
    """Return what leaders have to be asked now, for the first unpublished part of each partition that has a turn."""
    effects: list[Effect] = []
    asks = state.soft.parts
    while (topic_partition := asks.next_key(state.now_ms)) is not None:
        identity = state.first_unpublished(topic_partition)
        asks.expect(topic_partition, identity)
        if identity is not None:
            effects.append(_publish(state, topic_partition, identity))
    return effects


def due_outcomes(state: IngestsState) -> list[Effect]:
    """Return what groups have to be told now."""
    effects: list[Effect] = []
    asks = state.soft.groups
    while (ingest_id := asks.next_key(state.now_ms)) is not None:
        known = state.value_of(ingest_id)
        group = None if known is None else known[1].group
        if group is None:
            asks.expect(ingest_id, None)
            continue
        asks.note_asked(ingest_id, OutcomeIdentity(group.ingest_epoch, group.round, group.is_committed), state.now_ms)
        effects.append(resolve_effect(ingest_id, group))
    return effects


def _next_of_partition(state: IngestsState, topic_partition: TopicPartition, done: PartIdentity) -> list[Effect]:
    """Return the ask for the part after one that has just been published; the decision about that is not replayed yet."""
    unpublished = [each.identity for each in state.incomplete_parts(topic_partition) if not each.plan.is_published]
    following = next((each for each in unpublished if each != done), None)
    return [] if following is None or unpublished[0] != done else [_publish(state, topic_partition, following)]


def _publish(state: IngestsState, topic_partition: TopicPartition, identity: PartIdentity) -> Publish:
    state.soft.parts.note_asked(topic_partition, identity, state.now_ms)
    ingest = state.ingests[identity.ingest_id]
    plan = ingest.plans[identity.round][topic_partition]
    return Publish(
        ingest_id=identity.ingest_id,
        round=identity.round,
        producer_id=publishing_producer_id(state.partition),
        part=Part(
            topic_id=topic_partition.topic_id,
            partition=topic_partition.partition,
            base_sequence=identity.base_sequence,
            records=plan.records,
            slices=ingest.slices(identity.round, topic_partition),
            lost_records=plan.lost_records,
        ),
    )
