# SPDX-License-Identifier: Apache-2.0
"""The periodic return to preferred leaders: which partitions move, to which replica, and when."""

from __future__ import annotations

import pytest

from metaquorum.controller.commands import ElectPreferredLeaders, FenceBroker, Heartbeat
from metaquorum.metadata.records import BrokerChangeRecord, LeaderChange, PartitionChangeRecord
from metaquorum.tests.controller.periodic_work import REBALANCE, lead, of_cluster, slices
from metaquorum.tests.controller_world import World, topic_id


@pytest.fixture
def world() -> World:
    """Brokers 0, 1 and 2; topic "t" on all of them, its first replica 0, led by 1."""
    made = World()
    for broker_id in (0, 1, 2):
        made.start_broker(broker_id)
    made.write_topic("t", (0, 1, 2), partition_count=2)
    lead(made, "t", 1, partition_count=2)
    return made


def test_first_replicas_lead_again(world: World) -> None:
    """One leader epoch higher, and with the same replicas in sync."""
    before = world.partition("t")
    world.run(ElectPreferredLeaders())
    after = world.partition("t")
    assert world.leaders("t") == [0, 0]
    assert (after.leader_epoch, after.partition_epoch) == (before.leader_epoch + 1, before.partition_epoch + 1)
    assert (after.replicas, after.isr) == (before.replicas, before.isr)
    assert world.decide(ElectPreferredLeaders()).records == ()


def test_broker_that_was_away_leads_again_at_the_next_interval(world: World) -> None:
    """No leadership moves when the broker returns; its partitions move at the next interval."""
    world.run(ElectPreferredLeaders())
    world.run(FenceBroker(broker_id=0, broker_epoch=world.epoch(0)))
    world.beat(0)
    assert world.leaders("t") == [1, 1]
    # Its leader takes it in again.
    world.write(*(PartitionChangeRecord(topic_id=topic_id("t"), partition=each, isr=(0, 1, 2)) for each in range(2)))
    world.now_ms = world.controller.deadline_ms() + 300_000
    for work in world.controller.due(world.now_ms):
        world.run(work)
    assert world.leaders("t") == [0, 0]


def test_replica_that_is_not_in_sync_does_not_lead(world: World) -> None:
    """An eligible replica does not lead either: the current leader has every record."""
    out = PartitionChangeRecord(topic_id=topic_id("t"), partition=0, isr=(1,), elr=(0,))
    world.write(out)
    world.run(ElectPreferredLeaders())
    assert world.leaders("t") == [1, 0]


def test_broker_that_leaves_gets_no_leadership(world: World) -> None:
    """A broker in controlled shutdown is live and in sync and may not lead; neither may a fenced or unclean one."""
    world.write(BrokerChangeRecord(broker_id=0, broker_epoch=world.epoch(0), in_controlled_shutdown=True))
    assert slices(world, ElectPreferredLeaders()) == [0]
    world.write(BrokerChangeRecord(broker_id=0, broker_epoch=world.epoch(0), in_controlled_shutdown=False, fenced=True))
    assert slices(world, ElectPreferredLeaders()) == [0]
    world.write(BrokerChangeRecord(broker_id=0, broker_epoch=world.epoch(0), unclean=True))
    assert slices(world, ElectPreferredLeaders()) == [0]
    world.write(BrokerChangeRecord(broker_id=0, broker_epoch=world.epoch(0), unclean=False, fenced=False))
    assert slices(world, ElectPreferredLeaders()) == [2]


def test_partition_without_leader_is_left_to_elections(world: World) -> None:
    """The work changes only partitions that have a leader."""
    lead(world, "t", None, partition_count=2)
    assert slices(world, ElectPreferredLeaders()) == [0]


def test_only_what_is_committed_elsewhere_is_touched(world: World) -> None:
    """A partition with its preferred leader keeps its epochs."""
    world.write(PartitionChangeRecord(topic_id=topic_id("t"), partition=1, leader=LeaderChange(leader_id=0)))
    right = world.partition("t", 1)
    decision = world.run(ElectPreferredLeaders())
    assert [record.partition for record in decision.records if isinstance(record, PartitionChangeRecord)] == [0]
    assert world.partition("t", 1) == right


def test_switched_off_it_ends_at_the_next_slice(world: World) -> None:
    """An operator who switches it off does not wait for the end of a long walk."""
    world.limit(max_walk_records=1)
    first = world.append(ElectPreferredLeaders())
    world.commit()
    assert first.then is not None
    world.run(of_cluster(REBALANCE, "false"))
    assert slices(world, first.then) == [0]
    assert world.leaders("t") == [0, 1]
    world.run(of_cluster(REBALANCE, None))
    assert slices(world, first.then) == [1]


def test_controlled_shutdown_is_not_undone(world: World) -> None:
    """A broker that shuts down and has handed its partitions over gets none of them back, and may stop."""
    world.run(ElectPreferredLeaders())
    world.beat(0, want_shutdown=True)
    assert 0 not in world.leaders("t")
    world.run(ElectPreferredLeaders())
    assert 0 not in world.leaders("t")
    for broker_id in (1, 2):
        world.beat(broker_id)
    answer = world.run(
        Heartbeat(broker_id=0, broker_epoch=world.epoch(0), metadata_offset=world.log_end_offset, want_shutdown=True)
    )
    assert answer.records != ()
    assert world.image.brokers[0].fenced
