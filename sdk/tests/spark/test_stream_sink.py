# SPDX-License-Identifier: Apache-2.0
"""The streaming writer as a plain object, without a Spark session, against a real broker."""

from __future__ import annotations

import logging
import pickle
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from lograft import Admin, Consumer, TopicPartition
from lograft.errors import (
    IngestConflictError,
    IngestFencedError,
    IngestIncompleteError,
    LograftError,
    UnknownTopicError,
)
from lograft.spark.datasource import LograftDataSource
from lograft.spark.options import parse_stream_write_options
from lograft.spark.schema import check_sink_columns
from lograft.spark.stream_sink import StreamWriter
from lograft.spark.values import OptionError
from pyspark.sql.types import StringType, StructField, StructType

VALUE = StructType([StructField("value", StringType())])

MakeTopic = Callable[..., str]


def again(thing: Any) -> Any:
    """Return what arrives in another process."""
    return pickle.loads(pickle.dumps(thing))  # noqa: S301 - our own bytes


def writer_of(bootstrap: str, topic: str) -> StreamWriter:
    """Return a writer that Spark makes for a micro-batch or for its commit."""
    options = parse_stream_write_options(
        {"kafka.bootstrap.servers": bootstrap, "topic": topic, "checkpointLocation": "/c"}
    )
    return StreamWriter(options, check_sink_columns(VALUE, options))


def rows(*values: str) -> Iterator[pa.RecordBatch]:
    """Yield a batch for each value."""
    return (pa.record_batch({"value": [value]}) for value in values)


def values(bootstrap: str, topic: str) -> list[str]:
    """Return the values of a topic with one partition."""
    with Consumer(bootstrap) as consumer:
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        end = consumer.end_offsets([place])[place]
        found: list[str] = []
        while consumer.position(place) < end:
            found += [(each.value or b"").decode() for each in consumer.poll(1_000)]
    return found


@pytest.fixture
def query() -> str:
    """Id of a query that no other test uses."""
    return str(uuid.uuid4())


def test_micro_batches_are_published_one_by_one(
    bootstrap: str, make_topic: MakeTopic, query: str, admin: Admin
) -> None:
    """The tasks of each open one ingest. A fresh writer commits what the messages say."""
    topic = make_topic(1)
    for batch_id in range(3):
        tasks = writer_of(bootstrap, topic)
        messages = [
            again(again(tasks).stage(f"{query}/{batch_id}", task, rows(f"{batch_id}-{task}"))) for task in (1, 0)
        ]
        assert {each.ingest.epoch for each in messages} == {1}
        assert len(values(bootstrap, topic)) == 2 * batch_id
        writer_of(bootstrap, topic).commit(messages, batch_id)
    assert values(bootstrap, topic) == ["0-0", "0-1", "1-0", "1-1", "2-0", "2-1"]
    assert admin.describe_ingest(f"{query}/1").ttl_ms == 3_600_000


