# SPDX-License-Identifier: Apache-2.0
"""The files that a look-up reads, and look-ups with unusual headers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lograft.wire.batch import read_batches
from lograft.wire.filler import encode_filler

from storage.files.names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, offset_file_name
from storage.segment.scan import HEADER_CHUNK_BYTES, BadBatch, find_batch
from storage.testing.builders import SMALL, append, open_log, read_all
from storage.testing.sim_disk import SimDisk, SimFile
from storage.types import Boundary

LOG = "/log"
FIRST = f"{LOG}/{offset_file_name(0, '.log')}"


class NotingDisk(SimDisk):
    """A simulated disk that notes which whole files are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_names: list[str] = []

    def read_file(self, path: str) -> bytes:
        """See `Disk.read_file`."""
        self.read_names.append(path.rpartition("/")[2])
        return super().read_file(path)


@pytest.fixture
def disk() -> NotingDisk:
    """A disk with one log of forty batches of three records in many segments, closed cleanly."""
    made = NotingDisk()
    log = open_log(made, LOG).log
    for number in range(40):
        append(log, [b"x" * 20] * 3, timestamp_ms=1_000 + number)
    assert log.segment_count == 6
    log.close()
    return made


def one_segment(disk: SimDisk, value_bytes: int = 20, count: int = 12) -> tuple[SimFile, list[Boundary], int]:
    """Write batches of one record to one segment; return its file, the start of each batch, and the end."""
    log = open_log(disk, LOG, replace(SMALL, segment_bytes=10**8)).log
    for _ in range(count):
        append(log, [bytes(value_bytes)])
    log.flush()
    file = disk.open_file(FIRST)
    starts: list[Boundary] = []
    position = 0
    for batch in read_all(log, max_bytes=10**7):
        starts.append(Boundary(batch.header.base_offset, position))
        position += batch.header.size_bytes
    return file, starts, position


@pytest.mark.parametrize("value_bytes", [20, 3_000, HEADER_CHUNK_BYTES + 5])
def test_each_offset_is_found_from_each_batch_below(value_bytes: int) -> None:
    """With many batches, a few, or not even one in one read of headers."""
    file, starts, end_position = one_segment(SimDisk(), value_bytes)
    for first, floor in enumerate(starts):
        for wanted in starts[first:]:
            assert find_batch(file, floor=floor, end_position=end_position, offset=wanted.offset) == wanted


def test_look_up_beyond_the_bytes_is_refused() -> None:
    """The segment should contain the offset, but the file ends before it."""
    file, starts, end_position = one_segment(SimDisk())
    with pytest.raises(BadBatch, match="ends before"):
        find_batch(file, floor=starts[0], end_position=end_position, offset=12)
    with pytest.raises(BadBatch, match="ends before"):
        find_batch(file, floor=starts[5], end_position=starts[4].position, offset=8)
    with pytest.raises(BadBatch, match="no header"):
        find_batch(file, floor=starts[0], end_position=starts[3].position + 5, offset=3)


# In the fourth batch: base offset, batch length, magic, last offset delta, record count.
@pytest.mark.parametrize("at", [7, 8, 10, 16, 23, 26, 57, 60])
def test_damaged_header_on_the_way_is_refused(at: int) -> None:
    """Each field that locates batches."""
    disk = SimDisk()
    file, starts, end_position = one_segment(disk)
    place = starts[3].position + at
    disk.corrupt(FIRST, place, bytes([disk.read_file(FIRST)[place] ^ 0x41]))
    assert find_batch(file, floor=starts[0], end_position=end_position, offset=2) == starts[2]
    with pytest.raises(BadBatch):
        find_batch(file, floor=starts[0], end_position=end_position, offset=8)


def test_fillers_on_the_way_are_passed() -> None:
    """A filler has offsets and no records: its CRC is checked, and the search continues behind it."""
    disk = SimDisk()
    _, starts, _ = one_segment(disk)
    content = disk.read_file(FIRST)
    third = next(iter(read_batches(content[starts[3].position : starts[4].position]))).header
    filler = encode_filler(base_offset=3, leader_epoch=third.leader_epoch, last_offset_delta=0)
    whole = content[: starts[3].position] + filler + content[starts[4].position :]
    changed = disk.create_file("/compacted")
    changed.append([whole])
    shift = len(filler) - (starts[4].position - starts[3].position)
    wanted = Boundary(9, starts[9].position + shift)
    assert find_batch(changed, floor=starts[0], end_position=len(whole), offset=9) == wanted
    assert find_batch(changed, floor=starts[0], end_position=len(whole), offset=3) == starts[3]


def test_look_up_by_offset_reads_one_index_file(disk: NotingDisk) -> None:
    """Only a look-up by time reads the time index of a sealed segment; the offset index is not read again."""
    log = open_log(disk, LOG).log
    segment = log.segments[1]
    index = offset_file_name(segment.base_offset, INDEX_SUFFIX)
    time_index = offset_file_name(segment.base_offset, TIME_INDEX_SUFFIX)
    disk.read_names.clear()
    assert log.read(segment.base_offset + 4, 1).next_offset == segment.base_offset + 6
    assert log.read(segment.base_offset + 7, 1).next_offset == segment.base_offset + 9
    assert disk.read_names == [index]
    segment.load_index(SMALL.index_interval_bytes)
    assert disk.read_names == [index, time_index]
    segment.close()
    assert log.read(segment.base_offset + 4, 1).next_offset == segment.base_offset + 6
    assert disk.read_names == [index, time_index, index]


@pytest.mark.parametrize("suffix", [INDEX_SUFFIX, TIME_INDEX_SUFFIX])
def test_lost_index_file_is_built_anew_by_a_look_up(disk: NotingDisk, suffix: str) -> None:
    """For either of the two files, and either kind of look-up first."""
    log = open_log(disk, LOG).log
    segment = log.segments[1]
    disk.remove(f"{LOG}/{offset_file_name(segment.base_offset, suffix)}")
    offset = segment.base_offset + 4
    assert log.read(offset, 1).next_offset == segment.base_offset + 6
    found = log.find_timestamp(1_000 + offset // 3, end_offset=log.log_end_offset)
    assert found is not None
    assert found.offset == segment.base_offset + 3


def test_first_batch_is_returned_even_if_it_is_larger(disk: NotingDisk) -> None:
    """At any offset, with any limit below the size of a batch."""
    log = open_log(disk, LOG).log
    for max_bytes in (0, 1, 60, 61, 100):
        for offset in range(log.log_end_offset):
            assert log.read(offset, max_bytes).next_offset == offset // 3 * 3 + 3


def test_every_timestamp_is_found_at_its_first_record(disk: NotingDisk) -> None:
    """The search begins at the last batch that is known to be earlier."""
    log = open_log(disk, LOG).log
    for number in range(40):
        found = log.find_timestamp(1_000 + number, end_offset=log.log_end_offset)
        assert found is not None
        assert found.offset == 3 * number
    assert log.find_timestamp(1_040, end_offset=log.log_end_offset) is None
