# SPDX-License-Identifier: Apache-2.0
"""In-sync and eligible leader replicas: clean, preferred and unclean elections of partitions with several replicas."""

from __future__ import annotations

import pytest

from metaquorum.controller.commands import (
    AlterConfigs,
    AlterPartition,
    ElectPreferredLeaders,
    ExpireSessions,
    FenceBroker,
    IsrProposal,
    ResourceChanges,
    SweepPartitions,
)
from metaquorum.controller.elections import ElectionRules, Lossy, partition_change, preferred_change
from metaquorum.metadata.records import ConfigResource, LeaderChange
from metaquorum.metadata.state import PartitionImage
from metaquorum.tests.controller_world import World, register, topic_id, view

MIN_ISR, UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"


@pytest.fixture
def world() -> World:
    """A world with brokers 0, 1 and 2, all unfenced."""
    made = World()
    for broker_id in (0, 1, 2):
        made.start_broker(broker_id)
    return made


def fence(world: World, *broker_ids: int) -> None:
    """Fence brokers, one after the other."""
    for broker_id in broker_ids:
        world.run(FenceBroker(broker_id=broker_id, broker_epoch=world.epoch(broker_id)))


def set_config(world: World, name: str, value: str | None) -> None:
    """Set a config of topic "t"."""
    changes = ResourceChanges(resource=ConfigResource.TOPIC, name="t", changes=((name, value),))
    world.run(AlterConfigs(resources=(changes,)))


