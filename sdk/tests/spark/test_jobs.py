# SPDX-License-Identifier: Apache-2.0
"""The Spark parts of `lograft ingest` and `lograft replay`, in a real session against a real broker: what arrives, in which order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lograft import Consumer, Producer, TopicPartition
from lograft.errors import IngestNotFoundError, LograftError, OffsetOutOfRangeError, UsageError
from lograft.spark.jobs.failures import explained
from lograft.spark.jobs.phases import Moments
from lograft.spark.jobs.plan import plan_ingest, plan_replay
from lograft.types import ConsumerRecord, IngestState

if TYPE_CHECKING:
    from lograft import Admin
    from lograft.spark.jobs.ingesting import Counts
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

MakeTopic = Callable[..., str]
Ingest = Callable[..., "Counts"]
BEGIN_MS = 1_700_000_000_000


@pytest.fixture
def ingest(spark: SparkSession, bootstrap: str) -> Ingest:
    """Run an ingest of files as the command does, and return its counts, or raise what the command would say."""
    from lograft.spark.jobs.ingesting import Target, write

    def run(path: Path, topic: str, **arguments: Any) -> Counts:
        plan = plan_ingest([str(path)], **{"topic": topic, "ingest_id": f"job/{topic}", **arguments})
        try:
            return write(spark, plan, Target(bootstrap=bootstrap, cluster_id=None, options={}))
        except Exception as error:
            raise explained(error) from error

    return run


def records(bootstrap: str, topic: str, partition_count: int = 3) -> list[ConsumerRecord]:
    """Return everything in a topic, by partition and offset."""
    tps = [TopicPartition(topic, number) for number in range(partition_count)]
    found: list[ConsumerRecord] = []
    with Consumer(bootstrap) as consumer:
        ends = consumer.end_offsets(tps)
        consumer.assign(tps, start="earliest")
        while any(consumer.position(tp) < ends[tp] for tp in tps):
            found += consumer.poll(1_000, timeout_ms=1_000)
    return sorted(found, key=lambda each: (each.partition, each.offset))


def without_topic(record: ConsumerRecord) -> tuple[object, ...]:
    headers = tuple(record.headers)
    return (record.partition, record.offset, record.timestamp_ms, record.key, record.value, headers)


def test_rows_of_csv_arrive_once_and_in_time_order(
    ingest: Ingest, bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Key, time and headers from columns, the row as the value; a second run adds nothing."""
    topic = make_topic(3)
    rows = [f'{number},{BEGIN_MS + number * 37 % 1000},"a ""{number}""",' for number in range(500)]
    path = tmp_path / "orders.csv"
    path.write_text("\n".join(["id,at,text,none", *rows]) + "\n")
    arguments = {"key": "ID", "timestamp": "at", "headers": "text", "is_ordered": True}
    counts = ingest(path, topic, **arguments)
    found = records(bootstrap, topic)
    assert sorted(int(each.key) for each in found) == list(range(500))
    number = int(found[0].key)
    assert json.loads(found[0].value) == {
        "id": str(number),
        "at": str(BEGIN_MS + number * 37 % 1000),
        "text": f'a "{number}"',
        "none": None,
    }
    assert list(found[0].headers) == [("text", f'a "{number}"'.encode())]
    times = [each.timestamp_ms for each in found]
    for partition in range(3):
        of_partition = [each.timestamp_ms for each in found if each.partition == partition]
        assert of_partition == sorted(of_partition)
        assert of_partition
    assert (counts.records, counts.first_ms, counts.last_ms) == (500, min(times), max(times))
    assert counts.size_bytes == sum(len(each.key) + len(each.value) for each in found)
    ingest(path, topic, **arguments)
    assert len(records(bootstrap, topic)) == 500


