# SPDX-License-Identifier: Apache-2.0
"""Checks the producer snapshots of one log during the walk over its batches."""

from __future__ import annotations

from lograft.wire.header import BatchHeader

from storage.files.names import SNAPSHOT_SUFFIX, offset_file_name
from storage.inspect.files import read_small
from storage.inspect.findings import LogReport, Severity
from storage.inspect.formats import MalformedError, SnapshotFile, parse_snapshot
from storage.inspect.log_files import LogFiles
from storage.inspect.producer_judge import ProducerReplay
from storage.inspect.segment_caches import report_malformed


class SnapshotCheck:
    """Checks the snapshots: `batch` and `opaque` in ascending order, then `finish`."""

    def __init__(self, files: LogFiles, report: LogReport) -> None:
        self._files = files
        self._report = report
        self._at = files.segments[0].base_offset
        self._replay = ProducerReplay(self._at)
        self._waiting = list(files.snapshots)
        below = [offset for offset in self._waiting if offset < self._at]
        for offset in below:
            self._note(offset, "it lies below the first segment: removed when the log is opened")
        self._waiting = self._waiting[len(below) :]
        if self._waiting[:1] == [self._at]:
            snapshot = self._read(self._waiting.pop(0))
            self._replay.seed(snapshot.producers if snapshot is not None else ())

    def batch(self, header: BatchHeader) -> None:
        """Add a complete batch."""
        self._reach(header.base_offset)
        self._replay.batch(header)
        self._pass(header.next_offset, "it lies inside a batch")

    def opaque(self, base_offset: int, end_offset: int) -> None:
        """Add offsets whose batches are not readable."""
        self._reach(base_offset)
        self._replay.opaque(base_offset, end_offset)
        self._pass(end_offset, None)

    def finish(self, end_offset: int) -> None:
        """Judge the snapshots at the log end; the next opening removes those beyond it."""
        self._reach(end_offset)
        for offset in self._waiting:
            self._note(offset, f"it reaches beyond the log end {end_offset}: removed when the log is opened")

    def _reach(self, offset: int) -> None:
        """Judge the snapshot at an offset that the replay has reached."""
        if self._waiting[:1] != [offset]:
            return
        snapshot = self._read(self._waiting.pop(0))
        if snapshot is None:
            return
        contradiction = self._replay.contradiction(snapshot, offset)
        if contradiction is None:
            self._replay.seed(snapshot.producers)
        else:
            self._report.add(Severity.CACHE, _name(offset), f"it contradicts the batches before it: {contradiction}")

    def _pass(self, next_offset: int, fault: str | None) -> None:
        """Skip the snapshots inside a batch (a fault) or inside an opaque range."""
        while self._waiting and self._waiting[0] < next_offset:
            offset = self._waiting.pop(0)
            if self._read(offset) is not None and fault is not None:
                self._report.add(Severity.CACHE, _name(offset), fault)

    def _read(self, offset: int) -> SnapshotFile | None:
        content = read_small(f"{self._files.path}/{_name(offset)}") or b""
        try:
            return parse_snapshot(content)
        except MalformedError as error:
            report_malformed(_name(offset), content, str(error), self._report)
            return None

    def _note(self, offset: int, message: str) -> None:
        self._report.add(Severity.NOTE, _name(offset), message)


def _name(offset: int) -> str:
    return offset_file_name(offset, SNAPSHOT_SUFFIX)
