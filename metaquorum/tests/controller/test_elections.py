# SPDX-License-Identifier: Apache-2.0
"""Leaders in the controller: the election rule, fencing and unfencing, sweeps in slices, bootstrap, laws of replay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metaquorum.controller.commands import Bootstrap, ExpireSessions, Heard, SweepCursor, SweepPartitions
from metaquorum.controller.elections import elect, partition_change
from metaquorum.controller.sessions import Sessions
from metaquorum.metadata.records import (
    FEATURE_LEVEL,
    FEATURE_NAME,
    FeatureLevelRecord,
    LeaderChange,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from metaquorum.metadata.state import PartitionImage
from metaquorum.tests.controller_world import SETTINGS, World, create_topic, topic_id

TOPIC = topic_id("t")


def partition(replicas: tuple[int, ...], isr: tuple[int, ...], leader_id: int | None) -> PartitionImage:
    """Return a partition at leader epoch 4, partition epoch 6."""
    return PartitionImage(0, replicas, isr, leader_id, 4, 6)


@pytest.mark.parametrize(
    ("isr", "leader_id", "usable", "expected"),
    [
        ((1, 2, 3), 2, {1, 2, 3}, 2),
        ((1, 2, 3), 2, {1, 3}, 1),
        ((2, 3), 2, {1, 3}, 3),
        ((2,), 2, {1, 3}, None),
        ((2, 3), 1, {1, 2, 3}, 2),
        ((3, 2), None, {2, 3}, 2),
        ((1, 2, 3), None, set[int](), None),
    ],
)
def test_elect_keeps_a_fit_leader_else_takes_the_first_fit_in_sync_replica(
    isr: tuple[int, ...], leader_id: int | None, usable: set[int], expected: int | None
) -> None:
    """Election "online": the present leader if fit, else the first in replica order that is in sync and fit."""
    assert elect((1, 2, 3), isr, leader_id, usable.__contains__) == expected


def change(*, leader_id: int | None = -1, isr: tuple[int, ...] | None = None) -> PartitionChangeRecord:
    """Return a change of partition 0; a leader of -1 leaves the leader as it is."""
    leader = None if leader_id == -1 else LeaderChange(leader_id=leader_id)
    return PartitionChangeRecord(topic_id=TOPIC, partition=0, leader=leader, isr=isr)


@pytest.mark.parametrize(
    ("before", "usable", "expected"),
    [
        (partition((1,), (1,), 1), {1}, None),
        (partition((1,), (1,), 1), {2}, change(leader_id=None)),
        (partition((1,), (1,), None), {2}, None),
        (partition((1,), (1,), None), {1}, change(leader_id=1)),
        (partition((1, 2), (1, 2), 1), {2}, change(leader_id=2, isr=(2,))),
        (partition((1, 2), (1, 2), 1), {1}, change(isr=(1,))),
        (partition((1, 2), (1, 2), 1), set[int](), change(leader_id=None)),
    ],
)
def test_partition_change_shrinks_but_never_empties_the_in_sync_replicas(
    before: PartitionImage, usable: set[int], expected: PartitionChangeRecord | None
) -> None:
    """Unfit replicas leave the in-sync replicas as long as a fit one stays; when none is fit, all stay."""
    assert partition_change(TOPIC, before, usable.__contains__) == expected


def test_fencing_takes_leaderships_and_unfencing_gives_them_back() -> None:
    """With one replica: no leader while its broker is fenced, the same leader with a higher epoch afterwards."""
    world = World()
    world.start_broker(1)
    world.start_broker(2)
    world.run(create_topic("t", partition_count=4))
    world.now_ms += SETTINGS.session_timeout_ms - 1
    world.beat(2)
    world.now_ms += 1
    world.run(ExpireSessions())
    assert world.leaders("t") == [None, 2, None, 2]
    assert world.image.counts.leaderless == 2
    assert world.image.counts.leaders == {2: 2}
    world.beat(1)
    assert world.leaders("t") == [1, 2, 1, 2]
    topic = world.image.topic_by_name("t")
    assert topic is not None
    assert topic.partitions[0] == PartitionImage(0, (1,), (1,), 1, 2, 2)
    assert topic.partitions[1] == PartitionImage(1, (2,), (2,), 2, 0, 0)


def test_sweep_runs_in_slices_that_end_with_a_whole_topic() -> None:
    """A slice is bounded by records and by visited partitions, and the slices together do all of the work."""
    world = World(settings=replace(SETTINGS, max_sweep_records=4, max_sweep_partitions=7))
    world.start_broker(1)
    world.start_broker(2)
    for number in range(8):
        world.run(create_topic(f"t{number}", partition_count=4))
    world.now_ms += SETTINGS.session_timeout_ms
    world.beat(2)
    fenced = world.append(ExpireSessions())
    sizes: list[int] = []
    command = fenced.then
    while command is not None:
        decision = world.append(command)
        sizes.append(len(decision.records))
        command = decision.then
    world.commit()
    assert max(sizes) <= 4
    assert sum(sizes) == 16
    assert len(sizes) > 4
    assert all(world.leaders(f"t{number}") == [None, 2, None, 2] for number in range(8))


def test_sweep_meets_a_topic_that_is_larger_than_a_slice() -> None:
    """The sweep changes every partition of the topic, a few in each slice."""
    world = World(settings=replace(SETTINGS, max_sweep_records=2))
    world.start_broker(1)
    world.run(create_topic("t", partition_count=5))
    world.now_ms += SETTINGS.session_timeout_ms
    world.run(ExpireSessions())
    assert world.leaders("t") == [None] * 5


def test_sweep_sees_topics_that_come_and_go_between_its_slices() -> None:
    """The cursor is a name, so a sweep survives creations and deletions between its slices."""
    world = World(settings=replace(SETTINGS, max_sweep_partitions=1))
    world.start_broker(1)
    for name in ("a", "b", "c"):
        world.run(create_topic(name))
    world.now_ms += SETTINGS.session_timeout_ms
    fenced = world.append(ExpireSessions())
    assert fenced.then is not None
    first = world.append(fenced.then)
    assert first.then == SweepPartitions(cursor=SweepCursor(after_topic="a", cut_topic_id=topic_id("b")))
    removal = RemoveTopicRecord(topic_id=topic_id("b"))
    world.controller.replay(removal, world.log_end_offset)
    world.log.append((world.log_end_offset, removal))
    world.log_end_offset += 1
    world.run(first.then)
    assert world.leaders("a") == world.leaders("c") == [None]


def test_take_over_goes_on_with_a_sweep_that_was_left() -> None:
    """A controller fell between fencing and electing; the next one sweeps at its start and finishes the work."""
    world = World()
    world.start_broker(1)
    world.run(create_topic("t"))
    world.now_ms += SETTINGS.session_timeout_ms
    world.append(ExpireSessions())
    world.commit()
    assert world.leaders("t") == [1]
    world.take_over()
    world.run(Bootstrap())
    assert world.leaders("t") == [None]


def test_bootstrap_writes_the_feature_level_once() -> None:
    """A new cluster gets its feature level, an old one keeps it."""
    world = World()
    first = world.run(Bootstrap())
    assert first.records == (FeatureLevelRecord(name=FEATURE_NAME, level=FEATURE_LEVEL),)
    assert world.image.features == {FEATURE_NAME: FEATURE_LEVEL}
    assert world.run(Bootstrap()).records == ()
    world.take_over()
    assert world.run(Bootstrap()).records == ()


def test_no_op_moves_the_offset_only() -> None:
    """A record without a change still counts as committed."""
    world = World()
    offset = world.image.metadata_offset
    world.image.replay(NoOpRecord(), offset)
    assert world.image.metadata_offset == offset + 1


def _partition_record(**changes: object) -> PartitionRecord:
    record = PartitionRecord(
        topic_id=TOPIC, partition=0, replicas=(1, 2), isr=(1,), leader_id=1, leader_epoch=0, partition_epoch=0
    )
    return record._replace(**changes)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (RemoveTopicRecord(topic_id=topic_id("x")), "unknown topic"),
        (_partition_record(topic_id=topic_id("x")), "unknown topic"),
        (_partition_record(partition=2), "out of turn"),
        (_partition_record(partition=1, isr=()), "impossible"),
        (_partition_record(partition=1, isr=(3,), leader_id=None), "impossible"),
        (_partition_record(partition=1, leader_id=2), "impossible"),
        (PartitionChangeRecord(topic_id=topic_id("x"), partition=0), "unknown topic"),
        (PartitionChangeRecord(topic_id=TOPIC, partition=1), "unknown partition"),
        (PartitionChangeRecord(topic_id=TOPIC, partition=0, leader=LeaderChange(leader_id=2)), "impossible"),
        (TopicRecord(topic="t", topic_id=topic_id("x")), "exists"),
        (TopicRecord(topic="x", topic_id=TOPIC), "exists"),
        (ProducerIdsRecord(broker_id=1, broker_epoch=2, next_producer_id=0), "go back"),
    ],
)
def test_record_that_contradicts_the_image_stops_the_process(record: MetadataRecord, words: str) -> None:
    """Law of replay, on both images: an impossible record is a fault, and is never skipped."""
    world = World()
    for first in (TopicRecord(topic="t", topic_id=TOPIC), _partition_record()):
        world.image.replay(first, world.log_end_offset)
        world.log_end_offset += 1
    world.take_over()
    with pytest.raises(AssertionError, match=words):
        world.controller.replay(record, world.log_end_offset)
    with pytest.raises(AssertionError, match=words):
        world.image.replay(record, world.log_end_offset)


def test_replay_below_the_present_offset_stops_the_process() -> None:
    """Offsets never fall, in either image."""
    world = World(first_offset=5)
    with pytest.raises(AssertionError, match="below 5"):
        world.image.replay(NoOpRecord(), 4)
    with pytest.raises(AssertionError, match="below 5"):
        world.image.advance(4)
    with pytest.raises(AssertionError, match="below 5"):
        world.controller.replay(NoOpRecord(), 4)


def test_partition_change_may_replace_replicas() -> None:
    """A record may change the replicas; the counts follow."""
    world = World()
    for first in (TopicRecord(topic="t", topic_id=TOPIC), _partition_record()):
        world.image.replay(first, world.log_end_offset)
        world.log_end_offset += 1
    change = PartitionChangeRecord(
        topic_id=TOPIC, partition=0, replicas=(3, 1), isr=(1, 3), leader=LeaderChange(leader_id=3)
    )
    world.image.replay(change, world.log_end_offset)
    topic = world.image.topic_by_id(TOPIC)
    assert topic is not None
    assert list(topic.partitions) == [PartitionImage(0, (3, 1), (1, 3), 3, 1, 1)]
    assert world.image.counts.replicas == {1: 1, 3: 1}
    assert world.image.counts.leaders == {3: 1}
    shrink = PartitionChangeRecord(topic_id=TOPIC, partition=0, isr=(3,))
    world.image.replay(shrink, world.log_end_offset + 1)
    assert list(topic.partitions) == [PartitionImage(0, (3, 1), (3,), 3, 1, 2)]
    assert world.image.counts.leaders == {3: 1}


def test_sessions_know_only_the_registration_that_was_heard() -> None:
    """A session belongs to one registration: an unknown broker or another epoch has none."""
    world = World()
    epoch = world.start_broker(1)
    broker = world.image.brokers[1]
    sessions = Sessions(100, now_ms=0)
    assert sessions.expiry_ms(broker) is None
    assert not sessions.is_live(broker, 0)
    assert sessions.metadata_offset(1) == 0
    sessions.hear(Heard(broker_id=1, broker_epoch=epoch, metadata_offset=7), 50)
    assert sessions.expiry_ms(broker) == 150
    assert sessions.metadata_offset(1) == 7
    assert sessions.expiry_ms(replace(broker, broker_epoch=epoch + 1)) is None
    sessions.grace([broker], 60)
    assert sessions.expiry_ms(broker) == 160
    assert sessions.metadata_offset(1) == 7
