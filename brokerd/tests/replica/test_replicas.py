# SPDX-License-Identifier: Apache-2.0
"""The replicas of a broker over a simulated disk: opening by metadata, flushing, failing."""

from __future__ import annotations

import asyncio

import pytest
from lograft.wire.batch import read_batches
from lograft.wire.codes import ErrorCode

from brokerd.failure import RefusedError
from brokerd.partition.effects import LossReason
from brokerd.partition.events import AckLevel, Durability, PartitionChanged
from brokerd.replica import manager as manager_module
from brokerd.replica.replica import Replica
from brokerd.tests.replica.lone_broker import ROOT, TOPIC_ID, Listener, LoneBroker, acked, append
from brokerd.tests.support import WAIT_S
from metaquorum.metadata.records import (
    BrokerChangeRecord,
    BrokerRecord,
    ConfigRecord,
    ConfigResource,
    LeaderChange,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from storage.files.names import PartitionIdentity, partition_directory_name
from storage.log.partition_log import PartitionLog
from storage.testing.sim_disk import Refusal, SimDisk
from storage.types import LogSettings


async def test_log_is_opened_for_a_new_topic_and_flushed_before_the_ack(lone: LoneBroker) -> None:
    """A committed topic gets its log. Under `ack` the file is synced before any client hears of the record."""
    lone.create_topic()
    replica = await lone.replica()
    listener = Listener()
    replica.listeners.add_read(listener)
    next_offset = append(replica, [b"a", b"b"])
    assert (next_offset, replica.high_watermark, listener.high_watermarks) == (2, 0, [])
    synced_before = sum(call.operation == "sync" for call in lone.disk.calls)
    assert await acked(replica, next_offset) is Durability.FLUSHED
    assert sum(call.operation == "sync" for call in lone.disk.calls) > synced_before
    assert listener.high_watermarks == [2]
    found = replica.read(1, 1_000, end_offset=2)
    assert [batch.values() for batch in read_batches(found.data)] == [[b"a", b"b"]]


async def test_interval_policy_flushes_later(lone: LoneBroker) -> None:
    """Under `interval` the ack comes at once and the flush by itself."""
    lone.create_topic("interval")
    lone.commit(
        ConfigRecord(resource=ConfigResource.TOPIC, resource_name=TOPIC_ID.hex(), name="flush.interval.ms", value="1")
    )
    replica = await lone.replica()
    next_offset = append(replica, [b"a"])
    assert await acked(replica, next_offset) is Durability.REPLICATED
    async with asyncio.timeout(WAIT_S):
        while await acked(replica, next_offset) is not Durability.FLUSHED:
            await asyncio.to_thread(lambda: None)


async def test_config_change_reaches_an_open_log(lone: LoneBroker) -> None:
    """A changed flush policy applies to later appends."""
    lone.create_topic("none")
    replica = await lone.replica()
    assert await acked(replica, append(replica, [b"a"])) is Durability.REPLICATED
    lone.commit(
        ConfigRecord(resource=ConfigResource.TOPIC, resource_name=TOPIC_ID.hex(), name="flush.policy", value="ack")
    )
    assert await acked(replica, append(replica, [b"b"])) is Durability.FLUSHED


async def test_inherited_configs_reach_open_logs_and_logs_opened_later(lone: LoneBroker) -> None:
    """A config of this broker applies to every log of a topic without its own value, and overrides that of the cluster."""

    def inherit(resource: ConfigResource, name: str, value: str | None) -> ConfigRecord:
        return ConfigRecord(resource=resource, resource_name=name, name="retention.ms", value=value)

    lone.create_topic()
    replica = await lone.replica()
    lone.commit(inherit(ConfigResource.CLUSTER, "", "5000"), inherit(ConfigResource.BROKER, "2", "1"))
    lone.commit(inherit(ConfigResource.CLUSTER, "", "6000"))
    await lone.manager.wait_idle()
    assert replica.settings.retention_ms == 6_000
    lone.commit(inherit(ConfigResource.BROKER, "1", "7000"))
    await lone.manager.wait_idle()
    assert replica.settings.retention_ms == 7_000
    later = bytes(reversed(TOPIC_ID))
    lone.commit(
        TopicRecord(topic="later", topic_id=later),
        PartitionRecord(
            topic_id=later, partition=0, replicas=(1,), isr=(1,), leader_id=1, leader_epoch=0, partition_epoch=0
        ),
    )
    opened = await lone.manager.wait_open(later, 0, timeout_ms=int(WAIT_S * 1000))
    assert opened is not None
    assert opened.settings.retention_ms == 7_000
    lone.commit(inherit(ConfigResource.BROKER, "1", None))
    await lone.manager.wait_idle()
    assert (replica.settings.retention_ms, opened.settings.retention_ms) == (6_000, 6_000)


async def test_process_leads_nothing_of_what_the_one_before_it_led_until_it_is_let_in() -> None:
    """The metadata still names this broker, with its previous process, as the leader. That does not make this process serve."""
    disk = SimDisk()
    disk.make_directory("/data")
    disk.make_directory(ROOT)
    name = partition_directory_name(PartitionIdentity(TOPIC_ID, 0))
    PartitionLog.open(disk, f"{ROOT}/{name}", settings=LogSettings(), now_ms=0).log.close()
    made = LoneBroker(disk)
    made.register(b"before" + bytes(10))
    made.create_topic()
    made.register(broker_epoch=2, fenced=True)
    await made.manager.start()
    try:
        replica = made.manager.find(TOPIC_ID, 0)
        assert replica is not None
        assert not replica.is_leader
        with pytest.raises(RefusedError) as refused:
            append(replica, [b"v"])
        assert refused.value.failure.code is ErrorCode.LEADER_NOT_AVAILABLE
        assert made.manager.leader_place(TOPIC_ID, 0) is None
        made.commit(BrokerChangeRecord(broker_id=1, broker_epoch=2, fenced=False))
        await made.manager.wait_idle()
        assert replica.is_leader
        assert await acked(replica, append(replica, [b"v"])) is Durability.FLUSHED
    finally:
        await made.manager.stop()


async def test_a_change_of_one_partition_is_told_to_its_replica_alone(
    lone: LoneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop or a lost broker changes partitions in slices. Checking the whole topic for each slice would take quadratic time."""
    lone.create_topic(partition_count=20)
    for partition in range(20):
        await lone.replica(partition)
    told: list[int] = []
    take = Replica.take_partition

    def note(replica: Replica, event: PartitionChanged) -> None:
        told.append(replica.partition)
        take(replica, event)

    monkeypatch.setattr(Replica, "take_partition", note)
    lone.commit(PartitionChangeRecord(topic_id=TOPIC_ID, partition=7, leader=LeaderChange(leader_id=None)))
    assert told == [7]
    lone.commit(
        ConfigRecord(resource=ConfigResource.TOPIC, resource_name=TOPIC_ID.hex(), name="flush.policy", value="none")
    )
    assert told == [7, *range(20)]
    await lone.manager.wait_idle()


async def test_inherited_configs_are_applied_in_slices(lone: LoneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan over many topics yields to other tasks, and changes during it are not missed."""
    monkeypatch.setattr(manager_module, "SLICE_TOPICS", 1)
    replicas: list[Replica] = []
    for topic_id in (bytes([number]) * 16 for number in range(3)):
        partition = PartitionRecord(
            topic_id=topic_id, partition=0, replicas=(1,), isr=(1,), leader_id=1, leader_epoch=0, partition_epoch=0
        )
        lone.commit(TopicRecord(topic=topic_id.hex(), topic_id=topic_id), partition)
        opened = await lone.manager.wait_open(topic_id, 0, timeout_ms=int(WAIT_S * 1000))
        assert opened is not None
        replicas.append(opened)

    def inherit(value: str) -> ConfigRecord:
        return ConfigRecord(resource=ConfigResource.CLUSTER, resource_name="", name="retention.ms", value=value)

    before = replicas[0].settings.retention_ms
    lone.commit(inherit("5000"))
    await asyncio.sleep(0)
    assert [replica.settings.retention_ms for replica in replicas] == [5_000, before, before]
    lone.commit(inherit("6000"))
    await lone.manager.wait_idle()
    assert [replica.settings.retention_ms for replica in replicas] == [6_000] * 3


async def test_failed_fsync_fails_the_directory_and_acknowledges_nothing(lone: LoneBroker) -> None:
    """After a failed fsync no acknowledgement comes, every route ends with STORAGE_FAILED, and the process is told to stop."""
    lone.create_topic(partition_count=2)
    first, second = await lone.replica(0), await lone.replica(1)
    listeners = (Listener(), Listener())
    first.listeners.add_service(listeners[0])
    second.listeners.add_read(listeners[1])
    lone.disk.refuse("sync", "-0/", Refusal.IO_ERROR)
    next_offset = append(first, [b"a"])
    assert await acked(first, next_offset) is LossReason.STORAGE_FAILED
    async with asyncio.timeout(WAIT_S):
        assert "sync failed" in str(await lone.manager.failed)
    for listener in listeners:
        assert [failure.code for failure in listener.failures] == [ErrorCode.STORAGE_FAILED]
    for replica in (first, second):
        with pytest.raises(RefusedError) as caught:
            append(replica, [b"b"])
        assert caught.value.failure.code is ErrorCode.STORAGE_FAILED
    assert first.high_watermark == 0


async def test_failed_write_fails_the_directory(lone: LoneBroker) -> None:
    """A failed write is as final as a failed fsync."""
    lone.create_topic()
    replica = await lone.replica()
    lone.disk.refuse("append", ".log", Refusal.IO_ERROR)
    with pytest.raises(RefusedError) as caught:
        append(replica, [b"a"])
    assert caught.value.failure.code is ErrorCode.STORAGE_FAILED
    assert lone.manager.failed.done()
    assert await acked(replica, 0) is LossReason.STORAGE_FAILED


async def test_full_disk_refuses_and_recovers(lone: LoneBroker) -> None:
    """Without space an append is refused and reads work. Appends work again when there is space."""
    lone.create_topic()
    replica = await lone.replica()
    await acked(replica, append(replica, [b"a"]))
    lone.disk.refuse("append", ".log", Refusal.FULL)
    with pytest.raises(RefusedError) as caught:
        append(replica, [b"b"])
    assert caught.value.failure.code is ErrorCode.STORAGE_FAILED
    assert caught.value.failure.retry_after_ms
    assert replica.read(0, 100, end_offset=1).data
    assert await acked(replica, append(replica, [b"c"])) is Durability.FLUSHED
    assert not lone.manager.failed.done()


async def test_log_that_cannot_be_opened_fails_only_its_partition(lone: LoneBroker) -> None:
    """A directory with the files of another partition refuses with a typed error; the others are served."""
    damaged = f"{ROOT}/{TOPIC_ID.hex()}-0"
    other = PartitionIdentity(bytes(16), 7)
    PartitionLog.open(lone.disk, damaged, settings=LogSettings(), now_ms=0, identity=other).log.close()
    lone.create_topic(partition_count=2)
    assert append(await lone.replica(1), [b"a"]) == 1
    with pytest.raises(RefusedError) as caught:
        await lone.replica(0)
    assert caught.value.failure.code is ErrorCode.STORAGE_FAILED


async def test_dropped_ack_is_not_called(lone: LoneBroker) -> None:
    """A dropped waiter is not called when the flush is done."""
    lone.create_topic()
    replica = await lone.replica()
    next_offset = append(replica, [b"a"])
    calls: list[Durability | LossReason] = []
    token = replica.want_ack(next_offset, AckLevel.ALL, calls.append)
    replica.drop_ack(token)
    replica.drop_ack(token)
    assert await acked(replica, next_offset) is Durability.FLUSHED
    assert calls == []


async def test_lost_leadership_ends_the_routes_with_a_hint(lone: LoneBroker) -> None:
    """When the metadata names no leader the routes end; when this broker leads again it serves under the new epoch."""
    lone.create_topic()
    replica = await lone.replica()
    listener = Listener()
    replica.listeners.add_read(listener)
    lone.commit(PartitionChangeRecord(topic_id=TOPIC_ID, partition=0, leader=LeaderChange(leader_id=None)))
    assert [failure.code for failure in listener.failures] == [ErrorCode.LEADER_NOT_AVAILABLE]
    with pytest.raises(RefusedError) as caught:
        append(replica, [b"a"])
    assert caught.value.failure.code is ErrorCode.LEADER_NOT_AVAILABLE
    lone.commit(PartitionChangeRecord(topic_id=TOPIC_ID, partition=0, leader=LeaderChange(leader_id=1)))
    assert replica.leader_epoch == 2
    assert append(replica, [b"a"]) == 1


@pytest.mark.parametrize(("is_deleted", "code"), [(False, ErrorCode.NOT_LEADER), (True, ErrorCode.UNKNOWN_TOPIC)])
async def test_removed_replica_tells_its_clients_where_to_go(
    lone: LoneBroker, is_deleted: bool, code: ErrorCode
) -> None:
    """A client of a partition that moved to another broker learns the new leader; only a deleted topic is unknown."""
    lone.create_topic()
    lone.commit(
        BrokerRecord(
            broker_id=2, incarnation_id=bytes(16), broker_epoch=2, host="other", port=9, rack=None, fenced=False
        )
    )
    replica = await lone.replica()
    listener = Listener()
    replica.listeners.add_service(listener)
    if is_deleted:
        lone.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
    else:
        leader = LeaderChange(leader_id=2)
        lone.commit(PartitionChangeRecord(topic_id=TOPIC_ID, partition=0, leader=leader, replicas=(2,), isr=(2,)))
    async with asyncio.timeout(WAIT_S):
        await listener.ended.wait()
    (failure,) = listener.failures
    assert failure.code is code
    assert failure.leader is None if is_deleted else failure.leader is not None and failure.leader.host == "other"


async def test_stopping_ends_routes_with_shutting_down(lone: LoneBroker) -> None:
    """A clean shutdown tells routes the reason, and closes every log clean."""
    lone.create_topic()
    replica = await lone.replica()
    append(replica, [b"a"])
    listener = Listener()
    replica.listeners.add_service(listener)
    await lone.manager.stop()
    await lone.manager.stop()
    assert [failure.code for failure in listener.failures] == [ErrorCode.SHUTTING_DOWN]
    assert replica.log_end_offset == 1
