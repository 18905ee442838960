# SPDX-License-Identifier: Apache-2.0
"""A broker withdraws replicas whose log no longer works: who leads, who is in sync, what fences it, what a restart changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import (
    AlterConfigs,
    AlterPartition,
    ElectionKind,
    ElectionTarget,
    ElectLeaders,
    FenceBroker,
    IsrProposal,
    PartitionsAltered,
    Reassignment,
    ReassignPartitions,
    Refusal,
    ResourceChanges,
)
from metaquorum.metadata.records import ConfigResource, LeaderChange, PartitionChangeRecord
from metaquorum.metadata.state import PartitionImage
from metaquorum.tests.controller_world import World, incarnation, register, topic_id

T = topic_id("t")


@pytest.fixture
def world() -> World:
    """Brokers 0 to 3; topic "t" on 0, 1 and 2, led by 0, all in sync, min.insync.replicas 2."""
    made = World()
    for broker_id in (0, 1, 2, 3):
        made.start_broker(broker_id)
    made.write_topic("t", (0, 1, 2), configs={"min.insync.replicas": "2"})
    return made


def proposal(world: World, *isr: int, is_lost: bool = False) -> IsrProposal:
    """Return a proposal for the partition as it is."""
    now = world.partition("t")
    return IsrProposal(
        topic_id=T,
        partition=0,
        leader_epoch=now.leader_epoch,
        partition_epoch=now.partition_epoch,
        isr=tuple((node_id, None) for node_id in isr),
        is_lost=is_lost,
    )


def run(world: World, broker_id: int, *proposals: IsrProposal) -> list[PartitionImage | Refusal]:
    """Run the proposals of a broker and return the result of each."""
    command = AlterPartition(broker_id=broker_id, broker_epoch=world.epoch(broker_id), proposals=proposals)
    response = world.run(command).response
    assert isinstance(response, PartitionsAltered), response
    return list(response.results)


def shrink(world: World, *isr: int) -> None:
    """Let the leader leave out all but these."""
    leader_id = world.partition("t").leader_id
    assert leader_id is not None
    (accepted,) = run(world, leader_id, proposal(world, *isr))
    assert accepted == world.partition("t")
    assert world.partition("t").isr == isr


def withdraw(world: World, broker_id: int) -> PartitionImage | Refusal:
    """Withdraw the replica of a broker and return the committed partition."""
    (result,) = run(world, broker_id, proposal(world, is_lost=True))
    assert isinstance(result, Refusal) or result == world.partition("t")
    return result


def set_config(world: World, name: str, value: str) -> None:
    """Set a config of the topic."""
    changes = ResourceChanges(resource=ConfigResource.TOPIC, name="t", changes=((name, value),))
    world.run(AlterConfigs(resources=(changes,)))


def fence_without_sweep(world: World, broker_id: int) -> None:
    """Fence a broker without the sweep over its partitions, as if the controller failed in between."""
    world.append(FenceBroker(broker_id=broker_id, broker_epoch=world.epoch(broker_id)))
    world.commit()


def test_leader_that_lost_its_log_is_followed_by_one_in_sync(world: World) -> None:
    """In one record: another leader, one leader epoch higher, and the lost replica is out of sync."""
    command = AlterPartition(broker_id=0, broker_epoch=world.epoch(0), proposals=(proposal(world, is_lost=True),))
    assert world.decide(command).records == (
        PartitionChangeRecord(topic_id=T, partition=0, leader=LeaderChange(leader_id=1), isr=(1, 2)),
    )
    assert withdraw(world, 0) == PartitionImage(0, (0, 1, 2), (1, 2), 1, 1, 1)


def test_follower_that_lost_its_log_leaves_and_the_leader_stays(world: World) -> None:
    """The leader no longer waits for it; the leader epoch stays the same, and producers are not disturbed."""
    assert withdraw(world, 2) == PartitionImage(0, (0, 1, 2), (0, 1), 0, 0, 1)


def test_below_min_isr_a_lost_replica_is_not_eligible(world: World) -> None:
    """A replica that leaves for lag has every committed record and may lead; one that lost its log may not."""
    shrink(world, 0, 1)
    assert withdraw(world, 0) == PartitionImage(0, (0, 1, 2), (1,), 1, 1, 2, (), (0,))


def test_eligible_replica_that_lost_its_log_is_eligible_no_more(world: World) -> None:
    """Otherwise it would be elected when the leader stops."""
    shrink(world, 0, 1)
    shrink(world, 0)
    assert world.partition("t").elr == (1,)
    assert withdraw(world, 1) == PartitionImage(0, (0, 1, 2), (0,), 0, 0, 3, (), (1,))


def test_eligible_replica_leads_in_the_place_of_the_last_one_in_sync(world: World) -> None:
    """No record was committed since it left, so it has every committed record."""
    shrink(world, 0, 1)
    shrink(world, 0)
    assert withdraw(world, 0) == PartitionImage(0, (0, 1, 2), (1,), 1, 1, 3, (), (0,))


def test_without_a_live_replica_in_sync_nobody_leads_until_one_is_back(world: World) -> None:
    """The lost replica does not lead, neither while the others are away nor after their return."""
    shrink(world, 0, 1)
    fence_without_sweep(world, 1)
    assert withdraw(world, 0) == PartitionImage(0, (0, 1, 2), (1,), None, 1, 2, (), (0,))
    world.start_broker(1, process=101)
    assert (world.partition("t").leader_id, world.partition("t").isr) == (1, (1,))


def test_last_one_that_has_everything_stays_where_it_is(world: World) -> None:
    """No other replica may lead without a loss: the operator decides, or repairs the directory."""
    set_config(world, "min.insync.replicas", "1")
    shrink(world, 0)
    before = world.partition("t")
    refused = withdraw(world, 0)
    assert isinstance(refused, Refusal)
    assert refused.code is ErrorCode.LEADER_NOT_AVAILABLE
    assert "repair its log directory" in refused.message
    assert world.partition("t") == before
    fence_without_sweep(world, 0)
    world.beat(1, want_fence=True)
    assert (world.partition("t").leader_id, world.partition("t").isr) == (None, (0,))
    assert isinstance(withdraw(world, 0), Refusal)
    world.start_broker(0, process=100)
    assert (world.partition("t").leader_id, world.partition("t").isr) == (0, (0,))


def test_where_it_is_allowed_another_one_leads_uncleanly(world: World) -> None:
    """The new leader lacks some records, and they are lost, as the config allows."""
    set_config(world, "min.insync.replicas", "1")
    set_config(world, "unclean.leader.election.enable", "true")
    shrink(world, 0)
    withdrawn = withdraw(world, 0)
    assert isinstance(withdrawn, PartitionImage)
    assert (withdrawn.leader_id, withdrawn.isr, withdrawn.leader_epoch) == (1, (1,), 1)


def test_repeated_withdrawal_changes_nothing(world: World) -> None:
    """With the old epochs the withdrawal is fenced; with the current ones the partition stays as it is."""
    first = proposal(world, is_lost=True)
    run(world, 2, first)
    (late,) = run(world, 2, first)
    assert isinstance(late, Refusal)
    assert late.code is ErrorCode.FENCED_EPOCH
    command = AlterPartition(broker_id=2, broker_epoch=world.epoch(2), proposals=(proposal(world, is_lost=True),))
    assert world.decide(command).records == ()
    assert withdraw(world, 2) == PartitionImage(0, (0, 1, 2), (0, 1), 0, 0, 1)


def test_withdrawal_is_fenced_and_checked(world: World) -> None:
    """Epochs that are ahead, a list of replicas beside the flag, a broker without a replica, and an older process."""
    good = proposal(world, is_lost=True)
    for broker_id, bad, code in (
        (2, replace(good, partition_epoch=1), ErrorCode.NOT_CONTROLLER),
        (2, replace(good, leader_epoch=1), ErrorCode.NOT_CONTROLLER),
        (2, replace(good, isr=((0, None),)), ErrorCode.INVALID_REQUEST),
        (3, good, ErrorCode.INVALID_REQUEST),
    ):
        (refused,) = run(world, broker_id, bad)
        assert isinstance(refused, Refusal)
        assert refused.code is code
    older = AlterPartition(broker_id=2, broker_epoch=world.epoch(2) - 1, proposals=(good,))
    assert world.refusal(older).code is ErrorCode.STALE_BROKER_EPOCH
    assert world.partition("t").partition_epoch == 0


def test_withdrawn_replica_is_elected_by_nobody(world: World) -> None:
    """It is the preferred leader and the only live replica, and neither a requested election nor a sweep elects it."""
    withdraw(world, 0)
    world.run(ElectLeaders(kind=ElectionKind.PREFERRED, targets=(ElectionTarget(topic="t"),)))
    assert world.partition("t").leader_id == 1
    for broker_id in (1, 2):
        world.run(FenceBroker(broker_id=broker_id, broker_epoch=world.epoch(broker_id)))
    assert (world.partition("t").leader_id, world.partition("t").isr) == (None, (2,))


def test_proposal_that_was_under_way_does_not_bring_it_back(world: World) -> None:
    """A leader that did not know of the loss names the old partition epoch."""
    shrink(world, 0, 1)
    late = proposal(world, 0, 1, 2)
    withdraw(world, 1)
    (refused,) = run(world, 0, late)
    assert isinstance(refused, Refusal)
    assert refused.code is ErrorCode.FENCED_EPOCH


@pytest.mark.parametrize("directory", ["repaired", "empty"])
def test_restart_brings_it_back_as_a_follower(world: World, directory: str) -> None:
    """Whatever its directory has, the new process leads only after a leader has found it in sync."""
    withdraw(world, 0)
    ids = (incarnation(900),) if directory == "repaired" else (incarnation(999),)
    world.run(FenceBroker(broker_id=0, broker_epoch=world.epoch(0)))
    world.run(register(0, process=100, log_directory_ids=ids))
    world.beat(0)
    for broker_id in (1, 2):
        world.run(FenceBroker(broker_id=broker_id, broker_epoch=world.epoch(broker_id)))
    assert (world.partition("t").leader_id, world.partition("t").isr) == (None, (2,))
    world.start_broker(2, process=102)
    (accepted,) = run(world, 2, proposal(world, 0, 2))
    assert isinstance(accepted, PartitionImage)
    assert accepted.isr == (0, 2)


def test_operator_takes_another_replica_before_the_last_one_comes_back_empty(world: World) -> None:
    """An unclean election while the broker is away keeps the records of the others; without it, the empty replica would lead."""
    set_config(world, "min.insync.replicas", "1")
    shrink(world, 0)
    assert isinstance(withdraw(world, 0), Refusal)
    world.run(FenceBroker(broker_id=0, broker_epoch=world.epoch(0)))
    assert world.partition("t").leader_id is None
    world.run(ElectLeaders(kind=ElectionKind.UNCLEAN, targets=(ElectionTarget(topic="t"),)))
    world.run(register(0, process=100, log_directory_ids=(incarnation(999),)))
    world.beat(0)
    assert (world.partition("t").leader_id, world.partition("t").isr) == (1, (1,))


def test_lost_leader_and_a_completed_reassignment_are_one_change_of_the_leader(world: World) -> None:
    """The answer has the leader epoch that the image will have."""
    set_config(world, "min.insync.replicas", "3")
    world.run(ReassignPartitions(reassignments=(Reassignment(topic="t", partition=0, replicas=(1, 2, 3)),)))
    (waiting,) = run(world, 0, proposal(world, 0, 1, 3))
    assert isinstance(waiting, PartitionImage)
    assert waiting.removing == (0,)
    set_config(world, "min.insync.replicas", "2")
    done = withdraw(world, 0)
    assert isinstance(done, PartitionImage)
    assert (done.replicas, done.leader_id, done.leader_epoch) == ((1, 2, 3), 1, 1)
