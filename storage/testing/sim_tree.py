# SPDX-License-Identifier: Apache-2.0
"""The content of a simulated disk, on the device and in the page cache, and what a crash leaves of it.

Fault model (never more than `storage.files.disk` allows; otherwise a failed test proves nothing):

* File data: each 512-byte sector that unsynced writes touched survives a crash in any version since the last sync,
  independently of all other sectors. So does the file size. Synced bytes survive.
* Names: each unsynced create, rename or remove in a directory survives or not, independently, replayed in order. A
  rename is one operation. Synced names survive. A file whose name is lost is gone, synced or not.

The module knows no paths, handles or refusals: `storage.testing.sim_disk` does.
Source: Pillai et al. (OSDI 2014).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from storage.files.disk import SECTOR_BYTES


class Crash(Enum):
    """What a crash does to everything unsynced."""

    LOSE_ALL = "all lost"
    KEEP_ALL = "all kept"
    """As `kill -9`: the page cache survives the process, and is no more synced than before."""
    TEAR = "each sector and each name by itself"
    PREFIX = "a prefix of the operations, the last one torn at a sector"


class Inode:
    """A file: its content on the device, and every version since then (reads see the last one)."""

    def __init__(self) -> None:
        self.durable = b""
        self.versions: list[bytes] = []

    @property
    def current(self) -> bytes:
        """The content that reads see."""
        return self.versions[-1] if self.versions else self.durable

    def sync(self) -> None:
        """Put the current content on the device."""
        self.durable = self.current
        self.versions.clear()

    def copy(self) -> Inode:
        """Return a copy; it shares the contents, which never change."""
        copied = Inode()
        copied.durable = self.durable
        copied.versions = list(self.versions)
        return copied

    def crash(self, how: Crash, rng: random.Random) -> None:
        """Lose everything unsynced, or a part of it."""
        match how:
            case Crash.LOSE_ALL:
                pass
            case Crash.KEEP_ALL:
                return
            case Crash.TEAR:
                states = [self.durable, *self.versions]
                size_bytes = len(rng.choice(states))
                self.durable = _compose(size_bytes, lambda sector: rng.choice(states))
            case Crash.PREFIX:
                self._crash_prefix(rng)
        self.versions.clear()

    def _crash_prefix(self, rng: random.Random) -> None:
        states = [self.durable, *self.versions]
        kept = rng.randrange(len(states))
        if kept + 1 == len(states):
            self.durable = states[kept]
            return
        before, torn = states[kept], states[kept + 1]
        sectors = max(len(before), len(torn)) // SECTOR_BYTES + 1
        cut = rng.randrange(sectors + 1)
        size_bytes = len(rng.choice((before, torn)))
        self.durable = _compose(size_bytes, lambda sector: torn if sector < cut else before)


def _compose(size_bytes: int, version_of: Callable[[int], bytes]) -> bytes:
    """Build content sector by sector from versions; bytes beyond the end of a version read as zeros."""
    pieces: list[bytes] = []
    for start in range(0, size_bytes, SECTOR_BYTES):
        end = min(start + SECTOR_BYTES, size_bytes)
        pieces.append(version_of(start // SECTOR_BYTES)[start:end].ljust(end - start, b"\0"))
    return b"".join(pieces)


@dataclass(slots=True)
class NameChange:
    """One unsynced change of a directory: names to set and names to drop, as one operation."""

    link: dict[str, Inode | Directory]
    unlink: tuple[str, ...] = ()


class Directory:
    """A directory: its names on the device, and the changes since the last sync."""

    def __init__(self) -> None:
        self.durable: dict[str, Inode | Directory] = {}
        self.current: dict[str, Inode | Directory] = {}
        self.pending: list[NameChange] = []

    def change(self, change: NameChange) -> None:
        """Make a change that reaches the device at the next sync."""
        self.pending.append(change)
        _apply(self.current, change)

    def sync(self) -> None:
        """Put the current names on the device."""
        self.durable = dict(self.current)
        self.pending.clear()

    def copy(self) -> Directory:
        """Return a copy of everything at and below; a file with several names stays one file."""
        return _copy_directory(self, {})

    def crash(self, how: Crash, rng: random.Random) -> None:
        """Lose unsynced changes, or some of them; then crash everything whose name survived."""
        if how is Crash.KEEP_ALL:
            return
        survived = dict(self.durable)
        prefix = rng.randrange(len(self.pending) + 1)
        for number, change in enumerate(self.pending):
            match how:
                case Crash.LOSE_ALL:
                    kept = False
                case Crash.TEAR:
                    kept = rng.random() < 0.5
                case Crash.PREFIX:
                    kept = number < prefix
            if kept:
                _apply(survived, change)
        self.durable = survived
        self.current = dict(survived)
        self.pending.clear()
        for name in sorted(survived):
            survived[name].crash(how, rng)


def _copy_directory(source: Directory, copies: dict[int, Inode | Directory]) -> Directory:
    def copy_names(names: dict[str, Inode | Directory]) -> dict[str, Inode | Directory]:
        return {name: copy_node(node) for name, node in names.items()}

    def copy_node(node: Inode | Directory) -> Inode | Directory:
        copied = copies.get(id(node))
        if copied is None:
            copied = node.copy() if isinstance(node, Inode) else _copy_directory(node, copies)
            copies[id(node)] = copied
        return copied

    copied = Directory()
    copied.durable = copy_names(source.durable)
    copied.current = copy_names(source.current)
    copied.pending = [NameChange(copy_names(change.link), change.unlink) for change in source.pending]
    return copied


def _apply(names: dict[str, Inode | Directory], change: NameChange) -> None:
    for name in change.unlink:
        names.pop(name, None)
    names.update(change.link)


def sync_below(node: Inode | Directory) -> None:
    """Put everything at and below a node on the device: contents and names."""
    node.sync()
    if isinstance(node, Directory):
        for name in sorted(node.current):
            sync_below(node.current[name])


def used_bytes(node: Inode | Directory) -> int:
    """Return the bytes of all files at and below a node."""
    if isinstance(node, Inode):
        return len(node.current)
    return sum(map(used_bytes, node.current.values()))


def has_unsynced(node: Inode | Directory) -> bool:
    """Tell whether a file at or below a node has content that is not on the device."""
    if isinstance(node, Inode):
        return bool(node.versions)
    return any(map(has_unsynced, node.current.values()))
