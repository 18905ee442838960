# SPDX-License-Identifier: Apache-2.0
"""The streaming reader against a real broker, without Spark: it is called as Spark calls it."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from lograft import Admin, Producer, TopicPartition
from lograft.errors import OffsetOutOfRangeError, UnknownTopicError
from lograft.spark import lookups, stream_source
from lograft.spark.options import parse_stream_read_options
from lograft.spark.record_sizes import RECORD_BYTES
from lograft.spark.stream_offsets import TopicRecreatedError
from lograft.spark.stream_source import StreamReader
from lograft.spark.values import OptionError
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

MakeTopic = Callable[..., str]
Place = tuple[int, int]
"""A partition and an offset."""


@pytest.fixture
def new_reader(bootstrap: str) -> Iterator[Callable[..., StreamReader]]:
    """Make a reader as Spark does for a run: `new_reader(subscribe=topic, maxOffsetsPerTrigger=5)`."""
    made: list[StreamReader] = []

    def make(**options: object) -> StreamReader:
        given = {"startingOffsets": "earliest", "kafkaConsumer.pollTimeoutMs": "10000", **options}
        texts = {name: str(value) for name, value in given.items()}
        reader = StreamReader(parse_stream_read_options({"bootstrap.servers": bootstrap, **texts}))
        made.append(reader)
        return reader

    yield make
    for reader in made:
        reader.stop()


@pytest.fixture
def put(bootstrap: str) -> Iterator[Callable[..., None]]:
    """Append values to a partition: `put(topic, 0, [b"a", b"b"])`."""
    with Producer(bootstrap) as producer:

        def write(topic: str, partition: int, values: list[bytes]) -> None:
            producer.send_many(topic, values, partition=partition)
            producer.flush()

        yield write


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def next_end(reader: StreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return through_json(reader.latestOffset(start, reader.getDefaultReadLimit()))


def rows(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a micro-batch. The reader of the tasks is another one, which was pickled."""
    in_tasks: StreamReader = pickle.loads(pickle.dumps(StreamReader(reader.options)))  # noqa: S301 - our own bytes
    partitions = pickle.loads(pickle.dumps(list(reader.partitions(start, end))))  # noqa: S301 - our own bytes
    return [row for each in partitions for batch in in_tasks.read(each) for row in batch.to_pylist()]


def places(found: list[dict[str, Any]]) -> list[Place]:
    return [(row["partition"], row["offset"]) for row in found]


def run(reader: StreamReader, start: dict[str, Any]) -> tuple[list[list[dict[str, Any]]], dict[str, Any]]:
    """Run micro-batches until nothing is left. Return their rows and the last end."""
    batches: list[list[dict[str, Any]]] = []
    while (end := next_end(reader, start)) != start:
        batches.append(rows(reader, start, end))
        start = end
    return batches, start


def test_micro_batches_read_all_records_once(
    make_topic: MakeTopic, new_reader: Callable[..., StreamReader], put: Callable[..., None]
) -> None:
    """With a limit by records, each micro-batch has that many, from every partition in proportion."""
    topic = make_topic(3)
    put(topic, 0, [b"%d" % number for number in range(90)])
    put(topic, 2, [b"%d" % number for number in range(30)])
    reader = new_reader(subscribe=topic, maxOffsetsPerTrigger=40)
    assert reader.getDefaultReadLimit() == ReadMaxRows(40)
    assert reader.reportLatestOffset() is None
    batches, end = run(reader, through_json(reader.initialOffset()))
    assert [len(batch) for batch in batches] == [40, 40, 40]
    assert [sum(partition == 2 for partition, _ in places(batch)) for batch in batches] == [10, 10, 10]
    found = sorted(place for batch in batches for place in places(batch))
    assert found == [*((0, offset) for offset in range(90)), *((2, offset) for offset in range(30))]
    assert reader.reportLatestOffset() == end
    assert next_end(reader, end) == end
    assert list(reader.partitions(end, end)) == []


