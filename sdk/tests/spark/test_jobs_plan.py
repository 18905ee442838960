# SPDX-License-Identifier: Apache-2.0
"""What ready jobs make of their arguments: plans, expressions, times, and refusals. Without Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from lograft.errors import LograftError, UnknownTopicError, UsageError
from lograft.spark.jobs.expressions import fields_schemas, json_columns, record_columns, replay_columns
from lograft.spark.jobs.failures import explained
from lograft.spark.jobs.local_files import absolute_url, check_files, check_target
from lograft.spark.jobs.phases import Moments, noted, phases, shares
from lograft.spark.jobs.plan import (
    InputFormat,
    OutputFormat,
    local_path,
    offsets_of,
    plan_ingest,
    plan_replay,
)
from lograft.types import IngestDescription, IngestKind, IngestState


def ingest(*paths: str, **arguments: Any) -> Any:
    return plan_ingest(paths or ("a.csv",), **{"topic": "t", "ingest_id": "i", **arguments})


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a.json", "json"),
        ("a.JSONL", "json"),
        ("x/y.z/a.ndjson.gz", "json"),
        ("a.csv", "csv"),
        ("a.tsv.zst", "csv"),
        ("s3a://bucket/a.parquet/", "parquet"),
        ("a.txt", "text"),
        ("days/*.log.bz2", "text"),
    ],
)
def test_format_follows_from_the_name(path: str, found: str) -> None:
    """Also behind a suffix of compression, in a URL, and with wildcards."""
    assert ingest(path).format == InputFormat(found)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"paths": ["data"]}, "'data' does not say what is in it: give --format json, csv, parquet, text"),
        ({"paths": ["a.csv", "b.json"]}, "a.csv is csv, b.json is json"),
        ({"paths": ["a.csv"], "format": "xml"}, "--format takes json, csv, parquet, text, not 'xml'"),
        ({"paths": []}, "name at least one file"),
        ({"ingest_id": ""}, "1 to 255 bytes, not 0"),
        ({"ingest_id": "é" * 128}, "not 256"),
        ({"value": "a", "value_columns": "a,b"}, "give one of --value and --value-columns"),
        ({"value_columns": "a,,b"}, "with commas between them"),
        ({"headers": "a,b,a"}, "names a column twice"),
        ({"paths": ["a.txt"], "key": "k"}, "lines of text have no columns, so 'k' cannot be one"),
        ({"is_ordered": True}, "--order-by-time needs --timestamp"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(arguments: dict[str, Any], problem: str) -> None:
    """With what to do."""
    paths = arguments.pop("paths", ["a.csv"])
    with pytest.raises(UsageError, match=re.escape(problem)):
        plan_ingest(paths, **{"topic": "t", "ingest_id": "i", **arguments})


def test_columns_become_what_the_arguments_say() -> None:
    """Each type has its way to bytes, times and partitions; what is not named stays out."""
    columns = {"Id": "int", "name": "string", "raw": "binary", "at": "bigint", "tags": "array<string>", "o'c": "date"}
    plan = ingest(key="Id", value="raw", timestamp="at", headers="name,tags,o'c")
    found = record_columns(plan, columns)
    assert list(found) == ["key", "value", "timestamp", "headers"]
    assert found["key"] == "CAST(`Id` AS STRING)"
    assert found["value"] == "`raw`"
    assert found["timestamp"].startswith("COALESCE(timestamp_millis(`at`), raise_error(")
    assert "'key', 'o\\'c', 'value', CAST(CAST(`o'c` AS STRING) AS BINARY)" in found["headers"]
    assert "to_json(`tags`, map('ignoreNullFields', 'false'))" in found["headers"]
    whole = record_columns(ingest(), {"a": "int", "b": "string"})
    assert whole == {"value": "to_json(named_struct('a', `a`, 'b', `b`), map('ignoreNullFields', 'false'))"}
    some = record_columns(ingest(value_columns="B"), {"a": "int", "b": "string"})
    assert some["value"].startswith("to_json(named_struct('b', `b`)")


def test_headers_of_a_replay_stay_headers() -> None:
    """A column that is all headers, as a replay to Parquet writes it, is taken whole."""
    columns = {"value": "binary", "headers": "array<struct<key:string,value:binary>>"}
    assert record_columns(ingest(value="value", headers="headers"), columns)["headers"] == "`headers`"


def test_a_json_line_is_its_own_value() -> None:
    """Key and time are taken out as texts; only another object needs types."""
    plan = ingest("a.json", key="k", timestamp="t")
    assert fields_schemas(plan) == {"fields": "`k` STRING, `t` STRING"}
    found = record_columns(plan, {"k": "string", "t": "string"})
    assert (found["key"], found["value"]) == ("fields.`k`", "line")
    plan = ingest("a.json", key="k", value_columns="k,n")
    assert fields_schemas(plan) == {"fields": "`k` STRING", "values": "`k` VARIANT, `n` VARIANT"}
    assert "'n', values.`n`" in record_columns(plan, {"k": "string", "n": "string"})["value"]
    assert fields_schemas(ingest("a.json")) == {}
    assert fields_schemas(ingest("a.csv", key="k")) == {}


@pytest.mark.parametrize(
    ("arguments", "columns", "problem"),
    [
        ({"key": "idd"}, {"id": "int", "x": "int"}, "no column 'idd'; there are id, x; did you mean 'id'"),
        ({"headers": "a,zz"}, {"a": "int"}, "no column 'zz'"),
        ({"key": "A"}, {"a": "int", "á": "int"}, None),
        ({"timestamp": "a"}, {"a": "double"}, "'a' is a double and cannot be the time"),
        ({"timestamp": "a"}, {"a": "boolean"}, "cannot be the time"),
        ({"partition": "a"}, {"a": "double"}, "'a' is a double and cannot be the partition"),
        ({"key": "x"}, {f"c{number}": "int" for number in range(30)}, "and 10 more"),
        ({}, {}, "no column that could be a value"),
    ],
)
def test_wrong_columns_are_refused(arguments: dict[str, Any], columns: dict[str, str], problem: str | None) -> None:
    """A missing one with what there is; a type with what is needed."""
    if problem is None:
        assert record_columns(ingest(**arguments), columns)["key"] == "CAST(`a` AS STRING)"
        return
    with pytest.raises(UsageError, match=problem):
        record_columns(ingest(**arguments), columns)


def test_json_fields_are_exact() -> None:
    """JSON knows case. A line that is no object is an error with the line."""
    assert json_columns([b'{"a": 1, "B": 2}', b'{"c": null}']) == {"a": "string", "B": "string", "c": "string"}
    with pytest.raises(UsageError, match=r"no column 'A' in the first lines; there are a"):
        record_columns(ingest("a.json", key="A"), {"a": "string"})
    for line in (b"{", b"\xff", b"[1]", b"3", b'{"a": 1} x'):
        with pytest.raises(UsageError, match=r"a line is not (?:JSON|a JSON object)"):
            json_columns([line])


def test_replay_plan() -> None:
    """Offsets for all and for some partitions, formats by name, and the console."""
    plan = plan_replay("t", "out", from_offsets=["10", "2:5"], partitions=[2, 0, 2], key="k")
    assert (plan.partitions, plan.key, plan.format) == ((0, 2), b"k", OutputFormat.PARQUET)
    assert offsets_of(plan.from_offsets, [0, 2], "--from-offset") == {0: 10, 2: 5}
    assert offsets_of({2: 5}, [0, 2], "--from-offset") == {2: 5}
    assert plan_replay("t", "out.jsonl").format is OutputFormat.JSON
    assert plan_replay("t", "console", format="%k %s").target is None
    with pytest.raises(UsageError, match="names partition 3, which is not read"):
        offsets_of({3: 1}, [0, 1], "--from-offset")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"from_ms": 1, "from_offsets": ["1"]}, "one of --from and --from-offset"),
        ({"until_ms": 1, "until_offsets": ["1"]}, "one of --until and --until-offset"),
        ({"from_ms": 2, "until_ms": 1}, "lies before --from"),
        ({"from_offsets": ["-1"]}, "takes OFFSET or PARTITION:OFFSET, not '-1'"),
        ({"from_offsets": ["1:2:3"]}, "not '1:2:3'"),
        ({"from_offsets": [str(2**63)]}, "takes OFFSET"),
        ({"from_offsets": ["1:5", "1:6"]}, "names a partition twice"),
        ({"format": "csv"}, "--format takes parquet, json for files, not 'csv'"),
        ({"target": "console", "is_overwriting": True}, "are for files"),
        ({"target": "console", "options": {"compression": "zstd"}}, "are for files"),
    ],
)
def test_replays_that_mean_nothing_are_refused(arguments: dict[str, Any], problem: str) -> None:
    """Before Spark starts."""
    target = arguments.pop("target", "out")
    with pytest.raises(UsageError, match=problem):
        plan_replay("t", target, **arguments)


def test_replay_leaves_out_what_is_null() -> None:
    """Bytes are text or base64, never both."""
    found = replay_columns(has_headers=True)
    assert list(found) == [
        *("topic", "partition", "offset", "timestamp_ms"),
        *("key", "key_base64", "value", "value_base64", "headers"),
    ]
    assert "headers" not in replay_columns(has_headers=False)


def test_files_of_this_machine_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths, patterns, and URLs of other systems, which are not."""
    (tmp_path / "a[1].csv").write_text("a\n")
    monkeypatch.chdir(tmp_path)
    check_files(ingest("a[1].csv", "*.csv", f"file://{tmp_path}/a[1].csv"))
    check_files(ingest("hdfs://nowhere/a.csv"))
    for path in ("b.csv", "b*.csv", f"file://{tmp_path}/b.csv"):
        with pytest.raises(UsageError, match="there is no file"):
            check_files(ingest(path))
    with pytest.raises(UsageError, match=re.escape("something at 'a[1].csv' already; --overwrite")):
        check_target(plan_replay("t", "a[1].csv"))
    check_target(plan_replay("t", "a[1].csv", is_overwriting=True))
    check_target(plan_replay("t", "console"))
    assert absolute_url("b c") == f"file://{tmp_path}/b c"
    assert absolute_url("s3a://x/y") == "s3a://x/y"
    assert (local_path("C"), local_path("file:/a")) == ("C", "/a")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    """Before Spark starts."""
    path = tmp_path / "a.csv"
    path.write_text("a\n")
    path.chmod(0)
    with pytest.raises(UsageError, match="may not read"):
        check_files(ingest(str(path)))


