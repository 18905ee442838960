# SPDX-License-Identifier: Apache-2.0
"""The map of newest records: bounded, exact, and correct about its end."""

from __future__ import annotations

import tracemalloc
from array import array
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lograft.wire.columns import BytesColumn
from lograft.wire.limits import MAX_RECORDS_PER_BATCH

from storage.compaction.key_hash import MAX_WORDS_BYTES, SECRET_BYTES, Hashes, KeyHasher
from storage.compaction.key_map import KEY_MEMORY_BYTES, KeyMap

HASHER = KeyHasher(bytes(range(SECRET_BYTES)))

keys = st.one_of(
    st.none(),
    st.binary(max_size=2),
    st.binary(min_size=MAX_WORDS_BYTES - 1, max_size=MAX_WORDS_BYTES + 1),
    st.just(b"k" * 1_000),
)


class PoorHasher(KeyHasher):
    """Hashes with so few bits that keys share the upper half, or everything but one bit."""

    def hash_column(self, keys: BytesColumn) -> Hashes:
        hashes = super().hash_column(keys).copy()
        hashes[:, 0] &= np.uint64(1)
        return hashes


def new_map(max_keys: int = MAX_RECORDS_PER_BATCH, *, start_offset: int = 0, hasher: KeyHasher = HASHER) -> KeyMap:
    return KeyMap(max_keys, start_offset=start_offset, hasher=hasher)


def add(
    key_map: KeyMap,
    some: list[bytes | None],
    base_offset: int,
    next_offset: int | None = None,
    *,
    may_be_uniform: bool = False,
) -> bool:
    next_offset = base_offset + len(some) if next_offset is None else next_offset
    keys = column(some)
    if may_be_uniform and None not in some and len(set(map(len, filter(None, some)))) == 1 and b"" not in some:
        keys = replace(keys, lengths=None, uniform_length=len(some[0] or b""))
    return key_map.add(keys, base_offset, next_offset, is_keyless=None in some)


def column(some: list[bytes | None]) -> BytesColumn:
    present = [key or b"" for key in some]
    lengths = array("I", map(len, present))
    return BytesColumn(
        blob=memoryview(b"".join(present)),
        record_count=len(some),
        lengths=memoryview(lengths),
        uniform_length=None,
        nulls=[at for at, key in enumerate(some) if key is None],
    )


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.lists(keys, min_size=1, max_size=6), max_size=6),
    st.integers(0, 3),
    st.sampled_from([HASHER, PoorHasher(bytes(SECRET_BYTES))]),
    st.booleans(),
    st.booleans(),
)
def test_the_newest_of_each_key_stays(
    drawn: list[list[bytes | None]], skipped: int, hasher: KeyHasher, is_sorted_often: bool, may_be_uniform: bool
) -> None:
    """The map agrees with a plain dictionary of whole keys.

    This also holds below the start of the map, where keys share half of their hash, and for any kind of column lengths.
    """
    offsets: list[range] = []
    for batch in drawn:
        base_offset = offsets[-1].stop if offsets else 0
        offsets.append(range(base_offset, base_offset + len(batch)))
    first = min(skipped, len(drawn))
    end_offset = offsets[-1].stop if offsets else 0
    key_map = new_map(start_offset=offsets[first].start if first < len(drawn) else end_offset, hasher=hasher)
    newest: dict[bytes, int] = {}
    for batch, at in zip(drawn[first:], offsets[first:], strict=True):
        assert add(key_map, batch, at.start, may_be_uniform=may_be_uniform)
        newest.update((key, offset) for key, offset in zip(batch, at, strict=True) if key is not None)
        if is_sorted_often:
            assert len(key_map) >= len(newest)
    assert len(key_map) == len(newest) + sum(None in batch for batch in drawn[first:])
    assert key_map.end_offset == end_offset
    for batch, at in zip(drawn, offsets, strict=True):
        expected = [key is None or newest.get(key, offset) <= offset for key, offset in zip(batch, at, strict=True)]
        stays = key_map.stays(column(batch), at.start, at.stop)
        assert list(map(bool, stays)) == expected
        assert not (key_map.empties(at.start, at.stop) and any(expected))
        if key_map.took_up(at.stop):
            assert key_map.empties(at.start, at.stop) == (not any(expected))
            kept = {newest[key] for key in batch if key is not None} & {*at}
            assert key_map.kept_count(at.start, at.stop) == len(kept)


