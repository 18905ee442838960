# SPDX-License-Identifier: Apache-2.0
"""Which names a metadata record touches, how long that is remembered, and how a watch cuts it into messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from lograft.v1 import metadata_pb2

from brokerd.api.metadata_service import Watch
from brokerd.limits import WATCH_MESSAGE_PARTITIONS
from brokerd.tests.support import WAIT_S, offline_parts
from metaquorum.metadata import record_codec
from metaquorum.metadata.changes import ChangeHistory, MetadataChange
from metaquorum.metadata.listener import CommittedBatch, QuorumLeader
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import (
    BrokerChangeRecord,
    BrokerRecord,
    ConfigRecord,
    ConfigResource,
    LeaderChange,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)

TOPIC_ID = bytes(range(16))


def commit(observer: MetadataLoader, *records: MetadataRecord, is_control: bool = False) -> None:
    base_offset = observer.metadata_offset
    observer.on_commit(
        CommittedBatch(
            base_offset=base_offset,
            next_offset=base_offset + max(len(records), 1),
            quorum_epoch=1,
            append_timestamp_ms=0,
            records=[record_codec.encode(record) for record in records],
            is_control=is_control,
        )
    )


def topic(name: str, topic_id: bytes, partition_count: int = 1) -> list[MetadataRecord]:
    partitions = [
        PartitionRecord(
            topic_id=topic_id,
            partition=partition,
            replicas=(1,),
            isr=(1,),
            leader_id=1,
            leader_epoch=0,
            partition_epoch=0,
        )
        for partition in range(partition_count)
    ]
    return [TopicRecord(topic=name, topic_id=topic_id), *partitions]


def broker(broker_id: int) -> BrokerRecord:
    return BrokerRecord(
        broker_id=broker_id,
        incarnation_id=bytes(16),
        broker_epoch=broker_id,
        host="h",
        port=1,
        rack=None,
        fenced=True,
    )


def test_each_record_touches_its_topic_or_broker() -> None:
    """Topics are told by name and id, also when they are removed; what clients never see is told to nobody."""
    observer = MetadataLoader()
    seen: list[MetadataChange] = []
    stop = observer.on_change(seen.append)
    config = ConfigRecord(
        resource=ConfigResource.TOPIC, resource_name=TOPIC_ID.hex(), name="flush.policy", value="none"
    )
    commit(observer, broker(1))
    commit(observer, *topic("t", TOPIC_ID))
    commit(observer, config)
    commit(observer, NoOpRecord())
    commit(observer, is_control=True)
    commit(observer, ConfigRecord(resource=ConfigResource.CLUSTER, resource_name="", name="flush.policy", value="ack"))
    commit(observer, BrokerChangeRecord(broker_id=1, broker_epoch=1, fenced=False))
    commit(observer, RemoveTopicRecord(topic_id=TOPIC_ID))
    stop()
    commit(observer, *topic("t", TOPIC_ID))
    named = frozenset({"t"}), frozenset({TOPIC_ID}), frozenset[int]()
    assert [(change.topics, change.topic_ids, change.broker_ids) for change in seen] == [
        (frozenset(), frozenset(), frozenset({1})),
        named,
        named,
        (frozenset(), frozenset(), frozenset()),
        (frozenset(), frozenset(), frozenset({1})),
        named,
    ]
    assert [change.inherited_configs for change in seen] == [False, False, False, True, False, False]
    assert observer.image.metadata_offset == observer.metadata_offset


def test_a_change_names_the_partitions_where_nothing_else_of_the_topic_changed() -> None:
    """So that nobody looks at thousands of partitions for one; with a config or a new topic in the batch it changed as a whole."""
    observer = MetadataLoader()
    commit(observer, *topic("t", TOPIC_ID, 3), *topic("u", bytes(16)))
    seen: list[MetadataChange] = []
    observer.on_change(seen.append)

    def led_by(partition: int, leader_id: int | None) -> PartitionChangeRecord:
        return PartitionChangeRecord(topic_id=TOPIC_ID, partition=partition, leader=LeaderChange(leader_id=leader_id))

    config = ConfigRecord(
        resource=ConfigResource.TOPIC, resource_name=TOPIC_ID.hex(), name="flush.policy", value="none"
    )
    commit(observer, led_by(1, None))
    commit(observer, led_by(0, None), led_by(2, None))
    commit(observer, led_by(0, 1), config)
    commit(observer, *topic("v", bytes([1]) * 16))
    commit(observer, RemoveTopicRecord(topic_id=bytes(16)))
    assert [dict(change.partitions) for change in seen] == [{TOPIC_ID: {1}}, {TOPIC_ID: {0, 2}}, {}, {}, {}]


def test_history_answers_only_what_it_knows_wholly() -> None:
    """Changes since an offset are joined; an offset before the remembered ones has no answer."""

    def change(metadata_offset: int, name: str) -> MetadataChange:
        return MetadataChange(
            metadata_offset=metadata_offset,
            topics=frozenset({name}),
            topic_ids=frozenset({name.encode() * 16}),
            broker_ids=frozenset(),
        )

    history = ChangeHistory(2)
    assert history.since(0) is None
    history.add(change(5, "a"), base_offset=4)
    assert history.since(3) is None
    joined = history.since(4)
    assert joined is not None
    assert joined.topics == {"a"}
    nothing = history.since(5)
    assert nothing is not None
    assert nothing.is_empty
    history.add(change(6, "b"), base_offset=5)
    history.add(change(7, "c"), base_offset=6)
    assert history.since(4) is None
    joined = history.since(5)
    assert joined is not None
    assert (joined.topics, joined.metadata_offset) == ({"b", "c"}, 7)


async def test_waits_for_offsets_end_in_order_and_in_time() -> None:
    """A wait ends when its offset is applied; one that times out leaves the others waiting."""
    observer = MetadataLoader()
    late = asyncio.create_task(observer.wait_for(2, timeout_ms=int(WAIT_S * 1000)))
    early = asyncio.create_task(observer.wait_for(1, timeout_ms=int(WAIT_S * 1000)))
    assert not await observer.wait_for(3, timeout_ms=1)
    assert not await observer.wait_for(3, timeout_ms=0)
    commit(observer, NoOpRecord())
    assert await early
    assert not late.done()
    commit(observer, NoOpRecord())
    assert await late
    assert await observer.wait_for(2, timeout_ms=0)


def test_leader_news_are_told_once() -> None:
    """The same leader again is no news."""
    observer = MetadataLoader()
    calls: list[int] = []
    stop = observer.on_leader_change(lambda: calls.append(1))
    leader = QuorumLeader(leader_id=1, quorum_epoch=2, address="h:1")
    observer.on_leader(leader)
    observer.on_leader(leader)
    stop()
    observer.on_leader(QuorumLeader(leader_id=None, quorum_epoch=3, address=None))
    assert calls == [1]
    assert observer.leader.quorum_epoch == 3


async def take(
    responses: AsyncIterator[metadata_pb2.WatchClusterResponse], count: int
) -> list[metadata_pb2.WatchClusterResponse]:
    async with asyncio.timeout(WAIT_S):
        return [await anext(responses) for _ in range(count)]


@pytest.mark.parametrize("resumes", [False, True])
async def test_large_state_goes_out_in_parts_that_can_be_resumed(resumes: bool) -> None:
    """Parts carry the offset that the client had before; only the last carries the offset of the whole."""
    observer = MetadataLoader()
    commit(observer, broker(1))
    before = observer.metadata_offset
    for number in range(3):
        commit(observer, *topic(f"t{number}", bytes([number]) * 16, WATCH_MESSAGE_PARTITIONS // 2 + 1))
    watch = Watch(offline_parts(observer), frozenset())
    with watch.following():
        watch.begin(before if resumes else None)
        parts = await take(watch.responses(), 3)
    assert [[found.topic for found in part.topics] for part in parts] == [["t0", "t1"], ["t2"], []]
    assert [part.snapshot for part in parts] == [not resumes, False, False]
    first = before if resumes else 0
    assert [part.metadata_offset for part in parts] == [first, first, observer.metadata_offset]


async def test_slow_watcher_gets_many_changes_as_one() -> None:
    """Names pile up, not states: what changed often is sent once, as it is at the end."""
    observer = MetadataLoader()
    watch = Watch(offline_parts(observer), frozenset())
    with watch.following():
        watch.begin(None)
        responses = watch.responses()
        (snapshot,) = await take(responses, 1)
        assert snapshot.snapshot
        for round_number in range(50):
            if round_number:
                commit(observer, RemoveTopicRecord(topic_id=TOPIC_ID))
            commit(observer, *topic("again", TOPIC_ID))
            commit(observer, *topic("gone", b"g" * 16))
            commit(observer, RemoveTopicRecord(topic_id=b"g" * 16))
        first, last = await take(responses, 2)
        assert [found.topic for found in first.topics] == ["again"]
        assert list(first.removed_topics) == ["gone"]
        assert last.metadata_offset == observer.metadata_offset


async def test_watcher_that_misses_too_much_gets_the_state_anew() -> None:
    """Beyond the bound of names the watch forgets them and sends a snapshot."""
    observer = MetadataLoader()
    watch = Watch(offline_parts(observer), frozenset())
    with watch.following():
        watch.begin(0)
        responses = watch.responses()
        await take(responses, 1)
        for number in range(10_001):
            commit(observer, TopicRecord(topic=f"t{number}", topic_id=number.to_bytes(16, "big")))
        (snapshot,) = await take(responses, 1)
    assert snapshot.snapshot
    assert len(snapshot.topics) == 10_001
