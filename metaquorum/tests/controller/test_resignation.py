# SPDX-License-Identifier: Apache-2.0
"""ResignLeadership as a decision: who leads next, what stays, every fence, and when the leadership returns."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import (
    AlterPartition,
    ElectPreferredLeaders,
    FenceBroker,
    IsrProposal,
    LeadershipResigned,
    LedPartition,
    Reassignment,
    ReassignPartitions,
    Refusal,
    ResignLeadership,
    SweepPartitions,
)
from metaquorum.metadata.records import BrokerChangeRecord, LeaderChange, PartitionChangeRecord
from metaquorum.metadata.state import PartitionImage
from metaquorum.tests.controller_world import SETTINGS, World, register, topic_id

T = topic_id("t")


@pytest.fixture
def world() -> World:
    """Brokers 0, 1 and 2; topic "t" with two partitions on all of them, led by 0, all in sync; 3 and 4 have nothing."""
    made = World()
    for broker_id in range(5):
        made.start_broker(broker_id)
    made.write_topic("t", (0, 1, 2), partition_count=2)
    return made


def led(partition: int = 0, **changes: object) -> LedPartition:
    """Return a partition as it is led at first."""
    return replace(LedPartition(topic_id=T, partition=partition, leader_epoch=0, allow_eligible=True), **changes)


def resign(world: World, *partitions: LedPartition, broker_id: int = 0) -> ResignLeadership:
    """Return the command of a broker."""
    return ResignLeadership(broker_id=broker_id, broker_epoch=world.epoch(broker_id), partitions=partitions)


def results(world: World, *partitions: LedPartition, broker_id: int = 0) -> list[PartitionImage | Refusal]:
    """Run a command; the partitions in its response must match the image."""
    response = world.run(resign(world, *partitions, broker_id=broker_id)).response
    assert isinstance(response, LeadershipResigned), response
    for result in response.results:
        if isinstance(result, PartitionImage):
            assert result == world.partition("t", result.partition)
    return list(response.results)


def refusal(world: World, partition: LedPartition, *, broker_id: int = 0) -> Refusal:
    """Run a command for one partition; it must be refused and change nothing."""
    before = world.log_end_offset
    (result,) = results(world, partition, broker_id=broker_id)
    assert isinstance(result, Refusal), result
    assert world.log_end_offset == before
    return result


def change(world: World, **changes: object) -> None:
    """Write a change of the first partition."""
    world.write(PartitionChangeRecord(topic_id=T, partition=0)._replace(**changes))


def test_next_replica_leads_and_the_broker_stays_in_sync(world: World) -> None:
    """Both epochs rise by one; the record names the leader and nothing else."""
    decision = world.decide(resign(world, led()))
    assert decision.records == (PartitionChangeRecord(topic_id=T, partition=0, leader=LeaderChange(leader_id=1)),)
    assert decision.then is None
    assert results(world, led()) == [PartitionImage(0, (0, 1, 2), (0, 1, 2), 1, 1, 1)]


def test_replica_order_decides_and_only_one_in_sync_leads(world: World) -> None:
    """A replica out of sync is passed over, eligible or not; the eligible replicas stay the same."""
    change(world, isr=(0, 2), elr=(1,), last_known_elr=())
    assert results(world, led()) == [PartitionImage(0, (0, 1, 2), (0, 2), 2, 1, 2, (1,))]


def test_last_known_eligible_replicas_stay(world: World) -> None:
    """A resignation says nothing about them."""
    change(world, isr=(0, 2), last_known_elr=(1,))
    assert results(world, led()) == [PartitionImage(0, (0, 1, 2), (0, 2), 2, 1, 2, (), (1,))]


def test_later_leader_gives_way_to_the_first_replica(world: World) -> None:
    """The order begins with the preferred leader, not after the one that resigns."""
    change(world, leader=LeaderChange(leader_id=1))
    (result,) = results(world, led(leader_epoch=1), broker_id=1)
    assert isinstance(result, PartitionImage)
    assert (result.leader_id, result.leader_epoch) == (0, 2)


@pytest.mark.parametrize(
    "state", [{"fenced": True}, {"in_controlled_shutdown": True}, {"fenced": True, "unclean": True}]
)
def test_replica_that_may_not_lead_is_passed_over(world: World, state: dict[str, bool]) -> None:
    """A fenced, leaving or unclean broker may be in sync until a sweep visits the partition, and leads nothing."""
    world.write(BrokerChangeRecord(broker_id=1, broker_epoch=world.epoch(1), **state))
    (result,) = results(world, led())
    assert isinstance(result, PartitionImage)
    assert (result.leader_id, result.isr) == (2, (0, 1, 2))


@pytest.fixture
def careful() -> World:
    """The same brokers; one partition with min ISR 2."""
    made = World()
    for broker_id in range(3):
        made.start_broker(broker_id)
    made.write_topic("t", (0, 1, 2), configs={"min.insync.replicas": "2"})
    return made


def test_eligible_replica_leads_where_no_other_one_is_in_sync(careful: World) -> None:
    """It has every committed record; it is alone in sync, and the others are eligible, including the old leader."""
    change(careful, isr=(0,), elr=(1, 2))
    expected = PartitionImage(0, (0, 1, 2), (1,), 1, 1, 2, (0, 2))
    assert results(careful, led()) == [expected]
    # The old leader leads again once the new one cannot.
    (back,) = results(careful, led(leader_epoch=1), broker_id=1)
    assert isinstance(back, PartitionImage)
    assert (back.leader_id, back.isr, back.elr) == (0, (0,), (1, 2))


def test_eligible_replica_does_not_lead_where_it_will_not_do(careful: World) -> None:
    """The broker alone has acknowledged records (acks=1): they would be lost with its leadership."""
    change(careful, isr=(0,), elr=(1, 2))
    kept = refusal(careful, led(allow_eligible=False))
    assert kept.code is ErrorCode.LEADER_NOT_AVAILABLE
    assert "eligible [1, 2] (which will not do)" in kept.message


def test_broker_without_room_is_no_heir_of_one_that_has_none_either(world: World) -> None:
    """Brokers report it in heartbeats; if room does not matter the broker may lead, and it reports when it has room again."""
    world.beat(1, lacks_room=True)
    (result,) = results(world, led(needs_room=True))
    assert isinstance(result, PartitionImage)
    assert result.leader_id == 2
    change(world, leader=LeaderChange(leader_id=0))
    world.beat(2, lacks_room=True)
    kept = refusal(world, led(leader_epoch=2, needs_room=True))
    assert "no other one with room may lead" in kept.message
    assert isinstance(results(world, led(leader_epoch=2))[0], PartitionImage)
    change(world, leader=LeaderChange(leader_id=0))
    world.beat(2, lacks_room=False)
    assert isinstance(results(world, led(leader_epoch=4, needs_room=True))[0], PartitionImage)


def test_preferred_leader_without_room_does_not_return_by_itself(world: World) -> None:
    """It would resign again at the next append; it returns once it has room."""
    results(world, led())
    world.beat(0, lacks_room=True)
    world.run(ElectPreferredLeaders())
    assert world.partition("t").leader_id == 1
    world.beat(0, lacks_room=False)
    world.run(ElectPreferredLeaders())
    assert world.partition("t").leader_id == 0


def test_broker_that_hands_over_for_room_gets_nothing_back_before_its_next_heartbeat(world: World) -> None:
    """The request reports the lack of room; without that, a preferred election would move the leadership twice."""
    results(world, led(needs_room=True))
    world.run(ElectPreferredLeaders())
    assert world.partition("t").leader_id == 1


def test_replica_in_sync_leads_rather_than_an_eligible_one(careful: World) -> None:
    """The order of replicas does not matter; the lists stay the same."""
    careful.write(BrokerChangeRecord(broker_id=1, broker_epoch=careful.epoch(1), fenced=True))
    change(careful, isr=(0,), elr=(1, 2), last_known_elr=())
    assert results(careful, led()) == [PartitionImage(0, (0, 1, 2), (2,), 2, 1, 2, (0, 1))]
    change(careful, isr=(0, 2), leader=LeaderChange(leader_id=2), elr=())
    assert results(careful, led(leader_epoch=2), broker_id=2) == [PartitionImage(0, (0, 1, 2), (0, 2), 0, 3, 4)]


def test_last_known_eligible_replica_does_not_lead(careful: World) -> None:
    """It may have lost committed records; the last known eligible replicas stay known when an eligible one takes over."""
    change(careful, isr=(0,), last_known_elr=(1,))
    assert refusal(careful, led()).code is ErrorCode.LEADER_NOT_AVAILABLE
    change(careful, elr=(2,))
    assert results(careful, led()) == [PartitionImage(0, (0, 1, 2), (2,), 2, 1, 3, (0,), (1,))]


def test_nobody_else_leads_means_that_the_broker_goes_on(world: World) -> None:
    """The refusal says what the broker waits for: it is alone in sync, or the others in sync may not lead."""
    change(world, isr=(0,))
    alone = refusal(world, led())
    assert alone.code is ErrorCode.LEADER_NOT_AVAILABLE
    assert alone.message == (
        "t partition 0: of its replicas [0, 1, 2], in sync [0], eligible [], no other one may lead: "
        "broker 0 goes on; ask again when another one is in sync and active"
    )
    for broker_id in (1, 2):
        world.write(BrokerChangeRecord(broker_id=broker_id, broker_epoch=world.epoch(broker_id), fenced=True))
    beside = refusal(world, led(1))
    assert beside.code is ErrorCode.LEADER_NOT_AVAILABLE
    assert "in sync [0, 1, 2]" in beside.message
    assert world.leaders("t") == [0, 0]


@pytest.mark.parametrize(
    ("partition", "code", "text"),
    [
        (led(topic_id=b"?" * 16), ErrorCode.UNKNOWN_TOPIC, "3f3f"),
        (led(2), ErrorCode.UNKNOWN_PARTITION, "no partition 2"),
        (led(-1), ErrorCode.UNKNOWN_PARTITION, "no partition -1"),
        (led(leader_epoch=1), ErrorCode.NOT_CONTROLLER, "1 is ahead of 0"),
        (led(leader_epoch=-1), ErrorCode.FENCED_EPOCH, "-1 is over, 0 holds"),
    ],
)
def test_bad_partition_is_refused_alone(world: World, partition: LedPartition, code: ErrorCode, text: str) -> None:
    """Each partition is refused with its own reason, and the good one beside it is given up."""
    refused, given_up = results(world, partition, led(1))
    assert isinstance(refused, Refusal)
    assert refused.code is code
    assert text in refused.message
    assert given_up == PartitionImage(1, (0, 1, 2), (0, 1, 2), 1, 1, 1)
    assert world.leaders("t") == [0, 1]


def test_repeated_call_is_fenced(world: World) -> None:
    """The leader epoch that it names has ended, so a late call takes the leadership from no other broker."""
    results(world, led())
    assert refusal(world, led()).code is ErrorCode.FENCED_EPOCH
    assert world.leaders("t") == [1, 0]


def test_only_the_leader_may_resign(world: World) -> None:
    """The controller refuses a follower, and a broker whose partition has no leader."""
    follower = refusal(world, led(), broker_id=1)
    assert (follower.code, follower.message) == (
        ErrorCode.INVALID_REQUEST,
        "partition 0: broker 1 does not lead it, broker 0 does",
    )
    change(world, leader=LeaderChange(leader_id=None))
    leaderless = refusal(world, led(leader_epoch=1))
    assert (leaderless.code, leaderless.message) == (
        ErrorCode.INVALID_REQUEST,
        "partition 0: broker 0 does not lead it; it has no leader",
    )


def test_request_of_an_older_process_is_fenced_as_a_whole(world: World) -> None:
    """The broker epoch must be the one of the registration; the controller asks an unknown broker to register."""
    command = resign(world, led())
    assert world.refusal(replace(command, broker_epoch=command.broker_epoch - 1)).code is ErrorCode.STALE_BROKER_EPOCH
    assert world.refusal(replace(command, broker_id=9)).code is ErrorCode.BROKER_FENCED
    world.run(FenceBroker(broker_id=0, broker_epoch=command.broker_epoch))
    world.run(register(0, process=100))
    assert world.refusal(command).code is ErrorCode.STALE_BROKER_EPOCH


def test_request_is_bounded_and_names_a_partition_once(world: World) -> None:
    """Too many partitions, none, or one twice are refused as a whole."""
    many = tuple(led(number) for number in range(SETTINGS.max_altered_partitions + 1))
    for partitions in (many, (), (led(), led(leader_epoch=1))):
        assert world.refusal(resign(world, *partitions)).code is ErrorCode.INVALID_REQUEST


def test_replica_that_goes_leads_only_where_there_is_no_other(world: World) -> None:
    """During a reassignment, replicas that stay or are added come first; the reassignment continues."""
    moves = tuple(Reassignment(topic="t", partition=each, replicas=(3, 4)) for each in (0, 1))
    world.run(ReassignPartitions(reassignments=moves))
    begun = world.partition("t")
    assert (begun.replicas, begun.isr, begun.removing) == ((3, 4, 0, 1, 2), (0, 1, 2), (0, 1, 2))
    proposal = IsrProposal(
        topic_id=T, partition=1, leader_epoch=0, partition_epoch=1, isr=tuple((each, None) for each in (0, 1, 2, 4))
    )
    world.run(AlterPartition(broker_id=0, broker_epoch=world.epoch(0), proposals=(proposal,)))
    gone, added = results(world, led(), led(1))
    assert isinstance(gone, PartitionImage)
    assert isinstance(added, PartitionImage)
    assert (gone.leader_id, added.leader_id) == (1, 4)
    assert (gone.adding, gone.removing) == (added.adding, added.removing) == ((3, 4), (0, 1, 2))


def test_sweeps_leave_the_new_leader(world: World) -> None:
    """The broker that resigned is live and in sync, and gets nothing back when other brokers stop and return."""
    results(world, led(), led(1))
    world.run(SweepPartitions())
    world.run(FenceBroker(broker_id=2, broker_epoch=world.epoch(2)))
    world.beat(2)
    assert world.leaders("t") == [1, 1]


def test_preferred_leader_comes_back_at_the_interval_and_not_before(world: World) -> None:
    """The resignation makes no work due; at the interval the return ignores the reason of the resignation."""
    due_ms = world.controller.deadline_ms()
    while not any(isinstance(work, ElectPreferredLeaders) for work in world.controller.due(due_ms)):
        due_ms += 300_000
    world.now_ms = due_ms
    assert results(world, led(), led(1))
    assert world.controller.due(due_ms) == ()
    assert world.controller.due(due_ms + 299_999) == ()
    for work in world.controller.due(due_ms + 300_000):
        world.run(work)
    assert world.leaders("t") == [0, 0]
    (again,) = results(world, led(leader_epoch=2))
    assert isinstance(again, PartitionImage)
    assert (again.leader_id, again.leader_epoch) == (1, 3)
