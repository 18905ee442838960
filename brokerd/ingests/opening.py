# SPDX-License-Identifier: Apache-2.0
"""How an ingest begins, lives on and ends without a decision: open, touch, abort, expiry, and the question of a group.

Decisions over `IngestsState`; none of them changes durable state.
"""

from __future__ import annotations

from dataclasses import replace

from brokerd.ingests.answers import (
    Aborted,
    IngestDecision,
    Opened,
    OutcomeKnown,
    Refusal,
    Touched,
    decided,
    refused,
)
from brokerd.ingests.commands import AbortIngest, DecideOutcome, OpenIngest, TouchIngest
from brokerd.ingests.effects import Effect, ResolveOffsets
from brokerd.ingests.ingest import Ingest, result_of
from brokerd.ingests.limits import (
    FENCED_OWNERS_MAX,
    INGEST_ID_BYTES_MAX,
    KNOWN_INGESTS_MAX,
    OPEN_INGESTS_MAX,
    OWNER_BYTES_MAX,
    PUBLISH_RETRY_MS,
    TOPIC_NAME_BYTES_MAX,
    TOPICS_MAX,
    TOUCHES_PER_TTL,
    TTL_MS_DEFAULT,
    TTL_MS_MAX,
    TTL_MS_MIN,
)
from brokerd.ingests.records import IngestKind, IngestRecord, IngestState, IngestValue, UnresolvedGroup
from brokerd.ingests.state import IngestsState, OutcomeIdentity


def open_ingest(state: IngestsState, command: OpenIngest) -> IngestDecision:
    """Open an ingest, or take it over: its epoch rises, and attempts of lower epochs count no more.

    The owner of the present epoch joins it instead. An owner whose epoch was taken over does not take it back: its clients are as
    fenced by the later open as those that have an epoch.
    """
    problem = _problem(command)
    if problem is not None:
        return problem
    known = state.value_of(command.ingest_id)
    if known is not None and known[1].kind is not command.kind:
        return refused(
            Refusal.INGEST_CONFLICT, f"the ingest is {known[1].kind.name.lower()}, and an ingest keeps its kind"
        )
    if known is not None and known[1].state in (IngestState.DECIDED, IngestState.COMMITTED):
        return _open_decided(known[1])
    if known is not None and command.owner and command.owner in known[1].fenced_owners:
        return refused(
            Refusal.INGEST_FENCED, f"a later open has fenced this owner; the ingest is at epoch {known[1].ingest_epoch}"
        )
    is_active = known is not None and known[1].state is IngestState.OPEN
    if known is not None and is_active and command.owner and command.owner == known[1].owner:
        return _join(state, known[0], known[1], command)
    if not is_active and state.active_count >= OPEN_INGESTS_MAX:
        return refused(
            Refusal.LIMIT_EXCEEDED,
            f"the coordinator has {OPEN_INGESTS_MAX} open ingests; commit or abort some, or wait until they expire",
        )
    if known is None:
        if command.ingest_id not in state.ingests and len(state.ingests) >= KNOWN_INGESTS_MAX:
            return refused(
                Refusal.LIMIT_EXCEEDED,
                f"the coordinator keeps {KNOWN_INGESTS_MAX} ingests; it forgets the oldest ones with time",
            )
        value = IngestValue(
            kind=command.kind,
            state=IngestState.OPEN,
            # Above that of an earlier ingest with this id: its clients, attempts and prepared offsets must not count here.
            ingest_epoch=state.forgotten_epoch + 1,
            round=1,
            topics=command.topics,
            ttl_ms=command.ttl_ms or TTL_MS_DEFAULT,
            touched_ms=state.unix_ms,
            owner=command.owner,
        )
        return decided(_opened(value), [IngestRecord(command.ingest_id, value)])
    ingest, former = known
    group, effects = _prepared_in_vain(state, ingest, former)
    value = replace(
        former,
        state=IngestState.OPEN,
        ingest_epoch=former.ingest_epoch + 1,
        topics=command.topics,
        ttl_ms=command.ttl_ms or TTL_MS_DEFAULT,
        touched_ms=state.unix_ms,
        group=group,
        owner=command.owner,
        fenced_owners=_fenced_owners(former, command.owner),
    )
    return decided(_opened(value), [IngestRecord(command.ingest_id, value)], effects)


def _join(state: IngestsState, ingest: Ingest, value: IngestValue, command: OpenIngest) -> IngestDecision:
    """Let another process of the owner in. The ingest stays as the first one has opened it."""
    if {each.topic_id for each in command.topics} != {each.topic_id for each in value.topics}:
        return refused(
            Refusal.INGEST_CONFLICT,
            "its owner has opened the ingest with other topics; name the same ones, or open it as another owner",
        )
    return decided(_opened(value), touched(state, ingest))


