# SPDX-License-Identifier: Apache-2.0
"""Publications on three brokers whose leaders stop amid them: each record once, in order, on every replica."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from lograft.wire.codes import ErrorCode

from brokerd.publishing import publisher as publisher_module
from brokerd.publishing.parts import Part, PublishedPart
from brokerd.publishing.quota import log_bytes
from brokerd.publishing.sweep import StagingSweep
from brokerd.replica.replica import Replica
from brokerd.tests.publishing.staging_clients import (
    RemoteAttempt,
    calls_of,
    make_staging_topic,
    part_of,
    publish_until_done,
    read_all,
    replica_of,
    wait_seen,
)
from brokerd.tests.support import WAIT_S, Client, connected
from brokerd.tests.three_brokers import Cluster, assert_equal, three_brokers
from metaquorum.metadata.topic_names import staging_topic
from storage.log.log_start import LogStartWork


async def staged(cluster: Cluster, client: Client, *, batches: int) -> tuple[Part, list[bytes]]:
    """Make the topics with three replicas, and stage the batches of two attempts in turns."""
    await cluster.create_topic(client, min_insync_replicas="2")
    image = cluster.brokers[1].observer.image.topic_by_name("t")
    assert image is not None
    name = await make_staging_topic(
        cluster.brokers[1], image.topic_id, 3, replication_factor="3", min_insync_replicas="2"
    )
    await wait_seen(tuple(cluster.brokers.values()), cluster.brokers[1].observer.metadata_offset)
    partition = next(each for each in range(3) if cluster.partition(each).leader_id != 1)
    attempts = [RemoteAttempt(client, name, partition, number) for number in (0, 1)]
    for number in range(batches):
        for attempt in attempts:
            await attempt.stage(*(b"%d-%d-%d" % (attempt.producer_id, number, each) for each in range(3)))
    slices = [attempt.seal() for attempt in attempts]
    return part_of(image.topic_id, partition, *slices), [value for each in attempts for value in each.values]


@pytest.mark.parametrize("appended", [1, 20, 55])
async def test_next_leader_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, appended: int) -> None:
    """The leader stops after some batches; the coordinator asks again, and gets one answer that stays."""
    async with three_brokers(tmp_path) as cluster, connected(cluster.brokers[1]) as client:
        wanted, values = await staged(cluster, client, batches=30)
        # One batch at a time, so that the leader can be stopped amid the part.
        monkeypatch.setattr(publisher_module, "IN_FLIGHT_BYTES", 1)
        leader_id = cluster.partition(wanted.partition).leader_id
        assert leader_id is not None
        replica = await cluster.replica(leader_id, wanted.partition)
        publishing = asyncio.create_task(publish_until_done(lambda: calls_of(cluster.brokers[1]), wanted))
        await cluster.committed(leader_id, wanted.partition, 3 * appended)
        assert replica.log_end_offset < len(values), "the part is whole before the leader stops"
        await cluster.stop(leader_id)
        found = await publishing
        assert found == PublishedPart(0, len(values))
        assert await publish_until_done(lambda: calls_of(cluster.brokers[1]), wanted) == found
        await cluster.start(leader_id)
        await cluster.wait(lambda: len(cluster.partition(wanted.partition).isr) == 3)
        await assert_equal(cluster, wanted.partition, len(values))
        assert await read_all(client, "t", wanted.partition) == values


async def test_freed_space_returns_on_every_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Followers follow the log start, so that the next leader has nothing to free again."""
    async with three_brokers(tmp_path) as cluster, connected(cluster.brokers[1]) as client:
        wanted, values = await staged(cluster, client, batches=5)
        name = staging_topic(wanted.topic_id)
        await publish_until_done(lambda: calls_of(cluster.brokers[1]), wanted)
        replicas: list[Replica] = []
        for server in cluster.brokers.values():
            found = replica_of(server, name, wanted.partition)
            assert found is not None
            replicas.append(found)
        leader = next(each for each in replicas if each.is_leader)

        async def nothing_is_live(
            _topic_id: bytes, _partition: int, producer_ids: Sequence[int]
        ) -> Mapping[int, int | None]:
            return dict.fromkeys(producer_ids)

        has_moved, move = asyncio.Event(), Replica._move_log_start

        async def move_and_tell(replica: Replica, work: LogStartWork, now_ms: int) -> int:
            removed_count = await move(replica, work, now_ms)
            has_moved.set()
            return removed_count

        monkeypatch.setattr(Replica, "_move_log_start", move_and_tell)
        moved = [await StagingSweep(lambda: replicas, nothing_is_live).sweep() for _ in range(2)]
        assert moved == [1, 0]
        assert leader.log_start_offset == leader.log_end_offset == len(values)
        async with asyncio.timeout(WAIT_S):
            while any(log_bytes(each) for each in replicas):
                has_moved.clear()
                await has_moved.wait()
        assert {each.log_start_offset for each in replicas} == {len(values)}
        assert await read_all(client, "t", wanted.partition) == values


async def test_too_few_replicas_stop_a_publication_until_they_are_back(tmp_path: Path) -> None:
    """Typed, retriable, and without a trace that stays hidden: what is appended later is all of it, once."""
    async with three_brokers(tmp_path) as cluster, connected(cluster.brokers[1]) as client:
        wanted, values = await staged(cluster, client, batches=5)
        for node_id in (2, 3):
            await cluster.stop(node_id)
        await cluster.wait(lambda: cluster.partition(wanted.partition).leader_id == 1)
        with pytest.raises(publisher_module.RefusedError) as caught:
            await calls_of(cluster.brokers[1]).publish(wanted)
        assert caught.value.failure.code in (
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.OFFSET_NOT_AVAILABLE,
            ErrorCode.LEADER_NOT_AVAILABLE,
        )
        for node_id in (2, 3):
            await cluster.start(node_id)
        found = await publish_until_done(lambda: calls_of(cluster.brokers[1]), wanted)
        assert found == PublishedPart(0, len(values))
        assert await read_all(client, "t", wanted.partition) == values
