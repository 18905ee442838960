# SPDX-License-Identifier: Apache-2.0
"""Several data directories of one broker: their formatting, errors that stop a start, and a real broker on them."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from lograft.v1 import admin_pb2, log_pb2, metadata_pb2
from lograft.wire.codes import ErrorCode

from brokerd.process.settings import BrokerSettings
from brokerd.process.standalone import standalone_settings
from brokerd.replica.log_directories import OpenedDirectories, open_log_directories
from brokerd.tests.replica.many_directories import start
from brokerd.tests.support import WAIT_S, Client, connected, refusal
from metaquorum.process.settings import SettingsError
from storage.directory.data_directory import DataDirectory
from storage.directory.space import SpaceLimits
from storage.errors import (
    CorruptDirectoryError,
    DirectoryLockedError,
    DirectoryMissingError,
    DirectoryNotWritableError,
    UnformattedDirectoryError,
    WrongClusterError,
)
from storage.files.names import LOG_DIRECTORIES_FILE
from storage.files.posix import PosixDisk

OFF = SpaceLimits.from_soft(0)


@pytest.fixture
def first(tmp_path: Path) -> Iterator[DataDirectory]:
    """The open directory with the metadata."""
    created = DataDirectory.create(
        PosixDisk(), str(tmp_path / "first"), cluster_id="c", node_id=1, directory_id=bytes(16)
    )
    yield created
    created.close()


def open_and_close(first: DataDirectory, *paths: Path) -> Sequence[bytes]:
    opened = open_log_directories(first, paths, OFF)
    opened.close()
    opened.close()
    return opened.logs.ids


def test_new_directories_are_formatted_with_ids_of_their_own(first: DataDirectory, tmp_path: Path) -> None:
    """They belong to the same cluster and node, hold no metadata, and are the same ones at the next start."""
    (tmp_path / "b" / "lost+found").mkdir(parents=True)
    ids = open_and_close(first, tmp_path / "a" / "deep", tmp_path / "b")
    assert len(set(ids)) == 3
    assert ids[0] == first.directory_id
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["lock", "lost+found", "meta.json", "partitions"]
    assert open_and_close(first, tmp_path / "a" / "deep", tmp_path / "b") == ids
    meta = DataDirectory.read_meta(PosixDisk(), str(tmp_path / "b"))
    assert meta is not None
    assert (meta.cluster_id, meta.node_id) == ("c", 1)


def test_one_directory_leaves_no_list(first: DataDirectory) -> None:
    """The usual broker has no list of directories."""
    assert open_and_close(first) == (first.directory_id,)
    assert not Path(first.path, LOG_DIRECTORIES_FILE).exists()


def test_directory_in_use_is_refused_and_the_others_are_free_again(first: DataDirectory, tmp_path: Path) -> None:
    """A start that fails leaves no lock behind."""
    opened: OpenedDirectories = open_log_directories(first, [tmp_path / "a"], OFF)
    with pytest.raises(DirectoryLockedError):
        open_log_directories(first, [tmp_path / "b", tmp_path / "a"], OFF)
    opened.close()
    open_and_close(first, tmp_path / "b", tmp_path / "a")


def test_known_directory_that_is_empty_stops_the_start(first: DataDirectory, tmp_path: Path) -> None:
    """A disk that is not mounted must not look like a new one. Removing its line from the list declares it lost."""
    open_and_close(first, tmp_path / "a", tmp_path / "b")
    (tmp_path / "b").rename(tmp_path / "unmounted")
    with pytest.raises(DirectoryMissingError, match="mount its disk"):
        open_and_close(first, tmp_path / "a", tmp_path / "b")
    assert not (tmp_path / "b" / "meta.json").exists()
    with pytest.raises(DirectoryMissingError, match="name it with --data-dir"):
        open_and_close(first, tmp_path / "a")
    listed = Path(first.path, LOG_DIRECTORIES_FILE)
    listed.write_text("".join(line for line in listed.read_text().splitlines(True) if str(tmp_path / "a") in line))
    assert len(open_and_close(first, tmp_path / "a")) == 2
    assert len(open_and_close(first, tmp_path / "a", tmp_path / "b")) == 3


def test_directory_may_move_to_another_path(first: DataDirectory, tmp_path: Path) -> None:
    """It is recognised by its id, and the list is updated."""
    ids = open_and_close(first, tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "moved")
    assert open_and_close(first, tmp_path / "moved") == ids
    assert Path(first.path, LOG_DIRECTORIES_FILE).read_text() == f"{ids[1].hex()} {tmp_path / 'moved'}\n"


def test_interrupted_format_is_finished(first: DataDirectory, tmp_path: Path) -> None:
    """The remains of an interrupted format are no reason to refuse the directory."""
    (tmp_path / "a" / "partitions").mkdir(parents=True)
    (tmp_path / "a" / "lock").touch()
    (tmp_path / "a" / "meta.json.tmp").touch()
    assert len(open_and_close(first, tmp_path / "a")) == 2


@pytest.mark.parametrize("name", ["thesis.txt", "partitions/x"])
def test_directory_with_other_files_is_never_formatted(first: DataDirectory, tmp_path: Path, name: str) -> None:
    """An operator's mistake must not cost files."""
    path = tmp_path / "a" / name
    path.parent.mkdir(parents=True)
    path.write_text("do not touch")
    with pytest.raises(UnformattedDirectoryError, match="holds files"):
        open_and_close(first, tmp_path / "a")