def test_json_lines_keep_their_bytes(ingest: Ingest, bootstrap: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """The value is the line; fields that are taken out are texts. Another object keeps the types of its fields."""
    lines = [
        b'{"k": "a",  "n": {"x": [1, 2]}, "t": "2026-01-01T00:00:00Z"}',
        b'{"n":null,"k":17,"t":1767225600001,"u":"\xc3\xa9"}',
        b'{"k": null, "t": "1767225600002"}',
    ]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([lines[0], b"", lines[1] + b"\r", lines[2]]))
    topic = make_topic(1)
    ingest(path, topic, key="k", timestamp="t", headers="n", is_ordered=True)
    found = records(bootstrap, topic, 1)
    assert [(each.key, each.value) for each in found] == list(zip([b"a", b"17", None], lines, strict=True))
    assert [each.timestamp_ms - 1767225600000 for each in found] == [0, 1, 2]
    assert [dict(each.headers) for each in found] == [{"n": b'{"x":[1,2]}'}, {"n": None}, {"n": None}]
    topic = make_topic(1)
    ingest(path, topic, key="k", value_columns="n,k")
    values = sorted(each.value or b"" for each in records(bootstrap, topic, 1))
    assert values == [b'{"n":null,"k":17}', b'{"n":null,"k":null}', b'{"n":{"x":[1,2]},"k":"a"}']


