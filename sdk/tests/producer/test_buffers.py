# SPDX-License-Identifier: Apache-2.0
"""The partition buffer of a key, and the number of cached keys."""

from __future__ import annotations

from lograft._producer.buffers import (
    MAX_KEPT_KEY_BYTES,
    MAX_KEPT_KEYS,
    MAX_UNKEPT_LOOKUPS,
    PartitionBuffer,
    TopicBuffers,
)
from lograft._producer.partitioner import partition_by_keys


def _topic(partition_count: int) -> TopicBuffers:
    buffers = TopicBuffers("t")
    _grow(buffers, partition_count)
    return buffers


def _grow(buffers: TopicBuffers, by: int) -> None:
    first = len(buffers.parts)
    buffers.grow(
        [PartitionBuffer(buffers, first + index, size_limit=1_000, max_record_bytes=1_000) for index in range(by)]
    )


def _look_up(buffers: TopicBuffers, key: bytes) -> int:
    try:
        return buffers.by_key[key].partition
    except KeyError:
        return buffers.of_key(key).partition


def test_a_key_gets_the_same_partition_as_in_bulk_whether_it_is_kept_or_not() -> None:
    """The rule for keys is the same, cached or computed."""
    buffers = _topic(7)
    keys = [b"%d" % index for index in range(500)] * 2
    assert [_look_up(buffers, key) for key in keys] == partition_by_keys(keys, 7, keyless=-1)
    assert len(buffers.by_key) == 500


def test_a_bounded_number_of_keys_is_kept_and_the_others_are_found_all_the_same() -> None:
    """The first keys stay in the cache. A stream of new keys takes no more memory."""
    buffers = _topic(3)
    keys = [b"%d" % index for index in range(MAX_KEPT_KEYS + 100)]
    assert [_look_up(buffers, key) for key in keys] == partition_by_keys(keys, 3, keyless=-1)
    assert list(buffers.by_key) == keys[:MAX_KEPT_KEYS]
    assert [_look_up(buffers, key) for key in keys] == partition_by_keys(keys, 3, keyless=-1)


def test_long_keys_are_not_kept() -> None:
    """The bytes of the cached keys are bounded too."""
    buffers = _topic(3)
    keys = [bytes(MAX_KEPT_KEY_BYTES), bytes(MAX_KEPT_KEY_BYTES + 1)]
    assert [_look_up(buffers, key) for key in keys] == partition_by_keys(keys, 3, keyless=-1)
    assert list(buffers.by_key) == keys[:1]


def test_a_topic_most_of_whose_keys_are_not_kept_looks_them_up_without_an_exception() -> None:
    """Cached, new and long keys all get their partition, before and after partitions were added."""
    buffers = _topic(3)
    kept, long = b"kept", b"long" * MAX_KEPT_KEY_BYTES
    _look_up(buffers, kept)
    for _ in range(MAX_UNKEPT_LOOKUPS):
        _look_up(buffers, long)
    buffers.suit_keys()
    assert type(buffers.by_key) is dict
    _look_up(buffers, long)
    buffers.suit_keys()
    expected = partition_by_keys([kept, long, b"new"], 3, keyless=-1)
    assert [buffers.by_key[key].partition for key in (kept, long, b"new")] == expected
    assert list(buffers.by_key) == [kept, b"new"]
    with_unkept = buffers.by_key
    buffers.suit_keys()
    assert buffers.by_key is with_unkept
    _grow(buffers, 4)
    assert buffers.by_key == {}
    buffers.suit_keys()
    assert type(buffers.by_key) is dict
    expected = partition_by_keys([kept, long, b"new"], 7, keyless=-1)
    assert [_look_up(buffers, key) for key in (kept, long, b"new")] == expected


def test_keys_go_by_the_new_count_after_partitions_were_added() -> None:
    """Cached entries from before do not count any more."""
    buffers = _topic(3)
    keys = [b"%d" % index for index in range(100)]
    for key in keys:
        _look_up(buffers, key)
    _grow(buffers, 4)
    assert [_look_up(buffers, key) for key in keys] == partition_by_keys(keys, 7, keyless=-1)
