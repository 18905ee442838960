# SPDX-License-Identifier: Apache-2.0
"""Reading the jars and users' files."""

from __future__ import annotations

import json
import zipfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from integration_tests.scenarios.demo import sources
from integration_tests.scenarios.demo.facts import SourceRecord, partition_of
from integration_tests.scenarios.demo.sources import (
    JAR_ENTRY_COUNTS,
    FileColumns,
    SourceError,
    file_records,
    jar_entries,
    jar_paths,
)
from integration_tests.scenarios.demo.staging import SCHEMA, stage

NOW_MS = 1_700_000_000_000
COLUMNS = FileColumns(key=None, timestamp=None, now_ms=NOW_MS)


def read(path: Path, *, key: str | None = None, timestamp: str | None = None) -> list[SourceRecord]:
    return list(file_records(path, FileColumns(key=key, timestamp=timestamp, now_ms=NOW_MS)))


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_jar_entries_are_what_the_archives_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Key, value and time of an entry come from the archive."""
    jar = tmp_path / "a.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr(zipfile.ZipInfo("x/y.txt", (2020, 2, 3, 4, 5, 6)), b"abc")
    monkeypatch.setattr(sources, "jar_paths", lambda: [jar])
    (record,) = jar_entries()
    assert record.key == b"a.jar"
    assert json.loads(record.value) == {"path": "x/y.txt", "size": 3, "packed_size": 3, "crc": 0x352441C2}
    assert record.timestamp_ms == int(datetime(2020, 2, 3, 4, 5, 6, tzinfo=UTC).timestamp()) * 1000


def test_number_of_jar_entries_is_the_known_one() -> None:
    """The demo's count does not drift with this code."""
    count = 0
    for jar in jar_paths():
        with zipfile.ZipFile(jar) as archive:
            count += len(archive.infolist())
    assert count == JAR_ENTRY_COUNTS.get(version("pyspark"), count)


def test_json_lines_keep_their_bytes(tmp_path: Path) -> None:
    """The value is the line as it stands; key and time come from its fields."""
    path = write(
        tmp_path / "a.jsonl", '{"key": "k",  "timestamp": 5}\r\n\n{"key": null, "timestamp": "1970-01-01T00:00:01Z"}'
    )
    assert read(path) == [
        SourceRecord(key=b"k", value=b'{"key": "k",  "timestamp": 5}', timestamp_ms=5),
        SourceRecord(key=None, value=b'{"key": null, "timestamp": "1970-01-01T00:00:01Z"}', timestamp_ms=1000),
    ]


def test_csv_rows_become_json(tmp_path: Path) -> None:
    """By default the first column is the key, and the time of the run is the timestamp."""
    path = write(tmp_path / "a.csv", 'id,text\n7,"a,b"\n')
    assert read(path) == [SourceRecord(key=b"7", value=b'{"id":"7","text":"a,b"}', timestamp_ms=NOW_MS)]


def test_parquet_columns_are_chosen_by_name(tmp_path: Path) -> None:
    """Key and timestamp may be any columns; binary keys are taken as they are."""
    moment = datetime(2024, 1, 1, 0, 0, 0, 1500, tzinfo=UTC)
    table = pa.table({"a": [1], "k": [b"\x00\xff"], "t": pa.array([moment], pa.timestamp("us", "UTC"))})
    parquet.write_table(table, tmp_path / "a.parquet")
    (record,) = read(tmp_path / "a.parquet", key="k", timestamp="t")
    assert record.key == b"\x00\xff"
    assert record.timestamp_ms == 1_704_067_200_001


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.txt", "x", "must end in one of .jsonl"),
        ("a.jsonl", '{"key": "a"}\n{', "after row 1"),
        ("a.jsonl", "[1]", "line 1 is not a JSON object"),
        ("a.jsonl", '{"timestamp": "yesterday"}', "choose another column with --timestamp"),
        ("a.jsonl", '{"timestamp": -1}', "choose another column with --timestamp"),
        ("a.jsonl", '{"timestamp": true}', "choose another column with --timestamp"),
        ("a.csv", "a,b\n1\n", "another number of fields"),
        ("a.csv", "a,b\n1,2,3\n", "another number of fields"),
        ("a.csv", 'a\n"x\n', "after row 0"),
        ("a.parquet", "not parquet", "after row 0"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, name: str, text: str, problem: str) -> None:
    """Every bad file is one clear error with the place."""
    path = write(tmp_path / name, text)
    with pytest.raises(SourceError, match=problem) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_missing_file_and_column_are_named(tmp_path: Path) -> None:
    """A wrong path or column name is an error before anything is started."""
    with pytest.raises(SourceError, match="No such file"):
        read(tmp_path / "none.jsonl")
    path = write(tmp_path / "a.csv", "a,b\n1,2\n")
    with pytest.raises(SourceError, match=r"there is no column c \(of a, b\); choose one with --key"):
        read(path, key="c")


def test_staged_file_holds_every_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups, the last short one included, are all written, and places are those of the facts."""
    monkeypatch.setattr("integration_tests.scenarios.demo.staging.GROUP_ROWS", 4)
    records = [SourceRecord(key=b"%d" % number, value=b"v", timestamp_ms=number) for number in range(10)]
    seen: list[int] = []
    facts = stage(
        [*records, SourceRecord(key=None, value=b"v", timestamp_ms=10)],
        tmp_path / "s.parquet",
        partition_count=6,
        on_progress=seen.append,
    )
    table = parquet.read_table(tmp_path / "s.parquet")
    assert table.schema.equals(SCHEMA)
    assert table.column("key").to_pylist() == [*(record.key for record in records), None]
    assert table.column("place").to_pylist() == [*(partition_of(record.key, 6) for record in records), 0]
    assert (len(facts), seen) == (11, [4, 8, 11])
