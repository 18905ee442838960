# SPDX-License-Identifier: Apache-2.0
"""Which offset is the newest of each key, in bounded memory. Pure.

Laws
    Holds at most `max_keys` keys. A batch is taken up as a whole or not at all, so that `end_offset` says exactly how far the
    map knows: of no record below it is a newer one missing from the map.
    Two keys never count as one: a key of up to `PLAIN_KEY_BYTES` is held as it stands (most keys: numbers, UUIDs as text), a longer one
    as a BLAKE2b digest that is longer than any key that is held as it stands.

Source: docs/storage.md section 6; Kafka, SkimpyOffsetMap.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from operator import le
from typing import cast

from lograft.wire.limits import MAX_RECORDS_PER_BATCH

PLAIN_KEY_BYTES = 40
"""Longest key that stands for itself: to digest it would cost more than the rest of the work on its record."""

DIGEST_BYTES = 48
"""Bytes that stand for a longer key."""

KEY_MEMORY_BYTES = 200
"""Most memory of one key of the map: key or digest, offset, and its share of the table right after that grew."""


class KeyMap:
    """The newest offset of each key of a run of batches.

    Args:
        max_keys: most keys, inclusive; at least as many as a batch has records, so that a pass always gets on.
        start_offset: offset of the first record that will be added, inclusive.

    Attributes:
        end_offset: all batches from the start to here were taken up (exclusive).
    """

    __slots__ = ("_max_keys", "_newest", "end_offset")

    def __init__(self, max_keys: int, *, start_offset: int) -> None:
        assert max_keys >= MAX_RECORDS_PER_BATCH, f"{max_keys} keys are fewer than a batch may have"
        self._max_keys = max_keys
        self._newest: dict[bytes | None, int] = {}
        self.end_offset = start_offset

    def __len__(self) -> int:
        return len(self._newest)

    def add(self, keys: Sequence[bytes | None], offsets: Sequence[int], *, next_offset: int) -> bool:
        """Take up the next batch.

        Args:
            keys: key of each record; None: it has none, and nothing takes its place. Empty for a batch without keys.
            offsets: offset of each record, ascending.
            next_offset: offset after the batch, which becomes the end of the map.

        Returns:
            False if it does not fit; then nothing was taken up.
        """
        assert next_offset > self.end_offset, f"a batch that ends at {next_offset}, after {self.end_offset}"
        digests = digest_keys(keys)
        newest = self._newest
        if len(newest) + len(digests) > self._max_keys:
            added_count = len({*digests} - newest.keys())
            if len(newest) + added_count > self._max_keys:
                return False
        newest.update(zip(digests, offsets, strict=True))
        newest.pop(None, None)
        self.end_offset = next_offset
        return True

    def stays(self, keys: Sequence[bytes | None], offsets: Sequence[int]) -> list[bool]:
        """Tell of each record whether no newer one of its key is known; a record without a key has none."""
        return list(map(le, map(self._newest.get, digest_keys(keys), offsets), offsets))


def digest_keys(keys: Sequence[bytes | None]) -> Sequence[bytes | None]:
    """Return what stands for each key; None for None."""
    try:
        if max(map(len, cast("Sequence[bytes]", keys)), default=0) <= PLAIN_KEY_BYTES:
            return keys
    except TypeError:
        # Some record has no key: look at each.
        pass
    return [
        key if key is None or len(key) <= PLAIN_KEY_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()
        for key in keys
    ]
