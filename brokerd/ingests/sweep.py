# SPDX-License-Identifier: Apache-2.0
"""What ticks do by time: abort what nobody touches, end parts of deleted topics, and delete what cannot count any more.

All of it is done in pieces. An ingest is dealt with once in a tick, because a decision does not see its own records.
Decisions over `IngestsState`; none of them changes durable state.
"""

from __future__ import annotations

from collections.abc import Sequence

from brokerd.ingests import opening, publication
from brokerd.ingests.effects import Effect, IngestExpired
from brokerd.ingests.ingest import Ingest
from brokerd.ingests.limits import SWEEP_ATTEMPTS, SWEEP_BYTES, SWEEP_RECORDS
from brokerd.ingests.records import (
    NO_OFFSET,
    AttemptRecord,
    EpochsRecord,
    IngestLogRecord,
    IngestRecord,
    IngestState,
    ManifestRecord,
    PlanRecord,
    SequencesRecord,
    TopicPartition,
    record_bytes,
)
from brokerd.ingests.state import IngestsState


class Work:
    """What one tick has collected. The first records always fit, so that progress is certain.

    Attributes:
        records: records.
        effects: effects.
        ingests: ingests that it has records of.
        is_full: True: something did not fit.
    """

    def __init__(self) -> None:
        self.records: list[IngestLogRecord] = []
        self.effects: list[Effect] = []
        self.ingests: dict[str, None] = {}
        self.is_full = False
        self._size = 0

    def take(self, records: Sequence[IngestLogRecord]) -> bool:
        """Add records that belong together. Return False, and be full, if they do not fit."""
        size = sum(map(record_bytes, records))
        count = len(self.records) + len(records)
        if self.is_full or (self.records and (count > SWEEP_RECORDS or self._size + size > SWEEP_BYTES)):
            self.is_full = True
            return False
        self.records += records
        self._size += size
        return True


def end_deleted_topics(state: IngestsState, work: Work) -> None:
    """End the parts of topics that are known to be deleted, then forget the sequences of these topics."""
    for topic_id in list(state.soft.deleted_topics):
        is_done = True
        for ingest_id, (number, partitions) in _unpublished(state, topic_id).items():
            is_done = False
            if ingest_id in work.ingests or not _end_parts(state, work, ingest_id, number, partitions):
                return
        if is_done and _forget_sequences(state, work, topic_id):
            del state.soft.deleted_topics[topic_id]


def _unpublished(state: IngestsState, topic_id: bytes) -> dict[str, tuple[int, list[TopicPartition]]]:
    """Return the partitions of a topic in which decisions have something to publish, by ingest, with the round."""
    found: dict[str, tuple[int, list[TopicPartition]]] = {}
    for topic_partition in state.planned_partitions(topic_id):
        for identity, plan in state.incomplete_parts(topic_partition):
            if not plan.is_published:
                found.setdefault(identity.ingest_id, (identity.round, []))[1].append(topic_partition)
    return found


def _end_parts(
    state: IngestsState, work: Work, ingest_id: str, number: int, partitions: Sequence[TopicPartition]
) -> bool:
    ingest = state.ingests[ingest_id]
    nowhere = (NO_OFFSET, NO_OFFSET)
    # As many as certainly fit; the rest follows when these are on record.
    ends = dict.fromkeys(partitions[: SWEEP_RECORDS // 2], nowhere)
    records, effects = publication.end_parts(state, ingest, number, ends)
    if not work.take(records):
        return False
    work.ingests[ingest_id] = None
    work.effects += effects
    return True


def _forget_sequences(state: IngestsState, work: Work, topic_id: bytes) -> bool:
    """Delete the sequences of a topic. Return True once none is left."""
    blocks = sorted(block for each, block in state.sequences if each == topic_id)
    for block in blocks:
        if not work.take([SequencesRecord(topic_id, block, None)]):
            break
    return not blocks


def end_overdue(state: IngestsState, work: Work) -> None:
    """Abort open ingests that nobody has touched for their time to live, and forget others whose time is over."""
    forgotten_epoch = state.forgotten_epoch
    for ingest_id in state.soft.deadlines.due(state.now_ms, SWEEP_RECORDS):
        ingest = state.ingests[ingest_id]
        value = ingest.value
        if value is None or ingest_id in work.ingests:
            continue
        if value.state is not IngestState.OPEN:
            if _delete_garbage(ingest, work, is_forgotten=True):
                risen = [EpochsRecord(value.ingest_epoch)] if value.ingest_epoch > forgotten_epoch else []
                if work.take([*risen, IngestRecord(ingest_id, None)]):
                    forgotten_epoch = max(forgotten_epoch, value.ingest_epoch)
            work.ingests[ingest_id] = None
        else:
            record, effects = opening.ending(state, ingest)
            if work.take([record]):
                work.ingests[ingest_id] = None
                work.effects += effects
                work.effects.append(
                    IngestExpired(ingest_id=ingest_id, ingest_epoch=value.ingest_epoch, round=value.round)
                )
        if work.is_full:
            return


def delete_garbage(state: IngestsState, work: Work) -> None:
    """Delete attempts that cannot count any more, and plans and manifests of complete decisions."""
    looked_at = 0
    for ingest_id in list(state.soft.sweep):
        if looked_at >= SWEEP_ATTEMPTS or work.is_full:
            return
        ingest = state.ingests.get(ingest_id)
        if ingest is None:
            del state.soft.sweep[ingest_id]
            continue
        if ingest_id in work.ingests:
            continue
        looked_at += 1 + len(ingest.attempts)
        before = len(work.records)
        is_done = _delete_garbage(ingest, work, is_forgotten=False)
        if len(work.records) > before:
            work.ingests[ingest_id] = None
        elif is_done:
            # It is looked at until nothing of it is left to delete: these records may be refused.
            del state.soft.sweep[ingest_id]


def _delete_garbage(ingest: Ingest, work: Work, *, is_forgotten: bool) -> bool:
    """Delete what an ingest needs no more. Return False if something did not fit."""
    for key in ingest.attempts:
        if (is_forgotten or not ingest.is_live(key)) and not work.take([AttemptRecord(ingest.ingest_id, key, None)]):
            return False
    for number, plans in ingest.plans.items():
        if ingest.is_incomplete(number):
            continue
        for topic_partition in plans:
            if not work.take([PlanRecord(ingest.ingest_id, number, topic_partition, None)]):
                return False
    for number in ingest.manifests:
        if not ingest.is_incomplete(number) and not work.take([ManifestRecord(ingest.ingest_id, number, None)]):
            return False
    return True
