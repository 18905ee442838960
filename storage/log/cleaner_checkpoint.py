# SPDX-License-Identifier: Apache-2.0
"""How far a log was compacted: the text checkpoint `cleaner-checkpoint`.

    dirty_offset <n>         below it everything was compacted as far as possible (exclusive)
    map_offset <n>           below it no record is left that a newer one replaces; at most the dirty offset
    leader_epoch <n>         of the last offset below the dirty offset; -1: none
    next_horizon_ms <n>      the earliest time at which a tombstone may go, in milliseconds since 1970; -1: none waits
    <base offset> <bytes>    one line for each segment that begins below the dirty offset, ascending

Law: the checkpoint is a cache of what a pass did, and holds only as far as the log is unchanged. After a truncation, or
after somebody restored old files, the epoch or the size of a segment differs. From there on the log counts as dirty. If
the epoch differs, all of it does: by log matching, one offset and epoch belong to one history. Without a complete
checkpoint everything is dirty, which costs work but never records.
Source: docs/storage.md section 6; Kafka, cleaner-offset-checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from storage.errors import DiskFullError
from storage.files.checkpoints import MalformedTextError, encode_lines, numbers_of, read_lines, replace_file
from storage.files.disk import Disk
from storage.files.names import CLEANER_FILE

_NAMES = ("dirty_offset", "map_offset", "leader_epoch", "next_horizon_ms")
_NONE = -1


class SegmentSize(NamedTuple):
    """A segment and the bytes of its log file."""

    base_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanState:
    """How far a log was compacted. The fields are the lines of the checkpoint, as the module describes them."""

    dirty_offset: int = 0
    map_offset: int = 0
    leader_epoch: int | None = None
    next_horizon_ms: int | None = None
    segments: tuple[SegmentSize, ...] = ()

    @classmethod
    def after(
        cls,
        *,
        dirty_offset: int,
        map_offset: int,
        next_horizon_ms: int | None,
        leader_epoch: int | None,
        segments: Iterable[SegmentSize],
    ) -> CleanState:
        """Return the state after a pass; `segments` are all segments of the log."""
        return cls(
            dirty_offset=dirty_offset,
            map_offset=map_offset,
            leader_epoch=leader_epoch,
            next_horizon_ms=next_horizon_ms,
            segments=tuple(each for each in segments if each.base_offset < dirty_offset),
        )

    def offsets_of(
        self, *, leader_epoch: int | None, sealed: Iterable[SegmentSize], sealed_end: int
    ) -> tuple[int, int]:
        """Return (map offset, dirty offset), lowered to where the log still matches this state.

        Args:
            leader_epoch: epoch of the last offset below `dirty_offset`, as the log has it now.
            sealed: the log's sealed segments, ascending.
            sealed_end: end of the last one (exclusive).
        """
        if leader_epoch != self.leader_epoch:
            return 0, 0
        known = set(self.segments)
        dirty_offset = min(self.dirty_offset, sealed_end)
        for segment in sealed:
            if segment.base_offset >= dirty_offset:
                break
            if segment not in known:
                dirty_offset = segment.base_offset
                break
        return min(self.map_offset, dirty_offset), dirty_offset

    def encode(self) -> list[str]:
        """Return the lines of the checkpoint."""
        numbers = (
            self.dirty_offset,
            self.map_offset,
            _NONE if self.leader_epoch is None else self.leader_epoch,
            _NONE if self.next_horizon_ms is None else self.next_horizon_ms,
        )
        named = [f"{name} {number}" for name, number in zip(_NAMES, numbers, strict=True)]
        return named + [f"{base_offset} {size_bytes}" for base_offset, size_bytes in self.segments]


def decode_state(lines: Sequence[str]) -> CleanState:
    """Decode the lines of the checkpoint.

    Raises:
        MalformedTextError: they are not lines of a checkpoint.
    """
    words = [line.split(" ") for line in lines[: len(_NAMES)]]
    named = [each[0] for each in words] == list(_NAMES) and all(len(each) == 2 for each in words)
    if not named or not all(each[1].removeprefix("-").isdecimal() for each in words):
        raise MalformedTextError(f"its first lines are not {', '.join(_NAMES)}")
    dirty_offset, map_offset, leader_epoch, next_horizon_ms = (int(each[1]) for each in words)
    segments = tuple(SegmentSize(*numbers_of(line, 2)) for line in lines[len(_NAMES) :])
    return CleanState(
        dirty_offset=dirty_offset,
        map_offset=map_offset,
        leader_epoch=None if leader_epoch == _NONE else leader_epoch,
        next_horizon_ms=None if next_horizon_ms == _NONE else next_horizon_ms,
        segments=segments,
    )


class CleanerCheckpoint:
    """The checkpoint of one log, read at first use; `PartitionLog` writes it."""

    __slots__ = ("_directory", "_disk", "_state")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._state: CleanState | None = None

    @property
    def _path(self) -> str:
        return f"{self._directory}/{CLEANER_FILE}"

    @property
    def state(self) -> CleanState:
        """How far the log was compacted.

        Raises:
            DiskReadError, DiskAccessError, TooManyOpenFilesError: the file cannot be read.
        """
        if self._state is None:
            lines = read_lines(self._disk, self._path)
            try:
                self._state = CleanState() if lines is None else decode_state(lines)
            except MalformedTextError:
                self._state = CleanState()
        return self._state

    def save(self, state: CleanState) -> None:
        """Keep a state and write it without a sync. A lost or old file only costs work, so a full disk is ignored.

        Raises:
            DiskFailedError: the disk is failed for good.
        """
        self._state = state
        try:
            replace_file(self._disk, self._path, encode_lines(state.encode()), durable=False)
        except DiskFullError:
            return

    def follow_swap(self, sources: Iterable[SegmentSize], added: SegmentSize) -> None:
        """Replace the sizes of swapped segments by that of the new one, if the state knew all of those below its dirty offset."""
        state, gone = self.state, set(sources)
        below = {each for each in gone if each.base_offset < state.dirty_offset}
        if below and below.issubset(state.segments):
            self.save(replace(state, segments=tuple(sorted({*state.segments} - gone | {added}))))

    def forget(self) -> None:
        """Forget the state, after a restart has removed everything including the file."""
        self._state = None