def test_directories_that_do_not_fit_are_refused(first: DataDirectory, tmp_path: Path) -> None:
    """The directory is of another cluster, has its own metadata, is a copy of another one, or is no directory."""
    DataDirectory.create(
        PosixDisk(), str(tmp_path / "other"), cluster_id="d", node_id=1, directory_id=b"1" * 16
    ).close()
    with pytest.raises(WrongClusterError):
        open_and_close(first, tmp_path / "other")
    own = DataDirectory.create(PosixDisk(), str(tmp_path / "own"), cluster_id="c", node_id=1, directory_id=b"1" * 16)
    own.close()
    Path(own.quorum_state_path).touch()
    with pytest.raises(SettingsError, match="name that directory first"):
        open_and_close(first, tmp_path / "own")
    Path(own.quorum_state_path).unlink()
    DataDirectory.create(PosixDisk(), str(tmp_path / "copy"), cluster_id="c", node_id=1, directory_id=b"1" * 16).close()
    with pytest.raises(CorruptDirectoryError, match="is a copy of"):
        open_and_close(first, tmp_path / "own", tmp_path / "copy")
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "logs"):
        with pytest.raises(DirectoryNotWritableError, match=f"^{tmp_path}/file: it is a file, not a directory"):
            open_and_close(first, path)


def test_bad_line_in_the_list_is_told(first: DataDirectory) -> None:
    """The list is edited by hand, so the error names the bad line."""
    Path(first.path, LOG_DIRECTORIES_FILE).write_text("x /path\n")
    with pytest.raises(CorruptDirectoryError, match="'x /path'"):
        open_and_close(first)


@pytest.mark.parametrize(
    ("more", "min_free_bytes", "text"),
    [
        (("/d/a",), 0, "given twice"),
        (("/d/b", "/d/c", "/d/b"), 0, "given twice"),
        (("/d/a/inside",), 0, "inside another"),
        (("/d/b\n",), 0, "line break"),
        ((), 1, "--min-free-bytes 1"),
        ((), -1, "--min-free-bytes -1"),
    ],
)
def test_bad_settings_are_refused(tmp_path: Path, more: tuple[str, ...], min_free_bytes: int, text: str) -> None:
    """The check comes before anything is opened."""
    good = standalone_settings(tmp_path, port=0)
    with pytest.raises(SettingsError, match=text):
        BrokerSettings(
            data_directory=Path("/d/a"),
            node_id=1,
            listen=good.listen,
            combined=good.combined,
            more_data_directories=tuple(map(Path, more)),
            min_free_bytes=min_free_bytes,
        )


async def cluster_of(client: Client) -> metadata_pb2.GetClusterResponse:
    return await client.metadata.GetCluster(metadata_pb2.GetClusterRequest(), timeout=WAIT_S)


async def values_of(client: Client, partition: int) -> list[bytes]:
    return [record.value for record in (await client.read("t", partition)).records]


