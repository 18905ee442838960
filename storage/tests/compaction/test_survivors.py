# SPDX-License-Identifier: Apache-2.0
"""Which records stay, the life of a tombstone, and the rule for records of a compacted topic."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lograft.wire.batch import Codec, RecordBatch, encode_batch
from lograft.wire.limits import MAX_RECORDS_PER_BATCH, MAX_TIMESTAMP_MS

from storage.compaction.constraints import MAX_REPORTED_RECORDS, records_without_key
from storage.compaction.key_hash import SECRET_BYTES, KeyHasher
from storage.compaction.key_map import KeyMap
from storage.compaction.rewrite import rewrite_batch
from storage.compaction.survivors import Survivors, TombstoneRule, find_survivors

HASHER = KeyHasher(bytes(SECRET_BYTES))
RULE = TombstoneRule(now_ms=1_000, retention_ms=500, end_offset=100)


def decide(
    batch: bytes | bytearray, newer: list[bytes] | None = None, rule: TombstoneRule = RULE
) -> tuple[Survivors, bytes]:
    """Decide on a batch with some known newer records; rewrite it if anything stays."""
    reader = RecordBatch(batch)
    key_map = KeyMap(MAX_RECORDS_PER_BATCH, start_offset=reader.header.base_offset, hasher=HASHER)
    keys = reader.payload.keys
    key_map.add(
        keys,
        reader.header.base_offset,
        reader.header.next_offset,
        is_keyless=keys is None or bool(keys.nulls),
    )
    if newer:
        key_map.add(RecordBatch(encode_batch(newer, keys=newer)).payload.keys, 1_000, 1_001)
    found = find_survivors(reader.header, reader.payload, key_map, rule)
    horizon_ms = found.delete_horizon_ms
    rewritten = b""
    if any(found.stays):
        changed = rewrite_batch(reader.header, reader.payload, found.stays, delete_horizon_ms=horizon_ms)
        rewritten = bytes(batch if changed is None else changed.join())
    return found, rewritten


def flags(*stays: int, horizon_ms: int | None = None) -> Survivors:
    return Survivors(bytearray(stays), horizon_ms)


def test_replaced_records_go_and_others_stay() -> None:
    """Only a newer record of the same key counts, in another batch or the same one, with or without gaps."""
    batch = encode_batch(
        [b"1", b"2", b"3", b"4"], keys=[b"a", None, b"b", b"c"], offset_deltas=[0, 2, 4, 9], base_offset=10
    )
    assert decide(batch, [b"a"])[0] == flags(0, 1, 1, 1)
    assert decide(batch, [b"c"])[0] == flags(1, 1, 1, 0)
    batch = encode_batch([b"1", b"2", b"3", b"4"], keys=[b"a", b"b", b"a", b"a"], base_offset=10)
    assert decide(batch)[0] == flags(0, 1, 0, 1)
    assert decide(batch, [b"a"])[0] == flags(0, 1, 0, 0)


def test_a_batch_without_keys_stays() -> None:
    """Records from before the topic was compacted are not lost."""
    assert decide(encode_batch([b"1", None]), [b"a"])[0] == flags(1, 1)


def test_a_tombstone_gets_a_horizon_waits_and_goes() -> None:
    """First pass: the horizon. Before the horizon: no change. At the horizon: the tombstone and the bit are removed."""
    batch = encode_batch([None, b"2"], keys=[b"a", b"b"], timestamps_ms=[3, 4])
    found, marked = decide(batch)
    assert found == flags(1, 1, horizon_ms=1_500)
    found, same = decide(marked, rule=replace(RULE, now_ms=1_499))
    assert found == flags(1, 1, horizon_ms=1_500)
    assert same == marked
    found, left = decide(marked, rule=replace(RULE, now_ms=1_500))
    assert found == flags(0, 1)
    assert RecordBatch(left).timestamps_ms() == [4]
    assert RecordBatch(left).header.delete_horizon_ms is None


def test_a_replaced_tombstone_goes_at_once() -> None:
    """A newer record of its key makes a tombstone useless."""
    marked = decide(encode_batch([None, b"2"], keys=[b"a", b"b"]))[1]
    assert decide(marked, [b"a"])[0] == flags(0, 1)


def test_where_something_older_may_be_left_tombstones_stay() -> None:
    """Beyond the end of the cleaned part a tombstone gets no horizon, and is not removed after its horizon either."""
    batch = encode_batch([None], keys=[b"a"], base_offset=99)
    assert decide(batch)[0] == flags(1, horizon_ms=1_500)
    beyond = encode_batch([None], keys=[b"a"], base_offset=100)
    assert decide(beyond) == (flags(1), bytes(beyond))
    marked = decide(beyond, rule=replace(RULE, end_offset=101))[1]
    late = replace(RULE, now_ms=10_000)
    assert decide(marked, rule=late)[0] == flags(1, horizon_ms=1_500)
    assert decide(marked, rule=replace(late, end_offset=101))[0] == flags(0)


def test_a_null_without_a_key_is_no_tombstone() -> None:
    """It deletes nothing, so it is a record like any other."""
    batch = encode_batch([None, b"x"], keys=[None, b"a"])
    assert decide(batch) == (flags(1, 1), bytes(batch))


def test_a_horizon_is_a_timestamp() -> None:
    """An infinite retention gives the largest legal timestamp."""
    rule = replace(RULE, retention_ms=2**62)
    assert decide(encode_batch([None], keys=[b"a"]), rule=rule)[0].delete_horizon_ms == MAX_TIMESTAMP_MS


@pytest.mark.parametrize("codec", list(Codec))
def test_compacted_topic_refuses_records_without_key(codec: Codec) -> None:
    """Kafka behaviour 6: a record without a key is reported with its index; keyed batches pass, compressed or not."""
    keyed = encode_batch([b"1", b"2"], keys=[b"a", b""], codec=codec)
    assert records_without_key(RecordBatch(keyed).payload) == []
    mixed = encode_batch([b"1", b"2", b"3"], keys=[b"a", None, None], codec=codec)
    assert records_without_key(RecordBatch(mixed).payload) == [1, 2]
    none = encode_batch([b"1", b"2"], codec=codec)
    assert records_without_key(RecordBatch(none).payload) == [0, 1]
    many = encode_batch([b"1"] * 1_000, codec=codec)
    assert records_without_key(RecordBatch(many).payload) == list(range(MAX_REPORTED_RECORDS))
