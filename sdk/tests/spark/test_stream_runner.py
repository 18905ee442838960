# SPDX-License-Identifier: Apache-2.0
"""The streaming reader in the Python side of Spark's streaming engine, without a JVM: what crosses the border, as it crosses it."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lograft import Producer
from lograft.spark import LograftDataSource
from pyspark.serializers import CPickleSerializer, read_int
from pyspark.sql import datasource_internal
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceStreamReader
from pyspark.sql.streaming import python_streaming_source_runner as runner
from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

MakeTopic = Callable[..., str]


class Engine:
    """Calls a reader as the JVM does: JSON and pickles through streams of bytes."""

    def __init__(self, **options: object) -> None:
        given = CaseInsensitiveDict({name: str(value) for name, value in options.items()})
        self.source = LograftDataSource(given)
        self.schema = self.source.schema()
        self.reader: DataSourceStreamReader = datasource_internal._streamReader(self.source, self.schema)

    def ask(self, function: Callable[..., None], *arguments: object, **named: object) -> io.BytesIO:
        infile, outfile = io.BytesIO(), io.BytesIO()
        for each in arguments:
            text = json.dumps(each).encode()
            infile.write(struct.pack("!i", len(text)) + text)
        infile.seek(0)
        if arguments:
            named["infile"] = infile
        function(self.reader, outfile=outfile, **named)
        outfile.seek(0)
        return outfile

    def json(self, function: Callable[..., None], *arguments: object) -> Any:
        answer = self.ask(function, *arguments)
        size = read_int(answer)
        return json.loads(answer.read(size)) if size else None

    def rows(self, start: object, end: object) -> list[dict[str, Any]]:
        named = {"data_source": self.source, "schema": self.schema, "max_arrow_batch_size": 500}
        answer = self.ask(runner.partitions_func, start, end, **named)
        serializer = CPickleSerializer()
        partitions = [serializer._read_with_length(answer) for _ in range(read_int(answer))]
        assert read_int(answer) == runner.PREFETCHED_RECORDS_NOT_FOUND
        in_task = serializer.loads(serializer.dumps(datasource_internal._streamReader(self.source, self.schema)))
        return [
            row
            for each in partitions
            for batch in records_to_arrow_batches(in_task.read(each), 500, self.schema, self.source)
            for row in batch.to_pylist()
        ]


@pytest.fixture
def engine(bootstrap: str) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(**options: object) -> Engine:
        new = Engine(**{"kafka.bootstrap.servers": bootstrap, "startingOffsets": "earliest", **options})
        made.append(new)
        return new

    yield make
    for each in made:
        each.reader.stop()


@pytest.fixture
def topic(make_topic: MakeTopic, bootstrap: str) -> str:
    name = make_topic(2)
    with Producer(bootstrap) as producer:
        for partition in range(2):
            producer.send_many(name, [b"%d" % number + bytes(500) for number in range(30)], partition=partition)
    return name


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, {"_type": "ReadAllAvailable"}),
        ({"maxOffsetsPerTrigger": 7}, {"_type": "ReadMaxRows", "max_rows": 7}),
        ({"maxBytesPerTrigger": 9_000}, {"_type": "ReadMaxBytes", "max_bytes": 9_000}),
        ({"minRecordsPerTrigger": 5}, {"_type": "ReadMinRows", "min_rows": 5}),
    ],
)
def test_engine_gets_the_limit_and_gives_it_back(
    engine: Callable[..., Engine], topic: str, options: dict[str, object], limit: dict[str, object]
) -> None:
    """Limits and offsets cross as JSON. With each of them AvailableNow reads all records once, and then nothing more."""
    new = engine(subscribe=topic, columns="offset,partition", **options)
    flags = read_int(new.ask(runner.check_support_func))
    assert flags == runner.SUPPORTS_ADMISSION_CONTROL | runner.SUPPORTS_TRIGGER_AVAILABLE_NOW
    assert new.json(runner.get_default_read_limit_func) == limit
    assert new.json(runner.report_latest_offset_func) is None
    assert read_int(new.ask(runner.prepare_for_trigger_available_now_func)) == 0
    start = new.json(runner.initial_offset_func)
    found: list[tuple[int, int]] = []
    counts: list[int] = []
    while (end := new.json(runner.latest_offset_admission_control_func, start, limit)) != start:
        rows = new.rows(start, end)
        counts.append(len(rows))
        found += [(row["partition"], row["offset"]) for row in rows]
        new.ask(runner.commit_func, end)
        start = end
    assert sorted(found) == [(partition, offset) for partition in range(2) for offset in range(30)]
    assert new.json(runner.report_latest_offset_func) == start
    if "max_rows" in limit:
        assert counts == [7] * 8 + [4]
    if "max_bytes" in limit:
        assert max(counts) * 500 <= 9_000
    assert new.rows(start, start) == []


def test_schema_of_the_stream_is_what_tasks_send(engine: Callable[..., Engine], topic: str) -> None:
    """Spark compares the first batch with the schema of `load()`, with headers and without."""
    for options in ({}, {"includeHeaders": "true"}, {"columns": "timestamp,headers,value"}):
        new = engine(subscribe=topic, **options)
        start = new.json(runner.initial_offset_func)
        end = new.json(runner.latest_offset_admission_control_func, start, {"_type": "ReadAllAvailable"})
        rows = new.rows(start, end)
        assert len(rows) == 60
        assert list(rows[0]) == new.schema.fieldNames()
