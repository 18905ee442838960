# SPDX-License-Identifier: Apache-2.0
"""Reads the caches of one segment and lets their judges see its batches.

A cache is written without a sync: one with sectors that were never written is what a power failure leaves behind, after a clean
stop too, and only noted.
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
    """The caches of one segment that are there and whole."""

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
        """Take up a whole batch."""
        for judge in self._judges.values():
            judge.batch(position, header)

    def opaque(self, start: Boundary, end: Boundary) -> None:
        """Take up a place where no batch can be seen."""
        for judge in self._judges.values():
            judge.opaque(start, end)

    def explain(self, position: int, end_position: int) -> None:
        """Note bytes that another finding names."""
        for judge in self._judges.values():
            if isinstance(judge, SealJudge):
                judge.explain(position, end_position)

    def finish(self, end: Boundary) -> None:
        """Add what is wrong with the caches of a segment that ends here."""
        for name, judge in self._judges.items():
            judge.end(name, end, self._report)


def _judge(suffix: str, content: bytes, segment: SegmentFile, file: File) -> _Judge:
    if suffix == INDEX_SUFFIX:
        return OffsetIndexJudge(parse_offset_index(content), base_offset=segment.base_offset)
    if suffix == TIME_INDEX_SUFFIX:
        return TimeIndexJudge(parse_time_index(content), base_offset=segment.base_offset)
    return SealJudge(decode_seal(content), file)


def report_malformed(name: str, content: bytes, reason: str, report: LogReport) -> None:
    """Add a cache that cannot be read: a note if a power failure may have left it so."""
    if was_never_written(content):
        report.add(Severity.NOTE, name, f"parts of it were never written ({reason}): made anew when the log is opened")
    else:
        report.add(Severity.CACHE, name, f"it is damaged: {reason}")
