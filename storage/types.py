# SPDX-License-Identifier: Apache-2.0
"""Values that a log takes and returns, without behaviour.

Bounds: `base_offset` is inclusive; `next_offset` and everything called `end` are exclusive. Values that every append or
read makes are `NamedTuple`s, because a frozen dataclass costs three times as much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lograft.wire.header import BatchHeader

INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The settings of one log; `PartitionLog.apply_settings` replaces them while the log is open.

    Attributes:
        segment_bytes: largest size of a segment. A batch that would exceed it starts a new segment; a single larger
            batch gets a segment of its own.
        segment_ms: a batch whose timestamp is more than this after that of the segment's first batch starts a new
            segment.
        index_interval_bytes: the index has about one entry for this many bytes of log.
        index_bytes: largest size of the entries in one offset or time index file; a full file rolls the segment.
        retention_ms: retention may remove a sealed segment whose newest record is older than this; None: age is no
            reason.
        retention_bytes: retention may remove the oldest sealed segments while the log keeps at least this many bytes;
            None: size is no reason.
        file_delete_delay_ms: how long the renamed files of a removed segment stay on disk.
        compact: True: compaction keeps only the newest record of each key (`storage.compaction`).
        min_compaction_lag_ms: compaction leaves a segment alone while it has a younger record.
        max_compaction_lag_ms: compaction takes a log with an older uncompacted record, whatever its dirty share is.
        min_cleanable_dirty_ratio: compaction takes a log when its share of uncompacted bytes is above this, 0 to 1.
        delete_retention_ms: how long a tombstone stays after all older records of its key are gone.
        max_producers: most producers whose state the log keeps; beyond it the log forgets those that were idle longest.
        verify_first_read: True: the first read of a batch checks its CRC if the batch was written before this opening.
    """

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 3600 * 1000
    index_interval_bytes: int = 4096
    index_bytes: int = 10 * 1024 * 1024
    retention_ms: int | None = None
    retention_bytes: int | None = None
    file_delete_delay_ms: int = 60_000
    compact: bool = False
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    min_cleanable_dirty_ratio: float = 0.5
    delete_retention_ms: int = 24 * 3600 * 1000
    max_producers: int = 100_000
    verify_first_read: bool = True

    def __post_init__(self) -> None:
        assert 1 <= self.segment_bytes <= INT32_MAX, f"segment_bytes {self.segment_bytes}"
        assert self.segment_ms >= 1, f"segment_ms {self.segment_ms}"
        assert self.index_interval_bytes >= 1, f"index_interval_bytes {self.index_interval_bytes}"
        assert self.index_bytes >= 24, f"index_bytes {self.index_bytes}"
        assert self.retention_ms is None or self.retention_ms >= 0, f"retention_ms {self.retention_ms}"
        assert self.retention_bytes is None or self.retention_bytes >= 0, f"retention_bytes {self.retention_bytes}"
        assert self.file_delete_delay_ms >= 0, f"file_delete_delay_ms {self.file_delete_delay_ms}"
        assert self.min_compaction_lag_ms >= 0, f"min_compaction_lag_ms {self.min_compaction_lag_ms}"
        assert self.max_compaction_lag_ms >= 1, f"max_compaction_lag_ms {self.max_compaction_lag_ms}"
        ratio = self.min_cleanable_dirty_ratio
        assert 0 <= ratio <= 1, f"min_cleanable_dirty_ratio {ratio}"
        assert self.delete_retention_ms >= 0, f"delete_retention_ms {self.delete_retention_ms}"
        assert self.max_producers >= 1, f"max_producers {self.max_producers}"


class Appended(NamedTuple):
    """Where a batch is in the log.

    Attributes:
        base_offset: offset of its first record, inclusive.
        next_offset: offset after its last record.
        duplicate: True if the log already holds the batch at these offsets, so that nothing was written.
    """

    base_offset: int
    next_offset: int
    duplicate: bool