async def test_broker_with_a_failed_disk_goes_on_with_the_others(tmp_path: Path) -> None:
    """Appends to the failed directory are refused, its records and all other partitions stay in service."""
    server = await start(tmp_path, more=("second",))
    try:
        async with connected(server) as client:
            await client.create_topic("t", 4)
            for partition in range(4):
                await client.append("t", [b"before"], partition=partition)
            assert server.replica_manager is not None
            _, second = server.replica_manager.directories
            hurt = {int(name.rpartition("-")[2]) for name in second.partition_names()}
            assert len(hurt) == 2
            assert isinstance(second.disk, PosixDisk)
            second.disk.fail(second.path, OSError(errno.EIO, "gone"), "fsync")
            for partition in range(4):
                if partition in hurt:
                    status = await refusal(client.append("t", [b"after"], partition=partition))
                    assert status.code is ErrorCode.STORAGE_FAILED
                else:
                    await client.append("t", [b"after"], partition=partition)
                    assert await values_of(client, partition) == [b"before", b"after"]
            assert server.is_serving
            async with asyncio.timeout(WAIT_S):
                shown: list[bytes] = []
                while not shown:
                    shown = list((await cluster_of(client)).brokers[0].offline_log_directory_ids)
            assert shown == [second.directory_id]
            described = await client.admin.DescribeLogDirectories(
                admin_pb2.DescribeLogDirectoriesRequest(), timeout=WAIT_S
            )
            assert described.directories[1].state == admin_pb2.LOG_DIRECTORY_STATE_FAILED
            assert "fsync failed" in described.directories[1].problem
            await client.create_topic("u", 2)
            for partition in range(2):
                await client.append("u", [b"x"], partition=partition)
    finally:
        await server.stop()
    server = await start(tmp_path, more=("second",))
    try:
        async with connected(server) as client:
            for partition in range(4):
                await client.append("t", [b"repaired"], partition=partition)
                assert (await values_of(client, partition))[0] == b"before"
    finally:
        await server.stop()


async def test_broker_short_of_space_refuses_appends_and_serves_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets a retriable code and a text that says what to do. Once there is space again, the append works."""
    server = await start(tmp_path, min_free_bytes=2**20)
    try:
        async with connected(server) as client:
            await client.create_topic("t")
            await client.append("t", [b"before"], partition=0)
            assert server.replica_manager is not None
            with monkeypatch.context() as patch:
                patch.setattr(PosixDisk, "free_bytes", lambda _disk, _path: 2**20 - 1)
                await server.replica_manager.tend_space()
                status = await refusal(client.append("t", [b"refused"], partition=0))
                assert status.code is ErrorCode.STORAGE_FAILED
                assert "delete records or topics" in status.message
                assert str(tmp_path) not in status.message
                assert await values_of(client, 0) == [b"before"]
                request = log_pb2.DeleteRecordsRequest(
                    partitions=[log_pb2.RecordsBefore(topic="t", partition=0, before_offset=1)]
                )
                deleted = await client.log.DeleteRecords(request, timeout=WAIT_S)
                assert [result.log_start_offset for result in deleted.results] == [1]
            await server.replica_manager.tend_space()
            await client.append("t", [b"after"], partition=0)
            assert [record.value for record in (await client.read("t", 0, 1)).records] == [b"after"]
    finally:
        await server.stop()


async def test_reserve_above_the_real_free_space_refuses_appends(tmp_path: Path) -> None:
    """The operator's setting is the limit, whatever the disk has."""
    server = await start(tmp_path, min_free_bytes=2**62)
    try:
        async with connected(server) as client:
            await client.create_topic("t")
            status = await refusal(client.append("t", [b"refused"], partition=0))
            assert status.code is ErrorCode.STORAGE_FAILED
    finally:
        await server.stop()


async def test_start_without_a_known_directory_ends_and_leaves_the_first_one_free(tmp_path: Path) -> None:
    """The error names the missing directory. With it the same broker starts."""
    await (await start(tmp_path, more=("second",))).stop()
    with pytest.raises(DirectoryMissingError, match="second"):
        await start(tmp_path)
    server = await start(tmp_path, more=("second",))
    assert server.is_serving
    await server.stop()
