# SPDX-License-Identifier: Apache-2.0
"""Hashes of keys: the formula, equal keys in different columns, and different keys that look alike."""

from __future__ import annotations

from dataclasses import replace
from hashlib import shake_256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lograft.wire.columns import BytesColumn

from storage.compaction import key_hash
from storage.compaction.key_hash import MAX_WORDS_BYTES, SECRET_BYTES, KeyHasher, copy_column, join_columns
from storage.tests.compaction.test_key_map import column

SECRET = bytes(range(SECRET_BYTES))
HASHER = KeyHasher(SECRET)


def hashes(some: list[bytes | None], hasher: KeyHasher = HASHER) -> list[tuple[int, int]]:
    return [(int(high), int(low)) for high, low in hasher.hash_column(column(some))]


def plain_hash(key: bytes) -> tuple[int, int]:
    """Return the hash of one key by the formula in the module's docstring."""
    stream = shake_256(SECRET).digest((2 + MAX_WORDS_BYTES // 4) * 4 * 8)
    rows = [
        [int.from_bytes(stream[(row * 4 + slot) * 8 :][:8], "little") for slot in range(4)]
        for row in range(2 + MAX_WORDS_BYTES // 4)
    ]
    words = [int.from_bytes(key[at : at + 4], "little") for at in range(0, len(key), 4)]
    upper = [
        (rows[0][slot] + rows[1][slot] * len(key) + sum(rows[2 + at][slot] * word for at, word in enumerate(words)))
        % 2**64
        >> 32
        for slot in range(4)
    ]
    return upper[0] << 32 | upper[1], upper[2] << 32 | upper[3]


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(st.binary(max_size=MAX_WORDS_BYTES), min_size=1, max_size=9))
def test_hashes_are_those_of_the_formula(some: list[bytes]) -> None:
    """For any keys and any lengths."""
    assert hashes([*some]) == list(map(plain_hash, some))


@pytest.mark.parametrize("length", [0, 1, 3, 4, 16, MAX_WORDS_BYTES, MAX_WORDS_BYTES + 1])
def test_how_a_column_says_its_lengths_changes_nothing(length: int) -> None:
    """One common length or one for each key, alone or beside keys of other lengths."""
    some: list[bytes | None] = [bytes([byte]) * length for byte in (7, 8, 9)]
    ragged = column(some)
    uniform = replace(ragged, lengths=None, uniform_length=length)
    expected = HASHER.hash_column(ragged)
    assert np.array_equal(HASHER.hash_column(uniform), expected)
    beside = HASHER.hash_column(column([b"other", *some, b"x" * 400, b"y" * 200]))
    assert np.array_equal(beside[1:4], expected)


def test_keys_that_look_alike_have_different_hashes() -> None:
    """Padding, swapped words, zeros and the border between the two hash functions never make two keys equal."""
    some: list[bytes | None] = [
        *(bytes(length) for length in (0, 1, 2, 3, 4, 5, 8, MAX_WORDS_BYTES, MAX_WORDS_BYTES + 1, MAX_WORDS_BYTES + 2)),
        b"aaaabbbb",
        b"bbbbaaaa",
        b"aaaabbbb\0",
    ]
    assert len(set(hashes(some))) == len(some)
    assert hashes([None]) == hashes([b""])


def test_a_million_keys_make_a_million_hashes() -> None:
    """Also in each 64-bit half."""
    text = b"".join(b"%08d" % number for number in range(1_000_000))
    keys = BytesColumn(blob=memoryview(text), record_count=1_000_000, lengths=None, uniform_length=8, nulls=[])
    found = HASHER.hash_column(keys)
    assert len(np.unique(found[:, 0])) == len(np.unique(found[:, 1])) == 1_000_000


def test_another_secret_gives_other_hashes() -> None:
    """So keys cannot be chosen to collide."""
    other = KeyHasher(bytes(SECRET_BYTES))
    some: list[bytes | None] = [b"key", b"k" * 300]
    assert not {*hashes(some)} & {*hashes(some, other)}
    with pytest.raises(AssertionError, match="a secret of 3 bytes"):
        KeyHasher(b"abc")


def test_many_keys_are_padded_a_chunk_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One long key among many short ones costs no more memory than a chunk."""
    some: list[bytes | None] = [b"%d" % number for number in range(100)] + [b"x" * MAX_WORDS_BYTES]
    expected = hashes(some)
    monkeypatch.setattr(key_hash, "_CHUNK_BYTES", 3 * MAX_WORDS_BYTES)
    assert hashes(some) == expected


def test_joined_columns_have_the_same_items() -> None:
    """Neighbouring columns with the same kind of lengths become one; nothing is reordered."""
    uniform = [replace(column([b"ab", b"cd"]), lengths=None, uniform_length=2) for _ in range(2)]
    longer = replace(column([b"efg"]), lengths=None, uniform_length=3)
    ragged = [column([b"", b"h" * 300]), column([b"i"])]
    joined = list(join_columns([*uniform, longer, *ragged, uniform[0]]))
    assert [each.record_count for each in joined] == [4, 1, 3, 2]
    assert [each.to_list() for each in joined] == [
        [b"ab", b"cd", b"ab", b"cd"],
        [b"efg"],
        [b"", b"h" * 300, b"i"],
        [b"ab", b"cd"],
    ]
    assert list(join_columns([])) == []


@pytest.mark.parametrize("is_uniform", [True, False])
def test_a_copy_does_not_keep_the_batch(is_uniform: bool) -> None:
    """The copy keeps its items, whatever happens to the bytes of the batch."""
    blob, lengths = bytearray(b"abcd"), bytearray(b"\2\0\0\0\2\0\0\0")
    read = BytesColumn(
        blob=memoryview(blob),
        record_count=2,
        lengths=None if is_uniform else memoryview(lengths).cast("I"),
        uniform_length=2 if is_uniform else None,
        nulls=[],
    )
    copied = copy_column(read)
    blob[:] = b"wxyz"
    lengths[:] = bytes(8)
    assert copied.to_list() == [b"ab", b"cd"]
