# SPDX-License-Identifier: Apache-2.0
"""Reports of offline replicas to a scripted controller over real connections, until the metadata has the result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from lograft.internal.v1 import controller_pb2
from lograft.wire.codes import ErrorCode

from brokerd.controller_client.controller_calls import ControllerCalls
from brokerd.controller_client.partition_requests import PartitionRequests
from brokerd.tests.committed_records import commit
from brokerd.tests.controller_client.altering_controller import AlteringController, Answer, accept, refuse
from brokerd.tests.controller_client.scripted_controller import calls_to, controller_of
from brokerd.tests.support import WAIT_S
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import LeaderChange, PartitionChangeRecord, PartitionRecord, TopicRecord
from metaquorum.net.service import RefusalError
from metaquorum.tests.quorum_cluster import until

T = bytes(16)


class Scene:
    """A controller, and broker 1, which leads two partitions of topic "t"."""

    def __init__(self, controller: AlteringController, calls: ControllerCalls) -> None:
        self.controller = controller
        self.broker_epoch: int | None = 7
        self.observer = MetadataLoader()
        self.asked: asyncio.Queue[controller_pb2.AlterPartitionRequest] = asyncio.Queue()
        self.requests = PartitionRequests(
            calls, self.observer, cluster_id="c", node_id=1, broker_epoch=lambda: self.broker_epoch
        )
        partitions = (
            PartitionRecord(
                topic_id=T,
                partition=partition,
                replicas=(1, 2),
                isr=(1, 2),
                leader_id=1,
                leader_epoch=4,
                partition_epoch=5,
            )
            for partition in range(2)
        )
        commit(self.observer, TopicRecord(topic="t", topic_id=T), *partitions)

    def answer_with(self, answer: Answer) -> None:
        """Set the controller's answer, and keep its requests."""

        def keep(request: controller_pb2.AlterPartitionRequest) -> controller_pb2.AlterPartitionResponse:
            self.asked.put_nowait(request)
            return answer(request)

        self.controller.answer = keep

    async def request(self) -> controller_pb2.AlterPartitionRequest:
        """Return the controller's next request."""
        async with asyncio.timeout(WAIT_S):
            return await self.asked.get()

    def hand_over(self, partition: int) -> None:
        """Commit that broker 2 leads alone."""
        leader = LeaderChange(leader_id=2)
        commit(self.observer, PartitionChangeRecord(topic_id=T, partition=partition, leader=leader, isr=(2,)))


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """A controller on a free port."""
    async with controller_of(AlteringController()) as controller, calls_to(controller) as calls:
        made = Scene(controller, calls)
        made.answer_with(accept)
        yield made
        await made.requests.close()


async def test_offline_replicas_go_in_one_call(scene: Scene) -> None:
    """The report has the epochs of the metadata and no replicas, and names the registered process."""
    for partition in (0, 1, 0):
        scene.requests.note_lost(T, partition)
    request = await scene.request()
    assert (request.cluster_id, request.broker_id, request.broker_epoch) == ("c", 1, 7)
    named = [
        (each.topic_id, each.partition, each.leader_epoch, each.partition_epoch, each.is_lost, len(each.isr))
        for each in request.proposals
    ]
    assert named == [(T, 0, 4, 5, True, 0), (T, 1, 4, 5, True, 0)]


def drop(request: controller_pb2.AlterPartitionRequest) -> controller_pb2.AlterPartitionResponse:
    """Answer without any partition."""
    del request
    return controller_pb2.AlterPartitionResponse()


def fail(request: controller_pb2.AlterPartitionRequest) -> controller_pb2.AlterPartitionResponse:
    """Refuse the whole call."""
    raise RefusalError(ErrorCode.OUTCOME_UNKNOWN, f"scripted, {len(request.proposals)}")


@pytest.mark.parametrize("answer", [refuse(ErrorCode.FENCED_EPOCH), drop, fail])
async def test_what_was_not_carried_out_is_sent_again(scene: Scene, answer: Answer) -> None:
    """It is repeated for any reason of the refusal. Once another broker leads and this replica is out of sync, nothing is sent."""
    scene.answer_with(answer)
    scene.requests.note_lost(T, 0)
    assert await scene.request() == await scene.request()
    scene.answer_with(accept)
    await scene.request()
    scene.hand_over(0)
    scene.requests.note_lost(T, 1)
    assert [each.partition for each in (await scene.request()).proposals] == [1]


async def test_replica_that_is_brought_back_is_reported_again(scene: Scene) -> None:
    """The metadata shows it; no second failure is needed."""
    scene.requests.note_lost(T, 0)
    await scene.request()
    scene.hand_over(0)
    commit(scene.observer, PartitionChangeRecord(topic_id=T, partition=0, isr=(1, 2)))
    (again,) = (await scene.request()).proposals
    assert (again.leader_epoch, again.partition_epoch) == (5, 7)


async def test_answer_that_is_none_is_no_answer(scene: Scene) -> None:
    """Bytes that do not decode end nothing, and the report is sent again."""
    scene.controller.garbage = b"\xff\xff\xff"
    scene.requests.note_lost(T, 0)
    await until(lambda: bool(scene.controller.requests), what="the request")
    scene.controller.garbage = None
    assert (await scene.request()).proposals[0].is_lost


async def test_broker_without_a_registration_waits_for_one(scene: Scene) -> None:
    """Otherwise the next registered process would be fenced."""
    scene.broker_epoch = None
    scene.requests.note_lost(T, 0)
    await asyncio.sleep(0)
    assert scene.controller.requests == []
    scene.broker_epoch = 8
    assert (await scene.request()).broker_epoch == 8


async def test_removed_replica_and_a_closed_way_say_nothing(scene: Scene) -> None:
    """Neither has anything to report."""
    scene.requests.note_lost(T, 0)
    scene.requests.note_removed(T, 0)
    scene.requests.note_lost(T, 1)
    assert [each.partition for each in (await scene.request()).proposals] == [1]
    await scene.requests.close()
    scene.requests.note_lost(T, 0)
    await scene.requests.close()
    assert scene.asked.empty()
