# SPDX-License-Identifier: Apache-2.0
"""A controller that answers AlterPartition as a test decides, and a replica that proposes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lograft.internal.v1 import controller_pb2
from lograft.v1 import errors_pb2
from lograft.wire.codes import ErrorCode

from brokerd.partition.effects import ProposedMember, ProposeIsr
from brokerd.partition.events import Event
from brokerd.tests.controller_client.scripted_controller import ScriptedController
from brokerd.tests.support import WAIT_S
from metaquorum.net.methods import Method

Answer = Callable[[controller_pb2.AlterPartitionRequest], controller_pb2.AlterPartitionResponse]


class Replica:
    """Notes the outcomes of its proposals."""

    def __init__(self, partition: int) -> None:
        self.topic_id = bytes(16)
        self.partition = partition
        self.heard: asyncio.Queue[Event] = asyncio.Queue()

    def take_event(self, event: Event) -> None:
        self.heard.put_nowait(event)

    async def outcome(self) -> Event:
        async with asyncio.timeout(WAIT_S):
            return await self.heard.get()


class AlteringController(ScriptedController):
    """Answers AlterPartition as the test decides, and keeps the requests."""

    def __init__(self) -> None:
        super().__init__(self._alter)
        self.requests: list[controller_pb2.AlterPartitionRequest] = []
        self.answer: Answer = accept
        self.garbage: bytes | None = None

    async def _alter(self, method: Method, data: bytes) -> bytes:
        assert method is Method.ALTER_PARTITION
        request = controller_pb2.AlterPartitionRequest.FromString(data)
        self.requests.append(request)
        return self.answer(request).SerializeToString() if self.garbage is None else self.garbage


def results(
    request: controller_pb2.AlterPartitionRequest,
    make: Callable[[controller_pb2.IsrProposal], controller_pb2.AlterPartitionResult],
) -> controller_pb2.AlterPartitionResponse:
    """One result for each proposal."""
    return controller_pb2.AlterPartitionResponse(results=[make(each) for each in request.proposals])


def accept(request: controller_pb2.AlterPartitionRequest) -> controller_pb2.AlterPartitionResponse:
    """Accept every proposal."""
    return results(
        request,
        lambda each: controller_pb2.AlterPartitionResult(
            topic_id=each.topic_id,
            partition=each.partition,
            state=controller_pb2.PartitionState(
                replicas=[1, 2, 3],
                isr=[member.node_id for member in each.isr],
                leader_id=1,
                leader_epoch=each.leader_epoch,
                partition_epoch=each.partition_epoch + 1,
                elr=[3],
            ),
        ),
    )


def refuse(code: ErrorCode) -> Answer:
    """Refuse every partition."""
    error = errors_pb2.PartitionError(code=errors_pb2.ErrorCode.ValueType(int(code)), message="scripted")
    return lambda request: results(
        request,
        lambda each: controller_pb2.AlterPartitionResult(topic_id=each.topic_id, partition=each.partition, error=error),
    )


def proposal(number: int) -> ProposeIsr:
    """Brokers 1 and 2, the second with its epoch."""
    members = (ProposedMember(node_id=1, broker_epoch=None), ProposedMember(node_id=2, broker_epoch=9))
    return ProposeIsr(proposal=number, leader_epoch=4, partition_epoch=5, members=members)
