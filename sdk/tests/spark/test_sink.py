# SPDX-License-Identifier: Apache-2.0
"""The batch writers as plain objects, without a Spark session, against a real broker where rows are written."""

from __future__ import annotations

import logging
import pickle
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from lograft import Admin, Consumer, IngestState, TopicPartition
from lograft.errors import (
    IngestAbortedError,
    IngestConflictError,
    IngestFencedError,
    LograftError,
    UnknownTopicError,
)
from lograft.spark import staging
from lograft.spark.options import parse_write_options
from lograft.spark.schema import HEADERS
from lograft.spark.sink import AppendWriter, IngestWriter, TaskWritten, _Receipts, batch_writer, total_written
from lograft.spark.staging import TaskStaged
from lograft.spark.values import OptionError
from lograft.types import BatchReceipt, Durability
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType, TimestampType

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
APPEND = {"delivery.guarantee": "at-least-once"}
VALUE = StructType([StructField("value", StringType())])

MakeTopic = Callable[..., str]


def again(thing: Any) -> Any:
    """Return what arrives in another process."""
    return pickle.loads(pickle.dumps(thing))  # noqa: S301 - our own bytes


def writer_of(bootstrap: str, schema: StructType = VALUE, **options: object) -> IngestWriter:
    """Return the writer of an exactly-once job, as its tasks have it."""
    given = {
        "kafka.bootstrap.servers": bootstrap,
        **{name.replace("_", "."): str(each) for name, each in options.items()},
    }
    writer = batch_writer(parse_write_options(given), schema)
    assert isinstance(writer, IngestWriter)
    return again(writer)


def rows(*values: str) -> Iterator[pa.RecordBatch]:
    """Yield a batch for each value."""
    return (pa.record_batch({"value": [value]}) for value in values)


