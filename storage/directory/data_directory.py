# SPDX-License-Identifier: Apache-2.0
"""The data directory of one server: its identity, its lock, and its layout.

    <data>/meta.json                    owner of the directory; written last, so a half-made directory is unformatted
    <data>/lock                         flock, held while the server runs
    <data>/metadata/log/                Raft log of the metadata quorum (a `PartitionLog`)
    <data>/metadata/quorum-state.json   vote and epoch
    <data>/metadata/image/              durable image (RocksDB)
    <data>/partitions/<topic id>-<p>/   partition logs
    <data>/ballast                      space that is released when the disk is full (`ballast`)
    <data>/log-directories              the directories of a broker that has several, in the first one (`brokerd`)
    <data>/clean-stop                   broker epoch of the last clean shutdown (`clean_stop`)

A broker may have several such directories; only the first one has `metadata/`.
`meta.json` is one JSON object with `format_version` (1), `cluster_id`, `node_id` and `directory_id` (32 hex digits).
The directory id identifies the disk: a wiped disk gets another one and does not count as the old voter.
Law: `open` reads `meta.json` and compares it before it touches anything else.
Source: Kafka, meta.properties; KIP-853 (directory id).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import cast

from storage.errors import (
    AlreadyFormattedError,
    CorruptDirectoryError,
    DirectoryLockedError,
    DirectoryNotWritableError,
    DiskAccessError,
    DiskError,
    FileMissingError,
    LockHeldError,
    UnformattedDirectoryError,
    WrongClusterError,
    WrongNodeError,
)
from storage.files.checkpoints import remove_if_exists, replace_file
from storage.files.disk import Disk, FileLock
from storage.files.names import (
    BALLAST_FILE,
    IMAGE_DIRECTORY,
    LOCK_FILE,
    META_FILE,
    METADATA_DIRECTORY,
    METADATA_LOG_DIRECTORY,
    PARTITIONS_DIRECTORY,
    QUORUM_STATE_FILE,
    TOPIC_ID_BYTES,
)

FORMAT_VERSION = 1
"""Version of the data directory's layout."""

MAX_NODE_ID = 2**31 - 1
"""Largest node id, inclusive."""

_CLUSTER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_DIRECTORY_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryMeta:
    """The cluster and node that own a directory, and its id.

    Attributes:
        cluster_id: the cluster; 1 to 64 characters of A-Z a-z 0-9 . _ -
        node_id: the server, 0 or more.
        directory_id: 16 random bytes, made when the directory was formatted.
    """

    cluster_id: str
    node_id: int
    directory_id: bytes


