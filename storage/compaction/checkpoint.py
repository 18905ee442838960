# SPDX-License-Identifier: Apache-2.0
"""How far a log was compacted: the text checkpoint `cleaner-checkpoint`.

    dirty_offset <n>         below it everything was compacted as far as possible (exclusive)
    map_offset <n>           below it no record is left that a newer one replaces; at most the dirty offset
    leader_epoch <n>         of the last offset below the dirty offset; -1: none
    next_horizon_ms <n>      the earliest time at which a tombstone may go, in milliseconds since 1970; -1: none waits
    <base offset> <bytes>    one line for each segment that begins below the dirty offset, ascending

Law: a cache of what a pass did, believed only as far as the log is still the same. After a truncation, or files that were put
back, the epoch or the size of a segment differs; the log counts as dirty from there on (all of it, if the epoch differs: by the
law of log matching one offset and epoch stand for one history). Without a whole checkpoint all is dirty. That costs work,
never records.
Source: docs/storage.md section 6; Kafka, cleaner-offset-checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .pass_ import PassOutcome

_NAMES = ("dirty_offset", "map_offset", "leader_epoch", "next_horizon_ms")
_NONE = -1


class SegmentSize(NamedTuple):
    """A segment and the bytes of its log file."""

    base_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanState:
    """How far a log was compacted; see the module for the fields."""

    dirty_offset: int = 0
    map_offset: int = 0
    leader_epoch: int | None = None
    next_horizon_ms: int | None = None
    segments: tuple[SegmentSize, ...] = ()

    @classmethod
    def after(cls, outcome: PassOutcome, *, leader_epoch: int | None, segments: Iterable[SegmentSize]) -> CleanState:
        """Return the state after a pass.

        Args:
            outcome: what the pass did.
            leader_epoch: of the last offset below the outcome's dirty offset.
            segments: all segments of the log.
        """
        return cls(
            dirty_offset=outcome.dirty_offset,
            map_offset=outcome.map_offset,
            leader_epoch=leader_epoch,
            next_horizon_ms=outcome.next_horizon_ms,
            segments=tuple(each for each in segments if each.base_offset < outcome.dirty_offset),
        )

    def offsets_of(
        self, *, leader_epoch: int | None, sealed: Iterable[SegmentSize], sealed_end: int
    ) -> tuple[int, int]:
        """Return (map offset, dirty offset) as far as the log is still the one of this state.

        Args:
            leader_epoch: of the last offset below `dirty_offset`, as the log says now.
            sealed: its sealed segments, ascending.
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


def decode_state(lines: Sequence[str]) -> CleanState | None:
    """Read the lines of the checkpoint; None if they are not such lines."""
    words = [line.split(" ") for line in lines]
    if any(len(each) != 2 for each in words) or [each[0] for each in words[: len(_NAMES)]] != list(_NAMES):
        return None
    try:
        dirty_offset, map_offset, leader_epoch, next_horizon_ms = (int(each[1]) for each in words[: len(_NAMES)])
        segments = tuple(SegmentSize(int(base), int(size)) for base, size in words[len(_NAMES) :])
    except ValueError:
        return None
    return CleanState(
        dirty_offset=dirty_offset,
        map_offset=map_offset,
        leader_epoch=None if leader_epoch == _NONE else leader_epoch,
        next_horizon_ms=None if next_horizon_ms == _NONE else next_horizon_ms,
        segments=segments,
    )
