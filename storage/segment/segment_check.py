# SPDX-License-Identifier: Apache-2.0
"""Verifies a whole segment, batch by batch with CRCs, and reports where the bytes are not what they must be.

The scrub of a log in use and the tools that judge a copy use it. The caller decides what to do with bad bytes. The
pieces come in the order of the file, and cover every offset that the segment must hold.
Source: docs/storage_format.md, sections 2.1 and 6.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lograft.wire.header import BatchHeader

from storage.files.disk import File
from storage.types import Boundary, DamagedRange

from .scan import BadBatch, Walk, find_valid_after


class CheckedBatch(NamedTuple):
    """A whole batch at a position: its CRC matches, and it continues the batch before."""

    position: int
    header: BatchHeader


class PassedDamage(NamedTuple):
    """A damaged range that was known before; its bytes were not read."""

    damaged: DamagedRange


class BadBytes(NamedTuple):
    """Bytes that are not the expected batches.

    Attributes:
        start: the first missing offset, and its position (inclusive).
        end: where whole batches continue (exclusive). Equal positions: the bytes are missing.
        reason: what is wrong with the first batch.
        has_following: True if batches or known damage of the segment follow.
    """

    start: Boundary
    end: Boundary
    reason: str
    has_following: bool


class TrailingBytes(NamedTuple):
    """Bytes behind the segment's last record that belong to no record: [position, end_position)."""

    position: int
    end_position: int


Piece = CheckedBatch | PassedDamage | BadBytes | TrailingBytes


def check_segment(
    file: File,
    *,
    base_offset: int,
    end_offset: int | None,
    required_end: int,
    size_bytes: int,
    known: Sequence[DamagedRange],
    keeps_end: bool = False,
) -> Iterator[Piece]:
    """Yield the pieces of a segment, ascending.

    Args:
        file: its log file.
        base_offset: its first offset.
        end_offset: offset where it must end, exclusive; None if only the walk can tell.
        required_end: offset up to which it must have records (`end_offset`, if that is known).
        size_bytes: bytes of the file to judge.
        known: damaged ranges of the segment, ascending; they are skipped.
        keeps_end: True if the segment is in use: a batch that reaches beyond its end does not belong to it. False: the
            caller judges that.

    Raises:
        DiskReadError: the device failed to return the bytes.
    """
    at = Boundary(base_offset, 0)
    while True:
        damaged = next((each for each in known if each.base_offset >= at.offset), None)
        stop = Boundary(damaged.base_offset, damaged.position) if damaged is not None else None
        end_position = stop.position if stop is not None else size_bytes
        last_offset = stop.offset if stop is not None else end_offset
        reason = None
        try:
            for position, header in Walk(file, start=at, end_position=end_position, verify_from_offset=base_offset):
                if keeps_end and last_offset is not None and header.next_offset > last_offset:
                    # No batch of this log does, whatever its CRC says.
                    reason = "the batch reaches into what follows"
                    break
                at = Boundary(header.next_offset, position + header.size_bytes)
                yield CheckedBatch(position, header)
        except BadBatch as bad:
            reason = bad.reason
        if reason is not None and at.offset == last_offset:
            if at.position < end_position:
                yield TrailingBytes(at.position, end_position)
            if damaged is None:
                return
            yield PassedDamage(damaged)
            at = Boundary(damaged.end_offset, damaged.end_position)
            continue
        # The file may have been truncated before known damage.
        limit = stop if stop is not None else Boundary(max(required_end, at.offset), max(size_bytes, at.position))
        if reason is not None:
            following = find_valid_after(
                file, bad=at, end_position=end_position, end_offset=end_offset if stop is None else stop.offset
            )
            yield BadBytes(at, following or limit, reason, following is not None or stop is not None)
            at = following or limit
            if following is not None:
                continue
        elif at.offset < limit.offset:
            yield BadBytes(at, limit, "the bytes of these offsets are missing", stop is not None)
        if damaged is None:
            return
        yield PassedDamage(damaged)
        at = Boundary(damaged.end_offset, damaged.end_position)
