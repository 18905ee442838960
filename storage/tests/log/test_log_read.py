# SPDX-License-Identifier: Apache-2.0
"""Reads by offset and by time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lograft.wire.batch import RecordBatch, check_batch, encode_batch
from lograft.wire.header import iter_batches
from lograft.wire.limits import MAX_BATCH_BYTES

from storage.errors import DataLossError, DiskReadError, LogClosedError, OffsetOutOfRangeError
from storage.log.partition_log import PartitionLog
from storage.log.reader import CURSORS, HEADERS_MAX
from storage.segment.scan import HEADER_CHUNK_BYTES
from storage.segment.segment_set import MAX_OPEN_SEALED_SEGMENTS
from storage.testing.builders import SMALL, append, open_log, read_all, read_values
from storage.testing.sim_disk import Refusal, SimDisk, SimFile
from storage.types import LogRead, TimestampAndOffset


@pytest.fixture
def filled(log: PartitionLog) -> PartitionLog:
    """Return a log of 60 batches of 3 records in many segments."""
    for number in range(60):
        append(log, [b"%d" % (number * 3 + n) for n in range(3)], timestamp_ms=10_000 + number * 10)
    assert log.segment_count == 5
    return log


def test_every_offset_is_found_in_its_batch(filled: PartitionLog) -> None:
    """A read at any offset begins with the batch that holds it, whatever the order of reads."""
    for offset in (*range(180), *range(179, -1, -7)):
        chunk = filled.read(offset, 1)
        batch = RecordBatch(chunk.data)
        assert batch.base_offset == offset // 3 * 3
        assert chunk.next_offset == batch.next_offset
        assert batch.values()[offset - batch.base_offset] == b"%d" % offset


@pytest.mark.parametrize("max_bytes", [1, 150, 400, 10**6])
def test_chunks_join_and_keep_the_limit(filled: PartitionLog, max_bytes: int) -> None:
    """Chunks of whole batches cover the log without gap or overlap, and exceed the limit by no more than one batch."""
    assert read_values(filled, max_bytes=max_bytes) == [b"%d" % n for n in range(180)]
    offset = 0
    while offset < 180:
        chunk = filled.read(offset, max_bytes)
        assert len(chunk.data) <= max_bytes or RecordBatch(chunk.data).header.size_bytes == len(chunk.data)
        offset = chunk.next_offset


def test_chunks_are_as_large_as_the_limit_allows(disk: SimDisk) -> None:
    """One batch more would exceed the limit (or the segment ends)."""
    log = open_log(disk, "/data/log", replace(SMALL, segment_bytes=10**6)).log
    for number in range(100):
        append(log, [b"x" * (number % 7)])
    batches = read_all(log, max_bytes=10**6)
    for max_bytes in (200, 333, 1_000, 2_500):
        offset = 0
        while offset < 100:
            chunk = log.read(offset, max_bytes)
            following = batches[chunk.next_offset].header.size_bytes if chunk.next_offset < 100 else 10**9
            assert len(chunk.data) + following > max_bytes
            offset = chunk.next_offset


def test_nothing_at_or_beyond_the_end_offset_is_returned(filled: PartitionLog) -> None:
    """No batch that reaches beyond the end offset is returned, even if it begins below."""
    for end_offset in range(181):
        values = [value for batch in read_all(filled, end_offset=end_offset) for value in batch.values()]
        assert values == [b"%d" % n for n in range(end_offset // 3 * 3)]
    assert filled.read(30, 10**6, end_offset=20) == LogRead(b"", 30)
    assert filled.read(180, 100, end_offset=10**9) == LogRead(b"", 180)


@pytest.mark.parametrize("max_bytes", [1, 150, 400, 10**6])
def test_headers_are_those_of_the_batches(disk: SimDisk, filled: PartitionLog, max_bytes: int) -> None:
    """From any offset, up to any end, of bytes of this opening and of an earlier one: the same batches, and the same end."""
    filled.close()
    reopened = open_log(disk, filled.directory).log
    for log in (reopened, reopened):
        for offset, end_offset in ((0, 180), (31, 180), (30, 20), (3, 100), (59, 61), (180, 180)):
            read = log.read(offset, max_bytes, end_offset=end_offset)
            found = log.read_headers(offset, max_bytes, end_offset=end_offset)
            assert found.headers == [header for _, header in iter_batches(read.data)]
            assert found.next_offset == read.next_offset


def test_read_of_a_thread_returns_the_same_bytes(filled: PartitionLog) -> None:
    """Within a segment, from any batch to the end of any other: what `read` returns, and nothing for what is not whole batches."""
    ends = [segment.end_offset for segment in filled.segments]
    for offset in range(0, 180, 3):
        for end_offset in range(offset + 1, 181):
            work = filled.begin_read(offset, end_offset=end_offset)
            is_one_segment = end_offset <= next(end for end in ends if end > offset)
            assert (work is not None) == (end_offset % 3 == 0 and is_one_segment), (offset, end_offset)
            if work is not None:
                assert work.run() == filled.read(offset, 10**6, end_offset=end_offset).data
    assert filled.begin_read(30, end_offset=30) is None
    assert filled.begin_read(170, end_offset=190) is None
    with pytest.raises(OffsetOutOfRangeError):
        filled.begin_read(190, end_offset=200)


def test_read_of_a_thread_is_left_to_read_where_bytes_are_to_be_checked(disk: SimDisk, filled: PartitionLog) -> None:
    """Bytes of an earlier opening once; damage for good, as long as the log has any."""
    filled.close()
    log = open_log(disk, filled.directory).log
    assert log.begin_read(0, end_offset=9) is None
    data = log.read(0, 10**6, end_offset=9).data
    work = log.begin_read(0, end_offset=9)
    assert work is not None
    assert work.run() == data
    disk.corrupt(log.segments[1].path, 70, b"\xff\xff")
    first_offset = log.segments[1].base_offset
    with pytest.raises(DataLossError):
        log.read(first_offset, 10**6)
    assert log.begin_read(0, end_offset=9) is None


def test_read_of_a_thread_finds_nothing_in_a_log_that_has_changed(filled: PartitionLog) -> None:
    """The file was truncated or closed after the read began: the read returns nothing instead of outdated bytes."""
    work = filled.begin_read(177, end_offset=180)
    assert work is not None
    filled.truncate_suffix(177)
    assert work.run() is None
    other = filled.begin_read(0, end_offset=3)
    assert other is not None
    filled.close()
    assert other.run() is None
    with pytest.raises(LogClosedError):
        filled.begin_read(0, end_offset=3)


def test_headers_of_one_call_are_bounded(disk: SimDisk) -> None:
    """However small the batches are, and however many bytes are asked for."""
    log = open_log(disk, "/data/log", replace(SMALL, segment_bytes=10**9)).log
    for _ in range(HEADERS_MAX + 1):
        append(log, [b"x"])
    assert log.read_headers(0, 10**9).next_offset == HEADERS_MAX
    assert len(log.read_headers(HEADERS_MAX, 10**9).headers) == 1


def test_headers_of_large_batches_are_read_alone(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes between are not read again."""
    log = open_log(disk, "/data/log", replace(SMALL, segment_bytes=10**9)).log
    for _ in range(20):
        append(log, [bytes(100_000)])
    sizes: list[int] = []
    pread = SimFile.pread

    def counted(file: SimFile, size_bytes: int, position: int) -> bytes:
        sizes.append(size_bytes)
        return pread(file, size_bytes, position)

    monkeypatch.setattr(SimFile, "pread", counted)
    assert len(log.read_headers(0, 10**9).headers) == 20
    assert sum(sizes) <= 21 * HEADER_CHUNK_BYTES, "the look-up and 20 headers"


