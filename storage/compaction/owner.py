# SPDX-License-Identifier: Apache-2.0
"""Owner side of the compaction of one log: what it is like, the task of a pass, and each swap.

Theory
    `facts` -> (`plan.find_range` decides) -> `begin` gives the task of a `CompactionPass`, which works in another thread ->
    `swap` each group that it wrote -> `end`. Every call here is short, but `swap`, which syncs the directory three times.
    Appends, retention and truncation go on in between; a group whose sources changed meanwhile is thrown away, and so is a
    pass under which the log was restarted. One pass of a log is under way at a time.

Belongs to the owner of the log. Source: docs/storage.md section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from storage.errors import DiskFullError
from storage.files.checkpoints import encode_lines, read_lines, remove_if_exists, replace_file
from storage.files.disk import Disk
from storage.files.names import CLEANER_FILE
from storage.log.flush_state import FlushState
from storage.log.producers import ProducerWindows
from storage.log.reader import LogReader
from storage.log.recovery import LogParts
from storage.log.tail import LogTail
from storage.segment.segment import Segment

from .checkpoint import CleanState, SegmentSize, decode_state
from .group_writer import CleanedGroup
from .pass_ import PassOutcome, PassTask
from .plan import CompactionRange, CompactionRules, LogFacts, SegmentFacts
from .swap import swap_group


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownFacts:
    """What was found out about a segment while it was of this size."""

    segment: Segment
    facts: SegmentFacts


class LogCompaction:
    """See the module docstring.

    Args:
        disk: the disk of the log.
        directory: its directory.
        parts: what it consists of.
        tail: its append side, which has the settings.
        flush_state: its flush side.
        reader: its read side, which forgets positions.
        writing: refuses a log that cannot be written, and notes a failure of the disk.
    """

    __slots__ = (
        "_directory",
        "_disk",
        "_facts",
        "_flush_state",
        "_is_void",
        "_parts",
        "_reader",
        "_state",
        "_tail",
        "_writing",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        parts: LogParts,
        tail: LogTail,
        flush_state: FlushState,
        reader: LogReader,
        writing: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._parts = parts
        self._tail = tail
        self._flush_state = flush_state
        self._reader = reader
        self._writing = writing
        self._state: CleanState | None = None
        self._is_void = False
        # Made at the first look: most logs are not compacted.
        self._facts: dict[int, _KnownFacts] | None = None

    @property
    def disk(self) -> Disk:
        """The disk of the log, for the pass."""
        return self._disk

    @property
    def rules(self) -> CompactionRules | None:
        """When the log is due, as its settings say; None: it is not compacted."""
        settings = self._tail.settings
        if not settings.compact:
            return None
        return CompactionRules(
            min_compaction_lag_ms=settings.min_compaction_lag_ms,
            max_compaction_lag_ms=settings.max_compaction_lag_ms,
            min_cleanable_dirty_ratio=settings.min_cleanable_dirty_ratio,
        )

    @property
    def dirty_offset(self) -> int:
        """Nothing at or beyond it was ever compacted: there, every replica has the bytes that the leader appended (inclusive)."""
        return self._clean_offsets()[1]

    def facts(self, high_watermark: int) -> LogFacts:
        """Return what the plan needs to know. Reads the index of each new sealed segment once.

        Args:
            high_watermark: nothing at or beyond it is touched (exclusive). What is not flushed, or
                not below the first open transaction, is not touched either.

        Raises:
            DiskFailedError, LogClosedError: nothing can be compacted.
            DiskReadError, CorruptLogError: a segment cannot be read.
        """
        with self._writing():
            _, dirty_offset = self._clean_offsets()
            return LogFacts(
                sealed=self._sealed(),
                dirty_offset=dirty_offset,
                stable_end_offset=self._parts.producers.last_stable_offset(
                    min(high_watermark, self._flush_state.flushed_offset)
                ),
                next_horizon_ms=self._known_state().next_horizon_ms,
            )

    def begin(self, chosen: CompactionRange, *, now_ms: int, max_keys: int) -> PassTask:
        """Describe the log to a pass over the range that was chosen.

        Args:
            chosen: the range.
            now_ms: wall clock in milliseconds since 1970.
            max_keys: most keys of the key map.

        Raises:
            DiskFailedError, LogClosedError, DiskReadError, CorruptLogError: as `facts`.
        """
        with self._writing():
            self._is_void = False
            settings = self._tail.settings
            map_offset, dirty_offset = self._clean_offsets()
            producers = self._parts.producers
            aborted = producers.transactions.aborted_between(0, chosen.end_offset) if producers.has_transactions else ()
            return PassTask(
                directory=self._directory,
                sealed=tuple(each for each in self._sealed() if each.end_offset <= chosen.end_offset),
                map_offset=map_offset,
                dirty_offset=dirty_offset,
                end_offset=chosen.end_offset,
                aborted=tuple(aborted),
                memory_offsets=self._memory_offsets(),
                known_producers=self._known_producers(),
                next_horizon_ms=self._known_state().next_horizon_ms,
                now_ms=now_ms,
                delete_retention_ms=settings.delete_retention_ms,
                segment_bytes=settings.segment_bytes,
                interval_bytes=settings.index_interval_bytes,
                max_keys=max_keys,
            )

    def _memory_offsets(self) -> frozenset[int]:
        """Return the base offsets of the batches in all idempotence windows, those that a power failure brings back included."""
        return frozenset(
            batch.base_offset for each in self._windows() for _, state in each.states() for batch in state.batches()
        )

    def _known_producers(self) -> frozenset[int]:
        """Return the ids of all producers, those that a power failure brings back included; none without a transaction."""
        if not self._parts.producers.has_transactions:
            return frozenset()
        return frozenset(producer_id for each in self._windows() for producer_id, _ in each.states())

    def _windows(self) -> list[ProducerWindows]:
        """Return the idempotence windows, as they are and as they would be after a power failure."""
        producers, flushed_offset = self._parts.producers, self._flush_state.flushed_offset
        windows = [producers]
        if producers.has_batch_from(flushed_offset):
            # Without what is not flushed the windows reach further back.
            newest = self._parts.snapshots.newest(flushed_offset)
            windows += [newest[1]] if newest is not None else []
        return windows

    def holds(self, segments: Iterable[SegmentFacts]) -> bool:
        """Tell whether the log still has these sealed segments, as a pass that is under way was told of them."""
        if self._is_void:
            return False
        held = {(each.base_offset, each.end_offset, each.size_bytes) for each in self._parts.segments}
        return all((each.base_offset, each.end_offset, each.size_bytes) in held for each in segments)

    def swap(self, cleaned: CleanedGroup, *, now_ms: int) -> bool:
        """Put a group in the place of its sources; waits for the device.

        Args:
            cleaned: the group.
            now_ms: the owner's clock in milliseconds.

        Returns:
            False if the log changed meanwhile: the group is thrown away, and the pass must end.

        Raises:
            DiskFullError, DiskAccessError: nothing changed.
            DiskFailedError, LogClosedError: the log can no longer be written.
        """
        with self._writing():
            if self._is_void:
                remove_if_exists(self._disk, cleaned.path)
                return False
            return self._swap(cleaned, now_ms)

    def swap_repaired(self, repaired: CleanedGroup, *, now_ms: int) -> bool:
        """Put a segment whose damage was repaired in the place of the damaged one; otherwise as `swap`."""
        with self._writing():
            return self._swap(repaired, now_ms)

    def _swap(self, cleaned: CleanedGroup, now_ms: int) -> bool:
        if not swap_group(self._disk, self._directory, self._parts, cleaned, now_ms=now_ms):
            return False
        # Positions are remembered by segment, timestamps by the place of the segment.
        self._reader.forget_all()
        # What was compacted already has another size now; without this the whole of it would count as dirty.
        self._follow_swap(cleaned)
        return True

    def end(self, outcome: PassOutcome) -> None:
        """Note what a pass did, after its last swap.

        Raises:
            DiskFailedError, LogClosedError: the log can no longer be written.
        """
        with self._writing():
            if self._is_void:
                return
            leader_epoch = self._epoch_below(outcome.dirty_offset)
            self._save(CleanState.after(outcome, leader_epoch=leader_epoch, segments=_sizes(self._parts.segments)))

    def forget(self) -> None:
        """Forget how far the log was compacted, after everything in it has gone; the checkpoint is gone too.

        A pass under way is void: segments of another history may have the offsets and sizes of those that it read.
        """
        self._state = None
        self._facts = None
        self._is_void = True

    def _follow_swap(self, cleaned: CleanedGroup) -> None:
        """Put the new segment into the list of known sizes, if its sources were all there."""
        state = self._known_state()
        sources = {SegmentSize(each.base_offset, each.size_bytes) for each in cleaned.sources}
        below = {each for each in sources if each.base_offset < state.dirty_offset}
        if not below or not below.issubset(state.segments):
            return
        added = SegmentSize(cleaned.sources[0].base_offset, cleaned.size_bytes)
        self._save(replace(state, segments=tuple(sorted({*state.segments} - sources | {added}))))

    def _save(self, state: CleanState) -> None:
        """Keep a state, and write it without a sync: one that is lost, or old, only costs work."""
        self._state = state
        try:
            replace_file(self._disk, self._path, encode_lines(state.encode()), durable=False)
        except DiskFullError:
            return

    @property
    def _path(self) -> str:
        return f"{self._directory}/{CLEANER_FILE}"

    def _known_state(self) -> CleanState:
        if self._state is None:
            lines = read_lines(self._disk, self._path)
            self._state = (decode_state(lines) if lines is not None else None) or CleanState()
        return self._state

    def _clean_offsets(self) -> tuple[int, int]:
        """Return (map offset, dirty offset), both within the log."""
        state = self._known_state()
        segments = self._parts.segments
        active = segments.active
        map_offset, dirty_offset = state.offsets_of(
            leader_epoch=self._epoch_below(state.dirty_offset),
            sealed=_sizes(each for each in segments if each is not active),
            sealed_end=active.base_offset,
        )
        first_offset = segments.base_offset
        return max(map_offset, first_offset), max(dirty_offset, first_offset)

    def _epoch_below(self, offset: int) -> int | None:
        return self._parts.epochs.epoch_at(offset - 1) if offset > 0 else None

    def _sealed(self) -> tuple[SegmentFacts, ...]:
        segments = self._parts.segments
        facts = self._facts = {
            segment.base_offset: self._facts_of(segment) for segment in segments if segment is not segments.active
        }
        return tuple(replace(known.facts, is_damaged=bool(known.segment.damages())) for known in facts.values())

    def _facts_of(self, segment: Segment) -> _KnownFacts:
        """Return what is known of a sealed segment; its index is read once, and closed again like after a read."""
        known = self._facts.get(segment.base_offset) if self._facts is not None else None
        if known is not None and known.segment is segment and known.facts.size_bytes == segment.size_bytes:
            return known
        index = segment.load_index(self._tail.settings.index_interval_bytes)
        self._parts.segments.note_read(segment, self._flush_state.flushed_offset)
        facts = SegmentFacts(
            base_offset=segment.base_offset,
            end_offset=segment.end_offset,
            size_bytes=segment.size_bytes,
            # A filler has no time of its own: 0.
            first_timestamp_ms=index.first_timestamp_ms or index.max_timestamp_ms or None,
            max_timestamp_ms=index.max_timestamp_ms or 0,
        )
        return _KnownFacts(segment=segment, facts=facts)


def _sizes(segments: Iterable[Segment]) -> list[SegmentSize]:
    return [SegmentSize(segment.base_offset, segment.size_bytes) for segment in segments]
