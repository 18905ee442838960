# SPDX-License-Identifier: Apache-2.0
"""What a ready job reads and writes, from the arguments of its command. Pure.

An `IngestPlan` says which files are read, which column becomes what, and how values are made. A `ReplayPlan` says which records
are read and where they go. Both are checked as far as this is possible before Spark has started: what only the files can tell, the
columns above all, `expressions` checks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from lograft._ingests.arguments import MAX_INGEST_ID_BYTES
from lograft.errors import UsageError
from lograft.spark.values import MAX_OFFSET, MAX_PARTITION

CONSOLE: Final = "console"
"""The target of a replay that prints."""

_SUFFIXES: Final = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".txt": "text",
    ".text": "text",
    ".log": "text",
}
_COMPRESSED: Final = (".gz", ".bz2", ".zst", ".zstd", ".xz", ".lz4", ".snappy", ".deflate")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
"""The begin of a URL. A single letter is no scheme."""
_PARTITION_OFFSET: Final = re.compile(r"(?:([0-9]{1,10}):)?([0-9]{1,19})", re.ASCII)


class InputFormat(StrEnum):
    """What the files of an ingest are."""

    JSON = "json"
    """JSON lines."""
    CSV = "csv"
    """With a header line."""
    PARQUET = "parquet"
    TEXT = "text"
    """Each line is a value."""


class OutputFormat(StrEnum):
    """What a replay writes."""

    PARQUET = "parquet"
    JSON = "json"
    """JSON lines, as `lograft consume --json` prints them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPlan:
    """An ingest of files.

    Attributes:
        paths: files, directories, patterns or URLs, as Spark takes them.
        format: what they are.
        topic: where the records go.
        ingest_id: id of the ingest. A second run with the same id adds nothing.
        key: column of the key; None: no keys.
        value: column whose content is the value; None: `value_columns` decides.
        value_columns: the value is a JSON object of these columns; empty: the line itself (JSON lines, text) or all columns.
        timestamp: column of the create time; None: the time of sending.
        partition: column of the partition; None: by the key.
        headers: columns that become headers.
        is_ordered: the records are sorted by time over all, so that each partition has them in time order.
        options: options of Spark's reader.
    """

    paths: tuple[str, ...]
    format: InputFormat
    topic: str
    ingest_id: str
    key: str | None = None
    value: str | None = None
    value_columns: tuple[str, ...] = ()
    timestamp: str | None = None
    partition: str | None = None
    headers: tuple[str, ...] = ()
    is_ordered: bool = False
    options: Mapping[str, str]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the arguments name, each once, in the order of the arguments."""
        named = (self.key, self.value, *self.value_columns, self.timestamp, self.partition, *self.headers)
        return tuple(dict.fromkeys(name for name in named if name is not None))

    @property
    def is_line(self) -> bool:
        """True if the value is the line as it is."""
        has_lines = self.format in (InputFormat.JSON, InputFormat.TEXT)
        return has_lines and self.value is None and not self.value_columns


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """A replay of a topic.

    Attributes:
        topic: topic to read.
        target: path or URL that Spark writes to; None: the console.
        format: what is written to a path.
        partitions: partitions to read, ascending; empty: all.
        from_ms: begin at the first record of this time or later, in milliseconds since 1970-01-01 UTC.
        until_ms: end before the first record of this time or later.
        from_offsets: begin at these offsets, by partition; under None that of all other partitions.
        until_offsets: end before these offsets, by partition as `from_offsets`.
        key: only records with this key.
        limit: at most so many records; None: all.
        is_overwriting: what is at the path is replaced.
        options: options of Spark's writer.
    """

    topic: str
    target: str | None
    format: OutputFormat
    partitions: tuple[int, ...] = ()
    from_ms: int | None = None
    until_ms: int | None = None
    from_offsets: Mapping[int | None, int]
    until_offsets: Mapping[int | None, int]
    key: bytes | None = None
    limit: int | None = None
    is_overwriting: bool = False
    options: Mapping[str, str]


def plan_ingest(
    paths: Sequence[str],
    *,
    topic: str,
    ingest_id: str,
    format: str | None = None,
    key: str | None = None,
    value: str | None = None,
    value_columns: str | None = None,
    timestamp: str | None = None,
    partition: str | None = None,
    headers: str | None = None,
    is_ordered: bool = False,
    options: Mapping[str, str] | None = None,
) -> IngestPlan:
    """Return the plan of an ingest. The arguments are those of `lograft ingest`; lists of columns are separated by commas.

    Raises:
        UsageError: they contradict each other, or the format does not follow from the names of the files.
    """
    chosen = _input_format(paths, format)
    if not 1 <= len(ingest_id.encode()) <= MAX_INGEST_ID_BYTES:
        raise UsageError(f"--ingest-id takes 1 to {MAX_INGEST_ID_BYTES} bytes, not {len(ingest_id.encode())}")
    if value is not None and value_columns is not None:
        raise UsageError("give one of --value and --value-columns: a column, or a JSON object of several")
    plan = IngestPlan(
        paths=tuple(paths),
        format=chosen,
        topic=topic,
        ingest_id=ingest_id,
        key=key,
        value=value,
        value_columns=_names(value_columns, "--value-columns"),
        timestamp=timestamp,
        partition=partition,
        headers=_names(headers, "--headers"),
        is_ordered=is_ordered,
        options=dict(options or {}),
    )
    if chosen is InputFormat.TEXT and plan.columns:
        raise UsageError(
            f"lines of text have no columns, so {plan.columns[0]!r} cannot be one; --format json takes JSON lines"
        )
    if is_ordered and timestamp is None:
        raise UsageError("--order-by-time needs --timestamp: the column with the time")
    return plan


def plan_replay(
    topic: str,
    target: str,
    *,
    format: str | None = None,
    partitions: Sequence[int] = (),
    from_ms: int | None = None,
    until_ms: int | None = None,
    from_offsets: Sequence[str] = (),
    until_offsets: Sequence[str] = (),
    key: str | None = None,
    limit: int | None = None,
    is_overwriting: bool = False,
    options: Mapping[str, str] | None = None,
) -> ReplayPlan:
    """Return the plan of a replay. The arguments are those of `lograft replay`.

    Args:
        topic: topic to read.
        target: path, URL, or "console".
        format: "parquet" or "json"; None: by the name of the target, else parquet. A console has a format of its own.
        partitions: partitions to read; empty: all.
        from_ms: begin at this time, in milliseconds since 1970-01-01 UTC.
        until_ms: end before it.
        from_offsets: begin at these offsets: "OFFSET" or "PARTITION:OFFSET".
        until_offsets: end before them.
        key: only records with this key.
        limit: at most so many records.
        is_overwriting: replace what is at the target.
        options: options of Spark's writer.

    Raises:
        UsageError: the arguments contradict each other.
    """
    is_console = target == CONSOLE
    if from_ms is not None and from_offsets:
        raise UsageError("give one of --from and --from-offset: a time, or offsets")
    if until_ms is not None and until_offsets:
        raise UsageError("give one of --until and --until-offset: a time, or offsets")
    if from_ms is not None and until_ms is not None and from_ms > until_ms:
        raise UsageError(f"--until ({until_ms} ms since 1970) lies before --from ({from_ms} ms)")
    if is_console and (is_overwriting or options):
        raise UsageError("--overwrite and --option are for files; --to console prints")
    return ReplayPlan(
        topic=topic,
        target=None if is_console else target,
        format=OutputFormat.JSON if is_console else _output_format(target, format),
        partitions=tuple(sorted(set(partitions))),
        from_ms=from_ms,
        until_ms=until_ms,
        from_offsets=_offsets(from_offsets, "--from-offset"),
        until_offsets=_offsets(until_offsets, "--until-offset"),
        key=None if key is None else key.encode(),
        limit=limit,
        is_overwriting=is_overwriting,
        options=dict(options or {}),
    )


def local_path(path: str) -> str | None:
    """Return the path of a file on this machine, possibly with wildcards; None for a URL of another file system."""
    if path.startswith("file:"):
        return "/" + path.removeprefix("file:").lstrip("/")
    return None if _SCHEME.match(path) else path


def offsets_of(chosen: Mapping[int | None, int], partitions: Sequence[int], option: str) -> dict[int, int]:
    """Return the offset of each partition that the option names; with "OFFSET" alone, it names all.

    Raises:
        UsageError: the option names a partition that is not read.
    """
    if unknown := sorted(each for each in chosen if each is not None and each not in partitions):
        raise UsageError(f"{option} names partition {unknown[0]}, which is not read")
    rest = chosen.get(None)
    found = {each: chosen.get(each, rest) for each in partitions}
    return {each: offset for each, offset in found.items() if offset is not None}


def _input_format(paths: Sequence[str], format: str | None) -> InputFormat:
    if not paths:
        raise UsageError("name at least one file or directory to ingest")
    if format is not None:
        if format not in tuple(InputFormat):
            raise UsageError(f"--format takes {', '.join(InputFormat)}, not {format!r}")
        return InputFormat(format)
    found = {path: _by_suffix(path) for path in paths}
    if unknown := [path for path, name in found.items() if name is None]:
        raise UsageError(f"the name {unknown[0]!r} does not say what is in it: give --format {', '.join(InputFormat)}")
    if len(set(found.values())) > 1:
        listed = ", ".join(f"{path} is {name}" for path, name in found.items())
        raise UsageError(f"an ingest reads files of one format ({listed}): run one for each, or give --format")
    return InputFormat(found[paths[0]] or "")


def _output_format(target: str, format: str | None) -> OutputFormat:
    if format is None:
        return OutputFormat.JSON if _by_suffix(target) == "json" else OutputFormat.PARQUET
    if format not in tuple(OutputFormat):
        raise UsageError(f"--format takes {', '.join(OutputFormat)} for files, not {format!r}")
    return OutputFormat(format)


def _by_suffix(path: str) -> str | None:
    """Return the format by the name of a file. A suffix of compression before the end does not count."""
    name = path.rstrip("/").rpartition("/")[2].lower()
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    _, dot, last = name.rpartition(".")
    return _SUFFIXES.get(dot + last)


def _names(text: str | None, option: str) -> tuple[str, ...]:
    if text is None:
        return ()
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise UsageError(f"{option} takes names of columns with commas between them, not {text!r}")
    if len(set(names)) < len(names):
        raise UsageError(f"{option} names a column twice: {text!r}")
    return tuple(names)


def _offsets(texts: Sequence[str], option: str) -> dict[int | None, int]:
    found: dict[int | None, int] = {}
    for text in texts:
        match = _PARTITION_OFFSET.fullmatch(text)
        partition = None if match is None or match.group(1) is None else int(match.group(1))
        if match is None or int(match.group(2)) > MAX_OFFSET or (partition or 0) > MAX_PARTITION:
            raise UsageError(f"{option} takes OFFSET or PARTITION:OFFSET, not {text!r}")
        if found.setdefault(partition, int(match.group(2))) != int(match.group(2)):
            raise UsageError(f"{option} names a partition twice with different offsets: {text!r}")
    return found
