# SPDX-License-Identifier: Apache-2.0
"""Leaders for partitions without one, if the config allows missing records: at each interval, and when it becomes allowed."""

from __future__ import annotations

import pytest

from metaquorum.controller.commands import AlterConfigs, ElectUncleanLeaders, FenceBroker, ResourceChanges
from metaquorum.metadata.records import BrokerChangeRecord, ConfigResource, LeaderChange, PartitionChangeRecord
from metaquorum.tests.controller.periodic_work import DEFAULT_INTERVAL_MS, of_cluster, slices
from metaquorum.tests.controller_world import World, topic_id

UNCLEAN = "unclean.leader.election.enable"


@pytest.fixture
def world() -> World:
    """Brokers 0, 1 and 2, of which 0 is fenced."""
    made = World()
    for broker_id in (0, 1, 2):
        made.start_broker(broker_id)
    made.run(FenceBroker(broker_id=0, broker_epoch=made.epoch(0)))
    return made


def orphan(world: World, topic: str, *, partition_count: int = 1, configs: dict[str, str] | None = None) -> None:
    """Create a topic without a leader on all brokers, with only broker 0 in sync; no sweep has run since."""
    world.write_topic(topic, (0, 1, 2), partition_count=partition_count, configs=configs)
    world.write(
        *(
            PartitionChangeRecord(
                topic_id=topic_id(topic), partition=each, isr=(0,), leader=LeaderChange(leader_id=None)
            )
            for each in range(partition_count)
        )
    )


def test_partition_without_leader_gets_one_at_the_interval(world: World) -> None:
    """The first live replica leads, and is the only one in sync."""
    orphan(world, "t", configs={UNCLEAN: "true"})
    before = world.partition("t")
    assert world.controller.due(world.now_ms + DEFAULT_INTERVAL_MS)[-1] == ElectUncleanLeaders()
    world.run(ElectUncleanLeaders())
    after = world.partition("t")
    assert (after.leader_id, after.isr, after.elr) == (1, (1,), ())
    assert after.leader_epoch == before.leader_epoch + 1
    assert slices(world, ElectUncleanLeaders()) == [0]


def test_topic_says_before_the_cluster_whether_it_may_be(world: World) -> None:
    """The topic's config wins, else the cluster's; if neither is set, no leader is elected uncleanly."""
    orphan(world, "inherits")
    orphan(world, "may", configs={UNCLEAN: "true"})
    orphan(world, "may-not", configs={UNCLEAN: "false"})
    assert slices(world, ElectUncleanLeaders()) == [1]
    assert world.leaders("may") == [1]
    # The config change sweeps, so the periodic work finds nothing more to do.
    world.run(of_cluster(UNCLEAN, "true"))
    assert (world.leaders("inherits"), world.leaders("may-not")) == ([1], [None])
    assert slices(world, ElectUncleanLeaders()) == [0]


def test_it_is_done_at_once_when_it_becomes_allowed(world: World) -> None:
    """The operator does not wait for the interval, for a topic either."""
    orphan(world, "t")
    changes = ResourceChanges(resource=ConfigResource.TOPIC, name="t", changes=((UNCLEAN, "true"),))
    world.run(AlterConfigs(resources=(changes,)))
    assert world.leaders("t") == [1]


def test_replicas_that_have_everything_come_first(world: World) -> None:
    """In sync, then eligible, then last known eligible (until an unclean stop); then any live replica."""
    allowed = {UNCLEAN: "true", "min.insync.replicas": "3"}
    for topic in ("in-sync", "eligible", "known"):
        orphan(world, topic, configs=allowed)
    world.write(
        PartitionChangeRecord(topic_id=topic_id("in-sync"), partition=0, isr=(0, 2)),
        PartitionChangeRecord(topic_id=topic_id("eligible"), partition=0, elr=(2,)),
        PartitionChangeRecord(topic_id=topic_id("known"), partition=0, last_known_elr=(2,)),
    )
    assert slices(world, ElectUncleanLeaders()) == [3]
    assert [world.leaders(topic) for topic in ("in-sync", "eligible", "known")] == [[2], [2], [2]]
    # Where the election was a clean one, the replica that is away stays eligible.
    assert [world.partition(topic).elr for topic in ("in-sync", "eligible", "known")] == [(0,), (0,), ()]


def test_partition_that_has_a_leader_keeps_it(world: World) -> None:
    """The work visits only partitions without a leader."""
    orphan(world, "t", partition_count=2, configs={UNCLEAN: "true"})
    world.write(PartitionChangeRecord(topic_id=topic_id("t"), partition=1, isr=(2,), leader=LeaderChange(leader_id=2)))
    world.run(ElectUncleanLeaders())
    assert world.leaders("t") == [1, 2]
    assert world.partition("t", 1).leader_epoch == 2


def test_without_a_replica_that_lives_there_is_no_leader(world: World) -> None:
    """Fenced, leaving and unclean brokers are not elected; the first live one is."""
    orphan(world, "t", configs={UNCLEAN: "true"})
    world.write(
        BrokerChangeRecord(broker_id=1, broker_epoch=world.epoch(1), fenced=True, unclean=True),
        BrokerChangeRecord(broker_id=2, broker_epoch=world.epoch(2), in_controlled_shutdown=True),
    )
    assert slices(world, ElectUncleanLeaders()) == [0]
    world.write(BrokerChangeRecord(broker_id=2, broker_epoch=world.epoch(2), in_controlled_shutdown=False))
    assert slices(world, ElectUncleanLeaders()) == [1]
    assert world.leaders("t") == [2]


def test_it_ends_early_when_every_partition_has_a_leader(world: World) -> None:
    """A walk with nothing to do does not start, and a walk that has work goes in slices."""
    world.limit(max_walk_records=2)
    orphan(world, "t", partition_count=5, configs={UNCLEAN: "true"})
    assert slices(world, ElectUncleanLeaders()) == [2, 2, 1]
    world.limit(max_walk_topics=0)
    assert world.decide(ElectUncleanLeaders()).then is None
