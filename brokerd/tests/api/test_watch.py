# SPDX-License-Identifier: Apache-2.0
"""How a watch of the cluster splits changes into messages, and what a slow client gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from lograft.v1 import metadata_pb2

from brokerd.api.metadata_service import Watch
from brokerd.limits import WATCH_MESSAGE_PARTITIONS
from brokerd.tests.committed_records import TOPIC_ID, broker, commit, topic
from brokerd.tests.support import WAIT_S, offline_parts
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import RemoveTopicRecord, TopicRecord


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
    """The watch collects names, not states: a topic that changed often is sent once, in its last state."""
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
