# SPDX-License-Identifier: Apache-2.0
"""The reader against a real broker, without Spark: events between planning and reading."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from lograft import Admin, Consumer, Producer, TopicPartition
from lograft.errors import OffsetOutOfRangeError, RequestTimeoutError, UnknownTopicError
from lograft.spark.options import parse_read_options
from lograft.spark.pushdown import push
from lograft.spark.ranges import OffsetRange
from lograft.spark.settings import ReadOptions
from lograft.spark.source import (
    BatchReader,
    FilteringReader,
    _check_still_readable,
    new_reader,
    plan_read,
    read_range,
)
from lograft.v1 import log_pb2
from lograft.wire.batch import RecordBatch, encode_batch
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from tests.client.scripted_broker import Leaders, ScriptedBroker, chunk, fetch_opened

MakeTopic = Callable[..., str]


def produce(bootstrap: str, topic: str, count: int) -> None:
    with Producer(bootstrap) as producer:
        producer.send_many(topic, [b"%d" % number for number in range(count)], partition=0)


@pytest.fixture
def topic(make_topic: MakeTopic, bootstrap: str) -> str:
    name = make_topic(1)
    produce(bootstrap, name, 100)
    return name


@pytest.fixture
def options(topic: str, bootstrap: str) -> ReadOptions:
    given = {"bootstrap.servers": bootstrap, "subscribe": topic, "kafkaConsumer.pollTimeoutMs": "10000"}
    return parse_read_options(given)


def offsets(options: ReadOptions, start: int, end: int) -> list[int]:
    partition = TopicPartition(options.selection.topics[0], 0)
    chosen = OffsetRange(partition=partition, start_offset=start, end_offset=end)
    return [each for rows in read_range(options, chosen) for each in rows.column("offset").to_pylist()]


def test_records_that_arrive_after_planning_are_not_read(options: ReadOptions, topic: str, bootstrap: str) -> None:
    """The range is fixed when the query is planned."""
    (chosen,) = plan_read(options).ranges
    produce(bootstrap, topic, 50)
    assert sum(rows.num_rows for rows in read_range(options, chosen)) == 100


def test_range_is_read_exactly(options: ReadOptions) -> None:
    """The start is inclusive and the end exclusive, also inside a batch."""
    assert offsets(options, 10, 90) == list(range(10, 90))


def test_topic_that_is_recreated_after_planning_is_not_read(
    options: ReadOptions, topic: str, admin: Admin, bootstrap: str
) -> None:
    """The records of the new topic are not those of the plan."""
    (chosen,) = plan_read(options).ranges
    admin.delete_topic(topic)
    admin.create_topic(topic, partition_count=1)
    produce(bootstrap, topic, 100)
    with pytest.raises(UnknownTopicError):
        list(read_range(options, chosen))


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 60, [3, 9, 33, 34]),
        (4, 34, [9, 33]),
        (10, 33, []),
        (35, 60, []),
        (45, 50, []),
    ],
)
def test_compaction_holes_end_no_read_early_and_block_none(start: int, end: int, expected: list[int]) -> None:
    """A task ends where its range ends, whether a record is there or not, and finds the records that are left."""
    left = [
        encode_batch([b"3", b"9"], offset_deltas=[3, 9], base_offset=0),
        encode_batch([b"33", b"34"], offset_deltas=[3, 4], base_offset=30),
    ]

    def script(stream: int, request: log_pb2.FetchRequest) -> list[log_pb2.FetchResponse]:
        if not request.HasField("open"):
            return []
        position = request.open.routes[0].offset
        body = b"".join(bytes(batch) for batch in left if RecordBatch(batch).next_offset > position)
        mark = log_pb2.FetchMark(route=0, next_offset=60, high_watermark=60, caught_up=True)
        chunks = [chunk(0, body, 40)] if body else []
        return [fetch_opened(request), *chunks, log_pb2.FetchResponse(mark=mark)]

    with ScriptedBroker(Leaders()) as broker:
        broker.on_fetch = script
        options = parse_read_options({"bootstrap.servers": broker.bootstrap, "subscribe": "t"})
        assert offsets(options, start, end) == expected


def test_parts_have_equal_bytes_where_records_are_uneven(make_topic: MakeTopic, bootstrap: str) -> None:
    """`minPartitions` weighs records by their bytes: the part with the large records has few of them."""
    name = make_topic(2)
    with Producer(bootstrap) as producer:
        producer.send_many(name, [bytes(10)] * 4_000, partition=0)
        producer.send_many(name, [bytes(10_000)] * 200, partition=0)
        producer.send_many(name, [bytes(100)] * 10, partition=1)
    given = {"bootstrap.servers": bootstrap, "subscribe": name, "minPartitions": "6"}
    ranges = plan_read(parse_read_options(given)).ranges
    assert [each.partition.partition for each in ranges] == [0, 0, 0, 0, 0, 1]
    large = [max(0, each.end_offset - max(each.start_offset, 4_000)) for each in ranges[:5]]
    assert sum(large) == 200
    assert max(large) < 80
    by_records = plan_read(parse_read_options({**given, "maxRecordsPerPartition": "500"})).ranges
    assert [each.size for each in by_records] == [*[467, 466] * 4, 467, 10] or max(
        each.size for each in by_records
    ) <= 500


def test_partition_without_range_gives_nothing(options: ReadOptions) -> None:
    """Spark makes such a partition when there are no ranges."""
    from pyspark.sql.datasource import InputPartition

    assert list(BatchReader(options).read(InputPartition(None))) == []


def test_log_that_ends_before_the_range_is_data_loss(options: ReadOptions, caplog: pytest.LogCaptureFixture) -> None:
    """A read does not wait for records that cannot come."""
    options = replace(options, poll_timeout_ms=2_000)
    with pytest.raises(OffsetOutOfRangeError, match="ends at offset 100 by now; the range needs 120"):
        offsets(options, 90, 120)
    with caplog.at_level(logging.WARNING, logger="lograft.spark.source"):
        assert offsets(replace(options, fail_on_data_loss=False), 90, 120) == list(range(90, 100))
    assert "ends at offset 100 by now" in caplog.text


def test_range_beyond_the_log_is_data_loss(options: ReadOptions, caplog: pytest.LogCaptureFixture) -> None:
    """A start that the broker refuses ends the task with an error or a warning."""
    with pytest.raises(OffsetOutOfRangeError):
        offsets(options, 150, 160)
    with caplog.at_level(logging.WARNING, logger="lograft.spark.source"):
        assert offsets(replace(options, fail_on_data_loss=False), 150, 160) == []
    assert "from offset 150" in caplog.text


def test_deleted_topic_is_data_loss(
    options: ReadOptions, topic: str, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic that is deleted between planning and reading follows failOnDataLoss."""
    (chosen,) = plan_read(options).ranges
    admin.delete_topic(topic)
    with pytest.raises(UnknownTopicError):
        list(read_range(options, chosen))
    with caplog.at_level(logging.WARNING, logger="lograft.spark.source"):
        assert list(read_range(replace(options, fail_on_data_loss=False), chosen)) == []
    assert topic in caplog.text


