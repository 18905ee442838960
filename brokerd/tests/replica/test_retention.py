# SPDX-License-Identifier: Apache-2.0
"""Retention removes old data from the open replicas of a broker in the background, without harm to other work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from lograft.wire.codes import ErrorCode

from brokerd.clock import wall_ms
from brokerd.failure import RefusedError
from brokerd.partition.events import Durability
from brokerd.process.server import BrokerServer
from brokerd.process.settings import BrokerSettings
from brokerd.process.standalone import standalone_settings
from brokerd.replica.manager import ReplicaManager
from brokerd.replica.metadata_view import OwnBroker
from brokerd.replica.replica import Replica
from brokerd.tests.replica.lone_broker import ROOT, TOPIC_ID, LoneBroker, acked, append
from brokerd.tests.support import WAIT_S, ProduceStream, connected
from metaquorum.metadata.records import ConfigRecord, ConfigResource
from metaquorum.process.settings import SettingsError
from metaquorum.tests.quorum_cluster import until
from storage.directory.directories import LogDirectories, LogDirectory
from storage.log.log_start import LogStartWork
from storage.testing.sim_disk import Refusal, SimDisk

LATER_MS = 8 * 24 * 3_600_000
"""More than `segment.ms` and `retention.ms` of a topic with default configs."""


def configure(lone: LoneBroker, **configs: str) -> None:
    """Set configs of the topic; a name has `_` for `.`."""
    for name, value in configs.items():
        lone.commit(
            ConfigRecord(
                resource=ConfigResource.TOPIC,
                resource_name=TOPIC_ID.hex(),
                name=name.replace("_", "."),
                value=value,
            )
        )


@pytest.fixture
async def lone() -> AsyncIterator[LoneBroker]:
    """A registered broker over an empty disk. Its clock is more than a week ahead of the appends."""
    disk = SimDisk()
    disk.make_directory("/data")
    disk.make_directory(ROOT)
    made = LoneBroker(disk)
    made.now_ms = wall_ms() + LATER_MS
    made.register()
    await made.manager.start()
    yield made
    await made.manager.stop()


async def filled(lone: LoneBroker, partition: int = 0) -> Replica:
    """Return a replica with one acknowledged record."""
    replica = await lone.replica(partition)
    assert await acked(replica, append(replica, [b"a"])) is Durability.FLUSHED
    return replica


def names(lone: LoneBroker, partition: int = 0) -> list[str]:
    return lone.disk.list_directory(f"{ROOT}/{TOPIC_ID.hex()}-{partition}")


async def test_old_data_of_an_idle_partition_goes(lone: LoneBroker) -> None:
    """The clock rolls the segment, the segment is removed, and its files vanish after the delay. The partition keeps working."""
    lone.create_topic()
    replica = await filled(lone)
    assert await lone.manager.retention.run_round() == 1
    assert (replica.log_start_offset, replica.high_watermark, replica.log_end_offset) == (1, 1, 1)
    with pytest.raises(RefusedError) as caught:
        replica.read(0, 100, end_offset=1)
    assert caught.value.failure.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert caught.value.failure.readable_range == replica.readable_range
    assert f"{0:020d}.log.deleted" in names(lone)
    assert await acked(replica, append(replica, [b"b"])) is Durability.FLUSHED
    assert replica.read(1, 100, end_offset=2).next_offset == 2
    configure(lone, retention_ms="-1")
    lone.now_ms += 59_999
    assert await lone.manager.retention.run_round() == 0
    assert f"{0:020d}.log.deleted" in names(lone)
    lone.now_ms += 1
    await lone.manager.retention.run_round()
    assert not [name for name in names(lone) if name.endswith(".deleted")]


@pytest.mark.parametrize(
    "configs", [{"retention_ms": "-1"}, {"cleanup_policy": "compact"}, {"retention_ms": str(2 * LATER_MS + wall_ms())}]
)
async def test_data_that_is_to_be_kept_stays(lone: LoneBroker, configs: dict[str, str]) -> None:
    """Data stays without a limit, without `delete` in the cleanup policy, or with a longer limit."""
    lone.create_topic()
    replica = await filled(lone)
    configure(lone, **configs)
    assert await lone.manager.retention.run_round() == 0
    assert replica.read(0, 100, end_offset=1).next_offset == 1
    configure(lone, retention_ms="1", cleanup_policy="compact,delete")
    assert await lone.manager.retention.run_round() == 1


async def test_every_partition_gets_its_turn(lone: LoneBroker) -> None:
    """There are more partitions than are checked in one turn of the event loop."""
    lone.create_topic(partition_count=20)
    replicas = [await filled(lone, partition) for partition in range(20)]
    assert await lone.manager.retention.run_round() == 20
    assert {replica.log_start_offset for replica in replicas} == {1}


async def test_a_full_disk_is_tried_again_and_hinders_no_other_partition(lone: LoneBroker) -> None:
    """A segment that cannot be removed now is removed in the next round."""
    lone.create_topic(partition_count=2)
    first, second = [await filled(lone, partition) for partition in range(2)]
    lone.disk.refuse("append", "-0/log-start", Refusal.FULL)
    assert await lone.manager.retention.run_round() == 1
    assert (first.log_start_offset, second.log_start_offset) == (0, 1)
    assert await lone.manager.retention.run_round() == 1
    assert first.log_start_offset == 1
    assert not lone.manager.failed.done()


async def test_a_failed_disk_ends_the_service(lone: LoneBroker) -> None:
    """A log start whose sync fails is not claimed. The log directory has failed for good, and is not used again."""
    lone.create_topic()
    replica = await filled(lone)
    lone.disk.refuse("sync", "log-start", Refusal.IO_ERROR)
    assert await lone.manager.retention.run_round() == 0
    assert lone.manager.failed.done()
    assert not replica.is_leader
    assert replica.log_start_offset == 0
    assert await lone.manager.retention.run_round() == 0


async def test_what_is_removed_unflushed_counts_as_flushed(lone: LoneBroker) -> None:
    """Under flush policy `none` nothing was flushed yet. The core follows the log, and the partition keeps working."""
    lone.create_topic("none")
    replica = await lone.replica()
    append(replica, [b"a"])
    assert await lone.manager.retention.run_round() == 1
    configure(lone, flush_policy="ack")
    assert await acked(replica, append(replica, [b"b"])) is Durability.FLUSHED
    assert replica.high_watermark == 2


async def test_a_log_is_not_closed_under_a_running_step(lone: LoneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop waits for the thread, applies the result of the step, and begins no other step."""
    entered, leave = threading.Event(), threading.Event()
    run = LogStartWork.run

    def held(work: LogStartWork) -> None:
        entered.set()
        assert leave.wait(WAIT_S)
        run(work)

    monkeypatch.setattr(LogStartWork, "run", held)
    lone.create_topic(partition_count=2)
    replicas = [await filled(lone, partition) for partition in range(2)]
    round_ = asyncio.create_task(lone.manager.retention.run_round())
    assert await asyncio.to_thread(entered.wait, WAIT_S)
    assert append(replicas[0], [b"b"]) == 2
    stop = asyncio.create_task(lone.manager.stop())
    await asyncio.sleep(0)
    assert not stop.done()
    leave.set()
    async with asyncio.timeout(WAIT_S):
        assert await round_ == 1
        await stop
    assert [replica.log_start_offset for replica in replicas] == [1, 0]
    assert await replicas[1].apply_retention(lone.now_ms) == 0


