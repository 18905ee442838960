# SPDX-License-Identifier: Apache-2.0
"""Normative statements of KIP-497 (in-sync replicas by AlterPartition); `docs/normative_replication.md` has all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from lograft.internal.v1 import controller_pb2

from brokerd.controller_client.partition_requests import PartitionRequests
from brokerd.limits import PARTITION_REQUEST_GATHER_MS
from brokerd.partition.effects import FailAck, LossReason, ProposedMember, ProposeIsr, PublishHighWatermark
from brokerd.partition.events import AckLevel, AckWanted, Tick
from brokerd.partition.leader_events import ProposalAccepted
from brokerd.tests.controller_client.altering_controller import Replica, accept, proposal
from brokerd.tests.controller_client.scripted_controller import ScriptedController, calls_to, controller_of
from brokerd.tests.replication_support import LAG_MS, image, leader
from brokerd.tests.support import WAIT_S
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.methods import Method


def test_min_isr_is_not_met_by_a_member_that_is_only_proposed() -> None:
    """kip-497-min-1: the proposal counts for the high watermark, which it can only hold; not for min.insync.replicas."""
    replica = leader(isr=(1,), followers=())
    replica.append(10)
    effects = replica.subscribe(3) + replica.acked(3, 10)
    members = (ProposedMember(node_id=1, broker_epoch=10), ProposedMember(node_id=3, broker_epoch=30))
    assert effects[1:] == [ProposeIsr(proposal=1, leader_epoch=5, partition_epoch=7, members=members)]
    assert replica.core.maximal_isr == (1, 3)
    assert replica.core.is_below_min_isr
    assert replica.core.high_watermark == 0
    effects = replica.step(ProposalAccepted(proposal=1, partition=image(isr=(1, 3), partition_epoch=8)))
    assert effects == [PublishHighWatermark(high_watermark=10)]
    assert not replica.core.is_below_min_isr


def test_min_isr_is_still_met_while_a_member_is_only_proposed_away() -> None:
    """kip-497-min-2: appends are refused, and waiting ones fail, with the controller's word and not before."""
    replica = leader(isr=(1, 2), followers=(2,))
    replica.append(10)
    replica.step(AckWanted(token=1, next_offset=10, level=AckLevel.ALL))
    assert any(isinstance(effect, ProposeIsr) for effect in replica.step(Tick(), after_ms=LAG_MS + 1))
    assert not replica.core.is_below_min_isr
    effects = replica.step(ProposalAccepted(proposal=1, partition=image(isr=(1,), partition_epoch=8)))
    assert effects == [FailAck(token=1, reason=LossReason.NOT_ENOUGH_REPLICAS)]
    assert replica.core.is_below_min_isr


class SlowController(ScriptedController):
    """Accepts each request when the test allows it."""

    def __init__(self) -> None:
        super().__init__(self._alter)
        self.requests: asyncio.Queue[controller_pb2.AlterPartitionRequest] = asyncio.Queue()
        self.leave = asyncio.Semaphore(0)

    async def _alter(self, method: Method, data: bytes) -> bytes:
        assert method is Method.ALTER_PARTITION
        request = controller_pb2.AlterPartitionRequest.FromString(data)
        self.requests.put_nowait(request)
        await self.leave.acquire()
        return accept(request).SerializeToString()


@pytest.fixture
async def slow() -> AsyncIterator[tuple[SlowController, PartitionRequests]]:
    """A controller that the test delays, and the proposals of broker 1."""
    async with controller_of(SlowController()) as controller, calls_to(controller) as calls:
        requests = PartitionRequests(calls, MetadataLoader(), cluster_id="c", node_id=1, broker_epoch=lambda: 7)
        yield controller, requests
        await requests.close()


async def test_one_request_of_a_broker_is_under_way_and_has_what_came_meanwhile_behind_it(
    slow: tuple[SlowController, PartitionRequests],
) -> None:
    """kip-497-send-6: partitions do not overtake each other, and a slow controller gets fewer and larger requests."""
    controller, requests = slow
    replicas = [Replica(partition) for partition in range(4)]
    async with asyncio.timeout(WAIT_S):
        requests.propose(replicas[0], proposal(1))
        first = await controller.requests.get()
        for number in (1, 2, 3):
            requests.propose(replicas[number], proposal(number + 1))
        await asyncio.sleep(10 * PARTITION_REQUEST_GATHER_MS / 1000)
        assert controller.requests.empty()
        controller.leave.release()
        await replicas[0].outcome()
        second = await controller.requests.get()
        controller.leave.release()
        for replica in replicas[1:]:
            assert isinstance(await replica.outcome(), ProposalAccepted)
    assert [each.partition for each in first.proposals] == [0]
    assert [each.partition for each in second.proposals] == [1, 2, 3]
