# SPDX-License-Identifier: Apache-2.0
"""`lograft ingest` and `lograft replay` in real Spark against a real broker: what arrives, what is printed, and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lograft import Admin, Consumer, Producer, TopicPartition
from lograft.errors import IngestNotFoundError
from lograft.types import ConsumerRecord, IngestState

MakeTopic = Callable[..., str]
Done = subprocess.CompletedProcess[str]
Lograft = Callable[..., Done]
LIMIT_S = 500.0
"""Seconds for one program. Nothing here is timed, and the machine may be busy."""

COMMAND = (sys.executable, "-c", "from lograft.cli import main; main()")
WITHOUT_SPARK = (
    sys.executable,
    "-c",
    "import importlib.util as u; find = u.find_spec; u.find_spec = lambda name, *a: None if name == 'pyspark' else find(name, *a)\n"
    "from lograft.cli import main; main()",
)
BEGIN_MS = 1_700_000_000_000


@pytest.fixture
def lograft(bootstrap: str, tmp_path: Path) -> Lograft:
    """Run `lograft` in a process of its own, in an empty folder."""

    def run(*arguments: str, command: tuple[str, ...] = COMMAND) -> Done:
        environment = {**os.environ, "LOGRAFT_BOOTSTRAP": bootstrap, "COLUMNS": "120", "NO_COLOR": "1"}
        return subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env=environment,
            cwd=tmp_path,
            check=False,
        )

    return run


def records(bootstrap: str, topic: str, partition_count: int = 1) -> list[ConsumerRecord]:
    """Return everything in a topic, by partition and offset."""
    tps = [TopicPartition(topic, number) for number in range(partition_count)]
    found: list[ConsumerRecord] = []
    with Consumer(bootstrap) as consumer:
        ends = consumer.end_offsets(tps)
        consumer.assign(tps, start="earliest")
        while any(consumer.position(tp) < ends[tp] for tp in tps):
            found += consumer.poll(1_000, timeout_ms=1_000)
    return sorted(found, key=lambda each: (each.partition, each.offset))


def fields(done: Done) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_rows_of_csv_arrive_once(lograft: Lograft, bootstrap: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """Key, time and headers from columns, the row as the value, each partition in time order; the second run adds nothing."""
    topic = make_topic(3)
    rows = [f'{number},{BEGIN_MS + number * 37 % 1000},"a ""{number}""",' for number in range(500)]
    (tmp_path / "orders.csv").write_text("\n".join(["id,at,text,none", *rows]) + "\n")
    words = ("ingest", "orders.csv", "--topic", topic, "--key", "id", "--timestamp", "at", "--headers", "text")
    words = (*words, "--order-by-time", "--ingest-id", f"orders/{topic}")
    first = lograft(*words)
    assert first.returncode == 0, first.stdout + first.stderr
    assert first.stderr == ""
    assert "records  500" in first.stdout
    assert "took     " in first.stdout
    assert "start Spark" in first.stdout
    found = records(bootstrap, topic, 3)
    assert sorted(int(each.key) for each in found) == list(range(500))
    number = int(found[0].key)
    assert json.loads(found[0].value) == {
        "id": str(number),
        "at": str(BEGIN_MS + number * 37 % 1000),
        "text": f'a "{number}"',
        "none": None,
    }
    assert list(found[0].headers) == [("text", f'a "{number}"'.encode())]
    for partition in range(3):
        times = [each.timestamp_ms for each in found if each.partition == partition]
        assert times == sorted(times)
        assert times
    again = fields(lograft(*words, "--json"))
    assert (again["was_committed"], again["records"], again["phases"]) == (True, 500, [])
    assert len(records(bootstrap, topic, 3)) == 500
    other = lograft(*words[:3], make_topic(), *words[4:])
    assert other.returncode == 1
    assert f"was committed to {topic}" in other.stderr


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_json_lines_keep_their_bytes(lograft: Lograft, bootstrap: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """The value is the line, also where it is no UTF-8 beside the fields. A replay to the console prints what consume prints."""
    topic = make_topic()
    lines = [
        b'{"k": "a",  "n": {"x": [1, 2]}, "t": "2026-01-01T00:00:00Z"}',
        b'{"n":null,"k":17,"t":1767225600001,"u":"\xc3\xa9"}',
        b'{"k": null, "t": "1767225600002"}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([lines[0], b"", lines[1] + b"\r", lines[2]]))
    done = fields(lograft("ingest", "a.jsonl", "-t", topic, "-k", "k", "--timestamp", "t", "-H", "n", "--json"))
    assert (done["records"], done["was_committed"]) == (3, False)
    assert [each["partition"] for each in done["partitions"]] == [0]
    assert {each["by"] for each in done["phases"]} == {"Spark", "Lograft"}
    assert (done["first_ms"], done["last_ms"]) == (1767225600000, 1767225600002)
    found = sorted(records(bootstrap, topic), key=lambda each: each.timestamp_ms)
    assert [(each.key, each.value) for each in found] == list(zip([b"a", b"17", None], lines, strict=True))
    assert [dict(each.headers) for each in found] == [{"n": b'{"x":[1,2]}'}, {"n": None}, {"n": None}]
    printed = lograft("replay", "--topic", topic, "--to", "console", "--format", "json")
    assert (printed.returncode, printed.stderr) == (0, "")
    assert printed.stdout == lograft("consume", topic, "--json").stdout
    text = lograft("replay", "-t", topic, "--to", "console", "-f", r"%k\n", "--from", "1767225600001", "--key", "17")
    assert (text.returncode, text.stdout, text.stderr) == (0, "17\n", "1 record\n")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_topic_goes_through_files_into_another(
    lograft: Lograft, bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """By Parquet and by JSON lines: bytes, null keys and values, times, partitions and headers are the same."""
    first, second, third = make_topic(2), make_topic(2), make_topic(2)
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
    wanted = [without_topic(each) for each in records(bootstrap, first, 2)]
    done = fields(lograft("replay", "--topic", first, "--to", "files", "--json"))
    assert (done["records"], done["format"], [each["end_offset"] for each in done["partitions"]]) == (
        20,
        "parquet",
        [10, 10],
    )
    named = ("--format", "parquet", "--topic", second, "--key", "key", "--value", "value", "--timestamp", "timestamp")
    done = fields(
        lograft(
            "ingest", "files", *named, "--partition", "partition", "--headers", "headers", "--order-by-time", "--json"
        )
    )
    assert done["records"] == 20
    assert [without_topic(each) for each in records(bootstrap, second, 2)] == wanted
    assert lograft("replay", "--topic", first, "--to", "files").returncode == 2
    done = fields(lograft("replay", "-t", first, "--to", "files", "--overwrite", "-f", "json", "-p", "1", "--json"))
    assert done["records"] == 10
    lines = b"".join(each.read_bytes() for each in sorted((tmp_path / "files").glob("*.json")))
    (tmp_path / "lines").write_bytes(lines)
    sent = lograft("produce", third, "--file", "lines", "--format", "json", "--partition", "1")
    assert sent.returncode == 0, sent.stderr
    assert [without_topic(each) for each in records(bootstrap, third, 2)] == [each for each in wanted if each[0] == 1]


def without_topic(record: ConsumerRecord) -> tuple[object, ...]:
    headers = tuple(record.headers)
    return (record.partition, record.offset, record.timestamp_ms, record.key, record.value, headers)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_dry_run_writes_nothing(
    lograft: Lograft, bootstrap: str, admin: Admin, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """It says what the columns become, how many records each partition would get, and shows the first."""
    topic = make_topic(2, {"retention.ms": "1000"})
    (tmp_path / "a.csv").write_text("id,at\n" + "".join(f"{number},{number}\n" for number in range(100)))
    words = ("ingest", "a.csv", "-t", topic, "-k", "id", "--timestamp", "at", "-i", f"dry/{topic}", "--dry-run")
    done = lograft(*words)
    assert done.returncode == 0, done.stderr
    assert "would write  100 records" in done.stdout
    assert done.stdout.endswith("nothing was written\n")
    assert f"topic {topic} keeps records for 1000 ms" in done.stderr
    facts = fields(lograft(*words, "--json", "--sample", "2"))
    assert facts["columns"] == {"id": "string", "at": "string"}
    assert [each["key"] for each in facts["sample"]] == ["0", "1"]
    assert sum(each["records"] for each in facts["partitions"]) == facts["records"] == 100
    assert {each["partition"] for each in facts["partitions"]} == {0, 1}
    assert records(bootstrap, topic, 2) == []
    with pytest.raises(IngestNotFoundError):
        admin.describe_ingest(f"dry/{topic}")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("name", "text", "options", "problem"),
    [
        ("a.csv", "id,at\n1,2\n", ["--key", "idd"], "there is no column 'idd'; there are id, at; did you mean 'id'?"),
        (
            "a.csv",
            "id,at\n1,2\n1,yesterday\n",
            ["--timestamp", "at"],
            "column 'at' holds yesterday, which is not a time",
        ),
        ("a.csv", "id,at\n1,2\n1,2,3\n", [], "Spark: "),
        ("a.jsonl", '{"a": 1}\n{"a": 2\n', ["--key", "a"], "a line is not JSON"),
        ("a.parquet", "no parquet", [], "Spark: "),
    ],
)
def test_bad_input_publishes_nothing(
    lograft: Lograft,
    bootstrap: str,
    make_topic: MakeTopic,
    tmp_path: Path,
    name: str,
    text: str,
    options: list[str],
    problem: str,
) -> None:
    """One sentence, exit code 2, and no record."""
    topic = make_topic()
    (tmp_path / name).write_text(text)
    done = lograft("ingest", name, "--topic", topic, *options)
    assert done.returncode == 2, done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("lograft: error: ")]
    assert len(errors) == 1, done.stderr
    assert problem in errors[0]
    assert all(line.startswith("lograft: ") for line in done.stderr.splitlines())
    assert records(bootstrap, topic) == []


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["ingest", "a.csv", "--topic", "nowhere"], 1, "lograft topics create nowhere"),
        (["ingest", "b.csv", "--topic", "T"], 2, "there is no file 'b.csv'"),
        (["ingest", "./list", "--topic", "T"], 2, "there is no file './list'"),
        (["ingest", "a.csv"], 2, "Missing option '--topic'"),
        (["ingest", "a.csv", "--topic", "T", "--option", "sep"], 2, "'sep' is not name=value"),
        (["ingest", "a.csv", "--topic", "T", "--spark-log", "loud"], 2, "is not one of off, error"),
        (["replay", "--topic", "nowhere", "--to", "console"], 1, "there is no topic 'nowhere'"),
        (["replay", "--topic", "T", "--to", "a.csv"], 2, "--overwrite replaces it"),
        (["replay", "--topic", "T", "--to", "console", "-p", "7"], 2, "has no partition 7, only 0 to 1"),
        (
            ["replay", "--topic", "T", "--to", "console", "--from-offset", "9"],
            1,
            "partition 0 has offsets from 0 up to 0",
        ),
        (["replay", "--topic", "T", "--to", "console", "-f", "%z"], 2, "there is no field %z"),
    ],
)
def test_what_is_wrong_is_said_before_spark_starts(
    lograft: Lograft, make_topic: MakeTopic, tmp_path: Path, words: list[str], code: int, problem: str
) -> None:
    """With what to do, and the exit codes of other commands."""
    topic = make_topic(2)
    (tmp_path / "a.csv").write_text("a\n1\n")
    done = lograft(*(topic if word == "T" else word for word in words))
    assert done.returncode == code, done.stderr
    assert problem in done.stderr
    assert done.stdout == ""


