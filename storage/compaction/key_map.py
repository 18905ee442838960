# SPDX-License-Identifier: Apache-2.0
"""Which batch has the newest record of each key, in bounded memory. Pure.

Theory
    All the time goes into memory that is not in the processor's cache, so each record touches the large table once, when the
    map is built, and what it stores there (the base offset of its batch) is one object for a whole batch. What stays of a
    batch that was taken up then needs no look-up: the keys are sorted once by batch, and a batch finds its own by bisection.
    Only batches below the start of the map are asked key by key.

Laws
    Holds at most `max_keys` keys; a batch with records that have no key counts as one more. A batch is taken up as a whole or
    not at all, so that `end_offset` says exactly how far the map knows: of no record below it is a newer one missing from the map.
    Two keys never count as one: a key of up to `PLAIN_KEY_BYTES` is held as it stands (most keys: numbers, UUIDs as text), a longer one
    as a BLAKE2b digest that is longer than any key that is held as it stands.

Source: docs/storage.md section 6; Kafka, SkimpyOffsetMap.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from itertools import compress
from operator import not_
from typing import cast

from lograft.wire.columns import BytesColumn
from lograft.wire.limits import MAX_RECORDS_PER_BATCH

PLAIN_KEY_BYTES = 40
"""Longest key that stands for itself: to digest it would cost more than the rest of the work on its record."""

DIGEST_BYTES = 48
"""Bytes that stand for a longer key."""

KEY_MEMORY_BYTES = 220
"""Most memory of one key of the map: key or digest, its batch, its share of the table right after that grew, and of the sorted keys."""


class KeyMap:
    """The batch with the newest record of each key, for a run of batches.

    Args:
        max_keys: most keys, inclusive; at least as many as a batch has records, so that a pass always gets on.
        start_offset: offset of the first record that will be added, inclusive.

    Attributes:
        start_offset: see above.
        end_offset: all batches from the start to here were taken up (exclusive).
    """

    __slots__ = ("_bases", "_keyless", "_max_keys", "_newest", "_sorted", "end_offset", "start_offset")

    def __init__(self, max_keys: int, *, start_offset: int) -> None:
        assert max_keys >= MAX_RECORDS_PER_BATCH, f"{max_keys} keys are fewer than a batch may have"
        self._max_keys = max_keys
        # Key -> base offset of the batch with its newest record.
        self._newest: dict[bytes, int] = {}
        # The keys in the order of these base offsets, and the base offsets; None: not sorted since the last addition.
        self._sorted: list[bytes] | None = None
        self._bases: list[int] = []
        # Base offsets of the batches that have records without a key.
        self._keyless: set[int] = set()
        self.start_offset = start_offset
        self.end_offset = start_offset

    def __len__(self) -> int:
        """Return how many keys the map has, and batches with records without a key."""
        return len(self._newest) + len(self._keyless)

    def add(
        self, keys: Sequence[bytes | None], base_offset: int, next_offset: int, *, is_keyless: bool = False
    ) -> bool:
        """Take up the next batch.

        Args:
            keys: what stands for the key of each record (`digest_keys`); None: it has none, and nothing takes its place. Empty
                for a batch without keys, or without records that count.
            base_offset: first offset of the batch, inclusive.
            next_offset: offset after the batch, which becomes the end of the map.
            is_keyless: the batch has records without a key.

        Returns:
            False if it does not fit; then nothing was taken up.
        """
        assert next_offset > self.end_offset, f"a batch that ends at {next_offset}, after {self.end_offset}"
        newest = self._newest
        found = cast("dict[bytes, int]", dict.fromkeys(keys, base_offset))
        if is_keyless:
            cast("dict[bytes | None, int]", found).pop(None, None)
        if len(self) + len(found) + is_keyless > self._max_keys:
            added_count = len(found.keys() - newest.keys())
            if len(self) + added_count + is_keyless > self._max_keys:
                return False
        newest.update(found)
        if is_keyless:
            self._keyless.add(base_offset)
        self._sorted = None
        self.end_offset = next_offset
        return True

    def took_up(self, next_offset: int) -> bool:
        """Tell whether the batch that ends there was added: then `kept_count` knows what stays of it."""
        return self.start_offset < next_offset <= self.end_offset

    def kept_count(self, base_offset: int) -> int:
        """Return how many keys have their newest record in the batch at an offset; 0 for a batch that was not added."""
        start, end = self._kept_span(base_offset)
        return end - start

    def _kept_span(self, base_offset: int) -> tuple[int, int]:
        if self._sorted is None:
            self._sorted = sorted(self._newest, key=self._newest.__getitem__)
            self._bases = list(map(self._newest.__getitem__, self._sorted))
        start = bisect_left(self._bases, base_offset)
        return start, bisect_right(self._bases, base_offset, start)

    def empties(self, base_offset: int, next_offset: int) -> bool:
        """Tell whether nothing stays of a batch for sure; False if its columns must be looked at."""
        return self.took_up(next_offset) and base_offset not in self._keyless and not self.kept_count(base_offset)

    def stays(self, keys: Sequence[bytes | None], base_offset: int, next_offset: int) -> bytearray:
        """Tell of each record of a batch whether no newer one of its key is known.

        Args:
            keys: as in `add`.
            base_offset: first offset of the batch, inclusive.
            next_offset: offset after the batch.

        Returns:
            1 for each record that stays, 0 for each other. One without a key has no newer one.
        """
        if next_offset > self.end_offset:
            return bytearray(b"\1") * len(keys)
        if not self.took_up(next_offset):
            return bytearray(map(not_, map(self._newest.__contains__, keys)))
        start, end = self._kept_span(base_offset)
        assert self._sorted is not None
        kept = {*self._sorted[start:end]}
        stays = bytearray(map(kept.__contains__, keys))
        if stays.count(1) > len(kept):
            # Several records of one key: the last one is the newest.
            last = dict(zip(compress(keys, stays), compress(range(len(keys)), stays), strict=True))
            stays = bytearray(len(keys))
            for at in last.values():
                stays[at] = 1
        if base_offset in self._keyless:
            for at, key in enumerate(keys):
                if key is None:
                    stays[at] = 1
        return stays


def digest_keys(column: BytesColumn) -> Sequence[bytes | None]:
    """Return what stands for each key of a column; None for None."""
    keys = column.to_list()
    longest = column.uniform_length if column.lengths is None else max(column.lengths)
    assert longest is not None
    if longest <= PLAIN_KEY_BYTES:
        return keys
    return [
        key if key is None or len(key) <= PLAIN_KEY_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()
        for key in keys
    ]
