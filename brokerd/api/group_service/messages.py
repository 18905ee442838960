# SPDX-License-Identifier: Apache-2.0
"""Translates requests of GroupService to commands of the group core, and its outcomes to responses.

Owns the checks that the form of a message asks for; the core checks everything else. Decides nothing.
Source: `proto/lograft/v1/group.proto`, `docs/groups.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from lograft.v1 import group_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.api.status import partition_error
from brokerd.failure import Failure, LeaderPlace, RefusedError, refused
from brokerd.groups.answers import (
    FetchedOffset,
    GroupDescription,
    GroupList,
    GroupState,
    Left,
    MemberDescription,
    MemberState,
    OffsetResult,
    Outcome,
    ReconciliationState,
    Refused,
)
from brokerd.groups.commands import Beat, CommitOffsets, Join, Leave, OffsetCommit
from brokerd.groups.records import AWAY_EPOCH, JOIN_EPOCH, LEAVE_EPOCH, Partitions, Subscription

TopicNames = Callable[[bytes], str]
"""Returns the name of a topic id; empty if this broker's metadata has no such topic."""

_STATES: Final[Mapping[GroupState, pb.GroupState.ValueType]] = {
    GroupState.EMPTY: pb.GROUP_STATE_EMPTY,
    GroupState.ASSIGNING: pb.GROUP_STATE_ASSIGNING,
    GroupState.RECONCILING: pb.GROUP_STATE_RECONCILING,
    GroupState.STABLE: pb.GROUP_STATE_STABLE,
}

_PROGRESS: Final[Mapping[ReconciliationState, pb.GroupMemberProgress.ValueType]] = {
    ReconciliationState.STABLE: pb.GROUP_MEMBER_PROGRESS_STABLE,
    ReconciliationState.UNREVOKED: pb.GROUP_MEMBER_PROGRESS_UNREVOKED,
    ReconciliationState.UNRELEASED: pb.GROUP_MEMBER_PROGRESS_UNRELEASED,
}


# Refusals.


def failure_of(outcome: Refused) -> Failure:
    """Return a refusal of the core as a client gets it. Values of `Refusal` are names of error codes."""
    code = ErrorCode.from_reason(outcome.code.value)
    return Failure(code=code, message=outcome.message, retry_after_ms=outcome.retry_after_ms)


def raise_refusal(outcome: Outcome) -> None:
    """Raise what the core has refused.

    Raises:
        RefusedError: the outcome is a refusal.
    """
    if isinstance(outcome, Refused):
        raise RefusedError(failure_of(outcome))


def unexpected(outcome: object) -> AssertionError:
    """Return the fault of a core that answers with something else."""
    return AssertionError(f"unexpected outcome {type(outcome).__name__}")


# Requests.


def member_command(
    beat: pb.MemberBeat, *, group_id: str, member_id: str, client_id: str, client_host: str, stream: int | None
) -> Join | Beat | Leave:
    """Return the command of a join, beat or leave.

    Args:
        beat: the message.
        group_id: group, which the message may leave out on a stream.
        member_id: member, which the message may leave out on a stream.
        client_id: name of the client program if the message has none.
        client_host: address of the client.
        stream: number of the stream; None: a unary call.

    Raises:
        RefusedError: INVALID_REQUEST.
    """
    instance_id = beat.instance_id or None
    if min(beat.beat_number, beat.assignment_number, beat.idle_ms, beat.processing_limit_ms, beat.lost_epoch) < 0:
        message = "beat_number, assignment_number, idle_ms, lost_epoch and limits are 0 or more"
        raise refused(ErrorCode.INVALID_REQUEST, message)
    match beat.member_epoch:
        case epoch if epoch == JOIN_EPOCH:
            if not beat.HasField("subscription"):
                raise refused(ErrorCode.INVALID_REQUEST, "a join (member_epoch 0) needs the subscription")
            return Join(
                group_id=group_id,
                member_id=member_id,
                subscription=_subscription(beat.subscription),
                instance_id=instance_id,
                rack=beat.rack or None,
                client_id=beat.client_id or client_id,
                client_host=client_host,
                assignor=beat.assignor,
                processing_limit_ms=beat.processing_limit_ms,
                beat_number=beat.beat_number,
                stream=stream,
                lost_epoch=beat.lost_epoch,
            )
        case epoch if epoch in (LEAVE_EPOCH, AWAY_EPOCH):
            return Leave(
                group_id=group_id,
                member_id=member_id,
                instance_id=instance_id,
                will_be_back=epoch == AWAY_EPOCH,
                beat_number=beat.beat_number,
            )
        case epoch if epoch > 0:
            return Beat(
                group_id=group_id,
                member_id=member_id,
                member_epoch=epoch,
                instance_id=instance_id,
                owned=partitions_by_topic(beat.owned.topics) if beat.HasField("owned") else None,
                assignment_number=beat.assignment_number,
                idle_ms=beat.idle_ms,
                subscription=_subscription(beat.subscription) if beat.HasField("subscription") else None,
                assignor=beat.assignor if beat.HasField("assignor") else None,
                beat_number=beat.beat_number,
                stream=stream,
            )
        case epoch:
            message = f"member_epoch {epoch} means nothing: use 0 to join, -1 or -2 to leave, or the member's epoch"
            raise refused(ErrorCode.INVALID_REQUEST, message)


