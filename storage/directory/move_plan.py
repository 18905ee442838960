# SPDX-License-Identifier: Apache-2.0
"""Computes the next round of a move: the difference between a log and its copy. Pure.

Design
    The owner of the log describes its segments (`SegmentView`); the copy knows what it holds (`CopiedSegment`).
    `plan_round` returns what makes the copy equal to the view. In the meantime the log grows, and the next round is
    smaller. An append makes a segment longer. Any other change (a truncation, a compaction, a removal of old segments)
    gives the segment another generation or removes it. Then its copy is removed and made again.

Laws
    After a complete round, the copy equals the log at the time of the view, byte for byte.
    The last round, during which nothing may be appended, begins only when at most `SWITCH_BYTES` are left to copy.

Source: docs/storage.md section 11; Kafka, ReplicaAlterLogDirsThread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SWITCH_BYTES = 1024 * 1024
"""Most bytes that the last round of a move copies, while appends are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentView:
    """One segment of the log, as its owner sees it.

    Attributes:
        base_offset: base offset, which names its file.
        size_bytes: bytes of batches; they never change within one generation.
        generation: changes whenever bytes below `size_bytes` may have changed.
    """

    base_offset: int
    size_bytes: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedSegment:
    """What the copy holds of one segment.

    Attributes:
        size_bytes: number of copied bytes, from the start of the file.
        generation: generation of the segment when they were copied.
    """

    size_bytes: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCopy:
    """Bytes of one segment to copy: `[from_bytes, to_bytes)` of its file."""

    base_offset: int
    from_bytes: int
    to_bytes: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRound:
    """The steps that make the copy equal to the view of the log.

    Attributes:
        removals: base offsets of segments whose copies are removed first; ascending.
        copies: bytes to copy afterwards; ascending.
    """

    removals: tuple[int, ...]
    copies: tuple[SegmentCopy, ...]

    @property
    def size_bytes(self) -> int:
        """Number of bytes to copy."""
        return sum(copy.to_bytes - copy.from_bytes for copy in self.copies)

    @property
    def may_switch(self) -> bool:
        """True if little enough is left for the last round."""
        return self.size_bytes <= SWITCH_BYTES


def plan_round(segments: Sequence[SegmentView], copied: Mapping[int, CopiedSegment]) -> CopyRound:
    """Return the next round.

    Args:
        segments: the log, ascending.
        copied: the copy, by base offset.
    """
    by_base = {segment.base_offset: segment for segment in segments}
    stale = {base for base, known in copied.items() if not _is_prefix(known, by_base.get(base))}
    copies: list[SegmentCopy] = []
    for segment in segments:
        known = None if segment.base_offset in stale else copied.get(segment.base_offset)
        from_bytes = 0 if known is None else known.size_bytes
        # An empty segment needs a file too.
        if known is None or from_bytes < segment.size_bytes:
            copies.append(
                SegmentCopy(
                    base_offset=segment.base_offset,
                    from_bytes=from_bytes,
                    to_bytes=segment.size_bytes,
                    generation=segment.generation,
                )
            )
    return CopyRound(removals=tuple(sorted(stale)), copies=tuple(copies))


def _is_prefix(known: CopiedSegment, segment: SegmentView | None) -> bool:
    return segment is not None and known.generation == segment.generation and known.size_bytes <= segment.size_bytes
