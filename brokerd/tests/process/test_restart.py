# SPDX-License-Identifier: Apache-2.0
"""A broker that is stopped, or killed, and started again over the same directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from lograft.v1 import admin_pb2, log_pb2, metadata_pb2

from brokerd.tests.support import Client, FetchStream, ProduceStream, connected, running_broker


async def produce(client: Client, count: int) -> ProduceStream:
    stream = ProduceStream(client)
    await stream.open(("t", 0))
    for number in range(count):
        await stream.produce([b"%04d" % number])
        await stream.receipts(number + 1)
    return stream


async def test_restart_keeps_records_offsets_and_the_idempotence_window(tmp_path: Path) -> None:
    """After a restart everything acknowledged is at its offset, and a batch that is sent again is a duplicate."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        await client.create_topic("t")
        first = await produce(client, 30)
        await first.finish()
    async with running_broker(tmp_path) as server, connected(server) as client:
        read = await client.read("t", max_records=100)
        assert [(record.offset, record.value) for record in read.records] == [
            (number, b"%04d" % number) for number in range(30)
        ]
        again = ProduceStream(client)
        await again.open(("t", 0), producer=log_pb2.ProducerIdentity(producer_id=first.producer[0]))
        again.sequences[0] = 14
        for number in range(14, 32):
            await again.produce([b"%04d" % number])
            (receipt,) = await again.receipts(number - 13)
            assert list(receipt.base_offsets) == [number]
            assert bool(receipt.duplicates) is (number < 30)


async def test_restart_gives_a_higher_leader_epoch_and_new_producer_ids(tmp_path: Path) -> None:
    """A restart is a new leadership. Ids of the block that was lost with the process are never handed out."""
    epochs, producer_ids = [], []
    async with running_broker(tmp_path) as server, connected(server) as client:
        await client.create_topic("t")
    for _ in range(3):
        async with running_broker(tmp_path) as server, connected(server) as client:
            stream = ProduceStream(client)
            opened = await stream.open(("t", 0))
            epochs.append(opened.routes[0].leader_epoch)
            producer_ids.append(stream.producer[0])
            await stream.finish()
    assert epochs == sorted(set(epochs))
    assert producer_ids == sorted(set(producer_ids))


async def test_deleted_topic_is_set_aside_and_stays_gone(tmp_path: Path) -> None:
    """The directory of a deleted topic is renamed. A topic of the same name starts empty."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        await client.create_topic("t")
        await client.append("t", [b"old"], partition=0)
        await client.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="t"))
        await client.create_topic("t")
        assert not (await client.read("t")).records
        await client.append("t", [b"new"], partition=0)
    names = sorted(path.name.rsplit(".", 1)[-1] for path in (tmp_path / "partitions").iterdir())
    assert names.count("removed") == 1
    assert len(names) == 2
    async with running_broker(tmp_path) as server, connected(server) as client:
        assert [record.value for record in (await client.read("t")).records] == [b"new"]


async def test_unknown_partition_directory_is_set_aside_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A stray directory is renamed and named in the log."""
    async with running_broker(tmp_path):
        pass
    stranger = tmp_path / "partitions" / f"{'ab' * 16}-3"
    stranger.mkdir()
    (stranger / "00000000000000000000.log").write_bytes(b"precious")
    async with running_broker(tmp_path):
        pass
    (kept,) = (tmp_path / "partitions").iterdir()
    assert kept.name.startswith(stranger.name)
    assert kept.name.endswith(".unknown")
    assert (kept / "00000000000000000000.log").read_bytes() == b"precious"
    assert stranger.name in caplog.text


async def test_many_partitions_come_back(tmp_path: Path) -> None:
    """All logs of a broker are open before it says that it serves."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        await client.create_topic("t", 64)
        for partition in range(64):
            await client.append("t", [b"%d" % partition], partition=partition, acks=log_pb2.ACKS_LEADER)
    async with running_broker(tmp_path) as server, connected(server) as client:
        fetch = FetchStream(client)
        opened = await fetch.open(*(("t", partition, 0) for partition in range(64)))
        assert [route.high_watermark for route in opened.routes] == [1] * 64
        cluster = await client.metadata.GetCluster(metadata_pb2.GetClusterRequest())
        assert {partition.leader_id for partition in cluster.topics[0].partitions} == {1}
