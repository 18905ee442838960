# SPDX-License-Identifier: Apache-2.0
"""Which names a metadata record touches, how long changes are remembered, and which waits they end."""

from __future__ import annotations

import asyncio

from brokerd.tests.committed_records import TOPIC_ID, broker, commit, topic
from brokerd.tests.support import WAIT_S
from metaquorum.metadata.changes import ChangeHistory, MetadataChange
from metaquorum.metadata.listener import QuorumLeader
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import (
    BrokerChangeRecord,
    ConfigRecord,
    ConfigResource,
    LeaderChange,
    NoOpRecord,
    PartitionChangeRecord,
    RemoveTopicRecord,
)


def test_each_record_touches_its_topic_or_broker() -> None:
    """Topics are reported by name and id, also when they are removed. Records that clients never see are reported to none."""
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
    """So one partition does not cause a scan of thousands. With a config or a new topic in the batch, the whole topic changed."""
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
    """The same leader again is no change."""
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
