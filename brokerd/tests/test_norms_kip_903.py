# SPDX-License-Identifier: Apache-2.0
"""Normative statements of KIP-903 (replicas with stale broker epochs); `docs/normative_replication.md` has all of them."""

from __future__ import annotations

import pytest
from lograft.wire.codes import ErrorCode

from brokerd.limits import ISR_RETRY_MIN_MS
from brokerd.partition.effects import Effect, ProposedMember, ProposeIsr
from brokerd.partition.events import BrokerChanged, Tick
from brokerd.partition.leader_events import ProposalRefused
from brokerd.tests.replication_support import Replica, broker, leader
from metaquorum.controller.commands import AlterPartition, FenceBroker, IsrProposal, PartitionsAltered, Refusal
from metaquorum.metadata.state import PartitionImage
from metaquorum.tests.controller_world import World, topic_id


def proposed(effects: list[Effect]) -> list[tuple[ProposedMember, ...]]:
    """Return the members of the proposals among effects."""
    return [effect.members for effect in effects if isinstance(effect, ProposeIsr)]


def members(**epochs: int) -> tuple[ProposedMember, ...]:
    """Return members with these broker epochs, by `n` and node id."""
    return tuple(ProposedMember(node_id=int(name[1:]), broker_epoch=epoch) for name, epoch in epochs.items())


def joining() -> Replica:
    """A leader of {1, 2} whose follower 3 has just caught up; proposal 1 is under way."""
    replica = leader(isr=(1, 2), followers=(2,))
    replica.append(10)
    replica.acked(2, 10)
    replica.subscribe(3)
    assert proposed(replica.acked(3, 10)) == [members(n1=10, n2=20, n3=30)]
    return replica


def test_restarted_follower_is_proposed_with_its_new_epoch_and_not_with_the_old_one() -> None:
    """kip-903-lead-5: after the refusal it must catch up again, as the process that is registered now."""
    replica = joining()
    replica.step(BrokerChanged(broker=broker(3, epoch=35)))
    replica.step(ProposalRefused(proposal=1, code=ErrorCode.STALE_BROKER_EPOCH))
    assert replica.core.maximal_isr == (1, 2)
    assert proposed(replica.step(Tick(), after_ms=ISR_RETRY_MIN_MS)) == []
    assert proposed(replica.acked(3, 10)) == []
    assert proposed(replica.subscribe(3, end=0, session=1, broker_epoch=35)) == []
    assert proposed(replica.acked(3, 10, broker_epoch=35)) == [members(n1=10, n2=20, n3=35)]


def test_follower_ahead_of_the_metadata_waits_for_it() -> None:
    """kip-903-lead-6: the leader has seen a newer process than the metadata; it takes nothing from it, and proposes neither."""
    replica = leader(isr=(1, 2), followers=(2,))
    replica.append(10)
    replica.acked(2, 10)
    replica.subscribe(3, broker_epoch=35)
    assert proposed(replica.acked(3, 10, broker_epoch=35)) == []
    assert proposed(replica.step(BrokerChanged(broker=broker(3, epoch=35)))) == []
    replica.subscribe(3, session=2, broker_epoch=35)
    assert proposed(replica.acked(3, 10, session=2, broker_epoch=35)) == [members(n1=10, n2=20, n3=35)]


@pytest.fixture
def world() -> World:
    """Brokers 0, 1 and 2; topic "t" on all of them, led by 0, all in sync."""
    made = World()
    for broker_id in (0, 1, 2):
        made.start_broker(broker_id)
    made.write_topic("t", (0, 1, 2), configs={"min.insync.replicas": "2"})
    return made


def altered(world: World, *isr: tuple[int, int | None]) -> PartitionImage | Refusal:
    """Propose in-sync replicas for the partition as it is."""
    partition = world.partition("t")
    proposal = IsrProposal(
        topic_id=topic_id("t"),
        partition=0,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=isr,
    )
    response = world.run(AlterPartition(broker_id=0, broker_epoch=world.epoch(0), proposals=(proposal,))).response
    assert isinstance(response, PartitionsAltered), response
    (result,) = response.results
    return result


def test_stale_member_costs_the_whole_proposal(world: World) -> None:
    """kip-903-controller-3: no part of it is carried out, also where the rest alone would do."""
    stale = world.epoch(2)
    world.run(FenceBroker(broker_id=2, broker_epoch=stale))
    world.start_broker(2, process=102)
    before = world.partition("t")
    refused = altered(world, (0, world.epoch(0)), (1, world.epoch(1)), (2, stale))
    assert isinstance(refused, Refusal)
    assert refused.code is ErrorCode.STALE_BROKER_EPOCH
    assert world.partition("t") == before
    accepted = altered(world, (0, world.epoch(0)), (1, world.epoch(1)))
    assert isinstance(accepted, PartitionImage)
    assert accepted.isr == (0, 1)


def test_member_without_a_broker_epoch_is_judged_by_its_state_alone(world: World) -> None:
    """kip-903-controller-4: a leader that has not heard of its process says so, for a member that stays."""
    accepted = altered(world, (0, None), (1, None))
    assert isinstance(accepted, PartitionImage)
    assert accepted.isr == (0, 1)
    world.run(FenceBroker(broker_id=2, broker_epoch=world.epoch(2)))
    refused = altered(world, (0, None), (1, None), (2, None))
    assert isinstance(refused, Refusal)
    assert refused.code is ErrorCode.BROKER_FENCED
