# SPDX-License-Identifier: Apache-2.0
"""Proposals of in-sync replicas to a command, and its outcome to an answer: AlterPartition of ControllerService.

Owns the translation. Must not judge a proposal: `controller/alter_partition.py` does.
"""

from __future__ import annotations

from lograft.internal.v1 import controller_pb2

from metaquorum.controller.commands import AlterPartition, IsrProposal, PartitionsAltered
from metaquorum.controller_service.commit_waiters import Outcome
from metaquorum.controller_service.partition_codec import to_result


def command(request: controller_pb2.AlterPartitionRequest) -> AlterPartition:
    """Return the command of a request."""
    return AlterPartition(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        proposals=tuple(
            IsrProposal(
                topic_id=each.topic_id,
                partition=each.partition,
                leader_epoch=each.leader_epoch,
                partition_epoch=each.partition_epoch,
                isr=tuple(
                    (member.node_id, member.broker_epoch if member.HasField("broker_epoch") else None)
                    for member in each.isr
                ),
                is_lost=each.is_lost,
                found_directory_id=each.found_directory_id if each.HasField("found_directory_id") else None,
            )
            for each in request.proposals
        ),
    )


def answer(request: controller_pb2.AlterPartitionRequest, outcome: Outcome) -> controller_pb2.AlterPartitionResponse:
    """Return what became of each proposal of a request."""
    response = outcome.response
    assert isinstance(response, PartitionsAltered), f"unexpected {response}"
    return controller_pb2.AlterPartitionResponse(
        results=[
            to_result(proposal.topic_id, proposal.partition, result)
            for proposal, result in zip(request.proposals, response.results, strict=True)
        ],
        metadata_offset=outcome.metadata_offset,
    )