def test_what_the_map_does_not_know_stays() -> None:
    """A record of an unknown key, or one beyond the end of the map, stays; an empty map knows nothing."""
    key_map = new_map(start_offset=10)
    assert key_map.stays(column([b"a", None]), 3, 5) == bytearray([1, 1])
    assert add(key_map, [b"a", None], 10, 20)
    assert key_map.stays(column([b"a", b"b", None]), 3, 6) == bytearray([0, 1, 1])
    assert key_map.stays(column([b"a", b"b", None]), 20, 23) == bytearray([1, 1, 1])
    assert not key_map.empties(3, 4)
    assert not key_map.empties(20, 21)


def test_a_question_is_answered_anew_after_an_addition() -> None:
    """An addition discards the answer that is cached for the next question about the same batch."""
    key_map = new_map()
    assert add(key_map, [b"a", b"b"], 0)
    assert key_map.stays(column([b"a", b"b"]), 0, 2) == bytearray([1, 1])
    assert add(key_map, [b"a"], 2)
    assert key_map.stays(column([b"a", b"b"]), 0, 2) == bytearray([0, 1])


def test_a_full_map_takes_no_part_of_a_batch() -> None:
    """The map reports its end. Records without a key count as one key for each batch."""
    key_map = new_map()
    known: list[bytes | None] = [b"%d" % number for number in range(MAX_RECORDS_PER_BATCH - 1)]
    assert add(key_map, known, 0, 200_000)
    for refused in ([b"new", b"newer"], [b"new", None], [b"0", b"1"]):
        assert not add(key_map, refused, 200_000)
        assert (len(key_map), key_map.end_offset) == (len(known), 200_000)
        assert key_map.stays(column([b"0"]), 200_000, 200_001) == bytearray([1])
        assert key_map.kept_count(0, 200_000) == len(known)
    assert add(key_map, [b"0"], 200_000)
    assert not key_map.add(None, 200_001, 200_010, is_keyless=True)
    assert key_map.add(None, 200_001, 200_010)
    assert key_map.end_offset == 200_010
    assert key_map.empties(200_001, 200_010)
    assert key_map.kept_count(0, 200_000) == len(known) - 1


def test_old_records_make_room_for_new_ones() -> None:
    """Repeated keys fill the map only once, and the map sorts only after many additions."""
    key_map = new_map()
    again: list[bytes | None] = [b"%d" % number for number in range(MAX_RECORDS_PER_BATCH // 4)]
    for turn in range(40):
        assert add(key_map, again, turn * len(again))
    assert len(key_map) == len(again)
    others: list[bytes | None] = [b"other %d" % number for number in range(MAX_RECORDS_PER_BATCH // 4 * 3 - 10)]
    assert add(key_map, others, key_map.end_offset)
    assert not add(key_map, again[:11], key_map.end_offset), (
        "there is room after another sort, which would be one for each batch"
    )
    assert add(key_map, again[:10], key_map.end_offset)
    assert len(key_map) == len(again) + len(others)


def test_a_batch_of_most_records_fits_an_empty_map() -> None:
    """Every pass makes progress, even if no record has a key."""
    key_map = new_map()
    assert add(key_map, [None, *(b"%d" % number for number in range(MAX_RECORDS_PER_BATCH - 1))], 0)
    assert len(key_map) == MAX_RECORDS_PER_BATCH


def test_batches_come_in_order_and_limits_are_checked() -> None:
    """An order or a limit that breaks the law is a bug of the caller."""
    with pytest.raises(AssertionError, match="fewer than a batch"):
        new_map(MAX_RECORDS_PER_BATCH - 1)
    key_map = new_map(start_offset=5)
    with pytest.raises(AssertionError, match="ends at 5"):
        add(key_map, [b"a"], 4)


@pytest.mark.parametrize("hasher", [HASHER, PoorHasher(bytes(SECRET_BYTES))])
def test_the_memory_of_a_key_is_within_its_bound(hasher: KeyHasher) -> None:
    """Measured in the worst case: a full map of different keys during a sort."""
    batch = 1_000
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        key_map = new_map(hasher=hasher)
        for start in range(0, MAX_RECORDS_PER_BATCH, batch):
            assert add(key_map, [b"%048d" % number for number in range(start, start + batch)], start)
        assert key_map.kept_count(0, batch) == batch
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(key_map) == MAX_RECORDS_PER_BATCH
    assert (peak - before) / MAX_RECORDS_PER_BATCH <= KEY_MEMORY_BYTES
