# SPDX-License-Identifier: Apache-2.0
"""Which record is the newest of each key, in bounded memory. Pure.

Theory
    Columns of numbers, not a table of objects: for each record a 128-bit hash of its key (`key_hash`) and its position (base
    offset of its batch plus its index there). Records are only written down when they are added; once, at the first question, or
    when there is no room, they are sorted by hash, and of each hash the largest position is kept. What stays of a batch that was
    added is then a slice of the sorted positions: no key is looked at again. Only batches below the start of the map are
    asked by key. All of it runs in loops of numpy, mostly outside of the interpreter lock.

Laws
    Holds at most `max_keys` records or keys; a batch with records that have no key counts as one more. A batch is taken up as a
    whole or not at all, so that `end_offset` says exactly how far the map knows: of no record below it is a newer one missing
    from the map. From seven eighths of `max_keys` on a batch may be refused even if it would fit: to find out would mean sorting
    everything for every batch.
    Two keys count as one with probability 2^-128 (`key_hash`).

Source: docs/storage.md section 6; Kafka, SkimpyOffsetMap (which takes equal MD5 digests for equal keys).
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
"""Most memory of one key of the map, what sorting takes for a moment included."""

_SORT_SHARE = 8
"""A full map is sorted if at least this share of it was added since the last time."""

_HASH_RECORDS = 4_096
"""Records whose keys are hashed together: on a few hundred, the calls would cost more than the hashing."""

_HASH_BYTES = 1024 * 1024
"""Bytes of keys that wait to be hashed, at most, and one batch's."""

_SLOTS_PER_HASH = 2
"""Slots of the table of last hashes, for each hash at least: few different ones meet in one."""

_Flags = npt.NDArray[np.bool_]
_Positions = npt.NDArray[np.int64]


class KeyMap:
    """The newest record of each key, for a run of batches.

    Args:
        max_keys: most keys, inclusive; at least as many as a batch has records, so that a pass always gets on.
        start_offset: offset of the first record that will be added, inclusive.
        hasher: hashes the keys.

    Attributes:
        start_offset: see above.
        end_offset: all batches from the start to here were taken up (exclusive).
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
        # Records by upper and lower half of the hash, and their positions: `_count` of them, the first `_count - _added` sorted
        # by hash and each the newest of its key. Pages that nothing was written to take no memory.
        self._high: npt.NDArray[np.uint64] = np.empty(max_keys, np.uint64)
        self._low: npt.NDArray[np.uint64] = np.empty(max_keys, np.uint64)
        self._positions: _Positions = np.empty(max_keys, np.int64)
        self._count = 0
        self._added = 0
        # Keys of the last `_waiting_count` records, which are not hashed yet, and the base offset of each batch of them.
        self._waiting: list[BytesColumn] = []
        self._waiting_bases: list[int] = []
        self._waiting_count = 0
        self._waiting_bytes = 0
        # The positions, ascending, and a view of them; None: not sorted since the last addition.
        self._kept: array[int] | None = None
        self._kept_view = self._positions[:0]
        # The batch that was asked for last, and the answer: several questions come for each.
        self._asked: tuple[int, _Positions] = -1, self._positions[:0]
        # Base offsets of the batches that have records without a key.
        self._keyless: set[int] = set()
        self.start_offset = start_offset
        self.end_offset = start_offset

    def __len__(self) -> int:
        """Return how many keys the map has, and batches with records without a key."""
        self._sort()
        return self._count + len(self._keyless)

    def add(self, keys: BytesColumn | None, base_offset: int, next_offset: int, *, is_keyless: bool = False) -> bool:
        """Take up the next batch.

        Args:
            keys: the keys of its records; a record whose key is null replaces nothing. None: no record has a key, or none counts.
            base_offset: first offset of the batch, inclusive.
            next_offset: offset after the batch, which becomes the end of the map.
            is_keyless: the batch has records without a key that stay.

        Returns:
            False if it may not fit; then nothing was taken up.
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
        """Keep the largest position of each hash, in the order of the hashes."""
        if self._added == 0:
            return
        self._hash_waiting()
        some = _not_replaced(self._high[: self._count], self._low[: self._count])
        high, low, end = self._high[some], self._low[some], len(some)
        # Hashes whose low bits make room for the index: sorting them takes a third of what finding their order does, and of
        # those that begin alike the newest comes last.
        bits = np.uint64(end.bit_length())
        packed = (high >> bits << bits) | np.arange(end, dtype=np.uint64)
        packed.sort()
        order = (packed & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.intp)
        packed >>= bits
        is_same = _same_as_next(high, low, order)
        if np.any((packed[1:] == packed[:-1]) != is_same):
            # Different hashes begin alike: they may stand in turns.
            order = np.lexsort((low, high))
            is_same = _same_as_next(high, low, order)
        newest = some[order[np.flatnonzero(np.concatenate((~is_same, np.ones(1, np.bool_))))]]
        self._count = len(newest)
        self._added = 0
        for column in (self._high, self._low, self._positions):
            column[: self._count] = column[newest]

    def took_up(self, next_offset: int) -> bool:
        """Tell whether the batch that ends there was added: then `kept_count` knows what stays of it."""
        return self.start_offset < next_offset <= self.end_offset

    def kept_count(self, base_offset: int, next_offset: int) -> int:
        """Return how many keys have their newest record in a batch; 0 for a batch that was not added."""
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
        """Tell whether nothing stays of a batch for sure; False if its columns must be looked at."""
        if not self.took_up(next_offset) or base_offset in self._keyless:
            return False
        return not self.kept_count(base_offset, next_offset)

    def stays(self, keys: BytesColumn, base_offset: int, next_offset: int) -> bytearray:
        """Tell of each record of a batch whether no newer one of its key is known.

        Args:
            keys: its keys.
            base_offset: first offset of the batch, inclusive.
            next_offset: offset after the batch.

        Returns:
            1 for each record that stays, 0 for each other. One without a key has no newer one.
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
        """Tell of each hash whether the map has it."""
        self._sort()
        if self._count == 0:
            return np.zeros(len(hashes), np.bool_)
        high, low = self._high[: self._count], self._low[: self._count]
        at = np.minimum(high.searchsorted(hashes[:, 0]), self._count - 1)
        while True:
            is_same_high = high[at] == hashes[:, 0]
            is_found = is_same_high & (low[at] == hashes[:, 1])
            # Keys that share the upper half stand one after the other.
            may_follow = is_same_high & ~is_found & (at < self._count - 1)
            if not may_follow.any():
                return is_found
            at = at + may_follow


def _not_replaced(high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
    """Return the indexes of the hashes that no later one is known to be equal to, ascending.

    Most that have an equal one behind them are left out, by a look at a table in which each slot has the last hash that belongs there;
    sorting the others alone takes a fraction of the time where keys come again and again.
    """
    count = len(high)
    indexes = np.arange(count, dtype=np.int32)
    slots = (high & np.uint64((_SLOTS_PER_HASH << count.bit_length()) - 1)).astype(np.intp)
    # Only slots that were written are read.
    table = np.empty(_SLOTS_PER_HASH << count.bit_length(), np.int32)
    table[slots] = indexes
    last = table[slots]
    is_replaced = (last > indexes) & (high[last] == high) & (low[last] == low)
    return np.flatnonzero(~is_replaced)


def _same_as_next(high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64], order: npt.NDArray[np.intp]) -> _Flags:
    """Tell of each hash but the last one, in an order, whether the next one is the same."""
    high, low = high[order], low[order]
    return (high[1:] == high[:-1]) & (low[1:] == low[:-1])
