# SPDX-License-Identifier: Apache-2.0
"""Owner side of the scrub of one log: which segment is next, and what is done about what was found.

Laws
    What a scrub found is carried out only if the segment, and the bytes that it judged, are still the same: nothing that
    was truncated, compacted or written anew meanwhile is put out of service for what stood there before. Damage is noted
    before anything is sealed over it. Remembers in memory only when each segment was checked: after a start all are due.

Belongs to the owner of the log; only `ScrubWork.run` happens elsewhere.
Source: docs/storage.md, section 5.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.errors import DiskFullError
from storage.files.checkpoints import replace_file
from storage.files.disk import Disk
from storage.files.names import SEAL_SUFFIX, offset_file_name
from storage.log.reader import LogReader
from storage.log.recovery import LogParts
from storage.segment.damage import DamagedRanges
from storage.segment.seal import Seal, encode_seal
from storage.segment.segment import Segment
from storage.types import DamagedRange

from .scrub import ScrubTask, ScrubWork, head_crc_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubOutcome:
    """What became of a scrub that was given back.

    Attributes:
        damaged: ranges that were put out of service now.
        sealed: a seal was written.
        stale: the segment changed or went meanwhile, or the scrub did not end: nothing was done.
    """

    damaged: tuple[DamagedRange, ...] = ()
    sealed: bool = False
    stale: bool = False


class LogScrub:
    """See the module docstring.

    Args:
        disk: the disk of the log.
        directory: its directory.
        parts: what it consists of.
        reader: its read side, which quarantines.
    """

    def __init__(self, disk: Disk, directory: str, parts: LogParts, reader: LogReader) -> None:
        self._disk = disk
        self._directory = directory
        self._parts = parts
        self._reader = reader
        self._checked_ms: dict[int, int] = {}

    def begin(self, *, flushed_offset: int, now_ms: int, interval_ms: int) -> ScrubWork | None:
        """Describe the sealed segment that was checked longest ago; None if none is due.

        Args:
            flushed_offset: segments that reach beyond it are left alone: a crash may still change them.
            now_ms: the owner's clock.
            interval_ms: a segment is due so long after its last check; one that this process never checked is due now.
        """
        parts = self._parts
        sealed = [segment for segment in parts.segments if segment is not parts.segments.active]
        present = {segment.base_offset for segment in sealed}
        self._checked_ms = {base: ms for base, ms in self._checked_ms.items() if base in present}
        due = [
            (self._checked_ms.get(segment.base_offset, -1), segment.base_offset, segment)
            for segment in sealed
            if segment.end_offset <= flushed_offset
            and self._checked_ms.get(segment.base_offset, now_ms - interval_ms) <= now_ms - interval_ms
        ]
        if not due:
            return None
        segment = min(due)[2]
        task = ScrubTask(
            path=segment.path,
            seal_path=f"{self._directory}/{offset_file_name(segment.base_offset, SEAL_SUFFIX)}",
            base_offset=segment.base_offset,
            end_offset=segment.end_offset,
            size_bytes=segment.size_bytes,
            known=tuple(segment.damages()),
            epochs=tuple(parts.epochs.entries()),
        )
        return ScrubWork(self._disk, task, segment)

    def end(self, work: ScrubWork, *, flushed_offset: int, now_ms: int) -> ScrubOutcome:
        """Carry out what a scrub found: quarantine, or the seal.

        An error of the scrub counts as a check, so that one bad file does not hold up the others: look at `work.error`.

        Raises:
            DiskFailedError: the disk is failed for good.
        """
        task, segment, result = work.task, work.segment, work.result
        if result is None or not self._is_same(segment, task):
            if work.error is not None:
                self._checked_ms[task.base_offset] = now_ms
            return ScrubOutcome(stale=True)
        self._checked_ms[task.base_offset] = now_ms
        found = tuple(
            each.damaged
            for each in result.found
            if not _overlaps(self._parts.damage, each.damaged)
            and head_crc_of(segment.file, each.damaged) == each.head_crc
        )
        if found:
            self._reader.quarantine(segment, found, flushed_offset=flushed_offset)
        sealed = result.seal is not None and self._write_seal(task.seal_path, result.seal)
        return ScrubOutcome(damaged=found, sealed=sealed)

    def _is_same(self, segment: Segment, task: ScrubTask) -> bool:
        """Tell whether the segment is still there, sealed, and as long as it was."""
        return (
            segment is self._parts.segments.holding(task.base_offset)
            and segment is not self._parts.segments.active
            and (segment.size_bytes, segment.end_offset) == (task.size_bytes, task.end_offset)
        )

    def _write_seal(self, path: str, seal: Seal) -> bool:
        """Write the seal without a sync: it has a CRC and can be made again; a full disk leaves it out."""
        try:
            replace_file(self._disk, path, encode_seal(seal), durable=False)
        except DiskFullError:
            return False
        return True


def _overlaps(damage: DamagedRanges, damaged: DamagedRange) -> bool:
    """Tell whether a range, or a part of it, was put out of service meanwhile."""
    return any(
        known.base_offset < damaged.end_offset and damaged.base_offset < known.end_offset
        for known in damage.of_segment(damaged.segment_base_offset)
    )