def seen(state: IngestState, *, open_attempts: int = 0, sealed: int = 0) -> IngestDescription:
    return IngestDescription(
        ingest_id="i",
        kind=IngestKind.SINGLE,
        state=state,
        epoch=1,
        round=1,
        topics=("t",),
        touched_ms=0,
        ttl_ms=1,
        open_attempts=open_attempts,
        sealed_attempts=sealed,
        sealed_records=0,
        parts=0,
        published_parts=0,
    )


def test_time_is_shared_between_spark_and_us() -> None:
    """The parts add up to the whole, in order, whatever the looks at the status have missed."""
    moments = Moments(asked=0.0, ready=4.0)
    looks = [
        (5.0, seen(IngestState.OPEN)),
        (6.0, seen(IngestState.OPEN, open_attempts=2)),
        (7.0, seen(IngestState.OPEN, open_attempts=1, sealed=1)),
        (8.0, seen(IngestState.OPEN, sealed=2)),
        (8.5, seen(IngestState.OPEN, sealed=2)),
        (9.0, seen(IngestState.DECIDED, sealed=2)),
        (9.5, seen(IngestState.COMMITTED, sealed=2)),
    ]
    before = 0
    for now, status in looks:
        moments = noted(moments, status, before, now)
        before = status.sealed_attempts
    found = phases(Moments(**{**as_dict(moments), "ended": 10.0}))
    assert [each.seconds for each in found] == [4.0, 1.0, 1.0, 2.0, 1.5, 0.5]
    assert shares(found) == (6.5, 3.5)
    assert moments.sealed == 8.0
    only_end = noted(Moments(asked=0.0, ready=1.0), seen(IngestState.COMMITTED), 0, 3.0)
    assert (only_end.opened, only_end.staging, only_end.sealed, only_end.committed) == (3.0, 3.0, 3.0, 3.0)
    assert sum(each.seconds for each in phases(only_end)) == 3.0
    assert [each.what for each in phases(Moments(asked=0.0, ready=1.0))] == ["start Spark"]


