# SPDX-License-Identifier: Apache-2.0
"""The map of newest offsets: bounded, exact, honest about where it stopped."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lograft.wire.limits import MAX_RECORDS_PER_BATCH

from storage.compaction.key_map import DIGEST_BYTES, PLAIN_KEY_BYTES, KeyMap, digest_keys

keys = st.one_of(
    st.none(),
    st.binary(max_size=2),
    st.binary(min_size=PLAIN_KEY_BYTES - 1, max_size=PLAIN_KEY_BYTES + 1),
    st.just(b"k" * 100),
)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.lists(st.lists(keys, min_size=1, max_size=6), max_size=6))
def test_the_newest_of_each_key_stays(drawn: list[list[bytes | None]]) -> None:
    """As a plain dictionary of whole keys says."""
    key_map = KeyMap(MAX_RECORDS_PER_BATCH, start_offset=0)
    newest: dict[bytes, int] = {}
    offset = 0
    for batch in drawn:
        offsets = range(offset, offset + len(batch))
        offset += len(batch)
        assert key_map.add(batch, offsets, next_offset=offset)
        newest.update((key, at) for key, at in zip(batch, offsets, strict=True) if key is not None)
    assert len(key_map) == len(newest)
    assert key_map.end_offset == offset
    offset = 0
    for batch in drawn:
        offsets = range(offset, offset + len(batch))
        offset += len(batch)
        expected = [key is None or newest[key] <= at for key, at in zip(batch, offsets, strict=True)]
        assert key_map.stays(batch, offsets) == expected


def test_what_the_map_does_not_know_stays() -> None:
    """A record of an unknown key, and one beyond the end of the map, are not touched."""
    key_map = KeyMap(MAX_RECORDS_PER_BATCH, start_offset=10)
    assert key_map.add([b"a", None], [10, 12], next_offset=20)
    assert key_map.stays([b"a", b"b", None, b"a", b"a"], [3, 4, 5, 12, 30]) == [False, True, True, True, True]


def test_a_full_map_takes_no_part_of_a_batch() -> None:
    """It says where it stopped; a batch of keys that it knows still fits."""
    key_map = KeyMap(MAX_RECORDS_PER_BATCH, start_offset=0)
    known: list[bytes | None] = [b"%d" % number for number in range(MAX_RECORDS_PER_BATCH - 1)]
    assert key_map.add(known, range(len(known)), next_offset=200_000)
    assert not key_map.add([b"new", b"0", b"newer"], range(200_000, 200_003), next_offset=200_003)
    assert (len(key_map), key_map.end_offset) == (len(known), 200_000)
    assert key_map.stays([b"0"], [0]) == [True]
    assert key_map.add([b"new", b"0", b"new"], range(200_000, 200_003), next_offset=200_003)
    assert (len(key_map), key_map.end_offset) == (MAX_RECORDS_PER_BATCH, 200_003)
    assert key_map.add([], [], next_offset=200_010)
    assert key_map.end_offset == 200_010


def test_batches_come_in_order_and_limits_are_checked() -> None:
    """An order or a limit that breaks the law is an error of the caller."""
    with pytest.raises(AssertionError, match="fewer than a batch"):
        KeyMap(MAX_RECORDS_PER_BATCH - 1, start_offset=0)
    key_map = KeyMap(MAX_RECORDS_PER_BATCH, start_offset=5)
    with pytest.raises(AssertionError, match="ends at 5"):
        key_map.add([b"a"], [4], next_offset=5)


def test_short_keys_stand_for_themselves() -> None:
    """A digest is longer than any key that stands for itself, so the two can never be equal."""
    assert DIGEST_BYTES > PLAIN_KEY_BYTES
    short, long = b"x" * PLAIN_KEY_BYTES, b"x" * (PLAIN_KEY_BYTES + 1)
    digests = digest_keys([short, long, None, b""])
    assert (digests[0], digests[2], digests[3]) == (short, None, b"")
    assert digests[1] != long
    assert len(digests[1] or b"") == DIGEST_BYTES
