# SPDX-License-Identifier: Apache-2.0
"""`lograft log dump` and `lograft log verify` on real directories: output, exit codes, and that nothing changes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from lograft.wire.checksum import crc32c

from storage.directory.data_directory import DataDirectory
from storage.errors import DiskAccessError, DiskReadError, FileMissingError
from storage.files.names import RECOVERY_POINT_FILE
from storage.files.posix import PosixDisk
from storage.inspect.files import InspectedFile, list_directories, list_files, read_small
from storage.log.partition_log import PartitionLog
from storage.testing.builders import SMALL, append, open_log
from storage.tests.inspect.command import rows, run
from storage.tests.inspect.logs import fingerprint, flip, make_log, open_partition, places, segment_path, segments


@pytest.fixture
def directory(sealed_directory: Path) -> Path:
    return sealed_directory


def test_healthy_log_ends_with_0(directory: Path) -> None:
    """A good log: a table with its numbers, no finding, exit code 0."""
    code, out, err = run("verify", directory)
    assert (code, err) == (0, "")
    assert str(directory) in out.replace("\n", "")
    assert "none" in out
    assert "0 to 80" in out or "0 to 79" in out


def test_findings_end_with_1_and_are_shown(directory: Path) -> None:
    """The table shows damage with its offsets and bytes, and JSON with its numbers."""
    place = places(directory)[6]
    path = segment_path(directory, place.segment_base_offset)
    flip(path, place.position + 65)
    code, out, _ = run("verify", directory)
    assert code == 1
    assert f"{place.header.base_offset} to {place.header.next_offset}" in out
    assert f"{place.position} to {place.position + place.header.size_bytes}" in out
    code, out, _ = run("verify", directory, "--json")
    assert code == 1
    (report,) = [json.loads(line) for line in out.splitlines()]
    (finding,) = report["findings"]
    assert finding["severity"] == "damage"
    assert finding["file"] == path.name
    assert (finding["base_offset"], finding["end_offset"]) == (place.header.base_offset, place.header.next_offset)


def test_strict_counts_notes(tmp_path: Path) -> None:
    """A torn tail is a note, and with --strict a finding."""
    directory = make_log(tmp_path, clean=False)
    with segments(directory)[-1].open("ab") as file:
        file.write(b"torn")
    assert run("verify", directory)[0] == 0
    assert run("verify", directory, "--strict")[0] == 1


@pytest.mark.parametrize("name", ["nowhere", "notes.txt", "empty"])
def test_what_is_no_log_is_wrong_usage(tmp_path: Path, name: str) -> None:
    """A missing path, a foreign file or a foreign directory: one line on standard error and exit code 2."""
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    for command in ("verify", "dump"):
        code, out, err = run(command, tmp_path / name)
        assert (code, out) == (2, "")
        assert name in err
    assert run("verify")[0] == 2
    assert run("dump", tmp_path, "--offset", "-1")[0] == 2


def test_nothing_is_ever_changed(data: Path) -> None:
    """Both commands leave every byte, time and mode as it was, on good and on damaged directories."""
    (partition,) = [path for path in (data / "partitions").iterdir() if len(path.name) == 34]
    for step in range(3):
        if step == 1:
            place = places(partition)[4]
            flip(segment_path(partition, place.segment_base_offset), place.position + 65)
        elif step == 2:
            os.truncate(segments(partition)[-1], 30)
            (partition / RECOVERY_POINT_FILE).unlink()
            (partition / "x.tmp").write_bytes(b"x")
        before = fingerprint(data)
        one_of_each = {path.suffix or path.name: path for path in sorted(partition.iterdir()) if path.suffix != ".tmp"}
        for path in (data, partition, *one_of_each.values()):
            run("verify", path)
            run("dump", path)
            run("dump", path, "--records")
        assert fingerprint(data) == before


def test_read_only_directory_is_enough(directory: Path) -> None:
    """The tools open nothing for writing, so they judge a directory without write permission."""
    for path in directory.iterdir():
        path.chmod(0o440)
    directory.chmod(0o550)
    assert run("verify", directory)[0] == 0
    directory.chmod(0o750)


def test_log_of_a_running_server_is_readable(tmp_path: Path) -> None:
    """The tools take no lock, so they can read an open log."""
    log = open_partition(tmp_path)
    append(log, [b"now"], leader_epoch=0)
    assert run("verify", log.directory)[0] == 0
    assert [row["value"] for row in rows("dump", log.directory, "--records")] == ["now"]
    log.close()


def test_data_directory_is_verified_as_a_whole(data: Path) -> None:
    """Its own files, the metadata log and every partition; removed directories get a note."""
    reports = rows("verify", data)
    assert [Path(report["path"]).name for report in reports][:2] == ["data", "log"]
    assert len(reports) == 3
    assert [finding["severity"] for finding in reports[0]["findings"]] == ["note"]
    (data / "meta.json").write_text("{}")
    (data / "metadata" / "quorum-state.json").write_text('{"crc32c": "00000000"}')
    (data / "metadata" / "quorum-state-copy.json").write_text("[]")
    (data / "metadata" / "initial-voters.json").write_text("{")
    files = [finding["file"] for finding in rows("verify", data)[0]["findings"]]
    assert files[:4] == [
        "meta.json",
        "metadata/quorum-state.json",
        "metadata/quorum-state-copy.json",
        "metadata/initial-voters.json",
    ]
    good = b'{"a":1,"b":[2]}'
    (data / "metadata" / "quorum-state.json").write_text(
        json.dumps({"b": [2], "a": 1, "crc32c": f"{crc32c(good):08x}"})
    )
    (data / "meta.json").unlink()
    files = [finding["file"] for finding in rows("verify", data)[0]["findings"]]
    assert files[:2] == ["meta.json", "metadata/quorum-state-copy.json"]


def test_data_directory_without_anything_is_verified(tmp_path: Path) -> None:
    """A directory that was only formatted."""
    DataDirectory.create(PosixDisk(), f"{tmp_path}/d", cluster_id="c", node_id=1, directory_id=bytes(16)).close()
    assert run("verify", tmp_path / "d")[0] == 0
    shutil.rmtree(tmp_path / "d" / "partitions")
    shutil.rmtree(tmp_path / "d" / "metadata")
    assert run("verify", tmp_path / "d")[0] == 0


def test_single_files_are_verified(directory: Path) -> None:
    """Each file of a log alone: good, and with a changed byte."""
    for path in sorted(directory.iterdir()):
        assert run("verify", path)[0] == 0, path
        if path.stat().st_size:
            flip(path, 20)
            assert run("verify", path)[0] == 1, path
            flip(path, 20)
    assert run("verify", *sorted(directory.iterdir()))[0] == 0


def test_single_segment_with_an_odd_epoch_and_a_torn_end(directory: Path) -> None:
    """A single segment shows damage between and behind its batches, and epochs that go back."""
    place = places(directory)[3]
    flip(segments(directory)[0], place.position + 15)
    (report,) = rows("verify", segments(directory)[0])
    assert [finding["base_offset"] for finding in report["findings"]] == [place.header.base_offset]
    flip(segments(directory)[0], place.position + 15)
    os.truncate(segments(directory)[0], segments(directory)[0].stat().st_size - 1)
    (report,) = rows("verify", segments(directory)[0])
    assert [finding["severity"] for finding in report["findings"]] == ["damage"]


def test_single_log_start_is_verified(tmp_path: Path) -> None:
    """The log start file too."""
    (tmp_path / "log-start").write_bytes(bytes(1_024))
    assert run("verify", tmp_path / "log-start")[0] == 1
    assert [row["counts"] for row in rows("dump", tmp_path / "log-start")] == [False, False]


def test_files_that_cannot_be_read_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing files, directories in their place and failing devices give typed errors with the path."""
    assert read_small(f"{tmp_path}/none") is None
    assert list_directories(f"{tmp_path}/none") == []
    with pytest.raises(FileMissingError, match="none"):
        InspectedFile(f"{tmp_path}/none")
    with pytest.raises(DiskAccessError):
        read_small(str(tmp_path))
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(DiskAccessError):
        list_files(f"{tmp_path}/file")
    with pytest.raises(DiskAccessError):
        list_directories(f"{tmp_path}/file")
    file = InspectedFile(f"{tmp_path}/file")
    assert file.pread(10, 0) == b"x"

    class Broken:
        def seek(self, position: int) -> None:
            raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(file, "_file", Broken())
        with pytest.raises(DiskReadError, match="device"):
            file.pread(1, 0)
    file.close()


def test_settings_of_the_log_do_not_matter(tmp_path: Path) -> None:
    """The tools know no settings: they judge a log of large segments like one of small ones."""
    log: PartitionLog = open_log(PosixDisk(), f"{tmp_path}/log", SMALL).log
    for number in range(50):
        append(log, [os.urandom(100)], leader_epoch=number // 10)
    log.close()
    assert run("verify", log.directory, "--strict")[0] == 0
