# SPDX-License-Identifier: Apache-2.0
"""Leaders and replicas of partitions: requests of AdminService to commands, outcomes and images to answers.

Owns the translation, and the page token of a list of reassignments: number of the next partition, a colon, name of its topic. Does
not decide which broker leads or which replicas a partition gets.
"""

from __future__ import annotations

from typing import Final

from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import (
    ElectionKind,
    ElectionResult,
    ElectionTarget,
    ElectLeaders,
    LeadersElected,
    PartitionsAltered,
    Reassignment,
    ReassignPartitions,
    Refusal,
)
from metaquorum.controller.reassignment import ListCursor, list_reassignments, settled_replicas
from metaquorum.controller_service.codec import to_error, to_partition
from metaquorum.controller_service.commit_waiters import CommandError
from metaquorum.controller_service.operation import Member
from metaquorum.metadata.state import PartitionImage

MAX_LISTED_TOPICS: Final = 1_000
"""Topics that one request for a list of reassignments may name."""

_KINDS: Final = {
    admin_pb2.ELECTION_TYPE_PREFERRED: ElectionKind.PREFERRED,
    admin_pb2.ELECTION_TYPE_UNCLEAN: ElectionKind.UNCLEAN,
}

_MAX_TOKEN_DIGITS: Final = 10


def elect(request: admin_pb2.ElectLeadersRequest, _member: Member) -> ElectLeaders:
    """Return the command for a request.

    Raises:
        CommandError: INVALID_REQUEST: the type of the election is unknown.
    """
    kind = _KINDS.get(request.type)
    if kind is None:
        raise CommandError(
            ErrorCode.INVALID_REQUEST, f"an election is preferred or unclean; type {request.type} is neither"
        )
    return ElectLeaders(
        kind=kind,
        targets=tuple(
            ElectionTarget(topic=each.topic, partitions=tuple(each.partitions) or None) for each in request.topics
        ),
        validate_only=request.validate_only,
    )


def elected(_request: admin_pb2.ElectLeadersRequest, result: LeadersElected) -> admin_pb2.ElectLeadersResponse:
    """Return the results of the requested elections."""
    return admin_pb2.ElectLeadersResponse(results=map(_election, result.results))


def _election(result: ElectionResult) -> admin_pb2.ElectionResult:
    outcome = result.outcome
    return admin_pb2.ElectionResult(
        topic=result.topic,
        partition=result.partition,
        state=None if isinstance(outcome, Refusal) else to_partition(outcome),
        elected=result.elected,
        error=to_error(outcome) if isinstance(outcome, Refusal) else None,
    )


def reassign(request: admin_pb2.AlterPartitionReassignmentsRequest, _member: Member) -> ReassignPartitions:
    """Return the command for a request.

    Raises:
        CommandError: INVALID_REQUEST: a reassignment is to be cancelled, but names replicas.
    """
    for each in request.reassignments:
        if each.cancel and each.replicas:
            raise CommandError(
                ErrorCode.INVALID_REQUEST,
                f"{each.topic[:250]} partition {each.partition} is cancelled and names replicas; do one of both",
            )
    return ReassignPartitions(
        reassignments=tuple(
            Reassignment(
                topic=each.topic,
                partition=each.partition,
                replicas=None if each.cancel else tuple(each.replicas),
            )
            for each in request.reassignments
        ),
        validate_only=request.validate_only,
    )


def reassigned(
    request: admin_pb2.AlterPartitionReassignmentsRequest, result: PartitionsAltered
) -> admin_pb2.AlterPartitionReassignmentsResponse:
    """Return the results of the requested reassignments."""
    return admin_pb2.AlterPartitionReassignmentsResponse(
        results=[
            admin_pb2.ReassignmentResult(
                topic=asked.topic,
                partition=asked.partition,
                replicas_before=None if before is None else settled_replicas(before),
                state=None if isinstance(after, Refusal) else _state(after),
                error=to_error(after) if isinstance(after, Refusal) else None,
            )
            for asked, before, after in zip(request.reassignments, result.before, result.results, strict=True)
        ]
    )


async def list_ongoing(
    request: admin_pb2.ListPartitionReassignmentsRequest, member: Member, timeout_ms: int
) -> admin_pb2.ListPartitionReassignmentsResponse:
    """Return one page of the reassignments under way.

    Raises:
        CommandError: INVALID_REQUEST: too many topics, or an invalid token; also as `Member.catch_up`.
    """
    await member.catch_up(request, timeout_ms)
    image = member.host.image
    if len(request.topics) > MAX_LISTED_TOPICS:
        raise CommandError(
            ErrorCode.INVALID_REQUEST,
            f"a request names at most {MAX_LISTED_TOPICS} topics, this one {len(request.topics)}; use several",
        )
    page = list_reassignments(image, member.host.settings, _cursor(request.page_token), tuple(request.topics) or None)
    return admin_pb2.ListPartitionReassignmentsResponse(
        reassignments=[
            admin_pb2.OngoingReassignment(topic=topic, partition=partition.partition, state=_state(partition))
            for topic, partition in page.found
        ],
        next_page_token="" if page.then is None else f"{page.then.next_partition}:{page.then.topic}",
        metadata_offset=image.metadata_offset,
    )


def _cursor(token: str) -> ListCursor | None:
    if not token:
        return None
    number, separator, topic = token.partition(":")
    plain = number.isascii() and number.isdigit() and len(number) <= _MAX_TOKEN_DIGITS
    if not separator or not plain:
        raise CommandError(ErrorCode.INVALID_REQUEST, f"{token[:300]!r} is no token of a page; leave it out")
    return ListCursor(topic=topic, next_partition=int(number))


def _state(partition: PartitionImage) -> admin_pb2.ReassignmentState:
    return admin_pb2.ReassignmentState(
        replicas=partition.replicas,
        adding=partition.adding,
        removing=partition.removing,
        isr=partition.isr,
        leader_id=partition.leader_id,
    )
