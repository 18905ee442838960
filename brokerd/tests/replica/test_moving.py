# SPDX-License-Identifier: Apache-2.0
"""Moving replicas between the log directories of a broker while they are used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from lograft.wire.batch import read_batches
from lograft.wire.codes import ErrorCode

from brokerd.failure import Failure, RefusedError
from brokerd.partition.events import Durability
from brokerd.replica.log_opening import LogOpening
from brokerd.replica.moving import Move, MoveState, ReplicaMoves
from brokerd.replica.replica import Replica
from brokerd.replica.scrubbing import LogScrubbing, ScrubSettings
from brokerd.tests.replica.lone_broker import TOPIC_ID, Listener, LoneBroker, acked, append, empty_disk
from brokerd.tests.support import WAIT_S
from metaquorum.metadata.records import ConfigRecord, ConfigResource, RemoveTopicRecord
from storage.directory import move_plan
from storage.directory.directories import LogDirectory
from storage.directory.space import SpaceLimits
from storage.files.names import parse_move_directory_name
from storage.testing.sim_disk import Refusal, SimCall, SimDisk

FIRST, SECOND = b"1" * 16, b"2" * 16
MIB = 1024 * 1024
SEGMENT_BYTES = 16 * 1024


class Two(LoneBroker):
    """A broker over two directories, and where its partition lies."""

    def __init__(self, first: SimDisk, second: SimDisk, *, limits: SpaceLimits | None = None) -> None:
        super().__init__(first, LogDirectory(second, "/more", directory_id=SECOND, limits=limits))
        self.second = second
        self.directories = list(self.manager.directories)
        self.directories[0].directory_id = FIRST

    async def begin(self) -> Replica:
        self.register()
        self.create_topic()
        await self.manager.start()
        return await self.replica()

    def move(self, directory_id: bytes = SECOND) -> Move:
        self.manager.move(TOPIC_ID, 0, directory_id)
        return self.manager.moves.report()[0]

    async def moved(self, directory_id: bytes = SECOND) -> Move:
        move = self.move(directory_id)
        assert move.task is not None
        async with asyncio.timeout(WAIT_S):
            await move.task
        return move

    def names(self) -> list[str]:
        return [
            f"{directory.path} {name[32:]}"
            for directory in self.directories
            for name in directory.disk.list_directory(directory.partitions_path)
        ]


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    """A broker over two empty disks."""
    made = Two(empty_disk("/data"), empty_disk("/more"))
    yield made
    await made.manager.stop()


def values(replica: Replica) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = replica.log_start_offset
    while offset < replica.high_watermark:
        read = replica.read(offset, MIB, end_offset=replica.high_watermark)
        found += [value for batch in read_batches(read.data) for value in batch.values()]
        offset = read.next_offset
    return found


async def test_replica_goes_on_in_the_other_directory(two: Two) -> None:
    """Records, readers, acknowledgements and new appends are unaffected. A restart finds the replica there."""
    replica = await two.begin()
    for number in range(20):
        await acked(replica, append(replica, [b"%d" % number]))
    listener = Listener()
    replica.listeners.add_read(listener)
    move = await two.moved()
    assert (move.state, move.error, str(move)) == (MoveState.DONE, None, "t-0")
    assert move.copied_bytes == move.size_bytes > 0
    assert two.names() == ["/more -0"]
    assert await acked(replica, append(replica, [b"20"])) is Durability.FLUSHED
    assert values(replica) == [b"%d" % number for number in range(21)]
    assert listener.high_watermarks == [21]
    assert not listener.failures
    assert await two.replica() is replica
    await replica.delete_before(5, 0)
    await two.manager.stop()
    again = Two(two.disk, two.second)
    assert (await again.begin()).readable_range.log_start_offset == 5
    assert again.names() == ["/more -0"]
    await again.manager.stop()


async def test_there_and_back_again(two: Two) -> None:
    """A partition can be moved any number of times. A move to its own directory does nothing."""
    replica = await two.begin()
    for number in range(3):
        await acked(replica, append(replica, [b"a"]))
        assert (await two.moved(FIRST if number % 2 else SECOND)).state is MoveState.DONE
    two.manager.move(TOPIC_ID, 0, SECOND)
    assert [move.has_ended for move in two.manager.moves.report()] == [True] * 3
    assert two.names() == ["/more -0"]
    assert values(replica) == [b"a"] * 3


async def test_log_that_was_away_is_checked_again(two: Two) -> None:
    """A scrub keeps nothing of the log that it knew: the log that comes back is another copy, whose seals are due."""
    two.register()
    two.create_topic()
    two.commit(
        ConfigRecord(
            resource=ConfigResource.TOPIC, resource_name=TOPIC_ID.hex(), name="segment.bytes", value=str(SEGMENT_BYTES)
        )
    )
    await two.manager.start()
    replica = await two.replica()
    for _ in range(4):
        await acked(replica, append(replica, [bytes(SEGMENT_BYTES // 2)]))
    sealed = replica.log.segment_count - 1
    assert sealed
    scrubbing = LogScrubbing(two.manager.replicas, settings=ScrubSettings(bytes_per_s=1 << 30, idle_ms=1))
    assert await asyncio.to_thread(scrubbing.run_round) == sealed
    assert await asyncio.to_thread(scrubbing.run_round) == 0
    await two.moved()
    await two.moved(FIRST)
    assert await asyncio.to_thread(scrubbing.run_round) == sealed


async def test_appends_under_a_move_are_in_the_log(two: Two) -> None:
    """Every acknowledged record exists. A record that comes during the switch is refused and may be sent again at once."""
    replica = await two.begin()
    move = two.move()
    count = 0
    refusals: list[Failure] = []
    async with asyncio.timeout(WAIT_S):
        while not move.has_ended or count < 50:
            try:
                await acked(replica, append(replica, [b"%d" % count]))
                count += 1
            except RefusedError as error:
                refusals.append(error.failure)
            await asyncio.sleep(0)
    assert move.state is MoveState.DONE
    assert {(refusal.code, refusal.retry_after_ms > 0) for refusal in refusals} <= {
        (ErrorCode.LEADER_NOT_AVAILABLE, True)
    }
    assert values(replica) == [b"%d" % number for number in range(count)]


async def test_locked_replica_refuses_appends_and_serves_reads(two: Two) -> None:
    """It is kept until its lock is released. Background work waits for that."""
    replica = await two.begin()
    append(replica, [b"a"])
    async with replica.locked_and_flushed():
        assert values(replica) == [b"a"]
        with pytest.raises(RefusedError, match="switched to another log directory"):
            append(replica, [b"b"])
        waiting = asyncio.create_task(replica.wait_unlocked())
        retention = asyncio.create_task(replica.apply_retention(0))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert not retention.done()
    await waiting
    await retention
    assert append(replica, [b"b"]) == 2


@pytest.mark.parametrize("operation", ["create_file", "append", "sync", "make_directory"])
async def test_failing_target_ends_only_the_move(two: Two, operation: str) -> None:
    """The replica stays where it is and accepts appends. The target directory takes no further part."""
    replica = await two.begin()
    await acked(replica, append(replica, [b"a"]))
    two.second.refuse(operation, "-future", Refusal.IO_ERROR)
    move = await two.moved()
    assert move.state is MoveState.FAILED
    assert move.error is not None
    assert two.directories[1].failure is not None
    assert await acked(replica, append(replica, [b"b"])) is Durability.FLUSHED
    assert "/data -0" in two.names()
    with pytest.raises(RefusedError, match="has failed"):
        two.manager.move(TOPIC_ID, 0, SECOND)


@pytest.mark.parametrize("operation", ["rename", "sync_directory"])
async def test_target_that_fails_after_the_decision_is_revoked(two: Two, operation: str) -> None:
    """The source continues, and is the log after a restart with both disks, whatever happened to the rename."""
    replica = await two.begin()
    await acked(replica, append(replica, [b"a"]))
    seen = two.second.calls

    def fail_in_the_switch(call: object) -> None:
        # The decision stands; now the target fails.
        if any("moved-to" in each.path for each in two.disk.calls) and seen is two.second.calls:
            two.second.on_call = None
            two.second.refuse(operation, "partitions", Refusal.IO_ERROR)

    two.second.on_call = fail_in_the_switch
    move = await two.moved()
    assert move.state is MoveState.FAILED
    await acked(replica, append(replica, [b"b"]))
    await two.manager.stop()
    two.second.on_call = None
    # The disk works again in the next process.
    again = Two(two.disk.fork(), two.second.fork())
    found = await again.begin()
    assert values(found) == [b"a", b"b"]
    assert again.names() == ["/data -0"]
    await again.manager.stop()


async def test_failing_source_ends_the_move_and_the_partition(two: Two) -> None:
    """The decision could not be made durable, so neither copy may be written."""
    replica = await two.begin()
    await acked(replica, append(replica, [b"a"]))
    await two.moved()
    listener = Listener()
    replica.listeners.add_service(listener)
    two.second.refuse("rename", "moved-to", Refusal.IO_ERROR)
    move = await two.moved(FIRST)
    assert move.state is MoveState.FAILED
    assert "in doubt" in (move.error or "")
    assert [failure.code for failure in listener.failures] == [ErrorCode.STORAGE_FAILED]
    with pytest.raises(RefusedError, match="failed"):
        append(replica, [b"b"])
    assert not two.manager.failed.done()
    await two.manager.stop()
    again = Two(two.disk.fork(), two.second.fork())
    assert values(await again.begin()) == [b"a"]
    assert len(again.names()) == 1
    await again.manager.stop()


async def test_read_error_of_the_source_ends_the_move_only(two: Two) -> None:
    """The bytes cannot be copied. Readers of other bytes of this log are served."""
    replica = await two.begin()
    await acked(replica, append(replica, [b"a"]))
    two.disk.refuse("pread", ".log", Refusal.IO_ERROR)
    move = await two.moved()
    assert move.state is MoveState.FAILED
    assert await acked(replica, append(replica, [b"b"])) is Durability.FLUSHED
    assert two.names() == ["/data -0"]


async def test_target_without_room_is_refused_before_anything_is_written() -> None:
    """A move must not make its target tight."""
    small = SimDisk(capacity_bytes=MIB)
    small.make_directory("/more")
    small.make_directory("/more/partitions")
    made = Two(empty_disk("/data"), small, limits=SpaceLimits(soft_bytes=MIB, hard_bytes=0, ballast_bytes=0))
    replica = await made.begin()
    await acked(replica, append(replica, [b"a"]))
    move = await made.moved()
    assert move.state is MoveState.FAILED
    assert "reserve" in (move.error or "")
    assert made.names() == ["/data -0"]
    await made.manager.stop()


async def test_removal_of_the_topic_and_the_stop_end_a_move(two: Two) -> None:
    """Whatever stage the move has reached, the log is removed where it is at that time."""
    await two.begin()
    move = two.move()
    two.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
    await two.manager.wait_idle()
    assert move.has_ended
    names = two.names()
    assert [name.rpartition(".")[2] for name in names] == ["removed"]
    assert not any(parse_move_directory_name(name) for name in names)


async def test_moves_are_refused_for_what_is_not_here(two: Two) -> None:
    """No such partition, no such directory, another move under way, or remains of an earlier move."""
    await two.begin()
    with pytest.raises(RefusedError, match="no replica"):
        two.manager.move(TOPIC_ID, 9, SECOND)
    with pytest.raises(RefusedError, match="no log directory"):
        two.manager.move(TOPIC_ID, 0, bytes(16))
    two.second.make_directory(f"/more/partitions/{TOPIC_ID.hex()}-0")
    move = two.move()
    assert two.move() is move
    with pytest.raises(RefusedError, match="is being moved"):
        two.manager.move(TOPIC_ID, 0, FIRST)
    assert move.task is not None
    await move.task
    assert "an earlier move left" in (move.error or "")


async def test_stop_ends_a_copy_and_a_move_that_waits(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends between two pieces. The log is closed where it is, and nothing of the copy is left."""
    replica = await two.begin()
    await acked(replica, append(replica, [b"a"]))
    two.manager.moves = moves = ReplicaMoves(
        two.manager.directories, LogOpening(two.manager.directories), two.manager.note_disk_failure, bytes_per_s=1
    )
    move = two.move()
    await moves.stop()
    assert (move.state, move.error) == (MoveState.FAILED, "it was told to end")
    assert two.names() == ["/data -0"]
    await acked(replica, append(replica, [b"b"]))


