# SPDX-License-Identifier: Apache-2.0
"""Records come out as they went in, against a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa
import pytest
from lograft import BatchReceipt, Consumer, Durability, ErrorCode, Producer, TopicPartition
from lograft.errors import UsageError
from lograft.wire.batch import encode_batch
from lograft.wire.partitioner import partition_for_key
from tests.client.reading import DEADLINE_MS, read_all

MakeTopic = Callable[..., str]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_records_come_out_as_they_went_in(bootstrap: str, make_topic: MakeTopic, codec: str) -> None:
    """A broker preserves values, nulls, empty values, keys, headers and timestamps."""
    topic = make_topic()
    before_ms = time.time_ns() // 1_000_000
    with Producer(bootstrap, codec=codec) as producer:
        producer.send(topic, b"plain")
        producer.send(topic, b"", key=b"")
        producer.send(topic, None, key=b"tombstone")
        producer.send(topic, b"own time", timestamp_ms=12_345)
        producer.send(topic, b"headers", headers=[("a", b"1"), ("a", None), ("ü", b"")])
        producer.send(topic, bytearray(b"array"), key=memoryview(b"view"))  # pyright: ignore[reportArgumentType]
    records = read_all(bootstrap, topic)
    after_ms = time.time_ns() // 1_000_000
    assert [(record.value, record.key) for record in records] == [
        (b"plain", None),
        (b"", b""),
        (None, b"tombstone"),
        (b"own time", None),
        (b"headers", None),
        (b"array", b"view"),
    ]
    assert [record.offset for record in records] == list(range(6))
    assert records[3].timestamp_ms == 12_345
    assert all(before_ms <= records[index].timestamp_ms <= after_ms for index in (0, 1, 2, 4, 5))
    assert [tuple(record.headers) for record in records] == [(), (), (), (), (("a", b"1"), ("a", None), ("ü", b"")), ()]


def test_keys_choose_partitions_and_keep_order(bootstrap: str, make_topic: MakeTopic) -> None:
    """Records with the same key are in the partition of its checksum, in the order of sending."""
    topic = make_topic(4)
    rows = [(b"key-%d" % (number % 17), b"%d" % number) for number in range(20_000)]
    with Producer(bootstrap, batch_bytes=4_096) as producer:
        for key, value in rows:
            producer.send(topic, value, key=key)
    records = read_all(bootstrap, topic, 4)
    assert len(records) == len(rows)
    for partition in range(4):
        expected = [(key, value) for key, value in rows if partition_for_key(key, 4) == partition]
        found = [(record.key, record.value) for record in records if record.partition == partition]
        assert found == expected


def test_send_many_equals_send(bootstrap: str, make_topic: MakeTopic) -> None:
    """`send_many` puts the same records into the same partitions in the same order as single sends."""
    one_by_one, at_once = make_topic(3), make_topic(3)
    values = [b"%d" % number * (number % 50) for number in range(5_000)]
    keys = [None if number % 10 == 0 else b"k%d" % (number % 7) for number in range(5_000)]
    times = [1_000 + number for number in range(5_000)]
    with Producer(bootstrap, batch_bytes=8_192) as producer:
        for value, key, time_ms in zip(values, keys, times, strict=True):
            producer.send(one_by_one, value, key=key, timestamp_ms=time_ms)
        producer.send_many(at_once, values, keys=keys, timestamps_ms=times)
    first = [record for record in read_all(bootstrap, one_by_one, 3) if record.key is not None]
    second = [record for record in read_all(bootstrap, at_once, 3) if record.key is not None]
    assert [(each.partition, each.key, each.value, each.timestamp_ms) for each in first] == [
        (each.partition, each.key, each.value, each.timestamp_ms) for each in second
    ]
    keyless = sorted(record.value or b"" for record in read_all(bootstrap, at_once, 3) if record.key is None)
    assert keyless == sorted(values[number] for number in range(0, 5_000, 10))


def test_records_without_key_are_spread_batch_by_batch(bootstrap: str, make_topic: MakeTopic) -> None:
    """Without keys, every partition gets its share in whole batches."""
    topic = make_topic(3)
    receipts: list[BatchReceipt] = []
    with Producer(bootstrap, batch_bytes=1_024, on_batch=receipts.append) as producer:
        producer.send_many(topic, [b"x" * 100] * 1_000)
    counts = dict.fromkeys(range(3), 0)
    for receipt in receipts:
        counts[receipt.partition] += receipt.record_count
    assert sum(counts.values()) == 1_000
    assert min(counts.values()) > 200


def test_arrow_goes_in_and_comes_out(bootstrap: str, make_topic: MakeTopic) -> None:
    """The columns of a table become the fields of records, with the partitions of `send`, in row order."""
    topic = make_topic(3)
    count = 10_000
    keys = [b"k%d" % (number % 11) if number % 5 else None for number in range(count)]
    table = pa.table(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array([b"%d" % number for number in range(count)], pa.binary()),
            "timestamp": pa.array(range(count), pa.timestamp("ms", "UTC")),
        }
    )
    with Producer(bootstrap, batch_bytes=8_192) as producer:
        producer.send_arrow(topic, table)
        producer.send_arrow(topic, table.slice(0, 10).to_batches()[0], partition=2)
    tps = [TopicPartition(topic, number) for number in range(3)]
    rows: list[dict[str, object]] = []
    with Consumer(bootstrap) as consumer:
        consumer.assign(tps)
        ends = consumer.end_offsets(tps)
        assert sum(ends.values()) == count + 10
        while any(consumer.position(tp) < ends[tp] for tp in tps):
            fetched = consumer.poll_batch(DEADLINE_MS)
            assert fetched is not None
            rows += [{**row, "partition": fetched.partition} for row in fetched.to_arrow().to_pylist()]
    keyed = [row for row in rows if row["key"] is not None]
    assert all(row["partition"] in (partition_for_key(row["key"], 3), 2) for row in keyed)  # pyright: ignore[reportArgumentType]
    by_value = sorted(int(row["value"]) for row in rows)  # pyright: ignore[reportArgumentType]
    assert by_value == sorted([*range(count), *range(10)])
    assert all(row["timestamp_ms"] == int(row["value"]) for row in rows)  # pyright: ignore[reportArgumentType]


def test_arrow_that_does_not_fit_is_refused_or_cut(bootstrap: str, make_topic: MakeTopic) -> None:
    """Rows of very different sizes are cut until they fit. A row that never fits and unknown columns are usage errors."""
    topic = make_topic()
    values = [b"x" * 60_000 if number == 5 else b"%d" % number for number in range(1_000)]
    with Producer(bootstrap, batch_bytes=65_536) as producer:
        producer.send_arrow(topic, pa.table({"value": pa.array(values)}))
        with pytest.raises(UsageError, match="cannot be sent"):
            producer.send_arrow(topic, pa.table({"value": pa.array(values), "colour": pa.array(values)}))
        with pytest.raises(UsageError, match="cannot be sent") as caught:
            producer.send_arrow(topic, pa.table({"value": pa.array([b"x" * (9 << 20)])}))
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        producer.send_arrow(topic, pa.table({"value": pa.array(["text"]), "key": pa.array(["k"])}))
    records = read_all(bootstrap, topic)
    assert [record.value for record in records] == [*values, b"text"]
    assert records[-1].key == b"k"


def test_encoded_batch_is_sent_as_it_is(bootstrap: str, make_topic: MakeTopic) -> None:
    """A batch that the caller encoded keeps its position among the records of its partition."""
    topic = make_topic()
    with Producer(bootstrap) as producer:
        producer.send(topic, b"before", partition=0)
        producer.send_batch(topic, 0, encode_batch([b"1", b"2"], timestamps_ms=7), 2)
        producer.send(topic, b"after", partition=0)
    records = read_all(bootstrap, topic)
    assert [record.value for record in records] == [b"before", b"1", b"2", b"after"]
    assert [record.timestamp_ms for record in records[1:3]] == [7, 7]


def test_receipts_tell_offsets_and_durability(bootstrap: str, make_topic: MakeTopic) -> None:
    """Every batch is reported once, with its offsets in the log and its durability."""
    topic = make_topic()
    receipts: list[BatchReceipt] = []
    with Producer(bootstrap, batch_bytes=1_024, on_batch=receipts.append) as producer:
        for number in range(500):
            producer.send(topic, b"%d" % number * 10)
        producer.flush()
        offset = 0
        for receipt in receipts:
            assert receipt.base_offset == offset
            assert receipt.durability is Durability.FLUSHED
            assert (receipt.duplicate, receipt.error) == (False, None)
            offset += receipt.record_count
        assert offset == 500


@pytest.mark.parametrize(("acks", "idempotent"), [("leader", True), ("none", True), ("all", False)])
def test_other_acks_deliver_too(bootstrap: str, make_topic: MakeTopic, acks: str, idempotent: bool) -> None:
    """With every value of acks, and without idempotence, records arrive in order."""
    topic = make_topic()
    receipts: list[BatchReceipt] = []
    with Producer(bootstrap, acks=acks, idempotent=idempotent, batch_bytes=1_024, on_batch=receipts.append) as producer:
        for number in range(300):
            producer.send(topic, b"%d" % number)
        producer.flush()
        if acks == "none":
            assert all(receipt.base_offset is None for receipt in receipts)
        if acks != "all":
            # No receipt tells when the records are committed, and readers wait for that. So wait until the last one is
            # readable.
            with Consumer(bootstrap) as consumer:
                consumer.assign([TopicPartition(topic, 0)])
                seen = 0
                while seen < 300:
                    records = consumer.poll(300, timeout_ms=DEADLINE_MS)
                    assert records
                    seen += len(records)
    assert [record.value for record in read_all(bootstrap, topic)] == [b"%d" % number for number in range(300)]


def test_record_is_sent_without_flush_when_it_has_lingered(bootstrap: str, make_topic: MakeTopic) -> None:
    """No flush is needed: a waiting consumer gets the record."""
    topic = make_topic()
    with Producer(bootstrap, linger_ms=0) as producer, Consumer(bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        for number in range(20):
            producer.send(topic, b"%d" % number)
            records = consumer.poll(timeout_ms=DEADLINE_MS)
            assert [record.value for record in records] == [b"%d" % number]
