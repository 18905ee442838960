# SPDX-License-Identifier: Apache-2.0
"""Shows a data directory, a log directory, its batches or records, or one file.

Shows the content of the files without judging it (`verify` judges), and marks bytes that are not a batch. Continues
behind damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from lograft.wire.errors import BatchError
from lograft.wire.header import BatchHeader
from lograft.wire.reader import RecordBatch

from storage.files.disk import File
from storage.files.names import LOG_SUFFIX, META_FILE, parse_offset_file_name
from storage.inspect.dump_files import dump_small_file
from storage.inspect.files import InspectedFile, read_small
from storage.inspect.findings import LogReport
from storage.inspect.log_files import LogFiles, SegmentFile, load_log_files
from storage.inspect.sections import RecordHeaders, Row, Section
from storage.inspect.targets import TargetKind, file_kind, kind_of, logs_of
from storage.segment.segment_check import BadBytes, CheckedBatch, PassedDamage, TrailingBytes, check_segment
from storage.types import Boundary

BATCH_COLUMNS = (
    "base_offset",
    "end_offset",
    "position",
    "size_bytes",
    "record_count",
    "leader_epoch",
    "codec",
    "base_timestamp_ms",
    "max_timestamp_ms",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "attributes",
    "problem",
)
RECORD_COLUMNS = ("offset", "timestamp_ms", "leader_epoch", "key", "value", "headers", "problem")
SEGMENT_COLUMNS = ("base_offset", "end_offset", "size_bytes", "files")
LOG_COLUMNS = (
    "log",
    "topic_id",
    "partition",
    "segment_count",
    "size_bytes",
    "log_start_offset",
    "flushed_offset",
    "clean",
)

_CODEC_NAMES = {0: "none", 4: "zstd"}
_CODEC_MASK = 0x07


def dump_path(
    path: str, *, records: bool, batches: bool, offset: int | None, end_offset: int | None
) -> Iterator[Section]:
    """Show the content of a path.

    Args:
        path: a data directory, a log directory or a file of a log.
        records: True: show the records of a log or segment.
        batches: True: show the batches of a log; a segment file shows them in any case.
        offset: show batches and records from this offset on (inclusive); None: from the first.
        end_offset: show those below this offset (exclusive); None: to the last.

    Raises:
        UnknownTargetError: the path is none of these.
        MalformedError: `path` is a damaged cache or checkpoint.
        FileMissingError, DiskAccessError, DiskReadError: a file cannot be read.
    """
    kind = kind_of(path)
    if kind is TargetKind.DATA_DIRECTORY:
        yield from _dump_data_directory(path)
        return
    if kind is TargetKind.FILE and file_kind(path) != LOG_SUFFIX:
        yield from dump_small_file(path)
        return
    if kind is TargetKind.FILE:
        segments = [_segment_of(path)]
    else:
        files = load_log_files(path, LogReport(path=path))
        if not (records or batches or offset is not None or end_offset is not None):
            yield from _dump_log(files)
            return
        segments = [(f"{path}/{segment.name}", segment, end) for segment, end in _spans(files)]
    if records:
        yield Section(
            kind="record",
            title="records",
            columns=RECORD_COLUMNS,
            rows=_walk(segments, _record_rows, offset, end_offset),
        )
    else:
        yield Section(
            kind="batch", title="batches", columns=BATCH_COLUMNS, rows=_walk(segments, _batch_rows, offset, end_offset)
        )


_Span = tuple[str, SegmentFile, int | None]
_MakeRows = Callable[[File, CheckedBatch | BadBytes, int, int | None], Iterator[Row]]


def _segment_of(path: str) -> _Span:
    parsed = parse_offset_file_name(Path(path).name)
    assert parsed is not None, path
    return path, SegmentFile(parsed.base_offset, Path(path).stat().st_size, Path(path).name), None


def _spans(files: LogFiles) -> Iterator[tuple[SegmentFile, int | None]]:
    for slot, segment in enumerate(files.segments):
        yield segment, files.segments[slot + 1].base_offset if slot + 1 < len(files.segments) else None


def _walk(segments: list[_Span], make_rows: _MakeRows, offset: int | None, end_offset: int | None) -> Iterator[Row]:
    """Yield the rows of all pieces that touch [offset, end_offset)."""
    first = 0 if offset is None else offset
    for path, segment, segment_end in segments:
        if segment_end is not None and segment_end <= first:
            continue
        file = InspectedFile(path)
        try:
            for piece in check_segment(
                file,
                base_offset=segment.base_offset,
                end_offset=segment_end,
                required_end=segment.base_offset if segment_end is None else segment_end,
                size_bytes=segment.size_bytes,
                known=(),
            ):
                # `known` is empty, so no damage is skipped.
                assert not isinstance(piece, PassedDamage), piece
                if isinstance(piece, TrailingBytes):
                    start, end = (
                        Boundary(segment_end or 0, piece.position),
                        Boundary(segment_end or 0, piece.end_position),
                    )
                    piece = BadBytes(start, end, "bytes behind the last record", False)
                base, limit = _offsets(piece)
                if end_offset is not None and base >= end_offset:
                    return
                if limit > first or limit == base == first:
                    yield from make_rows(file, piece, first, end_offset)
        finally:
            file.close()


def _offsets(piece: CheckedBatch | BadBytes) -> tuple[int, int]:
    if isinstance(piece, BadBytes):
        return piece.start.offset, piece.end.offset
    return piece.header.base_offset, piece.header.next_offset


def _batch_rows(file: File, piece: CheckedBatch | BadBytes, first: int, end_offset: int | None) -> Iterator[Row]:
    del file, first, end_offset
    if isinstance(piece, BadBytes):
        size_bytes = piece.end.position - piece.start.position
        nothing = (None,) * (len(BATCH_COLUMNS) - 5)
        yield (piece.start.offset, piece.end.offset, piece.start.position, size_bytes, *nothing, piece.reason)
        return
    position, header = piece
    yield (
        header.base_offset,
        header.next_offset,
        position,
        header.size_bytes,
        header.record_count,
        header.leader_epoch,
        _CODEC_NAMES.get(header.attributes & _CODEC_MASK, str(header.attributes & _CODEC_MASK)),
        header.base_timestamp_ms,
        header.max_timestamp_ms,
        *(
            None if number < 0 else number
            for number in (header.producer_id, header.producer_epoch, header.base_sequence)
        ),
        _attributes(header),
        None,
    )


def _attributes(header: BatchHeader) -> str | None:
    """Return the special properties of a batch."""
    names = [
        name
        for name, holds in (
            ("control", header.is_control),
            ("filler", header.is_filler),
            ("compacted", not header.is_filler and header.record_count != header.last_offset_delta + 1),
            ("delete horizon", header.delete_horizon_ms is not None),
        )
        if holds
    ]
    return ", ".join(names) or None


def _record_rows(file: File, piece: CheckedBatch | BadBytes, first: int, end_offset: int | None) -> Iterator[Row]:
    if isinstance(piece, BadBytes):
        problem = f"bad bytes up to offset {piece.end.offset}: {piece.reason}"
        yield (piece.start.offset, None, None, None, None, None, problem)
        return
    position, header = piece
    try:
        records = RecordBatch(file.pread(header.size_bytes, position)).records()
    except BatchError as error:
        yield (header.base_offset, None, header.leader_epoch, None, None, None, str(error))
        return
    for record in records:
        if record.offset >= first and (end_offset is None or record.offset < end_offset):
            yield (
                record.offset,
                record.timestamp_ms,
                header.leader_epoch,
                record.key,
                record.value,
                RecordHeaders(pairs=record.headers) if record.headers else None,
                None,
            )


def _dump_log(files: LogFiles) -> Iterator[Section]:
    """Show a log without walking it."""
    point = files.point
    facts: list[Row] = [
        ("directory", files.path),
        ("topic id", files.identity.topic_id.hex() if files.identity is not None else None),
        ("partition", files.identity.partition if files.identity is not None else None),
        ("log start offset", files.log_start_offset),
        ("flushed offset", point.values[0] if point is not None else None),
        ("closed cleanly", files.is_clean),
        ("recovery point sequence", point.sequence if point is not None else None),
    ]
    yield Section(kind="fact", title="log", columns=("name", "value"), rows=facts)
    yield Section(kind="segment", title="segments", columns=SEGMENT_COLUMNS, rows=_segment_rows(files))
    if files.epochs is not None:
        rows = [tuple(entry) for entry in files.epochs.entries()]
        yield Section(kind="epoch", title="leader epochs", columns=("leader_epoch", "start_offset"), rows=rows)
    if files.known:
        rows = [
            (each.segment_base_offset, each.base_offset, each.end_offset, each.position, each.end_position)
            for each in files.known
        ]
        columns = ("segment_base_offset", "base_offset", "end_offset", "position", "end_position")
        yield Section(kind="damaged_range", title="damaged ranges", columns=columns, rows=rows)
    others = [name for name in files.sizes if file_kind(name) is None]
    if others or files.snapshots:
        rows = [(f"{offset:020d}.snapshot", files.sizes[f"{offset:020d}.snapshot"]) for offset in files.snapshots]
        rows += [(name, files.sizes[name]) for name in others]
        yield Section(kind="file", title="snapshots and other files", columns=("name", "size_bytes"), rows=rows)


def _segment_rows(files: LogFiles) -> Iterator[Row]:
    for segment, end_offset in _spans(files):
        prefix = f"{segment.base_offset:020d}"
        suffixes = [name.removeprefix(prefix) for name in files.sizes if name.startswith(f"{prefix}.")]
        yield (segment.base_offset, end_offset, segment.size_bytes, " ".join(sorted(suffixes)))


def _dump_data_directory(path: str) -> Iterator[Section]:
    meta = read_small(f"{path}/{META_FILE}")
    rows: list[Row] = [("directory", path), (META_FILE, meta)]
    yield Section(kind="fact", title="data directory", columns=("name", "value"), rows=rows)
    logs, others = logs_of(path)
    yield Section(
        kind="log",
        title="logs",
        columns=LOG_COLUMNS,
        rows=(_log_row(path, load_log_files(log.path, LogReport(path=log.path))) for log in logs),
    )
    if others:
        rows = [(name,) for name in others]
        yield Section(kind="set_aside", title="no partitions in use", columns=("name",), rows=rows)


def _log_row(path: str, files: LogFiles) -> Row:
    return (
        files.path.removeprefix(f"{path}/"),
        files.identity.topic_id.hex() if files.identity is not None else None,
        files.identity.partition if files.identity is not None else None,
        len(files.segments),
        sum(files.sizes.values()),
        files.log_start_offset,
        files.point.values[0] if files.point is not None else None,
        files.is_clean,
    )