KEYS = [None, b"", b"a", b"b", b"c"]


@pytest.fixture(scope="module")
def mixed(admin: Admin, bootstrap: str) -> str:
    """A topic of three partitions with keys and tombstones, one of them far out of time order."""
    name = "mixed"
    admin.create_topic(name, partition_count=3, configs={"retention.ms": "-1"})
    with Producer(bootstrap) as producer:
        for partition in range(3):
            for part in range(4):
                numbers = range(part * 60, part * 60 + 60)
                times = [1_000 + (number * 7_919 % 240 if partition == 1 else number) for number in numbers]
                producer.send_many(
                    name,
                    [None if number % 11 == 0 else b"%d" % number for number in numbers],
                    keys=[KEYS[number * 31 % 5] for number in numbers],
                    partition=partition,
                    timestamps_ms=times,
                )
                producer.flush()
    return name


def moment(timestamp_ms: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)


REPLAYS: list[tuple[list[Filter], Callable[[dict[str, Any]], bool]]] = [
    (
        [GreaterThanOrEqual(("timestamp",), moment(1_100)), LessThan(("timestamp",), moment(1_150))],
        lambda row: moment(1_100) <= row["timestamp"] < moment(1_150),
    ),
    ([GreaterThan(("timestamp",), moment(1_200.5))], lambda row: row["timestamp"] > moment(1_200.5)),
    ([LessThanOrEqual(("timestamp",), moment(1_017))], lambda row: row["timestamp"] <= moment(1_017)),
    ([EqualTo(("timestamp",), moment(1_077))], lambda row: row["timestamp"] == moment(1_077)),
    ([GreaterThan(("timestamp",), moment(9_000))], lambda row: False),
    ([EqualTo(("key",), b"b")], lambda row: row["key"] == b"b"),
    ([IsNotNull(("key",)), In(("key",), (b"", b"c"))], lambda row: row["key"] in (b"", b"c")),
    ([IsNull(("key",)), IsNull(("value",))], lambda row: row["key"] is None and row["value"] is None),
    (
        [EqualTo(("partition",), 1), GreaterThanOrEqual(("offset",), 57), LessThan(("offset",), 121)],
        lambda row: row["partition"] == 1 and 57 <= row["offset"] < 121,
    ),
    (
        [EqualTo(("key",), b"a"), LessThan(("timestamp",), moment(1_090)), Not(EqualTo(("partition",), 2))],
        lambda row: row["key"] == b"a" and row["timestamp"] < moment(1_090) and row["partition"] != 2,
    ),
    ([EqualTo(("topic",), "other")], lambda row: False),
]


