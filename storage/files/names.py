# SPDX-License-Identifier: Apache-2.0
"""Formats and parses the names of files and directories in a data directory.

A partition directory is named by topic id and partition, never by a user's text. A file that begins a range of offsets
is named by its base offset in 20 decimal digits, so that names sort like offsets.
Source: docs/storage_format.md; Kafka, LogFileUtils.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
SNAPSHOT_SUFFIX = ".snapshot"
SEAL_SUFFIX = ".seal"
TEMPORARY_SUFFIX = ".tmp"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
REPAIRED_SUFFIX = ".repaired" + CLEANED_SUFFIX
SWAP_SUFFIX = ".swap"
RESTART_SUFFIX = ".restart"
FUTURE_SUFFIX = "-future"
MOVED_SUFFIX = "-moved"

RECOVERY_POINT_FILE = "recovery-point"
LOG_START_FILE = "log-start"
EPOCH_FILE = "leader-epoch-checkpoint"
PARTITION_FILE = "partition.metadata"
DAMAGE_FILE = "damaged-ranges"
CLEANER_FILE = "cleaner-checkpoint"
MOVED_TO_FILE = "moved-to"
MOVED_FROM_FILE = "moved-from"

META_FILE = "meta.json"
BALLAST_FILE = "ballast"
LOG_DIRECTORIES_FILE = "log-directories"
CLEAN_STOP_FILE = "clean-stop"
HIGH_WATERMARK_FILE = "high-watermark-checkpoint"
LOCK_FILE = "lock"
METADATA_DIRECTORY = "metadata"
METADATA_LOG_DIRECTORY = "log"
QUORUM_STATE_FILE = "quorum-state.json"
IMAGE_DIRECTORY = "image"
PARTITIONS_DIRECTORY = "partitions"

TOPIC_ID_BYTES = 16
"""Size of a topic id and of a directory id."""

MAX_PARTITION = 2**31 - 1
"""Largest partition number, inclusive."""

_OFFSET_FILE = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.snapshot|\.seal)", re.ASCII)
_RESTART_FILE = re.compile(r"(\d{20})\.restart", re.ASCII)
_SWAP_FILE = re.compile(r"(\d{20})-(\d{20})\.swap", re.ASCII)
_MOVE_DIRECTORY = re.compile(r"([0-9a-f]{32}-\d+)\.([0-9a-f]{32})(-future|-moved)", re.ASCII)
_PARTITION_DIRECTORY = re.compile(r"([0-9a-f]{32})-(0|[1-9]\d{0,9})", re.ASCII)


class OffsetFile(NamedTuple):
    """The parts of the name of a segment, index, snapshot or seal file."""

    base_offset: int
    suffix: str


class SwapFile(NamedTuple):
    """The parts of the name of a `.swap` file: the offsets that the segment replaces, end exclusive."""

    base_offset: int
    end_offset: int


class MoveDirectory(NamedTuple):
    """The parts of the name of a future or moved replica: partition directory name, 16-byte move id, and suffix."""

    partition_name: str
    move_id: bytes
    suffix: str


class PartitionIdentity(NamedTuple):
    """The partition that a directory holds: the topic's 16-byte id and the partition number."""

    topic_id: bytes
    partition: int


def offset_file_name(base_offset: int, suffix: str) -> str:
    """Return the name of the file of this kind that begins at `base_offset`."""
    return f"{base_offset:020d}{suffix}"


def parse_offset_file_name(name: str) -> OffsetFile | None:
    """Parse a name made by `offset_file_name`; None for any other name."""
    match = _OFFSET_FILE.fullmatch(name)
    if match is None:
        return None
    base_offset = int(match[1])
    return OffsetFile(base_offset, match[2]) if base_offset < 2**63 else None


def restart_file_name(offset: int) -> str:
    """Return the name of the mark of a log that restarts at `offset`."""
    return offset_file_name(offset, RESTART_SUFFIX)


def parse_restart_file_name(name: str) -> int | None:
    """Parse a name made by `restart_file_name`; None for any other name."""
    match = _RESTART_FILE.fullmatch(name)
    return int(match[1]) if match is not None and int(match[1]) < 2**63 else None


def swap_file_name(swap: SwapFile) -> str:
    """Return the name of a complete compacted segment before it gets its final name: `<base offset>-<end offset>.swap`."""
    return f"{swap.base_offset:020d}-{swap.end_offset:020d}{SWAP_SUFFIX}"


def parse_swap_file_name(name: str) -> SwapFile | None:
    """Parse a name made by `swap_file_name`; None for any other name."""
    match = _SWAP_FILE.fullmatch(name)
    return SwapFile(int(match[1]), int(match[2])) if match is not None else None


def partition_directory_name(identity: PartitionIdentity) -> str:
    """Return the name of a partition's directory: `<topic id, 32 hex digits>-<partition>`."""
    assert len(identity.topic_id) == TOPIC_ID_BYTES, f"topic id of {len(identity.topic_id)} bytes"
    assert 0 <= identity.partition <= MAX_PARTITION, f"partition {identity.partition}"
    return f"{identity.topic_id.hex()}-{identity.partition}"


def parse_partition_directory_name(name: str) -> PartitionIdentity | None:
    """Parse a name made by `partition_directory_name`; None for any other name."""
    match = _PARTITION_DIRECTORY.fullmatch(name)
    if match is None:
        return None
    partition = int(match[2])
    return PartitionIdentity(bytes.fromhex(match[1]), partition) if partition <= MAX_PARTITION else None


def move_directory_name(partition_name: str, move_id: bytes, suffix: str) -> str:
    """Return the name of a future or moved replica: `<topic id>-<partition>.<move id, 32 hex digits>` and `-future` or `-moved`."""
    return f"{partition_name}.{move_id.hex()}{suffix}"


def parse_move_directory_name(name: str) -> MoveDirectory | None:
    """Parse a name made by `move_directory_name`; None for any other name."""
    match = _MOVE_DIRECTORY.fullmatch(name)
    if match is None or parse_partition_directory_name(match[1]) is None:
        return None
    return MoveDirectory(match[1], bytes.fromhex(match[2]), match[3])
