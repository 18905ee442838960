# SPDX-License-Identifier: Apache-2.0
"""Judges one log from a copy of its directory, by every law of docs/storage_format.md that can be checked without a server.

It judges bad bytes as recovery does. Below the recovery point, or before good batches, they are damage. A torn tail is
what a crash leaves, and only a note. Known damage is skipped. Nothing is changed, and nothing outside the directory is
read.
Source: docs/storage_format.md; `storage.log.recovery_walk` for the judgement.
"""

from __future__ import annotations

from typing import NamedTuple, assert_never

from lograft.wire.header import BatchHeader, read_header
from lograft.wire.limits import HEADER_BYTES, MAGIC

from storage.files.disk import File
from storage.files.names import DAMAGE_FILE, PARTITION_FILE, RECOVERY_POINT_FILE, PartitionIdentity
from storage.inspect.files import InspectedFile
from storage.inspect.findings import LogReport, Severity
from storage.inspect.log_files import LogFiles, SegmentFile, load_log_files
from storage.inspect.record_judges import EpochJudge, judge_content
from storage.inspect.segment_caches import SegmentCaches
from storage.inspect.snapshot_check import SnapshotCheck
from storage.segment.scan import shows_unwritten_sector
from storage.segment.segment_check import BadBytes, CheckedBatch, PassedDamage, TrailingBytes, check_segment
from storage.types import Boundary, DamagedRange


def check_log(path: str, *, expected: PartitionIdentity | None = None) -> LogReport:
    """Judge the log in a directory.

    Args:
        path: the directory.
        expected: the partition in the directory's name; None if the name has none.

    Raises:
        FileMissingError, DiskAccessError, DiskReadError: a file cannot be read.
    """
    report = LogReport(path=path)
    files = load_log_files(path, report)
    _check_identity(files, expected, report)
    if files.segments:
        _LogCheck(files, report).run()
    else:
        _check_empty(files, report)
    return report


def _check_identity(files: LogFiles, expected: PartitionIdentity | None, report: LogReport) -> None:
    if expected is None:
        return
    if files.identity is None:
        if files.segments and PARTITION_FILE not in files.sizes:
            report.add(
                Severity.LAW, PARTITION_FILE, "it is missing: only the directory's name says which partition this is"
            )
    elif files.identity != expected:
        found = f"topic {files.identity.topic_id.hex()}, partition {files.identity.partition}"
        report.add(Severity.LAW, PARTITION_FILE, f"it says {found}, the directory's name does not")


def _check_empty(files: LogFiles, report: LogReport) -> None:
    """Judge a directory without segments: a log that was never written, or one that has lost all its files."""
    start, flushed = files.log_start_offset, files.flushed_offset
    report.log_start_offset = report.log_end_offset = start
    if flushed > start:
        report.add(
            Severity.DAMAGE,
            RECOVERY_POINT_FILE,
            f"all segments are missing, the log was flushed up to {flushed}",
            start=Boundary(start, 0),
            end=Boundary(flushed, 0),
        )


class _Span(NamedTuple):
    """A segment and its required end (exclusive); None for the last one, whose end only its batches show."""

    segment: SegmentFile
    end_offset: int | None
    has_later: bool


