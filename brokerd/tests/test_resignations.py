# SPDX-License-Identifier: Apache-2.0
"""Leaderships that are given up, over real gRPC to a scripted controller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from lograft.internal.v1 import controller_pb2
from lograft.v1 import errors_pb2
from lograft.wire.codes import ErrorCode

from brokerd.failure import Failure, RefusedError
from brokerd.limits import MAX_CALL_RESIGNATIONS
from brokerd.metadata.controller_calls import ControllerCalls
from brokerd.metadata.observer import MetadataObserver
from brokerd.metadata.peer_channels import PeerChannels
from brokerd.replication.replica_peers import Resignation, ResignReason
from brokerd.replication.resignations import METHOD, Resignations
from brokerd.rpc.calls import abort
from brokerd.tests.support import WAIT_S

T = bytes(16)
Request = controller_pb2.ResignLeadershipRequest
Answer = Callable[[Request], bytes]


def moved(request: Request) -> bytes:
    """Let broker 2 lead."""
    state = controller_pb2.PartitionState(replicas=[1, 2], isr=[2], elr=[1], leader_id=2, leader_epoch=5)
    return _answer(request, state=state)


def refused(request: Request) -> bytes:
    """Say that nobody else can."""
    code = errors_pb2.ErrorCode.ValueType(int(ErrorCode.LEADER_NOT_AVAILABLE))
    return _answer(request, error=errors_pb2.PartitionError(code=code, message="scripted"))


def failed(request: Request) -> bytes:
    """Refuse the whole call."""
    raise RefusedError(Failure(code=ErrorCode.OUTCOME_UNKNOWN, message=f"scripted, {len(request.partitions)}"))


def garbage(request: Request) -> bytes:
    """Answer with bytes of no use."""
    del request
    return b"\xff\xff\xff"


def _answer(request: Request, **result: Any) -> bytes:
    results = [
        controller_pb2.AlterPartitionResult(topic_id=each.topic_id, partition=each.partition, **result)
        for each in request.partitions
    ]
    return controller_pb2.ResignLeadershipResponse(results=results).SerializeToString()


class Controller(grpc.GenericRpcHandler):
    """Answers as the test says, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answer: Answer = moved
        self.asked: asyncio.Queue[Request] = asyncio.Queue()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of the one method."""
        if handler_call_details.method != METHOD:
            return None

        async def handle(data: bytes, context: Any) -> bytes:
            request = Request.FromString(data)
            self.asked.put_nowait(request)
            try:
                return self.answer(request)
            except RefusedError as error:
                await abort(context, error)
                raise

        return grpc.unary_unary_rpc_method_handler(handle)

    async def request(self) -> Request:
        """Wait for the next request."""
        async with asyncio.timeout(WAIT_S):
            return await self.asked.get()


class Scene:
    """A controller, and broker 1."""

    def __init__(self, controller: Controller, calls: ControllerCalls) -> None:
        self.controller = controller
        self.broker_epoch: int | None = 7
        self.resignations = Resignations(calls, cluster_id="c", node_id=1, broker_epoch=lambda: self.broker_epoch)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """A controller on a port of its own."""
    controller, server, peers = Controller(), grpc.aio.server(), PeerChannels()
    server.add_generic_rpc_handlers((controller,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    made = Scene(controller, ControllerCalls(MetadataObserver(), peers, [f"127.0.0.1:{port}"]))
    yield made
    await made.resignations.close()
    await peers.close()
    await server.stop(None)


def given_up(
    partition: int, leader_epoch: int, reason: ResignReason = ResignReason.CUT_OFF, *, allow_eligible: bool = True
) -> Resignation:
    """Return a leadership that is given up."""
    return Resignation(
        topic_id=T, partition=partition, leader_epoch=leader_epoch, reason=reason, allow_eligible=allow_eligible
    )


async def test_request_says_what_the_next_leader_needs(scene: Scene) -> None:
    """Room for appends where that is what this one lacks; to have everything where records could be lost."""
    scene.resignations.resign(given_up(0, 1, ResignReason.NO_ROOM, allow_eligible=False))
    scene.resignations.resign(given_up(1, 1, ResignReason.DAMAGE))
    request = await scene.controller.request()
    assert [(each.needs_room, each.allow_eligible) for each in request.partitions] == [(True, False), (False, True)]


async def test_leaderships_go_in_one_call(scene: Scene) -> None:
    """As the process that is registered; of a partition that is named again the later epoch goes."""
    for partition, leader_epoch in ((0, 4), (1, 6), (0, 5)):
        scene.resignations.resign(given_up(partition, leader_epoch))
    request = await scene.controller.request()
    assert (request.cluster_id, request.broker_id, request.broker_epoch) == ("c", 1, 7)
    named = [(each.topic_id, each.partition, each.leader_epoch) for each in request.partitions]
    assert named == [(T, 0, 5), (T, 1, 6)]


async def test_very_many_go_in_several_calls(scene: Scene) -> None:
    """The controller takes so many in one."""
    for partition in range(MAX_CALL_RESIGNATIONS + 1):
        scene.resignations.resign(given_up(partition, 1))
    counts = [len((await scene.controller.request()).partitions) for _ in range(2)]
    assert counts == [MAX_CALL_RESIGNATIONS, 1]


@pytest.mark.parametrize("answer", [moved, refused, failed, garbage])
async def test_whatever_becomes_of_a_call_the_next_one_is_sent(scene: Scene, answer: Answer) -> None:
    """Nothing is repeated by itself: the cores ask again."""
    scene.controller.answer = answer
    scene.resignations.resign(given_up(0, 1))
    await scene.controller.request()
    scene.resignations.resign(given_up(1, 2))
    request = await scene.controller.request()
    assert [(each.partition, each.leader_epoch) for each in request.partitions] == [(1, 2)]
    assert scene.controller.asked.empty()


async def test_broker_that_is_not_registered_sends_nothing(scene: Scene) -> None:
    """It leads nothing; once it is registered it is heard again."""
    scene.broker_epoch = None
    scene.resignations.resign(given_up(0, 1))
    await _idle()
    assert scene.controller.asked.empty()
    scene.broker_epoch = 8
    scene.resignations.resign(given_up(1, 2))
    request = await scene.controller.request()
    assert [each.partition for each in request.partitions] == [1]


async def test_nothing_is_sent_after_the_close(scene: Scene) -> None:
    """What waits is dropped."""
    scene.resignations.resign(given_up(0, 1))
    await scene.resignations.close()
    scene.resignations.resign(given_up(1, 1))
    await _idle()
    assert scene.controller.asked.empty()


async def _idle() -> None:
    """Wait until no call is gathered or under way."""
    async with asyncio.timeout(WAIT_S):
        while tasks := [task for task in asyncio.all_tasks() if task.get_name() == "resignations"]:
            await asyncio.wait(tasks)
