# SPDX-License-Identifier: Apache-2.0
"""AlterPartition as a decision: what it changes, and every fence that refuses it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import (
    AlterPartition,
    FenceBroker,
    Heartbeat,
    IsrProposal,
    PartitionsAltered,
    Refusal,
)
from metaquorum.metadata.records import PartitionChangeRecord
from metaquorum.metadata.state import PartitionImage
from metaquorum.tests.controller_world import SETTINGS, World, register, topic_id

T = topic_id("t")


@pytest.fixture
def world() -> World:
    """Brokers 0, 1 and 2; topic "t" on all of them, led by 0, all in sync, min.insync.replicas 2; 3 is registered only."""
    made = World()
    for broker_id in (0, 1, 2, 3):
        made.start_broker(broker_id)
    made.write_topic("t", (0, 1, 2), configs={"min.insync.replicas": "2"}, partition_count=2)
    return made


def propose(*isr: int, **changes: object) -> IsrProposal:
    """Return a proposal for the partition as it was made."""
    proposal = IsrProposal(
        topic_id=T, partition=0, leader_epoch=0, partition_epoch=0, isr=tuple((node_id, None) for node_id in isr)
    )
    return replace(proposal, **changes)


def alter(world: World, *proposals: IsrProposal, broker_id: int = 0) -> AlterPartition:
    """Return the command of a broker."""
    return AlterPartition(broker_id=broker_id, broker_epoch=world.epoch(broker_id), proposals=proposals)


def results(world: World, *proposals: IsrProposal, broker_id: int = 0) -> list[PartitionImage | Refusal]:
    """Run a command and return the result of each proposal."""
    response = world.run(alter(world, *proposals, broker_id=broker_id)).response
    assert isinstance(response, PartitionsAltered), response
    return list(response.results)


def test_shrink_and_growth_follow_the_leader(world: World) -> None:
    """The answer is the new partition. A replica that leaves becomes eligible below min ISR, and does not at min ISR."""
    assert results(world, propose(0, 2)) == [PartitionImage(0, (0, 1, 2), (0, 2), 0, 0, 1)]
    assert world.partition("t") == PartitionImage(0, (0, 1, 2), (0, 2), 0, 0, 1)
    assert results(world, propose(0, partition_epoch=1)) == [PartitionImage(0, (0, 1, 2), (0,), 0, 0, 2, (2,))]
    assert results(world, propose(1, 0, partition_epoch=2)) == [PartitionImage(0, (0, 1, 2), (0, 1), 0, 0, 3)]
    assert world.partition("t") == PartitionImage(0, (0, 1, 2), (0, 1), 0, 0, 3)


def test_leader_epoch_stays_and_record_names_only_what_changes(world: World) -> None:
    """Producers are not disturbed; the record names the in-sync replicas and nothing else."""
    decision = world.decide(alter(world, propose(2, 0)))
    assert decision.records == (PartitionChangeRecord(topic_id=T, partition=0, isr=(0, 2)),)
    assert decision.then is None


def test_same_replicas_again_change_nothing(world: World) -> None:
    """The answer to a repeated proposal is the current state, whatever the order of its replicas."""
    assert world.decide(alter(world, propose(2, 1, 0))).records == ()
    assert results(world, propose(2, 1, 0)) == [world.partition("t")]


@pytest.mark.parametrize(
    ("proposal", "code", "text"),
    [
        (propose(0, topic_id=b"?" * 16), ErrorCode.UNKNOWN_TOPIC, "3f3f"),
        (propose(0, partition=2), ErrorCode.UNKNOWN_PARTITION, "no partition 2"),
        (propose(0, partition=-1), ErrorCode.UNKNOWN_PARTITION, "no partition -1"),
        (propose(0, leader_epoch=1), ErrorCode.NOT_CONTROLLER, "ahead of 0 and 0"),
        (propose(0, partition_epoch=1), ErrorCode.NOT_CONTROLLER, "ahead of 0 and 0"),
        (propose(), ErrorCode.INVALID_REQUEST, "always in sync"),
        (propose(1, 2), ErrorCode.INVALID_REQUEST, "always in sync"),
        (propose(0, 1, 1), ErrorCode.INVALID_REQUEST, "named twice"),
        (propose(0, 3), ErrorCode.INVALID_REQUEST, "its replicas are [0, 1, 2]"),
    ],
)
def test_bad_proposal_is_refused_alone(world: World, proposal: IsrProposal, code: ErrorCode, text: str) -> None:
    """Each partition is refused with its own reason, and the good one beside it is changed."""
    refused, accepted = results(world, proposal, propose(0, 1, partition=1))
    assert isinstance(refused, Refusal)
    assert refused.code is code
    assert text in refused.message
    assert accepted == world.partition("t", 1)
    assert world.partition("t", 1).isr == (0, 1)
    assert world.partition("t").partition_epoch == 0


def test_proposal_for_an_older_state_is_fenced(world: World) -> None:
    """The controller refuses an older partition epoch or leader epoch, so that a late proposal changes nothing."""
    results(world, propose(0, 1))
    (late,) = results(world, propose(0))
    assert isinstance(late, Refusal)
    assert late.code is ErrorCode.FENCED_EPOCH
    world.run(FenceBroker(broker_id=0, broker_epoch=world.epoch(0)))
    partition = world.partition("t")
    assert partition.leader_id == 1
    (older,) = results(world, propose(1, partition_epoch=partition.partition_epoch), broker_id=1)
    assert isinstance(older, Refusal)
    assert older.code is ErrorCode.FENCED_EPOCH


def test_only_the_leader_may_propose(world: World) -> None:
    """A follower is refused, whatever it proposes."""
    (refused,) = results(world, propose(0, 1, 2), broker_id=1)
    assert isinstance(refused, Refusal)
    assert (refused.code, "broker 0" in refused.message or "0 does" in refused.message) == (
        ErrorCode.INVALID_REQUEST,
        True,
    )


def test_request_of_an_older_process_is_fenced_as_a_whole(world: World) -> None:
    """The broker epoch must be the one of the registration; the controller asks an unknown broker to register."""
    command = alter(world, propose(0, 1))
    assert world.refusal(replace(command, broker_epoch=command.broker_epoch - 1)).code is ErrorCode.STALE_BROKER_EPOCH
    assert world.refusal(replace(command, broker_id=9)).code is ErrorCode.BROKER_FENCED


def test_replicas_that_may_not_lead_are_not_taken_in(world: World) -> None:
    """The controller does not accept a fenced, leaving or unknown broker as in sync, because it could be elected."""
    results(world, propose(0))
    again = propose(0, 1, partition_epoch=1)
    world.run(FenceBroker(broker_id=1, broker_epoch=world.epoch(1)))
    (fenced,) = results(world, again)
    assert isinstance(fenced, Refusal)
    assert fenced.code is ErrorCode.BROKER_FENCED
    world.write_topic("led-by-2", (2,))
    world.append(Heartbeat(broker_id=2, broker_epoch=world.epoch(2), metadata_offset=10**6, want_shutdown=True))
    world.commit()
    assert world.image.brokers[2].in_controlled_shutdown
    (leaving,) = results(world, propose(0, 2, partition_epoch=world.partition("t").partition_epoch))
    assert isinstance(leaving, Refusal)
    assert leaving.code is ErrorCode.BROKER_FENCED
    world.write_topic("u", (0, 77))
    (unknown,) = results(world, propose(0, 77, topic_id=topic_id("u"), leader_epoch=0, partition_epoch=1))
    assert isinstance(unknown, Refusal)
    assert unknown.code in (ErrorCode.BROKER_FENCED, ErrorCode.NOT_CONTROLLER)


def test_replica_that_was_restarted_meanwhile_is_not_taken_in(world: World) -> None:
    """The leader names the process that caught up; the broker's next process may have lost what that process had."""
    results(world, propose(0))
    seen = world.epoch(1)
    world.run(FenceBroker(broker_id=1, broker_epoch=seen))
    world.start_broker(1, process=101)
    epoch = world.partition("t").partition_epoch
    (refused,) = results(world, propose(0, partition_epoch=epoch, isr=((0, world.epoch(0)), (1, seen))))
    assert isinstance(refused, Refusal)
    assert refused.code is ErrorCode.STALE_BROKER_EPOCH
    (accepted,) = results(world, propose(0, partition_epoch=epoch, isr=((0, None), (1, world.epoch(1)))))
    assert isinstance(accepted, PartitionImage)
    assert accepted.isr == (0, 1)


def test_request_is_bounded_and_names_a_partition_once(world: World) -> None:
    """Too many partitions, none, or one twice are refused as a whole."""
    many = tuple(propose(0, partition=number) for number in range(SETTINGS.max_altered_partitions + 1))
    for proposals in (many, (), (propose(0), propose(0, 1))):
        assert world.refusal(alter(world, *proposals)).code is ErrorCode.INVALID_REQUEST


def test_registered_incarnation_is_what_counts(world: World) -> None:
    """A broker that registered again and is still fenced leads nothing, so its proposals are refused."""
    world.run(FenceBroker(broker_id=0, broker_epoch=world.epoch(0)))
    world.run(register(0, process=100))
    (refused,) = results(world, propose(0, 1))
    assert isinstance(refused, Refusal)
    assert refused.code is ErrorCode.FENCED_EPOCH
