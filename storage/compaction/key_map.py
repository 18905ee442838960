# SPDX-License-Identifier: Apache-2.0
"""Finds the newest record of each key, in bounded memory. Pure.

Design
    The map is columns of numbers, not a table of objects. Each record has a 128-bit hash of its key (`key_hash`) and a
    position: the base offset of its batch plus its index in the batch. Adding a record only writes these down. At the
    first question, or when there is no room, the map sorts the records by hash and keeps the largest position of each
    hash. The records that stay of an added batch are then a slice of the sorted positions, so no key is read again.
    Only batches below the start of the map are looked up by key. All of it runs in loops of numpy, mostly outside the
    interpreter lock.

Laws
    The map holds at most `max_keys` records or keys; a batch with records that have no key counts as one more. It adds
    a batch as a whole or not at all. So for every record below `end_offset` it knows a newer one between its start and
    `end_offset`, if there is one. From seven eighths of `max_keys` on it may refuse a batch that would fit, because
    finding out would mean sorting everything for every batch.
    Two different keys count as one with probability 2^-128 (`key_hash`).

Source: docs/storage.md section 6; Kafka, SkimpyOffsetMap (which treats keys with equal MD5 digests as equal).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

import numpy as np
import numpy.typing as npt
from lograft.wire.columns import BytesColumn
from lograft.wire.limits import MAX_RECORDS_PER_BATCH

from .key_hash import Hashes, KeyHasher, copy_column, join_columns

KEY_MEMORY_BYTES = 96
"""Most memory of one key of the map, including the temporary memory of a sort."""

_SORT_SHARE = 8
"""A full map is sorted only if at least this share (one in this many) was added since the last sort."""

_HASH_RECORDS = 4_096
"""Number of records whose keys are hashed together; for a few hundred, the calls would cost more than the hashing."""

_HASH_BYTES = 1024 * 1024
"""Most bytes of keys that wait to be hashed, plus those of one batch."""

_SLOTS_PER_HASH = 2
"""Smallest number of table slots for each hash; more slots mean fewer collisions of different hashes."""

_Flags = npt.NDArray[np.bool_]
_Positions = npt.NDArray[np.int64]


class KeyMap:
    """The newest record of each key, for a run of batches.

    Args:
        max_keys: most keys, inclusive; at least the most records of a batch, so that every pass makes progress.
        start_offset: offset of the first record that will be added, inclusive.
        hasher: hashes the keys.

    Attributes:
        start_offset: as above.
        end_offset: end of the batches added so far (exclusive).
    """

    __slots__ = (
        "_added",
        "_asked",
        "_count",
        "_hasher",
        "_high",
        "_kept",
        "_kept_view",
        "_keyless",
        "_low",
        "_max_keys",
        "_positions",
        "_waiting",
        "_waiting_bases",
        "_waiting_bytes",
        "_waiting_count",
        "end_offset",
        "start_offset",
    )

    def __init__(self, max_keys: int, *, start_offset: int, hasher: KeyHasher) -> None:
        assert max_keys >= MAX_RECORDS_PER_BATCH, f"{max_keys} keys are fewer than a batch may have"
        self._max_keys = max_keys
        self._hasher = hasher
        # Upper and lower half of the hash and the position of `_count` records. The first `_count - _added` are sorted
        # by hash, and each is the newest of its key. Pages that were never written take no memory.
        self._high: npt.NDArray[np.uint64] = np.empty(max_keys, np.uint64)
        self._low: npt.NDArray[np.uint64] = np.empty(max_keys, np.uint64)
        self._positions: _Positions = np.empty(max_keys, np.int64)
        self._count = 0
        self._added = 0
        # Keys of the last `_waiting_count` records, not hashed yet, and the base offset of each of their batches.
        self._waiting: list[BytesColumn] = []
        self._waiting_bases: list[int] = []
        self._waiting_count = 0
        self._waiting_bytes = 0
        # The positions, ascending, and a view of them; None: not sorted since the last addition.
        self._kept: array[int] | None = None
        self._kept_view = self._positions[:0]
        # The last requested batch and its answer, because several questions come for each batch.
        self._asked: tuple[int, _Positions] = -1, self._positions[:0]
        # Base offsets of the batches with records without a key.
        self._keyless: set[int] = set()
        self.start_offset = start_offset
        self.end_offset = start_offset

    def __len__(self) -> int:
        """Return the number of keys, plus that of batches with records without a key."""
        self._sort()
        return self._count + len(self._keyless)

    def add(self, keys: BytesColumn | None, base_offset: int, next_offset: int, *, is_keyless: bool = False) -> bool:
        """Add the next batch.

        Args:
            keys: the keys of its records; a record with a null key replaces nothing. None: no record has a key, or none
                counts.
            base_offset: first offset of the batch, inclusive.
            next_offset: offset after the batch, which becomes the end of the map.
            is_keyless: True if the batch has records without a key, which stay.

        Returns:
            False if the batch may not fit; then nothing was added.
        """
        assert next_offset > self.end_offset, f"a batch that ends at {next_offset}, after {self.end_offset}"
        count = 0 if keys is None else keys.record_count - len(keys.nulls)
        if not self._has_room(count + is_keyless):
            return False
        if keys is not None and count > 0:
            self._write_down(keys, base_offset)
        if is_keyless:
            self._keyless.add(base_offset)
        self.end_offset = next_offset
        return True

    def _has_room(self, count: int) -> bool:
        if self._count + len(self._keyless) + count <= self._max_keys:
            return True
        if self._added < self._max_keys // _SORT_SHARE:
            return False
        self._sort()
        return self._count + len(self._keyless) + count <= self._max_keys

    def _write_down(self, keys: BytesColumn, base_offset: int) -> None:
        start = self._count
        if keys.nulls:
            self._hash_waiting()
            indexes = np.arange(base_offset, base_offset + keys.record_count, dtype=np.int64)
            indexes = np.delete(indexes, keys.nulls)
            self._count = start + len(indexes)
            self._positions[start : self._count] = indexes
            self._put_hashes(np.delete(self._hasher.hash_column(keys), keys.nulls, axis=0), start)
        else:
            self._waiting.append(copy_column(keys))
            self._waiting_bases.append(base_offset)
            self._waiting_count += keys.record_count
            self._waiting_bytes += len(keys.blob)
            self._count = start + keys.record_count
        self._added += self._count - start
        self._kept = None
        if self._waiting_count >= _HASH_RECORDS or self._waiting_bytes >= _HASH_BYTES:
            self._hash_waiting()

    def _hash_waiting(self) -> None:
        if not self._waiting:
            return
        start = self._count - self._waiting_count
        counts = np.array([column.record_count for column in self._waiting], np.int64)
        bases = np.array(self._waiting_bases, np.int64) - (np.cumsum(counts) - counts)
        self._positions[start : self._count] = np.arange(self._waiting_count) + np.repeat(bases, counts)
        for column in join_columns(self._waiting):
            self._put_hashes(self._hasher.hash_column(column), start)
            start += column.record_count
        self._waiting.clear()
        self._waiting_bases.clear()
        self._waiting_count = self._waiting_bytes = 0

    def _put_hashes(self, hashes: Hashes, start: int) -> None:
        end = start + len(hashes)
        self._high[start:end] = hashes[:, 0]
        self._low[start:end] = hashes[:, 1]

    def _sort(self) -> None:
        """Keep the largest position of each hash, ordered by hash."""
        if self._added == 0:
            return
        self._hash_waiting()
        some = _not_replaced(self._high[: self._count], self._low[: self._count])
        high, low, end = self._high[some], self._low[some], len(some)
        # Replace the low bits of each hash by its index. Sorting such hashes takes a third of the time of finding their
        # order, and the newest of those with equal upper bits comes last.
        bits = np.uint64(end.bit_length())
        packed = (high >> bits << bits) | np.arange(end, dtype=np.uint64)
        packed.sort()
        order = (packed & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.intp)
        packed >>= bits
        is_same = _same_as_next(high, low, order)
        if np.any((packed[1:] == packed[:-1]) != is_same):
            # Different hashes share their upper bits, and may alternate.
            order = np.lexsort((low, high))
            is_same = _same_as_next(high, low, order)
        newest = some[order[np.flatnonzero(np.concatenate((~is_same, np.ones(1, np.bool_))))]]
        self._count = len(newest)
        self._added = 0
        for column in (self._high, self._low, self._positions):
            column[: self._count] = column[newest]

    def took_up(self, next_offset: int) -> bool:
        """Tell whether the batch that ends at `next_offset` was added, so that `kept_count` knows what stays of it."""
        return self.start_offset < next_offset <= self.end_offset

    def kept_count(self, base_offset: int, next_offset: int) -> int:
        """Return the number of keys whose newest record is in a batch; 0 for a batch that was not added."""
        return len(self._kept_in(base_offset, next_offset))

    def _kept_in(self, base_offset: int, next_offset: int) -> _Positions:
        """Return the positions of the newest records in a batch, ascending."""
        kept = self._kept
        if kept is None:
            self._sort()
            kept = self._kept = array("q", np.sort(self._positions[: self._count]).tobytes())
            self._kept_view = np.frombuffer(kept, np.int64)
        elif self._asked[0] == base_offset:
            return self._asked[1]
        start = bisect_left(kept, base_offset)
        end = bisect_left(kept, next_offset, start, min(len(kept), start + next_offset - base_offset))
        self._asked = base_offset, self._kept_view[start:end]
        return self._asked[1]

    def empties(self, base_offset: int, next_offset: int) -> bool:
        """Tell whether certainly no record of a batch stays; False if its columns must be examined."""
        if not self.took_up(next_offset) or base_offset in self._keyless:
            return False
        return not self.kept_count(base_offset, next_offset)

    def stays(self, keys: BytesColumn, base_offset: int, next_offset: int) -> bytearray:
        """Tell for each record of a batch whether no newer record of its key is known.

        Args:
            keys: its keys.
            base_offset: first offset of the batch, inclusive.
            next_offset: offset after the batch.

        Returns:
            1 for each record that stays, 0 for each other. A record without a key has no newer one.
        """
        if next_offset > self.end_offset:
            return bytearray(b"\1") * keys.record_count
        if self.took_up(next_offset):
            stays = bytearray(keys.record_count)
            np.frombuffer(stays, np.uint8)[self._kept_in(base_offset, next_offset) - base_offset] = 1
        else:
            stays = bytearray((~self._has(self._hasher.hash_column(keys))).tobytes())
        for at in keys.nulls:
            stays[at] = 1
        return stays

    def _has(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Tell for each hash whether the map holds it."""
        self._sort()
        if self._count == 0:
            return np.zeros(len(hashes), np.bool_)
        high, low = self._high[: self._count], self._low[: self._count]
        at = np.minimum(high.searchsorted(hashes[:, 0]), self._count - 1)
        while True:
            is_same_high = high[at] == hashes[:, 0]
            is_found = is_same_high & (low[at] == hashes[:, 1])
            # Keys with the same upper half are adjacent.
            may_follow = is_same_high & ~is_found & (at < self._count - 1)
            if not may_follow.any():
                return is_found
            at = at + may_follow


def _not_replaced(high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
    """Return the indexes of the hashes without a known later equal, ascending.

    Most hashes with a later equal are found in a table whose slots hold the last hash that maps to them. Where keys
    repeat often, sorting only the others takes a fraction of the time.
    """
    count = len(high)
    indexes = np.arange(count, dtype=np.int32)
    slots = (high & np.uint64((_SLOTS_PER_HASH << count.bit_length()) - 1)).astype(np.intp)
    # The function reads only slots that it has written.
    table = np.empty(_SLOTS_PER_HASH << count.bit_length(), np.int32)
    table[slots] = indexes
    last = table[slots]
    is_replaced = (last > indexes) & (high[last] == high) & (low[last] == low)
    return np.flatnonzero(~is_replaced)


def _same_as_next(high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64], order: npt.NDArray[np.intp]) -> _Flags:
    """Tell for each hash but the last, in the given order, whether the next one is equal."""
    high, low = high[order], low[order]
    return (high[1:] == high[:-1]) & (low[1:] == low[:-1])
