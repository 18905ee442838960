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
        "_keyless",
        "_low",
        "_max_keys",
        "_positions",
        "_waiting",
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
        # Keys of the last `_waiting_count` records, which are not hashed yet.
        self._waiting: list[BytesColumn] = []
        self._waiting_count = 0
        self._waiting_bytes = 0
        # The positions, ascending; None: not sorted since the last addition.
        self._kept: _Positions | None = None
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
        indexes = np.arange(base_offset, base_offset + keys.record_count, dtype=np.int64)
        if keys.nulls:
            self._hash_waiting()
            indexes = np.delete(indexes, keys.nulls)
            hashes = np.delete(self._hasher.hash_column(keys), keys.nulls, axis=0)
            self._put_hashes(hashes, self._count)
        else:
            self._waiting.append(copy_column(keys))
            self._waiting_count += keys.record_count
            self._waiting_bytes += len(keys.blob)
        start, end = self._count, self._count + len(indexes)
        self._positions[start:end] = indexes
        self._added += end - start
        self._count = end
        self._kept = None
        if self._waiting_count >= _HASH_RECORDS or self._waiting_bytes >= _HASH_BYTES:
            self._hash_waiting()

    def _hash_waiting(self) -> None:
        start = self._count - self._waiting_count
        for column in join_columns(self._waiting):
            self._put_hashes(self._hasher.hash_column(column), start)
            start += column.record_count
        self._waiting.clear()
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
        end = self._count
        order = np.argsort(self._high[:end])
        high, low = self._high[:end][order], self._low[:end][order]
        is_same_high = high[1:] == high[:-1]
        is_same = is_same_high & (low[1:] == low[:-1])
        if np.any(is_same_high != is_same):
            # Keys that share the upper half: they may stand in turns.
            order = np.lexsort((self._low[:end], self._high[:end]))
            high, low = self._high[:end][order], self._low[:end][order]
            is_same = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
        starts = np.flatnonzero(np.concatenate((np.ones(1, np.bool_), ~is_same)))
        self._count = len(starts)
        self._added = 0
        self._high[: self._count] = high[starts]
        self._low[: self._count] = low[starts]
        del high, low
        self._positions[: self._count] = np.maximum.reduceat(self._positions[:end][order], starts)

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
            kept = self._kept = np.sort(self._positions[: self._count])
        elif self._asked[0] == base_offset:
            return self._asked[1]
        start, end = kept.searchsorted((base_offset, next_offset))
        self._asked = base_offset, kept[start:end]
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
