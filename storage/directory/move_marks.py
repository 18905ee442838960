# SPDX-License-Identifier: Apache-2.0
"""The marks of a move, and its switch: which of two directories holds the log.

Design
    The source holds the log until `moved-to` is on stable storage in its directory. This mark is the decision. It is on
    the source's disk because a failure of that disk ends the partition anyway, and a failure of the target must not.
    The mark `moved-from` names the log of a copy. It identifies a copy that got the partition's name before the move
    was revoked.

Order of a switch (law); the copy is on stable storage before it begins
1. `decide`: write `moved-to` in the source, and sync. From here on a restart finishes the move.
2. `place`: give the copy the partition's name, and sync the directory. Only then may anything be appended to it.
3. `retire`: rename the source to `<partition>.<move id>-moved`, and sync.
4. `settle`: remove `moved-from`, and sync; remove the retired files.
After a failure in step 2, `revoke` undoes the decision. Only if it succeeds may anything be appended to the source.

Every function blocks. Source: docs/storage.md section 11.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from storage.errors import FileMissingError
from storage.files.checkpoints import encode_lines, read_lines, remove_if_exists, replace_file
from storage.files.disk import Disk
from storage.files.names import FUTURE_SUFFIX, MOVED_FROM_FILE, MOVED_SUFFIX, MOVED_TO_FILE, move_directory_name

_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


class MoveEnd(NamedTuple):
    """One end of a move.

    Attributes:
        disk: the disk.
        partitions_path: directory that contains the partition directories.
        directory_id: id of the log directory, 16 bytes.
    """

    disk: Disk
    partitions_path: str
    directory_id: bytes


class MoveMark(NamedTuple):
    """Content of `moved-to` and `moved-from`: ids of the move and of the other directory (16 bytes each)."""

    move_id: bytes
    directory_id: bytes

    def encode(self) -> list[str]:
        """Return the lines of the file."""
        return [f"move_id {self.move_id.hex()}", f"directory_id {self.directory_id.hex()}"]


def read_mark(disk: Disk, path: str) -> MoveMark | None:
    """Read a mark; None if it is missing or damaged.

    Raises:
        DiskAccessError, DiskReadError: the disk.
    """
    lines = read_lines(disk, path)
    if lines is None or len(lines) != 2:
        return None
    values = [line.removeprefix(f"{key} ") for key, line in zip(("move_id", "directory_id"), lines, strict=True)]
    if not all(_ID.fullmatch(value) for value in values):
        return None
    return MoveMark(bytes.fromhex(values[0]), bytes.fromhex(values[1]))


def decide(disk: Disk, source_path: str, mark: MoveMark) -> None:
    """Decide that the copy is the log from now on.

    Args:
        disk: the source's disk.
        source_path: the partition's directory there.
        mark: names the target.

    Raises:
        DiskFullError: nothing changed.
        DiskFailedError: the decision is in doubt; the partition must not be written until a restart has settled it.
    """
    replace_file(disk, f"{source_path}/{MOVED_TO_FILE}", encode_lines(mark.encode()))


def revoke(disk: Disk, source_path: str) -> None:
    """Undo the decision: the source stays the log.

    Raises:
        DiskFailedError, DiskAccessError: the decision is in doubt; the partition must not be written until a restart
            has settled it.
    """
    remove_if_exists(disk, f"{source_path}/{MOVED_TO_FILE}")
    disk.sync_directory(source_path)


def place(disk: Disk, partitions_path: str, partition_name: str, move_id: bytes) -> str:
    """Give the copy the partition's name; return its path.

    Raises:
        DiskFailedError, DiskAccessError: the target.
    """
    path = f"{partitions_path}/{partition_name}"
    disk.rename(f"{partitions_path}/{move_directory_name(partition_name, move_id, FUTURE_SUFFIX)}", path)
    disk.sync_directory(partitions_path)
    return path


def retire(disk: Disk, partitions_path: str, partition_name: str, move_id: bytes) -> str:
    """Rename a directory that is no longer the log; return its new path, which the caller removes.

    Raises:
        DiskFailedError, DiskAccessError: the disk; the next start renames it.
    """
    path = f"{partitions_path}/{move_directory_name(partition_name, move_id, MOVED_SUFFIX)}"
    disk.rename(f"{partitions_path}/{partition_name}", path)
    disk.sync_directory(partitions_path)
    return path


def settle(disk: Disk, target_path: str) -> None:
    """Remove the mark `moved-from`, after the source has been renamed.

    Raises:
        DiskFailedError, DiskAccessError: the disk; the next start removes it.
    """
    if remove_if_exists(disk, f"{target_path}/{MOVED_FROM_FILE}"):
        disk.sync_directory(target_path)


def remove_directory_with_files(disk: Disk, path: str) -> None:
    """Remove a directory without subdirectories; does nothing if it does not exist.

    Raises:
        DiskFailedError, DiskAccessError: the disk.
    """
    try:
        names = disk.list_directory(path)
    except FileMissingError:
        return
    for name in names:
        remove_if_exists(disk, f"{path}/{name}")
    disk.remove_directory(path)