def _subscription(message: pb.GroupSubscription) -> Subscription:
    return Subscription(tuple(message.topics), message.pattern)


def partitions_by_topic(topics: Iterable[pb.PartitionsOfTopic]) -> dict[bytes, tuple[int, ...]]:
    """Return partitions by topic id, ascending.

    Raises:
        RefusedError: INVALID_REQUEST: a topic or a partition comes twice, or the id of a topic is none.
    """
    found: dict[bytes, tuple[int, ...]] = {}
    for topic in topics:
        numbers = tuple(sorted(set(topic.partitions)))
        if len(topic.topic_id) != TOPIC_ID_BYTES or topic.topic_id in found or len(numbers) != len(topic.partitions):
            message = f"a topic id has {TOPIC_ID_BYTES} bytes, and topics and partitions come once"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        if numbers:
            found[topic.topic_id] = numbers
    return found


TOPIC_ID_BYTES: Final = 16
"""Bytes of a topic id."""


def partition_list(topics: Iterable[pb.PartitionsOfTopic]) -> tuple[tuple[bytes, int], ...]:
    """Return partitions in the order of the request."""
    return tuple((topic.topic_id, number) for topic in topics for number in topic.partitions)


def offsets_to_commit(messages: Iterable[pb.OffsetToCommit]) -> tuple[OffsetCommit, ...]:
    """Return the offsets of a commit or an alteration."""
    return tuple(
        OffsetCommit(
            topic_id=each.topic_id,
            partition=each.partition,
            offset=each.offset,
            leader_epoch=each.leader_epoch if each.HasField("leader_epoch") else -1,
            metadata=each.metadata,
        )
        for each in messages
    )


def commit_command(message: pb.OffsetCommitment, *, group_id: str, member_id: str) -> CommitOffsets:
    """Return the command of a commit; group and member may come from the handle."""
    return CommitOffsets(
        group_id=group_id,
        offsets=offsets_to_commit(message.offsets),
        member_id=member_id,
        member_epoch=message.member_epoch,
        commit_number=message.commit_number,
    )


def wanted_states(numbers: Iterable[int]) -> tuple[str, ...]:
    """Return the states that a list asks for.

    Raises:
        RefusedError: INVALID_REQUEST: an unknown state.
    """
    names = {int(number): state.value for state, number in _STATES.items()}
    wanted = tuple(dict.fromkeys(numbers))
    for number in wanted:
        if number not in names:
            raise refused(ErrorCode.INVALID_REQUEST, f"{number} is no state of a group")
    return tuple(names[number] for number in wanted)


# Responses.


def assignment_message(partitions: Partitions, names: TopicNames) -> pb.GroupAssignment:
    """Return partitions as a message, with the names of their topics."""
    return pb.GroupAssignment(
        topics=[
            pb.PartitionsOfTopic(topic_id=topic_id, topic=names(topic_id), partitions=numbers)
            for topic_id, numbers in partitions.items()
        ]
    )


