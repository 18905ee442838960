# SPDX-License-Identifier: Apache-2.0
"""The replicas of a broker over several log directories: placement of partitions, a failed directory, and free space."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from lograft.wire.codes import ErrorCode

from brokerd.failure import RefusedError
from brokerd.limits import DELETED_PARTITION_KEEP_MS
from brokerd.partition.events import Durability
from brokerd.replica.removed_directories import RemovedDirectories
from brokerd.tests.replica.lone_broker import ROOT, TOPIC_ID, Listener, LoneBroker, acked, append, empty_disk
from brokerd.tests.support import WAIT_S
from metaquorum.metadata.records import PartitionRecord, RemoveTopicRecord
from storage.directory.directories import LogDirectory
from storage.directory.space_guard import SpaceGuard
from storage.errors import DiskFailedError, DiskSpaceLowError, DuplicatePartitionError
from storage.testing.sim_disk import Refusal, SimDisk


@pytest.fixture
async def two() -> AsyncIterator[tuple[LoneBroker, SimDisk]]:
    """A broker over two empty disks, with its broker registered, and its second disk."""
    second = empty_disk("/more")
    made = LoneBroker(empty_disk("/data"), LogDirectory(second, "/more", directory_id=b"2" * 16))
    made.register()
    await made.manager.start()
    yield made, second
    await made.manager.stop()


def names_in(disk: SimDisk, path: str) -> list[int]:
    return [int(name.split("-")[1]) for name in disk.list_directory(path)]


async def test_partitions_spread_over_the_directories_and_come_back_where_they_lie(
    two: tuple[LoneBroker, SimDisk],
) -> None:
    """Each partition is in one directory, and the next start finds it there."""
    lone, second = two
    lone.create_topic(partition_count=6)
    replicas = [await lone.replica(partition) for partition in range(6)]
    assert sorted(names_in(lone.disk, ROOT) + names_in(second, "/more/partitions")) == list(range(6))
    assert len(names_in(second, "/more/partitions")) == 3
    for replica in replicas:
        await acked(replica, append(replica, [b"a"]))
    await lone.manager.stop()
    again = LoneBroker(lone.disk, LogDirectory(second, "/more"))
    again.register()
    again.create_topic(partition_count=6)
    await again.manager.start()
    assert [(await again.replica(partition)).log_end_offset for partition in range(6)] == [1] * 6
    assert len(names_in(second, "/more/partitions")) == 3
    await again.manager.stop()


async def test_failed_directory_ends_its_own_partitions_only(two: tuple[LoneBroker, SimDisk]) -> None:
    """Partitions in the others are written and read, new partitions go to the others, and the broker continues."""
    lone, second = two
    lone.create_topic(partition_count=4)
    replicas = [await lone.replica(partition) for partition in range(4)]
    for replica in replicas:
        await acked(replica, append(replica, [b"a"]))
    hurt = names_in(second, "/more/partitions")
    assert len(hurt) == 2
    listeners = [Listener() for _ in replicas]
    for replica, listener in zip(replicas, listeners, strict=True):
        replica.listeners.add_service(listener)
    second.refuse("append", "/more", Refusal.IO_ERROR)
    with pytest.raises(RefusedError) as caught:
        append(replicas[hurt[0]], [b"b"])
    assert caught.value.failure.code is ErrorCode.STORAGE_FAILED
    for partition, (replica, listener) in enumerate(zip(replicas, listeners, strict=True)):
        if partition in hurt:
            assert not replica.is_leader
            assert [failure.code for failure in listener.failures] == [ErrorCode.STORAGE_FAILED]
            assert "failed" in replica.refusal().message
        else:
            assert await acked(replica, append(replica, [b"b"])) is Durability.FLUSHED
            assert not listener.failures
    assert not lone.manager.failed.done()
    await lone.manager.tend_space()
    third = PartitionRecord(
        topic_id=TOPIC_ID, partition=4, replicas=(1,), isr=(1,), leader_id=1, leader_epoch=0, partition_epoch=0
    )
    lone.commit(third)
    assert append(await lone.replica(4), [b"a"]) == 1
    assert 4 in names_in(lone.disk, ROOT)
    assert await lone.manager.delete_due() == 0


async def test_disk_failure_that_another_thread_met_ends_the_service_too(two: tuple[LoneBroker, SimDisk]) -> None:
    """Compaction, repair or a deletion met it, and no client writes there: the watch over free space notices."""
    lone, second = two
    lone.create_topic(partition_count=2)
    replicas = [await lone.replica(partition) for partition in range(2)]
    (hurt,) = names_in(second, "/more/partitions")
    second.refuse("remove", "/more", Refusal.IO_ERROR)
    with pytest.raises(DiskFailedError):
        second.remove("/more/ballast")
    assert replicas[hurt].is_leader
    await lone.manager.tend_space()
    assert not replicas[hurt].is_leader
    assert replicas[hurt].refusal().code is ErrorCode.STORAGE_FAILED
    assert replicas[1 - hurt].is_leader
    assert not lone.manager.failed.done()


@pytest.mark.parametrize("work", ["tend_space", "delete_due"])
async def test_stop_waits_for_threads_at_the_files(
    two: tuple[LoneBroker, SimDisk], monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """Work in a directory goes on when its task is cancelled. The directory belongs to this broker until the work ends."""
    lone, _ = two
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(*_: object) -> int:
        began.set()
        assert may_end.wait(WAIT_S)
        ended.set()
        return 0

    monkeypatch.setattr(SpaceGuard, "tend", slow)
    monkeypatch.setattr(RemovedDirectories, "delete_due", slow)
    task = asyncio.create_task(getattr(lone.manager, work)())
    assert await asyncio.to_thread(began.wait, WAIT_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stopping = asyncio.create_task(lone.manager.stop())
    assert not (await asyncio.wait((stopping,), timeout=0.2))[0]
    may_end.set()
    await stopping
    assert ended.is_set()


async def test_failure_of_the_last_or_the_first_directory_ends_the_broker(two: tuple[LoneBroker, SimDisk]) -> None:
    """The first one holds the metadata too."""
    lone, _ = two
    first, second = lone.manager.directories
    lone.manager.note_disk_failure(second, DiskFailedError("/more/x", "gone"))
    lone.manager.note_disk_failure(second, DiskFailedError("/more/x", "gone again"))
    assert not lone.manager.failed.done()
    lone.manager.note_disk_failure(first, DiskFailedError("/data/x", "gone too"))
    assert str(lone.manager.failed.result()) == "/data/x: gone too"


async def test_removed_partition_is_renamed_in_its_own_directory(two: tuple[LoneBroker, SimDisk]) -> None:
    """A removed partition is renamed in its own directory and deleted there."""
    lone, second = two
    lone.create_topic(partition_count=2)
    await lone.replica(1)
    lone.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
    await lone.manager.wait_idle()
    names = [*lone.disk.list_directory(ROOT), *second.list_directory("/more/partitions")]
    assert [name.rpartition(".")[2] for name in names] == ["removed"] * 2
    assert len(second.list_directory("/more/partitions")) == 1
    lone.now_ms += DELETED_PARTITION_KEEP_MS
    assert await lone.manager.delete_due() == 2


async def test_partition_in_two_directories_stops_the_start(lone: LoneBroker) -> None:
    """The error names both places."""
    name = f"{TOPIC_ID.hex()}-0"
    second = SimDisk()
    for disk, path in ((lone.disk, ROOT), (second, "/more/partitions")):
        for directory in (path.rpartition("/")[0], path, f"{path}/{name}"):
            disk.make_directory(directory)
    made = LoneBroker(lone.disk, LogDirectory(second, "/more"))
    with pytest.raises(DuplicatePartitionError, match=f"/data/partitions/{name}.*/more/partitions/{name}"):
        await made.manager.start()
    await made.manager.stop()


async def test_tight_directory_refuses_appends_and_serves_reads(lone: LoneBroker) -> None:
    """A client is told what to do and when to try again. Once there is space, appends work."""
    lone.create_topic()
    replica = await lone.replica()
    assert append(replica, [b"a"]) == 1
    replica.check_room(10**9)
    lone.disk.capacity_bytes = lone.disk.used_bytes() + 1_000_000
    lone.manager.directories.first.space.look(0)
    with pytest.raises(RefusedError) as caught:
        append(replica, [b"b"])
    failure = caught.value.failure
    assert (failure.code, failure.retry_after_ms) == (ErrorCode.STORAGE_FAILED, 1_000)
    assert "delete records or topics" in failure.message
    assert "/data" not in failure.message
    assert replica.log_end_offset == 1
    assert replica.read(0, 100, end_offset=1).next_offset == 1
    with pytest.raises(DiskSpaceLowError):
        replica.check_room(10**9)
    lone.disk.capacity_bytes = None
    lone.manager.directories.first.space.look(0)
    assert append(replica, [b"b"]) == 2


async def test_ballast_is_kept_and_given_back(lone: LoneBroker) -> None:
    """The watch over free space maintains the ballast. A disk that fails during that counts as failed."""
    await lone.manager.tend_space()
    assert lone.disk.exists("/data/ballast")
    lone.disk.capacity_bytes = lone.disk.used_bytes() + 10
    lone.disk.refuse("remove", "ballast", Refusal.IO_ERROR)
    await lone.manager.tend_space()
    assert lone.manager.failed.done()


async def test_error_in_one_directory_does_not_stop_the_care_for_the_others(two: tuple[LoneBroker, SimDisk]) -> None:
    """What cannot be deleted or kept now is logged and tried again later."""
    lone, second = two
    lone.create_topic(partition_count=2)
    await lone.replica(1)
    lone.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
    await lone.manager.wait_idle()
    lone.now_ms += DELETED_PARTITION_KEEP_MS
    (name,) = lone.disk.list_directory(ROOT)
    lone.disk.make_directory(f"{ROOT}/{name}/in-the-way")
    lone.disk.make_directory("/data/ballast")
    assert await lone.manager.delete_due() == 1
    await lone.manager.tend_space()
    assert second.exists("/more/ballast")
    assert not lone.manager.failed.done()