def _fenced_owners(former: IngestValue, owner: bytes) -> tuple[bytes, ...]:
    if not former.owner or former.owner == owner:
        return former.fenced_owners
    return (*former.fenced_owners, former.owner)[-FENCED_OWNERS_MAX:]


def _problem(command: OpenIngest) -> IngestDecision | None:
    if not 1 <= len(command.ingest_id.encode()) <= INGEST_ID_BYTES_MAX:
        return refused(Refusal.INVALID_REQUEST, f"an ingest id has 1 to {INGEST_ID_BYTES_MAX} bytes")
    if not command.topics:
        return refused(Refusal.INVALID_REQUEST, "name at least one topic")
    if len(command.topics) > TOPICS_MAX:
        return refused(Refusal.LIMIT_EXCEEDED, f"an ingest has at most {TOPICS_MAX} topics; use several ingests")
    if len({each.topic_id for each in command.topics}) < len(command.topics):
        return refused(Refusal.INVALID_REQUEST, "a topic is named twice")
    for topic in command.topics:
        if not 1 <= len(topic.name.encode()) <= TOPIC_NAME_BYTES_MAX:
            return refused(Refusal.INVALID_REQUEST, f"a topic name has 1 to {TOPIC_NAME_BYTES_MAX} bytes")
    if len(command.owner) > OWNER_BYTES_MAX:
        return refused(Refusal.INVALID_REQUEST, f"an owner has at most {OWNER_BYTES_MAX} bytes")
    if command.ttl_ms and not TTL_MS_MIN <= command.ttl_ms <= TTL_MS_MAX:
        return refused(Refusal.INVALID_REQUEST, f"the time to live must be {TTL_MS_MIN} to {TTL_MS_MAX} ms")
    return None


def _open_decided(value: IngestValue) -> IngestDecision:
    if value.kind is IngestKind.REPEATED:
        return refused(
            Refusal.INGEST_PUBLISHING, f"round {value.round} is being published; open again then", PUBLISH_RETRY_MS
        )
    return decided(_opened(value))


def _opened(value: IngestValue) -> Opened:
    return Opened(
        ingest_epoch=value.ingest_epoch,
        round=value.round,
        state=value.state,
        topics=value.topics,
        ttl_ms=value.ttl_ms,
        result=result_of(value),
    )


def touched(state: IngestsState, ingest: Ingest) -> list[IngestRecord]:
    """Note a sign of life of the client. Return the record of it, if the last one is too old."""
    value = ingest.value
    assert value is not None, ingest.ingest_id
    state.touch(ingest)
    if state.unix_ms - value.touched_ms < value.ttl_ms // TOUCHES_PER_TTL:
        return []
    return [IngestRecord(ingest.ingest_id, replace(value, touched_ms=state.unix_ms))]


def touch(state: IngestsState, command: TouchIngest) -> IngestDecision:
    """Keep an open ingest alive. One that is decided needs no more."""
    known = state.value_of(command.ingest_id)
    if known is None:
        return not_found(command.ingest_id)
    ingest, value = known
    if value.state is IngestState.ABORTED:
        return aborted(value)
    if command.ingest_epoch != value.ingest_epoch:
        return fenced(value, command.ingest_epoch)
    return decided(Touched(), touched(state, ingest) if value.state is IngestState.OPEN else ())


def abort(state: IngestsState, command: AbortIngest) -> IngestDecision:
    """End an ingest without a decision. What is decided stays decided."""
    known = state.value_of(command.ingest_id)
    if known is None:
        return not_found(command.ingest_id)
    ingest, value = known
    was_decided = value.decision is not None and command.round == value.decision.round
    if was_decided or value.state in (IngestState.DECIDED, IngestState.COMMITTED):
        return committed(value)
    if value.decision is not None and 0 < command.round < value.decision.round:
        return wrong_round(value, command.round)
    if value.state is IngestState.ABORTED:
        return decided(Aborted())
    if command.ingest_epoch not in (0, value.ingest_epoch):
        return fenced(value, command.ingest_epoch)
    if command.round not in (0, value.round):
        return wrong_round(value, command.round)
    record, effects = ending(state, ingest)
    return decided(Aborted(), [record], effects)


