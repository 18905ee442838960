# SPDX-License-Identifier: Apache-2.0
"""A log of compacted batches and fillers: append, read, look up, reopen, truncate, damage."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from lograft.wire.batch import encode_batch, read_batches
from lograft.wire.checksum import crc32c
from lograft.wire.errors import InvalidBatchError
from lograft.wire.filler import encode_filler
from lograft.wire.header import CRC_START, read_header, write_header

from storage.errors import DataLossError
from storage.log.partition_log import PartitionLog
from storage.testing.builders import SMALL, open_log, read_all, read_values
from storage.testing.sim_disk import Crash, SimDisk
from storage.types import TimestampAndOffset

LOG = "/data/log"
SETTINGS = replace(SMALL, segment_bytes=700, index_interval_bytes=100)


def with_end(batch: bytearray, last_offset_delta: int) -> bytearray:
    """Return a batch without its last records."""
    header = read_header(batch)._replace(last_offset_delta=last_offset_delta)
    write_header(batch, header)
    write_header(batch, header._replace(crc=crc32c(memoryview(batch)[CRC_START:])))
    return batch


def compacted_batches() -> list[bytearray]:
    """Ten rounds of 20 offsets: a whole batch, a filler, a batch with gaps, a filler of a producer."""
    batches: list[bytearray] = []
    for number in range(10):
        base, epoch = 20 * number, number // 3
        batches += [
            encode_batch([b"%d" % base, b"%d" % (base + 1)], timestamps_ms=base, base_offset=base, leader_epoch=epoch),
            encode_filler(base_offset=base + 2, last_offset_delta=7, leader_epoch=epoch),
            with_end(
                encode_batch(
                    [b"%d" % (base + 11)],
                    offset_deltas=[1],
                    timestamps_ms=base + 11,
                    base_offset=base + 10,
                    leader_epoch=epoch,
                ),
                4,
            ),
            encode_filler(
                base_offset=base + 15,
                last_offset_delta=4,
                leader_epoch=epoch,
                timestamp_ms=base + 15,
                producer_id=1,
                producer_epoch=0,
                base_sequence=5 * number,
            ),
        ]
    return batches


EXPECTED = [b"%d" % offset for number in range(10) for offset in (20 * number, 20 * number + 1, 20 * number + 11)]


def filled(disk: SimDisk) -> PartitionLog:
    """Return a follower's log of compacted batches."""
    disk.make_directory("/data")
    log = open_log(disk, LOG, SETTINGS).log
    for batch in compacted_batches():
        log.append_as_follower(batch, now_ms=0)
    return log


def check(log: PartitionLog) -> None:
    """Check that every offset is covered, every remaining record is read, and a look-up by time skips fillers."""
    assert log.log_end_offset == 200
    assert log.damaged == ()
    assert read_values(log) == EXPECTED
    for offset in range(200):
        batch = next(read_batches(log.read(offset, 1).data))
        assert batch.base_offset <= offset < batch.next_offset
        assert log.epoch_at(offset) == offset // 20 // 3
    assert log.find_timestamp(45, end_offset=200) == TimestampAndOffset(51, 51)
    assert log.find_timestamp(15, end_offset=200) == TimestampAndOffset(20, 20)
    assert log.find_timestamp(192, end_offset=200) is None


def test_fillers_are_appended_read_and_looked_up() -> None:
    """A log of fillers and batches with gaps serves the remaining records, from any offset."""
    check(filled(SimDisk()))


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("keep_indexes", [True, False])
def test_fillers_survive_a_reopen(flushed: bool, keep_indexes: bool) -> None:
    """Recovery walks over fillers, with or without their indexes, and reports no damage."""
    disk = SimDisk()
    log = filled(disk)
    if flushed:
        log.flush()
    disk.crash(Crash.KEEP_ALL, random.Random(0))
    for name in disk.list_directory(LOG):
        if not keep_indexes and name.endswith((".index", ".timeindex", ".snapshot", "checkpoint")):
            disk.remove(f"{LOG}/{name}")
    opened = open_log(disk, LOG, SETTINGS)
    assert opened.report.cut_offset is None
    check(opened.log)
    opened.log.close()
    again = open_log(disk, LOG, SETTINGS)
    assert again.report.clean
    check(again.log)


def test_a_filler_is_the_memory_of_its_producer() -> None:
    """A batch that compaction emptied is still a duplicate after an opening without caches."""
    disk = SimDisk()
    filled(disk)
    disk.crash(Crash.KEEP_ALL, random.Random(0))
    for name in disk.list_directory(LOG):
        if name.endswith(".snapshot"):
            disk.remove(f"{LOG}/{name}")
    log = open_log(disk, LOG, SETTINGS).log
    again = encode_batch([b"x"] * 5, producer_id=1, producer_epoch=0, base_sequence=45)
    appended = log.append_as_leader(again, read_header(again), leader_epoch=9, now_ms=0)
    assert (appended.base_offset, appended.next_offset, appended.duplicate) == (195, 200, True)


def test_a_log_is_cut_before_a_filler() -> None:
    """A truncation into a filler drops the whole filler, like any batch."""
    log = filled(SimDisk())
    assert log.truncate_suffix(25) == 22
    assert read_all(log)[-1].next_offset == 22
    log.append_as_follower(encode_batch([b"new"], base_offset=22, leader_epoch=8), now_ms=0)
    assert read_values(log)[-1] == b"new"


def test_a_damaged_filler_is_quarantined_alone() -> None:
    """A flipped bit in a filler costs exactly its offsets."""
    disk = SimDisk()
    log = filled(disk)
    log.flush()
    log.close()
    first = log.directory + f"/{0:020d}.log"
    position = read_header(disk.read_file(first)).size_bytes + 30
    disk.corrupt(first, position, b"\xff")
    log = open_log(disk, LOG, SETTINGS).log
    with pytest.raises(DataLossError) as caught:
        log.read(5, 1_000)
    assert (caught.value.base_offset, caught.value.end_offset) == (2, 10)
    assert next(read_batches(log.read(10, 1_000).data)).values() == [b"11"]


def test_followers_refuse_a_filler_that_covers_nothing() -> None:
    """A filler with a negative last offset delta is refused."""
    log = filled(SimDisk())
    filler = encode_filler(base_offset=200, last_offset_delta=0, leader_epoch=3)
    write_header(filler, read_header(filler)._replace(last_offset_delta=-1))
    with pytest.raises(InvalidBatchError, match="last offset delta -1"):
        log.append_as_follower(filler, now_ms=0)