def replay(bootstrap: str, topic: str, filters: list[Filter]) -> list[dict[str, Any]]:
    """Read with filters that the read must take over completely. Rows ascend by partition and offset."""
    given = {"bootstrap.servers": bootstrap, "subscribe": topic, "minPartitions": "5", "pushdown": "true"}
    reader = new_reader(parse_read_options(given))
    assert isinstance(reader, FilteringReader)
    assert list(reader.pushFilters(filters)) == []
    found = [row for each in reader.partitions() for rows in reader.read(each) for row in rows.to_pylist()]
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


@pytest.fixture(scope="module")
def full(mixed: str, bootstrap: str) -> list[dict[str, Any]]:
    """Every row of the topic."""
    rows = replay(bootstrap, mixed, [])
    assert len(rows) == 720
    return rows


@pytest.mark.parametrize("number", range(len(REPLAYS)))
def test_replay_equals_a_filter_over_a_full_read(
    mixed: str, full: list[dict[str, Any]], bootstrap: str, number: int
) -> None:
    """By time range, key, partition and offset, with all filters applied by the read, also where times are not in order."""
    filters, is_wanted = REPLAYS[number]
    assert replay(bootstrap, mixed, filters) == [row for row in full if is_wanted(row)]


def test_time_range_starts_where_the_time_index_says(mixed: str, bootstrap: str) -> None:
    """A replay of the end of a log does not read the log. Partitions and offsets that are not wanted are not read either."""
    options = parse_read_options({"bootstrap.servers": bootstrap, "subscribe": mixed})

    def planned(*filters: Filter) -> list[tuple[int, int, int]]:
        ranges = plan_read(options, push(filters)[0]).ranges
        return [(each.partition.partition, each.start_offset, each.end_offset) for each in ranges]

    found = planned(GreaterThanOrEqual(("timestamp",), moment(1_200)))
    assert found[0] == (0, 200, 240)
    assert found[2] == (2, 200, 240)
    assert planned(EqualTo(("partition",), 2), LessThan(("offset",), 9)) == [(2, 0, 9)]
    assert planned(GreaterThan(("timestamp",), moment(9_000))) == []


def test_silence_within_the_log_is_a_timeout(options: ReadOptions, topic: str, bootstrap: str) -> None:
    """A broker that has the records and does not send them causes a timeout, not data loss."""
    chosen = OffsetRange(partition=TopicPartition(topic, 0), start_offset=0, end_offset=50)
    with Consumer(bootstrap) as consumer, pytest.raises(RequestTimeoutError, match=r"pollTimeoutMs"):
        _check_still_readable(consumer, options, chosen, 0)