def test_stream_begins_at_the_latest_record_unless_told(
    make_topic: MakeTopic, new_reader: Callable[..., StreamReader], put: Callable[..., None]
) -> None:
    """The default of a streaming query is `latest`. Offsets by partition take -1 and -2."""
    topic = make_topic(2)
    put(topic, 0, [b"a", b"b", b"c"])
    put(topic, 1, [b"a", b"b"])
    latest = new_reader(subscribe=topic, startingOffsets="latest")
    start = through_json(latest.initialOffset())
    chosen = new_reader(subscribe=topic, startingOffsets=json.dumps({topic: {"0": 1, "1": -1}}))
    assert places(run(chosen, through_json(chosen.initialOffset()))[0][0]) == [(0, 1), (0, 2)]
    put(topic, 1, [b"d"])
    (batch,), _ = run(latest, start)
    assert [(row["partition"], row["offset"], row["value"]) for row in batch] == [(1, 2, b"d")]
    with pytest.raises(OffsetOutOfRangeError, match="ends at offset 3; the query is at 9 already"):
        new_reader(subscribe=topic, startingOffsets=json.dumps({topic: {"0": 9, "1": -1}})).initialOffset()
    with pytest.raises(OptionError, match="must name every partition"):
        new_reader(subscribe=topic, startingOffsets=json.dumps({topic: {"0": 1}})).initialOffset()


def test_limit_by_bytes_is_kept_where_records_are_uneven(
    make_topic: MakeTopic, new_reader: Callable[..., StreamReader], put: Callable[..., None]
) -> None:
    """Small logs are looked at record by record: no micro-batch is larger, and none is much smaller."""
    topic = make_topic(2)
    put(topic, 0, [bytes(1 + number * 37 % 4_000) for number in range(150)])
    put(topic, 1, [bytes(200) for _ in range(100)])
    limit = 60_000
    reader = new_reader(subscribe=topic, maxBytesPerTrigger=limit)
    assert reader.getDefaultReadLimit() == ReadMaxBytes(limit)
    batches, _ = run(reader, through_json(reader.initialOffset()))
    sizes = [sum(RECORD_BYTES + len(row["value"]) for row in batch) for batch in batches]
    assert sorted(place for batch in batches for place in places(batch)) == [
        *((0, offset) for offset in range(150)),
        *((1, offset) for offset in range(100)),
    ]
    assert all(size <= limit for size in sizes)
    assert all(size > 0.6 * limit for size in sizes[:-1])
    assert all({partition for partition, _ in places(batch)} == {0, 1} for batch in batches[:-1])


def test_record_larger_than_the_limit_goes_alone(
    make_topic: MakeTopic, new_reader: Callable[..., StreamReader], put: Callable[..., None]
) -> None:
    """A micro-batch always advances."""
    topic = make_topic(1)
    put(topic, 0, [bytes(9_000), b"small", bytes(9_000)])
    reader = new_reader(subscribe=topic, maxBytesPerTrigger=100)
    batches, _ = run(reader, through_json(reader.initialOffset()))
    assert [places(batch) for batch in batches] == [[(0, 0)], [(0, 1)], [(0, 2)]]


def test_limits_by_records_and_by_bytes_hold_together(
    make_topic: MakeTopic, new_reader: Callable[..., StreamReader], put: Callable[..., None]
) -> None:
    """Spark knows one limit; the reader keeps both. `ReadAllAvailable`, which Trigger.Once sends, keeps none."""
    topic = make_topic(1)
    put(topic, 0, [*(b"" for _ in range(20)), *(bytes(1_000) for _ in range(20))])
    reader = new_reader(subscribe=topic, maxRecordsPerTrigger=15, maxBytesPerTrigger=5_000)
    batches, _ = run(reader, through_json(reader.initialOffset()))
    assert [len(batch) for batch in batches] == [15, 9, 4, 4, 4, 4]
    start = through_json(reader.initialOffset())
    end = through_json(reader.latestOffset(start, ReadAllAvailable()))
    assert len(rows(reader, start, end)) == 40


