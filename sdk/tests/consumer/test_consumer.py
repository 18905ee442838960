# SPDX-License-Identifier: Apache-2.0
"""Positions, seeks and failures of the consumer, against a real broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lograft import Admin, Consumer, ErrorCode, Producer, TopicPartition
from lograft.errors import (
    ClientClosedError,
    InvalidSettingError,
    NotAssignedError,
    OffsetOutOfRangeError,
    UnknownPartitionError,
    UnknownTopicError,
    UsageError,
)
from tests.client.reading import DEADLINE_MS

MakeTopic = Callable[..., str]


@pytest.fixture
def filled(bootstrap: str, make_topic: MakeTopic) -> TopicPartition:
    """A partition with 1,000 records in 10 batches; record n has value b"n" and time 1,000 * n."""
    topic = make_topic()
    with Producer(bootstrap) as producer:
        for start in range(0, 1_000, 100):
            numbers = range(start, start + 100)
            producer.send_many(
                topic, [b"%d" % number for number in numbers], timestamps_ms=[1_000 * number for number in numbers]
            )
            producer.flush()
    return TopicPartition(topic, 0)


def poll_values(consumer: Consumer, count: int) -> list[bytes | None]:
    """Poll until `count` records have come."""
    values: list[bytes | None] = []
    while len(values) < count:
        records = consumer.poll(count - len(values), timeout_ms=DEADLINE_MS)
        assert records, f"only {len(values)} of {count} came"
        values += [record.value for record in records]
    return values


def test_position_moves_with_what_was_handed_out(bootstrap: str, filled: TopicPartition) -> None:
    """The position is the offset of the next record, also inside batches, and for both ways to read."""
    with Consumer(bootstrap) as consumer:
        consumer.assign([filled])
        assert consumer.position(filled) == 0
        assert poll_values(consumer, 30) == [b"%d" % number for number in range(30)]
        assert consumer.position(filled) == 30
        fetched = consumer.poll_batch(DEADLINE_MS)
        assert fetched is not None
        assert (fetched.base_offset, fetched.record_count, fetched.next_offset) == (30, 70, 100)
        assert fetched.values()[0] == b"30"
        assert fetched.keys() == [None] * 70
        assert fetched.timestamps_ms()[0] == 30_000
        assert list(fetched.offsets()) == list(range(30, 100))
        assert fetched.headers() == [()] * 70
        assert fetched.to_arrow().column("offset").to_pylist() == list(range(30, 100))
        assert "offsets 30 to 100" in repr(fetched)
        assert consumer.position(filled) == 100
        assert poll_values(consumer, 900)[-1] == b"999"
        assert consumer.high_watermark(filled) == 1_000


def test_seek_goes_back_and_forth_and_drops_what_was_fetched(bootstrap: str, filled: TopicPartition) -> None:
    """After a seek the next record is the requested one, regardless of data fetched ahead or half read."""
    with Consumer(bootstrap) as consumer:
        consumer.assign([filled], offsets={filled: 500})
        assert poll_values(consumer, 1) == [b"500"]
        for offset in (3, 999, 0, 250, 251):
            consumer.seek(filled, offset)
            assert consumer.position(filled) == offset
            assert poll_values(consumer, 1) == [b"%d" % offset]
        consumer.seek_to_beginning()
        assert poll_values(consumer, 2) == [b"0", b"1"]
        consumer.seek_to_end(filled)
        assert consumer.position(filled) == 1_000
        assert consumer.poll(timeout_ms=50) == []
        assert consumer.poll_batch(0) is None


def test_seek_by_time_finds_the_first_record_not_older(bootstrap: str, filled: TopicPartition) -> None:
    """A time between two records finds the later one. A time after all records finds the end."""
    with Consumer(bootstrap) as consumer:
        consumer.assign([filled])
        assert consumer.offsets_for_times({filled: 499_500}) == {filled: 500}
        assert consumer.offsets_for_times({filled: 10**12}) == {filled: None}
        assert consumer.offsets_for_times({}) == {}
        consumer.seek_to_time(filled, 123_000)
        assert poll_values(consumer, 1) == [b"123"]
        consumer.seek_to_time(filled, 10**12)
        assert consumer.position(filled) == 1_000
        assert consumer.beginning_offsets([filled]) == {filled: 0}
        assert consumer.end_offsets([filled]) == {filled: 1_000}


def test_seek_of_one_partition_loses_nothing_of_another(bootstrap: str, make_topic: MakeTopic) -> None:
    """Batches that were fetched together with the last one, and not handed out yet, still come."""
    topic = make_topic(partition_count=2)
    with Producer(bootstrap) as producer:
        for number in range(20):
            for partition in range(2):
                producer.send(topic, b"%d" % number, partition=partition)
            producer.flush()
    pair = [TopicPartition(topic, partition) for partition in range(2)]
    with Consumer(bootstrap) as consumer:
        consumer.assign(pair)
        (record,) = consumer.poll(1, timeout_ms=DEADLINE_MS)
        other = pair[1 - record.partition]
        consumer.seek(other, 20)
        rest: list[int] = []
        while len(rest) < 19:
            records = consumer.poll(100, timeout_ms=DEADLINE_MS)
            assert records, f"only {rest} came"
            rest += [each.offset for each in records if each.partition == record.partition]
        assert rest == list(range(1, 20))


def test_out_of_range_is_raised_until_the_position_moves(bootstrap: str, filled: TopicPartition) -> None:
    """With the policy "error", a position beyond the end raises an error with the readable range until a seek."""
    with Consumer(bootstrap) as consumer:
        consumer.assign([filled], offsets={filled: 5_000})
        for _ in range(2):
            with pytest.raises(OffsetOutOfRangeError) as caught:
                consumer.poll(timeout_ms=DEADLINE_MS)
            assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
            assert (caught.value.log_start_offset, caught.value.high_watermark) == (0, 1_000)
        consumer.seek(filled, 10)
        assert poll_values(consumer, 1) == [b"10"]


@pytest.mark.parametrize(("policy", "position"), [("earliest", 0), ("latest", 1_000)])
def test_out_of_range_policy_resets_the_position(
    bootstrap: str, filled: TopicPartition, policy: str, position: int
) -> None:
    """With a reset policy, the consumer itself continues from the first offset or the end."""
    with Consumer(bootstrap, on_out_of_range=policy) as consumer, Producer(bootstrap) as producer:
        consumer.assign([filled], offsets={filled: 5_000})
        assert policy == "earliest" or consumer.poll(timeout_ms=200) == []
        producer.send(filled.topic, b"1000")
        producer.flush()
        assert poll_values(consumer, 1) == [b"%d" % position]


def test_new_records_reach_a_waiting_consumer_from_the_end(bootstrap: str, filled: TopicPartition) -> None:
    """A consumer that starts at the end gets only later records."""
    with Consumer(bootstrap) as consumer, Producer(bootstrap, linger_ms=0) as producer:
        consumer.assign([filled], start="latest")
        producer.send(filled.topic, b"new")
        assert poll_values(consumer, 1) == [b"new"]


def test_small_credit_and_chunks_still_bring_everything(bootstrap: str, make_topic: MakeTopic) -> None:
    """With credit for less than one batch, all batches come one by one."""
    topic = make_topic(2)
    with Producer(bootstrap, batch_bytes=16_384) as producer:
        producer.send_many(topic, [b"x" * 100] * 5_000, partition=0)
        producer.send_many(topic, [b"y" * 100] * 5_000, partition=1)
    tps = [TopicPartition(topic, number) for number in range(2)]
    with Consumer(bootstrap, prefetch_bytes=1_024, max_chunk_bytes=1_024) as consumer:
        consumer.assign(tps)
        assert len(poll_values(consumer, 10_000)) == 10_000


def test_iteration_gives_record_after_record(bootstrap: str, filled: TopicPartition) -> None:
    """A consumer is iterable, and the iteration ends when it is closed."""
    consumer = Consumer(bootstrap)
    consumer.assign([filled], offsets={filled: 998})
    seen: list[bytes | None] = []
    for record in consumer:
        seen.append(record.value)
        if record.offset == 999:
            consumer.close()
    assert seen == [b"998", b"999"]
    with pytest.raises(ClientClosedError):
        consumer.poll()


def test_reassignment_drops_the_old_partitions(bootstrap: str, make_topic: MakeTopic, filled: TopicPartition) -> None:
    """After another assign only the new partitions are read, from their own positions."""
    other = TopicPartition(make_topic(), 0)
    with Consumer(bootstrap) as consumer, Producer(bootstrap) as producer:
        consumer.assign([filled])
        poll_values(consumer, 10)
        consumer.assign([other])
        assert consumer.assignment == [other]
        producer.send(other.topic, b"other")
        producer.flush()
        assert poll_values(consumer, 1) == [b"other"]
        with pytest.raises(NotAssignedError):
            consumer.position(filled)
        consumer.assign([])
        assert consumer.poll(timeout_ms=50) == []


def test_deleted_topic_is_an_error_not_silence(bootstrap: str, admin: Admin, filled: TopicPartition) -> None:
    """When the topic of an assigned partition is deleted, poll raises an error."""
    with Consumer(bootstrap) as consumer:
        consumer.assign([filled])
        poll_values(consumer, 1_000)
        admin.delete_topic(filled.topic)
        with pytest.raises(UnknownTopicError):
            poll_values(consumer, 1)


def test_misuse_is_a_typed_error(bootstrap: str, filled: TopicPartition) -> None:
    """Unknown topics and partitions, bad offsets, starts and settings are errors that say what is wrong."""
    with Consumer(bootstrap, request_timeout_ms=3_000) as consumer:
        with pytest.raises(UnknownTopicError, match="does not exist"):
            consumer.assign([TopicPartition("no-such-topic", 0)])
        with pytest.raises(UnknownPartitionError):
            consumer.assign([TopicPartition(filled.topic, 1)])
        with pytest.raises(UsageError, match="earliest"):
            consumer.assign([filled], start="middle")
        with pytest.raises(UsageError, match="whole number"):
            consumer.assign([filled], offsets={filled: -1})
        with pytest.raises(UsageError, match="TopicPartition"):
            consumer.assign(["topic"])  # pyright: ignore[reportArgumentType]
        with pytest.raises(UsageError, match="number from 0"):
            consumer.assign([TopicPartition(filled.topic, -1)])
        consumer.assign([filled])
        with pytest.raises(UsageError):
            consumer.seek(filled, -5)
        with pytest.raises(NotAssignedError):
            consumer.seek(TopicPartition("other", 0), 1)
        with pytest.raises(InvalidSettingError):
            consumer.poll(0)
    with pytest.raises(InvalidSettingError):
        Consumer(bootstrap, on_out_of_range="nearest")
    with pytest.raises(InvalidSettingError):
        Consumer(bootstrap, prefetch_bytes=10)
