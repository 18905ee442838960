# SPDX-License-Identifier: Apache-2.0
"""Requests about reassignments to a command, outcomes and lists to answers: two calls of AdminService.

Owns the translation, and the token of a page: number of the next partition, a colon, name of its topic. Must not decide.
"""

from __future__ import annotations

from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import PartitionsAltered, Reassignment, ReassignPartitions, Refusal
from metaquorum.controller.limits import MAX_LISTED_TOPICS
from metaquorum.controller.reassignment import settled_replicas
from metaquorum.controller.reassignment_list import ListCursor, list_reassignments
from metaquorum.controller_service.commit_waiters import CommandError, Outcome
from metaquorum.controller_service.partition_codec import to_error
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.state import PartitionImage

_MAX_TOKEN_DIGITS = 10


def command(request: admin_pb2.AlterPartitionReassignmentsRequest) -> ReassignPartitions:
    """Return the command of a request.

    Raises:
        CommandError: INVALID_REQUEST, a reassignment is cancelled and names replicas.
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


def answer(
    request: admin_pb2.AlterPartitionReassignmentsRequest, outcome: Outcome
) -> admin_pb2.AlterPartitionReassignmentsResponse:
    """Return what became of the reassignments of a request."""
    response = outcome.response
    assert isinstance(response, PartitionsAltered), f"unexpected {response}"
    return admin_pb2.AlterPartitionReassignmentsResponse(
        results=[
            admin_pb2.ReassignmentResult(
                topic=asked.topic,
                partition=asked.partition,
                replicas_before=None if before is None else settled_replicas(before),
                state=None if isinstance(result, Refusal) else _state(result),
                error=to_error(result) if isinstance(result, Refusal) else None,
            )
            for asked, before, result in zip(request.reassignments, response.before, response.results, strict=True)
        ],
        metadata_offset=0 if request.validate_only else outcome.metadata_offset,
    )


def list_answer(
    request: admin_pb2.ListPartitionReassignmentsRequest, image: MetadataImage
) -> admin_pb2.ListPartitionReassignmentsResponse:
    """Return one page of the reassignments that are under way.

    Raises:
        CommandError: INVALID_REQUEST, too many topics, or the token is none.
    """
    if len(request.topics) > MAX_LISTED_TOPICS:
        raise CommandError(
            ErrorCode.INVALID_REQUEST,
            f"a request names at most {MAX_LISTED_TOPICS} topics, this one {len(request.topics)}; use several",
        )
    page = list_reassignments(image, _cursor(request.page_token), tuple(request.topics) or None)
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