def test_headers_of_damaged_bytes_are_refused(disk: SimDisk, filled: PartitionLog) -> None:
    """Bytes of an earlier opening are checked the first time, as in a read."""
    filled.close()
    path = filled.segments[0].path
    disk.corrupt(path, disk.size_bytes(path) - 1, b"\xff")
    log = open_log(disk, filled.directory).log
    (damaged,) = _refused_headers(log)
    assert log.damaged[0].base_offset == damaged
    assert log.read_headers(log.damaged[0].end_offset, 1).headers


def _refused_headers(log: PartitionLog) -> list[int]:
    """Return the offsets at which headers are refused, going on behind each."""
    refused: list[int] = []
    offset = 0
    while offset < log.log_end_offset:
        try:
            offset = log.read_headers(offset, 10**6).next_offset
        except DataLossError as error:
            refused.append(offset)
            offset = error.end_offset
    return refused


def test_offsets_outside_the_log_are_refused(filled: PartitionLog) -> None:
    """Below the start and above the end the error names the readable range; at the end the read returns nothing."""
    for offset in (-1, 181):
        with pytest.raises(OffsetOutOfRangeError) as caught:
            filled.read(offset, 100)
        assert (caught.value.log_start_offset, caught.value.log_end_offset) == (0, 180)
    assert filled.read(180, 100) == LogRead(b"", 180)