def ending(state: IngestsState, ingest: Ingest) -> tuple[IngestRecord, list[Effect]]:
    """Return the record that aborts an open ingest, and the effects."""
    value = ingest.value
    assert value is not None, ingest.ingest_id
    assert value.state is IngestState.OPEN, "only an open ingest can be aborted"
    group, effects = _prepared_in_vain(state, ingest, value)
    ended = replace(value, state=IngestState.ABORTED, touched_ms=state.unix_ms, group=group)
    return IngestRecord(ingest.ingest_id, ended), effects


def decide_outcome(state: IngestsState, command: DecideOutcome) -> IngestDecision:
    """Say whether prepared offsets count. A round that is undecided is aborted, so that the answer is final.

    The offsets belong to one epoch and round. A later open has fenced that epoch, so it is not disturbed by the question.
    """
    known = state.value_of(command.ingest_id)
    if known is None:
        # An ingest is not forgotten before its group has heard of a decision.
        return decided(OutcomeKnown(is_committed=False))
    ingest, value = known
    asked = (command.ingest_epoch, command.round)
    decision = value.decision
    if decision is not None and (decision.ingest_epoch, decision.round) == asked:
        # Another commit of the round, with another group, may have prepared its offsets in vain.
        return decided(OutcomeKnown(is_committed=decision.group_id == command.group_id))
    if value.state is IngestState.OPEN and (value.ingest_epoch, value.round) == asked:
        record, effects = ending(state, ingest)
        return decided(OutcomeKnown(is_committed=False), [record], effects)
    return decided(OutcomeKnown(is_committed=False))


def _prepared_in_vain(
    state: IngestsState, ingest: Ingest, value: IngestValue
) -> tuple[UnresolvedGroup | None, list[Effect]]:
    """Return the group that must hear of an outcome when the present epoch or round ends undecided, and the effect that tells it.

    That is for speed: a group that nobody tells asks for itself. So it never replaces a group that must hear of a decision.
    """
    prepared = state.soft.prepared.get(ingest.ingest_id)
    if prepared is None or (prepared.ingest_epoch, prepared.round) != (value.ingest_epoch, value.round):
        return value.group, []
    if value.group is not None and value.group.is_committed:
        return value.group, []
    group = UnresolvedGroup(
        group_id=prepared.group_id, ingest_epoch=value.ingest_epoch, round=value.round, is_committed=False
    )
    return group, tell_group(state, ingest.ingest_id, group)


def tell_group(state: IngestsState, ingest_id: str, group: UnresolvedGroup) -> list[Effect]:
    """Return the effect that tells a group an outcome, if there is room for it now. Otherwise a tick does."""
    if not state.soft.groups.has_room:
        return []
    state.soft.groups.note_asked(
        ingest_id, OutcomeIdentity(group.ingest_epoch, group.round, group.is_committed), state.now_ms
    )
    return [resolve_effect(ingest_id, group)]


def resolve_effect(ingest_id: str, group: UnresolvedGroup) -> ResolveOffsets:
    """Return the effect that tells a group an outcome."""
    return ResolveOffsets(
        ingest_id=ingest_id,
        ingest_epoch=group.ingest_epoch,
        round=group.round,
        group_id=group.group_id,
        is_committed=group.is_committed,
    )


def not_found(ingest_id: str) -> IngestDecision:
    """Refuse: there is no such ingest."""
    return refused(
        Refusal.INGEST_NOT_FOUND, f"there is no ingest {ingest_id!r}: it was never opened, or was forgotten; open it"
    )


def fenced(value: IngestValue, ingest_epoch: int) -> IngestDecision:
    """Refuse: the epoch is not that of the ingest."""
    return refused(
        Refusal.INGEST_FENCED,
        f"a later open has fenced epoch {ingest_epoch}; the ingest is at epoch {value.ingest_epoch}",
    )


def committed(value: IngestValue) -> IngestDecision:
    """Refuse: what is meant is decided."""
    return refused(
        Refusal.INGEST_COMMITTED,
        f"round {value.round if value.decision is None else value.decision.round} is committed",
    )


def aborted(value: IngestValue) -> IngestDecision:
    """Refuse: the ingest was aborted."""
    return refused(
        Refusal.INGEST_ABORTED,
        f"round {value.round} was aborted at epoch {value.ingest_epoch}; open the ingest and stage again",
    )


def publishing(value: IngestValue) -> IngestDecision:
    """Refuse for now: the last decision of a repeated ingest is not complete."""
    return refused(Refusal.INGEST_PUBLISHING, f"round {value.round} is being published; ask again", PUBLISH_RETRY_MS)


def wrong_round(value: IngestValue, number: int) -> IngestDecision:
    """Refuse: the round is neither the last nor the present one."""
    return refused(Refusal.INVALID_REQUEST, f"round {number} is neither the last nor the next; that is {value.round}")
