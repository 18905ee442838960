# SPDX-License-Identifier: Apache-2.0
"""The data directory: formatting, opening, refusing."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from storage.directory.data_directory import DataDirectory, DirectoryMeta
from storage.errors import (
    AlreadyFormattedError,
    CorruptDirectoryError,
    DirectoryLockedError,
    DirectoryNotWritableError,
    DiskFailedError,
    DiskFullError,
    UnformattedDirectoryError,
    WrongClusterError,
    WrongNodeError,
)
from storage.files.checkpoints import replace_file
from storage.files.posix import PosixDisk
from storage.testing.sim_disk import Crash, Refusal, SimDisk

DIRECTORY_ID = bytes(range(16))


def create(disk: SimDisk | PosixDisk, path: str = "/data") -> DataDirectory:
    return DataDirectory.create(disk, path, cluster_id="cluster-1", node_id=3, directory_id=DIRECTORY_ID)


@pytest.fixture
def empty() -> SimDisk:
    return SimDisk()


def test_create_then_open(empty: SimDisk) -> None:
    """A formatted directory opens with the same identity and the whole layout."""
    created = create(empty)
    assert created.meta == DirectoryMeta(cluster_id="cluster-1", node_id=3, directory_id=DIRECTORY_ID)
    created.close()
    created.close()
    opened = DataDirectory.open(empty, "/data/", cluster_id="cluster-1", node_id=3)
    assert (opened.cluster_id, opened.node_id, opened.directory_id) == ("cluster-1", 3, DIRECTORY_ID)
    assert opened.path == "/data"
    assert opened.disk is empty
    assert opened.metadata_log_path == "/data/metadata/log"
    assert opened.quorum_state_path == "/data/metadata/quorum-state.json"
    assert opened.image_path == "/data/metadata/image"
    assert opened.partitions_path == "/data/partitions"
    assert empty.list_directory("/data") == ["lock", "meta.json", "metadata", "partitions"]


def test_directory_is_locked_while_it_is_open(empty: SimDisk) -> None:
    """Neither a second open nor a format succeeds."""
    created = create(empty)
    with pytest.raises(DirectoryLockedError, match="another server"):
        DataDirectory.open(empty, "/data")
    with pytest.raises(DirectoryLockedError):
        create(empty)
    created.close()
    DataDirectory.open(empty, "/data").close()


def test_formatting_twice_is_refused(empty: SimDisk) -> None:
    """A formatted directory is never overwritten, and stays usable."""
    create(empty).close()
    with pytest.raises(AlreadyFormattedError):
        DataDirectory.create(empty, "/data", cluster_id="other", node_id=1, directory_id=bytes(16))
    DataDirectory.open(empty, "/data", cluster_id="cluster-1", node_id=3).close()


@pytest.mark.parametrize("exists", [True, False])
def test_unformatted_directory_is_refused(empty: SimDisk, exists: bool) -> None:
    """A directory without meta.json is not touched, whether it exists or not."""
    if exists:
        empty.make_directory("/data")
    assert DataDirectory.read_meta(empty, "/data") is None
    with pytest.raises(UnformattedDirectoryError, match="format it first"):
        DataDirectory.open(empty, "/data")
    assert not exists or empty.list_directory("/data") == []


def test_wrong_cluster_and_wrong_node_are_refused_before_the_lock(empty: SimDisk) -> None:
    """The directory of another cluster or node is refused, and the error names the owner."""
    create(empty)
    with pytest.raises(WrongClusterError, match="'cluster-1', not to 'cluster-2'"):
        DataDirectory.open(empty, "/data", cluster_id="cluster-2")
    with pytest.raises(WrongNodeError, match="node 3, not to 4"):
        DataDirectory.open(empty, "/data", node_id=4)


@pytest.mark.parametrize(
    "change",
    [
        {"format_version": 2},
        {"format_version": None},
        {"cluster_id": ""},
        {"cluster_id": "a/b"},
        {"cluster_id": 5},
        {"node_id": -1},
        {"node_id": True},
        {"node_id": "3"},
        {"directory_id": "00"},
        {"directory_id": 7},
    ],
)
def test_damaged_meta_is_refused(empty: SimDisk, change: dict[str, object]) -> None:
    """Fields of another type or range, and other versions, are named."""
    create(empty).close()
    fields = {**json.loads(empty.read_file("/data/meta.json")), **change}
    replace_file(empty, "/data/meta.json", json.dumps(fields).encode())
    with pytest.raises(CorruptDirectoryError, match=next(iter(change)).replace("_", "[_ ]")):
        DataDirectory.open(empty, "/data")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
def test_meta_that_is_no_object_is_refused(empty: SimDisk, content: bytes) -> None:
    """Any bytes give a typed error."""
    create(empty).close()
    replace_file(empty, "/data/meta.json", content)
    with pytest.raises(CorruptDirectoryError, match="JSON"):
        DataDirectory.open(empty, "/data")


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "directory_id"),
    [("", 1, bytes(16)), ("-a", 1, bytes(16)), ("a" * 65, 1, bytes(16)), ("a", -1, bytes(16)), ("a", 1, bytes(15))],
)
def test_impossible_identity_is_a_programmer_error(
    empty: SimDisk, cluster_id: str, node_id: int, directory_id: bytes
) -> None:
    """The command line checks these first."""
    with pytest.raises(AssertionError):
        DataDirectory.create(empty, "/data", cluster_id=cluster_id, node_id=node_id, directory_id=directory_id)


def test_every_crash_while_formatting_leaves_unformatted_or_whole() -> None:
    """A directory is formatted completely or not at all, and can be formatted after an interrupted attempt."""
    recorded = SimDisk()
    points: list[SimDisk] = []
    recorded.on_call = lambda call: points.append(recorded.fork())
    create(recorded).close()
    for number, point in enumerate(points):
        for how in Crash:
            crashed = point.fork()
            crashed.crash(how, random.Random(number))
            if DataDirectory.read_meta(crashed, "/data") is None:
                create(crashed).close()
            opened = DataDirectory.open(crashed, "/data", cluster_id="cluster-1", node_id=3)
            assert opened.directory_id == DIRECTORY_ID
    recorded.crash(Crash.LOSE_ALL, random.Random(0))
    assert DataDirectory.read_meta(recorded, "/data") is not None


@pytest.mark.parametrize(("refusal", "error"), [(Refusal.FULL, DiskFullError), (Refusal.IO_ERROR, DiskFailedError)])
def test_disk_errors_while_formatting_release_the_lock(
    empty: SimDisk, refusal: Refusal, error: type[Exception]
) -> None:
    """A failed format reports its error and holds no lock."""
    empty.refuse("append", "meta.json", refusal)
    with pytest.raises(error):
        create(empty)
    if refusal is Refusal.FULL:
        create(empty).close()


def test_disk_error_while_opening_releases_the_lock(empty: SimDisk) -> None:
    """The same holds for opening."""
    create(empty).close()
    empty.refuse("make_directory", "/data/partitions", Refusal.FULL)
    with pytest.raises(DiskFullError):
        DataDirectory.open(empty, "/data")
    DataDirectory.open(empty, "/data").close()


def test_path_that_cannot_be_used_is_typed(tmp_path: Path) -> None:
    """A file in the way, or a missing parent, gives one clear error with the path."""
    disk = PosixDisk()
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "inside", tmp_path / "missing" / "data"):
        with pytest.raises(DirectoryNotWritableError, match=str(path)):
            create(disk, str(path))
    with pytest.raises(DirectoryNotWritableError):
        DataDirectory.open(disk, str(tmp_path / "file"))


@pytest.mark.parametrize("blocked", ["metadata", "lock"])
def test_layout_that_is_in_the_way_is_typed(tmp_path: Path, blocked: str) -> None:
    """A file where a directory belongs, or the reverse, is refused when formatting and when opening."""
    disk = PosixDisk()
    path = tmp_path / "data"
    path.mkdir()
    blocker = path / blocked
    if blocked == "lock":
        blocker.mkdir()
    else:
        blocker.write_bytes(b"")
    with pytest.raises(DirectoryNotWritableError):
        create(disk, str(path))
    (path / "meta.json").write_text(
        json.dumps({"format_version": 1, "cluster_id": "c", "node_id": 1, "directory_id": "0" * 32})
    )
    with pytest.raises(DirectoryNotWritableError):
        DataDirectory.open(disk, str(path))
