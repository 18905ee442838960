# SPDX-License-Identifier: Apache-2.0
"""The replica host over a simulated disk: opening by metadata, flushing, failing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from lograft.wire.batch import encode_batch, read_batches, read_header
from lograft.wire.codes import ErrorCode

from brokerd.failure import Failure, RefusedError
from brokerd.partition.effects import LossReason
from brokerd.partition.events import AckLevel, Durability, PartitionChanged
from brokerd.replica import inherited_configs
from brokerd.replica.locator import Locator
from brokerd.replica.manager import ReplicaHost
from brokerd.replica.partition_news import OwnBroker
from brokerd.replica.replica import HostedReplica
from brokerd.replica.set_aside import SetAside
from brokerd.tests.support import WAIT_S
from metaquorum.metadata import record_codec
from metaquorum.metadata.listener import CommittedBatch
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import (
    BrokerChangeRecord,
    BrokerRecord,
    ConfigRecord,
    ConfigResource,
    LeaderChange,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from storage.directory.directories import LogDirectories, LogDirectory
from storage.files.names import PartitionIdentity, partition_directory_name
from storage.log.partition_log import PartitionLog
from storage.testing.sim_disk import Refusal, SimDisk
from storage.types import LogSettings

TOPIC_ID = bytes(range(16))
ROOT = "/data/partitions"


class Host:
    """A replica host, its disk, and the metadata that a quorum would have committed."""

    def __init__(self, disk: SimDisk, *more: LogDirectory) -> None:
        self.disk = disk
        self.now_ms = 1_000_000
        self.observer = MetadataLoader()
        self.set_aside = SetAside(disk, ROOT, lambda: self.now_ms)
        directories = LogDirectories([LogDirectory(disk, "/data"), *more])
        self.host = ReplicaHost(
            directories=directories,
            own=OwnBroker(1, bytes(16)),
            observer=self.observer,
            now_ms=lambda: self.now_ms,
        )
        self.locator = Locator(node_id=1, observer=self.observer, host=self.host)

    def commit(self, *records: MetadataRecord) -> None:
        base_offset = self.observer.metadata_offset
        batch = CommittedBatch(
            base_offset=base_offset,
            next_offset=base_offset + len(records),
            quorum_epoch=1,
            append_timestamp_ms=0,
            records=[record_codec.encode(record) for record in records],
            is_control=False,
        )
        self.observer.on_commit(batch)

    def register(self, incarnation_id: bytes = bytes(16), *, broker_epoch: int = 1, fenced: bool = False) -> None:
        self.commit(
            BrokerRecord(
                broker_id=1,
                incarnation_id=incarnation_id,
                broker_epoch=broker_epoch,
                host="h",
                port=1,
                rack=None,
                fenced=fenced,
            )
        )

    def create_topic(self, policy: str = "ack", partition_count: int = 1) -> None:
        config = ConfigRecord(
            resource=ConfigResource.TOPIC, resource_name=TOPIC_ID.hex(), name="flush.policy", value=policy
        )
        partitions = [
            PartitionRecord(
                topic_id=TOPIC_ID,
                partition=partition,
                replicas=(1,),
                isr=(1,),
                leader_id=1,
                leader_epoch=0,
                partition_epoch=0,
            )
            for partition in range(partition_count)
        ]
        self.commit(TopicRecord(topic="t", topic_id=TOPIC_ID), *partitions, config)

    async def replica(self, partition: int = 0) -> HostedReplica:
        return await self.locator.local_leader("t", partition, timeout_ms=int(WAIT_S * 1000))


class Listener:
    """Remembers what a replica tells."""

    def __init__(self) -> None:
        self.high_watermarks: list[int] = []
        self.failures: list[Failure] = []

    def on_high_watermark(self, high_watermark: int) -> None:
        self.high_watermarks.append(high_watermark)

    def on_service_end(self, failure: Failure) -> None:
        self.failures.append(failure)


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    """A host over an empty disk, with its broker registered."""
    disk = SimDisk()
    disk.make_directory("/data")
    disk.make_directory(ROOT)
    made = Host(disk)
    made.register()
    await made.host.start()
    yield made
    await made.host.stop()


def append(replica: HostedReplica, values: Sequence[bytes]) -> int:
    batch = encode_batch(values, timestamps_ms=5)
    return replica.append(memoryview(batch), read_header(batch)).next_offset


async def acked(replica: HostedReplica, next_offset: int, level: AckLevel = AckLevel.ALL) -> Durability | LossReason:
    reached: asyncio.Future[Durability | LossReason] = asyncio.get_running_loop().create_future()
    replica.want_ack(next_offset, level, reached.set_result)
    async with asyncio.timeout(WAIT_S):
        return await reached


async def test_log_is_opened_for_a_new_topic_and_flushed_before_the_ack(host: Host) -> None:
    """A committed topic gets its log; under `ack` the file is synced before anybody hears of the record."""
    host.create_topic()
    replica = await host.replica()
    listener = Listener()
    replica.listeners.add_read(listener)
    next_offset = append(replica, [b"a", b"b"])
    assert (next_offset, replica.high_watermark, listener.high_watermarks) == (2, 0, [])
    synced_before = sum(call.operation == "sync" for call in host.disk.calls)
    assert await acked(replica, next_offset) is Durability.FLUSHED
    assert sum(call.operation == "sync" for call in host.disk.calls) > synced_before
    assert listener.high_watermarks == [2]
    found = replica.read(1, 1_000, end_offset=2)
    assert [batch.values() for batch in read_batches(found.data)] == [[b"a", b"b"]]


async def test_interval_policy_flushes_later(host: Host) -> None:
    """Under `interval` the ack comes at once and the flush by itself."""
    host.create_topic("interval")
    host.commit(
        ConfigRecord(resource=ConfigResource.TOPIC, resource_name=TOPIC_ID.hex(), name="flush.interval.ms", value="1")
    )
    replica = await host.replica()
    next_offset = append(replica, [b"a"])
    assert await acked(replica, next_offset) is Durability.REPLICATED
    async with asyncio.timeout(WAIT_S):
        while await acked(replica, next_offset) is not Durability.FLUSHED:
            await asyncio.to_thread(lambda: None)


async def test_config_change_reaches_an_open_log(host: Host) -> None:
    """A changed flush policy holds for what is appended from then on."""
    host.create_topic("none")
    replica = await host.replica()
    assert await acked(replica, append(replica, [b"a"])) is Durability.REPLICATED
    host.commit(
        ConfigRecord(resource=ConfigResource.TOPIC, resource_name=TOPIC_ID.hex(), name="flush.policy", value="ack")
    )
    assert await acked(replica, append(replica, [b"b"])) is Durability.FLUSHED


async def test_inherited_configs_reach_open_logs_and_logs_opened_later(host: Host) -> None:
    """What is set for this broker holds for every log of a topic without a value of its own, before what is set for the cluster."""

    def inherit(resource: ConfigResource, name: str, value: str | None) -> ConfigRecord:
        return ConfigRecord(resource=resource, resource_name=name, name="retention.ms", value=value)

    host.create_topic()
    replica = await host.replica()
    host.commit(inherit(ConfigResource.CLUSTER, "", "5000"), inherit(ConfigResource.BROKER, "2", "1"))
    host.commit(inherit(ConfigResource.CLUSTER, "", "6000"))
    await host.host.wait_idle()
    assert replica.settings.retention_ms == 6_000
    host.commit(inherit(ConfigResource.BROKER, "1", "7000"))
    await host.host.wait_idle()
    assert replica.settings.retention_ms == 7_000
    later = bytes(reversed(TOPIC_ID))
    host.commit(
        TopicRecord(topic="later", topic_id=later),
        PartitionRecord(
            topic_id=later, partition=0, replicas=(1,), isr=(1,), leader_id=1, leader_epoch=0, partition_epoch=0
        ),
    )
    opened = await host.host.wait_open(later, 0, timeout_ms=int(WAIT_S * 1000))
    assert opened is not None
    assert opened.settings.retention_ms == 7_000
    host.commit(inherit(ConfigResource.BROKER, "1", None))
    await host.host.wait_idle()
    assert (replica.settings.retention_ms, opened.settings.retention_ms) == (6_000, 6_000)


async def test_process_leads_nothing_of_what_the_one_before_it_led_until_it_is_let_in() -> None:
    """The metadata still name this broker, with the process before, as the leader: nobody is served by that word."""
    disk = SimDisk()
    disk.make_directory("/data")
    disk.make_directory(ROOT)
    name = partition_directory_name(PartitionIdentity(TOPIC_ID, 0))
    PartitionLog.open(disk, f"{ROOT}/{name}", settings=LogSettings(), now_ms=0).log.close()
    made = Host(disk)
    made.register(b"before" + bytes(10))
    made.create_topic()
    made.register(broker_epoch=2, fenced=True)
    await made.host.start()
    try:
        replica = made.host.find(TOPIC_ID, 0)
        assert replica is not None
        assert not replica.is_leader
        with pytest.raises(RefusedError) as refused:
            append(replica, [b"v"])
        assert refused.value.failure.code is ErrorCode.LEADER_NOT_AVAILABLE
        assert made.host.leader_place(TOPIC_ID, 0) is None
        made.commit(BrokerChangeRecord(broker_id=1, broker_epoch=2, fenced=False))
        await made.host.wait_idle()
        assert replica.is_leader
        assert await acked(replica, append(replica, [b"v"])) is Durability.FLUSHED
    finally:
        await made.host.stop()


async def test_a_change_of_one_partition_is_told_to_its_replica_alone(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop or a lost broker changes partitions in slices: looking at all of the topic for each slice would take squares of time."""
    host.create_topic(partition_count=20)
    for partition in range(20):
        await host.replica(partition)
    told: list[int] = []
    take = HostedReplica.take_partition

    def note(replica: HostedReplica, event: PartitionChanged) -> None:
        told.append(replica.partition)
        take(replica, event)

    monkeypatch.setattr(HostedReplica, "take_partition", note)
    host.commit(PartitionChangeRecord(topic_id=TOPIC_ID, partition=7, leader=LeaderChange(leader_id=None)))
    assert told == [7]
    host.commit(
        ConfigRecord(resource=ConfigResource.TOPIC, resource_name=TOPIC_ID.hex(), name="flush.policy", value="none")
    )
    assert told == [7, *range(20)]
    await host.host.wait_idle()