def test_micro_batch_that_comes_again_is_done(
    bootstrap: str, make_topic: MakeTopic, query: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver died between its commit and the checkpoint. The tasks of the restarted one take no row."""
    topic, ingest_id = make_topic(1), f"{query}/7"
    writer_of(bootstrap, topic).commit([writer_of(bootstrap, topic).stage(ingest_id, 0, rows("a"))], 7)

    def untouched() -> Iterator[pa.RecordBatch]:
        pytest.fail("a row was taken")
        yield

    message = again(writer_of(bootstrap, topic).stage(ingest_id, 0, untouched()))
    with caplog.at_level(logging.WARNING, logger="lograft.spark"):
        writer_of(bootstrap, topic).commit([message], 7)
        writer_of(bootstrap, topic).abort([message], 7)
    assert "was committed before: nothing is written" in caplog.text
    assert values(bootstrap, topic) == ["a"]


def test_restarted_driver_fences_the_older_one(bootstrap: str, make_topic: MakeTopic, query: str) -> None:
    """Late tasks and repeated tasks of the older driver do not disturb the newer one, and neither do its commit and its abort."""
    topic, ingest_id = make_topic(1), f"{query}/0"
    older, newer = writer_of(bootstrap, topic), writer_of(bootstrap, topic)
    old = older.stage(ingest_id, 0, rows("old"))
    new = [newer.stage(ingest_id, 0, rows("new"))]
    for _ in range(4):
        with pytest.raises(IngestFencedError, match=f"ingest {ingest_id}: .*Another run has opened"):
            older.stage(ingest_id, 1, rows("old"))
    with pytest.raises(IngestFencedError):
        writer_of(bootstrap, topic).commit([old], 0)
    writer_of(bootstrap, topic).abort([old, None], 0)
    new.append(newer.stage(ingest_id, 1, rows("new too")))
    writer_of(bootstrap, topic).commit(new, 0)
    assert values(bootstrap, topic) == ["new", "new too"]


def test_two_drivers_on_one_checkpoint_commit_a_micro_batch_once(
    bootstrap: str, make_topic: MakeTopic, query: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The one that was fenced hears that it lost; a task of it that comes after the commit finds the micro-batch done."""
    topic, ingest_id = make_topic(1), f"{query}/0"
    one, two = writer_of(bootstrap, topic), writer_of(bootstrap, topic)
    first = one.stage(ingest_id, 0, rows("a"))
    second = two.stage(ingest_id, 0, rows("a"))
    writer_of(bootstrap, topic).commit([second], 0)
    with pytest.raises(IngestConflictError, match="Another run has committed the same ingest"):
        writer_of(bootstrap, topic).commit([first], 0)
    late = one.stage(ingest_id, 1, rows("b"))
    assert late.sealed is None
    writer_of(bootstrap, topic).commit([first, late], 0)
    assert values(bootstrap, topic) == ["a"]


def test_task_that_fails_leaves_the_ingest_to_the_others(bootstrap: str, make_topic: MakeTopic, query: str) -> None:
    """Its repetition joins the same epoch, and what the first try has staged is dropped."""
    topic, ingest_id = make_topic(1), f"{query}/0"
    writer = writer_of(bootstrap, topic)
    messages = [writer.stage(ingest_id, 0, rows("a"))]

    def dying() -> Iterator[pa.RecordBatch]:
        yield from rows("b")
        raise RuntimeError("lost executor")

    with pytest.raises(RuntimeError, match="lost executor"):
        writer.stage(ingest_id, 1, dying())
    messages.append(writer.stage(ingest_id, 1, rows("b")))
    writer_of(bootstrap, topic).commit(messages, 0)
    assert values(bootstrap, topic) == ["a", "b"]


def test_micro_batch_that_failed_is_aborted_and_comes_again(bootstrap: str, make_topic: MakeTopic, query: str) -> None:
    """What was staged goes at once, and the restarted query opens the same ingest."""
    topic, ingest_id = make_topic(1), f"{query}/0"
    failed = writer_of(bootstrap, topic)
    messages = [failed.stage(ingest_id, 0, rows("a")), None]
    writer_of(bootstrap, topic).abort(messages, 0)
    # A late task of the failed micro-batch opens it once more; its driver never commits that.
    assert failed.stage(ingest_id, 1, rows("b")).ingest.epoch == 2
    restarted = writer_of(bootstrap, topic)
    writer_of(bootstrap, topic).commit([restarted.stage(ingest_id, 0, rows("a"))], 0)
    assert values(bootstrap, topic) == ["a"]


def test_ingest_that_was_aborted_between_two_tasks_fails_the_micro_batch(
    bootstrap: str, make_topic: MakeTopic, query: str, admin: Admin
) -> None:
    """Some rows are gone. The error says what to do, and the next try publishes all of them."""
    topic, ingest_id = make_topic(1), f"{query}/0"
    writer = writer_of(bootstrap, topic)
    first = writer.stage(ingest_id, 0, rows("a"))
    admin.abort_ingest(ingest_id)
    second = writer.stage(ingest_id, 1, rows("b"))
    assert (first.ingest.epoch, second.ingest.epoch) == (1, 2)
    with pytest.raises(IngestIncompleteError, match=r"Start the query again.*ingest\.ttl\.ms"):
        writer_of(bootstrap, topic).commit([first, second], 0)
    writer_of(bootstrap, topic).abort([first, second], 0)
    assert values(bootstrap, topic) == []


def test_micro_batch_without_rows_or_tasks(bootstrap: str, make_topic: MakeTopic, query: str) -> None:
    """Tasks without rows commit, and where no task has named the ingest there is nothing to do."""
    topic = make_topic(1)
    writer = writer_of(bootstrap, topic)
    writer_of(bootstrap, topic).commit([writer.stage(f"{query}/0", 0, iter([]))], 0)
    writer_of(bootstrap, topic).commit([], 1)
    writer_of(bootstrap, topic).abort([], 1)
    writer_of(bootstrap, topic).abort([None, None], 1)
    assert values(bootstrap, topic) == []


def test_fresh_checkpoint_is_a_new_query(bootstrap: str, make_topic: MakeTopic) -> None:
    """The same rows under another query id are published again."""
    topic = make_topic(1)
    for _ in range(2):
        staged = writer_of(bootstrap, topic).stage(f"{uuid.uuid4()}/0", 0, rows("a"))
        writer_of(bootstrap, topic).commit([staged], 0)
    assert values(bootstrap, topic) == ["a", "a"]


def test_topic_that_does_not_exist_fails_the_task(bootstrap: str, query: str) -> None:
    """The error names it."""
    with pytest.raises(UnknownTopicError, match="nowhere"):
        writer_of(bootstrap, "nowhere").stage(f"{query}/0", 0, rows("a"))


def test_write_outside_a_task_says_so(bootstrap: str) -> None:
    """Only Spark's tasks know the query and the batch."""
    with pytest.raises(LograftError, match="in a task of Spark only"):
        writer_of(bootstrap, "t").write(rows("a"))


def test_output_mode_complete_is_refused() -> None:
    """A log cannot be replaced by each micro-batch."""
    source = LograftDataSource({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"})
    with pytest.raises(OptionError, match="use append or update"):
        source.streamWriter(VALUE, overwrite=True)
    assert isinstance(source.streamWriter(VALUE, overwrite=False), StreamWriter)