async def test_rounds_come_by_themselves(lone: LoneBroker) -> None:
    """The manager's own task runs the rounds at its interval."""
    moved = asyncio.Event()
    other = ReplicaManager(
        directories=LogDirectories([LogDirectory(lone.disk, "/data")]),
        own=OwnBroker(2, bytes(16)),
        observer=lone.observer,
        retention_check_ms=1,
    )
    run_round = other.retention.run_round

    async def noted() -> int:
        moved.set()
        return await run_round()

    other.retention.run_round = noted  # pyright: ignore[reportAttributeAccessIssue]
    await other.start()
    async with asyncio.timeout(WAIT_S):
        await moved.wait()
    await other.stop()


async def test_broker_looks_as_often_as_its_setting_says(tmp_path: Path) -> None:
    """A running broker removes an old record soon after its time if the check interval is short."""
    settings = await asyncio.to_thread(standalone_settings, tmp_path, port=0)
    server = BrokerServer(replace(settings, retention_check_ms=10))
    await server.start()
    try:
        await server.wait_serving(timeout_ms=int(WAIT_S * 1000))
        async with connected(server) as client:
            created = await client.create_topic("t", retention_ms="0", segment_ms="1")
            stream = ProduceStream(client)
            await stream.open(("t", 0))
            await stream.produce([b"x"])
            await stream.receipts(1)
            assert server.replica_manager is not None
            replica = server.replica_manager.find(created.topic.topic_id, 0)
            assert replica is not None
            await until(lambda: replica.log_start_offset == 1, what="the record to go")
    finally:
        await server.stop()


@pytest.mark.parametrize("check_ms", [0, -1, 24 * 3_600_000 + 1])
def test_interval_outside_its_range_is_refused(tmp_path: Path, check_ms: int) -> None:
    """The error names the allowed range."""
    good = standalone_settings(tmp_path, port=0)
    with pytest.raises(SettingsError, match="--retention-check-ms"):
        BrokerSettings(
            data_directory=Path("/d/a"),
            node_id=1,
            listen=good.listen,
            combined=good.combined,
            retention_check_ms=check_ms,
        )