def contents(bootstrap: str, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return partition, key and value of all records, by partition and offset."""
    with Consumer(bootstrap) as consumer, Admin(bootstrap) as admin:
        partitions = [TopicPartition(topic, each.partition) for each in admin.describe_topic(topic).partitions]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        found: list[tuple[int, int, bytes | None, bytes | None]] = []
        while any(consumer.position(each) < ends[each] for each in partitions):
            found += [(each.partition, each.offset, each.key, each.value) for each in consumer.poll(1_000)]
    return [(partition, key, value) for partition, _, key, value in sorted(found)]


def values(bootstrap: str, topic: str) -> list[str]:
    """Return the values of a topic, by partition and offset."""
    return [(value or b"").decode() for _, _, value in contents(bootstrap, topic)]


@pytest.fixture
def ingest_id() -> str:
    """Id that no other test uses."""
    return f"job/{uuid.uuid4()}"


def test_rows_are_read_after_the_commit_and_not_before(bootstrap: str, make_topic: MakeTopic) -> None:
    """The tasks may end in any order. The rows are in the order of tasks. The commit again changes nothing."""
    topic = make_topic(1)
    writer = writer_of(bootstrap, topic=topic)
    assert writer.ingest.ingest_id.startswith("spark/")
    messages = [again(writer.stage(task, rows(f"{task}-a", f"{task}-b"))) for task in (2, 0, 1)]
    assert [each.sealed.records for each in messages] == [2, 2, 2]
    assert values(bootstrap, topic) == []
    again(writer).commit(messages)
    expected = ["0-a", "0-b", "1-a", "1-b", "2-a", "2-b"]
    assert values(bootstrap, topic) == expected
    again(writer).commit(messages)
    # Spark calls it when a commit was not answered.
    again(writer).abort(messages)
    assert values(bootstrap, topic) == expected


def test_what_failed_and_losing_tries_have_staged_is_dropped(
    bootstrap: str, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """A try that dies in the middle, one that sees its rows in another order, and a copy that Spark does not name leave nothing."""
    topic = make_topic(1)
    writer = writer_of(bootstrap, topic=topic)

    def dying() -> Iterator[pa.RecordBatch]:
        yield from rows("b", "a")
        raise RuntimeError("lost executor")

    with pytest.raises(RuntimeError, match="lost executor"):
        writer.stage(0, dying())
    first = writer.stage(0, rows("a", "b"))
    writer.stage(0, rows("b", "a"))
    with caplog.at_level(logging.WARNING, logger="lograft.spark"):
        writer.commit([first])
    assert values(bootstrap, topic) == ["a", "b"]
    assert "2 tries of tasks did not count" in caplog.text
    assert "spark.speculation" not in caplog.text


def test_speculation_is_warned_about_once(
    bootstrap: str, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning says what it costs, once for the job."""
    writer = writer_of(bootstrap, topic=make_topic(1))
    messages = [writer.stage(task, rows("a")) for task in range(3)]
    for each in messages:
        each.is_speculative = True
    with caplog.at_level(logging.WARNING, logger="lograft.spark"):
        writer.commit(messages)
    assert caplog.text.count(staging.SPECULATION_COST) == 1


def test_rerun_of_a_committed_ingest_writes_nothing(
    bootstrap: str, make_topic: MakeTopic, ingest_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its tasks take no row, its commit does nothing, and its abort neither: what was published stays once."""
    topic = make_topic(1)
    first = writer_of(bootstrap, topic=topic, ingest_id=ingest_id)
    first.commit([first.stage(0, rows("a"))])

    def untouched() -> Iterator[pa.RecordBatch]:
        pytest.fail("a row was taken")
        yield

    with caplog.at_level(logging.WARNING, logger="lograft.spark"):
        rerun = writer_of(bootstrap, topic=topic, ingest_id=ingest_id)
    assert f"ingest {ingest_id} was committed by an earlier run with 1 records" in caplog.text
    message = again(rerun.stage(0, untouched()))
    assert message == TaskStaged(ingest=rerun.ingest, sealed=None)
    rerun.commit([message])
    rerun.abort([message])
    assert values(bootstrap, topic) == ["a"]


def test_rerun_after_a_failure_publishes_once(bootstrap: str, make_topic: MakeTopic, ingest_id: str) -> None:
    """A failed job publishes nothing, and its id can be used again; what the first run has staged is dropped."""
    topic = make_topic(1)
    failed = writer_of(bootstrap, topic=topic, ingest_id=ingest_id)
    failed.abort([failed.stage(0, rows("a")), None])
    with pytest.raises(IngestAbortedError, match=f"ingest {ingest_id}: .*run the job again"):
        failed.stage(1, rows("b"))
    rerun = writer_of(bootstrap, topic=topic, ingest_id=ingest_id)
    rerun.commit([rerun.stage(0, rows("a")), rerun.stage(1, rows("b"))])
    assert values(bootstrap, topic) == ["a", "b"]


def test_driver_that_wakes_late_is_fenced(
    bootstrap: str, make_topic: MakeTopic, ingest_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A second driver has opened the ingest. The first one can neither stage nor commit nor abort."""
    topic = make_topic(1)
    zombie = writer_of(bootstrap, topic=topic, ingest_id=ingest_id)
    staged = zombie.stage(0, rows("old"))
    newer = writer_of(bootstrap, topic=topic, ingest_id=ingest_id)
    with pytest.raises(IngestFencedError, match="Another run has opened the same ingest"):
        zombie.stage(1, rows("old"))
    with pytest.raises(IngestFencedError, match="let this one end"):
        zombie.commit([staged])
    with caplog.at_level(logging.WARNING, logger="lograft.spark"):
        zombie.abort([staged])
    assert "no longer of this run" in caplog.text
    newer.commit([newer.stage(0, rows("new"))])
    with pytest.raises(IngestConflictError, match=r"need another ingest\.id"):
        zombie.commit([staged])
    with caplog.at_level(logging.ERROR, logger="lograft.spark"):
        zombie.abort([staged])
    assert values(bootstrap, topic) == ["new"]


def test_abort_after_a_commit_says_that_it_is_published(
    bootstrap: str, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """The reply to the commit was lost, so Spark calls the job failed."""
    topic = make_topic(1)
    writer = writer_of(bootstrap, topic=topic)
    messages = [writer.stage(0, rows("a"))]
    writer.commit(messages)
    with caplog.at_level(logging.ERROR, logger="lograft.spark"):
        writer.abort(messages)
    assert "is committed although the job failed" in caplog.text


def test_frame_without_rows_commits(bootstrap: str, make_topic: MakeTopic, ingest_id: str) -> None:
    """Tasks without rows, with empty batches, and no task at all."""
    topic = make_topic(2)
    writer = writer_of(bootstrap, topic=topic, ingest_id=ingest_id)
    nothing = pa.record_batch({"value": pa.array([], pa.string())})
    writer.commit([writer.stage(0, iter([])), writer.stage(1, iter([nothing]))])
    assert writer_of(bootstrap, topic=topic, ingest_id=ingest_id).ingest.is_committed
    without_tasks = writer_of(bootstrap, topic=topic)
    without_tasks.commit([])
    assert values(bootstrap, topic) == []


def test_columns_place_the_rows(bootstrap: str, make_topic: MakeTopic) -> None:
    """By key, by the column partition, by the column topic; with headers and times."""
    one, two = make_topic(3), make_topic(3)
    schema = StructType(
        [
            StructField("topic", StringType()),
            StructField("partition", IntegerType()),
            StructField("key", BinaryType()),
            StructField("value", BinaryType()),
            StructField("headers", HEADERS),
            StructField("timestamp", TimestampType()),
        ]
    )
    batch = pa.record_batch(
        {
            "topic": [one, two, one, one],
            "partition": pa.array([2, 1, None, None], pa.int32()),
            "key": pa.array([None, b"k", b"k", b"k"], pa.binary()),
            "value": pa.array([b"a", b"b", b"c", b"d"], pa.binary()),
            "headers": pa.array(
                [[{"key": "h", "value": b"1"}], None, [], None],
                pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
            ),
            "timestamp": pa.array([1_000_000, 2_000_000, 3_000_000, None], pa.timestamp("us", tz="UTC")),
        }
    )
    writer = writer_of(bootstrap, schema, ingest_topics=f"{one},{two}")
    assert sorted(writer.ingest.topics) == sorted([one, two])
    writer.commit([writer.stage(0, iter([batch]))])
    assert contents(bootstrap, two) == [(1, b"k", b"b")]
    found = contents(bootstrap, one)
    assert (2, None, b"a") in found
    by_key = [(partition, value) for partition, key, value in found if key == b"k"]
    assert [value for _, value in by_key] == [b"c", b"d"]
    assert len({partition for partition, _ in by_key}) == 1
    with Consumer(bootstrap) as consumer:
        consumer.assign([TopicPartition(one, 2)])
        (first, *_) = consumer.poll(5_000)
        assert (first.timestamp_ms, list(first.headers)) == (1_000, [("h", b"1")])


def test_topic_that_was_not_named_fails_the_task(bootstrap: str, make_topic: MakeTopic) -> None:
    """The error names the option and the topic."""
    schema = StructType([StructField("topic", StringType()), StructField("value", StringType())])
    writer = writer_of(bootstrap, schema, ingest_topics=make_topic(1))
    with pytest.raises(OptionError, match=r"option ingest\.topics: does not name elsewhere"):
        writer.stage(0, iter([pa.record_batch({"topic": ["elsewhere"], "value": ["a"]})]))


def test_topic_that_does_not_exist_fails_on_the_driver(bootstrap: str) -> None:
    """For both guarantees, and for each topic that is named."""
    with pytest.raises(UnknownTopicError, match="nowhere"):
        writer_of(bootstrap, topic="nowhere")
    given = {"kafka.bootstrap.servers": bootstrap, "topic": "nowhere", **APPEND}
    with pytest.raises(UnknownTopicError, match="nowhere"):
        batch_writer(parse_write_options(given), VALUE)


def test_row_that_is_refused_fails_the_task(bootstrap: str, make_topic: MakeTopic) -> None:
    """A row over the limit of its topic is no gap in what is published."""
    topic = make_topic(1)
    writer = writer_of(bootstrap, topic=topic)
    with pytest.raises(LograftError, match="takes at most 1048576"):
        writer.stage(0, rows("x" * 3_000_000))


def test_time_to_live_reaches_the_ingest(bootstrap: str, make_topic: MakeTopic, ingest_id: str, admin: Admin) -> None:
    """The ingest stays open when the driver has closed its client."""
    topic = make_topic(1)
    writer_of(bootstrap, topic=topic, ingest_id=ingest_id, ingest_ttl_ms=20_000)
    found = admin.describe_ingest(ingest_id)
    assert (found.state, found.ttl_ms, found.topics) == (IngestState.OPEN, 20_000, (topic,))


def receipt(partition: int, record_count: int, *, error: LograftError | None = None) -> BatchReceipt:
    return BatchReceipt(
        topic="t",
        partition=partition,
        base_offset=0,
        record_count=record_count,
        durability=Durability.FLUSHED,
        error=error,
    )


def test_message_counts_acknowledged_records() -> None:
    """Failed batches do not count. The message can be pickled to the driver."""
    receipts = _Receipts()
    receipts.add(receipt(0, 3))
    receipts.add(receipt(0, 2))
    receipts.add(receipt(1, 4))
    receipts.add(receipt(1, 9, error=LograftError("no")))
    message = receipts.message(9)
    assert message == TaskWritten(record_count=9, batch_count=3, records={ZERO: 5, ONE: 4})
    assert again(message) == message


def test_task_whose_counts_do_not_add_up_fails() -> None:
    """A lost acknowledgement is never a success."""
    receipts = _Receipts()
    receipts.add(receipt(0, 3))
    with pytest.raises(LograftError, match="4 rows were sent and 3 acknowledged"):
        receipts.message(4)


def test_totals_pass_over_failed_tasks() -> None:
    """Spark passes None for a failed task."""
    one = TaskWritten(record_count=5, batch_count=1, records={ZERO: 5})
    two = TaskWritten(record_count=3, batch_count=2, records={ZERO: 1, ONE: 2})
    assert total_written([one, None, two]) == TaskWritten(record_count=8, batch_count=3, records={ZERO: 6, ONE: 2})
    assert total_written([]) == TaskWritten()


def test_commit_and_abort_of_an_append_say_what_is_in_the_log(
    bootstrap: str, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """The rows are there before the commit, and an abort does not pretend that nothing was written."""
    topic = make_topic(1)
    given = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "kafka.client.id": "x", **APPEND}
    schema = StructType([StructField("value", StringType()), StructField("extra", StringType())])
    with caplog.at_level(logging.INFO, logger="lograft.spark.sink"):
        writer = again(batch_writer(parse_write_options(given), schema))
        assert isinstance(writer, AppendWriter)
        message = again(writer.write(iter([pa.record_batch({"value": ["a", "b"], "extra": ["c", "d"]})])))
        assert values(bootstrap, topic) == ["a", "b"]
        writer.commit([message])
        writer.abort([None, message])
    text = caplog.text
    assert "options without effect in a batch write of Lograft: kafka.client.id" in text
    assert "columns that are not written: extra" in text
    assert "wrote 2 records in 1 batches to 1 partitions" in text
    assert "at least 2 records of its finished tasks stay in the log" in text


def test_unreachable_cluster_fails_the_task(bootstrap: str, make_topic: MakeTopic) -> None:
    """Rows that cannot be delivered are an error of the task."""
    given = {
        "kafka.bootstrap.servers": bootstrap,
        "topic": make_topic(1),
        "delivery.timeout.ms": "200",
        "linger.ms": "0",
    }
    writer = batch_writer(parse_write_options({**given, **APPEND}), VALUE)
    away = again(writer)
    away.options = parse_write_options({**given, **APPEND, "kafka.bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(LograftError):
        away.write(rows("a"))
