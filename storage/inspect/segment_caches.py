# SPDX-License-Identifier: Apache-2.0
"""Reads the caches of one segment and passes its batches to their judges.

Caches are written without a sync. A power failure may leave sectors in them that were never written, even after a clean
close. That is only a note.
"""

from __future__ import annotations

from lograft.wire.header import BatchHeader

from storage.files.disk import File
from storage.files.names import INDEX_SUFFIX, SEAL_SUFFIX, TIME_INDEX_SUFFIX, offset_file_name
from storage.inspect.cache_judges import OffsetIndexJudge, SealJudge, TimeIndexJudge
from storage.inspect.files import read_small
from storage.inspect.findings import LogReport, Severity
from storage.inspect.formats import MalformedError, parse_offset_index, parse_time_index, was_never_written
from storage.inspect.log_files import LogFiles, SegmentFile
from storage.segment.seal import MalformedSealError, decode_seal
from storage.types import Boundary

_Judge = OffsetIndexJudge | TimeIndexJudge | SealJudge


class SegmentCaches:
    """The existing, undamaged caches of one segment."""

    def __init__(self, files: LogFiles, segment: SegmentFile, file: File, report: LogReport) -> None:
        self._report = report
        self._judges: dict[str, _Judge] = {}
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, SEAL_SUFFIX):
            name = offset_file_name(segment.base_offset, suffix)
            content = read_small(f"{files.path}/{name}")
            if content is None:
                continue
            try:
                self._judges[name] = _judge(suffix, content, segment, file)
            except (MalformedError, MalformedSealError) as error:
                report_malformed(name, content, str(error), report)

    def batch(self, position: int, header: BatchHeader) -> None:
        """Add a complete batch."""
        for judge in self._judges.values():
            judge.batch(position, header)

    def opaque(self, start: Boundary, end: Boundary) -> None:
        """Add a range where no batch is readable."""
        for judge in self._judges.values():
            judge.opaque(start, end)

    def explain(self, position: int, end_position: int) -> None:
        """Note bytes that another finding covers."""
        for judge in self._judges.values():
            if isinstance(judge, SealJudge):
                judge.explain(position, end_position)

    def finish(self, end: Boundary) -> None:
        """Report what is wrong with the caches, at the end of the segment."""
        for name, judge in self._judges.items():
            judge.end(name, end, self._report)


def _judge(suffix: str, content: bytes, segment: SegmentFile, file: File) -> _Judge:
    if suffix == INDEX_SUFFIX:
        return OffsetIndexJudge(parse_offset_index(content), base_offset=segment.base_offset)
    if suffix == TIME_INDEX_SUFFIX:
        return TimeIndexJudge(parse_time_index(content), base_offset=segment.base_offset)
    return SealJudge(decode_seal(content), file)


def report_malformed(name: str, content: bytes, reason: str, report: LogReport) -> None:
    """Report a cache that cannot be parsed: as a note if a power failure may have left it so."""
    if was_never_written(content):
        report.add(
            Severity.NOTE, name, f"parts of it were never written ({reason}): built again when the log is opened"
        )
    else:
        report.add(Severity.CACHE, name, f"it is damaged: {reason}")
