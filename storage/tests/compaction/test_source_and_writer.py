# SPDX-License-Identifier: Apache-2.0
"""Reads of verified batches of a segment, and writes of the segment that replaces a group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from lograft.wire.batch import RecordBatch, encode_batch, read_header
from lograft.wire.header import CRC_START, HEADER_BYTES, write_header

from storage.compaction.group_writer import PIECES_FROM_BYTES, GroupWriter
from storage.compaction.rewrite import rewrite_batch
from storage.compaction.source import LARGE_BATCH_BYTES, READ_BYTES, read_segment
from storage.errors import CorruptLogError, FileMissingError
from storage.files.names import SwapFile, parse_swap_file_name, swap_file_name
from storage.testing.sim_disk import SimDisk
from storage.types import SegmentFacts

DIRECTORY = "/log"
PATH = f"{DIRECTORY}/{0:020d}.log"
SIZES = [10, READ_BYTES - 500, 3 * READ_BYTES, 10, 10, READ_BYTES // 2, READ_BYTES, 1]


def batch(number: int, size_bytes: int = 10) -> bytes:
    return bytes(encode_batch([b"%d" % (number % 10) * size_bytes], base_offset=number))


def segment_of(disk: SimDisk, content: bytes, *, end_offset: int, size_bytes: int | None = None) -> SegmentFacts:
    if not disk.exists(DIRECTORY):
        disk.make_directory(DIRECTORY)
    file = disk.create_file(PATH)
    file.append([content])
    file.close()
    return SegmentFacts(
        base_offset=0,
        end_offset=end_offset,
        size_bytes=len(content) if size_bytes is None else size_bytes,
        first_timestamp_ms=None,
        max_timestamp_ms=0,
    )


def test_batches_of_any_size_are_read_whole() -> None:
    """Batches that end anywhere in a read, and larger ones, are returned whole; the rate limit counts every byte."""
    disk = SimDisk()
    batches = [batch(number, size_bytes) for number, size_bytes in enumerate(SIZES)]
    segment = segment_of(disk, b"".join(batches), end_offset=len(SIZES))
    paced: list[int] = []
    found = [(header, bytes(data)) for header, data in read_segment(disk, DIRECTORY, segment, paced.append)]
    assert [data for _, data in found] == batches
    assert [header for header, _ in found] == [read_header(each) for each in batches]
    assert sum(paced) >= segment.size_bytes


@pytest.mark.parametrize("wanted", [set(), {0}, {2, 3}, {1, 4, 7}, {5, 6}, {*range(len(SIZES))}])
def test_a_batch_that_nobody_wants_is_passed_over(wanted: set[int]) -> None:
    """Only its header is returned. Of a large unwanted batch behind a large one nothing else is read, and none is checked."""
    disk = SimDisk()
    batches = [batch(number, size_bytes) for number, size_bytes in enumerate(SIZES)]
    content = b"".join(each if number in wanted else flipped(each) for number, each in enumerate(batches))
    segment = segment_of(disk, content, end_offset=len(SIZES))
    paced: list[int] = []
    read = read_segment(disk, DIRECTORY, segment, paced.append, lambda header: header.base_offset in wanted)
    found = [(header, bytes(data)) for header, data in read]
    assert [header for header, _ in found] == [read_header(each) for each in batches]
    assert [data for _, data in found] == [each if number in wanted else b"" for number, each in enumerate(batches)]
    if not wanted:
        assert sum(paced) < segment.size_bytes / 2


def test_no_byte_of_large_batches_is_read_twice_but_for_headers() -> None:
    """The next header comes with the batch before it."""
    disk = SimDisk()
    batches = [batch(number, 4 * LARGE_BATCH_BYTES) for number in range(9)]
    segment = segment_of(disk, b"".join(batches), end_offset=9)
    paced: list[int] = []
    assert len(list(read_segment(disk, DIRECTORY, segment, paced.append))) == 9
    first_read_again = READ_BYTES % len(batches[0])
    assert sum(paced) <= segment.size_bytes + first_read_again + 9 * HEADER_BYTES


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


BAD: dict[str, tuple[Callable[[], bytes], int | None, str]] = {
    "a wrong offset": (lambda: batch(0) + batch(2), None, "offset 1 at byte 78: base offset 2"),
    "a flipped bit": (lambda: batch(0) + flipped(batch(1)), None, "offset 1 at byte 78: the CRC does not match"),
    "a short file": (lambda: batch(0) + batch(1), 200, "the file ends after 156 more bytes"),
    "a few bytes": (lambda: batch(0) + batch(1) + bytes(20), None, "offset 2 at byte 156: 20 bytes are no batch"),
    "a batch too few": (lambda: batch(0), None, "the batches end here, the segment at offset 2"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_bytes_end_the_read(name: str) -> None:
    """Compaction never relies on unverified bytes."""
    make, size_bytes, message = BAD[name]
    disk = SimDisk()
    segment = segment_of(disk, make(), end_offset=2, size_bytes=size_bytes)
    with pytest.raises(CorruptLogError, match=message):
        list(read_segment(disk, DIRECTORY, segment, lambda size: None))


def test_a_flipped_bit_in_a_large_batch_is_found_too() -> None:
    """A batch with a read of its own is verified like any other."""
    disk = SimDisk()
    segment = segment_of(disk, batch(0) + flipped(batch(1, 2 * READ_BYTES)), end_offset=2)
    with pytest.raises(CorruptLogError, match="the CRC does not match"):
        list(read_segment(disk, DIRECTORY, segment, lambda size: None))


def test_a_segment_that_went_is_told() -> None:
    """Retention may remove a segment before a pass reads it."""
    disk = SimDisk()
    segment = segment_of(disk, batch(0), end_offset=1)
    disk.remove(PATH)
    with pytest.raises(FileMissingError):
        list(read_segment(disk, DIRECTORY, segment, lambda size: None))


def test_a_large_group_is_written_in_pieces_and_paced() -> None:
    """The file has exactly the batches that were put, from the copied start to the last one; the rate limit counts all of it."""
    disk = SimDisk()
    batches = [batch(number, size_bytes) for number, size_bytes in enumerate(SIZES)]
    segment = segment_of(disk, b"".join(batches), end_offset=len(SIZES))
    paced: list[int] = []
    writer = GroupWriter(disk, DIRECTORY, (segment,), interval_bytes=4096, pace=paced.append)
    changed = 5
    for number, each in enumerate(batches):
        writer.put(batch(number, 7) if number == changed else each, is_unchanged=number != changed)
    cleaned = writer.finish()
    assert cleaned is not None
    expected = b"".join([*batches[:changed], batch(changed, 7), *batches[changed + 1 :]])
    assert disk.read_file(cleaned.path) == expected
    assert cleaned.size_bytes == len(expected)
    copied_bytes = sum(map(len, batches[:changed]))
    assert sum(paced) == len(expected) + copied_bytes
    assert cleaned.index.offsets.floor_offset(4).offset > 0


@pytest.mark.parametrize("value_bytes", [10, 2 * PIECES_FROM_BYTES])
def test_a_batch_in_pieces_is_written_whole(value_bytes: int) -> None:
    """Small batches are joined first, large ones are written in pieces."""
    disk = SimDisk()
    segment = segment_of(disk, batch(0, value_bytes), end_offset=1)
    encoded = encode_batch([b"x" * value_bytes, b"y"])
    expected = bytearray(encoded)
    payload = RecordBatch(expected).payload
    rewritten = rewrite_batch(read_header(expected), payload, bytearray([1, 0]), delete_horizon_ms=None)
    assert rewritten is not None
    writer = GroupWriter(
        disk, DIRECTORY, (replace(segment, end_offset=2),), interval_bytes=4096, pace=lambda size: None
    )
    writer.put(rewritten, is_unchanged=False)
    cleaned = writer.finish()
    assert cleaned is not None
    written = disk.read_file(cleaned.path)
    assert written == rewritten.join()
    assert RecordBatch(written).values() == [b"x" * value_bytes]
    assert len(written) == cleaned.size_bytes


def test_a_writer_that_is_discarded_before_it_wrote_does_nothing() -> None:
    """A pass may fail at its first read."""
    disk = SimDisk()
    segment = segment_of(disk, batch(0), end_offset=1)
    disk.calls.clear()
    GroupWriter(disk, DIRECTORY, (segment,), interval_bytes=4096, pace=lambda size: None).discard()
    assert disk.calls == []


def test_a_hole_cannot_be_written() -> None:
    """A group covers every offset: a gap is a bug of the caller, and nothing is written."""
    disk = SimDisk()
    segment = segment_of(disk, batch(0) + batch(1), end_offset=2)
    writer = GroupWriter(disk, DIRECTORY, (segment,), interval_bytes=4096, pace=lambda size: None)
    with pytest.raises(AssertionError, match="a batch at 1, not 0"):
        writer.put(batch(1), is_unchanged=True)
    writer.put(batch(0), is_unchanged=True)
    with pytest.raises(AssertionError, match="ends at 1, not at 2"):
        writer.finish()


def test_swap_names_are_read_back() -> None:
    """Only names made by `swap_file_name` are parsed."""
    swap = SwapFile(5, 2**62)
    assert parse_swap_file_name(swap_file_name(swap)) == swap
    for name in ("x.swap", "1-2.swap", swap_file_name(swap) + ".tmp", f"{5:020d}.log"):
        assert parse_swap_file_name(name) is None


def test_a_crc_is_of_what_is_read() -> None:
    """The helper of these tests makes valid batches."""
    damaged = bytearray(batch(0))
    write_header(damaged, read_header(damaged)._replace(crc=0))
    assert len(damaged) > CRC_START
