# SPDX-License-Identifier: Apache-2.0
"""Reads that the streams of a partition's followers share."""

from __future__ import annotations

from pathlib import Path

import pytest
from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.failure import RefusedError, refused
from brokerd.limits import RECENT_READS_BYTES
from brokerd.replica.replication_border import FollowerRead
from brokerd.replication.recent_reads import RecentReads
from brokerd.tests.leading_replica import LeadingReplica
from brokerd.tests.replication.leader_world import leader_world
from brokerd.tests.replication_support import image


class Counting(LeadingReplica):
    """A replica that counts its reads, and may pretend that the batches are large."""

    def __init__(self, directory: Path, *, size_bytes: int | None = None) -> None:
        super().__init__(directory, isr=(1, 2, 3))
        self.read_count = 0
        self._size_bytes = size_bytes

    def read_for_follower(self, offset: int, max_bytes: int) -> FollowerRead:
        self.read_count += 1
        if self._size_bytes is not None:
            body = bytes(self._size_bytes)
            return FollowerRead(data=body, base_offset=offset, next_offset=offset + 1, leader_epoch=5)
        return super().read_for_follower(offset, max_bytes)


async def test_the_same_place_is_read_once(tmp_path: Path) -> None:
    """The second follower gets the read of the first one. Another offset or another replica causes a new read."""
    first, second = Counting(tmp_path / "1"), Counting(tmp_path / "2")
    for replica in (first, second):
        replica.append(b"a")
        replica.append(b"b")
    reads = RecentReads()
    found = reads.read(first, 0, 10**6)
    assert reads.read(first, 0, 10**6) is found
    assert reads.read(second, 0, 10**6) is not found
    assert reads.read(first, 1, 10**6).base_offset == 1
    assert (first.read_count, second.read_count) == (2, 1)
    assert len(reads) == 2
    reads.forget(first)
    reads.forget(first)
    reads.read(first, 1, 10**6)
    assert first.read_count == 3
    for replica in (first, second):
        await replica.close()


async def test_a_failed_read_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller gets the error, and the next caller reads the log again."""
    replica = Counting(tmp_path)
    replica.append(b"a")
    reads = RecentReads()

    def fail(offset: int, max_bytes: int) -> FollowerRead:
        error: RefusedError = refused(ErrorCode.STORAGE_FAILED, f"no bytes at {offset}")
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(replica, "read_for_follower", fail)
        with pytest.raises(RefusedError):
            reads.read(replica, 0, 10**6)
    assert len(reads) == 0
    assert reads.read(replica, 0, 10**6).next_offset == 1
    await replica.close()


async def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    """The oldest reads are dropped first, and a forgotten read frees its space."""
    size_bytes = RECENT_READS_BYTES // 2
    replicas = [Counting(tmp_path / str(number), size_bytes=size_bytes) for number in range(3)]
    reads = RecentReads()
    for replica in replicas:
        reads.read(replica, 0, 1)
    assert (len(reads), reads.size_bytes) == (2, RECENT_READS_BYTES)
    reads.read(replicas[1], 0, 1)
    reads.read(replicas[0], 0, 1)
    assert [replica.read_count for replica in replicas] == [2, 1, 1]
    reads.read(replicas[2], 0, 1)
    assert replicas[2].read_count == 1, "the newest but one stayed"
    reads.forget(replicas[0])
    reads.forget(replicas[2])
    assert reads.size_bytes == 0
    for replica in replicas:
        await replica.close()


async def test_followers_in_sync_share_the_reads(tmp_path: Path) -> None:
    """Each append is read once for both followers. Nothing is kept after the end of the leadership."""
    async with leader_world(tmp_path) as world:
        replica = Counting(tmp_path / "log")
        world.replicas[b"t" * 16, 0] = replica
        streams = [await world.follow(2), await world.follow(3)]
        for stream in streams:
            await stream.subscribe(0)
            await stream.part("accepted")
        for offset in range(5):
            replica.append(b"%d" % offset)
            for stream in streams:
                frame = await stream.batches()
                assert (frame.base_offset, bytes(frame.body)) == (offset, replica.bytes_from(offset))
                await stream.ack(0, offset + 1)
            await replica.until(lambda end=offset + 1: replica.high_watermark == end)
        assert replica.read_count == 5
        assert len(world.leader.reads) == 1
        replica.change(image(leader_id=None, leader_epoch=6, partition_epoch=8))
        assert len(world.leader.reads) == 0
        for stream in streams:
            await stream.ended(0, pb.ROUTE_ERROR_NOT_LEADER)


async def test_nothing_is_kept_for_followers_that_left(tmp_path: Path) -> None:
    """Nothing is kept after an unsubscription or after the end of a stream."""
    async with leader_world(tmp_path) as world:
        replica = world.lead()
        stream = await world.follow(2)
        for route in (0, 1):
            replica.append(b"x")
            await stream.subscribe(route)
            await stream.part("accepted")
            await stream.batches()
            assert len(world.leader.reads) == 1
            if route == 0:
                await stream.send(unsubscriptions=pb.ReplicaUnsubscriptions(routes=[0]))
            else:
                stream.end()
            await replica.until(lambda count=route + 1: len(replica.lost) == count)
            assert len(world.leader.reads) == 0
