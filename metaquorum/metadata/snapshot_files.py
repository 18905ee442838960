# SPDX-License-Identifier: Apache-2.0
"""The snapshots of one node on disk: their names, what makes one durable, and which go.

Owns `<data>/metadata/snapshots/`. One directory for each snapshot, a RocksDB database (rows and state row of
`image_store`), named `<end offset, 20 digits>-<epoch, 10 digits>`. Laws:

* A directory has such a name only when every byte and every name in it is on stable storage (`sync_tree`), and its own
  name is too before anybody is told. RocksDB syncs neither the write-ahead log nor copied files of a checkpoint.
* `*.part` is half made; the next start removes it. Nothing in a named directory is ever changed.
* A snapshot that is being sent is pinned and stays until it was sent.
* A damaged one is set aside: it counts for nothing in this process, and nothing of it is removed while the log has not been
  trimmed beyond it, or another one of its name takes its place.

Decides nothing: the core says what is kept. Source: `docs/quorum.md` section "Snapshots".
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
"""Ends the name of what is half made."""

_NAME: Final = re.compile(r"(\d{20})-(\d{10})", re.ASCII)
_TABLE_SUFFIX: Final = ".sst"


class SnapshotFiles:
    """The directory of snapshots. Owned by the event loop; `part`, `sync_tree` and `link_tree` run in any thread.

    Args:
        directory: where; made when absent. What is half made in it is removed.
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
        """Ids ascending."""
        return tuple(self._ids)

    @property
    def newest(self) -> SnapshotId | None:
        """The newest one, or None."""
        return self._ids[-1] if self._ids else None

    @property
    def damaged(self) -> tuple[SnapshotId, ...]:
        """Ids of those that were set aside, ascending."""
        return tuple(self._damaged)

    def set_aside(self, snapshot: SnapshotId) -> None:
        """A snapshot is damaged: it is not among the `ids` from here on."""
        self._ids.remove(snapshot)
        self._damaged = sorted([*self._damaged, snapshot], key=lambda one: one.end_offset)

    def path(self, snapshot: SnapshotId) -> Path:
        """Directory of a snapshot."""
        return self._directory / snapshot_name(snapshot)

    def part(self) -> Path:
        """A name for something half made, not used before in this process."""
        self._part_count += 1
        return self._directory / f"{self._part_count:06d}{PART_SUFFIX}"

    def publish(self, part: Path, snapshot: SnapshotId) -> None:
        """Give what was half made, and is synced by now, its name, durably.

        One that is there already under this name has the same content, and stays.
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
        """Forget the snapshots that end below an offset; returns the directories to remove, the pinned ones left out."""
        gone = [snapshot for snapshot in (*self._damaged, *self._ids) if snapshot.end_offset < offset]
        self._damaged = [snapshot for snapshot in self._damaged if snapshot.end_offset >= offset]
        self._ids = [snapshot for snapshot in self._ids if snapshot.end_offset >= offset]
        self._condemned.update(snapshot for snapshot in gone if self._pins[snapshot])
        return [self.path(snapshot) for snapshot in gone if not self._pins[snapshot]]

    @contextmanager
    def pinned(self, snapshot: SnapshotId) -> Generator[Path]:
        """Keep a snapshot's files while they are read."""
        self._pins[snapshot] += 1
        try:
            yield self.path(snapshot)
        finally:
            self._pins[snapshot] -= 1
            if self._pins[snapshot] == 0 and snapshot in self._condemned:
                self._condemned.discard(snapshot)
                shutil.rmtree(self.path(snapshot))


def snapshot_name(snapshot: SnapshotId) -> str:
    """Name of a snapshot's directory."""
    return f"{snapshot.end_offset:020d}-{snapshot.epoch:010d}"


def parse_name(name: str) -> SnapshotId | None:
    """The id that a name says; None when it is no name of a snapshot."""
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
    """Copy a closed database: table files, which never change, as hard links, the few small others as copies; synced.

    Args:
        source: a database that nobody writes.
        target: where; whatever is there is removed.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        if path.suffix == _TABLE_SUFFIX:
            os.link(path, target / path.name)
        else:
            shutil.copyfile(path, target / path.name)
    sync_tree(target)
