# SPDX-License-Identifier: Apache-2.0
"""One flush group of one log: what to sync so that everything below an offset is on stable storage.

The owner makes it (`PartitionLog.begin_flush`), any thread runs it, and the owner takes it back
(`PartitionLog.end_flush`).
Order (law): data files ascending, then the leader-epoch checkpoint, then the directory, because a new segment counts
only with its name. The owner writes the recovery point afterwards, so that it never claims what a crash may lose.
A group holds files and bytes of its own and must not touch the log's state. A failed group fails the log directory and
is never retried.
Source: reliability practice, ALICE rules 1, 2 and 4; roll order "sync old segment, create new, sync directory, then
ack".
"""

from __future__ import annotations

from collections.abc import Sequence

from storage.errors import StorageError
from storage.files.checkpoints import replace_file, take_replacement, write_replacement
from storage.files.descriptor_cache import disk_under, needs_sync, note_synced, write_mark
from storage.files.disk import Disk, File
from storage.files.names import EPOCH_FILE


class FlushWork:
    """One flush group, run once.

    Attributes:
        end_offset: log end offset when the group was made (exclusive); flushed once `run` has returned.
        error: why `run` failed; None before and after a good run.
        is_done: True once `run` has returned.
    """

    __slots__ = (
        "_directory",
        "_disk",
        "_epoch_checkpoint",
        "_files",
        "_marks",
        "_sync_directory",
        "end_offset",
        "error",
        "is_done",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        end_offset: int,
        files: Sequence[File],
        sync_directory: bool,
        epoch_checkpoint: bytes | None,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._files = files
        self._marks = [write_mark(file) for file in files]
        self._sync_directory = sync_directory
        self._epoch_checkpoint = epoch_checkpoint
        self.end_offset = end_offset
        self.error: StorageError | None = None
        self.is_done = False

    @property
    def disk(self) -> Disk:
        """The disk that holds the log."""
        return disk_under(self._disk)

    @property
    def directory(self) -> str:
        """The log's directory."""
        return self._directory

    @property
    def _epoch_path(self) -> str:
        return f"{self._directory}/{EPOCH_FILE}"

    @property
    def covers_names(self) -> bool:
        """True if the directory is synced with this group."""
        return self._sync_directory or self._epoch_checkpoint is not None

    @property
    def covers_epochs(self) -> bool:
        """True if the leader epochs are saved with this group."""
        return self._epoch_checkpoint is not None

    def run(self) -> None:
        """Sync everything of the group. Blocks for as long as the disk takes. Call once, from any thread.

        Raises:
            DiskFailedError: the disk is failed for good.
            DiskFullError: no space for the epoch checkpoint; nothing counts as flushed, and a later group may succeed.
        """
        assert not self.is_done, "a flush group runs once"
        try:
            for file, mark in zip(self._files, self._marks, strict=True):
                # A file that was truncated and synced since holds nothing of this group, and may be closed or removed.
                if write_mark(file) == mark or needs_sync(file):
                    file.sync()
            if self._epoch_checkpoint is not None:
                # This syncs the directory too.
                replace_file(self._disk, self._epoch_path, self._epoch_checkpoint)
            elif self._sync_directory:
                self._disk.sync_directory(self._directory)
        except StorageError as error:
            self.error = error
            raise
        self.is_done = True

    def write_checkpoint(self) -> None:
        """Write the new epoch checkpoint beside the old one, without a sync, if this group has one: first step of a shared sync.

        Raises:
            DiskFailedError, DiskFullError: as in `run`.
        """
        if self._epoch_checkpoint is not None:
            write_replacement(self._disk, self._epoch_path, self._epoch_checkpoint, durable=False)

    def take_checkpoint(self) -> None:
        """Rename the written epoch checkpoint into place, after one sync of the file system and before the next.

        Raises:
            DiskFailedError: the disk is failed for good.
        """
        if self._epoch_checkpoint is not None:
            take_replacement(self._disk, self._epoch_path)

    def note_synced(self) -> None:
        """Note that the whole file system was synced after this group was made and after `take_checkpoint`."""
        for file, mark in zip(self._files, self._marks, strict=True):
            note_synced(file, mark)
        self.is_done = True