def test_trigger_waits_for_enough_records_or_long_enough(
    make_topic: MakeTopic,
    new_reader: Callable[..., StreamReader],
    put: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in the Kafka connector: the first trigger of a run never waits, nor does AvailableNow."""
    now_s = [100.0]
    # Only for the reader: the clients and the cluster of the test need a clock that runs.
    monkeypatch.setattr(stream_source, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    topic = make_topic(1)
    put(topic, 0, [b"a"])
    reader = new_reader(subscribe=topic, minOffsetsPerTrigger=3, maxTriggerDelay="10s")
    assert reader.getDefaultReadLimit() == ReadMinRows(3)
    end = next_end(reader, through_json(reader.initialOffset()))
    put(topic, 0, [b"b", b"c"])
    assert next_end(reader, end) == end
    now_s[0] += 10
    late = next_end(reader, end)
    assert len(rows(reader, end, late)) == 2
    put(topic, 0, [b"d", b"e", b"f"])
    assert len(rows(reader, late, next_end(reader, late))) == 3
    reader.prepareForTriggerAvailableNow()
    put(topic, 0, [b"g"])
    assert len(rows(reader, late, next_end(reader, late))) == 3


def test_new_partitions_and_new_topics_are_read_from_their_beginning(
    make_topic: MakeTopic, new_reader: Callable[..., StreamReader], put: Callable[..., None], admin: Admin
) -> None:
    """A query with a pattern finds topics and partitions that were made after it began at the latest record."""
    topic = make_topic(1, prefix="grow")
    put(topic, 0, [b"before"])
    reader = new_reader(subscribePattern="grow-.*", startingOffsets="latest")
    start = through_json(reader.initialOffset())
    admin.create_partitions(topic, 2)
    put(topic, 1, [b"a", b"b"])
    other = make_topic(1, prefix="grow")
    put(other, 0, [b"c"])
    batches, _ = run(reader, start)
    found = [(row["topic"], row["partition"], row["value"]) for batch in batches for row in batch]
    assert sorted(found) == sorted([(topic, 1, b"a"), (topic, 1, b"b"), (other, 0, b"c")])
    for name in (topic, other):
        admin.delete_topic(name)


def test_many_topics_are_looked_up_by_one_list(
    make_topic: MakeTopic,
    new_reader: Callable[..., StreamReader],
    put: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answers are the same as topic by topic."""
    topics = [make_topic(1), make_topic(2)]
    for topic in topics:
        put(topic, 0, [b"a"])
    names = ",".join(topics)
    one_by_one = new_reader(subscribe=names).initialOffset()
    monkeypatch.setattr(lookups, "MAX_DESCRIBED_TOPICS", 1)
    assert new_reader(subscribe=names).initialOffset() == one_by_one
    assert set(one_by_one["topics"]) == set(topics)
    with pytest.raises(UnknownTopicError):
        new_reader(subscribe=f"{names},missing").initialOffset()


def test_recreated_topic_stops_the_query(
    make_topic: MakeTopic,
    new_reader: Callable[..., StreamReader],
    put: Callable[..., None],
    admin: Admin,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Offsets of the checkpoint belong to a topic id. The tasks do not read the new topic either."""
    topic = make_topic(1)
    put(topic, 0, [b"old"] * 5)
    reader = new_reader(subscribe=topic)
    start = through_json(reader.initialOffset())
    end = next_end(reader, start)
    (partition,) = reader.partitions(start, end)
    admin.delete_topic(topic)
    with pytest.raises(UnknownTopicError, match="is deleted or not subscribed any more"):
        next_end(reader, end)
    admin.create_topic(topic, partition_count=1)
    put(topic, 0, [b"new"] * 9)
    with pytest.raises(UnknownTopicError):
        list(reader.read(partition))
    for call in (lambda: next_end(reader, end), lambda: reader.partitions(start, end)):
        with pytest.raises(TopicRecreatedError, match=r"deleted and created again.*new checkpoint directory"):
            call()
    lenient = new_reader(subscribe=topic, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, logger="lograft.spark.stream_source"):
        batches, _ = run(lenient, end)
    assert [row["value"] for batch in batches for row in batch] == [b"new"] * 9
    assert "deleted and created again" in caplog.text


def test_deleted_records_are_an_error_or_a_warning(
    make_topic: MakeTopic,
    new_reader: Callable[..., StreamReader],
    put: Callable[..., None],
    admin: Admin,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The option failOnDataLoss decides, in the planning of new micro-batches and of those that are planned again."""
    topic = make_topic(1)
    put(topic, 0, [b"%d" % number for number in range(10)])
    reader = new_reader(subscribe=topic, maxOffsetsPerTrigger=4)
    start = through_json(reader.initialOffset())
    end = next_end(reader, start)
    admin.delete_records({TopicPartition(topic, 0): 2})
    for call in (lambda: next_end(reader, start), lambda: reader.partitions(start, end)):
        with pytest.raises(OffsetOutOfRangeError, match="starts at offset 2 by now; the query is at 0"):
            call()
    lenient = new_reader(subscribe=topic, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, logger="lograft.spark.stream_source"):
        assert places(rows(lenient, start, end)) == [(0, 2), (0, 3)]
    assert "starts at offset 2 by now" in caplog.text


def test_available_now_reads_what_was_there_and_needs_no_expired_offset(
    make_topic: MakeTopic, new_reader: Callable[..., StreamReader], put: Callable[..., None], admin: Admin
) -> None:
    """The run goes on from its checkpoint, although the records at its first offsets were deleted, and so were all it has read."""
    topic = make_topic(1)
    put(topic, 0, [b"%d" % number for number in range(10)])
    options = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 3}}), "maxOffsetsPerTrigger": 5}
    first = new_reader(**options)
    first.prepareForTriggerAvailableNow()
    batches, end = run(first, through_json(first.initialOffset()))
    assert [len(batch) for batch in batches] == [5, 2]
    admin.delete_records({TopicPartition(topic, 0): 10})
    put(topic, 0, [b"%d" % number for number in range(10, 18)])
    second = new_reader(**options)
    second.prepareForTriggerAvailableNow()
    put(topic, 0, [b"too late"] * 3)
    batches, end = run(second, end)
    assert [places(batch) for batch in batches] == [[(0, each) for each in range(10, 15)], [(0, 15), (0, 16), (0, 17)]]
    third = new_reader(**options)
    third.prepareForTriggerAvailableNow()
    assert len(run(third, end)[0][0]) == 3


def test_micro_batch_is_planned_the_same_by_the_next_run(
    make_topic: MakeTopic, new_reader: Callable[..., StreamReader], put: Callable[..., None]
) -> None:
    """After a restart the last micro-batch is read again, whatever has arrived since, and with whatever options."""
    topic = make_topic(2)
    put(topic, 0, [b"%d" % number for number in range(20)])
    put(topic, 1, [b"%d" % number for number in range(6)])
    reader = new_reader(subscribe=topic, maxOffsetsPerTrigger=13)
    start = through_json(reader.initialOffset())
    end = next_end(reader, start)
    before = rows(reader, start, end)
    put(topic, 0, [b"more"] * 30)
    again = new_reader(subscribe=topic, minPartitions=6, columns="partition,offset")
    assert len(again.partitions(start, end)) == 6
    assert sorted(places(rows(again, start, end))) == sorted(places(before))
    assert set(rows(again, start, end)[0]) == {"partition", "offset"}
