# SPDX-License-Identifier: Apache-2.0
"""Judges a path: all logs of a data directory, one log, or one file alone.

A single file is judged by its own content: a segment by its batches, a cache or checkpoint by its form. What needs the
rest of the log is not judged. Source: docs/storage_format.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from lograft.wire.checksum import crc32c

from storage.directory.data_directory import decode_meta
from storage.errors import CorruptDirectoryError
from storage.files.names import (
    CLEANER_FILE,
    DAMAGE_FILE,
    EPOCH_FILE,
    HIGH_WATERMARK_FILE,
    INDEX_SUFFIX,
    LOG_START_FILE,
    LOG_SUFFIX,
    META_FILE,
    METADATA_DIRECTORY,
    PARTITION_FILE,
    PARTITIONS_DIRECTORY,
    QUORUM_STATE_FILE,
    RECOVERY_POINT_FILE,
    SEAL_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    parse_offset_file_name,
    parse_partition_directory_name,
)
from storage.inspect.files import InspectedFile, read_small
from storage.inspect.findings import LogReport, Severity
from storage.inspect.formats import (
    MalformedError,
    parse_log_start,
    parse_offset_index,
    parse_recovery_point,
    parse_snapshot,
    parse_time_index,
    was_never_written,
)
from storage.inspect.log_check import check_log
from storage.inspect.record_judges import EpochJudge, judge_content
from storage.inspect.targets import TargetKind, file_kind, kind_of, logs_of
from storage.inspect.texts import (
    parse_cleaner_checkpoint,
    parse_damaged_ranges,
    parse_epochs,
    parse_high_watermarks,
    parse_partition_metadata,
)
from storage.segment.seal import MalformedSealError, decode_seal
from storage.segment.segment_check import BadBytes, CheckedBatch, check_segment

CHECKED_JSON_FILES = (
    "first-start.json",
    f"{METADATA_DIRECTORY}/{QUORUM_STATE_FILE}",
    f"{METADATA_DIRECTORY}/quorum-state-copy.json",
    f"{METADATA_DIRECTORY}/initial-voters.json",
)
"""Files of a data directory with a checksum of their own."""

_CRC_MEMBER = "crc32c"

_PARSERS: dict[str, Callable[[bytes], object]] = {
    INDEX_SUFFIX: parse_offset_index,
    TIME_INDEX_SUFFIX: parse_time_index,
    SNAPSHOT_SUFFIX: parse_snapshot,
    SEAL_SUFFIX: decode_seal,
    EPOCH_FILE: parse_epochs,
    DAMAGE_FILE: parse_damaged_ranges,
    CLEANER_FILE: parse_cleaner_checkpoint,
    PARTITION_FILE: parse_partition_metadata,
    HIGH_WATERMARK_FILE: parse_high_watermarks,
}


def verify_path(path: str) -> Iterator[LogReport]:
    """Judge a path; yield a report for each log, and one for the data directory itself.

    Raises:
        UnknownTargetError: the path cannot be judged.
        FileMissingError, DiskAccessError, DiskReadError: a file cannot be read.
    """
    kind = kind_of(path)
    if kind is TargetKind.FILE:
        yield _verify_file(path)
    elif kind is TargetKind.LOG_DIRECTORY:
        yield check_log(path, expected=parse_partition_directory_name(Path(path).resolve().name))
    else:
        logs, others = logs_of(path)
        yield _verify_data_directory(path, others)
        for log in logs:
            yield check_log(log.path, expected=log.identity)


def _verify_data_directory(path: str, others: list[str]) -> LogReport:
    """Judge the files of a data directory beside its logs."""
    report = LogReport(path=path)
    content = read_small(f"{path}/{META_FILE}")
    if content is None:
        report.add(Severity.LAW, META_FILE, "it is missing: nothing tells whose directory this is")
    else:
        try:
            decode_meta(path, content)
        except CorruptDirectoryError as error:
            report.add(Severity.LAW, META_FILE, f"it is damaged: {error}")
    for name in CHECKED_JSON_FILES:
        checked = read_small(f"{path}/{name}")
        if checked is not None and not is_checked_json(checked):
            report.add(Severity.LAW, name, "it is damaged: its checksum does not match")
    _verify_high_watermarks(path, report)
    for name in others:
        report.add(Severity.NOTE, f"{PARTITIONS_DIRECTORY}/{name}", "it is no partition in use: not looked at")
    return report


def _verify_high_watermarks(path: str, report: LogReport) -> None:
    """Judge the checkpoint of high watermarks. It is written without a sync, so a power failure may leave none of its bytes."""
    content = read_small(f"{path}/{HIGH_WATERMARK_FILE}")
    if content is None:
        return
    try:
        parse_high_watermarks(content)
    except MalformedError as error:
        severity = Severity.NOTE if was_never_written(content) else Severity.CACHE
        report.add(severity, HIGH_WATERMARK_FILE, f"it is damaged: {error}")


def is_checked_json(content: bytes) -> bool:
    """Tell whether a JSON object has the right `crc32c`: of itself without that member, keys sorted, no spaces."""
    try:
        parsed: object = json.loads(content)
    except ValueError:
        return False
    if not isinstance(parsed, dict):
        return False
    members = cast("dict[str, object]", parsed)
    found = members.pop(_CRC_MEMBER, None)
    return found == f"{crc32c(json.dumps(members, sort_keys=True, separators=(',', ':')).encode()):08x}"


def _verify_file(path: str) -> LogReport:
    report = LogReport(path=path)
    kind, name = file_kind(path), Path(path).name
    if kind == LOG_SUFFIX:
        _verify_segment(path, report)
        return report
    content = read_small(path) or b""
    if kind in (RECOVERY_POINT_FILE, LOG_START_FILE):
        slots = parse_recovery_point(content) if kind == RECOVERY_POINT_FILE else parse_log_start(content)
        for number, slot in enumerate(slots):
            if slot.fault is not None:
                report.add(Severity.LAW, name, f"slot {number} is bad: {slot.fault}")
        return report
    try:
        _PARSERS[kind or ""](content)
    except (MalformedError, MalformedSealError) as error:
        report.add(Severity.CACHE, name, f"it is damaged: {error}")
    return report


def _verify_segment(path: str, report: LogReport) -> None:
    """Judge a segment by its batches alone. Without the rest of the log, any trailing bytes that are not a batch count as damage."""
    parsed = parse_offset_file_name(Path(path).name)
    assert parsed is not None, path
    report.segment_count = 1
    report.log_start_offset = report.log_end_offset = parsed.base_offset
    file = InspectedFile(path)
    epochs = EpochJudge(None, believed_below=0, report=report)
    name = Path(path).name
    try:
        report.verified_bytes = file.size
        for piece in check_segment(
            file,
            base_offset=parsed.base_offset,
            end_offset=None,
            required_end=parsed.base_offset,
            size_bytes=file.size,
            known=(),
        ):
            if isinstance(piece, CheckedBatch):
                position, header = piece
                report.batch_count += 1
                report.record_count += header.record_count
                report.log_end_offset = header.next_offset
                epochs.batch(name, position, header)
                judge_content(name, position, header, file.pread(header.size_bytes, position), report)
            else:
                # Without known damage and without a known end, no other piece occurs.
                assert isinstance(piece, BadBytes), piece
                report.add(Severity.DAMAGE, name, f"bad bytes: {piece.reason}", start=piece.start, end=piece.end)
                report.log_end_offset = piece.end.offset
    finally:
        file.close()
    epochs.finish()
