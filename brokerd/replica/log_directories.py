# SPDX-License-Identifier: Apache-2.0
"""Opens the log directories of a broker: the first one, which holds the metadata, and those named after it.

Owns the file `log-directories` in the first one and the decision whether an empty directory may be formatted. The file is
there for a broker that has several directories: one line `<directory id, 32 hex digits> <path>` for each but the first. It has
no checksum, because it is meant to be edited.

Laws
    A directory that holds anything is never formatted.
    A directory that was there before and is empty now (its disk is not mounted, say), or is not named any more, stops the
    start: its partitions would begin anew, empty, in another place. Who has really lost it takes its line out of the file.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from metaquorum.process.settings import SettingsError
from storage.directory.data_directory import DataDirectory
from storage.directory.directories import LogDirectories, LogDirectory
from storage.directory.space import SpaceLimits
from storage.errors import (
    CorruptDirectoryError,
    DirectoryMissingError,
    FileMissingError,
    UnformattedDirectoryError,
)
from storage.files.checkpoints import replace_file
from storage.files.made_directory import make_data_directory
from storage.files.names import (
    LOCK_FILE,
    LOG_DIRECTORIES_FILE,
    META_FILE,
    PARTITIONS_DIRECTORY,
    TEMPORARY_SUFFIX,
    TOPIC_ID_BYTES,
)
from storage.files.posix import PosixDisk

_LINE = re.compile(r"([0-9a-f]{32}) (/.*)", re.ASCII)

_ALLOWED_NAMES = frozenset({"lost+found", LOCK_FILE, META_FILE + TEMPORARY_SUFFIX})
"""What a new file system has of its own, and what an interrupted format leaves (beside an empty `partitions/`)."""


class OpenedDirectories:
    """The log directories of a broker, those after the first one locked by this object.

    Args:
        first: the open directory that holds the metadata; stays the caller's.
        further: the others.
        limits: when a directory is tight and full.
    """

    def __init__(self, first: DataDirectory, further: Sequence[DataDirectory], limits: SpaceLimits) -> None:
        self._further = tuple(further)
        self.logs = LogDirectories(
            [
                LogDirectory(opened.disk, opened.path, directory_id=opened.directory_id, limits=limits)
                for opened in (first, *further)
            ]
        )

    def close(self) -> None:
        """Give the locks back. Idempotent."""
        for opened in self._further:
            opened.close()


def open_log_directories(first: DataDirectory, paths: Sequence[Path], limits: SpaceLimits) -> OpenedDirectories:
    """Open the further directories, formatting new ones. Blocks for file access.

    Args:
        first: the open directory that holds the metadata.
        paths: the further ones.
        limits: when a directory is tight and full.

    Raises:
        SettingsError: a further directory holds metadata.
        DirectoryMissingError: one that was there before is empty or not named.
        StorageError: a directory cannot be used.
    """
    known = _read_known(first)
    further: list[DataDirectory] = []
    try:
        for path in paths:
            opened = _open(first, str(path.absolute()), known)
            further.append(opened)
            twin = next((other for other in (first, *further[:-1]) if other.directory_id == opened.directory_id), None)
            if twin is not None:
                raise CorruptDirectoryError(
                    opened.path, f"it is a copy of {twin.path}: both have the same directory id"
                )
        _check_complete(first, further, known)
        return OpenedDirectories(first, further, limits)
    except BaseException:
        for opened in further:
            opened.close()
        raise


def _open(first: DataDirectory, path: str, known: dict[bytes, str]) -> DataDirectory:
    disk = PosixDisk()
    make_data_directory(Path(path))
    cluster_id, node_id = first.cluster_id, first.node_id
    if DataDirectory.read_meta(disk, path) is None:
        _check_new(first, disk, path, known)
        directory_id = secrets.token_bytes(TOPIC_ID_BYTES)
        DataDirectory.create(
            disk, path, cluster_id=cluster_id, node_id=node_id, directory_id=directory_id, has_metadata=False
        ).close()
    opened = DataDirectory.open(disk, path, cluster_id=cluster_id, node_id=node_id, has_metadata=False)
    if disk.exists(opened.quorum_state_path):
        opened.close()
        raise SettingsError(f"--data-dir {path} holds the metadata of a node: name that directory first, and only one")
    return opened


def _check_new(first: DataDirectory, disk: PosixDisk, path: str, known: dict[bytes, str]) -> None:
    """Refuse to format a directory that is not new."""
    if path in known.values():
        raise DirectoryMissingError(
            path,
            "it was a log directory of this broker and is empty now: mount its disk; if that is lost for good, take its line "
            f"out of {_known_path(first)}, and its partitions begin anew",
        )
    names = set(disk.list_directory(path)) - _ALLOWED_NAMES
    if names == {PARTITIONS_DIRECTORY}:
        names = set(disk.list_directory(f"{path}/{PARTITIONS_DIRECTORY}"))
    if names:
        raise UnformattedDirectoryError(path, "holds files and is not a data directory of Lograft: name an empty one")


def _check_complete(first: DataDirectory, further: Sequence[DataDirectory], known: dict[bytes, str]) -> None:
    """Refuse to go on without a directory that was there before; then remember all that are there now."""
    now = {opened.directory_id: opened.path for opened in further}
    for directory_id, path in known.items():
        if directory_id not in now:
            raise DirectoryMissingError(
                path,
                f"it was log directory {directory_id.hex()} of this broker and is not there: name it with --data-dir; if it is "
                f"lost for good, take its line out of {_known_path(first)}, and its partitions begin anew",
            )
    if now != known:
        lines = [f"{directory_id.hex()} {path}\n" for directory_id, path in sorted(now.items())]
        replace_file(first.disk, _known_path(first), "".join(lines).encode())


def _known_path(first: DataDirectory) -> str:
    return f"{first.path}/{LOG_DIRECTORIES_FILE}"


def _read_known(first: DataDirectory) -> dict[bytes, str]:
    """Return the further directories of the last start: path by directory id."""
    try:
        content = first.disk.read_file(_known_path(first))
    except FileMissingError:
        return {}
    known: dict[bytes, str] = {}
    for line in content.decode(errors="replace").splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise CorruptDirectoryError(
                first.path, f"{LOG_DIRECTORIES_FILE} has the line {line!r}: write a directory id, a space and a path"
            )
        known[bytes.fromhex(match[1])] = match[2]
    return known
