# SPDX-License-Identifier: Apache-2.0
"""Runs of changes: replaying a run equals replaying its records one by one, in both images; invalid runs are refused."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaquorum.controller.appended import AppendedImage
from metaquorum.metadata import image_rows
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import LeaderChange, MetadataRecord, NoOpRecord, PartitionChangeRecord
from metaquorum.metadata.runs import record_count, runs
from metaquorum.tests.controller_world import World, topic_id, view

TOPICS = ("a", "b")
PARTITIONS = 140
"""More than a block has."""

REPLICAS = (1, 2, 3)


def made() -> World:
    """Two topics with three replicas each."""
    world = World()
    for topic in TOPICS:
        world.write_topic(topic, REPLICAS, partition_count=PARTITIONS)
    return world


@st.composite
def changes(draw: st.DrawFn) -> PartitionChangeRecord:
    """A change that is possible in any state: it has both in-sync replicas and leader, or neither."""
    in_sync = draw(st.sampled_from((None, (1,), (1, 2), (2, 3), REPLICAS)))
    leader = None if in_sync is None else LeaderChange(leader_id=draw(st.sampled_from((None, *in_sync))))
    return PartitionChangeRecord(
        topic_id=topic_id(draw(st.sampled_from(TOPICS))),
        partition=draw(st.integers(0, PARTITIONS - 1)),
        leader=leader,
        isr=in_sync,
        elr=() if in_sync == REPLICAS else None,
    )


BATCHES = st.lists(
    st.one_of(
        st.lists(changes(), max_size=12),
        # The records of long work: one topic, ascending.
        st.lists(changes(), max_size=30).map(
            lambda some: sorted((each._replace(topic_id=topic_id("a")) for each in some), key=lambda one: one.partition)
        ),
        st.just([NoOpRecord()]),
    ),
    max_size=6,
)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(BATCHES)
def test_runs_do_what_their_records_do_one_by_one(batches: list[list[MetadataRecord]]) -> None:
    """Property: rows, counts, touched rows, offsets, and when each broker lost its last leadership."""
    single, joined = made(), made()
    for batch in batches:
        base_offset = single.log_end_offset
        keys: set[bytes] = set()
        for offset, record in enumerate(batch, start=base_offset):
            single.controller.replay(record, offset)
            keys.update(image_rows.touched_keys(record, single.image))
            single.image.replay(record, offset)
        touched: set[bytes] = set()
        for offset, run in runs(batch, base_offset):
            joined.controller.replay(run, offset)
            touched.update(image_rows.touched_keys(run, joined.image))
            joined.image.replay(run, offset)
        assert touched == keys
        one, other = single.controller.image, joined.controller.image
        assert one.next_offset == other.next_offset
        for broker_id in REPLICAS:
            assert one.left_leadership_offset(broker_id) == other.left_leadership_offset(broker_id)
        assert list(one.topics()) == list(other.topics())
        assert one.counts == other.counts == single.image.counts == joined.image.counts
        for world in (single, joined):
            world.log_end_offset = base_offset + len(batch)
            world.image.advance(world.log_end_offset)
            world.controller.committed(world.log_end_offset)
            assert world.controller.image.overlay_size == 0
        assert view(single.image) == view(joined.image)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(BATCHES, st.integers(0, 1 << 40))
def test_runs_are_all_records_in_order(batches: list[list[MetadataRecord]], base_offset: int) -> None:
    """Property: no record is lost, moved or repeated; a run is one topic, ascending, with bounded length."""
    records = [record for batch in batches for record in batch]
    found: list[MetadataRecord] = []
    last: MetadataRecord | None = None
    for offset, run in runs(records, base_offset):
        assert offset == base_offset + len(found)
        some = run if isinstance(run, list) else [run]
        assert record_count(run) == len(some)
        assert len({each.topic_id for each in some if isinstance(each, PartitionChangeRecord)}) <= 1
        if isinstance(run, list):
            numbers = [each.partition for each in run]
            assert numbers == sorted(set(numbers))
        first = some[0]
        if isinstance(first, PartitionChangeRecord) and isinstance(last, PartitionChangeRecord):
            assert last.topic_id != first.topic_id or last.partition >= first.partition
        last = some[-1]
        found.extend(some)
    assert found == records


def test_partition_that_goes_back_and_forth_in_one_batch_is_counted_at_every_step() -> None:
    """A broker leads one partition: a batch of three changes must not take it away twice before it is returned."""
    world = World()
    world.write_topic("a", (1, 2))
    there = PartitionChangeRecord(topic_id=topic_id("a"), partition=0, leader=LeaderChange(leader_id=2))
    back = there._replace(leader=LeaderChange(leader_id=1))
    batch = [there, back, there]
    found = list(runs(batch, world.log_end_offset))
    assert [run for _, run in found] == batch
    for offset, run in found:
        world.image.replay(run, offset)
    assert world.image.counts.leaders == {2: 1}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (PartitionChangeRecord(topic_id=b"?" * 16, partition=0), "unknown topic"),
        (PartitionChangeRecord(topic_id=topic_id("a"), partition=PARTITIONS), "unknown partition"),
        (PartitionChangeRecord(topic_id=topic_id("a"), partition=-1), "unknown partition"),
        (PartitionChangeRecord(topic_id=topic_id("a"), partition=1, isr=(4,)), "impossible"),
        (PartitionChangeRecord(topic_id=topic_id("a"), partition=1, leader=LeaderChange(leader_id=4)), "impossible"),
    ],
)
def test_change_that_contradicts_the_image_is_refused(bad: PartitionChangeRecord, message: str) -> None:
    """Alone, and behind others in a run; by the committed image, and by the appended one."""
    good = PartitionChangeRecord(topic_id=bad.topic_id, partition=bad.partition - 1, isr=(1,))
    for run in ([bad], [good, bad]):
        world = made()
        images: tuple[MetadataImage | AppendedImage, ...] = (world.image, world.controller.image)
        for image in images:
            with pytest.raises(AssertionError, match=message):
                image.replay(run, world.log_end_offset)
