# SPDX-License-Identifier: Apache-2.0
"""Hashes the keys of a batch to 128 bits, many at a time. Pure.

Design
    Multilinear hashing (Lemire and Kaser, "Strongly universal string hashing is fast", 2014). A key is a vector of
    32-bit words, zero-padded, after its length. One hash is the upper half of (m0 + sum of m[i] * word[i]) modulo 2^64,
    with secret random 64-bit multipliers. Two different keys collide in one 32-bit hash with probability 2^-32, whoever
    chose them, so in four independent ones with 2^-128. The words of all keys form a matrix, so that no key becomes an
    object.
    BLAKE2b with the same secret hashes keys over `MAX_WORDS_BYTES`. On short keys it would cost more than all the rest.

Laws
    Equal keys have equal hashes, whatever their batch and however its column stores their lengths.
    A hash never leaves the process, because another pass has another secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b, shake_256
from itertools import groupby
from operator import attrgetter

import numpy as np
import numpy.typing as npt
from lograft.wire.columns import BytesColumn

MAX_WORDS_BYTES = 256
"""Longest key, in bytes, that is hashed as a vector of words."""

SECRET_BYTES = 32
"""Size of a hasher's secret."""

_WORD_BYTES = 4
_HASHES = 4
"""Number of 32-bit hashes that form one of 128 bits."""

_CHUNK_BYTES = 1024 * 1024
"""Most bytes of padded keys hashed at once. It bounds the memory when a batch has one long key and many short ones."""

_HIGH_HALF = np.uint64(0xFFFF_FFFF_0000_0000)
_HALF_BITS = np.uint64(32)

Hashes = npt.NDArray[np.uint64]
"""One row for each key: the upper and the lower 64 bits of its hash."""


class KeyHasher:
    """Hashes keys with a secret.

    Args:
        secret: `SECRET_BYTES` random bytes that are unknown outside the process.
    """

    __slots__ = ("_multipliers", "_secret")

    def __init__(self, secret: bytes) -> None:
        assert len(secret) == SECRET_BYTES, f"a secret of {len(secret)} bytes"
        self._secret = secret
        # Row 0 is the constant term, row 1 is for the length, the others are for the words.
        rows = 2 + MAX_WORDS_BYTES // _WORD_BYTES
        stream = shake_256(secret).digest(rows * _HASHES * 8)
        self._multipliers = np.frombuffer(stream, np.dtype("<u8")).reshape(rows, _HASHES)

    def hash_column(self, keys: BytesColumn) -> Hashes:
        """Return the hash of each key of a column; a null has the hash of an empty key."""
        if keys.uniform_length is not None:
            if keys.uniform_length > MAX_WORDS_BYTES:
                return self._hash_some_long(keys)
            table = np.frombuffer(keys.blob, np.uint8).reshape(keys.record_count, keys.uniform_length)
            return self._hash_table(table, np.uint64(keys.uniform_length))
        lengths = np.frombuffer(keys.lengths or b"", np.dtype("<u4"))
        longest = int(lengths.max(initial=0))
        if longest > MAX_WORDS_BYTES:
            return self._hash_some_long(keys)
        return self._hash_ragged(np.frombuffer(keys.blob, np.uint8), lengths, longest)

    def _hash_ragged(self, blob: npt.NDArray[np.uint8], lengths: npt.NDArray[np.uint32], longest: int) -> Hashes:
        """Hash adjacent keys of several lengths, none over `MAX_WORDS_BYTES`."""
        hashes = np.empty((len(lengths), 2), np.uint64)
        columns = np.arange(longest, dtype=np.uint32)
        chunk = _CHUNK_BYTES // max(longest, 1)
        position = 0
        for start in range(0, len(lengths), chunk):
            some = lengths[start : start + chunk]
            size_bytes = int(some.sum(dtype=np.uint64))
            table = np.zeros((len(some), longest), np.uint8)
            table[columns < some[:, np.newaxis]] = blob[position : position + size_bytes]
            hashes[start : start + chunk] = self._hash_table(table, some.astype(np.uint64))
            position += size_bytes
        return hashes

    def _hash_table(self, table: npt.NDArray[np.uint8], lengths: npt.NDArray[np.uint64] | np.uint64) -> Hashes:
        """Hash zero-padded keys, one row for each: all of one length, or each with its own."""
        count, width = table.shape
        missing = -width % _WORD_BYTES
        if missing:
            table = np.concatenate((table, np.zeros((count, missing), np.uint8)), axis=1)
        words = table.view(np.dtype("<u4")) if width else np.zeros((count, 0), np.dtype("<u4"))
        # Word by word over all keys, so that the operands are adjacent in memory.
        columns = words.T.astype(np.uint64, order="C")
        hashes = np.zeros((_HASHES // 2, count), np.uint64)
        total, product = np.empty(count, np.uint64), np.empty(count, np.uint64)
        for number, multipliers in enumerate(self._multipliers.T):
            np.multiply(lengths, multipliers[1], out=total)
            total += multipliers[0]
            for column, multiplier in zip(columns, multipliers[2:], strict=False):
                np.multiply(column, multiplier, out=product)
                total += product
            # The upper halves, in pairs.
            if number % 2 == 0:
                np.bitwise_and(total, _HIGH_HALF, out=hashes[number // 2])
            else:
                total >>= _HALF_BITS
                hashes[number // 2] |= total
        return hashes.T

    def _hash_some_long(self, keys: BytesColumn) -> Hashes:
        """Hash keys of which some are over `MAX_WORDS_BYTES`."""
        items = [key or b"" for key in keys.to_list()]
        short = [key if len(key) <= MAX_WORDS_BYTES else b"" for key in items]
        lengths = np.array(list(map(len, short)), np.uint32)
        hashes = self._hash_ragged(np.frombuffer(b"".join(short), np.uint8), lengths, int(lengths.max(initial=0)))
        for at, key in enumerate(items):
            if len(key) > MAX_WORDS_BYTES:
                digest = blake2b(key, digest_size=16, key=self._secret).digest()
                hashes[at] = np.frombuffer(digest, np.dtype("<u8"))
        return hashes


def copy_column(column: BytesColumn) -> BytesColumn:
    """Return a copy that does not keep the batch of the column alive."""
    lengths = None if column.lengths is None else memoryview(bytes(column.lengths)).cast("I")
    return BytesColumn(
        blob=memoryview(bytes(column.blob)),
        record_count=column.record_count,
        lengths=lengths,
        uniform_length=column.uniform_length,
        nulls=column.nulls,
    )


def join_columns(columns: Sequence[BytesColumn]) -> Iterator[BytesColumn]:
    """Yield the same items in fewer columns: join neighbours that store their lengths in the same way.

    Args:
        columns: columns without nulls.
    """
    for uniform_length, group in groupby(columns, attrgetter("uniform_length")):
        some = list(group)
        lengths = None
        if uniform_length is None:
            lengths = memoryview(b"".join([each.lengths or b"" for each in some])).cast("I")
        yield BytesColumn(
            blob=memoryview(b"".join([each.blob for each in some])),
            record_count=sum([each.record_count for each in some]),
            lengths=lengths,
            uniform_length=uniform_length,
            nulls=[],
        )
