# SPDX-License-Identifier: Apache-2.0
"""Lists the files of a log directory and reads the small ones; an unreadable one becomes a finding.

This module judges no batch (`log_check` does). Source: docs/storage_format.md, section 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from storage.files.names import (
    CLEANED_SUFFIX,
    CLEANER_FILE,
    DAMAGE_FILE,
    DELETED_SUFFIX,
    EPOCH_FILE,
    LOG_START_FILE,
    LOG_SUFFIX,
    PARTITION_FILE,
    RECOVERY_POINT_FILE,
    SNAPSHOT_SUFFIX,
    TEMPORARY_SUFFIX,
    PartitionIdentity,
    parse_offset_file_name,
    parse_restart_file_name,
    parse_swap_file_name,
)
from storage.inspect.files import list_files, read_small
from storage.inspect.findings import LogReport, Severity
from storage.inspect.formats import (
    CLEAN_FLAG,
    MalformedError,
    SlotView,
    newest_slot,
    parse_log_start,
    parse_recovery_point,
    was_never_written,
)
from storage.inspect.texts import parse_cleaner_checkpoint, parse_damaged_ranges, parse_epochs, parse_partition_metadata
from storage.log.epochs import LeaderEpochs
from storage.types import DamagedRange

LEFTOVER_SUFFIXES = (TEMPORARY_SUFFIX, DELETED_SUFFIX, CLEANED_SUFFIX)
"""Files that the next opening removes."""

_Parsed = TypeVar("_Parsed")


class SegmentFile(NamedTuple):
    """A segment: base offset, file size and file name (`.log`, or `.swap` if a swap was interrupted)."""

    base_offset: int
    size_bytes: int
    name: str


@dataclass(slots=True, kw_only=True)
class LogFiles:
    """The files of one log.

    Attributes:
        path: the directory.
        sizes: sizes in bytes of all files in it.
        segments: the segments, ascending.
        snapshots: offsets of the snapshots, ascending.
        point: the valid slot of the recovery point; None if the file is missing or damaged.
        log_start_offset: the log start in `log-start`, else 0.
        epochs: the leader epochs of the checkpoint; None if it is missing or damaged.
        known: recorded damage, ascending.
        identity: the partition in `partition.metadata`; None if it names none.
    """

    path: str
    sizes: dict[str, int]
    segments: list[SegmentFile] = field(default_factory=list[SegmentFile])
    snapshots: list[int] = field(default_factory=list[int])
    point: SlotView | None = None
    log_start_offset: int = 0
    epochs: LeaderEpochs | None = None
    known: tuple[DamagedRange, ...] = ()
    identity: PartitionIdentity | None = None

    @property
    def flushed_offset(self) -> int:
        """Everything below it was on stable storage. Without a recovery point, the value that recovery uses."""
        if self.point is not None:
            return self.point.values[0]
        return self.segments[-1].base_offset if self.segments else 0

    @property
    def is_clean(self) -> bool:
        """True if the mark of a clean close is valid: the last segment has exactly the recorded size."""
        if self.point is None or not self.point.flags & CLEAN_FLAG or not self.segments:
            return False
        flushed_offset, base_offset, size_bytes = self.point.values
        last = self.segments[-1]
        is_same = (last.base_offset, last.size_bytes) == (base_offset, size_bytes)
        return is_same and flushed_offset >= self.log_start_offset


def load_log_files(path: str, report: LogReport) -> LogFiles:
    """Read the small files of a log directory; add a finding for each damaged one.

    Raises:
        FileMissingError, DiskAccessError, DiskReadError: the directory or a file cannot be read.
    """
    files = LogFiles(path=path, sizes=list_files(path))
    if _is_restarting(files, report):
        files.identity = _parse(files, PARTITION_FILE, parse_partition_metadata, Severity.LAW, report)
        return files
    for name, size_bytes in files.sizes.items():
        parsed = parse_offset_file_name(name)
        if parsed is not None and parsed.suffix == LOG_SUFFIX:
            files.segments.append(SegmentFile(parsed.base_offset, size_bytes, name))
        elif parsed is not None and parsed.suffix == SNAPSHOT_SUFFIX:
            files.snapshots.append(parsed.base_offset)
    _complete_swaps(files, report)
    _load_log_start(files, report)
    # The next opening removes the segments wholly below the log start. The end of the last segment is unknown, so it
    # stays.
    first = max((each.base_offset for each in files.segments if each.base_offset <= files.log_start_offset), default=0)
    gone = [segment for segment in files.segments if segment.base_offset < first]
    files.segments = [segment for segment in files.segments if segment.base_offset >= first]
    if gone:
        report.add(
            Severity.NOTE, gone[0].name, f"{len(gone)} segments lie wholly below the log start: removed when opened"
        )
    _load_recovery_point(files, report)
    _load_texts(files, report)
    _note_leftovers(files, report)
    return files


def _is_restarting(files: LogFiles, report: LogReport) -> bool:
    """Tell whether the next opening will finish a restart; then no other file in the directory counts."""
    marked = [(offset, name) for name in files.sizes if (offset := parse_restart_file_name(name)) is not None]
    for files.log_start_offset, name in marked:
        message = f"the log was being emptied: it restarts at {files.log_start_offset} when it is opened"
        report.add(Severity.NOTE, name, message)
    return bool(marked)


def _complete_swaps(files: LogFiles, report: LogReport) -> None:
    """Replace segments by their `.swap` files, as the next opening does."""
    for name, size_bytes in files.sizes.items():
        swap = parse_swap_file_name(name)
        if swap is None:
            continue
        kept = [each for each in files.segments if not swap.base_offset <= each.base_offset < swap.end_offset]
        files.segments = sorted([*kept, SegmentFile(swap.base_offset, size_bytes, name)])
        report.add(Severity.NOTE, name, "compaction was interrupted: it takes its place when the log is opened")


def _load_log_start(files: LogFiles, report: LogReport) -> None:
    content = read_small(f"{files.path}/{LOG_START_FILE}")
    if content is None:
        return
    slots = parse_log_start(content)
    _judge_slots(LOG_START_FILE, slots, report)
    newest = newest_slot(slots)
    if newest is not None:
        (files.log_start_offset,) = newest.values


def _load_recovery_point(files: LogFiles, report: LogReport) -> None:
    """Read the recovery point, which is durable before the first segment exists."""
    content = read_small(f"{files.path}/{RECOVERY_POINT_FILE}")
    if content is None:
        if files.segments:
            report.add(Severity.LAW, RECOVERY_POINT_FILE, "it is missing: nothing tells what had been flushed")
        return
    slots = parse_recovery_point(content)
    if files.segments:
        _judge_slots(RECOVERY_POINT_FILE, slots, report)
    files.point = newest_slot(slots)
    if files.point is not None:
        report.flushed_offset = files.flushed_offset


def _judge_slots(name: str, slots: list[SlotView], report: LogReport) -> None:
    for number, slot in enumerate(slots):
        if slot.fault is not None:
            report.add(Severity.LAW, name, f"slot {number} is bad: {slot.fault}")


def _load_texts(files: LogFiles, report: LogReport) -> None:
    epochs = _parse(files, EPOCH_FILE, parse_epochs, Severity.CACHE, report)
    if epochs is not None:
        files.epochs = LeaderEpochs(epochs)
    elif EPOCH_FILE not in files.sizes and files.segments and files.flushed_offset > files.segments[0].base_offset:
        report.add(
            Severity.CACHE, EPOCH_FILE, "it is missing although records were flushed: built again from the headers"
        )
    files.known = _parse(files, DAMAGE_FILE, parse_damaged_ranges, Severity.CACHE, report) or ()
    _parse(files, CLEANER_FILE, parse_cleaner_checkpoint, Severity.CACHE, report)
    files.identity = _parse(files, PARTITION_FILE, parse_partition_metadata, Severity.LAW, report)


def _parse(
    files: LogFiles, name: str, parse: Callable[[bytes], _Parsed], severity: Severity, report: LogReport
) -> _Parsed | None:
    content = read_small(f"{files.path}/{name}")
    if content is None:
        return None
    try:
        return parse(content)
    except MalformedError as error:
        unwritten = name == CLEANER_FILE and was_never_written(content)
        report.add(Severity.NOTE if unwritten else severity, name, f"it is damaged: {error}")
        return None


def _note_leftovers(files: LogFiles, report: LogReport) -> None:
    """Report what the next opening removes: remains of replacements and removals, and caches without a segment."""
    bases = {segment.base_offset for segment in files.segments}
    for name in files.sizes:
        parsed = parse_offset_file_name(name)
        is_orphan = parsed is not None and parsed.suffix not in (LOG_SUFFIX, SNAPSHOT_SUFFIX)
        if name.endswith(LEFTOVER_SUFFIXES) or (is_orphan and parsed is not None and parsed.base_offset not in bases):
            report.add(Severity.NOTE, name, "it belongs to no segment: removed when the log is opened")
