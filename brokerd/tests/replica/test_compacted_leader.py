# SPDX-License-Identifier: Apache-2.0
"""A follower behind the compaction of its leader: its log ends inside what the leader has merged into one filler."""

from __future__ import annotations

from dataclasses import replace

from lograft.wire.batch import encode_batch, read_header
from lograft.wire.limits import MAX_RECORDS_PER_BATCH

from brokerd.partition.events import LeadershipChanged
from brokerd.partition.replica import PartitionReplica
from brokerd.replica.replica import Replica, ReplicaContext
from brokerd.replica.role_log import RoleLog
from brokerd.tests.leading_replica import FlusherAtOnce
from metaquorum.metadata.topic_configs import FlushPolicy, effective
from storage.compaction.owner import LogCompaction
from storage.compaction.pass_ import CompactionPass
from storage.compaction.plan import find_range
from storage.directory.directories import LogDirectory
from storage.directory.space import SpaceLimits
from storage.testing.builders import SMALL, open_log
from storage.testing.sim_disk import SimDisk

COMPACT = replace(SMALL, segment_bytes=500, compact=True, min_cleanable_dirty_ratio=0.0, delete_retention_ms=0)
"""Settings of a log that is due whenever anything is dirty."""

LATER_MS = 2**45
"""A wall clock at which every record is old."""


def new_disk() -> SimDisk:
    """Return a disk with a log directory."""
    disk = SimDisk()
    disk.make_directory("/data")
    disk.sync_directory("/")
    return disk


def lone_leader(disk: SimDisk) -> Replica:
    """Open a log and lead its partition alone, so that everything is committed at once."""
    log = open_log(disk, "/data/log", COMPACT).log
    core = PartitionReplica(
        node_id=1,
        log_end_offset=log.log_end_offset,
        flushed_offset=log.flush(),
        flush_policy=FlushPolicy.NONE,
        flush_interval_ms=100,
        high_watermark=None,
        last_epoch=log.last_record_epoch,
    )
    replica = Replica(
        topic="t",
        topic_id=b"t" * 16,
        partition=0,
        core=core,
        log=log,
        directory=LogDirectory(disk, "/data", limits=SpaceLimits.from_soft(0)),
        settings=effective({}),
        context=ReplicaContext(
            flusher=FlusherAtOnce(),  # pyright: ignore[reportArgumentType]
            leader_place=lambda topic_id, partition: None,
            on_disk_failed=lambda directory, error: None,
            on_no_room=lambda directory: None,
            roles=RoleLog(),
        ),
    )
    replica.take_event(LeadershipChanged(leader_id=1, leader_epoch=0))
    return replica


def compact(replica: Replica) -> None:
    """Seal the active segment, and make one pass with the real cleaner."""
    log = replica.log
    log.roll(10**15)
    log.flush()
    owner = LogCompaction(log)
    assert owner.rules is not None
    chosen = find_range(owner.facts(log.log_end_offset), owner.rules, LATER_MS)
    assert chosen is not None
    task = owner.begin(chosen, now_ms=LATER_MS, max_keys=MAX_RECORDS_PER_BATCH)
    work = CompactionPass(log.disk, task, lambda size_bytes: None)
    work.build()
    for group in work.groups():
        cleaned = work.clean(group)
        if cleaned is not None:
            assert log.swap(cleaned, now_ms=LATER_MS)
    owner.end(work.outcome())


async def test_follower_behind_a_merged_filler_catches_up() -> None:
    """From every offset at which it may have stopped, its log continues and ends as the leader's."""
    disk = new_disk()
    leader = lone_leader(disk)
    for _ in range(20):
        batch = encode_batch([b"v"], keys=[b"k"], timestamps_ms=1)
        leader.append(memoryview(batch), read_header(batch))
    compact(leader)
    assert leader.log.read(0, 1 << 20).next_offset > 1, "fillers are merged"
    for end_offset in range(1, 20):
        other = new_disk()
        follower = open_log(other, "/data/log", COMPACT).log
        for offset in range(end_offset):
            batch = encode_batch([b"v"], keys=[b"k"], timestamps_ms=1, base_offset=offset)
            follower.append_as_follower(bytes(batch), now_ms=0)
        while follower.log_end_offset < leader.log_end_offset:
            read = leader.read_for_follower(follower.log_end_offset, 400)
            assert read.base_offset == follower.log_end_offset == read_header(read.data).base_offset
            follower.append_as_follower(bytes(read.data), now_ms=0)
            assert follower.log_end_offset == read.next_offset
        follower.close()
        again = open_log(other, "/data/log", COMPACT).log
        assert again.log_end_offset == leader.log_end_offset
        again.close()
    await leader.close("the test ends")
