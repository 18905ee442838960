# SPDX-License-Identifier: Apache-2.0
"""One segment: the batches from one base offset on, in one `.log` file, with its indexes.

A sealed segment opens its file and loads its indexes at first use, and can drop both (`close`). All look-ups return
batch boundaries that were seen in the log itself. Where the log is not what it must be, the segment raises `BadBatch`.
`rebuild` then finds the damaged range, so that everything around it is served.

The owner, not the segment, decides when to roll, flush or truncate. Source: Kafka, LogSegment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from storage.errors import CorruptLogError
from storage.files.disk import Buffer, Disk, File
from storage.files.names import INDEX_SUFFIX, LOG_SUFFIX, SEAL_SUFFIX, TIME_INDEX_SUFFIX, offset_file_name
from storage.types import INT32_MAX, Boundary, DamagedRange, LogSettings, PlacedBatch

from .damage import DamagedRanges
from .offset_index import OffsetIndex
from .rebuild import RebuildPlan, Rebuilt, SegmentRebuild
from .scan import Walk, find_batch
from .segment_index import SegmentIndex


class Segment:
    """One segment of a log.

    Attributes:
        base_offset: offset of its first record, inclusive; names its files.
        end_offset: offset after its last record.
        size_bytes: bytes of its log file that hold batches.
        unverified_bytes: below this position, the file was written before this opening and its CRCs may be unchecked.
        created_ms: the caller's clock when it was created or opened.
        cut_count: number of truncations; after one, bytes below its size may have changed.
        written_ms: the caller's clock at the last append, or at its creation or opening.
    """

    __slots__ = (
        "_damage",
        "_directory",
        "_disk",
        "_file",
        "_has_stray_bytes",
        "_index",
        "_may_rest",
        "_offsets",
        "_verified",
        "base_offset",
        "created_ms",
        "cut_count",
        "end_offset",
        "size_bytes",
        "unverified_bytes",
        "written_ms",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        damage: DamagedRanges,
        *,
        base_offset: int,
        end_offset: int,
        size_bytes: int,
        created_ms: int,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._damage = damage
        self._file: File | None = None
        self._index: SegmentIndex | None = None
        self._offsets: OffsetIndex | None = None
        self._may_rest = False
        self._verified = range(0)
        self._has_stray_bytes = False
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.size_bytes = size_bytes
        self.unverified_bytes = size_bytes
        self.created_ms = created_ms
        self.cut_count = 0
        self.written_ms = created_ms

    @classmethod
    def create(cls, disk: Disk, directory: str, damage: DamagedRanges, *, base_offset: int, created_ms: int) -> Segment:
        """Create the file of a new, empty segment; the caller syncs the directory."""
        segment = cls(
            disk,
            directory,
            damage,
            base_offset=base_offset,
            end_offset=base_offset,
            size_bytes=0,
            created_ms=created_ms,
        )
        segment._file = disk.create_file(segment.path)
        segment._index = SegmentIndex(base_offset)
        return segment

    @property
    def damage(self) -> DamagedRanges:
        """The damaged ranges of the log."""
        return self._damage

    @property
    def path(self) -> str:
        """Path of the log file."""
        return f"{self._directory}/{offset_file_name(self.base_offset, LOG_SUFFIX)}"

    @property
    def file(self) -> File:
        """The log file, opened at first use."""
        if self._file is None:
            self._file = self._disk.open_file(self.path)
        return self._file

    @property
    def is_open(self) -> bool:
        """True from the first use of the file to `close`; the file budget may still close the descriptor in between."""
        return self._file is not None

    def load_index(self, interval_bytes: int) -> SegmentIndex:
        """Return the indexes: from memory, from their files, or from a walk over the log."""
        if self._index is None:
            self._index = SegmentIndex.load(
                self._disk,
                self._directory,
                base_offset=self.base_offset,
                log_bytes=self.size_bytes,
                end_offset=self.end_offset,
                offsets=self._offsets,
            )
            self._offsets = None
            self._may_rest = self._index is not None
            if self._index is None or (self._file is not None and self._file.size < self.size_bytes):
                self.reindex(interval_bytes)
        assert self._index is not None, self.path
        return self._index

    def load_offsets(self, interval_bytes: int) -> OffsetIndex:
        """Return the offset index alone, like `load_index`; a look-up by offset reads no other index file."""
        if self._index is not None:
            return self._index.offsets
        if self._offsets is None:
            self._offsets = SegmentIndex.load_offsets(
                self._disk,
                self._directory,
                base_offset=self.base_offset,
                log_bytes=self.size_bytes,
                end_offset=self.end_offset,
            )
            if self._offsets is None or (self._file is not None and self._file.size < self.size_bytes):
                return self.reindex(interval_bytes).index.offsets
        return self._offsets

    def rest(self) -> None:
        """Drop indexes that were read from their files, until the next use; to be called before any append.

        They would be a sixth of the memory of an idle log. Rebuilt indexes stay, because no file has them.
        """
        if self._may_rest:
            self._index = None

    @property
    def is_index_saved(self) -> bool:
        """True if the index files match the indexes in memory, or nothing is indexed; valid until the next append."""
        return self._index is None or self._may_rest or self._index.first_timestamp_ms is None

    def save_index(self) -> None:
        """Write the index files without a sync, at a roll or a clean close."""
        if self._index is not None:
            self._index.save(self._disk, self._directory, log_bytes=self.size_bytes, end_offset=self.end_offset)

    def must_roll(
        self, *, last_offset: int, size_bytes: int, max_timestamp_ms: int, now_ms: int, settings: LogSettings
    ) -> bool:
        """Tell whether a batch must start a new segment. An empty segment never rolls.

        Reasons: size; age; a full index; an offset that no index entry can hold. The age is the batch's largest
        timestamp minus that of the segment's first batch, or the time since creation if that batch has no timestamp.

        Source: Kafka, LogSegment.shouldRoll.
        """
        log_bytes = self.size_bytes
        if log_bytes == 0:
            return False
        if log_bytes + size_bytes > settings.segment_bytes or last_offset - self.base_offset > INT32_MAX:
            return True
        index = self._index or self.load_index(settings.index_interval_bytes)
        first_ms = index.first_timestamp_ms
        if first_ms is None or first_ms < 0:
            age_ms = now_ms - self.created_ms
        else:
            age_ms = max_timestamp_ms - first_ms
        return age_ms > settings.segment_ms or index.is_full(settings.index_bytes)

    def count_fitting(self, placed: Sequence[PlacedBatch], settings: LogSettings) -> int:
        """Return how many batches of a run fit into this segment; the first one fits (`must_roll` has said so)."""
        index = self._index or self.load_index(settings.index_interval_bytes)
        first_ms = (
            index.first_timestamp_ms if index.first_timestamp_ms is not None else placed[0].header.max_timestamp_ms
        )
        log_bytes = self.size_bytes
        for count, (_, header) in enumerate(placed):
            log_bytes += header.size_bytes
            if count > 0 and (
                log_bytes > settings.segment_bytes
                or header.max_timestamp_ms - first_ms > settings.segment_ms
                or header.last_offset - self.base_offset > INT32_MAX
            ):
                return count
        return len(placed)

    def append(
        self,
        parts: Sequence[Buffer],
        *,
        base_offset: int,
        next_offset: int,
        size_bytes: int,
        max_timestamp_ms: int,
        interval_bytes: int,
    ) -> None:
        """Append one batch, given in parts.

        Raises:
            DiskFullError: nothing changed.
            DiskFailedError: the disk is failed for good.
        """
        self.append_bytes(parts)
        self.note_batch(
            base_offset=base_offset,
            next_offset=next_offset,
            size_bytes=size_bytes,
            max_timestamp_ms=max_timestamp_ms,
            interval_bytes=interval_bytes,
        )

    def append_bytes(self, parts: Sequence[Buffer]) -> None:
        """Write bytes at the end of the file; `note_batch` then adds their batches.

        Raises:
            CorruptLogError: the file does not end where the segment does, because another process wrote to it.
        """
        file = self.file
        if file.size > self.size_bytes and self._has_stray_bytes:
            # The segment was walked to its end; the bytes behind it belong to no record.
            file.truncate(self.size_bytes)
            file.sync()
            self._has_stray_bytes = False
        if file.size != self.size_bytes:
            raise CorruptLogError(self.path, f"the file has {file.size} bytes, its batches end at {self.size_bytes}")
        file.append(parts)

    def note_batch(
        self, *, base_offset: int, next_offset: int, size_bytes: int, max_timestamp_ms: int, interval_bytes: int
    ) -> None:
        """Add a batch whose bytes were appended to the file at `size_bytes` of this segment."""
        # `must_roll` has loaded dropped indexes; those of an empty segment are made without the disk.
        index = self._index or self.load_index(interval_bytes)
        position = self.size_bytes
        index.note_batch(
            base_offset=base_offset,
            position=position,
            size_bytes=size_bytes,
            max_timestamp_ms=max_timestamp_ms,
            interval_bytes=interval_bytes,
        )
        self.size_bytes = position + size_bytes
        self.end_offset = next_offset

    def locate(self, offset: int, interval_bytes: int) -> Boundary:
        """Return the start of the batch that contains an undamaged offset; at or beyond the segment's end, that end.

        Raises:
            BadBatch: a batch on the way is not the expected one; `rebuild` and try again.
        """
        if offset >= self.end_offset:
            return Boundary(self.end_offset, self.size_bytes)
        floor = self.load_offsets(interval_bytes).floor_offset(offset)
        return find_batch(self.file, floor=floor, end_position=self.size_bytes, offset=offset)

    def boundary_within(self, start: Boundary, limit_position: int, interval_bytes: int) -> Boundary:
        """Return the last batch boundary at or below a position, at least the end of the batch at `start`.

        There must be no damage in between.

        Raises:
            BadBatch: as in `locate`.
        """
        end = self.load_offsets(interval_bytes).floor_position(limit_position)
        if end.position < start.position:
            end = start
        for position, header in Walk(self.file, start=end, end_position=self.size_bytes):
            next_position = position + header.size_bytes
            if next_position > limit_position and position > start.position:
                break
            end = Boundary(header.next_offset, next_position)
            if next_position >= limit_position:
                break
        return end

    def damages(self) -> list[DamagedRange]:
        """Return the known damaged ranges of this segment, ascending."""
        return self._damage.of_segment(self.base_offset)

    def spans(self, start: Boundary) -> Iterator[tuple[Boundary, int]]:
        """Yield (first batch, end position) of each run of batches without damage, from `start` on."""
        for damaged in self.damages():
            if damaged.base_offset >= start.offset:
                if damaged.base_offset > start.offset:
                    # There is no batch between two ranges that touch, whatever the bytes are; the file may have been
                    # truncated.
                    yield start, damaged.position
                start = Boundary(damaged.end_offset, damaged.end_position)
        yield start, self.size_bytes

    def is_verified(self, position: int, end_position: int) -> bool:
        """Tell whether this process has checked or computed the CRCs of these bytes."""
        if position >= self.unverified_bytes:
            return True
        verified = self._verified
        return verified.start <= position and min(end_position, self.unverified_bytes) <= verified.stop

    def mark_verified(self, position: int, end_position: int) -> None:
        """Note that CRCs were checked; only one growing interval is remembered."""
        verified = self._verified
        if verified.start <= position <= verified.stop:
            self._verified = range(verified.start, max(verified.stop, end_position))
        else:
            self._verified = range(position, end_position)

    def rebuild(self, plan: RebuildPlan) -> Rebuilt:
        """Walk all batches; replace the indexes, add new damage, and in recovery set a new end.

        New damage is added to the log's damaged ranges in memory; the caller saves them.
        """
        size_bytes = min(self.size_bytes, self.file.size)
        walk = SegmentRebuild(
            self.file, base_offset=self.base_offset, size_bytes=size_bytes, known=self.damages(), plan=plan
        )
        rebuilt = walk.run()
        for damaged in rebuilt.damaged:
            self._damage.add(damaged)
        for known, position in rebuilt.widened:
            self._damage.widen(known, position)
        self._index = rebuilt.index
        self._offsets = None
        self._may_rest = False
        self.size_bytes = rebuilt.end.position
        self.end_offset = rebuilt.end.offset
        self._has_stray_bytes = self.size_bytes < size_bytes
        return rebuilt

    def reindex(self, interval_bytes: int) -> Rebuilt:
        """Rebuild the indexes of a segment in use: its end stays, and bad bytes become damage."""
        plan = RebuildPlan(
            interval_bytes=interval_bytes,
            end_offset=self.end_offset,
            judge=lambda bad, following: True,
            visit=lambda header: None,
        )
        return self.rebuild(plan)

    def truncate(self, end: Boundary, interval_bytes: int) -> None:
        """Truncate the file at a batch boundary, sync it, and rebuild the indexes.

        The sync comes before the next append; otherwise old bytes could reappear behind new ones.

        Raises:
            DiskFailedError: the disk is failed for good.
        """
        file = self.file
        if file.size > end.position:
            file.truncate(end.position)
            file.sync()
        self.cut_count += 1
        self.size_bytes = end.position
        self.end_offset = end.offset
        self.unverified_bytes = min(self.unverified_bytes, end.position)
        self._verified = range(min(self._verified.start, end.position), min(self._verified.stop, end.position))
        self.reindex(interval_bytes)

    def file_names(self) -> list[str]:
        """Return the paths of the files that this segment may have; the log file last."""
        suffixes = (SEAL_SUFFIX, TIME_INDEX_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX)
        return [f"{self._directory}/{offset_file_name(self.base_offset, suffix)}" for suffix in suffixes]

    def close(self) -> None:
        """Close the file and drop the indexes; the next use opens them again."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._index = None
        self._offsets = None