async def test_inherited_configs_are_applied_in_slices(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk over many topics lets others run in between, and a change that comes meanwhile is not missed."""
    monkeypatch.setattr(inherited_configs, "SLICE_TOPICS", 1)
    topic_ids = [bytes([number]) * 16 for number in range(3)]
    for topic_id in topic_ids:
        host.commit(TopicRecord(topic=topic_id.hex(), topic_id=topic_id))
    seen: list[str] = []
    walk = inherited_configs.InheritedConfigs(
        host.observer, [*topic_ids, b"?" * 16], lambda topic: seen.append(topic.topic)
    )
    names = [topic_id.hex() for topic_id in topic_ids]
    assert walk.change()
    running = asyncio.ensure_future(walk.apply())
    await asyncio.sleep(0)
    assert seen == names[:1]
    assert not walk.change()
    await running
    assert seen == [*names, *names]
    assert walk.change()


async def test_failed_fsync_fails_the_directory_and_acknowledges_nothing(host: Host) -> None:
    """After a failed fsync no ack comes, every route ends with STORAGE_FAILED, and the process is told to stop."""
    host.create_topic(partition_count=2)
    first, second = await host.replica(0), await host.replica(1)
    listeners = (Listener(), Listener())
    first.listeners.add_service(listeners[0])
    second.listeners.add_read(listeners[1])
    host.disk.refuse("sync", "-0/", Refusal.IO_ERROR)
    next_offset = append(first, [b"a"])
    assert await acked(first, next_offset) is LossReason.STORAGE_FAILED
    async with asyncio.timeout(WAIT_S):
        assert "sync failed" in str(await host.host.failed)
    for listener in listeners:
        assert [failure.code for failure in listener.failures] == [ErrorCode.STORAGE_FAILED]
    for replica in (first, second):
        with pytest.raises(RefusedError) as caught:
            append(replica, [b"b"])
        assert caught.value.failure.code is ErrorCode.STORAGE_FAILED
    assert first.high_watermark == 0


async def test_failed_write_fails_the_directory(host: Host) -> None:
    """A failed write is as final as a failed fsync."""
    host.create_topic()
    replica = await host.replica()
    host.disk.refuse("append", ".log", Refusal.IO_ERROR)
    with pytest.raises(RefusedError) as caught:
        append(replica, [b"a"])
    assert caught.value.failure.code is ErrorCode.STORAGE_FAILED
    assert host.host.failed.done()
    assert await acked(replica, 0) is LossReason.STORAGE_FAILED


async def test_full_disk_refuses_and_recovers(host: Host) -> None:
    """Without space an append is refused, reads go on, and appends work again when there is space."""
    host.create_topic()
    replica = await host.replica()
    await acked(replica, append(replica, [b"a"]))
    host.disk.refuse("append", ".log", Refusal.FULL)
    with pytest.raises(RefusedError) as caught:
        append(replica, [b"b"])
    assert caught.value.failure.code is ErrorCode.STORAGE_FAILED
    assert caught.value.failure.retry_after_ms
    assert replica.read(0, 100, end_offset=1).data
    assert await acked(replica, append(replica, [b"c"])) is Durability.FLUSHED
    assert not host.host.failed.done()


async def test_log_that_cannot_be_opened_fails_only_its_partition(host: Host) -> None:
    """A directory with the files of another partition refuses with a typed error; the others are served."""
    damaged = f"{ROOT}/{TOPIC_ID.hex()}-0"
    other = PartitionIdentity(bytes(16), 7)
    PartitionLog.open(host.disk, damaged, settings=LogSettings(), now_ms=0, identity=other).log.close()
    host.create_topic(partition_count=2)
    assert append(await host.replica(1), [b"a"]) == 1
    with pytest.raises(RefusedError) as caught:
        await host.replica(0)
    assert caught.value.failure.code is ErrorCode.STORAGE_FAILED


async def test_dropped_ack_is_not_called(host: Host) -> None:
    """Who stops to wait is not called when the flush is done."""
    host.create_topic()
    replica = await host.replica()
    next_offset = append(replica, [b"a"])
    calls: list[Durability | LossReason] = []
    token = replica.want_ack(next_offset, AckLevel.ALL, calls.append)
    replica.drop_ack(token)
    replica.drop_ack(token)
    assert await acked(replica, next_offset) is Durability.FLUSHED
    assert calls == []


async def test_lost_leadership_ends_the_routes_with_a_hint(host: Host) -> None:
    """When the metadata names no leader the routes end; when this broker leads again it serves under the new epoch."""
    host.create_topic()
    replica = await host.replica()
    listener = Listener()
    replica.listeners.add_read(listener)
    host.commit(PartitionChangeRecord(topic_id=TOPIC_ID, partition=0, leader=LeaderChange(leader_id=None)))
    assert [failure.code for failure in listener.failures] == [ErrorCode.LEADER_NOT_AVAILABLE]
    with pytest.raises(RefusedError) as caught:
        append(replica, [b"a"])
    assert caught.value.failure.code is ErrorCode.LEADER_NOT_AVAILABLE
    host.commit(PartitionChangeRecord(topic_id=TOPIC_ID, partition=0, leader=LeaderChange(leader_id=1)))
    assert replica.leader_epoch == 2
    assert append(replica, [b"a"]) == 1


async def test_stopping_ends_routes_with_shutting_down(host: Host) -> None:
    """An orderly stop tells routes why, and closes every log clean."""
    host.create_topic()
    replica = await host.replica()
    append(replica, [b"a"])
    listener = Listener()
    replica.listeners.add_service(listener)
    await host.host.stop()
    await host.host.stop()
    assert [failure.code for failure in listener.failures] == [ErrorCode.SHUTTING_DOWN]
    assert replica.log_end_offset == 1
