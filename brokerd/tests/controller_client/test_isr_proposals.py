# SPDX-License-Identifier: Apache-2.0
"""Proposals of in-sync replicas to a scripted controller over real connections: how they are collected, and their outcomes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
from lograft.internal.v1 import controller_pb2
from lograft.wire.codes import ErrorCode

from brokerd.controller_client.controller_calls import ControllerCalls
from brokerd.controller_client.partition_requests import PartitionRequests
from brokerd.partition.events import Event
from brokerd.partition.leader_events import ProposalAccepted, ProposalRefused, ProposalUnanswered
from brokerd.tests.controller_client.altering_controller import AlteringController, Replica, proposal, refuse
from brokerd.tests.controller_client.scripted_controller import calls_to, controller_of
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.state import PartitionImage
from metaquorum.net.service import RefusalError


class Scene:
    """A controller and the proposals of broker 1."""

    def __init__(self, controller: AlteringController, calls: ControllerCalls) -> None:
        self.controller = controller
        self.broker_epoch: int | None = 7
        self.requests = PartitionRequests(
            calls, MetadataLoader(), cluster_id="c", node_id=1, broker_epoch=lambda: self.broker_epoch
        )

    async def propose(self, *replicas: Replica) -> list[Event]:
        """Propose brokers 1 and 2 for each replica, and return the outcomes."""
        for number, replica in enumerate(replicas, start=1):
            self.requests.propose(replica, proposal(number))
        return [await replica.outcome() for replica in replicas]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """A controller on a free port."""
    async with controller_of(AlteringController()) as controller, calls_to(controller) as calls:
        made = Scene(controller, calls)
        yield made
        await made.requests.close()


async def test_proposals_go_together_and_are_answered_one_by_one(scene: Scene) -> None:
    """One call has all proposals that were made within a moment. Each replica gets its own committed state."""
    outcomes = await scene.propose(Replica(0), Replica(1))
    for number, outcome in enumerate(outcomes, start=1):
        state = PartitionImage(number - 1, (1, 2, 3), (1, 2), 1, 4, 6, (3,))
        assert outcome == ProposalAccepted(proposal=number, partition=state)
    (request,) = scene.controller.requests
    assert (request.cluster_id, request.broker_id, request.broker_epoch) == ("c", 1, 7)
    first = request.proposals[0]
    assert (first.leader_epoch, first.partition_epoch) == (4, 5)
    assert [(member.node_id, member.HasField("broker_epoch")) for member in first.isr] == [(1, False), (2, True)]


async def test_refusal_of_a_partition_reaches_its_replica(scene: Scene) -> None:
    """The outcome has the code. A code that this broker does not know is a refusal too."""
    scene.controller.answer = refuse(ErrorCode.FENCED_EPOCH)
    (outcome,) = await scene.propose(Replica(0))
    assert outcome == ProposalRefused(proposal=1, code=ErrorCode.FENCED_EPOCH)
    scene.controller.answer = refuse(ErrorCode.UNSPECIFIED)
    (outcome,) = await scene.propose(Replica(0))
    assert isinstance(outcome, ProposalRefused)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (ErrorCode.STALE_BROKER_EPOCH, ProposalRefused),
        (ErrorCode.OVERLOADED, ProposalRefused),
        (ErrorCode.OUTCOME_UNKNOWN, ProposalUnanswered),
        (ErrorCode.INTERNAL, ProposalUnanswered),
    ],
)
async def test_refusal_of_the_whole_call_is_one_of_each(scene: Scene, code: ErrorCode, outcome: type[Event]) -> None:
    """A proposal is called refused only if it certainly was not carried out."""

    def fail(request: controller_pb2.AlterPartitionRequest) -> controller_pb2.AlterPartitionResponse:
        raise RefusalError(code, f"scripted, {len(request.proposals)}")

    scene.controller.answer = fail
    outcomes = await scene.propose(Replica(0), Replica(1))
    assert [type(each) for each in outcomes] == [outcome, outcome]


async def test_partition_that_is_left_out_of_the_answer_is_in_doubt(scene: Scene) -> None:
    """Then its members still count."""
    scene.controller.answer = lambda _: controller_pb2.AlterPartitionResponse()
    assert await scene.propose(Replica(0)) == [ProposalUnanswered(proposal=1)]


async def test_answer_that_is_none_is_in_doubt(scene: Scene) -> None:
    """Bytes that do not decode leave no proposal without an outcome, and the next proposal is sent."""
    scene.controller.garbage = b"\xff\xff\xff"
    assert await scene.propose(Replica(0)) == [ProposalUnanswered(proposal=1)]
    scene.controller.garbage = None
    (outcome,) = await scene.propose(Replica(0))
    assert isinstance(outcome, ProposalAccepted)


class Broken(Replica):
    """Raises when it gets an outcome."""

    def take_event(self, event: Event) -> None:
        super().take_event(event)
        raise RuntimeError("scripted")


async def test_fault_of_a_replica_does_not_cost_the_others_their_outcomes(scene: Scene) -> None:
    """The other proposals of the same call get their outcomes, and so do those of the next call."""
    outcomes = await scene.propose(Broken(0), Replica(1))
    assert [type(each) for each in outcomes] == [ProposalAccepted, ProposalAccepted]
    (outcome,) = await scene.propose(Replica(2))
    assert isinstance(outcome, ProposalAccepted)


async def test_broker_without_a_registration_proposes_nothing(scene: Scene) -> None:
    """The replicas try again later."""
    scene.broker_epoch = None
    assert await scene.propose(Replica(0)) == [ProposalRefused(proposal=1, code=ErrorCode.STALE_BROKER_EPOCH)]
    assert scene.controller.requests == []


async def test_many_proposals_take_several_calls(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call has a maximum number of proposals."""
    monkeypatch.setattr("brokerd.controller_client.partition_requests.MAX_REQUEST_PARTITIONS", 2)
    replicas: Sequence[Replica] = [Replica(number) for number in range(5)]
    outcomes = await scene.propose(*replicas)
    assert all(isinstance(outcome, ProposalAccepted) for outcome in outcomes)
    assert [len(request.proposals) for request in scene.controller.requests] == [2, 2, 1]


async def test_closed_way_says_nothing_any_more(scene: Scene) -> None:
    """The broker stops, and no replica is left to hear an outcome."""
    replica = Replica(0)
    scene.requests.propose(replica, proposal(1))
    await scene.requests.close()
    scene.requests.propose(replica, proposal(2))
    await scene.requests.close()
    assert replica.heard.empty()
