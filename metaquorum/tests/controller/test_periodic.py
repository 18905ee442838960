# SPDX-License-Identifier: Apache-2.0
"""Periodic work of the controller: when it is due, and how a walk over all partitions is cut into slices."""

from __future__ import annotations

import pytest
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import (
    AlterConfigs,
    DeleteTopic,
    ElectPreferredLeaders,
    ElectUncleanLeaders,
    ResourceChanges,
    SweepCursor,
)
from metaquorum.metadata.records import ConfigResource
from metaquorum.tests.controller.periodic_work import DEFAULT_INTERVAL_MS, REBALANCE, lead, of_cluster, slices
from metaquorum.tests.controller_world import World, topic_id

EVERY_S = "leader.imbalance.check.interval.seconds"
UNCLEAN_EVERY_MS = "unclean.leader.election.interval.ms"


@pytest.fixture
def world() -> World:
    """A world with brokers 0, 1 and 2, all unfenced."""
    made = World()
    for broker_id in (0, 1, 2):
        made.start_broker(broker_id)
    return made


def test_works_are_due_once_in_each_interval(world: World) -> None:
    """First one interval after the take-over, then one interval after the last time, however late that was."""
    world.write_topic("t", (0, 1))
    lead(world, "t", None)
    began_ms = world.now_ms
    world.take_over()
    assert world.controller.due(began_ms + DEFAULT_INTERVAL_MS - 1) == ()
    late_ms = began_ms + DEFAULT_INTERVAL_MS + 70_000
    assert world.controller.due(late_ms) == (ElectPreferredLeaders(), ElectUncleanLeaders())
    assert world.controller.due(late_ms) == ()
    assert world.controller.due(late_ms + DEFAULT_INTERVAL_MS - 1) == ()
    assert world.controller.due(late_ms + DEFAULT_INTERVAL_MS) == (ElectPreferredLeaders(), ElectUncleanLeaders())


def test_another_interval_counts_from_the_last_time(world: World) -> None:
    """Both intervals are configs of the cluster; a removed one is the default again. The deadline is the earlier of the two."""
    began_ms = world.now_ms
    world.write_topic("t", (0, 1))
    lead(world, "t", None)
    world.take_over()
    world.run(of_cluster(EVERY_S, "7"))
    assert world.controller.due(began_ms + 6_999) == ()
    assert world.controller.due(began_ms + 7_000) == (ElectPreferredLeaders(),)
    world.run(of_cluster(UNCLEAN_EVERY_MS, "9000"))
    assert world.controller.due(began_ms + 9_000) == (ElectUncleanLeaders(),)
    for broker_id in (0, 1, 2):
        world.beat(broker_id, want_fence=True)
    assert world.controller.deadline_ms() == began_ms + 14_000
    world.run(of_cluster(EVERY_S, None))
    assert world.controller.deadline_ms() == began_ms + 18_000


def test_nothing_is_begun_that_is_switched_off_or_has_no_subject(world: World) -> None:
    """The timer runs nevertheless, so that switching the work on does not start it at once."""
    world.write_topic("t", (0, 1))
    world.run(of_cluster(REBALANCE, "false"))
    world.now_ms += DEFAULT_INTERVAL_MS
    assert world.controller.due(world.now_ms) == ()
    world.run(of_cluster(REBALANCE, "true"))
    lead(world, "t", None)
    assert world.controller.due(world.now_ms) == ()
    assert len(world.controller.due(world.now_ms + DEFAULT_INTERVAL_MS)) == 2


def test_take_over_begins_the_intervals_anew(world: World) -> None:
    """A controller does not know when an earlier one did the work."""
    world.now_ms += DEFAULT_INTERVAL_MS - 1
    world.take_over()
    assert world.controller.due(world.now_ms + DEFAULT_INTERVAL_MS - 1) == ()
    assert world.controller.due(world.now_ms + DEFAULT_INTERVAL_MS) == (ElectPreferredLeaders(),)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        (REBALANCE, "yes", "one of true, false"),
        (EVERY_S, "0", "an integer from 1 to 2147483647"),
        (EVERY_S, "0.5", "an integer from 1"),
        (UNCLEAN_EVERY_MS, "999", "an integer from 1000 to"),
    ],
)
def test_bad_intervals_are_refused(world: World, name: str, value: str, text: str) -> None:
    """The refusal says what is allowed; topics and brokers do not have these configs."""
    refusal = world.refusal(of_cluster(name, value))
    assert refusal.code is ErrorCode.INVALID_CONFIG
    assert text in refusal.message
    world.write_topic("t", (0,))
    for resource, owner in ((ConfigResource.TOPIC, "t"), (ConfigResource.BROKER, "0")):
        changes = ResourceChanges(resource=resource, name=owner, changes=((name, None),))
        refusal = world.refusal(AlterConfigs(resources=(changes,)))
        assert refusal.code is ErrorCode.INVALID_CONFIG
        assert f"{name} can be set for a cluster only" in refusal.message


def test_slices_are_bounded_by_records_within_a_topic(world: World) -> None:
    """A slice ends within a topic when it is full, and the next one continues there."""
    world.limit(max_walk_records=3)
    world.write_topic("a", (0, 1), partition_count=5)
    world.write_topic("b", (0, 1), partition_count=2)
    lead(world, "a", 1, partition_count=5)
    lead(world, "b", 1, partition_count=2)
    assert slices(world, ElectPreferredLeaders()) == [3, 3, 1]
    assert world.leaders("a") + world.leaders("b") == [0] * 7
    assert slices(world, ElectPreferredLeaders()) == [0]


def test_slices_are_bounded_by_what_is_looked_at(world: World) -> None:
    """Partitions and topics that need no change cost time as well."""
    world.limit(max_walk_partitions=4)
    world.write_topic("a", (0, 1), partition_count=9)
    world.write_topic("b", (0, 1), partition_count=3)
    assert slices(world, ElectPreferredLeaders()) == [0] * 3
    world.limit(max_walk_topics=2)
    for number in range(4):
        world.write_topic(f"c{number}", (0, 1))
    lead(world, "c3", 1)
    assert slices(world, ElectPreferredLeaders()) == [0, 0, 0, 0, 1]
    # Only the topics count: none of their partitions is read.
    lead(world, "a", None)
    assert slices(world, ElectUncleanLeaders()) == [0] * 3


def test_walk_goes_on_where_it_was_though_topics_come_and_go(world: World) -> None:
    """The topic at which the walk stopped may be deleted, recreated under the same name, or preceded by a new one."""
    world.limit(max_walk_records=1)
    for topic in ("b", "d"):
        world.write_topic(topic, (0, 1), partition_count=2)
        lead(world, topic, 1, partition_count=2)
    first = world.append(ElectPreferredLeaders())
    assert first.then == ElectPreferredLeaders(cursor=SweepCursor(cut_topic_id=topic_id("b"), next_partition=1))
    world.commit()
    world.run(DeleteTopic(topic="b"))
    world.write_topic("c", (0, 1))
    lead(world, "c", 1)
    assert slices(world, first.then) == [1, 1, 1]
    assert world.leaders("c") + world.leaders("d") == [0] * 3