class DataDirectory:
    """A formatted data directory that this process has locked; `close` releases the lock."""

    def __init__(self, disk: Disk, path: str, meta: DirectoryMeta, lock: FileLock) -> None:
        self._disk = disk
        self._path = path
        self._meta = meta
        self._lock = lock

    def release_ballast(self) -> bool:
        """Remove the ballast for a small write that cannot wait for the watch over free space; True if it existed. Blocks.

        The watch notices it when it next tends the ballast (`SpaceGuard`).

        Raises:
            DiskFailedError, DiskAccessError: the disk.
        """
        return remove_if_exists(self._disk, f"{self._path}/{BALLAST_FILE}")

    @classmethod
    def create(
        cls,
        disk: Disk,
        path: str,
        *,
        cluster_id: str,
        node_id: int,
        directory_id: bytes,
        has_metadata: bool = True,
    ) -> DataDirectory:
        """Format a directory and open it. The directory is made if it is missing; its parent must exist.

        Args:
            disk: the disk.
            path: absolute path; may contain only unrelated files and leftovers of an interrupted `create`.
            cluster_id: see `DirectoryMeta`.
            node_id: see `DirectoryMeta`.
            directory_id: 16 random bytes.
            has_metadata: False for a further log directory, which holds only partitions.

        Raises:
            AlreadyFormattedError, DirectoryLockedError, DirectoryNotWritableError, DiskFullError, DiskFailedError.
        """
        assert _CLUSTER_ID.fullmatch(cluster_id), f"cluster id {cluster_id!r}"
        assert 0 <= node_id <= MAX_NODE_ID, f"node id {node_id}"
        assert len(directory_id) == TOPIC_ID_BYTES, f"directory id of {len(directory_id)} bytes"
        path = str(path).rstrip("/")
        meta = DirectoryMeta(cluster_id=cluster_id, node_id=node_id, directory_id=directory_id)
        try:
            disk.make_directory(path)
            lock = _lock(disk, path)
        except (DiskAccessError, FileMissingError) as error:
            raise _not_writable(path, error) from error
        try:
            if disk.exists(f"{path}/{META_FILE}"):
                raise AlreadyFormattedError(path, f"it has a {META_FILE}: it is formatted already")
            for name in _directories(has_metadata=has_metadata):
                disk.make_directory(f"{path}/{name}")
            disk.sync_directory(path)
            replace_file(disk, f"{path}/{META_FILE}", encode_meta(meta))
            disk.sync_directory(path.rpartition("/")[0] or "/")
        except DiskAccessError as error:
            lock.release()
            raise _not_writable(path, error) from error
        except BaseException:
            lock.release()
            raise
        return cls(disk, path, meta, lock)

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: str,
        *,
        cluster_id: str | None = None,
        node_id: int | None = None,
        has_metadata: bool = True,
    ) -> DataDirectory:
        """Open a formatted directory and lock it.

        Args:
            disk: the disk.
            path: absolute path.
            cluster_id: refuse the directory of another cluster; None accepts any.
            node_id: refuse the directory of another node; None accepts any.
            has_metadata: False for a further log directory, which holds only partitions.

        Raises:
            UnformattedDirectoryError, CorruptDirectoryError, WrongClusterError, WrongNodeError, DirectoryLockedError,
            DirectoryNotWritableError.
        """
        path = str(path).rstrip("/")
        meta = cls.read_meta(disk, path)
        if meta is None:
            raise UnformattedDirectoryError(path, f"it has no {META_FILE}: format it first")
        if cluster_id is not None and meta.cluster_id != cluster_id:
            raise WrongClusterError(path, f"it belongs to cluster {meta.cluster_id!r}, not to {cluster_id!r}")
        if node_id is not None and meta.node_id != node_id:
            raise WrongNodeError(path, f"it belongs to node {meta.node_id}, not to {node_id}")
        try:
            lock = _lock(disk, path)
        except DiskAccessError as error:
            raise _not_writable(path, error) from error
        try:
            for name in _directories(has_metadata=has_metadata):
                disk.make_directory(f"{path}/{name}")
        except DiskAccessError as error:
            lock.release()
            raise _not_writable(path, error) from error
        except BaseException:
            lock.release()
            raise
        return cls(disk, path, meta, lock)

    @staticmethod
    def read_meta(disk: Disk, path: str) -> DirectoryMeta | None:
        """Return the identity of a directory without locking it; None if it is not formatted or does not exist.

        Raises:
            CorruptDirectoryError: `meta.json` is damaged.
            DirectoryNotWritableError: `meta.json` cannot be read.
        """
        path = str(path).rstrip("/")
        try:
            content = disk.read_file(f"{path}/{META_FILE}")
        except FileMissingError:
            return None
        except DiskAccessError as error:
            raise _not_writable(path, error) from error
        return decode_meta(path, content)

    @property
    def path(self) -> str:
        """Absolute path."""
        return self._path

    @property
    def disk(self) -> Disk:
        """The disk that holds the directory."""
        return self._disk

    @property
    def meta(self) -> DirectoryMeta:
        """The identity of the directory."""
        return self._meta

    @property
    def cluster_id(self) -> str:
        """The cluster that owns the directory."""
        return self._meta.cluster_id

    @property
    def node_id(self) -> int:
        """The node that owns the directory."""
        return self._meta.node_id

    @property
    def directory_id(self) -> bytes:
        """16 bytes that name this directory."""
        return self._meta.directory_id

    @property
    def metadata_path(self) -> str:
        """Directory of all files of the metadata quorum."""
        return f"{self._path}/{METADATA_DIRECTORY}"

    @property
    def metadata_log_path(self) -> str:
        """Directory of the Raft log."""
        return f"{self.metadata_path}/{METADATA_LOG_DIRECTORY}"

    @property
    def quorum_state_path(self) -> str:
        """File with the vote and the quorum epoch."""
        return f"{self.metadata_path}/{QUORUM_STATE_FILE}"

    @property
    def image_path(self) -> str:
        """Directory of the durable metadata image."""
        return f"{self.metadata_path}/{IMAGE_DIRECTORY}"

    @property
    def partitions_path(self) -> str:
        """Directory of the partition logs."""
        return f"{self._path}/{PARTITIONS_DIRECTORY}"

    def close(self) -> None:
        """Release the lock; a second call does nothing."""
        self._lock.release()


def encode_meta(meta: DirectoryMeta) -> bytes:
    """Return the content of `meta.json`."""
    fields = {
        "format_version": FORMAT_VERSION,
        "cluster_id": meta.cluster_id,
        "node_id": meta.node_id,
        "directory_id": meta.directory_id.hex(),
    }
    return (json.dumps(fields, indent=2) + "\n").encode()


def decode_meta(path: str, content: bytes) -> DirectoryMeta:
    """Decode `meta.json`.

    Raises:
        CorruptDirectoryError: `encode_meta` did not write it, or it has a later format version.
    """
    try:
        parsed: object = json.loads(content)
    except ValueError as error:
        raise CorruptDirectoryError(path, f"{META_FILE} is no JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise CorruptDirectoryError(path, f"{META_FILE} holds no JSON object")
    fields = cast("dict[str, object]", parsed)
    version = fields.get("format_version")
    if version != FORMAT_VERSION:
        raise CorruptDirectoryError(path, f"format version {version!r}: this server reads {FORMAT_VERSION}")
    cluster_id, node_id, directory_id = fields.get("cluster_id"), fields.get("node_id"), fields.get("directory_id")
    if not isinstance(cluster_id, str) or not _CLUSTER_ID.fullmatch(cluster_id):
        raise CorruptDirectoryError(path, f"cluster_id {cluster_id!r}")
    if type(node_id) is not int or not 0 <= node_id <= MAX_NODE_ID:
        raise CorruptDirectoryError(path, f"node_id {node_id!r}")
    if not isinstance(directory_id, str) or not _DIRECTORY_ID.fullmatch(directory_id):
        raise CorruptDirectoryError(path, f"directory_id {directory_id!r}")
    return DirectoryMeta(cluster_id=cluster_id, node_id=node_id, directory_id=bytes.fromhex(directory_id))


def _directories(*, has_metadata: bool) -> tuple[str, ...]:
    return (METADATA_DIRECTORY, PARTITIONS_DIRECTORY) if has_metadata else (PARTITIONS_DIRECTORY,)


def _lock(disk: Disk, path: str) -> FileLock:
    try:
        return disk.lock(f"{path}/{LOCK_FILE}")
    except LockHeldError as error:
        raise DirectoryLockedError(path, "another server runs on this directory: stop it first") from error


def _not_writable(path: str, error: DiskError) -> DirectoryNotWritableError:
    return DirectoryNotWritableError(path, f"it cannot be used: {error}")
