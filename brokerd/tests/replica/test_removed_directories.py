# SPDX-License-Identifier: Apache-2.0
"""Directories of partitions without a replica here: they are renamed and deleted later; a partition that returns gets a new one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest
from lograft.wire.codes import ErrorCode

from brokerd.failure import RefusedError
from brokerd.limits import DELETED_PARTITION_KEEP_MS, UNKNOWN_PARTITION_KEEP_MS
from brokerd.tests.replica.lone_broker import ROOT, TOPIC_ID, Listener, LoneBroker, acked, append
from brokerd.tests.support import WAIT_S
from metaquorum.metadata.records import LeaderChange, PartitionChangeRecord, RemoveTopicRecord
from storage.testing.sim_disk import Refusal, SimDisk


async def test_removed_topic_is_renamed_and_deleted_later(lone: LoneBroker) -> None:
    """The directory of a removed topic keeps its files for the stated time and not longer."""
    lone.create_topic()
    replica = await lone.replica()
    await acked(replica, append(replica, [b"a"]))
    listener = Listener()
    replica.listeners.add_service(listener)
    lone.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
    with pytest.raises(RefusedError) as caught:
        await lone.replica()
    assert caught.value.failure.code is ErrorCode.UNKNOWN_TOPIC
    await lone.manager.wait_idle()
    assert [failure.code for failure in listener.failures] == [ErrorCode.UNKNOWN_TOPIC]
    (name,) = lone.disk.list_directory(ROOT)
    assert name.endswith(".removed")
    lone.now_ms += DELETED_PARTITION_KEEP_MS - 1
    assert await lone.manager.delete_due() == 0
    lone.now_ms += 1
    assert await lone.manager.delete_due() == 1
    assert lone.disk.list_directory(ROOT) == []


async def test_replica_that_comes_back_while_it_is_removed_begins_anew(lone: LoneBroker) -> None:
    """The partition leaves and returns before its directory is renamed. It must not use that directory, which will be deleted."""
    lone.create_topic()
    replica = await lone.replica()
    await acked(replica, append(replica, [b"a"]))
    for _ in range(2):
        away = PartitionChangeRecord(
            topic_id=TOPIC_ID, partition=0, replicas=(2,), isr=(2,), leader=LeaderChange(leader_id=2)
        )
        back = PartitionChangeRecord(
            topic_id=TOPIC_ID, partition=0, replicas=(1,), isr=(1,), leader=LeaderChange(leader_id=1)
        )
        lone.commit(away)
        lone.commit(back)
    again = await lone.replica()
    await lone.manager.wait_idle()
    assert again.log_end_offset == 0
    await acked(again, append(again, [b"b"]))
    kept, *removed = sorted(lone.disk.list_directory(ROOT), key=len)
    assert again.log.directory == f"{ROOT}/{kept}"
    assert removed
    assert all(name.endswith(".removed") for name in removed)


def broker_that_finds(disk: SimDisk, *names: str) -> LoneBroker:
    """Return a registered broker, not started, over a disk with these names among the partition directories."""
    for path in ("/data", ROOT, *(f"{ROOT}/{name}" for name in names)):
        disk.make_directory(path)
    made = LoneBroker(disk)
    made.register()
    return made


async def test_unknown_directories_are_kept_longer() -> None:
    """Stray directories may be a mistake, so they are kept for days. Other names are not touched at all."""
    disk = SimDisk()
    lone = broker_that_finds(disk, f"{'0a' * 16}-1", "notes", f"{'0a' * 16}-2.x.unknown")
    await lone.manager.start()
    await lone.manager.wait_idle()
    left = {"notes", f"{'0a' * 16}-2.x.unknown", f"{'0a' * 16}-1.{lone.now_ms}.unknown"}
    assert set(disk.list_directory(ROOT)) == left
    lone.now_ms += UNKNOWN_PARTITION_KEEP_MS - 1
    assert await lone.manager.delete_due() == 0
    lone.now_ms += 1
    assert await lone.manager.delete_due() == 1
    assert len(disk.list_directory(ROOT)) == 2
    await lone.manager.stop()


async def test_directory_of_a_topic_deleted_meanwhile_goes_like_any_deleted_one() -> None:
    """A broker that was down when its topic was deleted keeps the data for a short time only: the metadata knows about the deletion."""
    disk = SimDisk()
    name = f"{TOPIC_ID.hex()}-0"
    lone = broker_that_finds(disk, name)
    lone.create_topic()
    lone.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
    await lone.manager.start()
    await lone.manager.wait_idle()
    assert disk.list_directory(ROOT) == [f"{name}.{lone.now_ms}.removed"]
    lone.now_ms += DELETED_PARTITION_KEEP_MS
    assert await lone.manager.delete_due() == 1
    await lone.manager.stop()


async def test_directory_of_a_replica_moved_away_meanwhile_goes_too() -> None:
    """The partition has its replicas elsewhere. A partition number that the topic never had may be a mistake."""
    disk = SimDisk()
    moved, strange = f"{TOPIC_ID.hex()}-0", f"{TOPIC_ID.hex()}-9"
    lone = broker_that_finds(disk, moved, strange)
    lone.create_topic()
    lone.commit(
        PartitionChangeRecord(topic_id=TOPIC_ID, partition=0, replicas=(2,), isr=(2,), leader=LeaderChange(leader_id=2))
    )
    await lone.manager.start()
    await lone.manager.wait_idle()
    assert set(disk.list_directory(ROOT)) == {f"{moved}.{lone.now_ms}.removed", f"{strange}.{lone.now_ms}.unknown"}
    await lone.manager.stop()


class HeldRename(SimDisk):
    """A disk on which the test acts on the event loop before the first rename."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], Coroutine[None, None, None]] | None = None
        self.loop = asyncio.get_running_loop()

    def rename(self, source: str, target: str) -> None:
        """Run the test's action, then rename."""
        before, self.before = self.before, None
        if before is not None:
            asyncio.run_coroutine_threadsafe(before(), self.loop).result(WAIT_S)
        super().rename(source, target)


async def test_partition_that_comes_while_unknown_directories_are_removed_keeps_its_own() -> None:
    """A start that finds an old directory must not take the directory of a replica that the metadata assigns during that start."""
    disk = HeldRename()
    name = f"{TOPIC_ID.hex()}-0"
    lone = broker_that_finds(disk, name)

    async def give_partition() -> None:
        lone.create_topic()
        for _ in range(1000):
            if lone.manager.find(TOPIC_ID, 0) is not None:
                break
            await asyncio.sleep(0)

    disk.before = give_partition
    await lone.manager.start()
    replica = await lone.replica()
    await acked(replica, append(replica, [b"a"]))
    assert set(disk.list_directory(ROOT)) == {name, f"{name}.{lone.now_ms}.unknown"}
    assert disk.list_directory(f"{ROOT}/{name}")
    await lone.manager.stop()


async def test_unknown_directory_that_cannot_be_renamed_stays() -> None:
    """The next start finds it again. The broker starts, and its other partitions work."""
    disk = SimDisk()
    name = f"{'0a' * 16}-1"
    lone = broker_that_finds(disk, name)
    disk.refuse("rename", name, Refusal.FULL)
    lone.create_topic()
    await lone.manager.start()
    replica = await lone.replica()
    await acked(replica, append(replica, [b"a"]))
    assert name in disk.list_directory(ROOT)
    await lone.manager.stop()
