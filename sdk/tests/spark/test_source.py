# SPDX-License-Identifier: Apache-2.0
"""The reader against a real broker, without Spark: events between planning and reading."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
from lograft import Admin, Consumer, Producer, TopicPartition
from lograft.errors import OffsetOutOfRangeError, RequestTimeoutError, UnknownTopicError
from lograft.spark.options import parse_read_options
from lograft.spark.ranges import OffsetRange
from lograft.spark.settings import ReadOptions
from lograft.spark.source import BatchReader, _check_still_readable, plan_read, read_range

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


def test_silence_within_the_log_is_a_timeout(options: ReadOptions, topic: str, bootstrap: str) -> None:
    """A broker that has the records and does not send them causes a timeout, not data loss."""
    chosen = OffsetRange(partition=TopicPartition(topic, 0), start_offset=0, end_offset=50)
    with Consumer(bootstrap) as consumer, pytest.raises(RequestTimeoutError, match=r"pollTimeoutMs"):
        _check_still_readable(consumer, options, chosen, 0)
