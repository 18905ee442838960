# SPDX-License-Identifier: Apache-2.0
"""Decisions about offsets that go with an ingest: prepare, resolve, and what becomes of them meanwhile.

Owns the rules of `docs/groups.md` section "Pending offsets". `offsets` says which offset may be stored.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from brokerd.groups.answers import OffsetsPrepared, OffsetsResolved, Refusal
from brokerd.groups.commands import OffsetCommit, PrepareOffsets, ResolveOffsets
from brokerd.groups.decision_room import DecisionRoom
from brokerd.groups.effects import AskOutcome
from brokerd.groups.group import Group
from brokerd.groups.limits import (
    DECISION_OUTCOMES,
    MAX_DIGEST_BYTES,
    MAX_ID_BYTES,
    MAX_PREPARED_OFFSETS,
    MAX_REQUEST_BYTES,
    PENDING_OFFSETS_MS,
)
from brokerd.groups.membership import unknown_member
from brokerd.groups.offsets import (
    check_commit,
    check_group,
    check_offsets,
    check_request,
    new_group,
    topics_not_loaded,
)
from brokerd.groups.records import (
    GroupLogRecord,
    OffsetRecord,
    OffsetValue,
    PendingKey,
    PendingOffset,
    PendingRecord,
    PendingValue,
    record_bytes,
)
from brokerd.groups.state import CoordinatorState, GroupDecision, decided, refused


def prepare(state: CoordinatorState, command: PrepareOffsets) -> GroupDecision:
    """Check offsets as those of a commit, and keep them pending: all of them, or none."""
    problem = _check_prepare(command) or check_request(command.group_id, command.offsets)
    if problem is not None:
        return problem
    group = state.group(command.group_id)
    key = PendingKey(command.ingest_id, command.round)
    known = None if group is None else group.pending.get(key)
    if known is not None and known.ingest_epoch >= command.ingest_epoch:
        return _prepare_again(state, command, known)
    if state.sessions.is_resolved(
        command.group_id, command.ingest_id, epoch=command.ingest_epoch, number=command.round
    ):
        return refused(
            Refusal.INGEST_FENCED, f"the outcome of round {command.round} was heard before: this is a late copy"
        )
    if not state.topics.is_loaded:
        return topics_not_loaded()
    member = None if group is None or not command.member_id else group.member(command.member_id)
    if command.member_id and member is None:
        return unknown_member(group, command.member_id, command.instance_id)
    problem = check_group(state, group, member)
    if problem is None and member is not None:
        problem = check_commit(state, command, member)
    if problem is not None:
        return problem
    known_group = group or Group(command.group_id)
    for result in check_offsets(state, known_group, command.offsets, member, command.member_epoch, renewed=key):
        if result.refused is not None:
            where = f"partition {result.partition} of topic {result.topic_id.hex()}"
            return decided(replace(result.refused, message=f"{where}: {result.refused.message}; nothing is prepared"))
    if not command.offsets:
        return decided(OffsetsPrepared())
    value = PendingValue(
        ingest_epoch=command.ingest_epoch,
        prepared_ms=state.unix_ms,
        offsets=_pending_offsets(command.offsets),
        offsets_digest=command.offsets_digest,
    )
    if sum(map(record_bytes, _committed(state, command.group_id, value))) > MAX_REQUEST_BYTES:
        return refused(
            Refusal.LIMIT_EXCEEDED, f"the offsets take more than {MAX_REQUEST_BYTES} bytes; shorten their metadata"
        )
    record = PendingRecord(command.group_id, command.ingest_id, command.round, value)
    return decided(OffsetsPrepared(), (record,) if group else (new_group(state, command.group_id), record))


def resolve(state: CoordinatorState, command: ResolveOffsets) -> GroupDecision:
    """Turn pending offsets into committed ones, or drop them. If nothing is pending, that was done before.

    What was prepared at a lower epoch than that of the outcome is dropped: it is fenced. So are other offsets than those that count:
    they came with a late copy of a prepare.
    """
    state.sessions.note_resolved(command.group_id, command.ingest_id, epoch=command.ingest_epoch, number=command.round)
    group = state.groups.get(command.group_id)
    value = None if group is None else group.pending.get(PendingKey(command.ingest_id, command.round))
    if value is None or value.ingest_epoch > command.ingest_epoch:
        return decided(OffsetsResolved(was_pending=False))
    records: list[GroupLogRecord] = []
    is_it = (value.ingest_epoch, value.offsets_digest) == (command.ingest_epoch, command.offsets_digest)
    if command.is_committed and is_it:
        records += _committed(state, command.group_id, value)
    records.append(PendingRecord(command.group_id, command.ingest_id, command.round, None))
    return decided(OffsetsResolved(was_pending=True), records)


def ask_outcomes(state: CoordinatorState) -> list[AskOutcome]:
    """Return the questions that are due, some at a time. Each is asked again until it is answered."""
    effects: list[AskOutcome] = []
    timers = state.sessions.outcomes
    while len(effects) < DECISION_OUTCOMES and (timer := timers.take_due(state.now_ms)) is not None:
        group = state.groups.get(timer.group_id)
        value = None if group is None else group.pending.get(PendingKey(timer.ingest_id, timer.round))
        if value is None:
            continue
        timers.set(timer, state.now_ms + PENDING_OFFSETS_MS)
        effects.append(
            AskOutcome(
                group_id=timer.group_id,
                ingest_id=timer.ingest_id,
                ingest_epoch=value.ingest_epoch,
                round=timer.round,
                offsets_digest=value.offsets_digest,
            )
        )
    return effects


def without_topics(state: CoordinatorState, topic_ids: Collection[bytes], room: DecisionRoom) -> list[GroupLogRecord]:
    """Return the records that take deleted topics out of pending offsets, as many as there is room for.

    All deleted topics at once: two records of the same key in one decision would undo each other.
    """
    records: list[GroupLogRecord] = []
    group_ids = {each: None for topic_id in topic_ids for each in state.groups_with_offsets(topic_id)}
    for group_id in group_ids:
        pending = state.groups[group_id].pending
        for key in sorted(pending):
            value = pending[key]
            rest = tuple(each for each in value.offsets if each.topic_id not in topic_ids)
            if len(rest) == len(value.offsets):
                continue
            record = PendingRecord(group_id, key.ingest_id, key.round, replace(value, offsets=rest) if rest else None)
            if not room.take([record]):
                return records
            records.append(record)
    return records


def _check_prepare(command: PrepareOffsets) -> GroupDecision | None:
    if not 1 <= len(command.ingest_id.encode()) <= MAX_ID_BYTES:
        return refused(Refusal.INVALID_REQUEST, f"the ingest id has 1 to {MAX_ID_BYTES} bytes")
    if command.ingest_epoch < 1 or command.round < 1:
        return refused(Refusal.INVALID_REQUEST, "epoch and round of an ingest begin with 1")
    if len(command.offsets_digest) > MAX_DIGEST_BYTES:
        return refused(Refusal.INVALID_REQUEST, f"a digest of offsets has at most {MAX_DIGEST_BYTES} bytes")
    if len(command.offsets) > MAX_PREPARED_OFFSETS:
        return refused(
            Refusal.LIMIT_EXCEEDED,
            f"a commit of an ingest takes offsets of {MAX_PREPARED_OFFSETS} partitions; commit more often",
        )
    return None


def _prepare_again(state: CoordinatorState, command: PrepareOffsets, known: PendingValue) -> GroupDecision:
    """Answer a prepare of a round that has pending offsets of the same or a higher epoch."""
    if known.ingest_epoch > command.ingest_epoch:
        return refused(
            Refusal.INGEST_FENCED,
            f"epoch {command.ingest_epoch} of the ingest is fenced: offsets are pending at epoch {known.ingest_epoch}",
        )
    # Those of topics that were deleted meanwhile are not pending any more.
    known_topics = {each.topic_id for each in known.offsets}
    wanted = tuple(
        each for each in command.offsets if each.topic_id in known_topics or state.topics.get(each.topic_id) is not None
    )
    if _pending_offsets(wanted) == known.offsets:
        return decided(OffsetsPrepared())
    return refused(
        Refusal.INGEST_CONFLICT,
        f"other offsets are pending for round {command.round} at epoch {command.ingest_epoch}; open the ingest again",
    )


def _pending_offsets(offsets: Sequence[OffsetCommit]) -> tuple[PendingOffset, ...]:
    return tuple(
        PendingOffset(
            topic_id=each.topic_id,
            partition=each.partition,
            offset=each.offset,
            leader_epoch=each.leader_epoch,
            metadata=each.metadata,
        )
        for each in sorted(offsets, key=lambda each: (each.topic_id, each.partition))
    )


def _committed(state: CoordinatorState, group_id: str, value: PendingValue) -> list[OffsetRecord]:
    """Return pending offsets as records of committed ones. They count as committed now, so that they expire no sooner."""
    return [
        OffsetRecord(
            group_id,
            each.topic_id,
            each.partition,
            OffsetValue(
                offset=each.offset, commit_ms=state.unix_ms, leader_epoch=each.leader_epoch, metadata=each.metadata
            ),
        )
        for each in value.offsets
    ]
