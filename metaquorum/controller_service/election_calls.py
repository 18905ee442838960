# SPDX-License-Identifier: Apache-2.0
"""Requests for elections to a command, and its outcome to an answer: ElectLeaders of AdminService.

Owns the translation. Must not decide who leads.
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
    Refusal,
)
from metaquorum.controller_service.codec import to_partition
from metaquorum.controller_service.commit_waiters import CommandError, Outcome
from metaquorum.controller_service.partition_codec import to_error

_KINDS: Final = {
    admin_pb2.ELECTION_TYPE_PREFERRED: ElectionKind.PREFERRED,
    admin_pb2.ELECTION_TYPE_UNCLEAN: ElectionKind.UNCLEAN,
}


def command(request: admin_pb2.ElectLeadersRequest) -> ElectLeaders:
    """Return the command of a request.

    Raises:
        CommandError: INVALID_REQUEST, the election is of no known type.
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


def answer(request: admin_pb2.ElectLeadersRequest, outcome: Outcome) -> admin_pb2.ElectLeadersResponse:
    """Return what the elections of a request came to."""
    response = outcome.response
    assert isinstance(response, LeadersElected), f"unexpected {response}"
    return admin_pb2.ElectLeadersResponse(
        results=map(_result, response.results),
        metadata_offset=0 if request.validate_only else outcome.metadata_offset,
    )


def _result(result: ElectionResult) -> admin_pb2.ElectionResult:
    outcome = result.outcome
    return admin_pb2.ElectionResult(
        topic=result.topic,
        partition=result.partition,
        state=None if isinstance(outcome, Refusal) else to_partition(outcome),
        elected=result.elected,
        error=to_error(outcome) if isinstance(outcome, Refusal) else None,
    )
