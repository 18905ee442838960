# SPDX-License-Identifier: Apache-2.0
"""Replaces segments by a compacted or repaired one, so that a crash leaves either the old ones or the new one.

Order (law)
1. Rename the `.cleaned` file, which is on stable storage, to `<base offset>-<end offset>.swap`; sync the directory.
   From here on an opening of the log completes the swap (`finish_swaps`).
2. Rename the files of the originals to `.deleted`; sync the directory. Nothing orders two unsynced renames: without
   this sync, an original could come back beside its replacement.
3. Forget the damage of the originals that the new segment repairs, on stable storage.
4. Give the `.swap` file its final name; sync the directory, so that the old name cannot come back.
5. Write the indexes, without a sync, because they say which file they belong to.

Law: a `.swap` file was on stable storage before it got its name, and the owner had found its sources unchanged. So it
is the truth about its offsets. The rest of the originals is removed, and so is their recorded damage, because the new
file has none. A `.cleaned` file has no meaning yet. Every step can be repeated.

The module does not know what the log keeps in memory (`PartitionLog.swap` does).
Source: docs/storage.md sections 6 and 7; Kafka, LocalLog.replaceSegments and LogLoader.completeSwapOperations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage.errors import DiskError, DiskFailedError
from storage.files.checkpoints import remove_if_exists
from storage.files.disk import Disk
from storage.files.names import (
    CLEANED_SUFFIX,
    DAMAGE_FILE,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    SwapFile,
    offset_file_name,
    parse_offset_file_name,
    parse_swap_file_name,
    swap_file_name,
)
from storage.segment.damage import DamagedRanges
from storage.segment.segment import Segment
from storage.segment.segment_index import SegmentIndex
from storage.types import DamagedRange, SegmentFacts

from .deleted import DeletedFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedGroup:
    """A compacted or repaired segment on stable storage, ready to replace its sources.

    Attributes:
        path: its `.cleaned` file.
        sources: the segments that it replaces, as they were when read; ascending neighbours.
        size_bytes: size of its file.
        index: its indexes.
        repaired: all damage of the sources, whose records the new segment has; empty after a compaction.
    """

    path: str
    sources: tuple[SegmentFacts, ...]
    size_bytes: int
    index: SegmentIndex
    repaired: tuple[DamagedRange, ...] = ()


def put_in_place(
    disk: Disk,
    directory: str,
    cleaned: CleanedGroup,
    *,
    old: Sequence[Segment],
    new: Segment,
    deleted: DeletedFiles,
    damage: DamagedRanges,
    now_ms: int,
) -> None:
    """Carry out steps 1 to 4 of a swap whose sources are unchanged.

    Args:
        disk: the disk.
        directory: directory of the log.
        cleaned: the new segment on disk.
        old: its sources, ascending; the caller closes their files.
        new: the segment object that replaces them.
        deleted: takes the files of the sources.
        damage: the damaged ranges of the log.
        now_ms: the owner's clock in milliseconds.

    Raises:
        DiskFullError, DiskAccessError: nothing changed.
        DiskFailedError: the log directory failed for good; its next opening completes the swap.
    """
    swap = SwapFile(old[0].base_offset, old[-1].end_offset)
    swap_path = f"{directory}/{swap_file_name(swap)}"
    try:
        disk.rename(cleaned.path, swap_path)
    except DiskError:
        if disk.failure is None:
            remove_if_exists(disk, cleaned.path)
        raise
    try:
        disk.sync_directory(directory)
        for segment in old:
            deleted.rename(segment.file_names(), now_ms=now_ms)
        disk.sync_directory(directory)
        if cleaned.repaired:
            damage.forget_between(swap.base_offset, swap.end_offset)
            damage.save()
        disk.rename(swap_path, new.path)
        disk.sync_directory(directory)
    except DiskFailedError:
        raise
    except DiskError as error:
        raise DiskFailedError(error.path, f"a swap of segments was interrupted, open the log again: {error}") from error


def finish_swaps(disk: Disk, directory: str, names: Sequence[str]) -> list[str]:
    """Finish interrupted swaps at an opening: remove `.cleaned` files, complete `.swap` files.

    Args:
        disk: the disk.
        directory: directory of the log.
        names: all names in the directory.

    Returns:
        The remaining names, sorted.
    """
    if not any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names):
        return list(names)
    left = set(names)
    for name in names:
        if name.endswith(CLEANED_SUFFIX):
            remove_if_exists(disk, f"{directory}/{name}")
            left.discard(name)
    for name in names:
        swap = parse_swap_file_name(name)
        if swap is None:
            continue
        for replaced in sorted(left):
            file = parse_offset_file_name(replaced)
            if file is None or file.suffix == SNAPSHOT_SUFFIX:
                continue
            if swap.base_offset <= file.base_offset < swap.end_offset:
                remove_if_exists(disk, f"{directory}/{replaced}")
                left.discard(replaced)
        # An original must not come back beside its replacement.
        disk.sync_directory(directory)
        if DAMAGE_FILE in left:
            damage = DamagedRanges.load(disk, directory)
            damage.forget_between(swap.base_offset, swap.end_offset)
            damage.save()
        taken = offset_file_name(swap.base_offset, LOG_SUFFIX)
        disk.rename(f"{directory}/{name}", f"{directory}/{taken}")
        disk.sync_directory(directory)
        left.discard(name)
        left.add(taken)
    return sorted(left)
