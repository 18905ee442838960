# SPDX-License-Identifier: Apache-2.0
"""The head of a log at an opening: finishes an interrupted removal, and reports missing segments.

Laws
    A segment wholly below the log start is removed. The end of the last segment is unknown before the walk, so it
    stays. If the walk finds that it ends below the log start, the log restarts there, empty (its tail was removed
    before it was flushed).
    If the first segment begins above the log start, files were lost. An empty segment at the log start carries exactly
    the missing offsets as damage. If nothing above the log start was flushed, it is a torn tail: a crash lost the name
    of the first of several new segments, and the others are removed too.
Nothing here needs a sync of its own. The log start is on stable storage, so the next opening repeats the same steps.
Source: docs/storage.md section 3; Kafka, LogLoader.
"""

from __future__ import annotations

from collections.abc import Sequence

from storage.files.checkpoints import remove_if_exists
from storage.files.disk import Disk
from storage.files.names import LOG_SUFFIX, SNAPSHOT_SUFFIX, OffsetFile, offset_file_name
from storage.segment.damage import DamagedRanges
from storage.segment.segment import Segment
from storage.types import DamagedRange


def drop_below(
    disk: Disk, directory: str, files: Sequence[OffsetFile], *, log_start_offset: int
) -> tuple[OffsetFile, ...]:
    """Remove segments wholly below the log start, files without a segment, and snapshots below the first segment.

    Args:
        disk: the disk.
        directory: directory of the log.
        files: all segment, index and snapshot files, ascending by base offset.
        log_start_offset: first readable offset (inclusive), which is on stable storage.

    Returns:
        The files that stay.
    """
    bases = [file.base_offset for file in files if file.suffix == LOG_SUFFIX]
    if not bases:
        return tuple(files)
    first = max((base for base in bases if base <= log_start_offset), default=bases[0])
    kept_bases = {base for base in bases if base >= first}
    kept: list[OffsetFile] = []
    for file in files:
        # The batches between an older snapshot and the first segment are gone, so the snapshot is out of date.
        stays = file.base_offset >= first if file.suffix == SNAPSHOT_SUFFIX else file.base_offset in kept_bases
        if stays:
            kept.append(file)
        else:
            remove_if_exists(disk, f"{directory}/{offset_file_name(file.base_offset, file.suffix)}")
    return tuple(kept)


def drop_torn_tail(disk: Disk, directory: str, damage: DamagedRanges, files: Sequence[OffsetFile]) -> int:
    """Remove all segments of a log that lost its first one before a flush; return the number of log bytes removed.

    The caller makes the new first segment and syncs the directory. A crash before that leaves a part of the same tail.

    Raises:
        DiskFullError, DiskFailedError, DiskAccessError: the disk.
    """
    cut_bytes = 0
    for file in files:
        path = f"{directory}/{offset_file_name(file.base_offset, file.suffix)}"
        if file.suffix == LOG_SUFFIX:
            cut_bytes += disk.size_bytes(path)
        if file.suffix != SNAPSHOT_SUFFIX:
            remove_if_exists(disk, path)
    damage.truncate_suffix(0)
    damage.save()
    return cut_bytes


def note_lost_front(
    disk: Disk, directory: str, damage: DamagedRanges, *, log_start_offset: int, first_base_offset: int, now_ms: int
) -> Segment:
    """Make an empty segment for the offsets from the log start to the first segment, and mark them as damaged.

    The caller saves the damage and syncs the directory.

    Raises:
        DiskFullError, DiskFailedError, DiskAccessError, TooManyOpenFilesError: the disk.
    """
    placeholder = Segment.create(disk, directory, damage, base_offset=log_start_offset, created_ms=now_ms)
    placeholder.file.sync()
    placeholder.close()
    placeholder.end_offset = first_base_offset
    damage.add(
        DamagedRange(
            segment_base_offset=log_start_offset,
            base_offset=log_start_offset,
            end_offset=first_base_offset,
            position=0,
            end_position=0,
        )
    )
    return placeholder


def restart_empty(
    disk: Disk, directory: str, damage: DamagedRanges, segments: list[Segment], *, log_start_offset: int, now_ms: int
) -> None:
    """Replace all segments, which end below the log start, by an empty one at the log start.

    The caller syncs the directory before the recovery point moves.

    Raises:
        DiskFullError, DiskFailedError, DiskAccessError, TooManyOpenFilesError: the disk.
    """
    for segment in segments:
        segment.close()
        for path in segment.file_names():
            remove_if_exists(disk, path)
    segments[:] = [Segment.create(disk, directory, damage, base_offset=log_start_offset, created_ms=now_ms)]
    damage.truncate_prefix(log_start_offset)
