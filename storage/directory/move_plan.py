# SPDX-License-Identifier: Apache-2.0
"""What a move of a log to another directory does next: the difference between a log and its copy. Pure.

Theory
    The owner of the log describes its segments (`SegmentView`), the copy knows what it holds (`CopiedSegment`). `plan_round`
    says what makes the copy equal to the view; when that is done the log has gone on, and the next round is smaller. Appends
    make a segment longer. Whatever else happens to a log (a cut, compaction, removal at the front) gives a segment another
    generation, or takes it away: then its copy is removed and made anew.

Laws
    After a round is carried out in full, the copy is what the log was when it was viewed, byte for byte.
    The last step, under which nothing may be appended, begins only when at most `SWITCH_BYTES` are left to copy.

Source: docs/storage.md section 11; Kafka, ReplicaAlterLogDirsThread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SWITCH_BYTES = 1024 * 1024
"""Most bytes that the last step of a move copies, while appends are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentView:
    """One segment of the log, as its owner sees it.

    Attributes:
        base_offset: names its file.
        size_bytes: bytes of batches; they never change within one generation.
        generation: another number once bytes below `size_bytes` may be others than before.
    """

    base_offset: int
    size_bytes: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedSegment:
    """What the copy holds of one segment.

    Attributes:
        size_bytes: bytes from the start of the file on.
        generation: of the segment when they were copied.
    """

    size_bytes: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCopy:
    """Bytes of one segment that are to be copied: `[from_bytes, to_bytes)` of its file."""

    base_offset: int
    from_bytes: int
    to_bytes: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRound:
    """What makes the copy equal to the log as it was viewed.

    Attributes:
        removals: base offsets of segments whose copy goes, first; ascending.
        copies: what is copied then; ascending.
    """

    removals: tuple[int, ...]
    copies: tuple[SegmentCopy, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes that are to be copied."""
        return sum(copy.to_bytes - copy.from_bytes for copy in self.copies)

    @property
    def may_switch(self) -> bool:
        """True if what is left is little enough for the last step."""
        return self.size_bytes <= SWITCH_BYTES


def plan_round(segments: Sequence[SegmentView], copied: Mapping[int, CopiedSegment]) -> CopyRound:
    """Return what is to be done.

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
        # An empty segment is a file too.
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