def member_message(outcome: Outcome, names: TopicNames, *, handle: int, beat_number: int) -> pb.GroupMemberState:
    """Return the answer to a join, beat or leave; a refusal is its error."""
    message = pb.GroupMemberState(handle=handle, beat_number=beat_number)
    match outcome:
        case Refused():
            message.error.CopyFrom(partition_error(failure_of(outcome)))
        case Left():
            pass
        case MemberState():
            message.member_epoch = outcome.member_epoch
            message.assignment_number = outcome.assignment_number
            message.heartbeat_interval_ms = outcome.heartbeat_interval_ms
            message.session_timeout_ms = outcome.session_timeout_ms
            if outcome.assignment is not None:
                message.assignment.CopyFrom(assignment_message(outcome.assignment, names))
        case _:
            raise unexpected(outcome)
    return message


def outcome_messages(results: Iterable[OffsetResult]) -> list[pb.OffsetOutcome]:
    """Return the results for the partitions of a commit, alteration or deletion."""
    messages: list[pb.OffsetOutcome] = []
    for result in results:
        message = pb.OffsetOutcome(topic_id=result.topic_id, partition=result.partition)
        if result.refused is not None:
            message.error.CopyFrom(partition_error(failure_of(result.refused)))
        messages.append(message)
    return messages


def committed_message(fetched: FetchedOffset) -> pb.CommittedOffset:
    """Return a committed offset, the positive "no offset", or why neither can be said."""
    message = pb.CommittedOffset(topic_id=fetched.topic_id, partition=fetched.partition)
    if fetched.refused is not None:
        message.error.CopyFrom(partition_error(failure_of(fetched.refused)))
    value = fetched.value
    if value is not None:
        message.offset = value.offset
        message.metadata = value.metadata
        message.commit_ms = value.commit_ms
        if value.leader_epoch >= 0:
            message.leader_epoch = value.leader_epoch
    return message


def coordinator_message(group_id: str, place: LeaderPlace) -> pb.GroupCoordinator:
    """Return who coordinates a group."""
    return pb.GroupCoordinator(group_id=group_id, broker_id=place.leader_id, host=place.host, port=place.port)


def listed_messages(groups: GroupList, *, coordinator_id: int) -> list[pb.ListedGroup]:
    """Return groups of a list."""
    return [
        pb.ListedGroup(
            group_id=each.group_id,
            state=_STATES[each.state],
            member_count=each.member_count,
            coordinator_id=coordinator_id,
        )
        for each in groups.groups
    ]


def description_message(group: GroupDescription, names: TopicNames, *, coordinator_id: int) -> pb.DescribeGroupResponse:
    """Return the description of a group."""
    message = pb.DescribeGroupResponse(
        group_id=group.group_id,
        state=_STATES[group.state],
        group_epoch=group.value.group_epoch,
        target_epoch=group.value.target_epoch,
        assignor=group.assignor,
        members=[_described(member, names) for member in group.members],
        offset_count=group.offset_count,
        coordinator_id=coordinator_id,
    )
    if group.value.empty_since_ms is not None:
        message.empty_since_ms = group.value.empty_since_ms
    return message


def _described(member: MemberDescription, names: TopicNames) -> pb.DescribedMember:
    about, current = member.about, member.current
    return pb.DescribedMember(
        member_id=member.member_id,
        instance_id=about.instance_id or "",
        rack=about.rack or "",
        client_id=about.client_id,
        client_host=about.client_host,
        subscription=pb.GroupSubscription(topics=about.subscription.names, pattern=about.subscription.pattern),
        assignor=about.assignor,
        member_epoch=current.member_epoch,
        progress=_PROGRESS[member.state],
        assigned=_held_message(current.assigned, names),
        revoking=_held_message(current.revoking, names),
        target=assignment_message(member.target, names),
        processing_limit_ms=about.processing_limit_ms,
        is_streaming=member.is_streaming,
    )


def _held_message(held: Mapping[bytes, Mapping[int, int]], names: TopicNames) -> pb.GroupAssignment:
    return assignment_message({topic_id: tuple(numbers) for topic_id, numbers in held.items()}, names)