class _LogCheck:
    """One check of a log with segments; `run` once."""

    def __init__(self, files: LogFiles, report: LogReport) -> None:
        self._files = files
        self._report = report
        report.is_clean = files.is_clean
        self._epochs = EpochJudge(files.epochs, believed_below=files.flushed_offset, report=report)
        self._snapshots = SnapshotCheck(files, report)
        self._at = Boundary(files.segments[0].base_offset, 0)

    def run(self) -> None:
        files, report = self._files, self._report
        first = files.segments[0]
        report.log_start_offset = max(files.log_start_offset, 0)
        if files.log_start_offset < first.base_offset:
            report.add(
                Severity.DAMAGE,
                first.name,
                "the log begins before its first segment: the segments before it are missing",
                start=Boundary(files.log_start_offset, 0),
                end=Boundary(first.base_offset, 0),
            )
        self._check_known()
        for slot, segment in enumerate(files.segments):
            later = files.segments[slot + 1 :]
            span = _Span(segment, later[0].base_offset if later else None, any(each.size_bytes for each in later))
            if not self._check_segment(span):
                break
        self._epochs.finish()
        report.log_end_offset = self._at.offset
        self._snapshots.finish(self._at.offset)
        self._check_end()

    def _check_known(self) -> None:
        """Note the recorded damage; it must be in existing segments."""
        sizes = {segment.base_offset: segment.size_bytes for segment in self._files.segments}
        for damaged in self._files.known:
            start, end = (
                Boundary(damaged.base_offset, damaged.position),
                Boundary(damaged.end_offset, damaged.end_position),
            )
            size_bytes = sizes.get(damaged.segment_base_offset)
            if size_bytes is None:
                message = f"the range belongs to segment {damaged.segment_base_offset}, which is not there: forgotten"
                self._report.add(Severity.NOTE, DAMAGE_FILE, message, start=start, end=end)
            elif damaged.end_position > size_bytes:
                message = f"the range reaches beyond the {size_bytes} bytes of its segment"
                self._report.add(Severity.LAW, DAMAGE_FILE, message, start=start, end=end)
            else:
                self._report.add(Severity.NOTE, DAMAGE_FILE, "known damage, out of service", start=start, end=end)

    def _check_segment(self, span: _Span) -> bool:
        """Judge one segment; False if the next opening truncates the log in it."""
        file = InspectedFile(f"{self._files.path}/{span.segment.name}")
        try:
            return self._walk(span, file)
        finally:
            file.close()

    def _walk(self, span: _Span, file: File) -> bool:
        segment, report = span.segment, self._report
        self._at = Boundary(segment.base_offset, 0)
        caches = SegmentCaches(self._files, segment, file, report)
        report.segment_count += 1
        report.verified_bytes += segment.size_bytes
        goes_on = True
        for piece in check_segment(
            file,
            base_offset=segment.base_offset,
            end_offset=span.end_offset,
            required_end=self._files.flushed_offset if span.end_offset is None else span.end_offset,
            size_bytes=segment.size_bytes,
            known=[known for known in self._files.known if known.segment_base_offset == segment.base_offset],
        ):
            match piece:
                case CheckedBatch(position, header):
                    self._take_batch(segment, file, position, header, caches)
                case PassedDamage(damaged):
                    self._take_opaque(damaged, caches)
                case TrailingBytes(position, end_position):
                    start, end = Boundary(self._at.offset, position), Boundary(self._at.offset, end_position)
                    report.add(Severity.LAW, segment.name, "bytes behind the last record", start=start, end=end)
                case BadBytes():
                    goes_on = self._take_bad(span, file, piece, caches)
                    if not goes_on:
                        break
                case _:
                    assert_never(piece)
        caches.finish(self._at)
        if span.end_offset is not None and self._at.offset > span.end_offset:
            message = (
                f"it reaches to {self._at.offset}, the next segment begins at {span.end_offset}: the log does not open"
            )
            report.add(Severity.LAW, segment.name, message, start=Boundary(span.end_offset, 0), end=self._at)
        return goes_on

    def _take_batch(
        self, segment: SegmentFile, file: File, position: int, header: BatchHeader, caches: SegmentCaches
    ) -> None:
        end_position = position + header.size_bytes
        self._at = Boundary(header.next_offset, end_position)
        self._report.batch_count += 1
        self._report.record_count += header.record_count
        self._snapshots.batch(header)
        caches.batch(position, header)
        if not self._epochs.batch(segment.name, position, header):
            caches.explain(position, end_position)
        judge_content(segment.name, position, header, file.pread(header.size_bytes, position), self._report)

    def _take_opaque(self, damaged: DamagedRange, caches: SegmentCaches) -> None:
        start, end = Boundary(damaged.base_offset, damaged.position), Boundary(damaged.end_offset, damaged.end_position)
        self._snapshots.opaque(start.offset, end.offset)
        caches.opaque(start, end)
        self._at = end

    def _take_bad(self, span: _Span, file: File, bad: BadBytes, caches: SegmentCaches) -> bool:
        """Choose between damage and a torn tail; False if the log ends here."""
        report, name = self._report, span.segment.name
        if self._is_damage(span, file, bad):
            self._snapshots.opaque(bad.start.offset, bad.end.offset)
            severity = Severity.DAMAGE if bad.end.offset > self._files.log_start_offset else Severity.NOTE
            report.add(severity, name, f"records are damaged: {bad.reason}", start=bad.start, end=bad.end)
            caches.opaque(bad.start, bad.end)
            self._at = bad.end
            return True
        end = Boundary(bad.start.offset, span.segment.size_bytes)
        what = "torn flush group" if bad.has_following or span.has_later else "torn tail"
        message = f"{what}: {bad.reason}; cut here when the log is opened"
        report.add(Severity.NOTE, name, message, start=bad.start, end=end)
        caches.opaque(bad.start, end)
        self._at = bad.start
        return False

    def _is_damage(self, span: _Span, file: File, bad: BadBytes) -> bool:
        """Decide as recovery does; docs/storage_format.md, section 6, has the table."""
        if bad.start.offset < self._files.flushed_offset:
            return True
        if not bad.has_following and not span.has_later:
            return False
        if not bad.has_following and _misses_bytes(file, bad.start):
            return False
        return not shows_unwritten_sector(file, bad=bad.start, end_position=bad.end.position)

    def _check_end(self) -> None:
        files, report = self._files, self._report
        if report.is_clean and report.log_end_offset != files.flushed_offset:
            message = f"it says that the log ends at {files.flushed_offset}, the batches end at {report.log_end_offset}"
            report.add(Severity.LAW, RECOVERY_POINT_FILE, message)
        if report.log_end_offset < report.log_start_offset:
            message = (
                f"it ends below the log start {report.log_start_offset}: it begins again there, empty, when opened"
            )
            report.add(Severity.NOTE, files.segments[-1].name, message)


def _misses_bytes(file: File, bad: Boundary) -> bool:
    """Tell whether the file ends inside the batch at this place."""
    room_bytes = file.size - bad.position
    if room_bytes < HEADER_BYTES:
        return True
    header = read_header(file.pread(HEADER_BYTES, bad.position))
    return header.magic == MAGIC and header.base_offset == bad.offset and header.size_bytes > room_bytes
