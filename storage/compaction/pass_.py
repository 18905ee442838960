# SPDX-License-Identifier: Apache-2.0
"""One pass over the sealed segments of one log: builds the key map, then rewrites each group.

Design
    The owner describes the log in a `PassTask` (`owner`). A `CompactionPass` may run in any thread: it reads sealed
    segments, which never change, and writes `.cleaned` files. After each group the owner swaps it
    (`PartitionLog.swap`), and only then the pass writes the next one. So an older record is removed before a later
    tombstone may be.

Laws
    Where an older record may be left, tombstones stay. This begins at `hold_offset`: the first damaged segment, the
    first batch that could not be rewritten, or the end of the key map. `PassOutcome.map_offset` passes it on to the
    next pass, whose key map begins there.
    If the map cannot reach from there to the dirty part, it begins at the dirty part, so that every pass makes
    progress.
    A record of an aborted transaction replaces nothing and does not stay. `transaction_ends` decides on the ends of
    transactions.

Source: docs/storage.md section 6; Kafka, Cleaner.doClean.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from secrets import token_bytes

from lograft.wire.checker import open_keys, open_payload
from lograft.wire.checksum import BytesLike
from lograft.wire.encoded import EncodedBatch
from lograft.wire.errors import BatchTooLargeError
from lograft.wire.header import BatchHeader

from storage.files.disk import Disk
from storage.log.swap import CleanedGroup
from storage.log.transactions import AbortedTransaction
from storage.types import SegmentFacts

from .group_writer import GroupWriter
from .key_hash import SECRET_BYTES, KeyHasher
from .key_map import KeyMap
from .plan import first_damage, group_segments
from .rewrite import Filled, GapFiller, memory_filler, rewrite_batch
from .source import Pace, read_segment
from .survivors import TombstoneRule, find_survivors
from .transaction_ends import TransactionEnds, is_end


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTask:
    """A log as it was when the pass began; a value, so that the thread shares nothing with the owner.

    Attributes:
        directory: directory of the log.
        sealed: its sealed segments, ascending.
        map_offset: below it no record is left that a newer one replaces (exclusive); at most `dirty_offset`.
        dirty_offset: below it everything was compacted as far as possible (exclusive).
        end_offset: end of the pass, exclusive; the end of a segment.
        aborted: aborted transactions with records in the range.
        memory_offsets: base offsets of the batches in the producer state.
        known_producers: ids of all producers that the log knows; empty if it never had a transaction.
        next_horizon_ms: `PassOutcome.next_horizon_ms` of the pass before.
        now_ms: wall clock in milliseconds since 1970.
        delete_retention_ms: how long a tombstone stays after all older records of its key are gone, and the end of a
            transaction after the transaction's records.
        segment_bytes: largest size of a group of several segments.
        interval_bytes: index interval.
        max_keys: most keys of the key map.
        sealed_version: `PartitionLog.sealed_version` at the beginning; the pass is void once it changes.
    """

    directory: str
    sealed: tuple[SegmentFacts, ...]
    map_offset: int
    dirty_offset: int
    end_offset: int
    aborted: tuple[AbortedTransaction, ...]
    memory_offsets: frozenset[int]
    known_producers: frozenset[int]
    next_horizon_ms: int | None
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    interval_bytes: int
    max_keys: int
    sealed_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOutcome:
    """The result of a pass after all its groups were swapped.

    Attributes:
        map_offset: as in `PassTask`, for the next pass.
        dirty_offset: as in `PassTask`, for the next pass.
        next_horizon_ms: earliest time when a tombstone or an end of a transaction may be removed; None: none waits.
        read_count: records read.
        kept_count: records that stayed.
        sealed_version: as in `PassTask`.
    """

    map_offset: int
    dirty_offset: int
    next_horizon_ms: int | None
    read_count: int
    kept_count: int
    sealed_version: int = 0


class CompactionPass:
    """One pass: `build`, then `clean` for each of `groups`, then `outcome`.

    Args:
        disk: the disk of the log.
        task: the log.
        pace: waits as long as the rate limit requires.
    """

    def __init__(self, disk: Disk, task: PassTask, pace: Pace) -> None:
        self._disk = disk
        self._task = task
        self._pace = pace
        self._hold_offset = task.map_offset
        self._reached_offset = task.map_offset
        self._next_horizon_ms: int | None = None
        self._read_count = 0
        self._kept_count = 0
        self._hasher = KeyHasher(token_bytes(SECRET_BYTES))
        self._key_map = self._new_map(task.map_offset)
        self._ends = TransactionEnds(task.known_producers)
        # The transactions of one producer do not overlap, so one search decides.
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        for each in task.aborted:
            self._aborted.setdefault(each.producer_id, []).append(each)

    def build(self) -> None:
        """Build the key map.

        Raises:
            CorruptLogError, BatchError: a batch is damaged, or has a format that this version does not know.
            FileMissingError, DiskReadError, DiskAccessError, TooManyOpenFilesError: a segment cannot be read.
        """
        task = self._task
        self._hold_offset = self._reached_offset = self._build_from(task.map_offset)
        if task.map_offset < task.dirty_offset < task.end_offset and self._reached_offset <= task.dirty_offset:
            self._hold_offset = task.map_offset
            self._reached_offset = self._build_from(task.dirty_offset)
        if task.known_producers and task.next_horizon_ms is not None and task.next_horizon_ms <= task.now_ms:
            self._find_ends_below(self._key_map.start_offset)
        damage_offset = first_damage(task.sealed)
        if damage_offset is not None:
            self._hold_offset = min(self._hold_offset, damage_offset)

    def _build_from(self, start_offset: int) -> int:
        """Build the map from an offset on; return its end (exclusive)."""
        task = self._task
        self._key_map = key_map = self._new_map(start_offset)
        for segment in task.sealed:
            if segment.end_offset <= start_offset or segment.base_offset >= task.end_offset or segment.is_damaged:
                continue
            for header, batch in read_segment(self._disk, task.directory, segment, self._pace):
                if header.next_offset > start_offset and not self._add(key_map, header, batch):
                    return key_map.end_offset
        return max(start_offset, task.end_offset)

    def _new_map(self, start_offset: int) -> KeyMap:
        return KeyMap(self._task.max_keys, start_offset=start_offset, hasher=self._hasher)

    def _find_ends_below(self, offset: int) -> None:
        """Find the newest end of each producer below the map too, because an older one may be removed."""
        for segment in self._task.sealed:
            if segment.base_offset < offset and not segment.is_damaged:
                for header, _ in read_segment(self._disk, self._task.directory, segment, self._pace):
                    self._ends.note_end(header)

    def _add(self, key_map: KeyMap, header: BatchHeader, batch: BytesLike) -> bool:
        self._ends.note_end(header)
        if header.is_filler or header.is_control or self._is_aborted(header):
            return key_map.add(None, header.base_offset, header.next_offset)
        keys = open_keys(batch, header)
        if keys is None:
            return key_map.add(None, header.base_offset, header.next_offset, is_keyless=True)
        return key_map.add(keys, header.base_offset, header.next_offset, is_keyless=bool(keys.nulls))

    def _is_aborted(self, header: BatchHeader) -> bool:
        """Tell whether the records of a batch belong to an aborted transaction: they replace nothing, and none of them stays."""
        if not header.is_transactional or header.is_control:
            return False
        ended = self._aborted.get(header.producer_id, [])
        slot = bisect_left(ended, header.base_offset, key=attrgetter("last_offset"))
        return slot < len(ended) and ended[slot].first_offset <= header.base_offset

    def groups(self) -> list[tuple[SegmentFacts, ...]]:
        """Return the groups to clean, ascending."""
        task = self._task
        end_offset = min(self._reached_offset, task.end_offset)
        return group_segments(task.sealed, end_offset=end_offset, segment_bytes=task.segment_bytes)

    def clean(self, group: tuple[SegmentFacts, ...]) -> CleanedGroup | None:
        """Rewrite one group; None if nothing changes.

        Raises:
            DiskFullError, DiskFailedError: the group cannot be written; its file is removed.
            CorruptLogError, BatchError, FileMissingError, DiskReadError, DiskAccessError, TooManyOpenFilesError: as in
                `build`.
        """
        task = self._task
        writer = GroupWriter(self._disk, task.directory, group, interval_bytes=task.interval_bytes, pace=self._pace)
        try:
            gaps = GapFiller()
            for segment in group:
                for header, batch in read_segment(self._disk, task.directory, segment, self._pace, self._needs_bytes):
                    self._clean_batch(writer, gaps, header, batch)
            _put_all(writer, (gaps.take(),))
            return writer.finish()
        except BaseException:
            writer.discard()
            raise

    def _clean_batch(self, writer: GroupWriter, gaps: GapFiller, header: BatchHeader, batch: BytesLike) -> None:
        """Write what is left of one batch."""
        rewritten = None if header.is_filler else self._rewrite(header, batch)
        if rewritten is not None:
            if not header.is_control:
                self._ends.note_left(header)
            _put_all(writer, (gaps.take(),))
            writer.put(rewritten, is_unchanged=rewritten is batch)
        elif header.has_producer and header.base_offset in self._task.memory_offsets:
            _put_all(writer, (gaps.take(),))
            writer.put(batch if header.is_filler else memory_filler(header), is_unchanged=header.is_filler)
        else:
            _put_all(writer, (gaps.add(header),))

    def _needs_bytes(self, header: BatchHeader) -> bool:
        """Tell whether a batch must be read; if not, only its offsets are left.

        A batch may be skipped only if the map has checked its bytes. Otherwise a damaged header could remove it.
        """
        if header.is_filler or header.is_control or header.base_offset in self._task.memory_offsets:
            return True
        return not self._key_map.took_up(header.next_offset) or self._may_stay(header)

    def _may_stay(self, header: BatchHeader) -> bool:
        """Tell whether a batch must be examined record by record; if not, none of its records stays."""
        return not self._key_map.empties(header.base_offset, header.next_offset) and not self._is_aborted(header)

    def _rewrite(self, header: BatchHeader, batch: BytesLike) -> BytesLike | EncodedBatch | None:
        """Return what stays of a batch that is not a filler; None: nothing."""
        task = self._task
        rule = TombstoneRule(now_ms=task.now_ms, retention_ms=task.delete_retention_ms, end_offset=self._hold_offset)
        if header.is_control:
            return self._rewrite_end(header, batch, rule) if is_end(header) else batch
        self._read_count += header.record_count
        if not self._may_stay(header):
            return None
        payload = open_payload(batch, header)
        stays, horizon_ms = find_survivors(header, payload, self._key_map, rule)
        if 1 not in stays:
            return None
        try:
            rewritten = rewrite_batch(header, payload, stays, delete_horizon_ms=horizon_ms)
        except BatchTooLargeError:
            # The batch stays as it is, with records that are older than those behind it.
            self._hold_offset = min(self._hold_offset, header.base_offset)
            self._kept_count += header.record_count
            return batch
        self._kept_count += stays.count(1)
        if horizon_ms is not None and header.next_offset <= self._hold_offset:
            self._note_horizon(horizon_ms)
        return batch if rewritten is None else rewritten

    def _rewrite_end(
        self, header: BatchHeader, batch: BytesLike, rule: TombstoneRule
    ) -> BytesLike | EncodedBatch | None:
        """Return what is left of the end of a transaction; None: nothing."""
        end = self._ends.decide(header, rule)
        if not end.stays:
            return None
        if end.due_ms is not None:
            self._note_horizon(end.due_ms)
        everything = bytearray(b"\1") * header.record_count
        payload = open_payload(batch, header)
        rewritten = rewrite_batch(header, payload, everything, delete_horizon_ms=end.delete_horizon_ms)
        return batch if rewritten is None else rewritten

    def _note_horizon(self, horizon_ms: int) -> None:
        known_ms = self._next_horizon_ms
        self._next_horizon_ms = horizon_ms if known_ms is None else min(known_ms, horizon_ms)

    def outcome(self) -> PassOutcome:
        """Return the state of the log after all groups were swapped."""
        task = self._task
        # If the map ends below the dirty offset, records between the two may still be replaced.
        knows_all = self._reached_offset >= task.dirty_offset
        return PassOutcome(
            map_offset=self._hold_offset if knows_all else min(task.map_offset, self._hold_offset),
            dirty_offset=max(self._reached_offset, task.dirty_offset),
            next_horizon_ms=self._next_horizon_ms,
            read_count=self._read_count,
            kept_count=self._kept_count,
            sealed_version=task.sealed_version,
        )


def _put_all(writer: GroupWriter, fillers: Iterable[Filled | None]) -> None:
    for filled in fillers:
        if filled is not None:
            writer.put(filled.filler, is_unchanged=filled.is_unchanged)
