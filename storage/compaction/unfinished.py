# SPDX-License-Identifier: Apache-2.0
"""Finishes, when a log is opened, what a crash left of its compaction.

Law: a `.swap` file was on stable storage before it got its name, and the owner had found its sources unchanged: so it is the truth
about its offsets, and what is left of the originals goes, and so does what is known of their damage: it has none. A `.cleaned` file is
nothing yet. Done twice, it is done once.
Source: docs/storage.md section 7; Kafka, LogLoader.completeSwapOperations.
"""

from __future__ import annotations

from collections.abc import Sequence

from storage.files.checkpoints import remove_if_exists
from storage.files.disk import Disk
from storage.files.names import (
    CLEANED_SUFFIX,
    DAMAGE_FILE,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    offset_file_name,
    parse_offset_file_name,
    parse_swap_file_name,
)
from storage.segment.damage import DamagedRanges


def finish_swaps(disk: Disk, directory: str, names: Sequence[str]) -> list[str]:
    """Finish what a crash interrupted: remove `.cleaned` files, complete `.swap` files.

    Args:
        disk: the disk.
        directory: directory of the log.
        names: all names in the directory.

    Returns:
        The names that are there now, sorted.
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
        # An original must not come back beside the segment that replaces it.
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
