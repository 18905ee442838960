# SPDX-License-Identifier: Apache-2.0
"""Puts a compacted, or repaired, segment in the place of the segments that it replaces, so that a crash leaves one or the other.

Order (law)
1. the `.cleaned` file, which is on stable storage, is renamed to `<base offset>-<end offset>.swap`; the directory is synced.
   From here on an opening of the log completes the swap (`unfinished`).
2. the files of the originals are renamed to `.deleted`; the directory is synced. Nothing orders two unsynced renames: without
   this sync an original could come back beside the segment that replaces it.
3. damage of the originals that the new segment repairs is forgotten, on stable storage.
4. the `.swap` file takes its name; the directory is synced, so that the name it had can never come back.
5. indexes are written, without a sync: they say which file they belong to.

Belongs to the owner of the log.
Source: docs/storage.md section 6; Kafka, LocalLog.replaceSegments.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from storage.errors import DiskError, DiskFailedError
from storage.files.checkpoints import remove_if_exists
from storage.files.disk import Disk
from storage.files.names import SwapFile, swap_file_name
from storage.log.recovery import LogParts
from storage.segment.segment import Segment

from .group_writer import CleanedGroup


def swap_group(disk: Disk, directory: str, parts: LogParts, cleaned: CleanedGroup, *, now_ms: int) -> bool:
    """Carry out one swap.

    Args:
        disk: the disk.
        directory: directory of the log.
        parts: what the log consists of.
        cleaned: the compacted segment.
        now_ms: the owner's clock in milliseconds.

    Returns:
        False if the log changed since the group was read: then the compacted segment is thrown away.

    Raises:
        DiskFullError, DiskAccessError: nothing changed.
        DiskFailedError: the log directory failed for good; its next opening completes the swap.
    """
    slot = _find_sources(parts, cleaned)
    if slot is None:
        remove_if_exists(disk, cleaned.path)
        return False
    old = [parts.segments[at] for at in range(slot, slot + len(cleaned.sources))]
    swap = SwapFile(old[0].base_offset, old[-1].end_offset)
    swap_path = f"{directory}/{swap_file_name(swap)}"
    try:
        disk.rename(cleaned.path, swap_path)
    except DiskError:
        if disk.failure is None:
            remove_if_exists(disk, cleaned.path)
        raise
    new = _segment_of(disk, directory, parts, old, cleaned.size_bytes)
    try:
        disk.sync_directory(directory)
        for segment in old:
            segment.close()
            parts.deleted.rename(segment.file_names(), now_ms=now_ms)
        disk.sync_directory(directory)
        if cleaned.repaired:
            parts.damage.forget_between(swap.base_offset, swap.end_offset)
            parts.damage.save()
        disk.rename(swap_path, new.path)
        disk.sync_directory(directory)
    except DiskFailedError:
        raise
    except DiskError as error:
        raise DiskFailedError(error.path, f"a swap of segments was interrupted, open the log again: {error}") from error
    parts.segments.replace(slot, len(old), new)
    cleaned.index.save(disk, directory, log_bytes=new.size_bytes, end_offset=new.end_offset)
    return True


def _find_sources(parts: LogParts, cleaned: CleanedGroup) -> int | None:
    """Return the place of the first source if all of them are still there, sealed and unchanged, with the damage that was repaired."""
    segments = parts.segments
    slot = segments.slot_of(cleaned.sources[0].base_offset)
    found = [segments[at] for at in range(slot, min(slot + len(cleaned.sources), len(segments)))]
    same = [(each.base_offset, each.end_offset, each.size_bytes) for each in found] == [
        (each.base_offset, each.end_offset, each.size_bytes) for each in cleaned.sources
    ]
    damages = tuple(chain.from_iterable(each.damages() for each in found))
    is_usable = same and found[-1] is not segments.active and damages == cleaned.repaired
    return slot if is_usable else None


def _segment_of(disk: Disk, directory: str, parts: LogParts, old: Sequence[Segment], size_bytes: int) -> Segment:
    """Make the segment that takes the place of others."""
    segment = Segment(
        disk,
        directory,
        parts.damage,
        base_offset=old[0].base_offset,
        end_offset=old[-1].end_offset,
        size_bytes=size_bytes,
        created_ms=old[0].created_ms,
    )
    segment.written_ms = max(each.written_ms for each in old)
    # Every byte was checked, or computed, by this process.
    segment.unverified_bytes = 0
    return segment
