# SPDX-License-Identifier: Apache-2.0
"""Every log forgets producers that were idle for long, on time, and never inside a transaction."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from lograft.wire.batch import encode_batch, read_header
from lograft.wire.checksum import crc32c
from lograft.wire.header import TRANSACTIONAL_BIT
from lograft.wire.limits import PUBLISHING_PRODUCER_ID_MIN

import brokerd.process.server
from brokerd.clock import wall_ms
from brokerd.failure import RefusedError
from brokerd.limits import PRODUCER_ID_EXPIRATION_MS
from brokerd.process.server import BrokerServer
from brokerd.process.settings import BrokerSettings
from brokerd.process.standalone import standalone_settings
from brokerd.replica.manager import ReplicaManager
from brokerd.replica.replica import Replica
from brokerd.tests.replica.lone_broker import ROOT, LoneBroker
from brokerd.tests.support import WAIT_S, ProduceStream, connected
from metaquorum.process.settings import SettingsError
from storage.testing.sim_disk import SimDisk

DAY_MS = PRODUCER_ID_EXPIRATION_MS


@pytest.fixture
async def lone() -> AsyncIterator[LoneBroker]:
    """A broker over an empty disk, with three partitions."""
    disk = SimDisk()
    disk.make_directory("/data")
    disk.make_directory(ROOT)
    made = LoneBroker(disk)
    made.now_ms = wall_ms()
    made.register()
    await made.manager.start()
    made.create_topic(partition_count=3)
    yield made
    await made.manager.stop()


def send(replica: Replica, producer_id: int, *, sequence: int = 0, transactional: bool = False) -> int:
    """Append a record of a producer; return its offset."""
    batch = encode_batch([b"x"], timestamps_ms=5, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    if transactional:
        (attributes,) = struct.unpack_from(">h", batch, 21)
        struct.pack_into(">h", batch, 21, attributes | TRANSACTIONAL_BIT)
        struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return replica.append(memoryview(batch), read_header(batch)).base_offset


def known(replica: Replica) -> list[int]:
    """The producers that a log knows."""
    return replica.run_step(lambda log, _: [producer_id for producer_id, _ in log.producers.states()])


async def test_idle_producers_of_all_partitions_are_forgotten_after_a_day(lone: LoneBroker) -> None:
    """Not a moment too early. Producers inside a transaction stay, and forgotten producers may continue where they were."""
    replicas = [await lone.replica(partition) for partition in range(3)]
    for replica in replicas:
        send(replica, 1)
        send(replica, 2, transactional=True)
    lone.now_ms = wall_ms() + DAY_MS - 60_000
    assert await lone.manager.expire_producers(DAY_MS) == 0
    lone.now_ms += 120_000
    assert await lone.manager.expire_producers(DAY_MS) == 3
    assert [known(replica) for replica in replicas] == [[2], [2], [2]]
    assert await lone.manager.expire_producers(DAY_MS) == 0
    assert send(replicas[0], 1, sequence=1) == 2
    with pytest.raises(RefusedError):
        send(replicas[0], 2, sequence=5)


async def test_restart_changes_nothing_about_who_is_idle(lone: LoneBroker) -> None:
    """A clean shutdown keeps the time of each producer's newest batch. Forgotten producers stay forgotten."""
    replica = await lone.replica()
    send(replica, 1)
    lone.now_ms = wall_ms() + DAY_MS + 1
    await lone.manager.expire_producers(DAY_MS)
    send(replica, 2)
    assert known(replica) == [2]
    await lone.manager.stop()
    again = LoneBroker(lone.disk)
    again.register()
    again.create_topic(partition_count=3)
    await again.manager.start()
    reopened = await again.replica()
    try:
        assert known(reopened) == [2]
        again.now_ms = wall_ms() + DAY_MS - 60_000
        assert await again.manager.expire_producers(DAY_MS) == 0
        again.now_ms += 120_000
        assert await again.manager.expire_producers(DAY_MS) == 1
        assert known(reopened) == []
    finally:
        await again.manager.stop()


async def test_closed_logs_are_passed_over(lone: LoneBroker) -> None:
    """A topic that is deleted during the round does not end it."""
    replicas = [await lone.replica(partition) for partition in range(3)]
    for replica in replicas:
        send(replica, 1)
    await replicas[0].close("the topic was deleted")
    lone.now_ms = wall_ms() + DAY_MS + 60_000
    assert await lone.manager.expire_producers(DAY_MS) == 2


async def test_broker_looks_for_idle_producers_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running broker forgets a producer after the time that its settings say, without being asked."""
    monkeypatch.setattr(brokerd.process.server, "PRODUCER_EXPIRY_CHECK_MS", 5)
    forgotten = asyncio.Event()
    expire = ReplicaManager.expire_producers

    async def expire_and_tell(lone: ReplicaManager, expiration_ms: int) -> int:
        expired_count = await expire(lone, expiration_ms)
        if expired_count:
            forgotten.set()
        return expired_count

    monkeypatch.setattr(ReplicaManager, "expire_producers", expire_and_tell)
    settings = await asyncio.to_thread(standalone_settings, tmp_path, port=0)
    server = BrokerServer(replace(settings, producer_id_expiration_ms=1))
    await server.start()
    try:
        await server.wait_serving(timeout_ms=int(WAIT_S * 1000))
        async with connected(server) as client:
            created = await client.create_topic("t")
            stream = ProduceStream(client)
            await stream.open(("t", 0))
            await stream.produce([b"x"])
            await stream.receipts(1)
            assert server.replica_manager is not None
            replica = server.replica_manager.find(created.topic.topic_id, 0)
            assert replica is not None
            async with asyncio.timeout(WAIT_S):
                await forgotten.wait()
            assert known(replica) == []
            await stream.produce([b"y"])
            await stream.receipts(2)
    finally:
        await server.stop()


@pytest.mark.parametrize("expiration_ms", [0, -1, 2**31])
def test_expiration_outside_its_range_is_refused(tmp_path: Path, expiration_ms: int) -> None:
    """The error names the allowed range."""
    good = standalone_settings(tmp_path, port=0)
    with pytest.raises(SettingsError, match="--producer-id-expiration-ms"):
        BrokerSettings(
            data_directory=Path("/d/a"),
            node_id=1,
            listen=good.listen,
            combined=good.combined,
            producer_id_expiration_ms=expiration_ms,
        )


async def test_publishing_producers_are_never_forgotten(lone: LoneBroker) -> None:
    """Otherwise a part of an ingest that was published long ago could be published again. Producers of attempts expire like others."""
    replica = await lone.replica()
    send(replica, PUBLISHING_PRODUCER_ID_MIN)
    send(replica, PUBLISHING_PRODUCER_ID_MIN + 31)
    send(replica, PUBLISHING_PRODUCER_ID_MIN - 1)
    lone.now_ms = wall_ms() + 400 * DAY_MS
    assert await lone.manager.expire_producers(DAY_MS) == 1
    assert known(replica) == [PUBLISHING_PRODUCER_ID_MIN, PUBLISHING_PRODUCER_ID_MIN + 31]