class LogRead(NamedTuple):
    """Whole batches as they are on disk.

    Attributes:
        data: the batches; empty at the end of the readable part. The first batch may begin below the requested offset.
        next_offset: offset to read next; larger than the requested one unless `data` is empty.
    """

    data: bytes
    next_offset: int


class HeadersRead(NamedTuple):
    """The headers of whole batches.

    Attributes:
        headers: the headers, in the order of the log; empty at the end of the readable part. The first batch may begin below the
            requested offset.
        next_offset: offset to read next; larger than the requested one unless `headers` is empty.
    """

    headers: list[BatchHeader]
    next_offset: int


class TimestampAndOffset(NamedTuple):
    """A record found by time: its timestamp in milliseconds since 1970, and its offset."""

    timestamp_ms: int
    offset: int


class EpochEnd(NamedTuple):
    """The end of a leader epoch: `epoch` has no record at `end_offset` or beyond (exclusive)."""

    epoch: int
    end_offset: int


class Boundary(NamedTuple):
    """The start of a batch (or the end of the log): its offset and its byte position in the segment file."""

    offset: int
    position: int


class HeadedBatch(NamedTuple):
    """A batch whose header lies apart from its payload: the bytes of the header, what they say, and the payload."""

    head: bytes
    header: BatchHeader
    payload: memoryview


class PlacedBatch(NamedTuple):
    """A batch in a piece of memory that holds several: its position there, and its header."""

    position: int
    header: BatchHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """What the log knew about a sealed segment at one moment.

    Attributes:
        base_offset: its first offset, inclusive.
        end_offset: the offset after its last one.
        size_bytes: size of its log file.
        first_timestamp_ms: largest timestamp of its first batch; None: unknown.
        max_timestamp_ms: its largest timestamp.
        is_damaged: True: a range of the segment is quarantined. Compaction leaves it alone until it is repaired.
        sealed_version: `PartitionLog.sealed_version` at that moment. Under another version, a segment with these offsets
            and this size may have other records.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    first_timestamp_ms: int | None
    max_timestamp_ms: int
    is_damaged: bool = False
    sealed_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedRange:
    """Records that the log cannot serve, and the bytes that remain of them.

    Attributes:
        segment_base_offset: base offset of the segment, which names its file.
        base_offset: first damaged offset, inclusive.
        end_offset: end of the damage, exclusive.
        position: first quarantined byte of the segment file, inclusive.
        end_position: end of the quarantined bytes, exclusive; equal to `position` if the bytes are missing.
    """

    segment_base_offset: int
    base_offset: int
    end_offset: int
    position: int
    end_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What an opening found and did.

    Attributes:
        created: True if the log did not exist.
        clean: True if the last stop was clean; then the opening scanned nothing.
        recovery_point: the flushed offset that the file `recovery-point` held; None if that file was missing or bad.
        scanned_from_offset: first offset whose CRC the opening checked; None if it checked none.
        scanned_bytes: bytes read from segment files.
        cut_offset: offset to which the opening truncated a torn tail; None if there was none.
        cut_bytes: bytes that it truncated, including whole segments.
        undecidable_bytes: those of `cut_bytes` that valid batches followed: the last flush group was torn in its
            middle.
        restarted_offset: offset at which the log restarts empty, because it ended below its log start (its tail was
            removed before it was flushed) or because a restart was interrupted; None: the log did not restart.
        damaged: all known damaged ranges that reach above the log start.
        rebuilt_segments: base offsets of the segments whose indexes were rebuilt.
    """

    created: bool = False
    clean: bool = False
    recovery_point: int | None = None
    scanned_from_offset: int | None = None
    scanned_bytes: int = 0
    cut_offset: int | None = None
    cut_bytes: int = 0
    undecidable_bytes: int = 0
    restarted_offset: int | None = None
    damaged: tuple[DamagedRange, ...] = ()
    rebuilt_segments: tuple[int, ...] = ()