def test_without_pyspark_the_extra_is_named(lograft: Lograft, make_topic: MakeTopic, tmp_path: Path) -> None:
    """The command line works without the extra; only its jobs do not."""
    (tmp_path / "a.csv").write_text("a\n1\n")
    topic = make_topic()
    for words in (["ingest", "a.csv"], ["replay", "--to", "console"]):
        done = lograft(*words, "--topic", topic, command=WITHOUT_SPARK)
        assert (done.returncode, done.stdout) == (2, "")
        assert "pip install 'lograft[spark]'" in done.stderr


def test_a_dry_run_of_a_replay_needs_no_spark(lograft: Lograft, bootstrap: str, make_topic: MakeTopic) -> None:
    """It says which offsets would be read, by times and by offsets."""
    topic = make_topic(2)
    with Producer(bootstrap) as producer:
        for number in range(10):
            producer.send(topic, b"v", partition=number % 2, timestamp_ms=BEGIN_MS + number)
    words = ("replay", "-t", topic, "--to", "out", "--dry-run")
    done = lograft(*words, "--from", str(BEGIN_MS + 3), "--until", "2023-11-14T22:13:20.008")
    assert done.returncode == 0, done.stderr
    assert "would read  5 offsets" in done.stdout
    facts = fields(lograft(*words, "--from-offset", "1", "--until-offset", "1:3", "--json"))
    spans = [(each["partition"], each["start_offset"], each["end_offset"]) for each in facts["partitions"]]
    assert spans == [(0, 1, 5), (1, 1, 3)]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_ingest_that_was_aborted_runs_again(
    lograft: Lograft, bootstrap: str, admin: Admin, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """An id is used up by a commit only. Lines of text are values, empty ones too."""
    topic, ingest_id = make_topic(), "jobs/again"
    (tmp_path / "a.txt").write_text("one\n\n three\n")
    (tmp_path / "b.csv").write_text("a,b\n1\n")
    failed = lograft("ingest", "b.csv", "--topic", topic, "--ingest-id", ingest_id)
    assert failed.returncode == 2, failed.stderr
    done = fields(lograft("ingest", "a.txt", "--topic", topic, "--ingest-id", ingest_id, "--json"))
    assert done["records"] == 3
    assert sorted(each.value for each in records(bootstrap, topic)) == [b"", b" three", b"one"]
    assert admin.describe_ingest(ingest_id).state is IngestState.COMMITTED
