# SPDX-License-Identifier: Apache-2.0
"""The map of newest records: bounded, exact, honest about where it stopped."""

from __future__ import annotations

import tracemalloc
from array import array
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lograft.wire.columns import BytesColumn
from lograft.wire.limits import MAX_RECORDS_PER_BATCH

from storage.compaction.key_map import DIGEST_BYTES, KEY_MEMORY_BYTES, PLAIN_KEY_BYTES, KeyMap, digest_keys

keys = st.one_of(
    st.none(),
    st.binary(max_size=2),
    st.binary(min_size=PLAIN_KEY_BYTES - 1, max_size=PLAIN_KEY_BYTES + 1),
    st.just(b"k" * 100),
)


def add(key_map: KeyMap, some: list[bytes | None], base_offset: int, next_offset: int | None = None) -> bool:
    next_offset = base_offset + len(some) if next_offset is None else next_offset
    return key_map.add(digest_keys(column(some)), base_offset, next_offset, is_keyless=None in some)


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


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.lists(st.lists(keys, min_size=1, max_size=6), max_size=6), st.integers(0, 3))
def test_the_newest_of_each_key_stays(drawn: list[list[bytes | None]], skipped: int) -> None:
    """As a plain dictionary of whole keys says, also for batches below the start of the map."""
    offsets: list[range] = []
    for batch in drawn:
        base_offset = offsets[-1].stop if offsets else 0
        offsets.append(range(base_offset, base_offset + len(batch)))
    first = min(skipped, len(drawn))
    end_offset = offsets[-1].stop if offsets else 0
    key_map = KeyMap(MAX_RECORDS_PER_BATCH, start_offset=offsets[first].start if first < len(drawn) else end_offset)
    newest: dict[bytes, int] = {}
    for batch, at in zip(drawn[first:], offsets[first:], strict=True):
        assert add(key_map, batch, at.start)
        newest.update((key, offset) for key, offset in zip(batch, at, strict=True) if key is not None)
    assert len(key_map) == len(newest) + sum(None in batch for batch in drawn[first:])
    assert key_map.end_offset == end_offset
    for batch, at in zip(drawn, offsets, strict=True):
        expected = [key is None or newest.get(key, offset) <= offset for key, offset in zip(batch, at, strict=True)]
        stays = key_map.stays(digest_keys(column(batch)), at.start, at.stop)
        assert list(map(bool, stays)) == expected
        assert not (key_map.empties(at.start, at.stop) and any(expected))
        if key_map.took_up(at.stop):
            assert key_map.empties(at.start, at.stop) == (not any(expected))
            assert key_map.kept_count(at.start) == len({newest[key] for key in batch if key is not None} & {*at})


def test_what_the_map_does_not_know_stays() -> None:
    """A record of an unknown key, and one beyond the end of the map, are not touched."""
    key_map = KeyMap(MAX_RECORDS_PER_BATCH, start_offset=10)
    assert add(key_map, [b"a", None], 10, 20)
    assert key_map.stays([b"a", b"b", None], 3, 6) == bytearray([0, 1, 1])
    assert key_map.stays([b"a", b"b", None], 20, 23) == bytearray([1, 1, 1])
    assert not key_map.empties(3, 4)
    assert not key_map.empties(20, 21)


def test_a_full_map_takes_no_part_of_a_batch() -> None:
    """It says where it stopped; a batch of keys that it knows still fits. Records without key count as one key a batch."""
    key_map = KeyMap(MAX_RECORDS_PER_BATCH, start_offset=0)
    known: list[bytes | None] = [b"%d" % number for number in range(MAX_RECORDS_PER_BATCH - 1)]
    assert add(key_map, known, 0, 200_000)
    for refused in ([b"new", b"0", b"newer"], [b"new", None]):
        assert not add(key_map, refused, 200_000)
        assert (len(key_map), key_map.end_offset) == (len(known), 200_000)
        assert key_map.stays([b"0"], 200_000, 200_001) == bytearray([1])
        assert key_map.kept_count(0) == len(known)
    assert add(key_map, [b"new", b"0", b"new"], 200_000, 200_003)
    assert (len(key_map), key_map.end_offset) == (MAX_RECORDS_PER_BATCH, 200_003)
    assert not key_map.add((), 200_003, 200_010, is_keyless=True)
    assert key_map.add((), 200_003, 200_010)
    assert key_map.end_offset == 200_010
    assert key_map.empties(200_003, 200_010)
    assert key_map.kept_count(0) == len(known) - 1


def test_a_batch_of_most_records_fits_an_empty_map() -> None:
    """A pass always gets on, also where a record has no key."""
    key_map = KeyMap(MAX_RECORDS_PER_BATCH, start_offset=0)
    assert add(key_map, [None, *(b"%d" % number for number in range(MAX_RECORDS_PER_BATCH - 1))], 0)
    assert len(key_map) == MAX_RECORDS_PER_BATCH


def test_batches_come_in_order_and_limits_are_checked() -> None:
    """An order or a limit that breaks the law is an error of the caller."""
    with pytest.raises(AssertionError, match="fewer than a batch"):
        KeyMap(MAX_RECORDS_PER_BATCH - 1, start_offset=0)
    key_map = KeyMap(MAX_RECORDS_PER_BATCH, start_offset=5)
    with pytest.raises(AssertionError, match="ends at 5"):
        add(key_map, [b"a"], 4)


def test_the_memory_of_a_key_is_within_its_bound() -> None:
    """Measured where it is worst: long keys, one a batch, right after the table grew."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        key_map = KeyMap(MAX_RECORDS_PER_BATCH, start_offset=2**40)
        # A table of 2^14 slots is full at two thirds.
        for number in range(10_923):
            digest = b"%048d" % number
            assert key_map.add([digest], 2**40 + number, 2**40 + number + 1)
        key_map.kept_count(0)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / len(key_map) <= KEY_MEMORY_BYTES


def test_short_keys_stand_for_themselves() -> None:
    """A digest is longer than any key that stands for itself, so the two can never be equal."""
    assert DIGEST_BYTES > PLAIN_KEY_BYTES
    short, long = b"x" * PLAIN_KEY_BYTES, b"x" * (PLAIN_KEY_BYTES + 1)
    digests = digest_keys(column([short, long, None, b""]))
    assert (digests[0], digests[2], digests[3]) == (short, None, b"")
    assert digests[1] != long
    assert len(digests[1] or b"") == DIGEST_BYTES


@pytest.mark.parametrize("length", [PLAIN_KEY_BYTES, PLAIN_KEY_BYTES + 1])
def test_keys_of_one_length_give_the_same(length: int) -> None:
    """How a column says its lengths changes nothing."""
    some: list[bytes | None] = [b"x" * length, b"y" * length]
    uniform = replace(column(some), lengths=None, uniform_length=length)
    assert digest_keys(uniform) == digest_keys(column(some))
