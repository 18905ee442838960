# SPDX-License-Identifier: Apache-2.0
"""The snapshots of one node on disk: their names, their durability, and their removal.

Owns `<data>/metadata/snapshots/`. Each snapshot is a directory with a RocksDB database (rows and state row of `image_store`), named
`<end offset, 20 digits>-<epoch, 10 digits>`. Laws:

* A directory gets such a name only after every byte and every file name in it is on stable storage (`sync_tree`). Its own name is
  durable before a caller learns of it. RocksDB itself syncs neither the write-ahead log nor the copied files of a checkpoint.
* `*.part` is incomplete; the next start removes it. Nothing in a named directory ever changes.
* A snapshot that is being sent is pinned: it stays until it has been sent.
* A damaged snapshot is set aside: this process ignores it, and keeps its files until the log has been trimmed beyond it, or another
  snapshot of the same name replaces it.

It decides nothing: the core says which snapshots are kept. Source: `docs/quorum.md` section "Snapshots".
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from metaquorum.raft.types import Offset, QuorumEpoch, SnapshotId

logger = logging.getLogger(__name__)

PART_SUFFIX: Final = ".part"
"""Suffix of the name of an incomplete directory."""

_NAME: Final = re.compile(r"(\d{20})-(\d{10})", re.ASCII)
_TABLE_SUFFIX: Final = ".sst"


class SnapshotFiles:
    """The directory of snapshots. Belongs to the event loop; `sync_tree` and `link_tree` may run in any thread.

    Args:
        directory: place of the snapshots; created if absent. Incomplete snapshots in it are removed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._part_count = 0
        self._pins: Counter[SnapshotId] = Counter()
        self._condemned: set[SnapshotId] = set()
        directory.mkdir(parents=True, exist_ok=True)
        self._damaged: list[SnapshotId] = []
        self._ids: list[SnapshotId] = []
        for path in sorted(directory.iterdir()):
            snapshot = parse_name(path.name)
            if snapshot is not None:
                self._ids.append(snapshot)
            elif path.name.endswith(PART_SUFFIX):
                logger.info("event=half_made_snapshot_removed path=%s", path)
                shutil.rmtree(path)
        sync_directory(directory.parent)

    @property
    def ids(self) -> tuple[SnapshotId, ...]:
        """Ids of the usable snapshots, ascending."""
        return tuple(self._ids)

    @property
    def newest(self) -> SnapshotId | None:
        """Id of the newest usable snapshot, or None."""
        return self._ids[-1] if self._ids else None

    @property
    def damaged(self) -> tuple[SnapshotId, ...]:
        """Ids of the snapshots that were set aside, ascending."""
        return tuple(self._damaged)

    def set_aside(self, snapshot: SnapshotId) -> None:
        """Mark a snapshot as damaged and remove it from `ids`."""
        self._ids.remove(snapshot)
        self._damaged = sorted([*self._damaged, snapshot], key=lambda one: one.end_offset)

    def path(self, snapshot: SnapshotId) -> Path:
        """Return the directory of a snapshot."""
        return self._directory / snapshot_name(snapshot)

    def part(self) -> Path:
        """Return a path for an incomplete directory that this process has not used before."""
        self._part_count += 1
        return self._directory / f"{self._part_count:06d}{PART_SUFFIX}"

    def publish(self, part: Path, snapshot: SnapshotId) -> None:
        """Give a complete and synced directory its final name, durably.

        A usable snapshot with this name has the same content, and stays.
        """
        if snapshot in self._ids:
            shutil.rmtree(part)
            return
        if snapshot in self._damaged:
            shutil.rmtree(self.path(snapshot))
            self._damaged.remove(snapshot)
        part.rename(self.path(snapshot))
        sync_directory(self._directory)
        self._ids = sorted([*self._ids, snapshot], key=lambda one: one.end_offset)

    def remove_below(self, offset: int) -> list[Path]:
        """Forget the snapshots that end below an offset. Return the directories to remove; pinned ones are removed when unpinned."""
        gone = [snapshot for snapshot in (*self._damaged, *self._ids) if snapshot.end_offset < offset]
        self._damaged = [snapshot for snapshot in self._damaged if snapshot.end_offset >= offset]
        self._ids = [snapshot for snapshot in self._ids if snapshot.end_offset >= offset]
        self._condemned.update(snapshot for snapshot in gone if self._pins[snapshot])
        return [self.path(snapshot) for snapshot in gone if not self._pins[snapshot]]

    @contextmanager
    def pinned(self, snapshot: SnapshotId) -> Generator[Path]:
        """Keep a snapshot's files while the block reads them."""
        self._pins[snapshot] += 1
        try:
            yield self.path(snapshot)
        finally:
            self._pins[snapshot] -= 1
            if self._pins[snapshot] == 0 and snapshot in self._condemned:
                self._condemned.discard(snapshot)
                shutil.rmtree(self.path(snapshot))


def snapshot_name(snapshot: SnapshotId) -> str:
    """Return the directory name of a snapshot."""
    return f"{snapshot.end_offset:020d}-{snapshot.epoch:010d}"


def parse_name(name: str) -> SnapshotId | None:
    """Return the snapshot id of a directory name; None for any other name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return SnapshotId(end_offset=Offset(int(match[1])), epoch=QuorumEpoch(int(match[2])))


def sync_tree(directory: Path) -> None:
    """Put every file of a directory, and their names, on stable storage."""
    for path in sorted(directory.iterdir()):
        _sync(path, os.O_RDONLY)
    sync_directory(directory)


def sync_directory(directory: Path) -> None:
    """Put the names in a directory on stable storage."""
    _sync(directory, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_tree(source: Path, target: Path) -> None:
    """Copy a closed database and sync the copy: immutable table files as hard links, the few small other files as copies.

    Args:
        source: a database that no process writes.
        target: place of the copy; existing content is removed.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        if path.suffix == _TABLE_SUFFIX:
            os.link(path, target / path.name)
        else:
            shutil.copyfile(path, target / path.name)
    sync_tree(target)
