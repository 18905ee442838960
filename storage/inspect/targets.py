# SPDX-License-Identifier: Apache-2.0
"""Tells what a path is: a data directory, a log directory or a single file. Lists the logs of a data directory."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from storage.files.names import (
    CLEANER_FILE,
    DAMAGE_FILE,
    EPOCH_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    LOG_SUFFIX,
    META_FILE,
    METADATA_DIRECTORY,
    METADATA_LOG_DIRECTORY,
    PARTITION_FILE,
    PARTITIONS_DIRECTORY,
    RECOVERY_POINT_FILE,
    PartitionIdentity,
    parse_offset_file_name,
    parse_partition_directory_name,
)
from storage.inspect.files import list_directories, list_files

_LOG_FILES = (RECOVERY_POINT_FILE, PARTITION_FILE, EPOCH_FILE, DAMAGE_FILE, LOG_START_FILE, CLEANER_FILE)


class TargetKind(Enum):
    """Kind of a path."""

    DATA_DIRECTORY = "data directory"
    LOG_DIRECTORY = "log directory"
    FILE = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectory:
    """One log of a data directory; `identity` comes from the directory's name, None for the metadata log."""

    path: str
    identity: PartitionIdentity | None


class UnknownTargetError(Exception):
    """These tools cannot read the path; the message says what they can read."""


def kind_of(path: str) -> TargetKind:
    """Return the kind of a path.

    Raises:
        UnknownTargetError: it is none of the three, or does not exist.
        DiskAccessError: it cannot be read.
    """
    if Path(path).is_file():
        if file_kind(path) is None:
            raise UnknownTargetError(f"{path}: its name is not that of a file of a log (see docs/storage_format.md)")
        return TargetKind.FILE
    if not Path(path).is_dir():
        raise UnknownTargetError(f"{path}: no such file or directory")
    names = list_files(path)
    if META_FILE in names or {METADATA_DIRECTORY, PARTITIONS_DIRECTORY}.intersection(list_directories(path)):
        return TargetKind.DATA_DIRECTORY
    if any(file_kind(name) is not None for name in names):
        return TargetKind.LOG_DIRECTORY
    raise UnknownTargetError(
        f"{path}: it is neither a data directory (no {META_FILE}) nor a log directory (no *{LOG_SUFFIX})"
    )


def file_kind(path: str) -> str | None:
    """Return the kind of a file by its name: a suffix such as `.log`, or the whole name of a checkpoint; None for others."""
    name = Path(path).name
    if name == HIGH_WATERMARK_FILE:
        return name
    parsed = parse_offset_file_name(name)
    if parsed is not None:
        return parsed.suffix
    return name if name in _LOG_FILES else None


def logs_of(path: str) -> tuple[list[LogDirectory], list[str]]:
    """Return the logs of a data directory, the metadata log first, and all other names in `partitions/`.

    Raises:
        DiskAccessError: a directory cannot be listed.
    """
    logs: list[LogDirectory] = []
    if METADATA_LOG_DIRECTORY in list_directories(f"{path}/{METADATA_DIRECTORY}"):
        metadata_log = f"{path}/{METADATA_DIRECTORY}/{METADATA_LOG_DIRECTORY}"
        logs.append(LogDirectory(path=metadata_log, identity=None))
    others: list[str] = []
    for name in list_directories(f"{path}/{PARTITIONS_DIRECTORY}"):
        identity = parse_partition_directory_name(name)
        if identity is None:
            others.append(name)
        else:
            logs.append(LogDirectory(path=f"{path}/{PARTITIONS_DIRECTORY}/{name}", identity=identity))
    return logs, others
