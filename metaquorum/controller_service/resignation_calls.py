# SPDX-License-Identifier: Apache-2.0
"""Leaderships that are given up to a command, and its outcome to an answer: ResignLeadership of ControllerService.

Owns the translation. Must not judge a request: `controller/resignation.py` does.
"""

from __future__ import annotations

from lograft.internal.v1 import controller_pb2

from metaquorum.controller.commands import LeadershipResigned, LedPartition, ResignLeadership
from metaquorum.controller_service.commit_waiters import Outcome
from metaquorum.controller_service.partition_codec import to_result


def command(request: controller_pb2.ResignLeadershipRequest) -> ResignLeadership:
    """Return the command of a request."""
    return ResignLeadership(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        partitions=tuple(
            LedPartition(
                topic_id=each.topic_id,
                partition=each.partition,
                leader_epoch=each.leader_epoch,
                allow_eligible=each.allow_eligible,
                needs_room=each.needs_room,
            )
            for each in request.partitions
        ),
    )


def answer(
    request: controller_pb2.ResignLeadershipRequest, outcome: Outcome
) -> controller_pb2.ResignLeadershipResponse:
    """Return what became of each partition of a request."""
    response = outcome.response
    assert isinstance(response, LeadershipResigned), f"unexpected {response}"
    return controller_pb2.ResignLeadershipResponse(
        results=[
            to_result(led.topic_id, led.partition, result)
            for led, result in zip(request.partitions, response.results, strict=True)
        ],
        metadata_offset=outcome.metadata_offset,
    )