async def test_move_of_a_replica_that_fails_meanwhile_ends(two: Two) -> None:
    """There is nothing to switch to for a log that no longer serves, and it cannot be moved then."""
    replica = await two.begin()
    await acked(replica, append(replica, [b"a"]))
    move = two.move()
    replica.fail("a test says so")
    assert move.task is not None
    await move.task
    assert move.error == "the replica serves no more"
    with pytest.raises(RefusedError, match="is not open"):
        two.manager.move(TOPIC_ID, 0, SECOND)


async def test_move_that_never_catches_up_ends(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round leaves more than the one before. The move says so instead of continuing forever."""
    replica = await two.begin()
    await acked(replica, append(replica, [b"a"]))
    monkeypatch.setattr(move_plan, "SWITCH_BYTES", -1)
    move = await two.moved()
    assert move.state is MoveState.FAILED
    assert "faster than the target" in (move.error or "")
    assert two.names() == ["/data -0"]


async def test_log_that_cannot_be_flushed_is_not_switched(two: Two) -> None:
    """A failed sync of the source ends the move, and the partition."""
    replica = await two.begin()
    append(replica, [b"a"])
    two.disk.refuse("sync", ".log", Refusal.IO_ERROR)
    move = await two.moved()
    assert move.state is MoveState.FAILED
    assert not replica.is_writable


async def test_unsettled_partition_is_not_moved_again(two: Two) -> None:
    """The old place could not be cleaned up. Another move waits for a restart, which cleans it up."""
    replica = await two.begin()
    await acked(replica, append(replica, [b"a"]))

    def refuse_to_retire(call: SimCall) -> None:
        if call.operation == "rename" and call.path.endswith("-0"):
            two.disk.refuse("rename", call.path, Refusal.FULL)

    two.disk.on_call = refuse_to_retire
    move = two.move()
    assert move.task is not None
    await move.task
    assert move.state is MoveState.DONE
    assert two.names() == ["/data -0", "/more -0"]
    again = await two.moved(FIRST)
    assert again.state is MoveState.FAILED
    assert "not cleaned up" in (again.error or "")
    await acked(replica, append(replica, [b"b"]))
    await two.manager.stop()
    two.disk.on_call = None
    third = Two(two.disk.fork(), two.second.fork())
    assert values(await third.begin()) == [b"a", b"b"]
    assert third.names() == ["/more -0"]
    await third.manager.stop()