def as_dict(moments: Moments) -> Mapping[str, Any]:
    return {name: getattr(moments, name) for name in Moments.__slots__}


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (
            "Job aborted: Traceback (most recent call last):\n  File x\nlograft.errors.UnknownTopicError: there is no topic 'x'\n",
            UnknownTopicError,
            "there is no topic 'x'",
        ),
        ("Traceback\nlograft.spark.values.OptionError: option topic: is wrong\n", UsageError, "option topic: is wrong"),
        (
            "[USER_RAISED_EXCEPTION] column 'at' holds x, which is not a time SQLSTATE: P0001",
            UsageError,
            "column 'at' holds x, which is not a time",
        ),
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/a.csv.  SQLSTATE: KD001",
            UsageError,
            "Spark: Encountered error while reading file file:/a.csv",
        ),
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/a.csv.\nCaused by: [MALFORMED_RECORD_IN_PARSING"
            ".WITHOUT_SUGGESTION] Malformed records are detected in record parsing: [1,2,3].\nParse Mode: FAILFAST",
            UsageError,
            "Spark: Malformed records are detected in record parsing: [1,2,3]",
        ),
        (
            "[PATH_ALREADY_EXISTS] Path file:/x already exists. SQLSTATE: 42K04",
            UsageError,
            "Spark: Path file:/x already exists; --overwrite replaces it",
        ),
        ("[JAVA_GATEWAY_EXITED] Java gateway exited.", LograftError, "--spark-log error shows"),
        ("Traceback\nValueError: no\n", LograftError, "Spark: ValueError: no"),
        ("", LograftError, "Spark: RuntimeError"),
        ("boom\nmore", LograftError, "Spark: RuntimeError: boom"),
    ],
)
def test_errors_of_spark_become_one_sentence(text: str, kind: type[LograftError], message: str) -> None:
    """With the class of ours in the middle of the traces, or of what the user did."""
    found = explained(RuntimeError(text))
    assert type(found) is kind
    assert message in found.message
    assert "\n" not in found.message
    assert explained(found) is found


def test_an_import_of_the_plan_loads_no_spark() -> None:
    """The command line refuses wrong arguments before anything heavy is loaded."""
    code = (
        "import sys, lograft.spark.jobs.plan, lograft.spark.jobs.session, lograft.spark.jobs.failures, lograft.cli.ingest,"
        "lograft.cli.replay\nassert not {'pyspark', 'pyarrow', 'grpc'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
