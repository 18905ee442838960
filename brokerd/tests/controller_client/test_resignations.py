# SPDX-License-Identifier: Apache-2.0
"""Resignations of leaders to a scripted controller over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from lograft.internal.v1 import controller_pb2
from lograft.v1 import errors_pb2
from lograft.wire.codes import ErrorCode

from brokerd.controller_client.controller_calls import ControllerCalls
from brokerd.controller_client.partition_requests import PartitionRequests, Resignation, ResignReason
from brokerd.limits import MAX_REQUEST_PARTITIONS
from brokerd.tests.controller_client.scripted_controller import ScriptedController, calls_to, controller_of
from brokerd.tests.support import WAIT_S
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.methods import Method
from metaquorum.net.service import RefusalError

T = bytes(16)
Request = controller_pb2.ResignLeadershipRequest
Answer = Callable[[Request], bytes]


def moved(request: Request) -> bytes:
    """Answer that broker 2 leads."""
    state = controller_pb2.PartitionState(replicas=[1, 2], isr=[2], elr=[1], leader_id=2, leader_epoch=5)
    return _answer(request, state=state)


def refused(request: Request) -> bytes:
    """Answer that no other replica can lead."""
    code = errors_pb2.ErrorCode.ValueType(int(ErrorCode.LEADER_NOT_AVAILABLE))
    return _answer(request, error=errors_pb2.PartitionError(code=code, message="scripted"))


def failed(request: Request) -> bytes:
    """Refuse the whole call."""
    raise RefusalError(ErrorCode.OUTCOME_UNKNOWN, f"scripted, {len(request.partitions)}")


def garbage(request: Request) -> bytes:
    """Answer with invalid bytes."""
    del request
    return b"\xff\xff\xff"


def _answer(request: Request, **result: Any) -> bytes:
    results = [
        controller_pb2.AlterPartitionResult(topic_id=each.topic_id, partition=each.partition, **result)
        for each in request.partitions
    ]
    return controller_pb2.ResignLeadershipResponse(results=results).SerializeToString()


class Controller(ScriptedController):
    """Answers as the test decides, and keeps its requests."""

    def __init__(self) -> None:
        super().__init__(self._resign)
        self.answer: Answer = moved
        self.requests: asyncio.Queue[Request] = asyncio.Queue()

    async def _resign(self, method: Method, data: bytes) -> bytes:
        assert method is Method.RESIGN_LEADERSHIP
        request = Request.FromString(data)
        self.requests.put_nowait(request)
        return self.answer(request)

    async def request(self) -> Request:
        """Wait for the next request."""
        async with asyncio.timeout(WAIT_S):
            return await self.requests.get()


class Scene:
    """A controller, and broker 1."""

    def __init__(self, controller: Controller, calls: ControllerCalls) -> None:
        self.controller = controller
        self.broker_epoch: int | None = 7
        self.requests = PartitionRequests(
            calls, MetadataLoader(), cluster_id="c", node_id=1, broker_epoch=lambda: self.broker_epoch
        )


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """A controller on a free port."""
    async with controller_of(Controller()) as controller, calls_to(controller) as calls:
        made = Scene(controller, calls)
        yield made
        await made.requests.close()


def given_up(
    partition: int, leader_epoch: int, reason: ResignReason = ResignReason.CUT_OFF, *, allow_eligible: bool = True
) -> Resignation:
    """Return a resignation."""
    return Resignation(
        topic_id=T, partition=partition, leader_epoch=leader_epoch, reason=reason, allow_eligible=allow_eligible
    )


async def test_request_says_what_the_next_leader_needs(scene: Scene) -> None:
    """The next leader needs space for appends if this one lacks it, and must have everything if records could be lost."""
    scene.requests.resign(given_up(0, 1, ResignReason.NO_ROOM, allow_eligible=False))
    scene.requests.resign(given_up(1, 1, ResignReason.DAMAGE))
    request = await scene.controller.request()
    assert [(each.needs_room, each.allow_eligible) for each in request.partitions] == [(True, False), (False, True)]


async def test_leaderships_go_in_one_call(scene: Scene) -> None:
    """The request names the registered process. For a partition that is named twice, the later epoch is sent."""
    for partition, leader_epoch in ((0, 4), (1, 6), (0, 5)):
        scene.requests.resign(given_up(partition, leader_epoch))
    request = await scene.controller.request()
    assert (request.cluster_id, request.broker_id, request.broker_epoch) == ("c", 1, 7)
    named = [(each.topic_id, each.partition, each.leader_epoch) for each in request.partitions]
    assert named == [(T, 0, 5), (T, 1, 6)]


async def test_very_many_go_in_several_calls(scene: Scene) -> None:
    """The controller accepts that many in one call."""
    for partition in range(MAX_REQUEST_PARTITIONS + 1):
        scene.requests.resign(given_up(partition, 1))
    counts = [len((await scene.controller.request()).partitions) for _ in range(2)]
    assert counts == [MAX_REQUEST_PARTITIONS, 1]


@pytest.mark.parametrize("answer", [moved, refused, failed, garbage])
async def test_whatever_becomes_of_a_call_the_next_one_is_sent(scene: Scene, answer: Answer) -> None:
    """Nothing is repeated by itself: the cores ask again."""
    scene.controller.answer = answer
    scene.requests.resign(given_up(0, 1))
    await scene.controller.request()
    scene.requests.resign(given_up(1, 2))
    request = await scene.controller.request()
    assert [(each.partition, each.leader_epoch) for each in request.partitions] == [(1, 2)]
    assert scene.controller.requests.empty()


async def test_broker_that_is_not_registered_sends_nothing(scene: Scene) -> None:
    """It leads nothing then. Once it is registered, its resignations are sent again."""
    scene.broker_epoch = None
    scene.requests.resign(given_up(0, 1))
    await _idle()
    assert scene.controller.requests.empty()
    scene.broker_epoch = 8
    scene.requests.resign(given_up(1, 2))
    request = await scene.controller.request()
    assert [each.partition for each in request.partitions] == [1]


async def test_nothing_is_sent_after_the_close(scene: Scene) -> None:
    """Waiting resignations are dropped."""
    scene.requests.resign(given_up(0, 1))
    await scene.requests.close()
    scene.requests.resign(given_up(1, 1))
    await _idle()
    assert scene.controller.requests.empty()


async def _idle() -> None:
    """Wait until nothing is collected or under way."""
    async with asyncio.timeout(WAIT_S):
        while tasks := [task for task in asyncio.all_tasks() if task.get_name() == "resignations"]:
            await asyncio.wait(tasks)
