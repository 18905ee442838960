# SPDX-License-Identifier: Apache-2.0
"""Reads the batches of a sealed segment and checks each CRC.

Law: compaction never relies on unverified bytes. A damaged key would remove a good record, and damaged bytes would get
a matching CRC. The first bad batch ends the read with an error; the scrub or a reader quarantines it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lograft.wire.checksum import crc32c
from lograft.wire.header import CRC_START, BatchHeader, read_header
from lograft.wire.limits import HEADER_BYTES

from storage.errors import CorruptLogError
from storage.files.descriptor_cache import disk_under
from storage.files.disk import Disk, File
from storage.files.names import LOG_SUFFIX, offset_file_name
from storage.segment.scan import header_fault
from storage.types import Boundary, SegmentFacts

READ_BYTES = 1024 * 1024
"""Most bytes of one read; a larger batch is read alone."""

LARGE_BATCH_BYTES = 64 * 1024
"""After a batch of at least this size the next one is read alone, its header first. An unwanted batch is then skipped, and a wanted
one is still in the processor's cache when it is used."""

_SLACK_SHARE = 8
"""A read has room for whole batches of the last one's size and for this share (one in this many) of one more. A somewhat larger
batch is then not cut off and read twice."""

Pace = Callable[[int], None]
"""Called with a number of bytes before they are read or written; waits as long as the rate limit requires."""


def _every_batch(_header: BatchHeader) -> bool:
    return True


def log_path(directory: str, base_offset: int) -> str:
    """Return the path of a segment's log file."""
    return f"{directory}/{offset_file_name(base_offset, LOG_SUFFIX)}"


def read_segment(
    disk: Disk,
    directory: str,
    segment: SegmentFacts,
    pace: Pace,
    is_wanted: Callable[[BatchHeader], bool] = _every_batch,
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield (header, bytes) of each batch of a segment without damage, as `read_span` does.

    Args:
        disk: the disk of the log.
        directory: the directory of the log.
        segment: the segment.
        pace: see `Pace`.
        is_wanted: as in `read_span`.

    Raises:
        FileMissingError: the segment was removed in the meantime.
    """
    path = log_path(directory, segment.base_offset)
    # This descriptor stays open: the path could name another file later.
    file = disk_under(disk).open_file(path)
    try:
        start, end = Boundary(segment.base_offset, 0), Boundary(segment.end_offset, segment.size_bytes)
        yield from read_span(file, start, end, pace, is_wanted)
    finally:
        file.close()


def read_span(
    file: File,
    start: Boundary,
    end: Boundary,
    pace: Pace,
    is_wanted: Callable[[BatchHeader], bool] = _every_batch,
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield (header, bytes) of each batch between two boundaries of a segment file, with no damage between them.

    Args:
        file: the segment's log file.
        start: the first batch.
        end: end of the last batch.
        pace: see `Pace`.
        is_wanted: tells from a header whether the batch is needed. An unwanted batch is not checked, and an empty view
            is yielded for it.

    Raises:
        CorruptLogError: the bytes are not the next batch.
        DiskReadError, DiskAccessError, TooManyOpenFilesError: the disk.
    """
    path = file.path
    offset, position, wanted_bytes = start.offset, start.position, READ_BYTES
    cut_off: tuple[bytes, BatchHeader] | None = None
    while position < end.position:
        size_bytes = min(wanted_bytes, end.position - position)
        pace(size_bytes)
        view = memoryview(file.pread(size_bytes, position))
        if len(view) < size_bytes:
            raise _bad(path, offset, position, f"the file ends after {len(view)} more bytes")
        at = 0
        while len(view) - at >= HEADER_BYTES:
            # A cut-off batch was judged before; that still holds if its header is the same.
            if cut_off is not None and bytes(view[at : at + HEADER_BYTES]) == cut_off[0]:
                header, is_needed = cut_off[1], True
            else:
                header = read_header(view, at)
                room_bytes = end.position - position - at
                fault = header_fault(header, expected_offset=offset, room_bytes=room_bytes)
                if fault is not None:
                    raise _bad(path, offset, position + at, fault)
                is_needed = is_wanted(header)
            batch_bytes = header.size_bytes
            wanted_bytes = _read_bytes_after(batch_bytes)
            if not is_needed:
                yield header, view[:0]
            elif batch_bytes > len(view) - at:
                # Read the header behind it too, which tells whether the next batch is wanted.
                wanted_bytes = max(wanted_bytes, batch_bytes + HEADER_BYTES)
                cut_off = bytes(view[at : at + HEADER_BYTES]), header
                break
            else:
                batch = view[at : at + batch_bytes]
                if crc32c(batch[CRC_START:]) != header.crc:
                    raise _bad(path, offset, position + at, "the CRC does not match")
                yield header, batch
            at += batch_bytes
            offset = header.next_offset
        if at == 0 and size_bytes >= min(wanted_bytes, end.position - position):
            raise _bad(path, offset, position, f"{size_bytes} bytes are no batch")
        position += at
    if offset != end.offset:
        raise _bad(path, offset, position, f"the batches end here, the segment at offset {end.offset}")


def _read_bytes_after(batch_bytes: int) -> int:
    """Return the size of the next read after a batch of this size, so that no batch is read twice."""
    if batch_bytes >= LARGE_BATCH_BYTES:
        return HEADER_BYTES
    return min(READ_BYTES, READ_BYTES // batch_bytes * batch_bytes + batch_bytes // _SLACK_SHARE)


def _bad(path: str, offset: int, position: int, reason: str) -> CorruptLogError:
    return CorruptLogError(path, f"offset {offset} at byte {position}: {reason}; not compacted before it is repaired")