def state(world: World) -> tuple[int | None, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return leader, in-sync replicas, eligible leader replicas and last known ones of the only partition."""
    partition = world.partition("t")
    return partition.leader_id, partition.isr, partition.elr, partition.last_known_elr


def test_replicas_that_leave_below_min_isr_become_eligible(world: World) -> None:
    """With three replicas of which all must be in sync, those that are fenced stay eligible; the last one stays in sync."""
    world.write_topic("t", (0, 1, 2), configs={MIN_ISR: "3"})
    fence(world, 1, 2)
    assert state(world) == (0, (0,), (1, 2), ())
    fence(world, 0)
    assert state(world) == (None, (0,), (1, 2), ())
    world.beat(2)
    assert state(world) == (2, (2,), (0, 1), ())
    assert len(view(world.image)) > 0


def test_replicas_that_leave_above_min_isr_are_not_eligible(world: World) -> None:
    """While enough replicas stay in sync, commits continue without those that left: these may lack records."""
    world.write_topic("t", (0, 1, 2), configs={MIN_ISR: "2"})
    fence(world, 2)
    assert state(world) == (0, (0, 1), (), ())
    fence(world, 1)
    assert state(world) == (0, (0,), (1,), ())
    fence(world, 0)
    world.beat(2)
    assert state(world) == (None, (0,), (1,), ())
    world.beat(1)
    assert state(world) == (1, (1,), (0,), ())


def test_all_eligible_ones_are_kept_through_a_restart(world: World) -> None:
    """The rows of the image carry them, so that the next controller elects as this one would."""
    world.write_topic("t", (0, 1, 2), configs={MIN_ISR: "3"})
    fence(world, 1, 2, 0)
    world.take_over()
    world.run(SweepPartitions())
    world.beat(1)
    assert state(world) == (1, (1,), (0, 2), ())


def test_lower_min_isr_ends_eligibility_in_the_same_batch(world: World) -> None:
    """If one in-sync replica is enough from now on, the others may fall behind: the batch with the change clears them."""
    world.write_topic("t", (0, 1, 2), configs={MIN_ISR: "3"}, partition_count=1)
    fence(world, 1, 2)
    changes = ResourceChanges(resource=ConfigResource.TOPIC, name="t", changes=((MIN_ISR, "2"),))
    assert len(world.decide(AlterConfigs(resources=(changes,))).records) == 1
    set_config(world, MIN_ISR, "2")
    assert state(world) == (0, (0,), (1, 2), ())
    checked = world.decide(
        AlterConfigs(
            resources=(ResourceChanges(resource=ConfigResource.TOPIC, name="t", changes=((MIN_ISR, None),)),),
            validate_only=True,
        )
    )
    assert checked.records == ()
    set_config(world, MIN_ISR, None)
    assert state(world) == (0, (0,), (), ())


def stop_uncleanly(world: World, broker_id: int, process: int) -> None:
    """Register another process of a broker, without proof of a clean stop, and run its sweep."""
    fence(world, broker_id)
    world.run(register(broker_id, process=process))


def test_unclean_stop_ends_eligibility_where_acknowledged_is_not_flushed(world: World) -> None:
    """A replica that may have lost records leaves both lists and is remembered; the last one stays in sync."""
    world.write_topic("t", (0, 1, 2), configs={MIN_ISR: "3", "flush.policy": "none"})
    fence(world, 1, 2)
    stop_uncleanly(world, 1, 101)
    assert state(world) == (0, (0,), (2,), (1,))
    # The only one in sync may lack records; the eligible one does not.
    stop_uncleanly(world, 0, 100)
    assert state(world) == (None, (2,), (), (0, 1))
    stop_uncleanly(world, 2, 102)
    assert state(world) == (None, (2,), (), (0, 1))
    world.beat(0)
    assert state(world) == (None, (2,), (), (0, 1))
    world.beat(2)
    assert state(world) == (2, (2,), (), (0, 1))


def test_unclean_stop_under_ack_ends_nothing(world: World) -> None:
    """All acknowledged records were flushed."""
    world.write_topic("t", (0, 1, 2), configs={MIN_ISR: "3"})
    fence(world, 1)
    stop_uncleanly(world, 1, 101)
    assert state(world) == (0, (0, 2), (1,), ())


def test_last_known_ones_are_forgotten_when_enough_are_in_sync() -> None:
    """From then on commits continue without them."""
    partition = PartitionImage(0, (0, 1, 2), (0, 2), 0, 4, 6, (1,), ())
    change = partition_change(b"t" * 16, partition, lambda node_id: node_id != 2, (Lossy(2),), ElectionRules(min_isr=2))
    assert change is not None
    assert (change.isr, change.elr, change.last_known_elr) == ((0,), None, (2,))
    change = partition_change(b"t" * 16, partition, lambda node_id: node_id == 0, (), ElectionRules(min_isr=1))
    assert change is not None
    assert (change.isr, change.elr, change.leader) == ((0,), (), None)


def test_unclean_election_is_off_by_default_and_takes_any_replica_when_allowed(world: World) -> None:
    """Without the config there is no leader; with it a live replica leads alone, a last known one first."""
    world.write_topic("t", (0, 1, 2))
    fence(world, 1, 2, 0)
    world.beat(2)
    world.beat(1)
    assert state(world) == (None, (0,), (), ())
    before = world.partition("t")
    set_config(world, UNCLEAN, "true")
    assert state(world) == (1, (1,), (), ())
    assert world.partition("t").leader_epoch == before.leader_epoch + 1


def test_unclean_election_prefers_the_last_known_ones() -> None:
    """They had all records until their stop; others may be far behind. Without a live replica nothing changes."""
    partition = PartitionImage(0, (0, 1, 2), (0,), None, 4, 6, (), (2,))
    rules = ElectionRules(min_isr=2, unclean=True)
    change = partition_change(b"t" * 16, partition, lambda node_id: node_id != 0, (), rules)
    assert change is not None
    assert (change.leader, change.isr, change.elr, change.last_known_elr) == (LeaderChange(leader_id=2), (2,), None, ())
    assert partition_change(b"t" * 16, partition, lambda _: False, (), rules) is None


def test_unclean_election_can_be_allowed_for_the_cluster_and_refused_for_a_topic(world: World) -> None:
    """The topic's own value wins over the cluster's."""
    world.write_topic("t", (0, 1), configs={UNCLEAN: "false"})
    world.write_topic("u", (0, 1))
    fence(world, 1, 0)
    world.beat(1)
    changes = ResourceChanges(resource=ConfigResource.CLUSTER, name="", changes=((UNCLEAN, "true"),))
    world.run(AlterConfigs(resources=(changes,)))
    assert (world.leaders("t"), world.leaders("u")) == ([None], [1])


def test_preferred_leaders_come_back_in_slices(world: World) -> None:
    """The first replica leads again if it is in sync and fit, a bounded number of partitions at a time."""
    world.write_topic("a", (0, 1), partition_count=3, configs={MIN_ISR: "2"})
    fence(world, 0)
    assert world.leaders("a") == [1, 1, 1]
    world.beat(0)
    assert world.decide(ElectPreferredLeaders()).records == ()
    proposals = tuple(
        IsrProposal(
            topic_id=topic_id("a"), partition=each, leader_epoch=1, partition_epoch=1, isr=((1, None), (0, None))
        )
        for each in range(3)
    )
    world.run(AlterPartition(broker_id=1, broker_epoch=world.epoch(1), proposals=proposals))
    world.limit(max_walk_records=2)
    first = world.append(ElectPreferredLeaders())
    assert len(first.records) == 2
    assert first.then is not None
    second = world.append(first.then)
    assert (len(second.records), second.then) == (1, None)
    world.commit()
    assert world.leaders("a") == [0, 0, 0]
    assert {partition.leader_epoch for partition in _partitions(world)} == {2}


def _partitions(world: World) -> list[PartitionImage]:
    topic = world.image.topic_by_name("a")
    assert topic is not None
    return topic.partitions


@pytest.mark.parametrize(
    ("leader_id", "isr", "fit"),
    [(None, (1,), {0, 1}), (0, (0, 1), {0, 1}), (1, (1,), {0, 1}), (1, (0, 1), {1})],
)
def test_preferred_election_leaves_the_others_alone(leader_id: int | None, isr: tuple[int, ...], fit: set[int]) -> None:
    """The partition has no leader, has the preferred leader already, or its first replica is not fit to lead: no change."""
    partition = PartitionImage(0, (0, 1), isr, leader_id, 1, 1)
    assert preferred_change(b"t" * 16, partition, fit.__contains__) is None


def test_sweep_cuts_a_topic_and_goes_on_within_it(world: World) -> None:
    """A slice may end inside a topic; a topic that is created before that position is visited as well."""
    world.limit(max_sweep_records=4)
    world.write_topic("m", (0, 1), partition_count=10)
    world.now_ms += world.settings.session_timeout_ms
    for broker_id in (1, 2):
        world.beat(broker_id)
    decision = world.append(ExpireSessions())
    sizes: list[int] = []
    while decision.then is not None:
        if len(sizes) == 1:
            world.write_topic("a", (0, 1), partition_count=3)
        decision = world.append(decision.then)
        sizes.append(len(decision.records))
    world.commit()
    assert max(sizes) == 4
    assert sum(sizes) == 13
    assert world.leaders("m") == [1] * 10
    assert world.leaders("a") == [1] * 3
