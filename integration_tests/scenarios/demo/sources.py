# SPDX-License-Identifier: Apache-2.0
"""Records to ingest: the entries of the jars in the PySpark wheel, or a user's file.

Owns the reading, one record at a time, in bounded memory. Must not import Lograft or start Spark.
"""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import pyarrow.parquet as parquet

from integration_tests.scenarios.demo.facts import SourceRecord

ROWS_AT_A_TIME = 10_000
JAR_ENTRY_COUNTS = {"4.3.0": 157_297}
"""Number of entries in the jars of a PySpark version. Another number is an error."""
MAX_TIMESTAMP_MS = 253_402_300_799_999
"""The largest valid timestamp: the last millisecond of the year 9999. The smallest is 0."""


class SourceError(Exception):
    """The input cannot be read; the message says where and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileColumns:
    """The columns of a user's file for key and timestamp.

    Attributes:
        key: None: the column `key`, or else the first column.
        timestamp: None: the column `timestamp`, if there is one.
        now_ms: timestamp of records in files without such a column, in milliseconds since 1970-01-01 UTC.
    """

    key: str | None
    timestamp: str | None
    now_ms: int


def jar_paths() -> list[Path]:
    """Return the jars in the installed PySpark, ascending by name."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SourceError("PySpark is not installed: pip install 'lograft[spark]'")
    jars = sorted(Path(spec.origin).with_name("jars").glob("*.jar"))
    if not jars:
        raise SourceError(f"there are no jars beside {spec.origin}; give a file of your own with --input")
    return jars


def jar_entries() -> Iterator[SourceRecord]:
    """Yield every entry of every jar: key = jar name, value = the archive's information about it, timestamp = its time, as UTC."""
    for jar in jar_paths():
        key = jar.name.encode()
        with zipfile.ZipFile(jar) as archive:
            for entry in archive.infolist():
                facts = {
                    "path": entry.filename,
                    "size": entry.file_size,
                    "packed_size": entry.compress_size,
                    "crc": entry.CRC,
                }
                moment = datetime(*entry.date_time, tzinfo=UTC)
                value = json.dumps(facts, separators=(",", ":")).encode()
                yield SourceRecord(key=key, value=value, timestamp_ms=int(moment.timestamp()) * 1000)


def file_records(path: Path, columns: FileColumns) -> Iterator[SourceRecord]:
    """Yield the records of a JSON lines, CSV or Parquet file.

    The value is the line itself (JSON lines) or the row as a JSON object.

    Raises:
        SourceError: the file is missing, has another format, or has a row that does not fit.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise SourceError(f"{path}: the name must end in one of {', '.join(_READERS)}")
    number = 0
    try:
        for row, line in reader(path):
            number += 1
            value = json.dumps(row, default=str, separators=(",", ":")).encode() if line is None else line
            yield SourceRecord(key=_key(row, columns), value=value, timestamp_ms=_timestamp_ms(row, columns))
    except (OSError, ValueError, csv.Error) as error:
        # Errors of pyarrow and of JSON are ValueErrors; a missing file is an OSError.
        raise SourceError(f"{path}, after row {number}: {error}") from error


_Row = Mapping[str, object]


def _json_lines(path: Path) -> Iterator[tuple[_Row, bytes | None]]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            line = raw.rstrip(b"\r\n")
            if not line.strip():
                continue
            row: object = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is not a JSON object")
            yield cast("_Row", row), line


def _csv(path: Path) -> Iterator[tuple[_Row, bytes | None]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file, strict=True):
            if None in row or None in row.values():
                raise ValueError("a row has another number of fields than the header")
            yield cast("_Row", row), None


def _parquet(path: Path) -> Iterator[tuple[_Row, bytes | None]]:
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=ROWS_AT_A_TIME):
            for row in batch.to_pylist():
                yield row, None


_READERS: Mapping[str, Callable[[Path], Iterator[tuple[_Row, bytes | None]]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json_lines,
    ".csv": _csv,
    ".parquet": _parquet,
}


def _key(row: _Row, columns: FileColumns) -> bytes | None:
    name = columns.key
    if name is None:
        name = "key" if "key" in row else next(iter(row), None)
    if name is None:
        return None
    found = _field(row, name, "--key")
    if found is None or isinstance(found, bytes):
        return found
    return (found if isinstance(found, str) else json.dumps(found, default=str, separators=(",", ":"))).encode()


def _timestamp_ms(row: _Row, columns: FileColumns) -> int:
    name = columns.timestamp
    if name is None:
        if "timestamp" not in row:
            return columns.now_ms
        name = "timestamp"
    timestamp_ms = _milliseconds(_field(row, name, "--timestamp"))
    if timestamp_ms is None or not 0 <= timestamp_ms <= MAX_TIMESTAMP_MS:
        raise ValueError(
            f"column {name} holds {row[name]!r}: a timestamp is a date and time (ISO 8601; UTC if it does not say) or "
            "milliseconds since 1970; choose another column with --timestamp"
        )
    return timestamp_ms


def _milliseconds(found: object) -> int | None:
    if isinstance(found, bool) or found is None:
        return None
    if isinstance(found, int):
        return found
    if isinstance(found, str):
        if found.isascii() and found.isdigit():
            return int(found)
        try:
            found = datetime.fromisoformat(found)
        except ValueError:
            return None
    if isinstance(found, date) and not isinstance(found, datetime):
        found = datetime(found.year, found.month, found.day, tzinfo=UTC)
    if isinstance(found, datetime):
        moment = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return int(moment.timestamp() * 1_000_000) // 1000
    return None


def _field(row: _Row, name: str, option: str) -> object:
    if name not in row:
        raise ValueError(f"there is no column {name} (of {', '.join(row)}); choose one with {option}")
    return row[name]
