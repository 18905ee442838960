# SPDX-License-Identifier: Apache-2.0
"""Values of a member to protobuf and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lograft._client.codec import decode_error
from lograft._client.metadata import BrokerNode
from lograft._groups.membership import JOIN, Refused, Request, State, Subscription
from lograft._groups.steps import Partition
from lograft.errors import LograftError
from lograft.types import OffsetAndMetadata
from lograft.v1 import errors_pb2, group_pb2, ingest_pb2
from lograft.wire.codes import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a member says about itself.

    Attributes:
        group_id: group.
        member_id: UUID of this member.
        instance_id: name of a static member; None for a dynamic one.
        rack: rack of its host; None: unknown.
        client_id: name of the client program.
        assignor: assignor that it prefers; None: none.
        processing_limit_ms: milliseconds that the application may take between two requests for records.
    """

    group_id: str
    member_id: str
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    assignor: str | None = None
    processing_limit_ms: int = 0


def encode_beat(identity: Identity, request: Request) -> group_pb2.MemberBeat:
    """Convert a join, beat or leave. Group and member are always named, so that it needs no earlier message."""
    beat = group_pb2.MemberBeat(
        group_id=identity.group_id,
        member_id=identity.member_id,
        member_epoch=request.member_epoch,
        beat_number=request.beat_number,
        assignment_number=request.assignment_number,
        idle_ms=request.idle_ms,
        instance_id=identity.instance_id or "",
    )
    if request.owned is not None:
        beat.owned.topics.extend(encode_partitions(request.owned))
        beat.owned.SetInParent()
    if request.subscription is not None:
        beat.subscription.CopyFrom(_encode_subscription(request.subscription))
    if request.member_epoch == JOIN:
        beat.lost_epoch = request.lost_epoch
        beat.rack = identity.rack or ""
        beat.client_id = identity.client_id
        beat.processing_limit_ms = identity.processing_limit_ms
        if identity.assignor is not None:
            beat.assignor = identity.assignor
    return beat


def _encode_subscription(subscription: Subscription) -> group_pb2.GroupSubscription:
    return group_pb2.GroupSubscription(topics=sorted(subscription.topics), pattern=subscription.pattern)


def encode_partitions(partitions: Iterable[Partition]) -> list[group_pb2.PartitionsOfTopic]:
    """Convert partitions, by topic id."""
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(partitions):
        by_topic.setdefault(topic_id, []).append(number)
    return [
        group_pb2.PartitionsOfTopic(topic_id=topic_id, partitions=numbers) for topic_id, numbers in by_topic.items()
    ]


def decode_told(state: group_pb2.GroupMemberState) -> tuple[State | Refused, dict[bytes, str]]:
    """Convert the state of a member or its refusal, and return it with the names of the topics in it."""
    if state.HasField("error"):
        return decode_refusal(state.error), {}
    assignment: frozenset[Partition] | None = None
    names: dict[bytes, str] = {}
    if state.HasField("assignment"):
        assignment = frozenset(
            (topic.topic_id, number) for topic in state.assignment.topics for number in topic.partitions
        )
        names = {topic.topic_id: topic.topic for topic in state.assignment.topics}
    told = State(
        member_epoch=state.member_epoch,
        assignment_number=state.assignment_number,
        assignment=assignment,
        heartbeat_interval_ms=state.heartbeat_interval_ms,
        session_timeout_ms=state.session_timeout_ms,
    )
    return told, names


def decode_refusal(error: errors_pb2.PartitionError) -> Refused:
    """Convert the refusal of a member."""
    code = ErrorCode.from_number(error.code)
    return Refused(code=code, message=error.message or code.name, retry_after_ms=error.retry_after_ms)


def encode_offsets(offsets: Mapping[Partition, OffsetAndMetadata]) -> list[group_pb2.OffsetToCommit]:
    """Convert offsets to commit."""
    return [
        group_pb2.OffsetToCommit(
            topic_id=topic_id,
            partition=number,
            offset=offset.offset,
            leader_epoch=offset.leader_epoch,
            metadata=offset.metadata,
        )
        for (topic_id, number), offset in offsets.items()
    ]


def decode_offsets(
    response: group_pb2.FetchOffsetsResponse,
) -> tuple[dict[Partition, OffsetAndMetadata | None], dict[Partition, LograftError]]:
    """Convert committed offsets (None: positively no offset is stored), and why nothing can be said of the other partitions."""
    errors = {
        (each.topic_id, each.partition): decode_error(each.error) for each in response.offsets if each.HasField("error")
    }
    offsets = {
        (each.topic_id, each.partition): OffsetAndMetadata(
            offset=each.offset,
            metadata=each.metadata,
            leader_epoch=each.leader_epoch if each.HasField("leader_epoch") else None,
            commit_ms=each.commit_ms,
        )
        if each.HasField("offset")
        else None
        for each in response.offsets
        if not each.HasField("error")
    }
    return offsets, errors


def address_of(coordinator: group_pb2.GroupCoordinator | ingest_pb2.IngestCoordinator) -> str:
    """Return host:port of a coordinator."""
    return BrokerNode(broker_id=coordinator.broker_id, host=coordinator.host, port=coordinator.port).address


def hinted_address(hint: errors_pb2.LeaderHint) -> str | None:
    """Return host:port of the broker that a hint names; None without one."""
    if not hint.host or not hint.port:
        return None
    return BrokerNode(broker_id=hint.leader_id, host=hint.host, port=hint.port).address
