# SPDX-License-Identifier: Apache-2.0
"""Opens the log directories of a broker: the first one, which holds the metadata, and the further ones.

Owns the file `log-directories` in the first one, and the decision whether an empty directory may be formatted. The file
exists for a broker that has several directories. It has one line `<directory id, 32 hex digits> <path>` for each one
except the first. It has no checksum, because operators edit it.

Laws
    A directory that contains anything is never formatted.
    If a directory of an earlier start is empty now (for example, its disk is not mounted) or no longer named, the start
    fails. Otherwise its partitions would start empty elsewhere. An operator who has really lost it removes its line
    from the file.
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
"""Names that a new file system contains, and remains of an interrupted format (beside an empty `partitions/`)."""


class OpenedDirectories:
    """The log directories of a broker; this object holds the locks of all but the first.

    Args:
        first: the open directory that holds the metadata; the caller still owns it.
        further: the others.
        limits: space limits of each directory.
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
        """Release the locks. Idempotent."""
        for opened in self._further:
            opened.close()


def open_log_directories(first: DataDirectory, paths: Sequence[Path], limits: SpaceLimits) -> OpenedDirectories:
    """Open the further directories, and format new ones. Blocks for file access.

    Args:
        first: the open directory that holds the metadata.
        paths: paths of the further ones.
        limits: space limits of each directory.

    Raises:
        SettingsError: a further directory holds metadata.
        DirectoryMissingError: a directory of an earlier start is empty or not named.
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
            f"out of {_known_path(first)}, and its partitions start empty",
        )
    names = set(disk.list_directory(path)) - _ALLOWED_NAMES
    if names == {PARTITIONS_DIRECTORY}:
        names = set(disk.list_directory(f"{path}/{PARTITIONS_DIRECTORY}"))
    if names:
        raise UnformattedDirectoryError(path, "holds files and is not a data directory of Lograft: name an empty one")


def _check_complete(first: DataDirectory, further: Sequence[DataDirectory], known: dict[bytes, str]) -> None:
    """Refuse to start without a directory of an earlier start; then save the present ones."""
    now = {opened.directory_id: opened.path for opened in further}
    for directory_id, path in known.items():
        if directory_id not in now:
            raise DirectoryMissingError(
                path,
                f"it was log directory {directory_id.hex()} of this broker and is not there: name it with --data-dir; if it is "
                f"lost for good, take its line out of {_known_path(first)}, and its partitions start empty",
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
