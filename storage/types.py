# SPDX-License-Identifier: Apache-2.0
"""Values that a log takes and gives. Nothing here does anything.

Bounds: `base_offset` is inclusive, `next_offset` and everything called `end` is exclusive. `NamedTuple` is used where
one is made for every append or read (a frozen dataclass costs three times as much).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lograft.wire.header import BatchHeader

INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """How one log is kept; may be replaced while the log is open (`PartitionLog.apply_settings`).

    Attributes:
        segment_bytes: a batch that would make the active segment larger than this begins a new one (a single larger
            batch still gets a segment of its own).
        segment_ms: a batch whose timestamp is more than this after that of the segment's first batch begins a new one.
        index_interval_bytes: about one index entry for so many bytes of log.
        index_bytes: most bytes of entries in one offset or time index file; a full one rolls the segment.
        retention_ms: a sealed segment whose newest record is older than this may go; None keeps it whatever its age.
        retention_bytes: the oldest sealed segments may go while the log keeps at least so much; None: no such bound.
        file_delete_delay_ms: how long the files of a removed segment stay, renamed.
        compact: of the records with one key only the newest stays (`storage.compaction`).
        min_compaction_lag_ms: a segment with a younger record is not compacted yet.
        max_compaction_lag_ms: a log with an older record that was not compacted yet is compacted whatever its dirty share is.
        min_cleanable_dirty_ratio: share of bytes not compacted yet above which a log is compacted, 0 to 1.
        delete_retention_ms: how long a tombstone stays after everything older of its key is gone.
        max_producers: producers whose idempotence window is kept; beyond it those idle longest are forgotten.
        verify_first_read: check the CRC of batches written before this open the first time they are read.
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
    """Where a batch stands in the log.

    Attributes:
        base_offset: offset of its first record, inclusive.
        next_offset: offset after its last record.
        duplicate: True if nothing was written because the batch is in the log already, at these offsets.
    """

    base_offset: int
    next_offset: int
    duplicate: bool


class LogRead(NamedTuple):
    """Whole batches as they stand on disk.

    Attributes:
        data: the batches; empty at the end of what may be read. The first may begin below the offset asked for.
        next_offset: offset to read next; larger than the one asked for unless `data` is empty.
    """

    data: bytes
    next_offset: int


class TimestampAndOffset(NamedTuple):
    """A record found by time: its timestamp in milliseconds and its offset."""

    timestamp_ms: int
    offset: int


class EpochEnd(NamedTuple):
    """The end of a leader epoch: no record of `epoch` stands at `end_offset` or beyond (exclusive)."""

    epoch: int
    end_offset: int


class Boundary(NamedTuple):
    """The start of a batch (or the end of the log): its offset and its byte position in the segment file."""

    offset: int
    position: int


class PlacedBatch(NamedTuple):
    """A batch among others in one piece of memory: where it starts there, and its header."""

    position: int
    header: BatchHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """What is known of a sealed segment, as it was when it was looked at.

    Attributes:
        base_offset: its first offset, inclusive.
        end_offset: offset after it.
        size_bytes: bytes of its log file.
        first_timestamp_ms: largest timestamp of its first batch; None: not known.
        max_timestamp_ms: its largest timestamp.
        is_damaged: a range of it is quarantined; it is left alone until it is repaired.
        restart_count: how often its log had begun anew; after one more time, its offsets and size say nothing.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    first_timestamp_ms: int | None
    max_timestamp_ms: int
    is_damaged: bool = False
    restart_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedRange:
    """Records that cannot be served, and the bytes that hold what is left of them.

    Attributes:
        segment_base_offset: names the segment file.
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
    """What opening a log found and did.

    Attributes:
        created: the log did not exist.
        clean: the last stop was clean; nothing was scanned.
        recovery_point: flushed offset that the log knew from before; None if the file that holds it was missing or bad.
        scanned_from_offset: first offset whose CRC was checked; None if none was.
        scanned_bytes: bytes read from segment files.
        cut_offset: the log was cut back to this offset because of a torn tail; None if it was not.
        cut_bytes: bytes cut, whole segments included.
        undecidable_bytes: of these, bytes followed by valid batches: the last flush group was torn in its middle.
        restarted_offset: the log begins again, empty, at this offset: it ended below its log start (the tail was never flushed,
            and had been removed), or a restart was interrupted; None if not.
        damaged: all ranges known to be damaged now, as far as they reach above the log start.
        rebuilt_segments: base offsets of segments whose indexes were rebuilt.
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