def test_lines_of_text_are_values(ingest: Ingest, bootstrap: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """Empty ones too, and bytes that are no UTF-8."""
    (tmp_path / "a.txt").write_bytes(b"one\n\n thr\xff\xfe \n")
    topic = make_topic(1)
    ingest(tmp_path / "a.txt", topic)
    assert sorted(each.value for each in records(bootstrap, topic, 1)) == [b"", b" thr\xff\xfe ", b"one"]


def test_a_topic_goes_through_files_into_another(
    spark: SparkSession, ingest: Ingest, bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """By Parquet: bytes, null keys and values, times, partitions and headers are the same. JSON lines are those of consume."""
    from lograft.spark.jobs import replaying

    first, second = make_topic(2), make_topic(2)
    with Producer(bootstrap) as producer:
        for number in range(20):
            producer.send(
                first,
                None if number % 5 == 0 else b"\xff\x00" if number % 2 else f"v{number}".encode(),
                key=None if number % 3 == 0 else b"\xfe" if number % 2 else b"k",
                partition=number % 2,
                timestamp_ms=BEGIN_MS + number,
                headers=(("h", b"\xfd"), ("i", None), ("j", b"text")) if number % 2 else None,
            )
    source = replaying.Source(bootstrap=bootstrap, cluster_id=None, timeout_ms=30_000, options={})
    wanted = [without_topic(each) for each in records(bootstrap, first, 2)]
    plan = plan_replay(first, str(tmp_path / "files"))
    spans = replaying.spans_of(plan, source)
    assert [(each.partition, each.start_offset, each.end_offset) for each in spans] == [(0, 0, 10), (1, 0, 10)]
    written = replaying.write(spark, plan, source, spans)
    assert written.records == 20
    names = {"key": "key", "value": "value", "timestamp": "timestamp", "partition": "partition", "headers": "headers"}
    ingest(tmp_path / "files", second, format="parquet", is_ordered=True, **names)
    assert [without_topic(each) for each in records(bootstrap, second, 2)] == wanted
    got = list(replaying.records(spark, plan, source, spans))
    assert [without_topic(each) for each in got] == wanted
    chosen = plan_replay(first, "console", partitions=[0], key="k", limit=2)
    some = list(replaying.records(spark, chosen, source, replaying.spans_of(chosen, source)))
    assert [(each.partition, each.key) for each in some] == [(0, b"k"), (0, b"k")]
    lines = plan_replay(first, str(tmp_path / "lines.json"), from_offsets=["1:2"], until_offsets=["0:0"])
    assert replaying.write(spark, lines, source, replaying.spans_of(lines, source)).records == 8
    text = "".join(each.read_text() for each in sorted((tmp_path / "lines.json").glob("*.json")))
    rows = [json.loads(line) for line in text.splitlines()]
    assert rows[0] == {
        "topic": first,
        "partition": 1,
        "offset": 2,
        "timestamp_ms": BEGIN_MS + 5,
        "key_base64": "/g==",
        "headers": [{"name": "h", "value_base64": "/Q=="}, {"name": "i"}, {"name": "j", "value": "text"}],
    }
    empty = plan_replay(first, "console", from_ms=BEGIN_MS + 100)
    assert list(replaying.records(spark, empty, source, replaying.spans_of(empty, source))) == []
    with pytest.raises(OffsetOutOfRangeError, match="partition 0 has offsets from 0 up to 10"):
        replaying.spans_of(plan_replay(first, "console", from_offsets=["11"]), source)


def test_a_dry_run_writes_nothing(
    spark: SparkSession, bootstrap: str, admin: Admin, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """It counts, tells each partition's share by the rules of the sink, and opens no ingest."""
    from lograft.spark.jobs.ingesting import rehearse

    path = tmp_path / "a.csv"
    path.write_text("id,at,place\n" + "".join(f"{number},{number},{number % 2 or ''}\n" for number in range(100)))
    topic = make_topic(2)
    plan = plan_ingest([str(path)], topic=topic, ingest_id=f"dry/{topic}", key="id", timestamp="at")
    found = rehearse(spark, plan, partition_count=2, sample_rows=2)
    assert (found.counts.records, found.counts.first_ms, found.counts.last_ms) == (100, 0, 99)
    assert dict(found.columns) == {"id": "string", "at": "string", "place": "string"}
    assert [(each["key"], each["timestamp_ms"]) for each in found.sample] == [("0", 0), ("1", 1)]
    assert set(found.partitions) == {0, 1}
    assert sum(found.partitions.values()) == 100
    by_column = plan_ingest([str(path)], topic=topic, ingest_id="x", partition="place")
    assert dict(rehearse(spark, by_column, partition_count=2, sample_rows=0).partitions) == {None: 50, 1: 50}
    assert records(bootstrap, topic, 2) == []
    with pytest.raises(IngestNotFoundError):
        admin.describe_ingest(f"dry/{topic}")


@pytest.mark.parametrize(
    ("name", "text", "arguments", "problem"),
    [
        ("a.csv", "id,at\n1,2\n", {"key": "idd"}, "there is no column 'idd'; there are id, at; did you mean 'id'"),
        ("a.csv", "id,at\n1,2\n1,yesterday\n", {"timestamp": "at"}, "column 'at' holds yesterday, which is not a time"),
        (
            "a.csv",
            "id,at\n1,2\n1,x\n",
            {"partition": "at"},
            "column 'at' holds x, which is not a number of a partition",
        ),
        ("a.csv", "id,at\n1,2\n1,2,3\n", {}, "Spark: "),
        ("a.jsonl", '{"a": 1}\n{"a": 2\n', {"key": "a"}, "a line is not JSON"),
        ("a.parquet", "no parquet", {}, "Spark: "),
    ],
)
def test_bad_input_publishes_nothing(
    ingest: Ingest,
    bootstrap: str,
    admin: Admin,
    make_topic: MakeTopic,
    tmp_path: Path,
    name: str,
    text: str,
    arguments: dict[str, str],
    problem: str,
) -> None:
    """One sentence, and no record. The id is free for the next run."""
    topic = make_topic(1)
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as caught:
        ingest(tmp_path / name, topic, **arguments)
    assert problem in caught.value.message
    assert "\n" not in caught.value.message
    assert records(bootstrap, topic, 1) == []
    (tmp_path / "good.csv").write_text("a\n1\n")
    ingest(tmp_path / "good.csv", topic)
    assert len(records(bootstrap, topic, 1)) == 1
    assert admin.describe_ingest(f"job/{topic}").state is IngestState.COMMITTED


def test_a_bad_line_after_the_first_ones_is_found(
    ingest: Ingest, bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Spark meets it in a task. Without a column that is taken out, lines are not looked into."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"a": {number}}}\n' for number in range(2_000)) + '{"a": \n')
    topic = make_topic(1)
    with pytest.raises(LograftError):
        ingest(path, topic, key="a")
    assert records(bootstrap, topic, 1) == []
    ingest(path, topic)
    assert len(records(bootstrap, topic, 1)) == 2_001


def test_an_ingest_is_watched(ingest: Ingest, bootstrap: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """The watch sees it open and committed, and each moment once, in order."""
    from lograft.spark.jobs.watching import IngestWatch

    topic = make_topic(1)
    (tmp_path / "a.txt").write_text("x\n" * 1_000)
    states: list[IngestState] = []
    with IngestWatch(
        bootstrap,
        f"job/{topic}",
        Moments(asked=0.0, ready=0.0),
        on_status=lambda seen: states.append(seen.state),
    ) as watch:
        ingest(tmp_path / "a.txt", topic)
    assert states[-1] is IngestState.COMMITTED
    moments = watch.moments
    seen = [moments.opened, moments.staging, moments.sealed, moments.committed]
    assert None not in seen
    assert seen == sorted(each for each in seen if each is not None)
    assert watch.last is not None
    assert watch.last.result is not None
    assert watch.last.result.records == 1_000
