# SPDX-License-Identifier: Apache-2.0
"""High watermarks of the replicas of a log directory: the text checkpoint `high-watermark-checkpoint`.

    <partition directory name> <high watermark>    one line for each replicated partition, ascending by name

A replica that starts again may serve readers up to there before it hears from another broker. That matters if too few
replicas are in sync to commit anything new.

Law: the file is written without a sync, and only with published high watermarks. An old file is safe, because a high
watermark does not go back. A missing or damaged file counts as empty and fails nothing.
Source: docs/replication.md, contract of the shells; docs/storage_format.md section 2.6; Kafka,
replication-offset-checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from storage.errors import DiskError, FileMissingError
from storage.files.checkpoints import decode_lines, encode_lines, replace_file
from storage.files.disk import Disk
from storage.files.names import HIGH_WATERMARK_FILE, parse_partition_directory_name

MAX_OFFSET = 2**63 - 1
"""Largest high watermark, inclusive."""

_MAX_DIGITS = 19


class LoadedHighWatermarks(NamedTuple):
    """The content of a checkpoint.

    Attributes:
        offsets: partition directory name -> high watermark (exclusive); empty if there is no complete checkpoint.
        problem: why an existing checkpoint is unusable, for the server's own log; None: it is complete, or there is
            none.
    """

    offsets: dict[str, int]
    problem: str | None = None


def write_high_watermarks(disk: Disk, directory: str, offsets: Mapping[str, int]) -> None:
    """Replace the checkpoint of a log directory, without a sync.

    Args:
        disk: the disk of the directory.
        directory: absolute path of the log directory, which contains `partitions/`.
        offsets: partition directory name -> high watermark (exclusive).

    Raises:
        DiskFullError, DiskAccessError, TooManyOpenFilesError: the old checkpoint is still there.
        DiskFailedError: the disk is failed for good.
    """
    replace_file(disk, _path(directory), encode_lines(encode_high_watermarks(offsets)), durable=False)


def load_high_watermarks(disk: Disk, directory: str) -> LoadedHighWatermarks:
    """Read the checkpoint of a log directory; never raises a `DiskError`."""
    try:
        content = disk.read_file(_path(directory))
    except FileMissingError:
        return LoadedHighWatermarks({})
    except DiskError as error:
        return LoadedHighWatermarks({}, f"it cannot be read: {error}")
    lines = decode_lines(content)
    if lines is None:
        return LoadedHighWatermarks({}, f"{_path(directory)}: it is cut off or damaged")
    try:
        return LoadedHighWatermarks(decode_high_watermarks(lines))
    except ValueError as error:
        return LoadedHighWatermarks({}, f"{_path(directory)}: {error}")


def read_high_watermarks(disk: Disk, directory: str) -> dict[str, int]:
    """Return the high watermarks of a log directory; empty if there is no usable checkpoint."""
    return load_high_watermarks(disk, directory).offsets


def encode_high_watermarks(offsets: Mapping[str, int]) -> list[str]:
    """Return the lines of the checkpoint."""
    for name, offset in offsets.items():
        assert parse_partition_directory_name(name) is not None, f"{name!r} is no partition directory"
        assert 0 <= offset <= MAX_OFFSET, f"{name}: high watermark {offset}"
    return [f"{name} {offset}" for name, offset in sorted(offsets.items())]


def decode_high_watermarks(lines: Sequence[str]) -> dict[str, int]:
    """Decode the lines of the checkpoint.

    Raises:
        ValueError: `encode_high_watermarks` does not write such a line, or a partition occurs twice.
    """
    offsets: dict[str, int] = {}
    for line in lines:
        name, space, digits = line.partition(" ")
        is_number = space and digits.isdecimal() and len(digits) <= _MAX_DIGITS and int(digits) <= MAX_OFFSET
        if not is_number or parse_partition_directory_name(name) is None or name in offsets:
            raise ValueError(f"the line {line!r} is not one partition and its high watermark, once")
        offsets[name] = int(digits)
    return offsets


def _path(directory: str) -> str:
    return f"{directory}/{HIGH_WATERMARK_FILE}"