def test_tail_reader_gets_what_is_appended(log: PartitionLog) -> None:
    """A reader at the end finds each new batch where it stopped, across rolls."""
    offset = 0
    for number in range(40):
        append(log, [b"%d" % number])
        chunk = log.read(offset, 10**6)
        assert RecordBatch(chunk.data).values() == [b"%d" % number]
        offset = chunk.next_offset
        assert log.read(offset, 10**6).data == b""


def test_remembered_positions_and_open_segments_are_bounded(filled: PartitionLog) -> None:
    """Memory and descriptors stay small, however many readers there are."""
    filled.flush()
    for offset in range(180):
        filled.read(offset, 1)
    assert len(filled._reader._cursors) <= CURSORS
    assert sum(segment.is_open for segment in filled._segments) <= MAX_OPEN_SEALED_SEGMENTS + 1


def test_unflushed_segments_stay_open(filled: PartitionLog) -> None:
    """The descriptor that wrote data stays open until it is synced, because only it reports the write error."""
    for offset in range(180):
        filled.read(offset, 1)
    assert all(segment.is_open for segment in filled._segments)


def test_read_error_is_typed_and_leaves_the_log_usable(disk: SimDisk, filled: PartitionLog) -> None:
    """If the device cannot return bytes, `DiskReadError` is raised; other reads and appends continue."""
    disk.refuse("pread", ".log", Refusal.IO_ERROR)
    with pytest.raises(DiskReadError):
        filled.read(0, 100)
    assert filled.read(0, 1).next_offset == 3
    append(filled, [b"more"], timestamp_ms=20_000)


def test_find_timestamp_is_the_first_record_so_late(filled: PartitionLog) -> None:
    """For every timestamp the lowest offset with that time or a later one is found."""
    for timestamp_ms in range(9_990, 10_600):
        number = max(0, -(-(timestamp_ms - 10_000) // 10))
        expected = TimestampAndOffset(10_000 + number * 10, number * 3) if number < 60 else None
        assert filled.find_timestamp(timestamp_ms, end_offset=180) == expected


def test_find_timestamp_looks_into_batches_and_compressed_ones(disk: SimDisk) -> None:
    """Inside a batch the first matching record counts, whatever the order of timestamps."""
    from lograft.wire.compression import Codec

    log = open_log(disk, "/data/log").log
    for codec in (Codec.NONE, Codec.ZSTD):
        batch = encode_batch([b"a", b"b", b"c"], timestamps_ms=[50, 300, 200], codec=codec)
        log.append_as_leader(batch, check_batch(batch, max_bytes=MAX_BATCH_BYTES), leader_epoch=0, now_ms=0)
    assert log.find_timestamp(0, end_offset=6) == TimestampAndOffset(50, 0)
    assert log.find_timestamp(60, end_offset=6) == TimestampAndOffset(300, 1)
    assert log.find_timestamp(300, end_offset=6) == TimestampAndOffset(300, 1)
    assert log.find_timestamp(301, end_offset=6) is None


def test_find_timestamp_with_timestamps_that_go_back(log: PartitionLog) -> None:
    """Records out of time order hide nothing: the lowest offset that is late enough is found."""
    times = [500, 100, 400, 900, 200, 800, 950, 300] * 6
    for timestamp_ms in times:
        append(log, [b"x"], timestamp_ms=timestamp_ms)
    for wanted_ms in range(0, 1_000, 50):
        slot = next((slot for slot, time in enumerate(times) if time >= wanted_ms), None)
        expected = None if slot is None else TimestampAndOffset(times[slot], slot)
        assert log.find_timestamp(wanted_ms, end_offset=len(times)) == expected


def test_find_timestamp_passes_over_control_batches_and_the_end_offset(log: PartitionLog) -> None:
    """Control records are not user records, and records beyond the end offset do not count."""
    append(log, [b"leader change"], timestamp_ms=900, control=True)
    append(log, [b"a"], timestamp_ms=500)
    append(log, [b"b"], timestamp_ms=900)
    assert log.find_timestamp(600, end_offset=3) == TimestampAndOffset(900, 2)
    assert log.find_timestamp(600, end_offset=2) is None
    assert log.find_timestamp(0, end_offset=1) is None
    assert log.find_timestamp(0, end_offset=0) is None


def test_empty_log(log: PartitionLog) -> None:
    """A new log can be read, searched, flushed and truncated."""
    assert log.read(0, 100) == LogRead(b"", 0)
    assert log.find_timestamp(0, end_offset=100) is None
    assert log.flush() == 0
    assert log.begin_flush() is None
    assert log.truncate_suffix(0) == 0
    assert log.end_offset_for_epoch(0) is None
    assert (log.log_start_offset, log.log_end_offset, log.flushed_offset, log.last_epoch) == (0, 0, 0, None)
    assert log.directory == "/data/log"
